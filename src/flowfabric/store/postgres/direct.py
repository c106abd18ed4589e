"""Changes that one statement writes: what waits becomes ready or ends, with its events, edges and
outbox. Nothing else may be touched, so that there is nothing to lock beforehand."""

from collections.abc import Iterable, Sequence
from typing import Any

from flowfabric.store.postgres.moves import RowMove
from flowfabric.store.postgres.session import columns
from flowfabric.store.rows import flow as flow_rows
from flowfabric.store.rows.execution import (
    COLUMNS,
    EVENT,
    Names,
    Row,
    StateTable,
    event_row,
    state_row,
)
from flowfabric.store.rows.flow import OUTBOX
from flowfabric.store.rows.wait import writes_waits

_DIRECT = {
    (StateTable.PARKED, StateTable.READY): "readied_directly",
    (StateTable.PARKED, StateTable.DONE): "ended_directly",
    (StateTable.READY, StateTable.DONE): "ended_directly",
}
_EDGE = ("downstream", "flow", "id", "outcome")


def statement_for(move: RowMove) -> str | None:
    """The query that writes this change and many of its kind, None if it takes more than one."""
    change = move.change
    more = change.attempts or change.steps or change.forgotten or writes_waits(change)
    if more or change.alarm != move.before.alarm_at:
        return None
    return _DIRECT.get((move.origin, move.target))


def values_of(moves: Sequence[RowMove], names: Names) -> list[Any]:
    """What that query is given for changes of the same target, in the order of ids."""
    rows: list[Row] = []
    events: list[Row] = []
    edges: list[Row] = []
    outbox: list[Row] = []
    for move in moves:
        rows.append((*state_row(move.after, names), move.before.head.version))
        events += [event_row(event, names) for event in move.change.events]
        beside = flow_rows.written_by([move.change])
        edges += _of(move, beside.settled)
        outbox += _of(move, beside.outbox)
    return [
        *columns(rows, len(COLUMNS[moves[0].target]) + 1),
        *columns(events, len(EVENT)),
        *columns(edges, len(_EDGE)),
        *columns(outbox, len(OUTBOX) + 1),
    ]


def _of(move: RowMove, rows: Iterable[Row]) -> list[Row]:
    """Each row says whose change writes it: only with that one."""
    return [(move.uuid, *row) for row in rows]
