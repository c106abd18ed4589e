"""`flowfabric worker`"""

import asyncio
import logging
from enum import StrEnum
from typing import Annotated

from typer import Option

from flowfabric.cli.application import Application
from flowfabric.cli.errors import usage
from flowfabric.cli.log import JsonFormatter, TextFormatter
from flowfabric.cli.output import Screen, redact
from flowfabric.cli.store import ShowVersion
from flowfabric.core.base.time import parse_span
from flowfabric.worker.run.options import WorkerOptions

log = logging.getLogger("flowfabric.worker")


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


async def worker(  # noqa: PLR0913 - the options are the interface
    application: Application,
    screen: Screen,
    concurrency: Annotated[
        int, Option("--concurrency", "-c", min=1, help="How many runs at once.")
    ] = 100,
    lanes: Annotated[
        str | None,
        Option(show_default="all", help="Lanes to serve: fast,slow or weighted fast=3,slow=1."),
    ] = None,
    namespace: Annotated[str | None, Option(help="Only runs of this namespace.")] = None,
    capability: Annotated[list[str] | None, Option(help="What it offers; repeatable.")] = None,
    processes: Annotated[
        int | None, Option(min=1, show_default="one per core", help="For tasks with process=True.")
    ] = None,
    name: Annotated[str, Option(help="The name of this kind of worker.")] = "worker",
    drain: Annotated[str, Option(help="How long running tasks may take to finish.")] = "20s",
    ttl: Annotated[
        str, Option(help="The length of a lease: after it, the loss of a worker is noticed.")
    ] = "30s",
    log_level: Annotated[
        Level, Option(case_sensitive=False, help="Log this and what is more severe.")
    ] = Level.INFO,
    log_json: Annotated[
        bool, Option("--log-json", help="Log one JSON document per line, with all fields.")
    ] = False,
    show_version: ShowVersion = False,
) -> None:
    """Run your tasks until SIGTERM or Ctrl-C.

    The first signal lets running tasks finish and hands the rest back; a second one stops at once.
    The log goes to stderr, with --log-json (or --json) as one document per line.
    """
    parse_span(drain, "--drain")
    parse_span(ttl, "--ttl")
    options = WorkerOptions(
        name=name,
        concurrency=concurrency,
        lanes=_lanes(lanes),
        capabilities=capability or (),
        namespace=namespace,
        processes=processes,
        ttl=ttl,
        drain=drain,
    )
    _start_log(log_level, as_json=log_json or screen.as_json)
    async with application.fabric as fabric:
        found = await fabric.worker(options)
        found.handle_signals()
        log.info(
            "%s works on %s: %s; lanes: %s; %d at once",
            found.identity.instance,
            redact(fabric.url),
            ", ".join(sorted(fabric.tasks)) or "no tasks",
            ", ".join(options.lanes) or "all",
            options.concurrency,
        )
        await found.run()
        log.info("%s stopped after %d claims", found.identity.instance, found.completed)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop is faster, and used where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _lanes(text: str | None) -> list[str] | dict[str, int]:
    """`fast,slow` or `fast=3,slow=1`; a lane without a weight among weights has 1."""
    pairs = [part.strip().partition("=") for part in (text or "").split(",") if part.strip()]
    if not any(equals for _, equals, _ in pairs):
        return [name for name, _, _ in pairs]
    return {name: _weight(name, weight) if equals else 1 for name, equals, weight in pairs}


def _weight(lane: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise usage(f"--lanes: the weight of {lane!r} is a whole number above 0, not {text!r}")
    return int(text)


def _start_log(level: Level, *, as_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
