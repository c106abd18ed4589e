"""`flowfabric schedules …`"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import typer

from flowfabric.cli.connect import connect
from flowfabric.cli.format import local, shortened, span
from flowfabric.cli.json import Document, body, document
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen
from flowfabric.core.execution.schedule import Schedule
from flowfabric.fabric import Fabric

app = typer.Typer(help="Look at schedules, pause and trigger them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The schedule.")]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", show_default=False, help="One or more schedules."),
]

COLUMNS = ("name", "task", "when", "time zone", "next", "last")

_PAGE = 1000


@app.command(name="list")
def list_schedules(url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the schedules by name."""
    asyncio.run(_list(url, Screen(as_json)))


@app.command()
def show(name: Name, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show everything about one schedule."""
    asyncio.run(_show(url, name, Screen(as_json)))


@app.command()
def pause(names: Names, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Stop schedules: no runs until they are resumed, and none for the times that pass."""
    asyncio.run(_each(url, names, _pause, Screen(as_json)))


@app.command()
def resume(names: Names, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Let paused schedules go on with their next time."""
    asyncio.run(_each(url, names, _resume, Screen(as_json)))


@app.command()
def trigger(names: Names, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Submit a run of each now, beside its times; prints the ids of the runs."""
    asyncio.run(_each(url, names, _trigger, Screen(as_json)))


@app.command()
def remove(names: Names, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Remove schedules; runs they submitted stay.

    One that a task declares comes back with the next worker: pause it instead.
    """
    asyncio.run(_each(url, names, _remove, Screen(as_json)))


async def _list(url: str | None, screen: Screen) -> None:
    rows: list[list[str]] = []
    async with connect(url) as fabric:
        async for schedule in _all(fabric):
            if screen.as_json:
                screen.document(document(schedule))
            rows.append(_row(schedule))
    if screen.as_json:
        return
    screen.table(COLUMNS, rows)
    if not rows:
        screen.note("no schedules: a task declares one, or fabric.schedules.put")


async def _show(url: str | None, name: str, screen: Screen) -> None:
    async with connect(url) as fabric:
        schedule = await fabric.schedules.get(name)
    if screen.as_json:
        screen.document(document(schedule))
    else:
        screen.fields([(name, value) for name, value in _fields(schedule) if value])


Deed = Callable[[Fabric, str], Awaitable[tuple[str, Document]]]
"""What is done to a schedule: gives the line for people and the document for programs."""


async def _each(url: str | None, names: list[str], deed: Deed, screen: Screen) -> None:
    async with connect(url) as fabric:
        for name in names:
            line, told = await deed(fabric, name)
            if screen.as_json:
                screen.document(told)
            else:
                screen.line(line)


async def _pause(fabric: Fabric, name: str) -> tuple[str, Document]:
    return f"paused {name}", document(await fabric.schedules.pause(name))


async def _resume(fabric: Fabric, name: str) -> tuple[str, Document]:
    schedule = await fabric.schedules.resume(name)
    return f"resumed {name}, next {local(schedule.next_at)}", document(schedule)


async def _trigger(fabric: Fabric, name: str) -> tuple[str, Document]:
    id = str((await fabric.schedules.trigger(name)).id)
    return id, {"name": name, "id": id}


async def _remove(fabric: Fabric, name: str) -> tuple[str, Document]:
    await fabric.schedules.remove(name)
    return f"removed {name}", {"name": name, "removed": True}


async def _all(fabric: Fabric) -> AsyncIterator[Schedule]:
    after = ""
    while page := await fabric.schedules.list(after=after, limit=_PAGE):
        for schedule in page:
            yield schedule
        after = page[-1].name


def _when(schedule: Schedule) -> str:
    return schedule.cron or f"every {span(schedule.every)}"


def _next(schedule: Schedule) -> str:
    return "paused" if schedule.paused else local(schedule.next_at)


def _row(schedule: Schedule) -> list[str]:
    zone = schedule.timezone if schedule.cron else ""
    last = local(schedule.last_at)
    return [schedule.name, schedule.kind, _when(schedule), zone, _next(schedule), last]


def _fields(schedule: Schedule) -> list[tuple[str, str]]:
    options = {name: value for name, value in schedule.options.items() if name != "encoding"}
    return [
        ("name", schedule.name),
        ("task", schedule.kind),
        ("when", _when(schedule)),
        ("time zone", schedule.timezone if schedule.cron else ""),
        ("catches up", schedule.catch_up),
        ("next", _next(schedule)),
        ("last", local(schedule.last_at)),
        ("lane", schedule.lane),
        ("namespace", schedule.namespace),
        *((name, shortened(value)) for name, value in options.items()),
        ("payload", shortened(body(schedule.payload))),
    ]
