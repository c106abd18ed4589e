"""Executions as callers see them: values that are made of a snapshot."""

from collections.abc import Mapping
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import NO_TIME, Millis
from flowfabric.core.execution.failures import FailureGroup
from flowfabric.core.execution.grant import grant_at
from flowfabric.core.execution.grant_record import Grant
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Failure,
    Flags,
    Outcome,
    Progress,
    Ready,
    Snapshot,
)
from flowfabric.core.execution.outcome import Cleanup
from flowfabric.core.execution.status import (
    Blocking,
    PublicState,
    Vector,
    blocking_detail,
    vector,
)
from flowfabric.core.execution.versions import version_of, without_versions
from flowfabric.core.explain.summary import summarise_wait
from flowfabric.core.wait.resume import suspension_of
from flowfabric.store.queries import Detail


class LeaseView(Struct, frozen=True):
    lease_id: UUID
    epoch: int
    worker: str
    instance: str
    attempt: int
    expires_at: Millis
    renewed_at: Millis | None


class Description(Struct, frozen=True, kw_only=True):
    """Everything about one execution except its payload and result. `waitpoint` is the first one
    that it waits at while it is suspended."""

    id: ExecutionId
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
    lease: LeaseView | None
    grant: Grant | None = None
    waitpoint: UUID | None = None
    retries: int
    reclaims: int
    replays: int
    epoch: int
    created_at: Millis
    started_at: Millis | None
    ended_at: Millis | None
    deadline_at: Millis | None
    touched_at: Millis
    failure: Failure | None
    cancel_reason: str | None
    cancelled_by: str | None
    cleanup: Cleanup | None = None
    progress: Progress | None
    capabilities: tuple[str, ...]
    version: str | None = None
    forked_from: ExecutionId | None = None
    forked_at: str | None = None
    creator: str | None
    encoding: str | None
    result_encoding: str | None = None
    key: str | None
    tags: Mapping[str, str]


class Info(Struct, frozen=True, kw_only=True):
    """What a list shows of an execution. `waits_for` says in a few words what it waits for, until
    `due_at` if the wait ends by itself; `failure` has no traceback (`describe` has)."""

    id: ExecutionId
    kind: str
    namespace: str
    lane: str
    priority: int
    state: PublicState
    vector: Vector
    created_at: Millis
    started_at: Millis | None
    ended_at: Millis | None
    attempt: int | None
    attempts_made: int
    flow: UUID | None
    blocking_detail: str | None
    version: str | None = None
    waits_for: str | None = None
    due_at: Millis | None = None
    failure: Failure | None = None
    cancel_reason: str | None = None


class ExecutionContext(Struct, frozen=True):
    """What a handler needs to run."""

    kind: str
    payload: bytes
    encoding: str | None
    tags: Mapping[str, str]


class Ending(Struct, frozen=True):
    id: ExecutionId
    outcome: Outcome
    result: bytes | None
    failure: Failure | None
    ended_at: Millis
    reason: str | None = None


class Infos(Struct, frozen=True):
    """A page. There are more, even after a short page, unless `cursor` is None. `unreadable` are
    the uuids of executions on this page that cannot be read; the log says why."""

    items: tuple[Info, ...]
    cursor: str | None
    unreadable: tuple[UUID, ...] = ()


class PartitionPage(Struct, frozen=True):
    """Ids of one partition. There are more, even after a short page, unless `cursor` is None."""

    ids: tuple[ExecutionId, ...]
    cursor: ExecutionId | None


class Failures(Struct, frozen=True):
    """Failed executions by error. Unless `complete`, there are earlier ones that were not read:
    only those that failed after `read_since` were."""

    groups: tuple[FailureGroup, ...]
    complete: bool
    read_since: Millis | None = None


class CleanupRequest(Struct, frozen=True):
    """The owner of an execution must stop and clean up, until `until` at the latest; the execution
    then ends with `outcome`."""

    until: Millis
    outcome: Outcome
    reason: str

    @classmethod
    def of(cls, snapshot: Snapshot) -> "CleanupRequest | None":
        cleanup, life = snapshot.life.cleanup, snapshot.life
        if cleanup is None:
            return None
        return cls(cleanup.until, cleanup.outcome, life.cancel_reason or "")


def info_of(snapshot: Snapshot) -> Info:
    execution, life, status = snapshot.execution, snapshot.life, vector(snapshot)
    wait = summarise_wait(snapshot)
    return Info(
        id=execution.id,
        kind=execution.kind,
        namespace=execution.route.namespace,
        lane=execution.route.lane,
        priority=snapshot.priority,
        state=status.public,
        vector=status,
        created_at=execution.created_at,
        started_at=snapshot.started_at,
        ended_at=ended_at_of(snapshot),
        attempt=snapshot.current_attempt,
        attempts_made=snapshot.attempts_made,
        flow=execution.flow_joined,
        blocking_detail=blocking_detail(snapshot),
        version=version_of(execution.route),
        waits_for=None if wait is None else wait.text,
        due_at=None if wait is None else wait.due_at,
        failure=without_traceback(life.failure),
        cancel_reason=life.cancel_reason,
    )


def describe(detail: Detail, now: Millis) -> Description:
    """As it is seen at this moment."""
    snapshot = detail.snapshot
    seen = _description(detail, snapshot)
    return replace(
        seen,
        grant=grant_at(snapshot, now),
        waitpoint=_current_waitpoint(snapshot),
        touched_at=max(seen.touched_at, min(_admitted_at(snapshot), now)),
    )


def _description(detail: Detail, snapshot: Snapshot) -> Description:
    execution, life, status = snapshot.execution, snapshot.life, vector(snapshot)
    return Description(
        id=execution.id,
        kind=execution.kind,
        namespace=execution.route.namespace,
        lane=execution.route.lane,
        flow=execution.flow_joined,
        priority=snapshot.priority,
        vector=status,
        state=status.public,
        blocking=status.blocking,
        blocking_detail=blocking_detail(snapshot),
        attempt=snapshot.current_attempt,
        attempt_id=snapshot.attempt_id,
        attempts_made=snapshot.attempts_made,
        lease=_lease_view(snapshot),
        retries=life.retries,
        reclaims=max(0, snapshot.reclaims),
        replays=life.replays,
        epoch=snapshot.head.epoch,
        created_at=execution.created_at,
        started_at=snapshot.started_at,
        ended_at=ended_at_of(snapshot),
        deadline_at=snapshot.deadline_at,
        touched_at=max(detail.touched_at, life.touched_at or NO_TIME),
        failure=life.failure,
        cancel_reason=life.cancel_reason,
        cancelled_by=life.cancelled_by,
        cleanup=None if isinstance(snapshot.state, Ended) else life.cleanup,
        progress=_progress(detail, snapshot.current_attempt),
        capabilities=without_versions(execution.route.capabilities),
        version=version_of(execution.route),
        forked_from=_source_of(execution.facts.forked_from),
        forked_at=execution.facts.forked_at,
        creator=execution.facts.creator,
        encoding=execution.facts.encoding,
        result_encoding=life.result_encoding,
        key=execution.facts.key,
        tags=dict(sorted(detail.tags.items())),
    )


def _progress(detail: Detail, attempt: int | None) -> Progress | None:
    return None if attempt is None else detail.progress.get(attempt)


def _current_waitpoint(snapshot: Snapshot) -> UUID | None:
    suspension = suspension_of(snapshot)
    bound = () if suspension is None else suspension.arms[0].bound
    return bound[0].id if bound else None


def _admitted_at(snapshot: Snapshot) -> Millis:
    """When its limits let it in, which no event shows. The moments of many that come at once run a
    little ahead of the clock, so that each has its own."""
    limited = snapshot.head.flags & Flags.LIMITS and isinstance(snapshot.state, Ready)
    return snapshot.admitted_at if limited else NO_TIME


def _source_of(id: str | None) -> ExecutionId | None:
    return None if id is None else ExecutionId(id)


def _lease_view(snapshot: Snapshot) -> LeaseView | None:
    match snapshot.state:
        case Active(lease=lease):
            return LeaseView(
                lease_id=lease.id,
                epoch=snapshot.head.epoch,
                worker=lease.worker.id,
                instance=lease.worker.instance,
                attempt=lease.attempt,
                expires_at=lease.expires_at,
                renewed_at=lease.renewed_at,
            )
        case _:
            return None


def ending_of(id: ExecutionId, snapshot: Snapshot) -> Ending:
    ended = snapshot.state
    if not isinstance(ended, Ended):
        raise Invalid(f"{snapshot.run} has not ended")
    return Ending(
        id=id,
        outcome=ended.outcome,
        result=ended.result,
        failure=snapshot.life.failure,
        ended_at=ended.ended_at,
        reason=snapshot.life.cancel_reason,
    )


def without_traceback(failure: Failure | None) -> Failure | None:
    """The failure without its traceback."""
    return None if failure is None else replace(failure, detail=None)


def ended_at_of(snapshot: Snapshot) -> Millis | None:
    return snapshot.state.ended_at if isinstance(snapshot.state, Ended) else None
