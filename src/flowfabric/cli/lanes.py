"""`flowfabric lanes …`"""

from collections.abc import AsyncIterator
from typing import Annotated

from typer import Argument, Option, Typer

from flowfabric.cli.command import command
from flowfabric.cli.format import local
from flowfabric.cli.json import Document, document
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.parse import user_name
from flowfabric.cli.table import Table, pages
from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.execution.status import PublicState
from flowfabric.core.limit.lane import Lane, LaneState
from flowfabric.engine.engine import Engine
from flowfabric.store.queries import Counts

app = Typer(help="Inspect, pause, drain and resume lanes.", no_args_is_help=True)

Name = Annotated[str, Argument(metavar="LANE", help="The lane.")]
Names = Annotated[list[str], Argument(metavar="LANE", help="One or more lanes.")]
By = Annotated[str | None, Option(help="Who decides; by default the user who is logged in.")]
Reason = Annotated[str, Option(show_default=False, help="Why, for those who ask later.")]

LaneRuns = tuple[Lane, Counts]


def _row(item: LaneRuns) -> Cells:
    lane, counts = item
    who = "" if lane.state is LaneState.OPEN else _who(lane)
    return [
        ("lane", lane.name),
        ("state", f"{lane.state.name.lower()}{who}"),
        ("weight", str(lane.weight)),
        ("at once", "any" if lane.concurrency is None else str(lane.concurrency)),
        *_runs(counts),
    ]


def _fields(item: LaneRuns) -> Cells:
    lane, counts = item
    return [
        ("lane", lane.name),
        ("state", lane.state.name.lower()),
        ("by", lane.by),
        ("since", local(lane.at)),
        ("reason", lane.reason),
        ("weight", str(lane.weight)),
        ("at once", "any number" if lane.concurrency is None else str(lane.concurrency)),
        *((word, number) for word, number in _runs(counts) if number != "0"),
    ]


def _runs(counts: Counts) -> Cells:
    return [
        (
            state.replace("_", " "),
            f"{counts.by_state.get(state, 0)}{'+' if state in counts.capped else ''}",
        )
        for state in PublicState
    ]


def _who(lane: Lane) -> str:
    """By whom, since when and why, as far as it is known."""
    parts = [f"by {lane.by}" if lane.by else "", local(lane.at), lane.reason]
    known = ", ".join(part for part in parts if part)
    return f" ({known})" if known else ""


def _document(lane: Lane) -> Document:
    """`lane` is its name everywhere; `version` is internal."""
    found = document(lane)
    found.pop("version")
    return {"lane": found.pop("name"), **found}


def _document_with_runs(item: LaneRuns) -> Document:
    lane, counts = item
    runs = {"runs": dict(counts.by_state), "capped": sorted(counts.capped)}
    return {**_document(lane), **runs}


LANE = Table[LaneRuns](
    row=_row,
    fields=_fields,
    json=_document_with_runs,
    empty="no lanes: nothing has been submitted so far",
)


@command(app, "list")
async def list_lanes(engine: Engine, screen: Screen) -> None:
    """List the lanes and how many runs are in which state."""
    settings = await engine.lanes.settings()
    found = [
        (settings.get(name) or Lane(name=name), await engine.views.counts(lane=name))
        async for name in _names(engine)
    ]
    if screen.as_json or not found:
        LANE.lines(screen, found)
    else:
        screen.table(_interesting([LANE.row(item) for item in found]))


def _interesting(rows: list[Cells]) -> list[Cells]:
    """Only settings that differ from the default and states that occur get a column."""
    usual = {"state": "open", "weight": "1", "at once": "any"}
    used = [
        number
        for number, (heading, _) in enumerate(rows[0])
        if {row[number][1] for row in rows} != {usual.get(heading, "0")}
    ]
    return [[row[number] for number in used] for row in rows]


@command(app)
async def show(engine: Engine, screen: Screen, lane: Name) -> None:
    """Show a lane: its state, who decided it and why, and its runs."""
    found, counts = await engine.lanes.get(lane), await engine.views.counts(lane=lane)
    used = found.version or any(counts.by_state.values())
    if not used and not await _known(engine, lane):
        raise NotFound("lane", lane)
    LANE.show(screen, (found, counts))


@command(app)
async def pause(
    engine: Engine, screen: Screen, lanes: Names, reason: Reason = "", by: By = None
) -> None:
    """Pause lanes: workers claim none of their runs until `resume`. Running ones continue."""
    await _set_state(engine, screen, lanes, LaneState.PAUSED, by, reason)


@command(app)
async def drain(
    engine: Engine, screen: Screen, lanes: Names, reason: Reason = "", by: By = None
) -> None:
    """Let runs that have begun end, retries included; others do not begin until `resume`."""
    await _set_state(engine, screen, lanes, LaneState.DRAINING, by, reason)


@command(app)
async def resume(
    engine: Engine, screen: Screen, lanes: Names, reason: Reason = "", by: By = None
) -> None:
    """Let paused or draining lanes continue."""
    await _set_state(engine, screen, lanes, LaneState.OPEN, by, reason)


async def _set_state(
    engine: Engine, screen: Screen, names: list[str], state: LaneState, by: str | None, reason: str
) -> None:
    verbs = {
        LaneState.OPEN: (engine.lanes.resume, "resumed", "is open already"),
        LaneState.PAUSED: (engine.lanes.pause, "paused", "is paused already"),
        LaneState.DRAINING: (engine.lanes.drain, "draining", "is draining already"),
    }
    act, done, already = verbs[state]
    for name in names:
        note, before = await _note(engine, name), await engine.lanes.get(name)
        lane = await act(name, by=user_name(by), reason=reason)
        same = before.state is state and before.at == lane.at
        words = f"{name} {already}{_who(lane)}" if same else f"{done} {name}"
        screen.answer(_document(lane), words, note)


@command(app, "set")
async def set_lane(
    engine: Engine,
    screen: Screen,
    lane: Name,
    weight: Annotated[
        int | None,
        Option(help="How many of its runs start for each one of a lane of weight 1; 1 to 1000."),
    ] = None,
    concurrency: Annotated[
        int | None,
        Option(min=0, help="How many runs at once, on all workers together; 0: any number."),
    ] = None,
) -> None:
    """Set how many runs of a lane may run at once, and its share of the starts."""
    if weight is None and concurrency is None:
        raise Invalid("neither --weight nor --concurrency is given")
    note = await _note(engine, lane)
    new = await engine.lanes.set(lane, weight=weight, concurrency=concurrency)
    cap = "any number" if new.concurrency is None else str(new.concurrency)
    screen.answer(_document(new), f"{lane}: weight {new.weight}, {cap} at once", note)


async def _note(engine: Engine, name: str) -> str:
    known = await _known(engine, name)
    return "" if known else f"nothing has been submitted to lane {name!r} so far"


async def _known(engine: Engine, name: str) -> bool:
    return name in {found async for found in _names(engine)}


def _names(engine: Engine) -> AsyncIterator[str]:
    return pages(
        lambda after, limit: engine.lanes.list(after=after, limit=limit), lambda name: name
    )
