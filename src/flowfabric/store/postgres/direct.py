"""Changes that one statement writes. What waits becomes ready or ends, with its events, edges and
outbox; an execution suspends, resumes or keeps its lease, with its events, steps, waitpoints,
signals and dedup records. Nothing else may be touched, so that there is nothing to lock
beforehand."""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any
from uuid import UUID

from flowfabric.core.execution.model import Active
from flowfabric.store.postgres.moves import RowMove
from flowfabric.store.postgres.session import columns, without_ids
from flowfabric.store.rows.execution import (
    COLUMNS,
    EVENT,
    STEP,
    Names,
    Row,
    StateTable,
    event_row,
    state_row,
    step_row,
)
from flowfabric.store.rows.flow import OUTBOX, outbox_rows, settled_rows
from flowfabric.store.rows.wait import writes_waits, written_by

_DIRECT = {
    (StateTable.PARKED, StateTable.READY): "readied_directly",
    (StateTable.PARKED, StateTable.DONE): "ended_directly",
    (StateTable.READY, StateTable.DONE): "ended_directly",
}
_BESIDE = {
    (StateTable.PARKED, StateTable.READY): "resumed_directly",
    (StateTable.LEASE, StateTable.PARKED): "suspended_directly",
    (StateTable.LEASE, StateTable.LEASE): "held_directly",
}
_SHARED_STATE = {
    StateTable.READY: ("route", "held_until"),
    StateTable.PARKED: ("gate", "since"),
    StateTable.LEASE: ("claim", "worker", "started_at", "expires_at", "route"),
}
"""Beside most of the head and what is compared: what changes of the same moment often share."""
_SHARED_HEAD = ("version", "epoch", "rank", "flags", "attempt", "start")
_SHARED_EVENT_BESIDE = tuple(map(EVENT.index, ("at", "kind", "epoch", "attempt", "worker")))
_SHARED_STEP = tuple(map(STEP.index, ("generation", "name", "occurrence", "position")))
_SHARED_SIGNAL = (1,)
"""The number."""
_STEP_WIDTH, _WAITPOINT_WIDTH, _SIGNAL_WIDTH, _DEDUP_WIDTH = 6, 4, 5, 4
_SHARED_ENDING = (1, 2, 3, 4, 6, 7, 8, 9, 10, 16)
_SHARED_EVENT = (1, 2, 3, 6)
_SHARED_OUTBOX = (1, 3, 4, 5, 6)
"""Columns of `ended_directly` that the members of a cancelled flow have in common."""
_EDGE = ("downstream", "flow", "id", "outcome")
_OWED = len(OUTBOX) + 1


def statement_for(move: RowMove) -> str | None:
    """The query that writes this change and many of its kind, None if it takes more than one."""
    change, way = move.change, (move.origin, move.target)
    if change.attempts or change.forgotten or change.counted:
        return None
    if change.alarm != move.before.alarm_at:
        return None
    if not change.steps and not writes_waits(change) and way in _DIRECT:
        return _DIRECT[way]
    return None if change.settled or change.outbox else _BESIDE.get(way)


def values_of(moves: Sequence[RowMove], names: Names) -> list[Any]:
    """What that query is given for changes of the same kind, in the order of ids."""
    beside = statement_for(moves[0]) in _BESIDE.values()
    return _values_beside(moves, names) if beside else _values_with_edges(moves, names)


def _values_beside(moves: Sequence[RowMove], names: Names) -> list[Any]:
    events: list[Row] = []
    steps: list[Row] = []
    rows: list[Row] = []
    ids: list[UUID] = []
    for move in moves:
        change, uuid = move.change, move.uuid
        for event in change.events:
            events.append(event_row(event, names))
        for step in change.steps:
            steps.append(step_row(uuid, step))
        rows.append((*state_row(move.after, names), *_compared(move)))
        ids.append(uuid)
    beside = written_by([(move.uuid, move.change) for move in moves])
    own = tuple(ids)
    return [
        *without_ids(columns(events, len(EVENT), _SHARED_EVENT_BESIDE), own),
        *without_ids(columns(steps, _STEP_WIDTH, _SHARED_STEP), own),
        *without_ids(columns(beside.waitpoints, _WAITPOINT_WIDTH), own),
        *without_ids(columns(beside.signals, _SIGNAL_WIDTH, _SHARED_SIGNAL), own),
        *without_ids(columns(beside.dedup, _DEDUP_WIDTH), own),
        *columns(rows, len(rows[0]), _shared(moves[0].target, len(rows[0]))),
    ]


@cache
def _shared(target: StateTable, width: int) -> tuple[int, ...]:
    """The columns of such rows that are sent once if all are the same: those named above, and what
    is compared, which follows the columns of the table."""
    columns = COLUMNS[target]
    named = map(columns.index, (*_SHARED_HEAD, *_SHARED_STATE[target]))
    return (*named, *range(len(columns), width))


def _compared(move: RowMove) -> Row:
    """What the row must hold for the change to be written: the version that it was decided on, and
    the expiry of a lease, the only thing that a renewal moves."""
    state, version = move.before.state, move.before.head.version
    return (version, state.lease.expires_at) if isinstance(state, Active) else (version,)


def _values_with_edges(moves: Sequence[RowMove], names: Names) -> list[Any]:
    rows: list[Row] = []
    events: list[Row] = []
    edges: list[Row] = []
    outbox: list[Row] = []
    for move in moves:
        change, uuid = move.change, move.uuid
        rows.append((*state_row(move.after, names), move.before.head.version))
        for event in change.events:
            events.append(event_row(event, names))
        # Each row says whose change writes it: only with that one.
        for row in settled_rows(change):
            edges.append((uuid, *row))
        for row in outbox_rows(change.outbox):
            outbox.append((uuid, *row))
    width = len(COLUMNS[moves[0].target]) + 1
    if moves[0].target is not StateTable.DONE:
        beside = (columns(events, len(EVENT)), columns(edges, len(_EDGE)), columns(outbox, _OWED))
        return [*columns(rows, width), *chain.from_iterable(beside)]
    ended = columns(rows, width, _SHARED_ENDING)
    by, flow, id, *owed = columns(outbox, _OWED, _SHARED_OUTBOX)
    return [
        *ended,
        *without_ids(columns(events, len(EVENT), _SHARED_EVENT), ended[0]),
        *columns(edges, len(_EDGE)),
        *without_ids([by], ended[0]),
        flow,
        *without_ids([id], ended[0]),
        *owed,
    ]
