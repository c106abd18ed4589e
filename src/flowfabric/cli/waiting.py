"""What a run waits at, as words: found by name, listed, and how to answer it."""

import shlex
from collections.abc import Sequence

from flowfabric.cli.errors import Code, CommandError
from flowfabric.cli.format import local
from flowfabric.cli.json import Document, document
from flowfabric.core.base.redact import without_secrets
from flowfabric.core.wait.waitpoint import OpenWaitpoint
from flowfabric.fabric import Fabric

COLUMNS = ("run", "name", "state", "waits for", "since", "expires", "approvers", "about")
DIGEST = 12
MOST = 1000


async def find(fabric: Fabric, run: str, name: str | None) -> OpenWaitpoint:
    """The one open waitpoint these words name. `run` may be `run/waitpoint`; without a name there
    must be only one. Of several with the same name the one that is waited at counts."""
    id, slash, waitpoint = run.partition("/")
    found = await fabric.waitpoints(id, limit=MOST)
    if slash:
        return _only([item for item in found if str(item.id) == waitpoint], id, waitpoint)
    return _only(_chosen(found, name), id, name)


async def find_approval(fabric: Fabric, run: str, name: str | None) -> OpenWaitpoint:
    """The same among those that are approvals."""
    id, slash, waitpoint = run.partition("/")
    found = [item for item in await fabric.waitpoints(id, limit=MOST) if is_approval(item)]
    if slash:
        named = [item for item in found if str(item.id) == waitpoint]
        return _only(named, id, waitpoint, what="approval")
    return _only(_chosen(found, name), id, name, what="approval")


def is_approval(item: OpenWaitpoint) -> bool:
    return item.terms is not None and bool(item.terms.decisions)


def row(item: OpenWaitpoint) -> list[str]:
    terms = item.terms
    return [
        item.execution,
        item.key,
        item.state,
        ", ".join(item.required_signal_names) or "any signal",
        local(item.activated_at or item.created_at),
        local(item.expires_at),
        "" if terms is None else ", ".join(terms.approvers) or "anybody",
        (terms.about or "")[:DIGEST] if terms else "",
    ]


def told(item: OpenWaitpoint) -> Document:
    """For programs. There is no token in it, only what tells tokens apart."""
    return document(item)


def how_to_answer(item: OpenWaitpoint) -> list[str]:
    """The commands that answer it."""
    where = f"{shlex.quote(item.execution)} {shlex.quote(item.key)}"
    if is_approval(item):
        return [f"flowfabric {verb} {where} --as APPROVER" for verb in ("approve", "reject")]
    return [f"flowfabric signal {where} JSON"]


def _chosen(found: Sequence[OpenWaitpoint], name: str | None) -> list[OpenWaitpoint]:
    named = [item for item in found if name is None or item.key == name]
    return [item for item in named if item.state == "active"] or named


def _only(
    found: Sequence[OpenWaitpoint], run: str, name: str | None, what: str = "waitpoint"
) -> OpenWaitpoint:
    if len(found) == 1:
        return found[0]
    if found and name is None:
        names = ", ".join(sorted({item.key for item in found}))
        raise CommandError(f"{run} has several open {what}s, name one: {names}", Code.USAGE)
    if found:
        ids = ", ".join(f"{run}/{item.id}" for item in found)
        raise CommandError(f"several {what}s are called {name!r}, name one: {ids}", Code.USAGE)
    which = "" if name is None else f" {without_secrets(name)!r}"
    raise CommandError(f"{run} has no open {what}{which}", Code.NOT_FOUND, "not_found")
