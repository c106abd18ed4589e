"""What a harness observes of running handlers: which ones wait for another run, and where to hold
one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from uuid import UUID

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import Seconds, check_seconds
from flowfabric.core.execution.frame import BEGINNING, FrameId, Visibility
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.step_order import is_named
from flowfabric.core.flow.model import Flow
from flowfabric.engine.context import EngineContext
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import Attempts, Owned
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.described import Ending
from flowfabric.engine.execution.streams import FramePage, Streams
from flowfabric.engine.execution.views import Views
from flowfabric.engine.flow.resolver import FlowResolver
from flowfabric.engine.flow.views import FlowViews
from flowfabric.worker.errors import Unwind

Key = tuple[UUID, int]

current_run: ContextVar[Key | None] = ContextVar("flowfabric_testing_run", default=None)
"""The lease under which this code runs, None in the test itself."""


class HeldHandler:
    """A place where a handler stops: right before or after a step is recorded."""

    def __init__(self, step: str, *, recorded: bool) -> None:
        self.step = step
        self.recorded = recorded
        self.reached = False
        self.over = asyncio.Event()
        self.crashed = False

    def release(self, *, crashed: bool = False) -> None:
        self.crashed = crashed
        self.over.set()


class HandlerWatch:
    """What happens in handlers without a change in the store; `moved` is set when it does."""

    def __init__(self) -> None:
        self.moved = asyncio.Event()
        self.hold: HeldHandler | None = None
        self.held: set[Key] = set()
        self.awaited: dict[Key, list[ExecutionId]] = {}

    @contextmanager
    def waiting(self, key: Key, id: ExecutionId) -> Iterator[None]:
        """The handler under this lease waits for the end of another run."""
        waits = self.awaited.setdefault(key, [])
        waits.append(id)
        self.moved.set()
        try:
            yield
        finally:
            waits.remove(id)
            if not waits:
                self.awaited.pop(key, None)

    async def pass_by(self, claim: Claim, step: Step, *, recorded: bool) -> None:
        """Holds the handler here if it is to stop at this step."""
        hold = self.hold
        if hold is None or hold.reached or hold.recorded is not recorded:
            return
        if not is_named(step.name, hold.step):
            return
        hold.reached = True
        key = claim.uuid, claim.epoch
        self.held.add(key)
        self.moved.set()
        try:
            await hold.over.wait()
        finally:
            self.held.discard(key)
        if hold.crashed:
            raise Unwind("the worker crashed")


class WatchedAttempts(Attempts):
    """Records steps, and holds the handler there when a test asks for it."""

    def __init__(self, engine: Engine, watch: HandlerWatch) -> None:
        lines, follow_ons = engine._releases.lines, engine._follow_ons
        super().__init__(engine._context, engine.claims, lines, follow_ons)
        self._watch = watch

    async def record_step(self, owned: Owned, step: Step) -> None:
        if not isinstance(owned, Claim):
            return await super().record_step(owned, step)
        await self._watch.pass_by(owned, step, recorded=False)
        await super().record_step(owned, step)
        return await self._watch.pass_by(owned, step, recorded=True)


class WatchedViews(Views):
    """Waiting for a run in the harness: a handler waits, and the test itself drives the run."""

    def __init__(
        self,
        context: EngineContext,
        watch: HandlerWatch,
        drive: Callable[[ExecutionId, float | None], Awaitable[None]],
    ) -> None:
        super().__init__(context)
        self._watch = watch
        self._drive = drive

    async def wait(self, id: str, timeout: Seconds | None = None) -> Ending:
        key, waited_for = current_run.get(), ExecutionId(id)
        if key is None:
            await self._drive(waited_for, seconds_of(timeout))
            return await super().wait(id)
        with self._watch.waiting(key, waited_for):
            return await super().wait(id, timeout)


class WatchedFlowViews(FlowViews):
    """Waiting for a flow in the harness: the test itself drives it."""

    def __init__(
        self,
        context: EngineContext,
        resolver: FlowResolver,
        drive: Callable[[UUID, float | None], Awaitable[None]],
    ) -> None:
        super().__init__(context, resolver)
        self._drive = drive

    async def wait(self, id: UUID, timeout: Seconds | None = None) -> Flow:
        if current_run.get() is not None:
            return await super().wait(id, timeout)
        await self._drive(id, seconds_of(timeout))
        return await super().wait(id)


class WatchedStreams(Streams):
    """Following output in the harness: the test itself drives the run to its end."""

    def __init__(
        self,
        context: EngineContext,
        attempts: Attempts,
        drive: Callable[[ExecutionId, float | None], Awaitable[None]],
    ) -> None:
        super().__init__(context, attempts)
        self._drive = drive
        context.post_commit.subscribe(self.watcher)

    async def tail(
        self,
        id: str,
        attempt: int,
        *,
        after: str | FrameId = BEGINNING,
        block: float = 0.0,
        limit: int = 50,
        visibility: Visibility = Visibility.ALL,
    ) -> FramePage:
        look = partial(super().tail, id, attempt, after=after, limit=limit, visibility=visibility)
        if block and current_run.get() is None:
            page = await look()
            if page.frames or page.closed is not None:
                return page
            await self._drive(ExecutionId(id), None)
        return await look(block=block)


def seconds_of(timeout: Seconds | None) -> float | None:
    return None if timeout is None else check_seconds(timeout, "timeout")
