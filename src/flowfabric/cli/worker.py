"""`flowfabric worker`"""

from enum import StrEnum
from typing import Annotated

from typer import Option

from flowfabric.cli.application import Application
from flowfabric.cli.output import Screen
from flowfabric.cli.store import ShowVersion
from flowfabric.cli.working import parse_lanes, start_log, work
from flowfabric.core.base.time import parse_span
from flowfabric.worker.api.deployment import WorkerOptions


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
    webhooks: Annotated[bool, Option("--webhooks", help="Deliver the webhooks as well.")] = False,
    metrics_listen: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Serve /metrics for Prometheus there.")
    ] = None,
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
        lanes=parse_lanes(lanes),
        capabilities=capability or (),
        namespace=namespace,
        processes=processes,
        ttl=ttl,
        drain=drain,
        webhooks=webhooks,
    )
    start_log(log_level, as_json=log_json or screen.as_json)
    await work(application.fabric, options, metrics_listen)
