"""What an execution waits for, in a few words that its own state tells: for lists, where every row
comes out of one query. `explain` knows more."""

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Gate, Lost, Ready, Snapshot, Suspended, Waiting
from flowfabric.core.explain.sentences import listed
from flowfabric.core.explain.state import flow_at
from flowfabric.core.wait.condition.codec import read_condition
from flowfabric.core.wait.condition.model import (
    OperatorOnly,
    TimeoutOnly,
    Unknown,
    keys_of,
    needs_all,
)
from flowfabric.core.wait.model import Arm

_NOUNS = {"waiting_for_approval": "approval", "waiting_for_callback": "callback"}

_DELAYS = {
    Gate.DELAY: "a delay",
    Gate.BACKOFF: "a retry",
    Gate.RESUME_DELAY: "a delay",
    Gate.WORKER_DELAY: "a delay",
}


class WaitSummary(Struct, frozen=True):
    """`due_at` is when the wait ends by itself, if it does."""

    text: str
    due_at: Millis | None = None


def summarise_wait(snapshot: Snapshot) -> WaitSummary | None:
    """What it waits for; None while it runs and after it has ended."""
    match snapshot.state:
        case Ready() | Lost():
            return WaitSummary("a worker")
        case Waiting(gate=gate, due_at=due_at) if gate in _DELAYS:
            return WaitSummary(_DELAYS[gate], due_at)
        case Waiting(gate=gate):
            return WaitSummary(_at_gate(snapshot, gate))
        case Suspended():
            return WaitSummary(_suspended(snapshot, snapshot.state), snapshot.state.due_at)
        case _:
            return None


def _at_gate(snapshot: Snapshot, gate: Gate) -> str:
    life = snapshot.life
    match gate:
        case Gate.UNSEALED:
            return "its flow to be sealed"
        case Gate.BLOCKED:
            word = (life.blocked or "paused_by_operator").replace("_", " ")
            return f"unblock: {life.detail or word}"
        case Gate.DEPENDENCIES if life.join is not None:
            return f"{life.join.needed - life.join.succeeded} of {life.join.n} upstream runs"
        case Gate.DEPENDENCIES:
            return "upstream runs"
        case Gate.LIMIT:
            return f"quota {listed(sorted({use.quota for use in snapshot.execution.uses}))}"
        case Gate.BUDGET:
            return f"budget {life.budget or ''}".rstrip()
        case _:
            return "a worker"


def _suspended(snapshot: Snapshot, state: Suspended) -> str:
    suspension = snapshot.waits.suspension
    if suspension is None or not suspension.arms:
        sleeps = suspension is not None and suspension.until is not None
        return "a delay" if sleeps else state.reason.replace("_", " ")
    found = dict.fromkeys(text for arm in suspension.arms for text in _arm(arm, state.reason))
    return listed(list(found), last="or")


def _arm(arm: Arm, reason: str) -> list[str]:
    """What ends the wait; any of them does."""
    condition = read_condition(arm.condition)
    match condition:
        case OperatorOnly():
            return ["an operator"]
        case TimeoutOnly():
            return ["a delay"]
        case Unknown():
            return ["something that a newer release wrote"]
        case _:
            noun = _NOUNS.get(reason, "signal")
            found = [
                f"{noun} {key}" if (flow := flow_at(key)) is None else f"flow {flow}"
                for key in keys_of(condition)
            ]
            return [listed(found)] if found and needs_all(condition) else found
