"""`flowfabric run stream` and `flowfabric run summary`: the output of a run."""

import base64
from typing import Annotated, Any

from typer import Option

from flowfabric.cli.command import RunId
from flowfabric.cli.errors import CommandError, ExitCode
from flowfabric.cli.format import local, shortened
from flowfabric.cli.json import Document, document
from flowfabric.cli.output import Screen
from flowfabric.fabric import Fabric
from flowfabric.worker.api.output import RunFrame

AttemptNumber = Annotated[int | None, Option(min=1, help="Only this attempt; the first is 1.")]


async def stream(
    fabric: Fabric,
    screen: Screen,
    id: RunId,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    attempt: AttemptNumber = None,
    after: Annotated[
        str | None, Option(metavar="CURSOR", help="Only what comes after, as --json shows it.")
    ] = None,
    durable: Annotated[bool, Option("--durable", help="Leave best-effort frames out.")] = False,
) -> None:
    """Show what a run has emitted, the oldest frame first."""
    run = await fabric.run(id)
    frames = run.stream(after=after, attempt=attempt, follow=follow, best_effort=not durable)
    empty = True
    async for frame in frames:
        empty = False
        if frame.gap and not screen.as_json:
            screen.note("frames before this one were deleted")
        screen.answer(_json(frame), _line(frame))
    if empty and not screen.as_json:
        screen.note("no output: the run has emitted nothing")


async def summary(fabric: Fabric, screen: Screen, id: RunId, attempt: AttemptNumber = None) -> None:
    """Show the summary that a run has emitted."""
    found = await (await fabric.run(id)).summary(attempt)
    if found is None:
        raise CommandError(f"run {id} has no summary", ExitCode.NOT_FOUND, "no_summary")
    if screen.as_json:
        screen.document(found)
    else:
        screen.value(found)


def _json(frame: RunFrame) -> Document:
    """A value that is not text is written in base64."""
    return {**document(frame), "value": _plain(frame.value)}


def _plain(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _line(frame: RunFrame) -> str:
    match frame.value:
        case str() as text:
            shown = text.rstrip("\n")
        case bytes() as data:
            shown = f"({len(data)} bytes)"
        case value:
            shown = shortened(value)
    return f"{local(frame.at)}  {frame.attempt}  {frame.type}  {shown}"
