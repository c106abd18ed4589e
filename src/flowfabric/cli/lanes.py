"""`flowfabric lanes …`"""

import asyncio
import getpass
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from flowfabric.cli.connect import connect
from flowfabric.cli.format import local
from flowfabric.cli.json import Document, document
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen
from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.execution.status import PublicState
from flowfabric.core.limit.lane import Lane, LaneState
from flowfabric.engine.engine import Engine
from flowfabric.store.queries import Counts

app = typer.Typer(help="Look at lanes, pause, drain and resume them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="LANE", show_default=False, help="The lane.")]
Names = Annotated[
    list[str], typer.Argument(metavar="LANE...", show_default=False, help="One or more lanes.")
]
By = Annotated[
    str | None,
    typer.Option("--by", show_default=False, help="Who decides it; who is logged in by default."),
]
Reason = Annotated[
    str, typer.Option("--reason", show_default=False, help="Why, for those who ask later.")
]

WORDS = {
    LaneState.OPEN: ("resumed", "is open already"),
    LaneState.PAUSED: ("paused", "is paused already"),
    LaneState.DRAINING: ("draining", "is draining already"),
}

_PAGE = 1000


@app.command(name="list")
def list_lanes(url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the lanes and how many runs are in which state."""
    asyncio.run(_list(url, Screen(as_json)))


@app.command()
def show(lane: Name, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show a lane: whether its work is taken, who decided that, and its runs."""
    asyncio.run(_show_one(url, lane, Screen(as_json)))


@app.command()
def pause(
    lanes: Names,
    reason: Reason = "",
    by: By = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Stop lanes: nothing of them is claimed until they are resumed. What runs goes on."""
    asyncio.run(_set_state(url, lanes, LaneState.PAUSED, _by(by), reason, Screen(as_json)))


@app.command()
def drain(
    lanes: Names,
    reason: Reason = "",
    by: By = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let what has begun go on to its end, retries included; nothing begins until `resume`."""
    asyncio.run(_set_state(url, lanes, LaneState.DRAINING, _by(by), reason, Screen(as_json)))


@app.command()
def resume(
    lanes: Names,
    reason: Reason = "",
    by: By = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let paused or draining lanes go on."""
    asyncio.run(_set_state(url, lanes, LaneState.OPEN, _by(by), reason, Screen(as_json)))


@app.command(name="set")
def set_lane(
    lane: Name,
    weight: Annotated[
        int | None,
        typer.Option(
            "--weight",
            show_default=False,
            help="How much of it is taken for one of a lane of weight 1; 1 to 1000.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            min=0,
            show_default=False,
            help="How many of it may run at once, on all workers together; 0: any number.",
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Set how much of a lane may run at once, and in which proportion it is served."""
    if weight is None and concurrency is None:
        raise Invalid("neither --weight nor --concurrency is given")
    asyncio.run(_set(url, lane, weight, concurrency, Screen(as_json)))


async def _list(url: str | None, screen: Screen) -> None:
    rows: list[tuple[Lane, Counts]] = []
    async with connect(url) as fabric:
        engine = await fabric.engine()
        settings = await engine.lanes.settings()
        async for name in _names(engine):
            lane = settings.get(name) or Lane(name=name)
            counts = await engine.views.counts(lane=name)
            if screen.as_json:
                screen.document(_with_runs(lane, counts))
            rows.append((lane, counts))
    if not screen.as_json:
        _show(screen, rows)


async def _show_one(url: str | None, name: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        lane = await engine.lanes.get(name)
        counts = await engine.views.counts(lane=name)
        if (
            not lane.version
            and not any(counts.by_state.values())
            and not await _known(engine, name)
        ):
            raise NotFound("lane", name)
    if screen.as_json:
        screen.document(_with_runs(lane, counts))
        return
    runs = [(state.replace("_", " "), _count(counts, state)) for state in PublicState]
    fields = [*_fields(lane), *((word, number) for word, number in runs if number != "0")]
    screen.fields([(word, value) for word, value in fields if value])


async def _set_state(
    url: str | None, lanes: list[str], state: LaneState, by: str, reason: str, screen: Screen
) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        verbs = {
            LaneState.OPEN: engine.lanes.resume,
            LaneState.PAUSED: engine.lanes.pause,
            LaneState.DRAINING: engine.lanes.drain,
        }
        known = {name async for name in _names(engine)}
        for name in lanes:
            before = await engine.lanes.get(name)
            lane = await verbs[state](name, by=by, reason=reason)
            if screen.as_json:
                screen.document(_document(lane))
                continue
            done, already = WORDS[state]
            if before.state is state and before.at == lane.at:
                screen.line(f"{name} {already}{_who(lane)}")
            else:
                screen.line(f"{done} {name}")
            if name not in known:
                screen.note(f"nothing was submitted to lane {name!r} so far")


async def _set(
    url: str | None, name: str, weight: int | None, concurrency: int | None, screen: Screen
) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        known = await _known(engine, name)
        lane = await engine.lanes.set(name, weight=weight, concurrency=concurrency)
    if screen.as_json:
        screen.document(_document(lane))
        return
    cap = "any number" if lane.concurrency is None else str(lane.concurrency)
    screen.line(f"{name}: weight {lane.weight}, {cap} at once")
    if not known:
        screen.note(f"nothing was submitted to lane {name!r} so far")


async def _known(engine: Engine, name: str) -> bool:
    return name in {found async for found in _names(engine)}


async def _names(engine: Engine) -> AsyncIterator[str]:
    after: str | None = None
    while page := await engine.lanes.list(after=after, limit=_PAGE):
        for name in page:
            yield name
        after = page[-1]


def _by(by: str | None) -> str:
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a name for its user
        return ""


def _document(lane: Lane) -> Document:
    """`lane` is its name everywhere; `version` is nobody's business."""
    told = document(lane)
    told.pop("version")
    return {"lane": told.pop("name"), **told}


def _with_runs(lane: Lane, counts: Counts) -> Document:
    runs = dict(counts.by_state)
    return {**_document(lane), "runs": runs, "capped": sorted(counts.capped)}


def _who(lane: Lane) -> str:
    """By whom, since when and why, as far as it was told."""
    parts = [f"by {lane.by}" if lane.by else "", local(lane.at), lane.reason]
    said = ", ".join(part for part in parts if part)
    return f" ({said})" if said else ""


def _fields(lane: Lane) -> list[tuple[str, str]]:
    return [
        ("lane", lane.name),
        ("state", lane.state.name.lower()),
        ("by", lane.by),
        ("since", local(lane.at)),
        ("reason", lane.reason),
        ("weight", str(lane.weight)),
        ("at once", "any number" if lane.concurrency is None else str(lane.concurrency)),
    ]


def _show(screen: Screen, rows: list[tuple[Lane, Counts]]) -> None:
    """Only what somebody has set, and the states that occur, get a column."""
    table = [_row(lane, counts) for lane, counts in rows]
    names = list(table[0]) if table else ["lane"]
    plain = {"state": "open", "weight": "1", "at once": "any"}
    used = [name for name in names if {row[name] for row in table} != {plain.get(name, "0")}]
    screen.table(used, [[row[name] for name in used] for row in table])
    if not rows:
        screen.note("no lanes: nothing was submitted so far")


def _row(lane: Lane, counts: Counts) -> dict[str, str]:
    said = "" if lane.state is LaneState.OPEN else _who(lane)
    settings = {
        "lane": lane.name,
        "state": f"{lane.state.name.lower()}{said}",
        "weight": str(lane.weight),
        "at once": "any" if lane.concurrency is None else str(lane.concurrency),
    }
    runs = {state.replace("_", " "): _count(counts, state) for state in PublicState}
    return {**settings, **runs}


def _count(counts: Counts, state: PublicState) -> str:
    number = counts.by_state.get(state, 0)
    return f"{number}+" if state in counts.capped else str(number)
