"""`flowfabric lanes …`"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from flowfabric.cli.connect import connect
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.screen import Screen
from flowfabric.core.vector import PublicState
from flowfabric.engine.engine import Engine
from flowfabric.store.contract import Counts

app = typer.Typer(help="Look at lanes, pause and resume them.", no_args_is_help=True)

Names = Annotated[
    list[str], typer.Argument(metavar="LANE...", show_default=False, help="One or more lanes.")
]

_PAGE = 1000


@app.command(name="list")
def list_lanes(url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the lanes and how many runs are in which state."""
    asyncio.run(_list(url, Screen(as_json)))


@app.command()
def pause(lanes: Names, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Stop lanes: nothing of them is claimed until they are resumed. What runs goes on."""
    asyncio.run(_set(url, lanes, Screen(as_json), paused=True))


@app.command()
def resume(lanes: Names, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Let paused lanes go on."""
    asyncio.run(_set(url, lanes, Screen(as_json), paused=False))


async def _list(url: str | None, screen: Screen) -> None:
    rows: list[list[str]] = []
    async with connect(url) as fabric:
        engine = await fabric.engine()
        async for name in _names(engine):
            counts = await engine.views.counts(lane=name)
            if screen.as_json:
                capped = sorted(counts.capped)
                screen.document({"lane": name, "runs": dict(counts.by_state), "capped": capped})
            rows.append([name, *(_count(counts, state) for state in PublicState)])
    if not screen.as_json:
        _show(screen, rows)


async def _set(url: str | None, lanes: list[str], screen: Screen, *, paused: bool) -> None:
    word = "paused" if paused else "resumed"
    async with connect(url) as fabric:
        engine = await fabric.engine()
        known = {name async for name in _names(engine)}
        for lane in lanes:
            await (engine.lanes.pause(lane) if paused else engine.lanes.resume(lane))
            if screen.as_json:
                screen.document({"lane": lane, "paused": paused})
                continue
            screen.line(f"{word} {lane}")
            if lane not in known:
                screen.note(f"nothing was submitted to lane {lane!r} so far")


async def _names(engine: Engine) -> AsyncIterator[str]:
    after: str | None = None
    while page := await engine.lanes.list(after=after, limit=_PAGE):
        for name in page:
            yield name
        after = page[-1]


def _show(screen: Screen, rows: list[list[str]]) -> None:
    """Only the states that occur get a column."""
    states = list(PublicState)
    used = [n for n in range(len(states)) if any(row[n + 1] != "0" for row in rows)]
    columns = ["lane", *(states[n].replace("_", " ") for n in used)]
    screen.table(columns, [[row[0], *(row[n + 1] for n in used)] for row in rows])
    if not rows:
        screen.note("no lanes: nothing was submitted so far")


def _count(counts: Counts, state: PublicState) -> str:
    number = counts.by_state.get(state, 0)
    return f"{number}+" if state in counts.capped else str(number)
