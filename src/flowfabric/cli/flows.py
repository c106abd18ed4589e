"""`flowfabric flow …`"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid5

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text
from typer import Argument, Option, Typer

from flowfabric.cli.command import NAMES_RUNS, Limit, command
from flowfabric.cli.draw import text
from flowfabric.cli.draw.mermaid import mermaid
from flowfabric.cli.draw.picture import counts, join_note
from flowfabric.cli.draw.svg import svg
from flowfabric.cli.errors import CommandError, ExitCode
from flowfabric.cli.format import local, number_of, pairs_text, span
from flowfabric.cli.json import document
from flowfabric.cli.output import Cells, Screen, printable
from flowfabric.cli.parse import read_object, read_tag
from flowfabric.cli.table import Table, pages
from flowfabric.core.base.errors import InvalidId, NotFound
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.grow import AlreadyMember, AlreadyStaged
from flowfabric.core.flow.join import (
    AllOf,
    AnyOf,
    Edge,
    Join,
    JoinPolicy,
    JoinState,
    On,
    Quorum,
    Rest,
)
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow.flows import FlowCreated
from flowfabric.engine.flow.views import FlowDescription, FlowGraph, Member

app = Typer(
    help="Inspect, draw, cancel and replay flows, or build one piece by piece.",
    no_args_is_help=True,
)

COLUMNS = (
    (100, ("id", "kind", "state", "members", "ended", "age", "took")),
    (76, ("id", "kind", "state", "members", "age")),
    (0, ("id", "kind", "state")),
)
"""How wide a terminal must be at least to show them."""
MIN_KIND = 8
PIPE_WIDTH = 80
SHOWN = 20

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
_BUSY = (
    PublicState.ACTIVE,
    PublicState.SUSPENDED,
    PublicState.WAITING,
    PublicState.DELAYED,
    PublicState.RATE_LIMITED,
)
_LIVING = (*_BUSY, PublicState.WAITING_CHILDREN)


def _parse_flow(flow: str) -> UUID:
    try:
        return parse_uuid(flow.lower(), "flow")
    except InvalidId:
        reason = f"{flow[:80]!r} is not a flow's id, which looks like 01a1e105-5216-7000-…"
        raise CommandError(reason, ExitCode.USAGE, "invalid_id") from None


FlowId = Annotated[
    UUID, Argument(metavar="FLOW", parser=_parse_flow, help="The flow, as 01a1e105-5216-7000-…")
]
RunOfFlow = Annotated[str, NAMES_RUNS, Argument(metavar="RUN", help="The run, as 01a1e105-7c1b-…")]


class Format(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


def _join_row(member: Member) -> Cells:
    join = member.join or Join()
    so_far = [
        (join.succeeded, "as needed"),
        (join.failed, "otherwise"),
        (join.skipped, "skipped"),
    ]
    ended = ", ".join(f"{number} {word}" for number, word in so_far if number)
    return [
        ("member", member.name),
        ("needs", join_note(join).strip("()") or f"all {join.n}"),
        ("so far", ended or "none"),
        ("still open", str(join.running)),
    ]


JOIN = Table[Member](row=_join_row)
BUSY = Table[Member](
    row=lambda member: [("member", member.name), ("state", member.state), ("run", member.id)]
)


@command(app, "list")
async def list_flows(
    engine: Engine,
    screen: Screen,
    state: Annotated[
        list[FlowState] | None,
        Option(metavar="STATE", help=f"Only in this state; repeatable: {', '.join(FlowState)}."),
    ] = None,
    kind: Annotated[str | None, Option(help="Only of this kind.")] = None,
    namespace: Annotated[str | None, Option(help="Only of this namespace.")] = None,
    tag: Annotated[str | None, Option(help="Only with this tag, as app.tenant=acme.")] = None,
    limit: Limit = 50,
) -> None:
    """List flows, the newest first."""
    states, pair = tuple(state or ()), read_tag(tag)
    found = pages(
        lambda after, limit: engine.flow_views.page(
            namespace=namespace,
            kind=kind,
            states=states,
            tag=pair,
            after=after,
            limit=limit,
            newest_first=True,
        ),
        lambda flow: (flow.created_at, flow.id),
        limit,
    )
    print_flows(screen, [flow async for flow in found], engine.now())


def print_flows(screen: Screen, flows: Sequence[Flow], now: Millis) -> None:
    """One line each where that can be: a narrow terminal shows less, and a long kind is cut."""
    table = Table[Flow](row=lambda flow: _row(flow, now), empty="no flows")
    if screen.as_json or not flows:
        table.lines(screen, flows)
        return
    columns = next(names for least, names in COLUMNS if screen.out.width >= least)
    rows = [dict(table.row(flow)) for flow in flows]
    taken = {name: _width(name, rows) for name in columns if name != "kind"}
    if "ended" in taken:  # may take several lines
        taken["ended"] = min(taken["ended"], screen.out.width // 5)
    room = max(MIN_KIND, screen.out.width - sum(taken.values()) - 2 * len(columns))
    for row in rows:
        if cell_len(row["kind"]) > room:
            row["kind"] = set_cell_size(row["kind"], room - 1).rstrip() + "…"
    firm = [name for name in columns if name != "ended"]
    screen.table([[(name, row[name]) for name in columns] for row in rows], firm)


def _row(flow: Flow, now: Millis) -> Cells:
    return [
        ("id", str(flow.id)),
        ("kind", printable(flow.kind)),
        ("state", flow.state),
        ("members", str(flow.nodes)),
        ("ended", _endings(flow)),
        ("age", span(now - flow.created_at)),
        ("took", span((flow.ended_at or now) - flow.created_at)),
    ]


def _width(name: str, rows: list[dict[str, str]]) -> int:
    return max(len(name), *(cell_len(row[name]) for row in rows))


def _endings(flow: Flow) -> str:
    words = {"success": "completed"}
    return ", ".join(f"{number} {words.get(name, name)}" for name, number in flow.ended.items())


@command(app)
async def show(engine: Engine, screen: Screen, flow: FlowId) -> None:
    """Show a flow: its state, the states of its members, and what it waits for."""
    facts, drawn = await engine.flow_views.describe(flow), await engine.flow_views.graph(flow)
    if facts is None:  # the graph was not found either
        return
    joins = [member for member in drawn.members if _is_pending(member.join)]
    busy = [member for member in drawn.members if member.state in _BUSY]
    if screen.as_json:
        states = {str(state): number for state, number in facts.states.items() if number}
        inner = {
            "joins": [document(member) for member in joins],
            "busy": [document(member) for member in busy],
        }
        screen.document({**document(facts.flow), "states": states, **inner})
        return
    screen.fields(_fields(facts, engine.now()))
    BUSY.below(screen, busy, SHOWN)
    JOIN.below(screen, joins, SHOWN)


def _fields(facts: FlowDescription, now: Millis) -> Cells:
    flow, cancel = facts.flow, facts.flow.cancel
    return [
        ("id", str(flow.id)),
        ("kind", flow.kind),
        ("state", flow.state),
        ("cancelled", "" if cancel is None else f"{cancel.reason} ({cancel.policy})"),
        ("members", f"{flow.nodes}, {number_of(flow.edges, 'edge')}"),
        ("ended", _endings(flow)),
        ("living", counts({state: facts.states[state] for state in _LIVING})),
        ("namespace", flow.namespace),
        ("tags", pairs_text(flow.tags)),
        ("for run", "" if flow.parent is None else flow.parent.execution),
        ("created", local(flow.created_at)),
        ("ended at", local(flow.ended_at)),
        ("took", span((flow.ended_at or now) - flow.created_at)),
    ]


def _is_pending(join: Join | None) -> bool:
    return join is not None and join.state is JoinState.PENDING


@command(app)
async def cancel(
    engine: Engine,
    screen: Screen,
    flow: FlowId,
    reason: Annotated[
        str, Option(help="Why; kept with its members.")
    ] = "cancelled on the command line",
    policy: Annotated[
        CancelPolicy,
        Option(
            metavar="POLICY", help=f"Which members are cancelled too: {', '.join(CancelPolicy)}."
        ),
    ] = CancelPolicy.ALL,
    no_wait: Annotated[
        bool, Option("--no-wait", help="Do not wait for the members to end.")
    ] = False,
) -> None:
    """Cancel a flow with all of its members, with those that have not started, or alone."""
    answer = await engine.flows.cancel(flow, reason=reason, policy=policy, wait=not no_wait)
    screen.answer(document(answer), f"cancelled flow {flow}")
    if screen.as_json:
        return
    if (answer.policy, answer.reason) != (policy, reason):
        screen.note(f"it was cancelled before: {answer.reason} ({answer.policy})")
    if answer.remaining:
        left = number_of(len(answer.remaining), "member")
        screen.note(f"not ended yet: {left}, which workers cancel")


@command(app)
async def replay(engine: Engine, screen: Screen, flow: FlowId) -> None:
    """Run the members again that did not succeed; the others stay as they are."""
    found = await engine.flows.replay(flow)
    words = f"nothing to replay: every member of flow {flow} succeeded or is under way"
    if found:
        words = f"replayed {number_of(len(found), 'member')} of flow {flow}"
    screen.answer({"id": str(flow), "replayed": [document(each) for each in found]}, words)


@command(app)
async def graph(
    engine: Engine,
    screen: Screen,
    flow: FlowId,
    format: Annotated[Format, Option(help="The format of the drawing.")] = Format.TEXT,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write to this file instead of stdout.")
    ] = None,
) -> None:
    """Draw a flow with the states of its members.

    Many members of the same form are drawn as one box that says how many there are.
    """
    found = await engine.flow_views.graph(flow)
    if output is not None:
        _write(output, _drawn(found, format))
        screen.note(f"written to {output}")
    elif screen.as_json:
        members = [document(member) for member in found.members]
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
        raise CommandError(reason, ExitCode.FAILED, "not_written") from None


# -- growing a flow piece by piece


@command(app)
async def create(
    engine: Engine,
    screen: Screen,
    kind: Annotated[str, Argument(metavar="KIND", help="The name of the flow.")],
    id: Annotated[
        UUID | None,
        Option(
            metavar="FLOW", parser=_parse_flow, help="Its id; creating it again changes nothing."
        ),
    ] = None,
    namespace: Annotated[str, Option(help="Its namespace.")] = "default",
    tag: Annotated[list[str] | None, Option(metavar="KEY=VALUE", help="A tag; repeatable.")] = None,
) -> None:
    """Create an open flow without members and print its id.

    `flow add` and `flow edge` grow it; `flow seal` starts it.
    """
    tags = dict(pair for text in tag or () if (pair := read_tag(text)) is not None)
    made = await engine.flows.create(kind, id=id, namespace=namespace, tags=tags)
    created = isinstance(made, FlowCreated)
    known = str(made.id if isinstance(made, FlowCreated) else id)
    screen.answer({"id": known, "created": created}, known)


@command(app)
async def add(
    engine: Engine,
    screen: Screen,
    flow: FlowId,
    kind: Annotated[str, Argument(metavar="TASK", help="The task it runs.")],
    args: Annotated[str, Option(metavar="JSON", help="Its arguments as one JSON object.")] = "{}",
    lane: Annotated[str, Option(help="Its lane.")] = "default",
    namespace: Annotated[str | None, Option(help="Its namespace; by default the flow's.")] = None,
    key: Annotated[str | None, Option(help="Adding the same key again changes nothing.")] = None,
) -> None:
    """Add a run to a flow and print its id. It waits until the flow is sealed, if it is not yet."""
    payload = msgspec.json.encode(read_object(args, "--args"))
    if namespace is None:
        found = await engine.flow_views.get(flow)
        namespace = "default" if found is None else found.namespace
    wanted = Submission(
        kind=kind, payload=payload, lane=lane, namespace=namespace, key=key, encoding="json"
    )
    added = await engine.flows.add(flow, wanted)
    is_new = not isinstance(added, AlreadyMember)
    screen.answer({**document(added), "added": is_new}, str(added.id))


@command(app)
async def join(engine: Engine, screen: Screen, flow: FlowId, run: RunOfFlow) -> None:
    """Make a run that was submitted for this flow a member of it."""
    if await engine.views.state(run) is None:
        raise NotFound("execution", run)
    added = await engine.flows.join(flow, run)
    is_new = not isinstance(added, AlreadyMember)
    screen.answer(
        {**document(added), "added": is_new}, "added" if is_new else "is a member already"
    )


@command(app)
async def edge(
    engine: Engine,
    screen: Screen,
    flow: FlowId,
    upstream: Annotated[str, NAMES_RUNS, Argument(metavar="UPSTREAM", help="The run to wait for.")],
    downstream: Annotated[
        str, NAMES_RUNS, Argument(metavar="DOWNSTREAM", help="The run that waits.")
    ],
    on: Annotated[
        On, Option(metavar="END", help=f"What to wait for: {', '.join(On)}.")
    ] = On.SUCCESS,
    input: Annotated[str | None, Option(help="The parameter for the upstream's result.")] = None,
    revision: Annotated[
        int | None, Option(min=0, help="Only at this revision of the graph.")
    ] = None,
) -> None:
    """Make a run of a flow wait for another one. Adding the same edge again changes nothing."""
    ends = ExecutionId(upstream).uuid, ExecutionId(downstream).uuid
    id = uuid5(flow, f"{ends[0]} {ends[1]} {on} {input or ''}")
    staged = await engine.flows.stage(
        Edge(id, flow, *ends, on=on, input=input), expected_revision=revision
    )
    known = isinstance(staged, AlreadyStaged)
    words = f"{'known' if known else 'added'}: the graph is at revision {staged.revision}"
    screen.answer({"edge": str(id), "added": not known, "revision": staged.revision}, words)


@command(app)
async def needs(
    engine: Engine,
    screen: Screen,
    flow: FlowId,
    run: RunOfFlow,
    any_of: Annotated[bool, Option("--any", help="One upstream is enough.")] = False,
    quorum: Annotated[int | None, Option(min=1, help="This many are enough.")] = None,
    let_run: Annotated[
        bool, Option("--let-run", help="Do not cancel the upstreams it no longer needs.")
    ] = False,
) -> None:
    """Set how many of its upstreams a run needs, before its first edge; without an option, all."""
    if any_of and quorum is not None:
        raise CommandError("give --any or --quorum, not both", ExitCode.USAGE, "invalid_input")
    rest = Rest.LET_RUN if let_run else Rest.CANCEL
    policy: JoinPolicy = AllOf()
    if quorum is not None:
        policy = Quorum(quorum, rest)
    elif any_of:
        policy = AnyOf(rest)
    changed = await engine.flows.set_join(flow, run, policy)
    screen.answer({"id": run, "changed": changed}, "set" if changed else "was set before")


@command(app)
async def seal(engine: Engine, screen: Screen, flow: FlowId) -> None:
    """Declare the graph complete: its members start as their upstreams allow."""
    sealed = await engine.flows.seal(flow)
    words = "sealed" if sealed else "was sealed before"
    screen.answer({"id": str(flow), "sealed": sealed}, words)
