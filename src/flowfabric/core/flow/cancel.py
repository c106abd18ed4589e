"""Cancelling a flow: which members are cancelled with it, and what they are owed."""

from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.ending import event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.flow.model import Cancellation, CancelPolicy, Flow, FlowChange, FlowState
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind

PARENT_ENDED = "parent_ended"
"""Cancel reason of a flow whose run ended without success."""


def takes_members_along(flow: Flow) -> bool:
    return flow.cancel is not None and flow.cancel.policy is not CancelPolicy.FLOW_ONLY


def cancel_entries(flow: Flow, *, held: bool) -> tuple[OutboxEntry, ...]:
    """What a cancelled flow owes: cancel the members; let those go that are left, since the flow
    cannot be sealed any more and takes no edges."""
    if flow.cancel is None or not flow.nodes:
        return ()
    released = held or flow.cancel.policy is not CancelPolicy.ALL
    kinds = [OutboxKind.CANCEL] * takes_members_along(flow) + [OutboxKind.RELEASE] * released
    return tuple(OutboxEntry(flow.id, flow.id, flow.version, kind) for kind in kinds)


def announce(member: Snapshot, now: Millis, flow: Flow) -> Change[object]:
    """The operator's event, in the history of a member: events belong to executions."""
    detail = {
        "flow_id": str(flow.id),
        "policy": str(flow.cancel.policy) if flow.cancel else "",
        "reason": flow.cancel.reason if flow.cancel else "",
        "member_count": flow.nodes,
    }
    if flow.cancel is not None and flow.cancel.by is not None:
        detail["by"] = flow.cancel.by
    event = event_of(member, now, EventKind.FLOW_CANCEL_REQUESTED, detail)
    return Change(None, member, member.to(member.state), (event,))


def orphaned(change: FlowChange, now: Millis) -> FlowChange:
    """The same change of a flow whose run ended without success: unless the flow is over it is
    cancelled, and its members are owed that."""
    if change.after.terminal:
        return change
    cancel = Cancellation(now, PARENT_ENDED, CancelPolicy.ALL)
    after = replace(change.after, state=FlowState.CANCELLED, cancel=cancel)
    return replace(change, after=after, owed=change.owed + cancel_entries(after, held=False))


def is_orphan(flow: Flow) -> bool:
    return flow.cancel is not None and flow.cancel.reason == PARENT_ENDED
