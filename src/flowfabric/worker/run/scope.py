"""One call of a handler: what the parts of its context share, and how the worker steers it."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from flowfabric.core.base.errors import LeaseLost
from flowfabric.core.execution.outcome import CLEANUP_TIME
from flowfabric.core.wait.model import Signal
from flowfabric.engine.engine import Engine
from flowfabric.worker.errors import LOST, OVER, StepsChanged, Unwind
from flowfabric.worker.run.branches import Branches, Halt, StepPlace
from flowfabric.worker.run.callers import Callers
from flowfabric.worker.run.cancelling import CancelNotice, CancelPoint
from flowfabric.worker.run.hooks import Hooks, WorkerHooks
from flowfabric.worker.run.journal import Journal
from flowfabric.worker.run.lease import WorkerLease
from flowfabric.worker.run.parking import Parking
from flowfabric.worker.run.threads import Threads
from flowfabric.worker.run.until_available import until_available

if TYPE_CHECKING:
    from flowfabric.worker.run.steps import Work

T = TypeVar("T")

SignalsBySuspension = dict[UUID, list[Signal]]
"""The signals that ended waits. They never change, so one read serves every call of a handler."""


def _nothing() -> None: ...


class CallScope:
    """One call of a handler under one lease.

    The journal, the parking and the cancel point are made when they are first used: most handlers
    need none of them.
    """

    def __init__(
        self,
        engine: Engine,
        lease: WorkerLease,
        threads: Threads,
        *,
        callers: Callers,
        on_completed: Callable[[], None] = _nothing,
        on_step: Callable[[], None] = _nothing,
        again: bool = False,
        hooks: WorkerHooks | None = None,
    ) -> None:
        """`again` says that the handler was called before under the same lease."""
        self.engine = engine
        self.lease = lease
        self.claim = lease.claim
        self.threads = threads
        self.hooks = hooks or WorkerHooks(Hooks())
        self.loop = callers.loop
        self.callers = callers
        self.halt = Halt()
        self.completed = False
        self.undos: list[Work] = []
        self._announced = self.claim.snapshot.life.undo_time is not None
        self._notice: CancelNotice | None = None
        self._on_cancelled: Callable[[], None] = _nothing
        self._on_completed = on_completed
        self.received: SignalsBySuspension = {}
        """What the waits of this handler have read, in earlier calls as well."""
        self._on_step = on_step
        self._again = again
        self._caller: object = None
        self._made: Journal | None = None
        self._cancel: CancelPoint | None = None

    def complete(self) -> None:
        """The handler has ended its run in a transaction of the application."""
        self.completed = True
        self._on_completed()

    @property
    def journal(self) -> Journal:
        if self._made is None:
            self._made = Journal(
                self.engine,
                self.lease,
                self.halt,
                Branches(self.halt, self.cancel, self.callers, self._caller),
                self.cancel,
                again=self._again,
                on_step=self._on_step,
            )
        return self._made

    @property
    def cancel(self) -> CancelPoint:
        if self._cancel is None:
            self._cancel = CancelPoint(self._is_stopped, self._clean_up, self.callers, self._notice)
        return self._cancel

    @property
    def branches(self) -> Branches:
        return self.journal.branches

    @cached_property
    def parking(self) -> Parking:
        return Parking(self.engine, self.lease, self.halt, self.journal, again=self._again)

    def until_available(self, work: Callable[[], Awaitable[T]]) -> Coroutine[Any, Any, T]:
        """What `work` gives, however long the store is away, unless the run is stopped."""
        return until_available(work, self.halt.is_stopped)

    def key_at(self, place: StepPlace) -> str:
        """An idempotency key: the same whenever the handler comes to this place, and at no
        other."""
        generation = self.claim.snapshot.life.generation
        return f"{self.claim.uuid}:{generation}:{place.branch}:{place.position}"

    def check_running(self) -> None:
        """Unwinds the handler if it was stopped or is parked; raises Cancelled if its run is being
        cancelled."""
        if self._is_stopped():
            raise Unwind(self.halt.reason)
        self.cancel.check()

    def _is_stopped(self) -> bool:
        return self.halt.is_stopped() or self.parked

    def expect_cancel(self, notice: CancelNotice | None, on_cancelled: Callable[[], None]) -> None:
        """`notice` is there if the run is being cancelled already. `on_cancelled` is called when
        the handler learns of a cancel. Called before anything else."""
        self._notice, self._on_cancelled = notice, on_cancelled

    async def announce_undos(self) -> None:
        """Says in the store that the run has compensations, once."""
        if not self.undos or self._announced:
            return
        span = self.claim.policy.cleanup_time or CLEANUP_TIME
        try:
            await self.until_available(lambda: self.engine.attempts.compensate(self.claim, span))
        except LeaseLost:
            self.stop(LOST)
            raise
        self._announced = True

    def _clean_up(self) -> None:
        self.branches.clean_up()
        self._on_cancelled()

    # -- for the worker

    @property
    def parked(self) -> bool:
        """Whether the handler unwinds because it sleeps or waits."""
        return self._made is not None and self._made.branches.parked

    @property
    def refused(self) -> StepsChanged | None:
        """That the handler asked for other steps than the recorded ones."""
        return None if self._made is None else self._made.branches.refused

    def adopt(self, caller: object) -> None:
        """The handler runs in this task or thread."""
        self._caller = caller
        if self._made is not None:
            self._made.branches.adopt(self._caller)

    async def load(self) -> None:
        """Reads what earlier calls of the handler have recorded."""
        await self.journal.load()

    def stop(self, reason: str) -> None:
        """From now on the engine does nothing that this handler asks for."""
        self.halt.stop(reason)

    def close(self) -> None:
        """The handler has ended; tasks and threads it left running can no longer act."""
        self.halt.stop(OVER)
        self._caller = None  # a task that refers to itself would wait for the garbage collector
        if self._cancel is not None:
            self._cancel.close()
        if self._made is not None:
            self._made.branches.close()

    async def finish(self) -> None:
        """Checks that the handler asked for every step that its earlier calls have recorded."""
        if self._made is not None:
            await self._made.finish()

    @property
    def is_continued(self) -> bool:
        """Whether steps may be recorded: the handler was called before, or the run was given
        steps."""
        return self._again or self.claim.may_have_steps

    async def release(self) -> bool:
        """Suspends the run; True when what it waits for is there and the handler is called again
        at once."""
        await self.announce_undos()
        return await self.parking.release()
