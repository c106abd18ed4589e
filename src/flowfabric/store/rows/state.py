"""Which rows have which public state, as the core says it: for filters and counts."""

from collections.abc import Callable, Collection
from contextlib import suppress
from uuid import UUID

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import NO_TIME
from flowfabric.core.execution.model import (
    EMPTY_LIFE,
    Active,
    Ended,
    Gate,
    Lease,
    Life,
    Lost,
    Next,
    Outcome,
    Ready,
    Start,
    State,
    Suspended,
    Waiting,
    WorkerIdentity,
)
from flowfabric.core.execution.status import ADMISSION_BLOCKS, PublicState, vector_of
from flowfabric.store.rows.execution import SUSPENDED, StateTable

_ANY_ID = UUID(int=0)
_LEASE = Lease(_ANY_ID, 0, Start.INITIAL, WorkerIdentity("", ""), NO_TIME, NO_TIME)


def _public(state: Callable[[Start], State], life: Life = EMPTY_LIFE) -> PublicState:
    """The public state of a kind of row, with whichever start it can have."""
    for start in Start:
        with suppress(Corruption):
            return vector_of(state(start), life).public
    raise Corruption("a state that no start can lead to")


def _gate(gate: Gate) -> Callable[[Start], State]:
    return lambda start: Waiting(gate, Next(start, 0))


def _ending(outcome: Outcome) -> PublicState:
    try:
        return vector_of(Ended(outcome, NO_TIME, attempt=0), EMPTY_LIFE).public
    except Corruption:
        return _public(lambda start: Ended(outcome, NO_TIME, pending=start))


WAITING = _public(lambda start: Ready(Next(start, 0)))
LOST = _public(lambda start: Lost(False, Next(start, 0)))
LEASED = _public(lambda start: Active(_LEASE))
GATES = {int(gate): _public(_gate(gate)) for gate in Gate if gate is not Gate.BLOCKED}
GATES[SUSPENDED] = _public(lambda start: Suspended(Next(start, 0), _ANY_ID, "", NO_TIME))
BLOCKS = {
    str(reason): _public(_gate(Gate.BLOCKED), Life(blocked=str(reason)))
    for reason in ADMISSION_BLOCKS
}
PARKED = frozenset({*GATES.values(), *BLOCKS.values()})
"""The public states of parked rows."""
OUTCOMES = {int(outcome): _ending(outcome) for outcome in Outcome}

Filter = tuple[bool | None, bool | None, list[int], list[int]]


def filter_of(states: Collection[PublicState]) -> Filter:
    """Rows of `ready`, of `lease` (and lost ones), gates and outcomes to look for. Blocked rows
    are told apart by their reason later."""
    if not states:
        return None, None, [], []
    gates = [gate for gate, state in GATES.items() if state in states]
    if any(state in states for state in BLOCKS.values()):
        gates.append(int(Gate.BLOCKED))
    outcomes = [outcome for outcome, state in OUTCOMES.items() if state in states]
    return WAITING in states, LEASED in states, gates, outcomes


def blocked_state(reason: str | None) -> PublicState:
    """The public state of a blocked row."""
    return BLOCKS.get(reason or "", WAITING)


def state_of(place: str, cell: int | None, blocked: str | None) -> PublicState:
    """The public state of the rows one line of `state_counts` is about."""
    match StateTable(place):
        case StateTable.READY:
            return WAITING if cell is None else LOST
        case StateTable.LEASE:
            return LEASED
        case StateTable.PARKED if cell == Gate.BLOCKED:
            return blocked_state(blocked)
        case StateTable.PARKED:
            return GATES[cell or 0]
        case StateTable.DONE:
            return OUTCOMES[cell or 0]
