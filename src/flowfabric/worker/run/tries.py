"""The tries of a step that has retries, counted in the journal.

Each try that fails and is followed by another is recorded beside the order of calls, with its error
and the moment of the next try. A step that succeeds at the first try writes nothing more than its
result.

Example: `charge` has 4 retries with pauses of 2, 10, 50 and 250 seconds. Its first try fails: that
is recorded, and the worker waits 2 seconds. The second one fails: that is recorded, and the run
gives its slot back. Ten seconds later a worker claims it, the handler runs from the top, finds two
failed tries of `charge`, and makes the third. If the worker dies meanwhile, the next one makes the
third.
"""

import asyncio
import contextvars
import logging
from contextlib import nullcontext

import msgspec
from msgspec import Raw

from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.core.execution.history import plain_name
from flowfabric.core.execution.retry import RetryPolicy, backoff_delay
from flowfabric.core.execution.step import FailedTry, Recorded
from flowfabric.worker.run.attempt_log import first_line, moment
from flowfabric.worker.run.branches import StepPlace
from flowfabric.worker.run.failure import (
    MAX_MESSAGE,
    begin_in_user_code,
    storable,
    text_of,
    type_of,
)
from flowfabric.worker.run.scope import CallScope

log = logging.getLogger("flowfabric.worker")

SLOT_KEPT_BELOW = Millis(5_000)
"""Before the next try of a step, a worker waits this long at most; a pause of this length, or a
longer one, gives the slot back."""

skip_pauses: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "flowfabric_skip_pauses", default=False
)
"""Whether a pause that keeps the slot is left out, for tests, which wait for nothing."""


class Tries:
    """The tries of one call of a step. `number` is that of the current or next one, from 1."""

    def __init__(
        self, scope: CallScope, place: StepPlace, policy: RetryPolicy, *, under_way: bool
    ) -> None:
        """`under_way` says that the caller has counted the call as under way."""
        self._scope = scope
        self._engine = scope.engine
        self._place = place
        self._policy = policy
        self._under_way = under_way
        self._failed = 0
        self._began = Millis(0)

    @property
    def of(self) -> int:
        return self._policy.max_retries + 1

    @property
    def number(self) -> int:
        return min(self._failed + 1, self.of)

    @property
    def is_last(self) -> bool:
        return self.number == self.of

    async def resume(self) -> None:
        """Counts the tries that are recorded, and waits until the next one is due."""
        last = self._scope.journal.last_try(self._place)
        if last is not None:
            self._failed, record = last
            await self._pause(record)
        self._began = self._engine.now()

    async def failed(self, error: Exception) -> None:
        """Records a try that failed, and waits until the next one is due."""
        pause = backoff_delay(self._policy, self._failed, self._engine.jitter())
        now = self._engine.now()
        record = Recorded(
            value=Raw(msgspec.json.encode(self._failed_by(error))),
            until=Millis(now + pause),
            started_at=self._began,
            ended_at=now,
        )
        await self._scope.journal.record_try(self._place, self.number, record)
        self._log(error, Millis(now + pause))
        self._failed += 1
        await self._pause(record)
        self._began = self._engine.now()

    def _failed_by(self, error: Exception) -> FailedTry:
        text = storable(text_of(error)[:MAX_MESSAGE])
        return FailedTry(self.number, self.of, self._scope.claim.attempt, text)

    async def _pause(self, failed: Recorded) -> None:
        """Until the next try is due: with the slot if that is soon after the last one failed.
        Otherwise without, as a sleep of the handler, which never returns unless something else of
        the handler is under way beside it."""
        due, failed_at = failed.until or Millis(0), failed.ended_at or Millis(0)
        left = due - self._engine.now()
        where = self._scope.journal.place_of_try(self._place, self._failed)
        if left > 0 and due - failed_at >= SLOT_KEPT_BELOW:
            with self._scope.branches.resting() if self._under_way else nullcontext():
                await self._scope.parking.sleep(where, due, known=True)
        elif left > 0 and not skip_pauses.get():
            await asyncio.sleep(left / 1000)
        self._scope.check_running()
        await self._scope.journal.confirm()

    def _log(self, error: Exception, next_at: Millis) -> None:
        claim, step = self._scope.claim, plain_name(self._place.name)
        run, at = str(claim.uuid), to_datetime(next_at)
        text = storable(text_of(error))
        begin_in_user_code(error)
        log.warning(
            "step %s of run %s of task %s failed, try %d of %d, next at %s: %s",
            step,
            run,
            claim.kind,
            self.number,
            self.of,
            moment(at),
            first_line(text),
            extra={
                "run": run,
                "task": claim.kind,
                "attempt": claim.attempt + 1,
                "step": step,
                "try": self.number,
                "tries": self.of,
                "retry_at": at,
                "error": text,
                "error_type": type_of(error),
            },
            exc_info=error,
        )
