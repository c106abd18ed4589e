"""`flowfabric workers …`"""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from typer import Argument, Option, Typer

from flowfabric.cli.command import Limit, command
from flowfabric.cli.format import local, number_of, span
from flowfabric.cli.json import Document, counted, document
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.table import PAGE, Table, pages
from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.pages import in_pages
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import HeldLease, NotRegistered, Presence
from flowfabric.core.execution.versions import versions_in, without_versions
from flowfabric.engine.engine import Engine
from flowfabric.store.queries import ExpiredLease

app = Typer(
    help="Inspect workers and their leases, and mark workers that died.",
    no_args_is_help=True,
)

Namespace = Annotated[str, Option(metavar="NAMESPACE", help="Where the workers are registered.")]
Instance = Annotated[str, Argument(metavar="INSTANCE", help="As `workers list` shows it.")]

HELD = Table[HeldLease](
    row=lambda lease: [
        ("run", lease.id),
        ("kind", lease.kind),
        ("lane", lease.lane),
        ("attempt", str(lease.attempt + 1)),
        ("since", local(lease.since)),
        ("until", local(lease.expires_at)),
    ],
    json=counted,
)
EXPIRED = Table[ExpiredLease](
    row=lambda lease: [
        ("run", lease.id),
        ("instance", lease.instance),
        ("attempt", str(lease.attempt + 1)),
        ("expired", local(lease.expires_at)),
    ],
    json=counted,
    empty="no lost leases",
)


@command(app, "list")
async def list_workers(  # noqa: PLR0913 - the options are the interface
    engine: Engine,
    screen: Screen,
    namespace: Namespace = "default",
    every: Annotated[bool, Option("--all", help="Workers of all namespaces.")] = False,
    lane: Annotated[str | None, Option(help="Only those that serve this lane.")] = None,
    kind: Annotated[str | None, Option(help="Only those that run this task.")] = None,
    capability: Annotated[list[str] | None, Option(help="Only with this one; repeatable.")] = None,
    dead: Annotated[
        bool, Option("--dead", help="Workers that fell silent or are marked dead instead.")
    ] = False,
    held: Annotated[bool, Option("--held", help="Also count the leases that each holds.")] = False,
) -> None:
    """List the live workers, what they can run and how busy they are.

    Running is what a worker reported at its last heartbeat; with --held, "holds" counts its leases.
    """
    filters: dict[str, Any] = {"lane": lane, "kind": kind, "capabilities": capability or []}
    filters |= {"namespace": None if every else namespace, "alive": not dead}
    found = [
        entry
        async for entry in pages(
            lambda after, limit: engine.workers.list(**filters, after=after, limit=limit),
            lambda entry: entry.key,
        )
    ]
    counts = await _held(engine, found) if held else [None] * len(found)
    now, narrow = engine.now(), lane or kind or capability or dead
    table = Table[tuple[Presence, int | None]](
        row=lambda item: _row(*item, everywhere=every),
        json=lambda item: _document(*item, now),
        empty="no such workers" if narrow else "no workers: start one with flowfabric worker",
    )
    table.lines(screen, list(zip(found, counts, strict=True)))


async def _held(engine: Engine, entries: list[Presence]) -> list[int]:
    counts: list[int] = []
    for page in in_pages(entries, PAGE):
        counts += await engine.workers.held(page)
    return counts


@command(app)
async def show(
    engine: Engine, screen: Screen, instance: Instance, namespace: Namespace = "default"
) -> None:
    """Show a worker and the runs it holds, since when and until when.

    It also finds an instance that holds leases without being registered.
    """
    entry = await engine.workers.get(instance, namespace=namespace)
    found = [lease async for lease in _leases(engine, instance, entry)]
    now = engine.now()
    if entry is None and not found:
        raise NotFound("worker", instance)
    if screen.as_json:
        about = {"instance": instance} if entry is None else _document(entry, len(found), now)
        leases = [HELD.json(lease) for lease in found]
        screen.document({**about, "registered": entry is not None, "leases": leases})
        return
    if entry is None:
        screen.note(f"{instance} is not registered in namespace {namespace!r}, but it holds leases")
    else:
        screen.fields(_fields(entry, now, len(found)))
    if found:
        screen.table([HELD.row(lease) for lease in found])


def _leases(engine: Engine, instance: str, entry: Presence | None) -> AsyncIterator[HeldLease]:
    """What the entry's worker holds; without an entry, what any worker of that name holds."""
    only: dict[str, Any] = {} if entry is None else {"worker": entry.worker}
    if entry is not None and not entry.everywhere:
        only["namespace"] = entry.namespace
    return pages(
        lambda after, limit: engine.workers.leases(instance, **only, after=after, limit=limit),
        lambda lease: lease.id,
    )


@command(app)
async def dead(
    engine: Engine,
    screen: Screen,
    instance: Instance,
    reason: Annotated[str, Option(help="Why; the events of its runs keep it.")],
    revoke: Annotated[
        bool,
        Option(
            "--revoke", help="Revoke its leases, so that other workers continue its runs at once."
        ),
    ] = False,
    namespace: Namespace = "default",
) -> None:
    """Mark a worker dead that will not come back.

    Without --revoke its leases expire by themselves. A worker that is alive after all stops the
    runs it lost and is listed again.
    """
    answer = await engine.workers.mark_dead(
        instance, namespace=namespace, reason=reason, revoke=revoke
    )
    if isinstance(answer, NotRegistered):
        raise NotFound("worker", instance)
    revoked = f" and revoked {number_of(answer.revoked, 'lease')}" if revoke else ""
    done = {"instance": instance, "dead": True, "revoked": answer.revoked}
    screen.answer(done, f"marked {instance} dead{revoked}")


@command(app)
async def expired(
    engine: Engine,
    screen: Screen,
    namespace: Annotated[
        str | None,
        Option(metavar="NAMESPACE", show_default="all", help="Only runs of this namespace."),
    ] = None,
    limit: Limit = 100,
) -> None:
    """List the leases that expired or were revoked and that no worker has taken over yet."""
    found = pages(
        lambda after, limit: engine.claims.expired(after=after, limit=limit, namespace=namespace),
        lambda lease: (lease.expires_at, lease.id),
        limit,
    )
    await EXPIRED.list(screen, found)


def _document(entry: Presence, held: int | None, now: Millis) -> Document:
    found = document(entry)
    del found["version"]
    found |= {"alive": entry.alive(now), "load": round(entry.load, 3)}
    return found if held is None else {**found, "held": held}


def _row(entry: Presence, held: int | None, *, everywhere: bool) -> Cells:
    return [
        ("instance", entry.instance),
        ("worker", entry.worker),
        *([("namespace", entry.namespace)] if everywhere else []),
        ("running", f"{entry.running}/{entry.concurrency}"),
        ("load", f"{entry.load:.0%}"),
        *([] if held is None else [("holds", str(held))]),
        ("tasks", ", ".join(_task(entry, kind) for kind in entry.kinds) or "any"),
        ("lanes", ", ".join(entry.lanes) or "all"),
        ("capabilities", ", ".join(without_versions(entry.capabilities))),
        ("last seen", local(entry.seen_at)),
    ]


def _task(entry: Presence, kind: str) -> str:
    """A task and the versions of it that the worker offers: charge (1, 2)."""
    versions = ", ".join(versions_in(entry.capabilities, kind))
    return f"{kind} ({versions})" if versions else kind


def _fields(entry: Presence, now: Millis, held: int) -> Cells:
    everywhere = ", claims from all" if entry.everywhere else ""
    return [
        ("instance", entry.instance),
        ("worker", entry.worker),
        ("state", _state(entry, now)),
        ("running", f"{entry.running} of {entry.concurrency} ({entry.load:.0%})"),
        ("holds", number_of(held, "lease")),
        ("tasks", ", ".join(_task(entry, kind) for kind in entry.kinds) or "any"),
        ("lanes", ", ".join(entry.lanes) or "all"),
        ("capabilities", ", ".join(without_versions(entry.capabilities))),
        ("namespace", f"{entry.namespace}{everywhere}"),
        ("registered", local(entry.registered_at)),
        ("last seen", f"{local(entry.seen_at)} ({span(now - entry.seen_at)} ago)"),
    ]


def _state(entry: Presence, now: Millis) -> str:
    if entry.marked_at is not None:
        return f"marked dead at {local(entry.marked_at)}: {entry.reason}"
    return "alive" if entry.alive(now) else f"silent since {local(entry.expires_at)}"
