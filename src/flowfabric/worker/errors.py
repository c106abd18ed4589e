"""How a handler says what should happen, and how the engine takes a handler off its slot."""

from datetime import timedelta

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.time import Millis, parse_span

LOST = "lease lost"
DRAIN = "worker stopping"
TIMED_OUT = "timed out"
OVER = "run over"
"""Why a handler was stopped; nothing it asks for afterwards is done."""


class Fail(Exception):
    """Raise it in a task to fail the run for good, whatever retries are left."""


class Retry(Exception):
    """Raise it in a task to have this attempt retried after a delay of your choice, as long as
    the task has retries left."""

    def __init__(self, reason: str = "", *, after: str | float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.after: Millis | None = None if after is None else parse_span(after, "retry")


class Unwind(BaseException):
    """Takes the handler off its slot while the run sleeps or waits.

    A BaseException, so that no `except Exception` in a handler can swallow it. Nothing is lost:
    the handler runs again from the top and recorded steps return at once.
    """


class StepsChanged(FlowFabricError):
    """The code no longer asks for the steps that are recorded.

    The run fails rather than mix two histories. Deploy the old code and replay the run to finish
    it, or submit it anew.
    """

    code = "steps_changed"


class WaitTimeout(FlowFabricError, TimeoutError):
    """Nothing came in time for a wait. Recorded: the same whenever the handler runs again."""

    code = "wait_timeout"


class WaitClosed(FlowFabricError):
    """An operator closed what a wait was for: it can never be answered. The text has the reason.
    Recorded: the same whenever the handler runs again."""

    code = "wait_closed"


class RunError(FlowFabricError):
    """A run ended, but not in success."""

    code = "run_error"

    def __init__(self, id: str, detail: str) -> None:
        super().__init__(f"{id}: {detail}" if detail else id)
        self.id = id


class RunFailed(RunError):
    """The run failed for good. `message` is what the task raised, `traceback` where (when it is
    known)."""

    code = "run_failed"

    def __init__(self, id: str, message: str, category: str, traceback: str | None) -> None:
        super().__init__(id, message)
        self.message = message
        self.category = category
        self.traceback = traceback


class RunCancelled(RunError):
    """Somebody cancelled the run; the text is the reason that was given."""

    code = "run_cancelled"


class RunExpired(RunError):
    """The run was not done by its deadline, or its last attempt took longer than its timeout."""

    code = "run_expired"


class RunSkipped(RunError):
    """The run was never started, because what it depends on did not succeed."""

    code = "run_skipped"


class FlowFailed(RunError):
    """A flow failed or was cancelled; `members` are the names of those that did not succeed."""

    code = "flow_failed"

    def __init__(self, id: str, detail: str, members: tuple[str, ...]) -> None:
        super().__init__(id, detail)
        self.members = members
