"""What a handler raises, what it catches, and what unwinds it."""

import asyncio
from datetime import datetime, timedelta

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis, parse_span

LOST = "lease lost"
DRAIN = "worker stopping"
TIMED_OUT = "timed out"
OVER = "the run is over: its context can no longer be used"
"""Why a handler was stopped. The engine then refuses everything it asks for."""


class Fail(Exception):
    """Raise it in a task to fail the run for good, even if it has retries left."""


class Retry(Exception):
    """Raise it in a task to retry after a delay of your choice, as long as the task has retries
    left."""

    def __init__(self, reason: str = "", *, after: str | float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.after: Millis | None = None if after is None else parse_span(after, "after")


class Postpone(Exception):
    """Unwinds a built-in handler that can do nothing for a while: the same attempt goes on then,
    and no retry is used."""

    def __init__(self, span: timedelta) -> None:
        super().__init__(f"postponed by {span}")
        self.delay: Millis = parse_span(span, "delay")


class Cancelled(asyncio.CancelledError):
    """Raised in the handler of a run that is being cancelled, if its task asked for a clean-up:
    once, where it waits or at its next call of the context. Catch it, clean up, and raise it again;
    the run ends as cancelled, at `until` at the latest.

    It is an `asyncio.CancelledError`, so that timeouts, task groups and `except Exception` treat it
    as the cancellation it is. Other cancellations of the handler, because its worker stops or has
    lost the run, are a plain `CancelledError`: clean up nothing then, the run goes on elsewhere.
    """

    def __init__(self, reason: str = "", until: datetime | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.until = until


class StartupFailed(FlowFabricError):
    """The lifespan of a worker failed before it yielded, so the worker did not start."""

    code = "startup_failed"


class Unwind(BaseException):
    """Unwinds a handler whose run sleeps or waits, so that its slot is free meanwhile.

    A BaseException, so that no `except Exception` in a handler swallows it. Nothing is lost: the
    handler runs again from the top, and recorded steps return at once.
    """


class StepsChanged(FlowFabricError):
    """The code asks for other steps than those that are recorded: `expected` is the recorded one,
    `asked` the one that the code asks for, if it asks for any.

    The run is blocked by code rather than mix two histories: it waits for a worker whose code fits,
    or for `flowfabric run unblock`.
    """

    code = "steps_changed"

    def __init__(self, message: str, *, expected: str = "", asked: str = "") -> None:
        super().__init__(message)
        self.expected = expected
        self.asked = asked


class WaitTimeout(FlowFabricError, TimeoutError):
    """A wait timed out. This is recorded: the handler sees it again whenever it runs again."""

    code = "wait_timeout"


class WaitClosed(FlowFabricError):
    """An operator closed the waitpoint, so that no answer can come. The text contains the reason.
    This is recorded: the handler sees it again whenever it runs again."""

    code = "wait_closed"


class ResultTimeout(FlowFabricError, TimeoutError):
    """A run or flow has not ended in time; it goes on. `id` names it, `state` is its state, and
    `why` says what it waits for."""

    code = "result_timeout"

    def __init__(self, what: str, id: object, *, state: str, why: str, report: str = "") -> None:
        because = f": {why}" if why else ""
        detail = f"{what} {id} has not ended in time, it is {state}{because}"
        super().__init__(f"{detail}\n{report}" if report else detail)
        self.id = str(id)
        self.state = state
        self.why = why


class RunError(FlowFabricError):
    """A run ended without success."""

    code = "run_error"

    def __init__(self, id: str, detail: str) -> None:
        super().__init__(f"{id}: {detail}" if detail else id)
        self.id = id


class RunFailed(RunError):
    """The run failed for good. `message` is the error of the task, `traceback` its traceback, if
    known."""

    code = "run_failed"

    def __init__(self, id: str, message: str, category: str, traceback: str | None) -> None:
        super().__init__(id, message)
        self.message = message
        self.category = category
        self.traceback = traceback


class RunCancelled(RunError):
    """The run was cancelled. The text contains the reason."""

    code = "run_cancelled"


class RunExpired(RunError):
    """The run passed its deadline, or its last attempt took longer than its timeout."""

    code = "run_expired"


class RunSkipped(RunError):
    """The run never started, because the nodes it depends on did not succeed."""

    code = "run_skipped"


class FlowFailed(RunError):
    """A flow failed or was cancelled. `members` names the nodes that did not succeed."""

    code = "flow_failed"

    def __init__(self, id: str, detail: str, members: tuple[str, ...]) -> None:
        super().__init__(id, detail)
        self.members = members
