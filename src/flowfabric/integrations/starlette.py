"""FlowFabric in a Starlette application: the fabric opens and closes with the application."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.fabric import Fabric
from flowfabric.worker.api.deployment import check_worker_options
from flowfabric.worker.run.loop import Worker
from flowfabric.worker.run.options import WorkerSettings

log = logging.getLogger("flowfabric.integrations")

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def lifespan(
    fabric: Fabric, *, worker: WorkerSettings | None = None, inner: Lifespan | None = None
) -> Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """The lifespan of an application that uses this fabric: `Starlette(lifespan=lifespan(fabric))`.

    The fabric is opened, which creates or checks its tables, before the first request, and closed
    after the last one. With `worker`, a worker with these options runs in the web process as well
    and is drained at shutdown. `inner` is the application's own lifespan, which finds the fabric
    open.
    """
    check_kind_of(fabric, Fabric, "the fabric of a lifespan")
    if worker is not None:
        check_worker_options(worker)

    @asynccontextmanager
    async def opened(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(fabric)
            app.state.fabric = fabric  # for requests whose server passes no state on
            own = None if inner is None else await stack.enter_async_context(inner(app))
            if worker is not None:
                await stack.enter_async_context(_working(await fabric.worker(worker)))
            yield {**(own or {}), "fabric": fabric}

    return opened


def get_fabric(connection: HTTPConnection) -> Fabric:
    """The fabric of the application that serves this request or WebSocket."""
    found = getattr(connection.state, "fabric", None)
    if found is None:
        found = getattr(connection.app.state, "fabric", None)
    if not isinstance(found, Fabric):
        raise Invalid(
            "this application has no open fabric: create it with lifespan=lifespan(fabric), and"
            " start its lifespan before the first request"
        )
    return found


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    """A worker beside the application, drained when the block ends."""
    working = asyncio.create_task(worker.run(), name="flowfabric-worker")
    working.add_done_callback(_report)
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait([working])


def _report(working: "asyncio.Task[None]") -> None:
    error = None if working.cancelled() else working.exception()
    if error is not None:
        log.critical(
            "the worker of this web process failed; requests are served, but it executes no runs"
            " until the process is restarted",
            exc_info=error,
        )
