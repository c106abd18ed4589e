"""One run that a worker executes, and how the worker stops it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from flowfabric.engine.execution.claims import Claim
from flowfabric.worker.api.task import Task
from flowfabric.worker.run.cancelling import CancelNotice
from flowfabric.worker.run.lease import Key, WorkerLease
from flowfabric.worker.run.scope import CallScope, SignalsBySuspension
from flowfabric.worker.run.steps import Work


def _nothing() -> None: ...


def _ignore(key: Key) -> None: ...


def fields_of(claim: Claim) -> dict[str, object]:
    """What records of the log carry about a claimed run."""
    return {"run": str(claim.uuid), "task": claim.kind, "attempt": claim.attempt + 1}


class ActiveRun:
    """One execution that a worker runs: its claim, and why it was stopped, if it was."""

    __slots__ = (
        "again",
        "args",
        "begun",
        "claim",
        "completed",
        "entered",
        "handler",
        "handling",
        "has_slot",
        "job",
        "key",
        "kwargs",
        "lease",
        "notice",
        "on_completed",
        "on_step",
        "payload",
        "raised",
        "received",
        "reporting",
        "result",
        "scope",
        "stopped",
        "thread",
        "timer",
        "told",
        "undos",
    )

    def __init__(
        self, claim: Claim, handler: Task[Any, Any] | None, lease: WorkerLease | None = None
    ) -> None:
        self.claim = claim
        self.handler = handler
        self.lease = lease or WorkerLease(claim)
        self.key = self.lease.key
        self.scope: CallScope | None = None
        self.notice = CancelNotice.of(claim.snapshot)
        self.told = self.notice is not None
        """Whether the handler knows that its run is being cancelled."""
        self.undos: list[Work] = []
        self.timer: asyncio.Timeout | None = None
        self.job: asyncio.Task[None] | None = None
        self.thread: Future[Any] | None = None
        self.has_slot = True
        self.entered = self.handling = self.reporting = False
        """Whether its task has begun, its handler runs, its end is being reported."""
        self.stopped = ""
        self.again = False
        self.begun = False
        self.received: SignalsBySuspension = {}
        self.payload = claim.payload
        self.raised: BaseException | None = None
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.result: object = None
        self.completed = False
        """Whether the handler ended the run in a transaction. Only the store knows whether that
        was committed."""
        self.on_completed: Callable[[Key], None] = _ignore
        self.on_step: Callable[[], None] = _nothing

    @property
    def fields(self) -> dict[str, object]:
        """What records of the log carry about this run."""
        return fields_of(self.claim)

    @property
    def error(self) -> Exception | None:
        """What the handler raised, unless it merely unwound."""
        return self.raised if isinstance(self.raised, Exception) else None

    @property
    def parked(self) -> bool:
        return self.scope is not None and self.scope.parked

    @property
    def lingers(self) -> bool:
        """Whether a plain function still runs in its thread after its run was left."""
        return self.thread is not None and not self.thread.done()

    def complete(self) -> None:
        self.completed = True
        self.on_completed(self.key)

    def notify(self, notice: CancelNotice) -> None:
        """The run is being cancelled: its handler is told where it waits or makes a call, and has
        until then to clean up."""
        if self.notice is not None or self.stopped or not self.handling:
            return
        self.notice = notice
        if self.scope is not None:
            self.scope.cancel.notify(notice)
        if self.timer is not None:
            with suppress(RuntimeError):  # it has expired
                self.timer.reschedule(None)  # the clean-up has a bound of its own

    def learn(self) -> None:
        self.told = True

    def stop(self, reason: str) -> None:
        """Cancels the handler, but never the report of how it ended; the first reason counts."""
        if self.stopped:
            return
        self.stopped = reason
        if self.scope is not None:
            self.scope.stop(reason)
        if self.job is not None and self.job is asyncio.current_task():
            # Its handler may end before it awaits anything: the cancel would hit the report.
            asyncio.get_running_loop().call_soon(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self.handling and self.job is not None:
            self.job.cancel()
