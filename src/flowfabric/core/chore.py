"""What is owed to a flow: written with the change that causes it, done right after, and found by
the sweep if the process died in between."""

from enum import IntEnum
from uuid import UUID

from msgspec import Struct

from flowfabric.core.execution import Ended, Flags, Snapshot, Source
from flowfabric.core.outcome import Outcome

SIBLING = "sibling_"
"""How the reason of a cancel begins that a join has asked for."""


class ChoreKind(IntEnum):
    """ENDED: settle the edges of a member that ended, and count it. REPLAYED: it did not end after
    all. SIBLINGS: cancel the upstreams of a join that has fired. CANCEL: cancel members of a
    cancelled flow. TELL: tell the run that waits for the flow. RELEASE: let members of a sealed
    flow go. Numbers are stored."""

    ENDED = 1
    REPLAYED = 2
    SIBLINGS = 3
    CANCEL = 4
    TELL = 5
    RELEASE = 6


class Chore(Struct, frozen=True):
    """`id` is a member, or the flow itself; `number` (a version) tells repetitions apart. `spared`
    marks an ending that is no failure of the flow: a loser of a race that was cancelled."""

    flow: UUID
    id: UUID
    number: int
    kind: ChoreKind
    outcome: Outcome | None = None
    spared: bool = False


def chore_of(before: Snapshot | None, after: Snapshot | None) -> Chore | None:
    """What a change of a member owes to its flow: an ending is settled, a replay takes it back."""
    if before is None or after is None or not after.head.flags & Flags.FLOW:
        return None
    flow = after.execution.flow
    if flow is None:
        return None
    id, number = after.execution.uuid, after.head.version
    match before.state, after.state:
        case (Ended(), Ended()):
            return None
        case (_, Ended(outcome=outcome)):
            return Chore(flow, id, number, ChoreKind.ENDED, outcome, is_spared(after))
        case (Ended(outcome=outcome), _):
            return Chore(flow, id, number, ChoreKind.REPLAYED, outcome, is_spared(before))
        case _:
            return None


def is_spared(snapshot: Snapshot) -> bool:
    """Whether an ending is the doing of a join that had enough, and so no failure."""
    life = snapshot.life
    by_join = life.cancelled_by == Source.FLOW_CASCADE
    return by_join and (life.cancel_reason or "").startswith(SIBLING)
