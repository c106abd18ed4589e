"""How values become rows and rows become values, the same for every store.

The state is the table: `ready`, `lease`, `parked` and `done` share one head and add what their
state needs. `Place` names the table; the order of columns here is the order of every insert
and of the `snapshot` view, so that both dialects need no mapping of their own.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base import document
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.code import is_blocked_by_code
from flowfabric.core.execution.event import Event, EventKind, RegistryEvent, StoredEvent
from flowfabric.core.execution.mismatch import CodeBlock
from flowfabric.core.execution.model import (
    EMPTY_LIFE,
    NO_FACTS,
    WITH_SLOT,
    Active,
    Attempt,
    Ended,
    Execution,
    Facts,
    Flags,
    Gate,
    Head,
    Hold,
    Lease,
    Life,
    Lost,
    Next,
    Outcome,
    Ready,
    Route,
    Snapshot,
    Start,
    State,
    Suspended,
    Waiting,
    WorkerIdentity,
)
from flowfabric.core.execution.policy import read_policy, write_policy
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.submission import Creation
from flowfabric.core.limit.quota import budget_queue, code_queue
from flowfabric.store.readable import UNREADABLE, unreadable


class StateTable(StrEnum):
    """The table a state lives in."""

    READY = "ready"
    LEASE = "lease"
    PARKED = "parked"
    DONE = "done"


GONE = {
    StateTable.READY: "gone_ready",
    StateTable.LEASE: "gone_lease",
    StateTable.PARKED: "gone_parked",
    StateTable.DONE: "gone_done",
}
"""The statement that takes a row out of a table."""

NEW = {
    StateTable.READY: "new_ready",
    StateTable.LEASE: "new_lease",
    StateTable.PARKED: "new_parked",
    StateTable.DONE: "new_done",
}
"""The statement that puts a row into a table."""

SUSPENDED = 20
"""The gate number of a suspended execution in `parked`."""

HEAD = ("id", "version", "epoch", "rank", "flags", "attempt", "start", "life")

COLUMNS: dict[StateTable, tuple[str, ...]] = {
    StateTable.READY: (*HEAD, "route", "timeout", "held_until", "held_for", "lost", "queue"),
    StateTable.LEASE: (
        *HEAD,
        "claim",
        "worker",
        "started_at",
        "expires_at",
        "times_out_at",
        "renewed_at",
        "route",
        "queue",
    ),
    StateTable.PARKED: (*HEAD, "timeout", "gate", "due_at", "since", "note", "queue"),
    StateTable.DONE: (
        *HEAD,
        "outcome",
        "ended_at",
        "pending",
        "claim",
        "worker",
        "started_at",
        "result",
        "trim_at",
    ),
}

EXECUTION = ("id", "created_at", "route", "policy", "facts", "flow", "payload")
ATTEMPT = ("id", "index", "doc")
STEP = ("id", "generation", "name", "occurrence", "position", "doc")
EVENT = ("id", "at", "kind", "epoch", "attempt", "worker", "detail")

SNAPSHOT = (
    # facts
    "id",
    "created_at",
    "exec_route",
    "policy",
    "facts",
    "flow",
    # head
    "place",
    "version",
    "epoch",
    "rank",
    "flags",
    "attempt",
    "start",
    "life",
    # state
    "timeout",
    "held_until",
    "held_for",
    "lost",
    "claim",
    "worker",
    "started_at",
    "expires_at",
    "times_out_at",
    "renewed_at",
    "gate",
    "due_at",
    "since",
    "note",
    "outcome",
    "ended_at",
    "pending",
    "result",
)
"""Columns of the view `snapshot`: execution facts, then one state row of whichever table."""

(
    _ID, _CREATED_AT, _ROUTE, _POLICY, _FACTS, _FLOW,
    _PLACE, _VERSION, _EPOCH, _RANK, _FLAGS, _ATTEMPT, _START, _LIFE,
    _TIMEOUT, _HELD_UNTIL, _HELD_FOR, _LOST,
    _CLAIM, _WORKER, _STARTED_AT, _EXPIRES_AT, _TIMES_OUT_AT, _RENEWED_AT,
    _GATE, _DUE_AT, _SINCE, _NOTE,
    _OUTCOME, _ENDED_AT, _PENDING, _RESULT,
) = range(len(SNAPSHOT))  # fmt: skip


class Names(Struct):
    """The interned routes and workers of one store, both ways. Numbers are for ever."""

    routes: dict[int, Route] = msgspec.field(default_factory=dict)
    workers: dict[int, WorkerIdentity] = msgspec.field(default_factory=dict)
    route_numbers: dict[Route, int] = msgspec.field(default_factory=dict)
    worker_numbers: dict[WorkerIdentity, int] = msgspec.field(default_factory=dict)

    def add_route(self, number: int, route: Route) -> None:
        self.routes[number] = route
        self.route_numbers[route] = number

    def add_worker(self, number: int, worker: WorkerIdentity) -> None:
        self.workers[number] = worker
        self.worker_numbers[worker] = number


class _Note(Struct, frozen=True):
    suspension: UUID
    reason: str


Row = tuple[Any, ...]
Key = Callable[[UUID], Any]
"""Makes the driver's value of an id."""


def _itself(id: UUID) -> UUID:
    return id


def place_of(state: State) -> StateTable:
    match state:
        case Ready() | Lost():
            return StateTable.READY
        case Active():
            return StateTable.LEASE
        case Waiting() | Suspended():
            return StateTable.PARKED
        case Ended():
            return StateTable.DONE


def write_life(life: Life) -> bytes | None:
    """NULL until something happened."""
    return None if life is EMPTY_LIFE or life == EMPTY_LIFE else document.write(life)


def read_life(data: bytes | None) -> Life:
    return EMPTY_LIFE if data is None else document.read(Life, bytes(data))


def execution_row(creation: Creation, names: Names, key: Key = _itself) -> Row:
    execution = creation.snapshot.execution
    return (
        key(execution.uuid),
        execution.created_at,
        names.route_numbers[execution.route],
        None if execution.policy is None else write_policy(execution.policy),
        None if execution.facts is NO_FACTS else document.write(execution.facts),
        None if execution.flow is None else key(execution.flow),
        creation.payload,
    )


def state_row(snapshot: Snapshot, names: Names, key: Key = _itself) -> Row:
    """The row of `place_of(snapshot.state)`, in the order of COLUMNS."""
    state = snapshot.state
    match state:
        # The three that most rows are come first.
        case Ended():
            return _done(snapshot, state, names, key)
        case Ready() | Lost():
            return _ready(snapshot, state, names, key)
        case Waiting(next=next):
            gate = int(state.gate)
            head = _head(snapshot, next.attempt, next.start, key)
            queue = queue_number(snapshot)
            return (*head, next.timeout, gate, state.due_at, None, None, queue)
        case Active(lease=lease):
            return (
                *_head(snapshot, lease.attempt, lease.start, key),
                key(lease.id),
                names.worker_numbers[lease.worker],
                lease.started_at,
                lease.expires_at,
                lease.times_out_at,
                lease.renewed_at,
                names.route_numbers[snapshot.execution.route],
                queue_number(snapshot),
            )
        case Suspended(next=next):
            note = msgspec.json.encode(_Note(state.suspension, state.reason))
            head = _head(snapshot, next.attempt, next.start, key)
            return (*head, next.timeout, SUSPENDED, state.due_at, state.since, note, None)


def queue_number(snapshot: Snapshot) -> int | None:
    """The queue an execution waits in, or holds a slot of."""
    state = snapshot.state
    # What most rows are comes first, and without patterns, which take twice the time.
    if isinstance(state, WITH_SLOT) or (isinstance(state, Waiting) and state.gate is Gate.LIMIT):
        limited = int(snapshot.head.flags) & _LIMITS
        return snapshot.execution.rules.queue if limited else None
    match state:
        case Waiting(gate=Gate.BUDGET):
            return budget_queue(snapshot.life.budget or "")
        case Waiting(gate=Gate.BLOCKED) if is_blocked_by_code(snapshot):
            route, code = snapshot.execution.route, snapshot.life.code or CodeBlock()
            name = (route.namespace, route.lane, route.kind, *route.capabilities)
            return code_queue(name, code.tried)
        case _:
            return None


def attempt_row(uuid: UUID, attempt: Attempt) -> Row:
    return (uuid, attempt.index, document.write(attempt))


def step_key(uuid: UUID, step: Step) -> Row:
    return (uuid, step.generation, step.name, step.occurrence)


def step_row(uuid: UUID, step: Step) -> Row:
    return (uuid, step.generation, step.name, step.occurrence, step.position, step.doc)


def event_row(event: Event, names: Names, key: Key = _itself) -> Row:
    return (
        key(event.uuid),
        event.at,
        int(event.kind),
        event.epoch,
        event.attempt,
        None if event.worker is None else names.worker_numbers[event.worker],
        None if event.detail is None else msgspec.json.encode(event.detail),
    )


def registry_event_row(event: RegistryEvent) -> Row:
    """As `event_row`, with the namespace, which an event without an execution must say itself."""
    detail = msgspec.json.encode(event.detail)
    return (event.at, int(event.kind), detail, event.namespace)


def trim_at(snapshot: Snapshot, ended_at: Millis) -> Millis | None:
    """When an execution with a retention of its own may be deleted."""
    policy = snapshot.execution.policy
    if policy is None or policy.retention is None:
        return None
    return Millis(ended_at + policy.retention)


def workers_in(change: Change[object]) -> list[WorkerIdentity]:
    """The workers whose numbers are needed to write a change."""
    found = [event.worker for event in change.events if event.worker is not None]
    match change.after:
        case Snapshot(state=Active(lease=lease) | Ended(lease=Lease() as lease)):
            found.append(lease.worker)
        case _:
            pass
    return found


def read_execution(row: Sequence[Any], names: Names, uuid: Callable[[Any], UUID]) -> Execution:
    """`uuid` turns the driver's value into a UUID (the identity where the driver does it)."""
    flow = row[_FLOW]
    return Execution(
        uuid=uuid(row[_ID]),
        created_at=row[_CREATED_AT],
        route=names.routes[row[_ROUTE]],
        policy=None if row[_POLICY] is None else read_policy(row[_POLICY]),
        facts=NO_FACTS if row[_FACTS] is None else _read_facts(row[_FACTS]),
        flow=None if flow is None else uuid(flow),
    )


def read_snapshot(row: Sequence[Any], names: Names, uuid: Callable[[Any], UUID]) -> Snapshot:
    """A row of the view `snapshot` as a value. The routes and workers it names are known.
    Raises Corruption with the id of one that cannot be read."""
    life = row[_LIFE]
    try:
        head = Head(
            version=row[_VERSION],
            epoch=row[_EPOCH],
            rank=row[_RANK],
            flags=read_flags(row[_FLAGS]),
            life=EMPTY_LIFE if life is None else read_life(life),
        )
        state = _STATES[row[_PLACE]](row, names, uuid)
        return Snapshot(read_execution(row, names, uuid), head, state)
    except UNREADABLE as error:
        raise unreadable("execution", row[_ID], error) from None


def read_event(row: Sequence[Any], names: Names, uuid: Callable[[Any], UUID]) -> StoredEvent:
    """Columns: seq, then EVENT, then the execution's route and flow, and the namespace of an event
    that has no execution. An empty detail or namespace is none."""
    seq, id, at, kind, epoch, attempt, worker, detail, route_number, flow, namespace = row
    members = msgspec.json.decode(detail) if detail else None
    if namespace:
        return _read_registry_event(seq, at, EventKind(kind), namespace, members or {})
    route = names.routes[route_number]
    key, flow_id = uuid(id), None if flow is None else uuid(flow)
    return StoredEvent(
        seq=seq,
        id=ExecutionId.solo(route.lane, key)
        if flow_id is None
        else ExecutionId.member(flow_id, key),
        namespace=route.namespace,
        lane=route.lane,
        at=at,
        kind=EventKind(kind),
        epoch=epoch,
        attempt=attempt,
        worker=None if worker is None else names.workers[worker],
        detail=members,
        flow=flow_id,
    )


def _read_registry_event(
    seq: int, at: Millis, kind: EventKind, namespace: str, detail: dict[str, Any]
) -> StoredEvent:
    """The worker is in the detail; one whose entry could not be read has no id."""
    worker = WorkerIdentity(detail.get("worker", ""), detail["instance"])
    return StoredEvent(
        seq=seq,
        id=None,
        namespace=namespace,
        lane="",
        at=at,
        kind=kind,
        epoch=0,
        worker=worker,
        detail=detail,
    )


def read_attempt(doc: bytes) -> Attempt:
    return document.read(Attempt, bytes(doc))


@lru_cache(maxsize=4096)
def _read_facts(data: bytes) -> Facts:
    return document.read(Facts, data)


_LIMITS = int(Flags.LIMITS)

# Calling an enum costs more than everything else that is done for a row.
_START_OF = {int(start): start for start in Start}


@cache
def read_flags(number: int) -> Flags:
    return Flags(number)


def _head(snapshot: Snapshot, attempt: int | None, start: Start, key: Key) -> Row:
    head = snapshot.head
    return (
        key(snapshot.execution.uuid),
        head.version,
        head.epoch,
        head.rank,
        int(head.flags),
        attempt,
        int(start),
        write_life(head.life),
    )


def _ready(snapshot: Snapshot, state: Ready | Lost, names: Names, key: Key) -> Row:
    hold = state.hold
    return (
        *_head(snapshot, state.next.attempt, state.next.start, key),
        names.route_numbers[snapshot.execution.route],
        state.next.timeout,
        0 if hold is None else hold.until,
        None if hold is None else hold.worker,
        int(state.revoked) if isinstance(state, Lost) else None,
        queue_number(snapshot),
    )


def _done(snapshot: Snapshot, state: Ended, names: Names, key: Key) -> Row:
    lease = state.lease
    start = lease.start if lease is not None else Start.INITIAL
    return (
        *_head(snapshot, state.attempt, start, key),
        int(state.outcome),
        state.ended_at,
        None if state.pending is None else int(state.pending),
        None if lease is None else key(lease.id),
        None if lease is None else names.worker_numbers[lease.worker],
        None if lease is None else lease.started_at,
        state.result,
        trim_at(snapshot, state.ended_at),
    )


def _next(row: Sequence[Any]) -> Next:
    return Next(_START_OF[row[_START]], row[_ATTEMPT], row[_TIMEOUT])


def _read_ready(row: Sequence[Any], names: Names, uuid: Callable[[Any], UUID]) -> State:
    until = row[_HELD_UNTIL]
    hold = Hold(until, row[_HELD_FOR]) if until else None
    if row[_LOST] is None:
        return Ready(_next(row), hold)
    return Lost(bool(row[_LOST]), _next(row), hold)


def _read_lease(row: Sequence[Any], names: Names, uuid: Callable[[Any], UUID]) -> State:
    return Active(
        Lease(
            id=uuid(row[_CLAIM]),
            attempt=row[_ATTEMPT],
            start=_START_OF[row[_START]],
            worker=names.workers[row[_WORKER]],
            started_at=row[_STARTED_AT],
            expires_at=row[_EXPIRES_AT],
            times_out_at=row[_TIMES_OUT_AT],
            renewed_at=row[_RENEWED_AT],
        )
    )


def _read_parked(row: Sequence[Any], names: Names, uuid: Callable[[Any], UUID]) -> State:
    if row[_GATE] != SUSPENDED:
        return Waiting(Gate(row[_GATE]), _next(row), row[_DUE_AT])
    note = msgspec.json.decode(row[_NOTE], type=_Note)
    return Suspended(_next(row), note.suspension, note.reason, row[_SINCE], row[_DUE_AT])


def _read_done(row: Sequence[Any], names: Names, uuid: Callable[[Any], UUID]) -> State:
    lease = None
    if row[_CLAIM] is not None:
        lease = Lease(
            id=uuid(row[_CLAIM]),
            attempt=row[_ATTEMPT],
            start=_START_OF[row[_START]],
            worker=names.workers[row[_WORKER]],
            started_at=row[_STARTED_AT],
            expires_at=row[_ENDED_AT],
        )
    pending = row[_PENDING]
    return Ended(
        outcome=Outcome(row[_OUTCOME]),
        ended_at=row[_ENDED_AT],
        attempt=row[_ATTEMPT],
        pending=None if pending is None else Start(pending),
        lease=lease,
        result=None if row[_RESULT] is None else bytes(row[_RESULT]),
    )


_STATES: dict[str, Callable[[Sequence[Any], Names, Callable[[Any], UUID]], State]] = {
    StateTable.READY: _read_ready,
    StateTable.LEASE: _read_lease,
    StateTable.PARKED: _read_parked,
    StateTable.DONE: _read_done,
}
