"""`flowfabric submit`"""

import asyncio
import typing
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from flowfabric.cli.apps import find_task, load_fabric
from flowfabric.cli.errors import Code, CommandError
from flowfabric.cli.options import App, AppUrl, AsJson, Debug, Timeout
from flowfabric.cli.output import Screen
from flowfabric.cli.watch import ending_code, show_ending, watch
from flowfabric.fabric import Fabric
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.task import Call, Task
from flowfabric.worker.codec import Undecodable, decode


class Wish(Struct, frozen=True, kw_only=True):
    """What one submission asks for besides its arguments."""

    key: str | None
    delay: str | None
    priority: int | None
    lane: str | None
    namespace: str | None
    tags: dict[str, str]


def submit(  # noqa: PLR0913 - the options are the interface
    app: App,
    task: Annotated[str, typer.Argument(metavar="TASK", show_default=False, help="Its name.")],
    args: Annotated[
        str, typer.Option("--args", help="All arguments as one JSON object.", metavar="JSON")
    ] = "{}",
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", show_default=False, metavar="NAME=VALUE", help="One argument."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", show_default=False, help="Submitting a known key changes nothing."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", show_default=False, help="Start in 10s, 5m, 1h30m, …")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", show_default=False, help="0 to 9000, highest first.")
    ] = None,
    lane: Annotated[str | None, typer.Option("--lane", show_default=False)] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", show_default=False)] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", show_default=False, metavar="KEY=VALUE", help="Such as app.env=dev."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end and print the result.")
    ] = False,
    timeout: Timeout = None,
    url: AppUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Submit a run of one of your tasks.

    A value of --arg is JSON where the parameter accepts it, and text otherwise.
    """
    fabric = load_fabric(app, url)
    wish = Wish(
        key=key,
        delay=delay,
        priority=priority,
        lane=lane,
        namespace=namespace,
        tags=dict(_pair(text, "--tag") for text in tag or ()),
    )
    wanted = find_task(fabric, app, task)
    arguments = _arguments(wanted, args, arg or [])
    job = _submit(fabric, _call(wanted, wish), arguments, Screen(as_json), wait, timeout)
    raise typer.Exit(asyncio.run(job))


async def _submit(
    fabric: Fabric,
    call: Call[Any, Any],
    arguments: tuple[list[Any], dict[str, Any]],
    screen: Screen,
    wait: bool,
    timeout: str | None,
) -> Code:
    async with fabric:
        run = await call.submit(*arguments[0], **arguments[1])
        if not wait:
            _show(screen, run)
            return Code.OK
        if not screen.as_json:
            screen.note(_told(run))
        ending = await watch(await fabric.engine(), run.id, screen, timeout)
    show_ending(screen, ending, duplicate=run.duplicate)
    return ending_code(ending)


def _show(screen: Screen, run: Run[Any]) -> None:
    if screen.as_json:
        screen.document({"id": run.id, "duplicate": run.duplicate})
    else:
        screen.line(_told(run))


def _told(run: Run[Any]) -> str:
    return f"{run.id} was submitted before" if run.duplicate else f"submitted {run.id}"


def _call(task: Task[Any, Any], wish: Wish) -> Call[Any, Any]:
    return task.with_options(
        key=wish.key,
        delay=wish.delay,
        priority=wish.priority,
        lane=wish.lane,
        namespace=wish.namespace,
        tags=wish.tags or None,
    )


def _arguments(
    task: Task[Any, Any], text: str, single: list[str]
) -> tuple[list[Any], dict[str, Any]]:
    """The call these words describe, checked against the function before anything is sent."""
    members = {**_object(text), **_values(task, single)}
    if unknown := sorted(members.keys() - task.signature.parameters):
        raise _usage(f"{task.name} has no parameter {unknown[0]!r}; it takes {_parameters(task)}")
    try:
        return task.signature.decode(msgspec.json.encode(members))
    except Undecodable as error:
        raise _usage(f"{error}; it takes {_parameters(task)}") from error


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise _usage(f"--args is not a JSON object: {error}") from error


def _values(task: Task[Any, Any], single: list[str]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(task.function, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    pairs = (_pair(text, "--arg") for text in single)
    return {name: _value(text, hints.get(name, Any)) for name, text in pairs}


def _value(text: str, hint: Any) -> Any:
    """JSON if the parameter accepts what it says, else the text itself."""
    try:
        decode(text.encode(), hint)
        return msgspec.json.decode(text)
    except Undecodable:
        return text


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise _usage(f"{option} is written name=value, not {text!r}")
    return name, value


def _parameters(task: Task[Any, Any]) -> str:
    return ", ".join(sorted(task.signature.parameters)) or "none"


def _usage(text: str) -> CommandError:
    return CommandError(text, Code.USAGE, "usage")
