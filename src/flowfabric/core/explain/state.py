"""Reasons that the state itself tells: it runs, was lost, is suspended, has ended."""

from collections.abc import Iterator, Mapping
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import (
    Ended,
    Flags,
    Hold,
    Lease,
    Lost,
    Outcome,
    Probation,
    Snapshot,
    Suspended,
)
from flowfabric.core.explain.reasons import Code, Reason, listed, number
from flowfabric.core.wait.condition.codec import read_condition
from flowfabric.core.wait.condition.model import (
    Condition,
    OperatorOnly,
    TimeoutOnly,
    Unknown,
    keys_of,
    names_for,
)
from flowfabric.core.wait.model import Arm, Behaviour

_ENDINGS = {
    Outcome.SUCCESS: "it has completed",
    Outcome.FAILED: "it has failed",
    Outcome.CANCELLED: "it was cancelled",
    Outcome.EXPIRED: "it has expired",
    Outcome.SKIPPED: "it was skipped: its upstreams did not end as it needs",
}

_BEHAVIOURS = {
    Behaviour.FAIL: "then it fails",
    Behaviour.CANCEL: "then it is cancelled",
    Behaviour.EXPIRE: "then it expires",
    Behaviour.AUTO_RESUME: "then it goes on without",
    Behaviour.ESCALATE: "then an operator has to decide",
}


def ended_reason(snapshot: Snapshot, ended: Ended) -> Reason:
    life, text = snapshot.life, _ENDINGS[ended.outcome]
    if ended.outcome is Outcome.CANCELLED:
        if life.cancelled_by:
            text = f"{text} by {life.cancelled_by}"
        if life.cancel_reason:
            text = f"{text}: {life.cancel_reason}"
    elif life.failure is not None and ended.outcome is not Outcome.SUCCESS:
        text = f"{text}: {life.failure.message}"
    detail = {
        "outcome": ended.outcome.name.lower(),
        "failure": None if life.failure is None else life.failure.message,
        "cancel_reason": life.cancel_reason,
        "cancelled_by": life.cancelled_by,
    }
    return Reason(code=Code.ENDED, text=text, since=ended.ended_at, detail=detail)


def running_reason(snapshot: Snapshot, lease: Lease, now: Millis) -> Reason:
    """It does run: who has it, and for how long."""
    who = f"{lease.worker.id} ({lease.worker.instance})"
    detail = {
        "worker": lease.worker.id,
        "instance": lease.worker.instance,
        "attempt": lease.attempt,
        "epoch": snapshot.head.epoch,
        "expires_at": lease.expires_at,
    }
    if lease.expires_at <= now:
        text = f"the lease of {who} has run out; it is taken from it in a moment"
        return Reason(code=Code.LOST, text=text, since=lease.expires_at, detail=detail)
    children = tuple(suspect_reasons(snapshot))
    if lease.times_out_at is not None:
        limit = Reason(
            code=Code.ATTEMPT_TIMEOUT,
            text="the attempt times out unless it ends before",
            until=lease.times_out_at,
        )
        children = (*children, limit)
    return Reason(
        code=Code.LEASED,
        text=f"it runs: {who} has a lease for attempt {lease.attempt + 1}",
        since=lease.started_at,
        until=lease.expires_at,
        detail=detail,
        children=children,
    )


def lost_reason(snapshot: Snapshot, lost: Lost) -> Reason:
    lapsed = snapshot.life.lapsed
    who = "its worker" if lapsed is None else f"{lapsed.worker.id} ({lapsed.worker.instance})"
    text = f"the lease of {who} ran out: another worker takes it over"
    if lost.revoked:
        why = f": {lapsed.reason}" if lapsed is not None and lapsed.reason else ""
        text = f"it was taken from {who}{why}; another worker takes it over"
    detail = {
        "revoked": lost.revoked,
        "worker": None if lapsed is None else lapsed.worker.id,
        "instance": None if lapsed is None else lapsed.worker.instance,
        "losses": snapshot.life.losses,
    }
    since = None if lapsed is None else lapsed.at
    children = tuple(suspect_reasons(snapshot))
    return Reason(code=Code.LOST, text=text, since=since, detail=detail, children=children)


def suspect_reasons(snapshot: Snapshot) -> Iterator[Reason]:
    """How a claim treats one that was lost with its worker."""
    life, flags = snapshot.life, snapshot.head.flags
    detail = {"probation": life.probation, "losses": life.losses}
    if flags & Flags.SPENT:
        text = f"it was lost {number(life.losses, 'time')}: the next claim gives it up"
        yield Reason(code=Code.SPENT, text=text, detail=detail)
    elif flags & Flags.SUSPECT and life.probation is not None:
        where = "alone in its process" if life.probation is Probation.ALONE else "with nothing new"
        text = f"it may have ended its last worker and is on probation: it runs {where}"
        yield Reason(code=Code.SUSPECT, text=text, detail=detail)
    elif flags & Flags.SUSPECT:
        text = "it may have ended its last worker: a worker runs it alone, one such run at a time"
        yield Reason(code=Code.SUSPECT, text=text, detail=detail)


def hold_reasons(hold: Hold | None, now: Millis) -> Iterator[Reason]:
    if hold is None or not hold.alive(now):
        return
    if hold.worker is None:
        yield Reason(
            code=Code.RECLAIM_GRACE,
            text="nobody may take it over yet: the worker that lost it may still be finishing",
            until=hold.until,
        )
    else:
        yield Reason(
            code=Code.HELD_FOR_GRANT,
            text=f"it is kept for worker {hold.worker}, which was granted it",
            until=hold.until,
            detail={"worker": hold.worker},
        )


def flow_at(key: str) -> UUID | None:
    """The flow whose end is told at a waitpoint, if it is one for that."""
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
    waits = snapshot.life.waits
    arms = () if waits is None or waits.suspension is None else waits.suspension.arms
    for arm in arms:
        yield _arm_reason(arm, state, members)
    if not arms:
        until = None if waits is None or waits.suspension is None else waits.suspension.until
        yield Reason(
            code=Code.WAITING_FOR_SIGNAL if until is None else Code.WAITING_FOR_TIME,
            text=f"it is suspended: {state.reason.replace('_', ' ')}",
            since=state.since,
            until=state.due_at,
            detail={"reason": state.reason},
        )


def _arm_reason(arm: Arm, state: Suspended, members: Mapping[str, tuple[Reason, ...]]) -> Reason:
    condition = read_condition(arm.condition)
    code, text = _wanted(condition, state.reason)
    if arm.timeout_at is not None and code is not Code.WAITING_FOR_TIME:
        text = f"{text}; {_BEHAVIOURS[arm.behaviour]}"
    keys = list(keys_of(condition))
    detail = {
        "reason": state.reason,
        "waitpoints": keys,
        "signals": {key: list(names_for(condition, key)) for key in keys},
        "heard": {bound.key: bound.counted > 0 for bound in arm.bound},
        "timeout_behaviour": str(arm.behaviour),
    }
    return Reason(
        code=code,
        text=text,
        since=state.since,
        until=arm.timeout_at,
        detail=detail,
        children=tuple(child for key in keys for child in members.get(key, ())),
    )


def _wanted(condition: Condition, reason: str) -> tuple[Code, str]:
    """What it waits for. Waitpoints are told by name, never by token."""
    match condition:
        case OperatorOnly():
            return Code.WAITING_FOR_OPERATOR, "only an operator resumes it"
        case TimeoutOnly():
            return Code.WAITING_FOR_TIME, "it sleeps"
        case Unknown():
            return Code.WAITING_FOR_SIGNAL, "it waits for something a newer release wrote"
        case _:
            pass
    keys = list(keys_of(condition))
    if reason == "waiting_for_approval":
        return Code.WAITING_FOR_APPROVAL, f"it waits for approval: {listed(keys)}"
    flows = [str(flow) for key in keys if (flow := flow_at(key)) is not None]
    if keys and len(flows) == len(keys):
        return Code.WAITING_FOR_FLOW, f"it waits for flow {listed(flows)} to end"
    signals = [_signal(key, names_for(condition, key)) for key in keys]
    if not signals:
        return Code.WAITING_FOR_SIGNAL, f"it is suspended: {reason.replace('_', ' ')}"
    return Code.WAITING_FOR_SIGNAL, f"it waits for {listed(signals)}"


def _signal(key: str, names: tuple[str, ...]) -> str:
    if not names or names == (key,):
        return f"a signal at {key}"
    return f"signal {listed(names, last='or')} at {key}"
