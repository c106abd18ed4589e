"""`flowfabric schedules …`"""

from typing import Annotated

from typer import Argument, Typer

from flowfabric.cli.command import command
from flowfabric.cli.format import local, shortened, span
from flowfabric.cli.json import body, document
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.table import Table, pages
from flowfabric.core.execution.schedule import Schedule
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric

app = Typer(help="Inspect, pause and trigger schedules.", no_args_is_help=True)

Name = Annotated[str, Argument(metavar="NAME", help="The schedule.")]
Names = Annotated[list[str], Argument(metavar="NAME", help="One or more schedules.")]


def _row(schedule: Schedule) -> Cells:
    return [
        ("name", schedule.name),
        ("task", schedule.kind),
        ("when", schedule.cron or f"every {span(schedule.every)}"),
        ("time zone", schedule.timezone if schedule.cron else ""),
        ("next", "paused" if schedule.paused else local(schedule.next_at)),
        ("last", local(schedule.last_at)),
    ]


def _fields(schedule: Schedule) -> Cells:
    options = {name: value for name, value in schedule.options.items() if name != "encoding"}
    row = _row(schedule)
    return [
        *row[:4],
        ("catches up", schedule.catch_up),
        *row[4:],
        ("lane", schedule.lane),
        ("namespace", schedule.namespace),
        *((name, shortened(value)) for name, value in options.items()),
        ("payload", shortened(body(schedule.payload))),
    ]


SCHEDULE = Table[Schedule](
    row=_row,
    fields=_fields,
    empty="no schedules: a task declares one, or fabric.schedules.put",
)


@command(app, "list")
async def list_schedules(engine: Engine, screen: Screen) -> None:
    """List the schedules by name."""
    found = pages(
        lambda after, limit: engine.schedules.list(after=after or "", limit=limit),
        lambda schedule: schedule.name,
    )
    await SCHEDULE.list(screen, found)


@command(app)
async def show(engine: Engine, screen: Screen, name: Name) -> None:
    """Show everything about one schedule."""
    SCHEDULE.show(screen, await engine.schedules.get(name))


@command(app)
async def pause(engine: Engine, screen: Screen, names: Names) -> None:
    """Pause schedules: no runs until `resume`, and none for the times that pass meanwhile."""
    for name in names:
        screen.answer(document(await engine.schedules.pause(name)), f"paused {name}")


@command(app)
async def resume(engine: Engine, screen: Screen, names: Names) -> None:
    """Let paused schedules continue with their next time."""
    for name in names:
        resumed = await engine.schedules.resume(name)
        screen.answer(document(resumed), f"resumed {name}, next {local(resumed.next_at)}")


@command(app)
async def trigger(fabric: Fabric, screen: Screen, names: Names) -> None:
    """Submit a run of each schedule now, besides its times, and print the ids."""
    for name in names:
        id = str((await fabric.schedules.trigger(name)).id)
        screen.answer({"name": name, "id": id}, id)


@command(app)
async def remove(engine: Engine, screen: Screen, names: Names) -> None:
    """Remove schedules; the runs they submitted stay.

    One that a task declares comes back with the next worker: pause it instead.
    """
    for name in names:
        await engine.schedules.remove(name)
        screen.answer({"name": name, "removed": True}, f"removed {name}")
