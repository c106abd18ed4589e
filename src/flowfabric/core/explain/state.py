"""Reasons that the state alone gives: it runs, was lost, is suspended, has ended."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Ended, Flags, Hold, Lease, Lost, Snapshot, Suspended
from flowfabric.core.execution.outcome import Cleanup
from flowfabric.core.execution.takeover import is_granted
from flowfabric.core.explain.reasons import Reason, ReasonCode
from flowfabric.core.explain.sentences import because
from flowfabric.core.wait.condition.codec import read_condition
from flowfabric.core.wait.condition.model import (
    Condition,
    OperatorOnly,
    TimeoutOnly,
    Unknown,
    keys_of,
    names_for,
)
from flowfabric.core.wait.model import Arm


def ended_reason(snapshot: Snapshot, ended: Ended) -> Reason:
    life = snapshot.life
    return because(
        ReasonCode.ENDED,
        since=ended.ended_at,
        outcome=ended.outcome.name.lower(),
        failure=None if life.failure is None else life.failure.message,
        cancel_reason=life.cancel_reason,
        cancelled_by=life.cancelled_by,
    )


def cleanup_reason(snapshot: Snapshot, cleanup: Cleanup) -> Reason:
    """It is about to end, but its handler cleans up first."""
    life = snapshot.life
    return because(
        ReasonCode.CLEANING_UP,
        since=cleanup.since,
        until=cleanup.until,
        outcome=cleanup.outcome.name.lower(),
        failure=None if life.failure is None else life.failure.message,
        cancel_reason=life.cancel_reason,
        cancelled_by=life.cancelled_by,
    )


def running_reason(snapshot: Snapshot, lease: Lease, now: Millis) -> Reason:
    """It does run: who has it, and for how long."""
    detail: dict[str, Any] = {
        "worker": lease.worker.id,
        "instance": lease.worker.instance,
        "attempt": lease.attempt,
        "epoch": snapshot.head.epoch,
        "expires_at": lease.expires_at,
    }
    if lease.expires_at <= now:
        return because(ReasonCode.LOST, since=lease.expires_at, **detail)
    children = [*suspect_reasons(snapshot)]
    if lease.times_out_at is not None:
        children.append(because(ReasonCode.ATTEMPT_TIMEOUT, until=lease.times_out_at))
    return because(
        ReasonCode.LEASED,
        since=lease.started_at,
        until=lease.expires_at,
        children=children,
        also={"number": lease.attempt + 1},
        **detail,
    )


def lost_reason(snapshot: Snapshot, lost: Lost, now: Millis) -> Reason:
    lapsed, worker = snapshot.life.lapsed, None if lost.hold is None else lost.hold.worker
    granted = worker is not None and is_granted(snapshot.life, worker, now)
    return because(
        ReasonCode.LOST,
        since=None if lapsed is None else lapsed.at,
        children=suspect_reasons(snapshot, granted=granted),
        also={"why": None if lapsed is None else lapsed.reason},
        revoked=lost.revoked,
        worker=None if lapsed is None else lapsed.worker.id,
        instance=None if lapsed is None else lapsed.worker.instance,
        losses=snapshot.life.losses,
    )


def suspect_reasons(snapshot: Snapshot, *, granted: bool = False) -> Iterator[Reason]:
    """How a claim treats one that was lost with its worker. One that is `granted` with a higher cap
    is not given up by the next claim."""
    life, flags = snapshot.life, snapshot.head.flags
    if granted:
        flags &= ~Flags.SPENT
    if flags & (Flags.SPENT | Flags.SUSPECT):
        code = ReasonCode.SPENT if flags & Flags.SPENT else ReasonCode.SUSPECT
        yield because(code, probation=life.probation, losses=life.losses)


def hold_reasons(hold: Hold | None, now: Millis) -> Iterator[Reason]:
    if hold is None or not hold.alive(now):
        return
    if hold.worker is None:
        yield because(ReasonCode.RECLAIM_GRACE, until=hold.until)
    else:
        yield because(ReasonCode.HELD_FOR_GRANT, until=hold.until, worker=hold.worker)


def flow_at(key: str) -> UUID | None:
    """The flow whose end is signalled at a waitpoint, if it is one for that."""
    word, _, id = key.partition(":")
    try:
        return UUID(id) if word == "flow" else None
    except ValueError:
        return None


def suspended_reasons(
    snapshot: Snapshot, state: Suspended, members: Mapping[str, tuple[Reason, ...]]
) -> Iterator[Reason]:
    """One reason for each thing that would wake it; any of them is enough. `members` are what keeps
    the flows it waits for, by waitpoint."""
    suspension = snapshot.waits.suspension
    for arm in () if suspension is None else suspension.arms:
        yield _arm_reason(arm, state, members)
    if suspension is None or not suspension.arms:
        sleeps = suspension is not None and suspension.until is not None
        code = ReasonCode.WAITING_FOR_TIME if sleeps else ReasonCode.WAITING_FOR_SIGNAL
        yield because(code, since=state.since, until=state.due_at, reason=state.reason)


def _arm_reason(arm: Arm, state: Suspended, members: Mapping[str, tuple[Reason, ...]]) -> Reason:
    condition = read_condition(arm.condition)
    keys = list(keys_of(condition))
    flows = [str(flow) for key in keys if (flow := flow_at(key)) is not None]
    approval = state.reason == "waiting_for_approval"
    only_flows = flows if len(flows) == len(keys) and not approval else []
    return because(
        _wanted(condition, approval=approval, flows=bool(only_flows)),
        since=state.since,
        until=arm.timeout_at,
        children=(child for key in keys for child in members.get(key, ())),
        also={
            "condition": condition,
            "approval": approval,
            "flows": only_flows,
            "then": None if arm.timeout_at is None else arm.behaviour,
        },
        reason=state.reason,
        waitpoints=keys,
        signals={key: list(names) for key, names in names_for(condition, keys).items()},
        heard={bound.key: bound.counted > 0 for bound in arm.bound},
        timeout_behaviour=str(arm.behaviour),
    )


def _wanted(condition: Condition, *, approval: bool, flows: bool) -> ReasonCode:
    match condition:
        case OperatorOnly():
            return ReasonCode.WAITING_FOR_OPERATOR
        case TimeoutOnly():
            return ReasonCode.WAITING_FOR_TIME
        case Unknown():
            return ReasonCode.WAITING_FOR_SIGNAL
        case _ if approval:
            return ReasonCode.WAITING_FOR_APPROVAL
        case _:
            return ReasonCode.WAITING_FOR_FLOW if flows else ReasonCode.WAITING_FOR_SIGNAL
