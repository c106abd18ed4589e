"""What `run.attempts()`, `run.events()` and `run.follow()` return.

Moments are `datetime`, attempts count from 1, ids are UUIDs."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import RunId, without_tags
from flowfabric.core.base.time import Millis, optional_datetime, to_datetime
from flowfabric.core.execution.event import EventKind, StoredEvent
from flowfabric.core.execution.model import (
    Attempt,
    AttemptOutcome,
    Failure,
    Outcome,
    Progress,
    Start,
    WorkerIdentity,
)
from flowfabric.worker.api.described import number_of_attempt


class RunAttempt(Struct, frozen=True, kw_only=True):
    """One attempt of a run. `number` counts from 1; `previous` is the number of the one that it
    retries, takes over or replays. `outcome` is `started` while it runs, `type` says how it began,
    `result` is the encoded value that the task returned. `suspended_at` is when it last gave up its
    worker (to wait, or because the worker stopped), `resumed_at` when a worker continued it.
    `progress` is what it reported last."""

    number: int
    type: Start
    outcome: AttemptOutcome
    worker: WorkerIdentity | None
    lease_id: UUID | None
    epoch: int
    started_at: datetime | None
    ended_at: datetime | None
    suspended_at: datetime | None
    resumed_at: datetime | None
    previous: int | None
    failure: Failure | None
    result: bytes | None
    id: UUID | None
    progress: Progress | None = None

    @property
    def took(self) -> timedelta | None:
        """How long the attempt took; None unless it has started and ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at


class RunEvent(Struct, frozen=True, kw_only=True):
    """Something that happened to a run. `seq` grows with every event of the store. `attempt` counts
    from 1. `lease` says what became of the lease (acquired, renewed, reclaimed, released, expired,
    revoked), `completion` how the run ended, `operator` what an operator did; each is None for
    other events. Moments in `detail`, such as `until` of a retry, are `datetime`; its `message`
    says why a running run failed or was cancelled."""

    seq: int
    id: RunId
    namespace: str
    lane: str
    at: datetime
    kind: EventKind
    epoch: int
    attempt: int | None
    worker: WorkerIdentity | None
    lease: str | None
    completion: Outcome | None
    operator: str | None
    reason: str | None
    detail: Mapping[str, Any] | None


def run_event(event: StoredEvent) -> RunEvent:
    if event.id is None:
        raise Invalid("an event of the worker registry belongs to no run")
    return RunEvent(
        seq=event.seq,
        id=RunId(event.id),
        namespace=event.namespace,
        lane=event.lane,
        at=to_datetime(event.at),
        kind=event.kind,
        epoch=event.epoch,
        attempt=number_of_attempt(event.attempt),
        worker=event.worker,
        lease=event.lease,
        completion=event.completion,
        operator=event.operator,
        reason=event.reason and without_tags(event.reason),
        detail=event.detail and {name: _detail(name, each) for name, each in event.detail.items()},
    )


def _detail(name: str, value: Any) -> Any:
    match value:
        case str():
            return without_tags(value)
        case int() if name == "until":
            return to_datetime(Millis(value))
        case _:
            return value


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
        suspended_at=optional_datetime(attempt.suspended_at),
        resumed_at=optional_datetime(attempt.resumed_at),
        previous=number_of_attempt(attempt.previous),
        failure=attempt.failure,
        result=attempt.result,
        id=attempt.id,
        progress=attempt.progress,
    )
