"""What `run.describe()` and `run.cancel()` return, in the types of the public API.

Moments are `datetime`, attempts count from 1, ids are UUIDs."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.ids import RunId, without_tags
from flowfabric.core.base.time import Millis, iso, optional_datetime, to_datetime
from flowfabric.core.execution.fork import FORKED_FROM
from flowfabric.core.execution.grant_record import Grant, GrantKind
from flowfabric.core.execution.model import Failure, Outcome, Progress
from flowfabric.core.execution.outcome import Cleanup
from flowfabric.core.execution.status import Blocking, PublicState, Vector
from flowfabric.engine.execution.described import Description, Info, LeaseView

_TIMED = frozenset({Blocking.DELAY, Blocking.RETRY_BACKOFF, Blocking.RESUME_DELAY})
"""What a run waits for whose detail names a moment."""

_FAILED = re.compile(r"attempt ([0-9]+) failed(?=, retry after )")
_MILLIS = re.compile(r"\b[0-9]+$")


class RunLease(Struct, frozen=True, kw_only=True):
    """The lease of an active run: which worker has it, for which attempt (from 1), until when."""

    lease_id: UUID
    epoch: int
    worker: str
    instance: str
    attempt: int
    expires_at: datetime
    renewed_at: datetime | None


class RunGrant(Struct, frozen=True, kw_only=True):
    """The worker that a run is reserved for, until when and on what grounds."""

    id: str
    kind: GrantKind
    worker: str
    instance: str
    lane: str
    granted_at: datetime
    expires_at: datetime
    capabilities: tuple[str, ...]
    capability_hash: str
    route_snapshot: str | None
    admission_summary: str | None


class RunCleanup(Struct, frozen=True, kw_only=True):
    """A clean-up that is going on: the run ends with `outcome`, at `until` at the latest."""

    since: datetime
    until: datetime
    epoch: int
    outcome: Outcome


class RunCancel(Struct, frozen=True, kw_only=True):
    """The answer to a cancel. `until` is None if the run has ended; otherwise its handler cleans
    up, and the run ends then at the latest."""

    id: RunId
    until: datetime | None


class RunDescription(Struct, frozen=True, kw_only=True):
    """Everything known about a run except its arguments and its result. `attempt` is the number of
    the running, interrupted or last attempt, from 1; None between two. `attempts_made` counts them.
    `blocking` says in one word what the run waits for, `blocking_detail` in a sentence."""

    id: RunId
    kind: str
    namespace: str
    lane: str
    flow: UUID | None
    priority: int
    vector: Vector
    state: PublicState
    blocking: Blocking
    blocking_detail: str | None
    attempt: int | None
    attempt_id: UUID | None
    attempts_made: int
    lease: RunLease | None
    grant: RunGrant | None
    retries: int
    reclaims: int
    replays: int
    epoch: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    deadline_at: datetime | None
    touched_at: datetime
    failure: Failure | None
    cancel_reason: str | None
    cancelled_by: str | None
    cleanup: RunCleanup | None
    progress: Progress | None
    capabilities: tuple[str, ...]
    version: str | None
    forked_from: RunId | None
    forked_at: str | None
    creator: str | None
    encoding: str | None
    result_encoding: str | None
    key: str | None
    tags: Mapping[str, str]

    @property
    def task(self) -> str:
        """The name of the task; the same as `kind`."""
        return self.kind


def number_of_attempt(index: int | None) -> int | None:
    """As people count: the first attempt is number 1."""
    return None if index is None else index + 1


def describe_run(facts: Description) -> RunDescription:
    return RunDescription(
        id=RunId(facts.id),
        kind=facts.kind,
        namespace=facts.namespace,
        lane=facts.lane,
        flow=facts.flow,
        priority=facts.priority,
        vector=facts.vector,
        state=facts.state,
        blocking=facts.blocking,
        blocking_detail=blocked_because(facts.blocking, facts.blocking_detail),
        attempt=number_of_attempt(facts.attempt),
        attempt_id=facts.attempt_id,
        attempts_made=facts.attempts_made,
        lease=None if facts.lease is None else _lease(facts.lease),
        grant=None if facts.grant is None else _grant(facts.grant),
        retries=facts.retries,
        reclaims=facts.reclaims,
        replays=facts.replays,
        epoch=facts.epoch,
        created_at=to_datetime(facts.created_at),
        started_at=optional_datetime(facts.started_at),
        ended_at=optional_datetime(facts.ended_at),
        deadline_at=optional_datetime(facts.deadline_at),
        touched_at=to_datetime(facts.touched_at),
        failure=facts.failure,
        cancel_reason=facts.cancel_reason and without_tags(facts.cancel_reason),
        cancelled_by=facts.cancelled_by,
        cleanup=None if facts.cleanup is None else _cleanup(facts.cleanup),
        progress=facts.progress,
        capabilities=facts.capabilities,
        version=facts.version,
        forked_from=None if facts.forked_from is None else RunId(facts.forked_from),
        forked_at=facts.forked_at,
        creator=facts.creator,
        encoding=facts.encoding,
        result_encoding=facts.result_encoding,
        key=facts.key,
        tags=_tags(facts.tags),
    )


def blocked_because(
    blocking: Blocking, detail: str | None, write: Callable[[Millis], str] = iso
) -> str | None:
    """The detail of what a run waits for as people read it: `attempt 1 failed, retry after
    2026-03-01T08:00:05.000Z`. What an operator wrote stays as it is."""
    if detail is not None and blocking in _TIMED:
        detail = _FAILED.sub(lambda match: f"attempt {int(match[1]) + 1} failed", detail)
        detail = _MILLIS.sub(lambda match: write(Millis(int(match[0]))), detail)
    return detail and without_tags(detail)


def detail_of(info: Info) -> str | None:
    """What a listed run waits for, as people read it."""
    return blocked_because(info.vector.blocking, info.blocking_detail)


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tag of a fork names its source in the form of the engine."""
    return {
        name: without_tags(value) if name == FORKED_FROM else value for name, value in tags.items()
    }


def _lease(lease: LeaseView) -> RunLease:
    return RunLease(
        lease_id=lease.lease_id,
        epoch=lease.epoch,
        worker=lease.worker,
        instance=lease.instance,
        attempt=lease.attempt + 1,
        expires_at=to_datetime(lease.expires_at),
        renewed_at=optional_datetime(lease.renewed_at),
    )


def _grant(grant: Grant) -> RunGrant:
    return RunGrant(
        id=grant.id,
        kind=grant.kind,
        worker=grant.worker,
        instance=grant.instance,
        lane=grant.lane,
        granted_at=to_datetime(grant.granted_at),
        expires_at=to_datetime(grant.expires_at),
        capabilities=grant.capabilities,
        capability_hash=grant.capability_hash,
        route_snapshot=grant.route_snapshot,
        admission_summary=grant.admission_summary,
    )


def _cleanup(cleanup: Cleanup) -> RunCleanup:
    return RunCleanup(
        since=to_datetime(cleanup.since),
        until=to_datetime(cleanup.until),
        epoch=cleanup.epoch,
        outcome=cleanup.outcome,
    )
