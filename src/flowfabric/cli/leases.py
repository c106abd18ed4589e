"""`flowfabric lease …`: what the holder of a lease reports, by its handle."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
import typer

from flowfabric.cli.connect import connect
from flowfabric.cli.format import local
from flowfabric.cli.json import Document, document, plain
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen
from flowfabric.cli.values import read_json
from flowfabric.core.base.time import parse_span
from flowfabric.core.execution.attempt import RetryScheduled
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.retry import Category
from flowfabric.engine.engine import Engine

app = typer.Typer(help="Report as the holder of a lease, by its handle.", no_args_is_help=True)

HANDLE_VARIABLE = "FLOWFABRIC_HANDLE"

Handle = Annotated[
    str,
    typer.Option(
        "--handle",
        envvar=HANDLE_VARIABLE,
        show_default=False,
        help="The text that `flowfabric grants redeem` printed.",
    ),
]
Report = Callable[[Engine], Awaitable[tuple[Document, str]]]


@app.command()
def renew(
    handle: Handle,
    ttl: Annotated[
        str | None, typer.Option("--ttl", show_default=False, help="From now on; else as before.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Extend the lease."""
    span = None if ttl is None else parse_span(ttl, "--ttl")

    async def report(engine: Engine) -> tuple[Document, str]:
        renewed = await engine.attempts.renew(handle, span)
        return document(renewed), f"renewed until {local(renewed.expires_at)}"

    asyncio.run(_report(url, report, Screen(as_json)))


@app.command()
def complete(
    handle: Handle,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", show_default=False)
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """End the run in success."""
    data = None if result is None else msgspec.json.encode(read_json(result, "--result"))

    async def report(engine: Engine) -> tuple[Document, str]:
        return document(await engine.attempts.complete(handle, data)), "completed"

    asyncio.run(_report(url, report, Screen(as_json)))


@app.command()
def fail(
    handle: Handle,
    message: Annotated[str, typer.Option("--message", show_default=False)],
    category: Annotated[
        Category, typer.Option("--category", metavar="CATEGORY", help=f"{', '.join(Category)}.")
    ] = Category.TRANSIENT,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """End the attempt in failure; the policy of the run decides whether it is retried."""

    async def report(engine: Engine) -> tuple[Document, str]:
        outcome = await engine.attempts.fail(handle, Failure(message, category))
        retried = isinstance(outcome, RetryScheduled)
        word = "failed, and is retried" if retried else "failed for good"
        return {"retried": retried, **document(outcome)}, word

    asyncio.run(_report(url, report, Screen(as_json)))


@app.command(name="return")
def hand_back(
    handle: Handle, url: Url = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Give the lease up; another worker goes on with the same attempt."""

    async def report(engine: Engine) -> tuple[Document, str]:
        back = await engine.attempts.hand_back(handle)
        return document(back), f"handed back: {plain('state', back.state)}"

    asyncio.run(_report(url, report, Screen(as_json)))


async def _report(url: str | None, report: Report, screen: Screen) -> None:
    async with connect(url) as fabric:
        told, text = await report(await fabric.engine())
    if screen.as_json:
        screen.document(told)
    else:
        screen.line(text)
