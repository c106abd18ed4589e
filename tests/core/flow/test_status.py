"""What is said of a flow by its members (coordination.md 1.10, 1.11, I-22)."""

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.model import SPARED, Flow, FlowState
from flowfabric.core.flow.status import (
    FlowStatus,
    PublicFlowState,
    flow_status,
    public_flow_state,
)

AT = Millis(5)


def flow(
    nodes: int, ended: dict[str, int] | None = None, state: FlowState = FlowState.OPEN
) -> Flow:
    ended = ended or {}
    over = sum(ended.values()) >= nodes > 0
    return Flow(nodes=nodes, state=state, ended=ended, ended_at=AT if over else None, eager=True)


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        ({"success": 1}, "active"),
        ({"success": 2}, "completed"),
        ({"success": 1, "skipped": 1}, "completed"),
        ({"success": 1, SPARED: 1}, "completed"),
        ({"success": 1, "failed": 1}, "failed"),
        ({"success": 1, "cancelled": 1}, "failed"),
        ({"success": 1, "expired": 1}, "failed"),
    ],
)
def test_a_flow_has_ended_with_its_members(ended: dict[str, int], status: str) -> None:
    """I-22: failed if any member failed, was cancelled or expired"""
    found = flow(2, ended)
    assert flow_status(found) == status
    assert public_flow_state(found, {}) == ("open" if status == "active" else status)


def test_a_cancelled_flow_stays_cancelled() -> None:
    found = flow(1, {"success": 1}, FlowState.CANCELLED)
    assert flow_status(found) is FlowStatus.CANCELLED
    assert public_flow_state(found, {}) is PublicFlowState.CANCELLED


def test_an_empty_flow_is_open() -> None:
    assert flow_status(flow(0)) == "active"
    assert public_flow_state(flow(0), {}) == "open"


@pytest.mark.parametrize(
    ("states", "word"),
    [
        (["waiting"], "open"),
        (["waiting", "completed", "failed"], "open"),
        (["waiting", "suspended"], "blocked"),
        (["delayed"], "blocked"),
        (["rate_limited"], "blocked"),
        (["waiting_children", "waiting"], "blocked"),
        (["waiting_children", "suspended", "active"], "running"),
    ],
)
def test_what_lives_says_whether_a_flow_moves(states: list[str], word: str) -> None:
    """Coordination.md 1.11, the first rule that fits"""
    counted = {PublicState(state): 1 for state in states}
    assert public_flow_state(flow(3), counted) == word
