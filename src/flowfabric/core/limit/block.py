"""Blocks that end by themselves: whether the cause of one is gone."""

from collections.abc import Sequence

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.gate import cause_of_block
from flowfabric.core.execution.model import Gate, Snapshot, Waiting
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.serving import serving
from flowfabric.core.execution.status import Blocking
from flowfabric.core.limit.budget import Exhausted
from flowfabric.core.limit.budget_gate import is_new_work


def cause_of(snapshot: Snapshot | None) -> Blocking | None:
    """Why a run is blocked, if that is something that can go by itself."""
    match snapshot:
        case Snapshot(state=Waiting(gate=Gate.BLOCKED)):
            return cause_of_block(snapshot.life)
        case _:
            return None


def is_gone(
    snapshot: Snapshot,
    now: Millis,
    *,
    spent: Exhausted | None,
    workers: Sequence[Presence] | None,
) -> bool:
    """Whether nothing of what the run is blocked for is in its way. `spent` is a used-up budget of
    it. `workers` is None if they could not be read: then it may go, because the claim asks for
    capabilities again. A run that waits for a quota may always go: to its line, where it has to
    wait for room."""
    match cause_of(snapshot):
        case Blocking.BUDGET:
            return spent is None or not _starts(snapshot)
        case Blocking.QUOTA:
            return True
        case Blocking.CAPABLE_WORKER:
            route = snapshot.execution.route
            return workers is None or bool(serving(route, workers, now).capable)
        case _:
            return False


def _starts(snapshot: Snapshot) -> bool:
    """Budgets stop starts; a run that has started goes on."""
    state = snapshot.state
    return isinstance(state, Waiting) and is_new_work(snapshot, state.next.start)
