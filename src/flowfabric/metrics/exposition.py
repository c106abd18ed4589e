"""The text that Prometheus reads, and an ASGI application that answers with it."""

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.engine.engine import Engine
from flowfabric.metrics.instruments import REGISTRY
from flowfabric.metrics.recorder import enable
from flowfabric.metrics.store_gauges import families, gauges_of

log = logging.getLogger("flowfabric.metrics")

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of prometheus-client: processes that have it in common are collected together."""


class HasEngine(Protocol):
    """A Fabric."""

    async def engine(self) -> Engine: ...


async def render(engine: Engine | None = None, *, of_store: bool = True) -> bytes:
    """All metrics of this process, and with an engine those of its store, unless they are not
    wanted. A store that does not answer leaves its metrics out and hides no others."""
    found: list[Metric] = []
    # An engine that is reached through a server has its metrics there.
    if of_store and isinstance(engine, Engine):
        found += await _of_store(engine)
    return generate_latest(_Everything(_of_processes(), found))


async def render_for_one(engine: Engine) -> bytes:
    """The same for one of many workers: of the store, only the one that sweeps shows figures."""
    is_one = isinstance(engine, Engine) and engine.sweep.has_duty
    return await render(engine, of_store=is_one)


async def _of_store(engine: Engine) -> list[Metric]:
    try:
        return [*families(await gauges_of(engine).read())]
    except FlowFabricError as error:
        log.warning("metrics of the store are left out of a scrape: %s", error)
        return []


def metrics_app(fabric: HasEngine | None = None) -> Callable[..., Awaitable[None]]:
    """An ASGI application that answers every GET with the metrics; with a fabric, also with those
    of its store. Mount it where only your Prometheus can reach it."""
    enable()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        allowed = scope["method"] in ("GET", "HEAD")
        body = await render(None if fabric is None else await fabric.engine()) if allowed else b""
        headers = [(b"content-type", CONTENT_TYPE.encode())]
        headers += [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
        status = 200 if allowed else 405
        await send({"type": "http.response.start", "status": status, "headers": headers})
        shown = body if scope["method"] == "GET" else b""
        await send({"type": "http.response.body", "body": shown})

    return app


def _of_processes() -> Collector:
    """This process, or all that share a directory with it."""
    if SHARED_DIRECTORY not in os.environ:
        return REGISTRY
    shared = CollectorRegistry()
    MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
    return shared


class _Everything(Collector):
    """Without the moments at which series were created: they double the answer."""

    def __init__(self, own: Collector, more: Iterable[Metric]) -> None:
        self._own = own
        self._more = more

    def collect(self) -> Iterator[Metric]:
        for metric in self._own.collect():
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric
        yield from self._more
