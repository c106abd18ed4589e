"""How a handler learns that its run is being cancelled: `Cancelled` is raised in it, once.

A coroutine is interrupted where it waits, a plain function at its next call of the context. From
then on its calls are recorded in a branch of their own, so that a clean-up that is interrupted
continues elsewhere, wherever in the code the cancel came:

    recorded        the handler                  the clean-up
    a               a, then b is cut off         undo_a is recorded in the branch ~~
    a, ~~/undo_a    another worker: a returns    b is not begun: Cancelled is raised there again,
                    what is recorded             and undo_a returns what is recorded
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from types import CodeType, coroutine
from typing import Any

from msgspec import Struct

from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.model import Outcome, Snapshot
from flowfabric.worker.errors import Cancelled, Unwind
from flowfabric.worker.run.callers import Callers

Call = tuple[str, int]
"""A recorded call: its branch and its position."""


class CancelNotice(Struct, frozen=True):
    """What a handler is told. One whose run has `failed` before is only unwound: it has caught or
    raised its error already, and now its compensations run."""

    since: Millis
    until: Millis
    reason: str = ""
    failed: bool = False

    @classmethod
    def of(cls, snapshot: Snapshot) -> "CancelNotice | None":
        life = snapshot.head.life
        cleanup = life.cleanup
        if cleanup is None:
            return None
        return cls(
            cleanup.since,
            cleanup.until,
            life.cancel_reason or "",
            cleanup.outcome is not Outcome.CANCELLED,
        )


def _always() -> bool:
    return True


def _nothing() -> None: ...


class CancelPoint:
    """Where `Cancelled` is raised in one call of a handler. `stopped` says that the handler was
    stopped or is parked: then it unwinds without it."""

    def __init__(
        self,
        stopped: Callable[[], bool],
        on_raised: Callable[[], None],
        callers: Callers,
        notice: CancelNotice | None = None,
    ) -> None:
        self.notice = notice
        self.raised = False
        self._due = False
        self._stopped = stopped
        self._on_raised = on_raised
        self._caller = callers.current
        self._task: asyncio.Task[Any] | None = None
        self._interrupted = False
        self._shields = 0
        self._protected = False
        self._left: set[Call] = set()
        self._blocked: set[Future[Any]] = set()

    def close(self) -> None:
        """The call of the handler is over, so it is stopped for ever. What it was told by is let
        go: that refers to this."""
        self._stopped, self._on_raised = _always, _nothing

    # -- in the event loop

    def notify(self, notice: CancelNotice) -> None:
        """The run is being cancelled while its handler runs."""
        if self.notice is None:
            self.notice = notice
            self._protected = self._shields > 0
            self._raise_soon()

    def replay(self, calls: Iterable[Call]) -> None:
        """The handler is called for its clean-up: `calls` are recorded, and it gets all of them
        before `Cancelled` is raised."""
        if self.notice is not None and not self.raised:
            self._left = set(calls)

    def passed(self, call: Call) -> None:
        """The handler got what is recorded for a call."""
        if self.notice is None or self.raised:
            return
        self._left.discard(call)
        self._protected = self._shields > 0
        if not self._left:
            self._raise_soon()

    async def reached(self, *, beside: bool) -> None:
        """The handler asks for what is not recorded: in a clean-up nothing new begins. `beside`
        says that one of several things asks which the handler waits for."""
        if self.notice is None or self.raised or (self._shields and self._protected):
            return
        if self._is_here() and not beside:
            raise self.take()
        self._shields = 0
        self._raise_soon()
        await asyncio.Event().wait()  # until the handler, which waits for this, is interrupted

    def is_over(self, now: Millis) -> bool:
        """Whether the time to clean up is over."""
        return self.notice is not None and self.notice.until <= now

    def lasts_beyond(self, until: Millis) -> bool:
        """Whether a sleep until then was going on when the run was cancelled."""
        return self.notice is not None and not self.raised and until > self.notice.since

    def begin(self) -> None:
        """The handler begins. If nothing is left to be replayed, `Cancelled` is raised where it
        first waits or makes a call."""
        if self.notice is not None and not self._left:
            self._raise_soon()

    def _raise_soon(self) -> None:
        if self.raised or self._shields:
            return
        self._due = True
        for future in tuple(self._blocked):
            future.cancel()
        if (task := self._task) is not None:
            task.get_loop().call_soon(self._interrupt)

    def _interrupt(self) -> None:
        if self._due and self._task is not None and not self._interrupted and not self._stopped():
            self._interrupted = True
            self._task.cancel()

    @coroutine
    def drive(self, handler: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Runs the handler. The interruption becomes `Cancelled` on its way in."""
        self._task = asyncio.current_task()
        self.begin()
        resume: Callable[[Any], Any] = handler.send
        value: Any = None
        try:
            while True:
                try:
                    awaited = resume(value)
                except StopIteration as end:
                    return end.value
                try:
                    value, resume = (yield awaited), handler.send
                except GeneratorExit:
                    handler.close()
                    raise
                except BaseException as error:
                    value, resume = self._translated(error), handler.throw
        finally:
            self._task = None

    def _translated(self, error: BaseException) -> BaseException:
        if not isinstance(error, asyncio.CancelledError) or not self._interrupted:
            return error
        self._interrupted = False
        if self._stopped() or not self._due:
            return error
        if self._task is not None:
            self._task.uncancel()
        return self.take()

    # -- where the handler runs

    def check(self) -> None:
        """Raises `Cancelled` in a handler that makes a call or asks whether it goes on."""
        if self._due and not self.raised and self._is_here():
            raise self.take()

    def _is_here(self) -> bool:
        """Whether this is called by the handler itself, not by what it does beside. A plain
        function has no task."""
        return self._task is None or self._caller() is self._task

    def take(self) -> BaseException:
        """What is raised in the handler, which is cleaning up from now on."""
        notice, self._due = self.notice, False
        if not self.raised:
            self.raised = True
            self._on_raised()
        if notice is None or notice.failed:
            return Unwind("its compensations are next")
        return Cancelled(notice.reason, to_datetime(notice.until))

    def enter_shield(self) -> None:
        self.check()
        self._shields += 1

    def leave_shield(self, *, failed: bool) -> None:
        """The cancel that was kept away meanwhile is raised here, unless the block itself has
        `failed`: then at the next call."""
        self._shields = max(0, self._shields - 1)
        if self._shields or self.notice is None or self.raised:
            return
        self._protected = False
        self._raise_soon()
        if not failed:
            self.check()

    def block(self, future: "Future[Any]") -> Any:
        """The result of what a plain function waits for; the cancel interrupts the wait."""
        self._blocked.add(future)
        try:
            if self._due and not self._shields:
                future.cancel()
            return future.result()
        except BaseException:
            if future.cancelled() and self.notice is not None and not self._stopped():
                raise self.take() from None
            raise
        finally:
            self._blocked.discard(future)


def catches_cancelled(function: Callable[..., Any]) -> bool:
    """Whether the code of a function names `Cancelled`: it wants to clean up then."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    known = {**getattr(function, "__globals__", {})}
    cells = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False)
    for name, cell in cells:
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return any(known.get(name) is Cancelled or _is_ours(name, known) for name in _names(code))


def _is_ours(name: str, known: dict[str, Any]) -> bool:
    """`flowfabric.Cancelled`, or one that is imported inside the function."""
    return name == Cancelled.__name__ and name not in known


def _names(code: CodeType) -> Iterable[str]:
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
