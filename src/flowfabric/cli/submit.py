"""`flowfabric submit`"""

import typing
from typing import Annotated, Any

import msgspec
from typer import Argument, Option

from flowfabric.cli.application import Application
from flowfabric.cli.command import Timeout
from flowfabric.cli.ending import show_ending, watch
from flowfabric.cli.errors import ExitCode, usage
from flowfabric.cli.output import Screen
from flowfabric.cli.parse import read_object, read_pair, read_tags
from flowfabric.worker.api.task import Task
from flowfabric.worker.codec import Undecodable, decode


async def submit(  # noqa: PLR0913 - the options are the interface
    application: Application,
    screen: Screen,
    task: Annotated[str, Argument(metavar="TASK", help="The name of the task.")],
    args: Annotated[str, Option(metavar="JSON", help="All arguments as one JSON object.")] = "{}",
    arg: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="One argument; repeatable.")
    ] = None,
    key: Annotated[str | None, Option(help="The same key again changes nothing.")] = None,
    delay: Annotated[str | None, Option(help="Start in 10s, 5m, 1h30m, …")] = None,
    priority: Annotated[int | None, Option(help="0 to 9000, the highest first.")] = None,
    lane: Annotated[str | None, Option(help="Instead of the lane of the task.")] = None,
    namespace: Annotated[str | None, Option(help="Instead of the namespace of the task.")] = None,
    tag: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="A tag, as app.env=dev; repeatable.")
    ] = None,
    wait: Annotated[bool, Option("--wait", help="Wait for the end and print the result.")] = False,
    timeout: Timeout = None,
) -> ExitCode:
    """Submit a run of one of your tasks.

    A value of --arg is read as JSON where the parameter accepts it, and as text otherwise.
    """
    wanted, fabric = application.find_task(task), application.fabric
    call = wanted.with_options(
        key=key,
        delay=delay,
        priority=priority,
        lane=lane,
        namespace=namespace,
        tags=read_tags(tag),
    )
    positional, named = _arguments(wanted, args, arg or [])
    async with fabric:
        run = await call.submit(*positional, **named)
        words = f"{run.id} was submitted before" if run.duplicate else f"submitted {run.id}"
        if not wait:
            screen.answer({"id": run.id, "duplicate": run.duplicate}, words)
            return ExitCode.OK
        if not screen.as_json:
            screen.note(words)
        ending = await watch(await fabric.engine(), run.id, screen, timeout)
    return show_ending(screen, ending, duplicate=run.duplicate)


def _arguments(
    task: Task[Any, Any], text: str, single: list[str]
) -> tuple[list[Any], dict[str, Any]]:
    """The call these words describe, checked against the function before anything is sent."""
    members = {**read_object(text, "--args"), **_values(task, single)}
    if unknown := sorted(members.keys() - task.signature.parameters):
        raise usage(f"{task.name} has no parameter {unknown[0]!r}; it takes {_parameters(task)}")
    try:
        return task.signature.decode(msgspec.json.encode(members))
    except Undecodable as error:
        raise usage(f"{error}; it takes {_parameters(task)}") from error


def _values(task: Task[Any, Any], single: list[str]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(task.function, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    pairs = (read_pair(text, "--arg") for text in single)
    return {name: _value(text, hints.get(name, Any)) for name, text in pairs}


def _value(text: str, hint: Any) -> Any:
    """JSON if the parameter accepts what it says, else the text itself."""
    try:
        decode(text.encode(), hint)
        return msgspec.json.decode(text)
    except Undecodable:
        return text


def _parameters(task: Task[Any, Any]) -> str:
    return ", ".join(sorted(task.signature.parameters)) or "none"
