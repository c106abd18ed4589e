"""`manage.py flowfabric_worker`"""

import asyncio
import logging
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from flowfabric.cli.working import new_event_loop, parse_lanes, start_log, work
from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import parse_span
from flowfabric.integrations.django.fabric import get_fabric
from flowfabric.worker.errors import StartupFailed
from flowfabric.worker.run.options import WorkerSettings

LEVELS = ("debug", "info", "warning", "error")


class Command(BaseCommand):
    """Runs a worker for the tasks of the project."""

    help = (
        "Runs the tasks of this project until SIGTERM or Ctrl-C. The first signal lets running "
        "tasks finish and hands the rest back; a second one stops at once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("-c", "--concurrency", type=int, default=100, help="How many runs at once.")
        add("--lanes", help="Lanes to serve: fast,slow or weighted fast=3,slow=1. Default: all.")
        add("--namespace", help="Only runs of this namespace.")
        add("--capability", action="append", default=[], help="What it offers; repeatable.")
        add("--processes", type=int, help="For tasks with process=True. Default: one per core.")
        add("--name", default="worker", help="The name of this kind of worker.")
        add("--drain", default="20s", help="How long running tasks may take to finish.")
        add("--ttl", default="30s", help="After this time, the loss of a worker is noticed.")
        add(
            "--log-level",
            choices=LEVELS,
            help="Log this and what is more severe to stderr, instead of the project's LOGGING.",
        )
        add("--log-json", action="store_true", help="The same as one JSON document per line.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            chosen = _worker_options(options)
            fabric = get_fabric()
            _start_log(options["log_level"], as_json=options["log_json"])
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(work(fabric, chosen))
        except (FlowFabricError, StartupFailed, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error


def _worker_options(options: dict[str, Any]) -> WorkerSettings:
    for name in ("drain", "ttl"):
        parse_span(options[name], f"--{name}")
    return WorkerSettings(
        name=options["name"],
        concurrency=options["concurrency"],
        lanes=parse_lanes(options["lanes"]),
        capabilities=options["capability"],
        namespace=options["namespace"],
        processes=options["processes"],
        ttl=options["ttl"],
        drain=options["drain"],
    )


def _start_log(level: str | None, *, as_json: bool) -> None:
    """A project that has configured its root logger keeps it, unless an option says otherwise."""
    if level is not None or as_json or not logging.getLogger().handlers:
        start_log(level or "info", as_json=as_json)
