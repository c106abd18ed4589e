"""What `run.attempts()` returns. Moments are `datetime`, attempts count from 1."""

from datetime import datetime, timedelta
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.time import optional_datetime
from flowfabric.core.execution.model import (
    Attempt,
    AttemptOutcome,
    Failure,
    Start,
    WorkerIdentity,
)
from flowfabric.worker.api.described import number_of_attempt


class RunAttempt(Struct, frozen=True, kw_only=True):
    """One attempt of a run. `number` counts from 1; `previous` is the number of the one that it
    retries, takes over or replays. `outcome` is `started` while it runs, `type` says how it began,
    `result` is the encoded value that the task returned."""

    number: int
    type: Start
    outcome: AttemptOutcome
    worker: WorkerIdentity | None
    lease_id: UUID | None
    epoch: int
    started_at: datetime | None
    ended_at: datetime | None
    previous: int | None
    failure: Failure | None
    result: bytes | None
    id: UUID | None

    @property
    def took(self) -> timedelta | None:
        """How long the attempt took; None unless it has started and ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at


def run_attempt(attempt: Attempt) -> RunAttempt:
    return RunAttempt(
        number=attempt.number,
        type=attempt.type,
        outcome=attempt.outcome,
        worker=attempt.worker,
        lease_id=attempt.lease_id,
        epoch=attempt.epoch,
        started_at=optional_datetime(attempt.started_at),
        ended_at=optional_datetime(attempt.ended_at),
        previous=number_of_attempt(attempt.previous),
        failure=attempt.failure,
        result=attempt.result,
        id=attempt.id,
    )
