"""`flowfabric lease …`: what the holder of a lease reports, by its handle."""

from typing import Annotated

import msgspec
from typer import Option, Typer

from flowfabric.cli.command import command
from flowfabric.cli.format import local
from flowfabric.cli.json import document, plain
from flowfabric.cli.output import Screen
from flowfabric.cli.parse import read_json, read_optional_span
from flowfabric.core.execution.attempt import RetryScheduled
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.retry import Category
from flowfabric.engine.engine import Engine

app = Typer(help="Act as the holder of a lease, by its handle.", no_args_is_help=True)

HANDLE_VARIABLE = "FLOWFABRIC_HANDLE"

Handle = Annotated[
    str,
    Option(envvar=HANDLE_VARIABLE, help="The text that `flowfabric grants redeem` printed."),
]


@command(app)
async def renew(
    engine: Engine,
    screen: Screen,
    handle: Handle,
    ttl: Annotated[str | None, Option(help="How long from now; by default as before.")] = None,
) -> None:
    """Extend the lease."""
    renewed = await engine.attempts.renew(handle, read_optional_span(ttl, "--ttl"))
    screen.answer(document(renewed), f"renewed until {local(renewed.expires_at)}")


@command(app)
async def complete(
    engine: Engine,
    screen: Screen,
    handle: Handle,
    result: Annotated[str | None, Option(metavar="JSON", help="What the run returns.")] = None,
) -> None:
    """End the run in success."""
    data = None if result is None else msgspec.json.encode(read_json(result, "--result"))
    screen.answer(document(await engine.attempts.complete(handle, data)), "completed")


@command(app)
async def fail(
    engine: Engine,
    screen: Screen,
    handle: Handle,
    message: Annotated[str, Option(help="What went wrong.")],
    category: Annotated[
        Category, Option(metavar="CATEGORY", help=f"One of {', '.join(Category)}.")
    ] = Category.TRANSIENT,
) -> None:
    """End the attempt in failure; the policy of the run decides whether it is retried."""
    outcome = await engine.attempts.fail(handle, Failure(message, category))
    retried = isinstance(outcome, RetryScheduled)
    words = "failed, and is retried" if retried else "failed for good"
    screen.answer({"retried": retried, **document(outcome)}, words)


@command(app, "return")
async def hand_back(engine: Engine, screen: Screen, handle: Handle) -> None:
    """Give the lease back; another worker continues the same attempt."""
    back = await engine.attempts.hand_back(handle)
    screen.answer(document(back), f"handed back: {plain('state', back.state)}")
