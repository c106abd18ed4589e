"""`flowfabric flow …`"""

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer
from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from flowfabric.cli.connect import connect
from flowfabric.cli.draw import text
from flowfabric.cli.draw.mermaid import mermaid
from flowfabric.cli.draw.picture import counts, join_note
from flowfabric.cli.draw.svg import svg
from flowfabric.cli.errors import Code, CommandError
from flowfabric.cli.format import local, span
from flowfabric.cli.json import Document, document
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen, printable
from flowfabric.cli.run_list import read_tag
from flowfabric.core.base.errors import InvalidId
from flowfabric.core.base.ids import parse_uuid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import Join, JoinState
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow.views import FlowDescription, FlowGraph, Member

app = typer.Typer(help="Look at flows, draw, cancel and replay them.", no_args_is_help=True)

COLUMNS = (
    (100, ("id", "kind", "state", "members", "ended", "age", "took")),
    (76, ("id", "kind", "state", "members", "age")),
    (0, ("id", "kind", "state")),
)
"""How wide a terminal must be at least to show them."""
MIN_KIND = 8
JOIN_COLUMNS = ("member", "needs", "so far", "still open")
BUSY_COLUMNS = ("member", "state", "run")
PIPE_WIDTH = 80
SHOWN = 20
PAGE = 1000

STYLES = {
    PublicState.ACTIVE: "blue",
    PublicState.SUSPENDED: "magenta",
    PublicState.COMPLETED: "green",
    PublicState.FAILED: "bold red",
    PublicState.CANCELLED: "yellow",
    PublicState.EXPIRED: "yellow",
    PublicState.SKIPPED: "dim",
    PublicState.WAITING_CHILDREN: "dim",
}

_BUSY = frozenset(
    {
        PublicState.ACTIVE,
        PublicState.SUSPENDED,
        PublicState.WAITING,
        PublicState.DELAYED,
        PublicState.RATE_LIMITED,
    }
)

FlowId = Annotated[
    str, typer.Argument(metavar="FLOW", show_default=False, help="01a1e105-5216-7000-…")
]


class Format(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


class FlowFilter(Struct, frozen=True, kw_only=True):
    """What a person asked to see."""

    states: tuple[FlowState, ...]
    kind: str | None
    namespace: str | None
    tag: tuple[str, str] | None
    limit: int


@app.command(name="list")
def list_flows(
    state: Annotated[
        list[FlowState] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            show_default=False,
            help=f"Only in this state, repeatable: {', '.join(FlowState)}.",
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", show_default=False, help="Only of this name.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", show_default=False)] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", show_default=False, help="Only with app.tenant=acme.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List flows, the newest first."""
    wanted = FlowFilter(
        states=tuple(state or ()), kind=kind, namespace=namespace, tag=read_tag(tag), limit=limit
    )
    asyncio.run(_list(url, wanted, Screen(as_json)))


@app.command()
def show(flow: FlowId, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show a flow: its state, how its members stand, what it waits for."""
    asyncio.run(_show(url, parsed(flow), Screen(as_json)))


@app.command()
def cancel(
    flow: FlowId,
    reason: Annotated[str, typer.Option("--reason")] = "cancelled on the command line",
    policy: Annotated[
        CancelPolicy,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help=f"Which members go along: {', '.join(CancelPolicy)}.",
        ),
    ] = CancelPolicy.ALL,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Leave the members to the workers.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Cancel a flow and its members: all of them, those that never started, or none."""
    asyncio.run(_cancel(url, parsed(flow), reason, policy, Screen(as_json), wait=not no_wait))


@app.command()
def replay(flow: FlowId, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Run again what did not succeed; members that succeeded stay as they are."""
    asyncio.run(_replay(url, parsed(flow), Screen(as_json)))


@app.command()
def graph(
    flow: FlowId,
    format: Annotated[Format, typer.Option("--format", help="How it is drawn.")] = Format.TEXT,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", show_default=False, help="Into this file, not to stdout."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Draw a flow with the states of its members.

    Many members of the same form are drawn as one, which says how many there are.
    """
    asyncio.run(_graph(url, parsed(flow), format, output, Screen(as_json)))


def parsed(flow: str) -> UUID:
    try:
        return parse_uuid(flow.lower(), "flow")
    except InvalidId:
        reason = f"{flow[:80]!r} is not a flow's id, which looks like 01a1e105-5216-7000-…"
        raise CommandError(reason, Code.USAGE, "invalid_id") from None


async def _list(url: str | None, wanted: FlowFilter, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        found = await _collect(engine, wanted)
        now = engine.now()
    if screen.as_json:
        for flow in found:
            screen.document(document(flow))
    elif found:
        _tell_flows(screen, found, now)
    else:
        screen.note("no flows")


async def _collect(engine: Engine, wanted: FlowFilter) -> list[Flow]:
    found: list[Flow] = []
    after: tuple[Millis, UUID] | None = None
    while len(found) < wanted.limit:
        page = await engine.flow_views.page(
            namespace=wanted.namespace,
            kind=wanted.kind,
            states=wanted.states,
            tag=wanted.tag,
            after=after,
            limit=min(PAGE, wanted.limit - len(found)),
            newest_first=True,
        )
        if not page:
            break
        found += page
        after = page[-1].created_at, page[-1].id
    return found


def _tell_flows(screen: Screen, flows: list[Flow], now: Millis) -> None:
    """One line each where that can be: a narrow terminal shows less, and a long kind is cut."""
    columns = next(names for least, names in COLUMNS if screen.out.width >= least)
    rows = [_row(flow, now) for flow in flows]
    taken = {name: _width(name, rows) for name in columns if name != "kind"}
    if "ended" in taken:  # may take several lines
        taken["ended"] = min(taken["ended"], screen.out.width // 5)
    room = max(MIN_KIND, screen.out.width - sum(taken.values()) - 2 * len(columns))
    for row in rows:
        if cell_len(row["kind"]) > room:
            row["kind"] = set_cell_size(row["kind"], room - 1).rstrip() + "…"
    firm = [name for name in columns if name != "ended"]
    screen.table(columns, [[row[name] for name in columns] for row in rows], firm)


def _row(flow: Flow, now: Millis) -> dict[str, str]:
    return {
        "id": str(flow.id),
        "kind": printable(flow.kind),
        "state": flow.state,
        "members": str(flow.nodes),
        "ended": _endings(flow),
        "age": span(now - flow.created_at),
        "took": span((flow.ended_at or now) - flow.created_at),
    }


def _width(name: str, rows: list[dict[str, str]]) -> int:
    return max(len(name), *(cell_len(row[name]) for row in rows))


def _endings(flow: Flow) -> str:
    words = {"success": "completed"}
    return ", ".join(f"{number} {words.get(name, name)}" for name, number in flow.ended.items())


async def _show(url: str | None, id: UUID, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        facts, drawn = await engine.flow_views.describe(id), await engine.flow_views.graph(id)
        now = engine.now()
    if facts is None:  # the graph was not found either
        return
    joins = [member for member in drawn.members if _is_pending(member.join)]
    busy = [member for member in drawn.members if member.state in _BUSY]
    if screen.as_json:
        inner = {"joins": _documents(joins), "busy": _documents(busy)}
        screen.document({**document(facts.flow), "states": _states(facts), **inner})
        return
    screen.fields([(name, value) for name, value in _fields(facts, now) if value])
    _tell_busy(screen, busy)
    _tell_joins(screen, joins)


def _states(facts: FlowDescription) -> dict[str, int]:
    return {str(state): number for state, number in facts.states.items() if number}


def _documents(members: list[Member]) -> list[Document]:
    return [document(member) for member in members]


def _fields(facts: FlowDescription, now: Millis) -> list[tuple[str, str]]:
    flow = facts.flow
    living = {state: facts.states[state] for state in PublicState if state not in _ENDINGS}
    cancel = flow.cancel
    return [
        ("id", str(flow.id)),
        ("kind", flow.kind),
        ("state", flow.state),
        ("cancelled", "" if cancel is None else f"{cancel.reason} ({cancel.policy})"),
        ("members", f"{flow.nodes}, {flow.edges} edges"),
        ("ended", _endings(flow)),
        ("living", counts(living)),
        ("namespace", flow.namespace),
        ("tags", ", ".join(f"{key}={value}" for key, value in flow.tags.items())),
        ("for run", "" if flow.parent is None else flow.parent.execution),
        ("created", local(flow.created_at)),
        ("ended at", local(flow.ended_at)),
        ("took", span((flow.ended_at or now) - flow.created_at)),
    ]


_ENDINGS = (
    PublicState.COMPLETED,
    PublicState.FAILED,
    PublicState.CANCELLED,
    PublicState.EXPIRED,
    PublicState.SKIPPED,
)


def _is_pending(join: Join | None) -> bool:
    return join is not None and join.state is JoinState.PENDING


def _tell_busy(screen: Screen, members: list[Member]) -> None:
    """What the flow waits for."""
    if members:
        screen.line("")
        rows = [[member.name, member.state, member.id] for member in members[:SHOWN]]
        screen.table(BUSY_COLUMNS, rows)
        _tell_rest(screen, len(members))


def _tell_joins(screen: Screen, members: list[Member]) -> None:
    if members:
        screen.line("")
        screen.table(JOIN_COLUMNS, [_join_row(member) for member in members[:SHOWN]])
        _tell_rest(screen, len(members))


def _tell_rest(screen: Screen, number: int) -> None:
    if number > SHOWN:
        screen.line(f"… {number - SHOWN} more")


def _join_row(member: Member) -> list[str]:
    join = member.join or Join()
    needs = join_note(join).strip("()") or f"all {join.n}"
    so_far = [
        (join.succeeded, "as needed"),
        (join.failed, "otherwise"),
        (join.skipped, "skipped"),
    ]
    told = ", ".join(f"{number} {word}" for number, word in so_far if number)
    return [member.name, needs, told or "none", str(join.running)]


async def _cancel(
    url: str | None, id: UUID, reason: str, policy: CancelPolicy, screen: Screen, *, wait: bool
) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        answer = await engine.flows.cancel(id, reason=reason, policy=policy, wait=wait)
    if screen.as_json:
        screen.document(document(answer))
        return
    screen.line(f"cancelled flow {id}")
    if (answer.policy, answer.reason) != (policy, reason):
        screen.note(f"it was cancelled before: {answer.reason} ({answer.policy})")
    if answer.remaining:
        number = len(answer.remaining)
        screen.note(f"{number} members have not ended yet; workers cancel them")


async def _replay(url: str | None, id: UUID, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        found = await engine.flows.replay(id)
    if screen.as_json:
        screen.document({"id": str(id), "replayed": [document(each) for each in found]})
    elif found:
        screen.line(f"replayed {len(found)} members of flow {id}")
    else:
        screen.line(f"nothing to replay: every member of flow {id} succeeded or is under way")


async def _graph(
    url: str | None, id: UUID, format: Format, output: Path | None, screen: Screen
) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        found = await engine.flow_views.graph(id)
    if output is not None:
        _write(output, _drawn(found, format))
        screen.note(f"written to {output}")
    elif screen.as_json:
        members = _documents(list(found.members))
        edges = [document(state) for state in found.edges]
        screen.document({"flow": document(found.flow), "members": members, "edges": edges})
    elif format is Format.TEXT:
        _print(found, screen)
    else:
        screen.out.file.write(_drawn(found, format))


def _drawn(found: FlowGraph, format: Format) -> str:
    match format:
        case Format.MERMAID:
            return mermaid(found)
        case Format.SVG:
            return svg(found)
        case Format.TEXT:
            lines = text.draw(found, PIPE_WIDTH)
            return "".join("".join(ink.text for ink in line).rstrip() + "\n" for line in lines)


def _print(found: FlowGraph, screen: Screen) -> None:
    """With the colours and the width of the terminal, if it is one."""
    width = screen.out.width if screen.out.is_terminal else PIPE_WIDTH
    plain = not screen.out.encoding.lower().startswith("utf")
    for line in text.draw(found, width, plain=plain):
        whole = Text()
        for ink in line:
            whole.append(printable(ink.text), STYLES.get(ink.state) if ink.state else None)
        whole.rstrip()
        screen.out.print(whole, soft_wrap=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror}"
        raise CommandError(reason, Code.FAILED, "not_written") from None
