"""The status of a flow as a whole: its header and its members together.

The header of a flow that takes members for ever (`eager`) stays open, also when all of them have
ended. Nothing here is stored, so nothing can disagree.
"""

from collections.abc import Mapping
from enum import StrEnum

from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.model import Flow, FlowState, has_failed


class FlowStatus(StrEnum):
    """What the header alone tells. ACTIVE: some members have not ended, or none is there yet."""

    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PublicFlowState(StrEnum):
    """RUNNING: a worker has one of the members. BLOCKED: no worker has any, and some wait for a
    signal, a moment, a limit or their upstreams. OPEN: the others wait for a worker only."""

    OPEN = "open"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_BLOCKED = (
    PublicState.SUSPENDED,
    PublicState.DELAYED,
    PublicState.RATE_LIMITED,
    PublicState.WAITING_CHILDREN,
)


def flow_status(flow: Flow) -> FlowStatus:
    """How a flow is listed. A cancelled one stays cancelled, whatever becomes of its members."""
    if flow.state is FlowState.CANCELLED:
        return FlowStatus.CANCELLED
    if flow.ended_at is None and not 0 < flow.nodes <= flow.over:
        return FlowStatus.ACTIVE
    return FlowStatus.FAILED if has_failed(flow) else FlowStatus.COMPLETED


def public_flow_state(flow: Flow, states: Mapping[PublicState, int]) -> PublicFlowState:
    """The state of a flow, given how many of its members are in which state."""
    status = flow_status(flow)
    if status is not FlowStatus.ACTIVE:
        return PublicFlowState(status)
    if states.get(PublicState.ACTIVE):
        return PublicFlowState.RUNNING
    if any(states.get(state) for state in _BLOCKED):
        return PublicFlowState.BLOCKED
    return PublicFlowState.OPEN
