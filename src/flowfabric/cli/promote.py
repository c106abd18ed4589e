"""`flowfabric promote`"""

from typing import Annotated

from typer import Argument, Option

from flowfabric.cli.command import check_exists
from flowfabric.cli.format import number_of
from flowfabric.cli.json import document
from flowfabric.cli.output import Screen, progress_bar
from flowfabric.store.promote import PromotionOptions, promote

Source = Annotated[str, Argument(metavar="SOURCE", help="The store that is moved, as a URL.")]
Target = Annotated[str, Argument(metavar="TARGET", help="The empty store it is moved to.")]


async def promote_store(
    screen: Screen,
    source: Source,
    target: Target,
    force: Annotated[
        bool, Option("--force", help="Move a store whose leases have not expired yet.")
    ] = False,
    start_over: Annotated[
        bool,
        Option("--start-over", help="Discard what an unfinished promotion has copied."),
    ] = False,
) -> None:
    """Move everything from one store to another, such as from SQLite to Postgres.

    Stop all workers of the source first. Counts and digests of every table are compared at the
    end. If it is interrupted, run it again: it continues where it was. Tokens and handles stay
    valid; leased runs expire at the target and are continued there.
    """
    check_exists(source)
    with progress_bar(screen) as progress:
        options = PromotionOptions(force=force, start_over=start_over, progress=progress)
        moved = await promote(source, target, options)
    if moved.already:
        words = f"{moved.source} was promoted to {moved.target} before: nothing was done"
        screen.answer(document(moved), words)
        return
    runs = next(table.rows for table in moved.tables if table.name == "execution")
    words = (
        f"moved {number_of(runs, 'run')}, {number_of(moved.rows, 'row')} in"
        f" {len(moved.tables)} tables, in {moved.seconds:.1f} s: counts and digests agree"
    )
    note = f"now start your workers on the target, and none on {moved.source} any more"
    screen.answer(document(moved), words, note)
