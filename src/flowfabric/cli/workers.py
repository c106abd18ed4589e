"""`flowfabric workers …`"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from flowfabric.cli.connect import connect
from flowfabric.cli.format import local, span
from flowfabric.cli.json import document
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen
from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import HeldLease, NotRegistered, Presence
from flowfabric.engine.engine import Engine
from flowfabric.store.queries import ExpiredLease

app = typer.Typer(
    help="Look at the workers and what they hold, and give up those that died.",
    no_args_is_help=True,
)

Namespace = Annotated[
    str, typer.Option(metavar="NAMESPACE", help="The namespace the workers are registered in.")
]
Instance = Annotated[str, typer.Argument(metavar="INSTANCE", show_default=False)]
Lane = Annotated[
    str | None, typer.Option("--lane", show_default=False, help="Those that take from it.")
]
Kind = Annotated[
    str | None, typer.Option("--kind", show_default=False, help="Those that run such tasks.")
]
Capability = Annotated[
    list[str] | None,
    typer.Option("--capability", show_default=False, help="Those that offer it; repeatable."),
]
All = Annotated[bool, typer.Option("--all", help="Workers of all namespaces.")]
Dead = Annotated[
    bool, typer.Option("--dead", help="Those that fell silent or are marked dead instead.")
]
Held = Annotated[bool, typer.Option("--held", help="Also count the leases each really holds.")]

COLUMNS = (
    "instance", "worker", "running", "load", "tasks", "lanes", "capabilities", "last seen",
)  # fmt: skip
LEASE_COLUMNS = ("run", "kind", "lane", "attempt", "since", "until")
EXPIRED_COLUMNS = ("run", "instance", "attempt", "ran out")

_PAGE = 1000


@app.command(name="list")
def list_workers(  # noqa: PLR0913 - the options are the interface
    namespace: Namespace = "default",
    every: All = False,
    lane: Lane = None,
    kind: Kind = None,
    capability: Capability = None,
    dead: Dead = False,
    held: Held = False,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the live workers, what they can run and how busy they are.

    Running is what a worker said at its last heartbeat; with --held, "holds" counts its leases.
    """
    filters = {
        "namespace": None if every else namespace,
        "lane": lane,
        "kind": kind,
        "capabilities": capability or [],
        "alive": not dead,
    }
    asyncio.run(_list(url, filters, Screen(as_json), held=held))


@app.command()
def show(
    instance: Instance,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a worker and the runs it holds, since when and until when.

    Also for an instance that is not registered but holds leases.
    """
    asyncio.run(_show(url, instance, namespace, Screen(as_json)))


@app.command()
def dead(
    instance: Instance,
    reason: Annotated[
        str,
        typer.Option("--reason", show_default=False, help="Why; the events of its runs say it."),
    ],
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Take its leases away, so that others go on at once.")
    ] = False,
    namespace: Namespace = "default",
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take a worker off the list that will not come back.

    Without --revoke its leases run out by themselves. A worker that is alive after all stops what
    it lost and comes back to the list.
    """
    asyncio.run(_dead(url, instance, namespace, reason, Screen(as_json), revoke=revoke))


@app.command()
def expired(
    namespace: Annotated[
        str | None, typer.Option(metavar="NAMESPACE", show_default="all", help="Runs of this one.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the leases that ran out or were revoked and that nobody has taken over yet."""
    asyncio.run(_expired(url, namespace, limit, Screen(as_json)))


async def _list(url: str | None, filters: dict[str, Any], screen: Screen, *, held: bool) -> None:
    rows: list[list[str]] = []
    everywhere = filters["namespace"] is None
    async with connect(url) as fabric:
        engine = await fabric.engine()
        async for page in _pages(engine, filters):
            counts = await engine.workers.held(page) if held else [None] * len(page)
            for entry, count in zip(page, counts, strict=True):
                if screen.as_json:
                    screen.document(_document(entry, engine.now(), count))
                rows.append(_row(entry, count, everywhere=everywhere))
    if screen.as_json:
        return
    columns = [*COLUMNS[:2], *(["namespace"] if everywhere else []), *COLUMNS[2:4]]
    screen.table([*columns, *(["holds"] if held else []), *COLUMNS[4:]], rows)
    if not rows:
        screen.note("no such workers" if _narrow(filters) else _NOBODY)


_NOBODY = "no workers: start one with flowfabric worker"


async def _show(url: str | None, instance: str, namespace: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        entry = await engine.workers.get(instance, namespace=namespace)
        found = [lease async for lease in _leases(engine, instance, entry)]
        now = engine.now()
    if entry is None and not found:
        raise NotFound("worker", instance)
    if screen.as_json:
        about = {"instance": instance} if entry is None else _document(entry, now, len(found))
        leases = [document(lease) for lease in found]
        screen.document({**about, "registered": entry is not None, "leases": leases})
        return
    if entry is None:
        screen.note(f"{instance} is not registered in namespace {namespace!r} but holds leases")
    else:
        screen.fields(_fields(entry, now, len(found)))
    screen.table(LEASE_COLUMNS, [_lease_row(lease) for lease in found])


async def _dead(
    url: str | None, instance: str, namespace: str, reason: str, screen: Screen, *, revoke: bool
) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        answer = await engine.workers.mark_dead(
            instance, namespace=namespace, reason=reason, revoke=revoke
        )
    if isinstance(answer, NotRegistered):
        raise NotFound("worker", instance)
    if screen.as_json:
        screen.document({"instance": instance, "dead": True, "revoked": answer.revoked})
    elif revoke:
        screen.line(f"marked {instance} dead and revoked {answer.revoked} leases")
    else:
        screen.line(f"marked {instance} dead")


async def _expired(url: str | None, namespace: str | None, limit: int, screen: Screen) -> None:
    found: list[ExpiredLease] = []
    async with connect(url) as fabric:
        engine = await fabric.engine()
        while len(found) < limit:
            size = min(_PAGE, limit - len(found))
            after = (found[-1].expires_at, found[-1].id) if found else None
            page = await engine.claims.expired(after=after, limit=size, namespace=namespace)
            found += page
            if len(page) < size:
                break
    if screen.as_json:
        for lease in found:
            screen.document(document(lease))
    elif found:
        screen.table(EXPIRED_COLUMNS, [_expired_row(lease) for lease in found])
    else:
        screen.note("no lost leases")


async def _pages(engine: Engine, filters: dict[str, Any]) -> AsyncIterator[list[Presence]]:
    after: tuple[str, str] | None = None
    while page := await engine.workers.list(**filters, after=after, limit=_PAGE):
        yield page
        after = page[-1].key


async def _leases(
    engine: Engine, instance: str, entry: Presence | None
) -> AsyncIterator[HeldLease]:
    """What the entry's worker holds; without an entry, what anybody of that name holds."""
    only: dict[str, Any] = {} if entry is None else {"worker": entry.worker}
    if entry is not None and not entry.everywhere:
        only["namespace"] = entry.namespace
    after: ExecutionId | None = None
    while page := await engine.workers.leases(instance, **only, after=after, limit=_PAGE):
        for lease in page:
            yield lease
        after = page[-1].id


def _document(entry: Presence, now: Millis, held: int | None) -> dict[str, Any]:
    found = document(entry)
    del found["stamp"]
    found |= {"alive": entry.alive(now), "load": round(entry.load, 3)}
    return found if held is None else {**found, "held": held}


def _narrow(filters: dict[str, Any]) -> bool:
    return any(filters[name] for name in ("lane", "kind", "capabilities")) or not filters["alive"]


def _row(entry: Presence, held: int | None, *, everywhere: bool) -> list[str]:
    return [
        entry.instance,
        entry.worker,
        *([entry.namespace] if everywhere else []),
        f"{entry.running}/{entry.concurrency}",
        f"{entry.load:.0%}",
        *([] if held is None else [str(held)]),
        ", ".join(entry.kinds) or "any",
        ", ".join(entry.lanes) or "all",
        ", ".join(entry.capabilities),
        local(entry.seen_at),
    ]


def _fields(entry: Presence, now: Millis, held: int) -> list[tuple[str, str]]:
    found = [
        ("instance", entry.instance),
        ("worker", entry.worker),
        ("state", _state(entry, now)),
        ("running", f"{entry.running} of {entry.concurrency} ({entry.load:.0%})"),
        ("holds", f"{held} leases"),
        ("tasks", ", ".join(entry.kinds) or "any"),
        ("lanes", ", ".join(entry.lanes) or "all"),
        ("capabilities", ", ".join(entry.capabilities)),
        (
            "namespace",
            f"{entry.namespace}, claims from all" if entry.everywhere else entry.namespace,
        ),
        ("registered", local(entry.registered_at)),
        ("last seen", f"{local(entry.seen_at)} ({span(now - entry.seen_at)} ago)"),
    ]
    return [(name, value) for name, value in found if value]


def _state(entry: Presence, now: Millis) -> str:
    if entry.marked_at is not None:
        return f"marked dead at {local(entry.marked_at)}: {entry.reason}"
    return "alive" if entry.alive(now) else f"silent since {local(entry.expires_at)}"


def _lease_row(lease: HeldLease) -> list[str]:
    since, until = local(lease.since), local(lease.expires_at)
    return [lease.id, lease.kind, lease.lane, str(lease.attempt + 1), since, until]


def _expired_row(lease: ExpiredLease) -> list[str]:
    return [lease.id, lease.instance, str(lease.attempt + 1), local(lease.expires_at)]
