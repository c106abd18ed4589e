"""`flowfabric backup`"""

from typing import Annotated

from rich.progress import BarColumn, DownloadColumn, TextColumn
from rich.progress import Progress as Bars
from typer import Argument, Option

from flowfabric.cli.command import check_exists
from flowfabric.cli.errors import ExitCode
from flowfabric.cli.json import document
from flowfabric.cli.output import Screen
from flowfabric.store.backup import Backup, MissingTool, backup, backup_command, ignore_progress

PAGE = 4096

Source = Annotated[str, Argument(metavar="SOURCE", help="The store, as a URL.")]
Target = Annotated[str, Argument(metavar="FILE", help="The file that is made.")]


async def backup_store(
    screen: Screen,
    source: Source,
    target: Target,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace the file if there is one.")
    ] = False,
    print_only: Annotated[
        bool, Option("--print", help="Only print the pg_dump command of a Postgres store.")
    ] = False,
) -> ExitCode | None:
    """Copy a store into a file while it is in use.

    SQLite: a copy of this moment, checked, that appears under its name when it is whole. Postgres:
    pg_dump of the schema, or its command line where it is not installed.
    """
    if print_only:
        command = backup_command(source, target)
        screen.answer({"command": command}, command)
        return None
    check_exists(source)
    try:
        made = await _watched(screen, source, target, overwrite)
    except MissingTool as missing:
        screen.answer({"command": missing.command}, missing.command)
        screen.error(missing.code, missing.detail)
        return ExitCode.FAILED
    words = f"copied {made.source} to {made.target}: {made.bytes / 1e6:,.1f} MB, checked"
    screen.answer(document(made), words, f"to bring it back: {made.restore}")
    return None


async def _watched(screen: Screen, source: str, target: str, overwrite: bool) -> Backup:
    """With a bar for people at a terminal."""
    if not screen.is_watched:
        return await backup(source, target, overwrite=overwrite, progress=ignore_progress)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Bars(*columns, console=screen.err, transient=True) as bars:
        bar = bars.add_task("copying", total=None)

        def progress(done: int, total: int) -> None:
            bars.update(bar, completed=done * PAGE, total=total * PAGE)

        return await backup(source, target, overwrite=overwrite, progress=progress)
