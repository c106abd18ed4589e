"""`flowfabric run …`"""

import asyncio
from typing import Annotated

import typer

from flowfabric.cli import run_bulk, run_list, run_show
from flowfabric.cli.options import AsJson, Debug, RunId, RunIds, Timeout, Url
from flowfabric.cli.output import Screen
from flowfabric.cli.run_list import RunFilter
from flowfabric.core.execution.status import ADMISSION_BLOCKS, Blocking, PublicState

app = typer.Typer(help="Look at runs, cancel and replay them.", no_args_is_help=True)


@app.command()
def show(id: RunId, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show everything about one run."""
    asyncio.run(run_show.show(url, id, Screen(as_json)))


@app.command(name="list")
def list_runs(  # noqa: PLR0913 - the options are the interface
    state: Annotated[
        list[PublicState] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            show_default=False,
            help=f"Only in this state, repeatable: {', '.join(PublicState)}.",
        ),
    ] = None,
    lane: Annotated[str | None, typer.Option("--lane", show_default=False)] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", show_default=False, help="Only of this task.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", show_default=False, help="Only with app.tenant=acme.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", show_default=False)] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", show_default=False, help="Only younger than 2h, or than 2025-03-01T08:00."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", show_default=False, help="Go on where an earlier list ended."),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", "-q", help="Only the ids, one per line.")] = False,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List runs, the newest first.

    When there are more, the cursor that goes on is told on stderr.
    """
    wanted = RunFilter(
        states=tuple(state or ()),
        lane=lane,
        kind=kind,
        tag=tag,
        namespace=namespace,
        since=since,
        limit=limit,
        cursor=cursor,
    )
    asyncio.run(run_list.list_runs(url, wanted, Screen(as_json), only_ids=ids))


@app.command()
def cancel(
    ids: RunIds,
    reason: Annotated[str, typer.Option("--reason")] = "cancelled on the command line",
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """End runs, whatever they do; a handler that runs is stopped."""
    code = asyncio.run(run_bulk.cancel(url, run_bulk.given(ids), reason, Screen(as_json)))
    raise typer.Exit(code)


@app.command()
def hold(
    ids: RunIds,
    reason: Annotated[str | None, typer.Option("--reason", show_default=False)] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Hold runs back that wait, for whatever it is; they do not start before `unhold`."""
    code = asyncio.run(run_bulk.hold(url, run_bulk.given(ids), reason, Screen(as_json)))
    raise typer.Exit(code)


@app.command()
def unhold(ids: RunIds, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Let runs go that were held back."""
    raise typer.Exit(asyncio.run(run_bulk.unhold(url, run_bulk.given(ids), Screen(as_json))))


@app.command()
def replay(ids: RunIds, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Run ended runs again. Recorded steps are kept unless the run had succeeded."""
    raise typer.Exit(asyncio.run(run_bulk.replay(url, run_bulk.given(ids), Screen(as_json))))


@app.command()
def block(
    ids: RunIds,
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="REASON", help=f"{', '.join(sorted(ADMISSION_BLOCKS))}."),
    ] = Blocking.OPERATOR,
    detail: Annotated[
        str | None, typer.Option("--detail", show_default=False, help="Why, for people.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Keep waiting runs from being claimed until they are unblocked."""
    screen = Screen(as_json)
    raise typer.Exit(asyncio.run(run_bulk.block(url, run_bulk.given(ids), reason, detail, screen)))


@app.command()
def unblock(
    ids: RunIds,
    expected: Annotated[
        str | None,
        typer.Option("--expected", metavar="REASON", show_default=False, help="Only this block."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let blocked runs go on."""
    screen = Screen(as_json)
    raise typer.Exit(asyncio.run(run_bulk.unblock(url, run_bulk.given(ids), expected, screen)))


@app.command()
def result(
    id: RunId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run has ended.")] = False,
    timeout: Timeout = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print what a run returned; exits with 1 when it did not succeed."""
    screen = Screen(as_json)
    code = asyncio.run(run_show.result(url, id, screen, wait=wait, timeout=timeout))
    raise typer.Exit(code)


@app.command()
def events(
    id: RunId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    after: Annotated[
        int, typer.Option("--after", min=0, help="Only events after this number.")
    ] = 0,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what happened to a run, the oldest first."""
    asyncio.run(run_show.events(url, id, Screen(as_json), after=after, follow=follow))
