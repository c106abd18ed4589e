"""What is owed to a flow, or to a run that waits for others: written with the change that causes
it, done right after, and found by the sweep if the process died in between."""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

from flowfabric.core.execution.model import Ended, Flags, Snapshot, Source
from flowfabric.core.execution.outcome import Outcome

_FLOW = int(Flags.FLOW)  # flags are slow, and every ending is tested

SIBLING = "sibling_quorum_"
"""Prefix of the cancel reason when a join cancels its siblings."""


class OutboxKind(IntEnum):
    """ENDED: settle the edges of a member that ended, and count it. REPLAYED: it did not end after
    all. SIBLINGS: cancel the upstreams of a join that has fired. CANCEL: cancel members of a
    cancelled flow. TELL: tell the run that waits for the flow. RELEASE: let members of a sealed
    flow go. ORPHANED: cancel the flow, since the run that started it ended without success.
    AWAITED: tell a run that another one has ended. Numbers are stored."""

    ENDED = 1
    REPLAYED = 2
    SIBLINGS = 3
    CANCEL = 4
    TELL = 5
    RELEASE = 6
    ORPHANED = 7
    AWAITED = 8


class OutboxEntry(Struct, frozen=True, gc=False):
    """`id` is a member, the flow itself or the run that started it; `number` (a version) tells
    repetitions apart. Of AWAITED, `flow` is the run that waits and `id` the one that has ended.
    `spared` marks an ending that is not a failure of the flow: a loser of a race that was
    cancelled."""

    flow: UUID
    id: UUID
    number: int
    kind: OutboxKind
    outcome: Outcome | None = None
    spared: bool = False


class MemberEnding(NamedTuple):
    """How a member ended, and the version it has since."""

    outcome: Outcome
    number: int


def endings_of(entries: Iterable[OutboxEntry]) -> dict[UUID, MemberEnding]:
    """How members ended. One that was replayed meanwhile has not: it will end again."""
    found: dict[UUID, MemberEnding] = {}
    for entry in sorted(entries, key=lambda entry: entry.number):
        if entry.kind is OutboxKind.ENDED and entry.outcome is not None:
            found[entry.id] = MemberEnding(entry.outcome, entry.number)
        elif entry.kind is OutboxKind.REPLAYED:
            found.pop(entry.id, None)
    return found


def outbox_of(before: Snapshot | None, after: Snapshot | None) -> tuple[OutboxEntry, ...]:
    """What a change of an execution owes to flows, because it ended or was replayed."""
    if before is None or after is None:
        return ()
    if isinstance(before.state, Ended) is isinstance(after.state, Ended):
        return ()  # neither
    own, life = _owed_to_own(before, after), after.head.life
    others = _orphaned(after) if life.flows else ()
    if life.awaited_by:
        others += _awaited(after)
    return others if own is None else (own, *others)


def turned(before: Snapshot | None, after: Snapshot | None) -> bool:
    """Whether a change is an ending or a replay."""
    if before is None or after is None:
        return False
    return isinstance(before.state, Ended) is not isinstance(after.state, Ended)


def _owed_to_own(before: Snapshot, after: Snapshot) -> OutboxEntry | None:
    """What a member owes to its flow: an ending is settled, a replay takes it back."""
    flow = after.execution.flow
    if flow is None or not int(after.head.flags) & _FLOW:
        return None
    id, number = after.execution.uuid, after.head.version
    if isinstance(after.state, Ended):
        outcome = after.state.outcome
        return OutboxEntry(flow, id, number, OutboxKind.ENDED, outcome, is_spared(after))
    if isinstance(before.state, Ended):
        outcome = before.state.outcome
        return OutboxEntry(flow, id, number, OutboxKind.REPLAYED, outcome, is_spared(before))
    return None


def _orphaned(after: Snapshot) -> tuple[OutboxEntry, ...]:
    """Flows go on after the success of the run that started them, and only then."""
    match after.state:
        case Ended(outcome=outcome) if outcome is not Outcome.SUCCESS:
            id, number = after.execution.uuid, after.head.version
            kind = OutboxKind.ORPHANED
            return tuple(OutboxEntry(flow, id, number, kind) for flow in after.life.flows)
        case _:
            return ()


def _awaited(after: Snapshot) -> tuple[OutboxEntry, ...]:
    if not isinstance(after.state, Ended):
        return ()
    id, number, outcome = after.execution.uuid, after.head.version, after.state.outcome
    return tuple(
        OutboxEntry(run, id, number, OutboxKind.AWAITED, outcome) for run in after.life.awaited_by
    )


def is_spared(snapshot: Snapshot) -> bool:
    """Whether an ending is the doing of a join that has its answer, and so no failure."""
    life = snapshot.head.life
    cascade = life.cancelled_by == Source.FLOW_CASCADE  # until there was the flag
    return life.lost_race or (cascade and (life.cancel_reason or "").startswith(SIBLING))
