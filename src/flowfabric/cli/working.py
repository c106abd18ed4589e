"""What `flowfabric worker` does, for every command that starts a worker. It needs no extra."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowfabric.cli.log import JsonFormatter, TextFormatter
from flowfabric.core.base.errors import Invalid
from flowfabric.fabric import Fabric
from flowfabric.store.open import shown_url
from flowfabric.worker.run.options import WorkerSettings

log = logging.getLogger("flowfabric.worker")


async def work(fabric: Fabric, options: WorkerSettings, metrics_listen: str | None = None) -> None:
    """Runs a worker until SIGTERM or SIGINT; with an address, metrics are served there."""
    async with fabric, _measured(fabric, metrics_listen):
        worker = await fabric.worker(options)
        worker.handle_signals()
        log.info(
            "%s works on %s: %s; lanes: %s; %d at once",
            worker.identity.instance,
            shown_url(fabric.url),
            ", ".join(sorted(fabric.tasks)) or "no tasks",
            ", ".join(options.lanes) or "all",
            options.concurrency,
        )
        if not fabric.tasks and not options.webhooks:
            log.warning(
                "no task is registered, so this worker runs nothing: import the modules that define"
                " tasks where their Fabric is made"
            )
        await worker.run()
        log.info("%s stopped after %d claims", worker.identity.instance, worker.completed)


@asynccontextmanager
async def _measured(fabric: Fabric, address: str | None) -> AsyncIterator[None]:
    if address is None:
        yield
        return
    try:
        from flowfabric.metrics import serve
    except ModuleNotFoundError as error:
        raise Invalid(f"metrics need {error.name}: pip install 'flowfabric[prometheus]'") from None
    async with serve(address, fabric) as url:
        log.info("metrics on %s", url)
        yield


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop is faster, and used where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def parse_lanes(text: str | None) -> list[str] | dict[str, int]:
    """`fast,slow` or `fast=3,slow=1`; a lane without a weight among weights has 1."""
    pairs = [part.strip().partition("=") for part in (text or "").split(",") if part.strip()]
    if not any(equals for _, equals, _ in pairs):
        return [name for name, _, _ in pairs]
    return {name: _weight(name, weight) if equals else 1 for name, equals, weight in pairs}


def _weight(lane: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"--lanes: the weight of {lane!r} is a whole number above 0, not {text!r}")
    return int(text)


def start_log(level: str, *, as_json: bool) -> None:
    """Logs this level, and what is more severe, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
