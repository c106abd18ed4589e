"""The proving ground: a namespace of its own in the user's store, left as it was found.

Every run has a short retention of its own. The engines here keep all others as long as possible,
because the retention that the application has configured for them is not known here.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.limit.quota import OF_TASK
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric, TaskDecorator
from flowfabric.remote.connection import is_server
from flowfabric.store.queries import Query
from flowfabric.worker.api.deployment import Options
from flowfabric.worker.run.loop import Worker
from flowfabric.worker.run.options import WorkerSettings

LONGEST = timedelta(days=3650)
"""The longest retention there is, so that no run of the application is deleted from here."""
TTL = Millis(30_000)
"""The lease of a worker that should keep it, also on a busy machine."""
LOOK_EVERY = 0.5
FLOWS = "flows"
CLEAR_WITHIN = 5.0
"""Seconds after the retention within which everything should be deleted."""

_OPEN = (
    PublicState.WAITING,
    PublicState.DELAYED,
    PublicState.RATE_LIMITED,
    PublicState.WAITING_CHILDREN,
    PublicState.ACTIVE,
    PublicState.SUSPENDED,
)


class Place(Struct, frozen=True):
    """Where runs are made; `kept` is how many seconds they are kept after their end."""

    url: str
    name: str
    kept: float

    def fabric(self) -> Fabric:
        """A process of the application, as far as the engine can tell."""
        return Fabric(self.url, options=Options(retention=LONGEST))

    def task(self, fabric: Fabric, lane: str, **options: Any) -> TaskDecorator:
        """A decorator for a task of this place."""
        task: TaskDecorator = fabric.task(
            name=f"{self.name}.{lane}.{options.pop('name')}",
            namespace=self.name,
            lane=self.lane(lane),
            retention=self.kept,
            **options,
        )
        return task

    def lane(self, lane: str) -> str:
        return f"{self.name}-{lane}"

    @asynccontextmanager
    async def worker(
        self, fabric: Fabric, lane: str, *, concurrency: int = 50
    ) -> AsyncIterator[Worker]:
        """A worker for one lane, stopped at the end of the block."""
        worker = await fabric.worker(self.settings(lane, concurrency))
        job = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await job

    def settings(self, lane: str, concurrency: int = 50, ttl: Millis = TTL) -> WorkerSettings:
        return WorkerSettings(
            name=self.name,
            concurrency=concurrency,
            lanes=[self.lane(lane)],
            namespace=self.name,
            ttl=ttl,
            drain=1.0,
        )


class Ground(Struct):
    """What a check gets: the place, a folder for files, and how long it may take. `until` is when
    the measurement ends, `patience` how long a single wait may take."""

    place: Place
    home: Path
    until: float
    patience: float = 30.0
    rounds: int = 1

    @property
    def remote(self) -> bool:
        return is_server(self.place.url)

    async def wait_for(self, true: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        """Looks until the condition is true; raises TimeoutError, which says what is missing."""
        until = time.monotonic() + self.patience
        while True:
            answer = true()
            if answer if isinstance(answer, bool) else await answer:
                return
            if time.monotonic() > until:
                raise TimeoutError(f"waited {self.patience:.0f} s for {what}")
            await asyncio.sleep(0.02)


def new_place(url: str, seconds: float) -> Place:
    return Place(url, f"prove-{secrets.token_hex(4)}", min(30.0, max(4.0, seconds / 20)))


async def clear(place: Place, *, patient: bool) -> int:
    """Ends everything in the namespace, and if it is `patient` waits until it can be deleted;
    returns how many runs are left. Those of flows are: a flow is kept for the retention of the
    application."""
    async with place.fabric() as fabric:
        engine = await fabric.engine()
        await _cancel_all(engine, place.name)
        await _drop_limits(engine, place.name)
        if is_server(place.url) or not patient:
            return 0  # the server, or the next worker, deletes them in its own time
        until = time.monotonic() + place.kept + CLEAR_WITHIN
        of_flows = await _left(engine, place, place.lane(FLOWS))
        while (left := await _left(engine, place)) > of_flows and time.monotonic() < until:
            await asyncio.sleep(LOOK_EVERY)
            await engine.sweep.trim()
    return left


async def _cancel_all(engine: Engine, namespace: str) -> None:
    query = Query(namespace=namespace, states=_OPEN, limit=1000)
    for info in (await engine.views.list(query)).items:
        try:
            await engine.executions.cancel(info.id, reason="prove has ended")
        except FlowFabricError:
            continue  # it has just ended by itself


async def _drop_limits(engine: Engine, name: str) -> None:
    begin = f"{OF_TASK}{name}."
    for quota in await engine.quotas.list(after=begin):
        if quota.name.startswith(begin):
            await engine.quotas.delete(quota.name)


async def _left(engine: Engine, place: Place, lane: str | None = None) -> int:
    counts = await engine.views.counts(namespace=place.name, lane=lane)
    return sum(counts.by_state.values())
