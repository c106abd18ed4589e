"""How a suspension ends: by signals, by an operator, by its timeout.

However it ends, the execution continues the attempt that suspended it (unless a timeout ends the
execution), and every wait that is over becomes a recorded step.
"""

from typing import Any, Never
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import NotSuspended
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import NO_TIME, Millis
from flowfabric.core.execution import cleanup as cleanup_rules
from flowfabric.core.execution.attempts import SUSPENSION_TIMEOUT
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.ending import end, event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import gated
from flowfabric.core.execution.lease import AlreadySatisfied, present
from flowfabric.core.execution.model import (
    Failure,
    Gate,
    Life,
    Outcome,
    Snapshot,
    Suspended,
)
from flowfabric.core.execution.status import PublicState, vector
from flowfabric.core.execution.step import Recorded, Step
from flowfabric.core.wait.model import (
    Arm,
    Behaviour,
    Closed,
    Pending,
    ReceivedSignal,
    Signal,
    StepRef,
    Suspension,
    Waited,
    Waits,
)

OPERATOR_REVIEW = "waiting_for_operator_review"
TIMEOUT = "timeout"
RESUMED = "resumed"
CLOSED = "waitpoint_closed"
TIMED_OUT = "timed_out_auto_resume"
CLEANUP = "woken_for_cleanup"
"""Why a suspension was closed, apart from the execution's end."""

_ENDINGS = {
    Behaviour.FAIL: (Outcome.FAILED, EventKind.FAILED),
    Behaviour.CANCEL: (Outcome.CANCELLED, EventKind.CANCELLED),
    Behaviour.EXPIRE: (Outcome.EXPIRED, EventKind.EXPIRED),
}


class Resumed(Struct, frozen=True):
    id: ExecutionId
    state: PublicState


class SuspensionExpired(Struct, frozen=True):
    id: ExecutionId
    behaviour: Behaviour
    state: PublicState


class SuspensionEnd(Struct, frozen=True, kw_only=True):
    """Why a suspension is over. `done` are the arms (by number) whose wait is over, and how;
    `signal` is the one that ended it, if one did; `note` is what the steps say about it."""

    reason: str
    done: dict[int, Waited]
    closer: UUID | None = None
    delay: Millis = NO_TIME
    signal: Signal | None = None
    note: str = ""

    @classmethod
    def by_signal(
        cls, signal: Signal, arms: tuple[int, ...], delay: Millis = NO_TIME
    ) -> "SuspensionEnd":
        """`signal` has satisfied these arms."""
        done = dict.fromkeys(arms, Waited.SIGNALLED)
        return cls(reason=RESUMED, done=done, closer=signal.id, delay=delay, signal=signal)


def suspension_of(snapshot: Snapshot) -> Suspension | None:
    """The open suspension, None when the execution is not suspended."""
    return snapshot.waits.suspension if isinstance(snapshot.state, Suspended) else None


def end_suspension(
    snapshot: Snapshot,
    now: Millis,
    suspension: Suspension,
    end: SuspensionEnd,
    waits: Waits | None = None,
) -> tuple[Snapshot, tuple[Step, ...]]:
    """The execution after its suspension, which continues its attempt, and the steps that its
    waits become. `suspension` and `waits` are as the signal that ended it left them."""
    if not isinstance(snapshot.state, Suspended):
        raise NotSuspended
    before = waits or snapshot.waits
    life = replace(
        snapshot.life,
        not_before=Millis(now + end.delay) if end.delay else None,
        delay=Gate.RESUME_DELAY,
        waits=close_suspension(before, now, suspension, end),
    )
    after = gated(snapshot, now, snapshot.state.next, life)
    return after, steps_of(suspension, now, end)


def woken_for_cleanup(snapshot: Snapshot, now: Millis) -> Snapshot:
    """The execution without its suspension, if it has one. None of its waits is over."""
    suspension = suspension_of(snapshot)
    if suspension is None:
        return snapshot
    return end_suspension(snapshot, now, suspension, SuspensionEnd(reason=CLEANUP, done={}))[0]


def clean_up_first(
    snapshot: Snapshot, now: Millis, life: Life, outcome: Outcome, span: Millis, reason: str
) -> "Change[Any]":
    """Begins the clean-up of an execution that is to end so; one that is suspended is woken."""
    woken = woken_for_cleanup(snapshot, now)
    life = replace(life, waits=woken.life.waits)
    after, event = cleanup_rules.begin(woken, now, life, outcome, span, reason)
    return Change(None, snapshot, after, (event,))


def close_suspension(
    waits: Waits, now: Millis, suspension: Suspension, end: SuspensionEnd
) -> Waits:
    """What stays open after a suspension: waitpoints of waits that go on, or that outlast them.
    Only a wait that was satisfied has used its signals up."""
    left: dict[UUID, list[tuple[Pending, bool]]] = {}
    for number, arm in enumerate(suspension.arms):
        goes_on = arm.step is not None and number not in end.done
        if arm.policy.close_waitpoint_on_resume and not goes_on:
            continue
        used = end.done.get(number) is Waited.SIGNALLED
        for bound in arm.bound:
            left.setdefault(bound.id, []).append((bound, used))
    pending = waits.pending
    if left:
        known = {p.id: p for p in pending}
        known |= {id: _left_open(ends) for id, ends in left.items()}
        pending = tuple(known.values())
    last = Closed(suspension.id, suspension.attempt, now, end.reason, end.closer)
    return replace(waits, suspension=None, pending=pending, last=last)


def steps_of(suspension: Suspension, now: Millis, end: SuspensionEnd) -> tuple[Step, ...]:
    """The recorded steps of the waits that are over."""
    steps = []
    for number, how in end.done.items():
        arm = suspension.arms[number]
        if arm.step is not None:
            steps.append(_step(arm.step, suspension, now, arm, how, end))
    return tuple(steps)


def resume(
    snapshot: Snapshot | None, now: Millis, delay: Millis = NO_TIME, trigger: str = "operator"
) -> "Change[Resumed]":
    """Resumes a suspended execution without a signal; its attempt is continued, and what it waited
    for is over for good."""
    snapshot = present(snapshot)
    suspension = suspension_of(snapshot)
    if suspension is None:
        raise NotSuspended(f"{snapshot.run} is not suspended, so it cannot be resumed")
    done = dict.fromkeys(range(len(suspension.arms)), Waited.RESUMED)
    over = SuspensionEnd(reason=RESUMED, done=done, delay=delay)
    after, steps = end_suspension(snapshot, now, suspension, over)
    event = event_of(snapshot, now, EventKind.WOKEN, {"reason": trigger})
    outcome = Resumed(snapshot.execution.id, vector(after).public)
    return Change(outcome, snapshot, after, (event,), steps=steps)


def expire_suspension(
    snapshot: Snapshot | None, now: Millis, signal_id: UUID
) -> "Change[SuspensionExpired | AlreadySatisfied]":
    """Ends a suspension whose time is over; what is stored says whether it is.

    `signal_id` is for the signal that tells a resumed execution of the timeout.
    """
    if snapshot is None:
        return unchanged(AlreadySatisfied("not_found"))
    if not isinstance(snapshot.state, Suspended):
        return unchanged(AlreadySatisfied("not_suspended_cleaned"))
    suspension = suspension_of(snapshot)
    if suspension is None:
        return unchanged(AlreadySatisfied("no_active_suspension_cleaned"))
    if snapshot.state.due_at is None or snapshot.state.due_at > now:
        return unchanged(AlreadySatisfied("not_yet_due"))
    overdue = _overdue(suspension, now)
    behaviour = suspension.arms[overdue[0]].behaviour if overdue else Behaviour.AUTO_RESUME
    match behaviour:
        case Behaviour.AUTO_RESUME:
            return _auto_resume(snapshot, now, suspension, signal_id)
        case Behaviour.ESCALATE:
            return _escalate(snapshot, now, snapshot.state, suspension, overdue)
        case _:
            return _end(snapshot, now, behaviour)


def _end(
    snapshot: Snapshot, now: Millis, behaviour: Behaviour
) -> "Change[SuspensionExpired | AlreadySatisfied]":
    """Ends the execution, after its clean-up if it asked for one. A wait of the clean-up itself
    ends it as the clean-up says."""
    outcome, kind = _ENDINGS[behaviour]
    reason = f"{SUSPENSION_TIMEOUT}{behaviour}"
    failure, cleanup = Failure(message=reason, category="timeout"), snapshot.life.cleanup
    if cleanup is not None:
        ended = cleanup_rules.end_after(snapshot, now, cleanup, failure=failure)
        return _expired(snapshot, ended, behaviour)
    if behaviour is Behaviour.CANCEL:
        life = replace(snapshot.life, cancel_reason=reason, cancelled_by="system_timeout")
        span = cleanup_rules.cleanup_time(snapshot)
    else:
        life = replace(snapshot.life, failure=failure)
        span = life.undo_time
    if span is None:
        return _expired(snapshot, end(snapshot, now, outcome, kind, life, reason), behaviour)
    change = clean_up_first(snapshot, now, life, outcome, span, reason)
    return _expired(snapshot, change, behaviour)


def _auto_resume(
    snapshot: Snapshot,
    now: Millis,
    suspension: Suspension,
    signal_id: UUID,
) -> "Change[SuspensionExpired | AlreadySatisfied]":
    """Ends the waits whose time is over; the others go on when the handler asks for them again."""
    done = overdue_waits(suspension, now)
    waits = snapshot.waits
    signal = Signal(
        number=waits.signals + 1,
        id=signal_id,
        waitpoint=UUID(int=0),
        key="",
        name=TIMEOUT,
        accepted_at=now,
        category=TIMEOUT,
        source_type="system",
    )
    numbered = replace(waits, signals=signal.number, internal=waits.internal + 1)
    over = SuspensionEnd(reason=TIMED_OUT, done=done, closer=signal_id)
    after, steps = end_suspension(snapshot, now, suspension, over, numbered)
    change: Change[Never] = Change(
        NotSuspended(),
        snapshot,
        after,
        (event_of(snapshot, now, EventKind.WOKEN, {"reason": TIMEOUT}),),
        steps=steps,
        signals=(ReceivedSignal(signal, suspension.id),),
    )
    return _expired(snapshot, change, Behaviour.AUTO_RESUME)


def _escalate(
    snapshot: Snapshot,
    now: Millis,
    state: Suspended,
    suspension: Suspension,
    overdue: list[int],
) -> "Change[SuspensionExpired | AlreadySatisfied]":
    """Stays suspended, for an operator to look at; its waitpoints stay open, and what else it
    waits for keeps its time."""
    arms = tuple(
        replace(arm, timeout_at=None)
        if number in overdue and arm.behaviour is Behaviour.ESCALATE
        else arm
        for number, arm in enumerate(suspension.arms)
    )
    left = replace(suspension, arms=arms)
    waits = replace(snapshot.waits, suspension=left)
    after = snapshot.to(
        replace(state, reason=OPERATOR_REVIEW, due_at=left.due_at),
        life=replace(snapshot.life, waits=waits),
    )
    event = event_of(snapshot, now, EventKind.ESCALATED, {"reason": TIMEOUT})
    change: Change[Never] = Change(NotSuspended(), snapshot, after, (event,))
    return _expired(snapshot, change, Behaviour.ESCALATE)


def _expired(
    snapshot: Snapshot, change: "Change[Any]", behaviour: Behaviour
) -> "Change[SuspensionExpired | AlreadySatisfied]":
    state = vector(change.after or snapshot).public
    return change.answering(SuspensionExpired(snapshot.execution.id, behaviour, state))


def _overdue(suspension: Suspension, now: Millis) -> list[int]:
    """The arms whose time is over, the earliest first."""
    due = [
        (arm.timeout_at, number)
        for number, arm in enumerate(suspension.arms)
        if arm.timeout_at is not None and arm.timeout_at <= now
    ]
    return [number for _, number in sorted(due)]


def overdue_waits(suspension: Suspension, now: Millis) -> dict[int, Waited]:
    """The arms that have timed out and after which the execution goes on."""
    return {
        number: Waited.TIMED_OUT
        for number in _overdue(suspension, now)
        if suspension.arms[number].behaviour is Behaviour.AUTO_RESUME
    }


def _left_open(ends: list[tuple[Pending, bool]]) -> Pending:
    """A waitpoint after the waits at it, each with whether it has used up what counted for it.

    Example: a channel has received signals 1 to 3. Signal 2 counted for a wait that needs another
    channel as well and goes on; signal 3 satisfied a second wait, which has used it up. Then
    `taken` is 3, so that no later wait is given 1 to 3 again, but 2 is `kept` for the first wait.
    """
    used = {bound.counted for bound, is_used in ends if is_used}
    taken = max([*used, *(bound.taken for bound, _ in ends)])
    waiting = {bound.counted for bound, is_used in ends if not is_used}
    wanted = waiting.union(*(bound.kept for bound, _ in ends)) - used
    kept = tuple(sorted(number for number in wanted if 0 < number <= taken))
    return replace(ends[0][0], taken=taken, kept=kept, counted=0)


def _step(
    ref: StepRef, suspension: Suspension, now: Millis, arm: Arm, how: Waited, end: SuspensionEnd
) -> Step:
    """A signal that satisfied the arm alone is part of the step: its reader need not look it up."""
    signal = end.signal if sum([tally.count for tally in arm.tallies]) == 1 else None
    alone = arm.bound[0].id if signal is None and len(arm.bound) == 1 else None
    recorded = Recorded(
        branch=ref.branch,
        opened=ref.opened,
        waited=how,
        suspension=suspension.id,
        signal=signal,
        waitpoint=alone,
        numbers=() if signal else _numbers(arm),
        started_at=suspension.created_at,
        ended_at=now,
    )
    if end.note:
        recorded = replace(recorded, value=msgspec.Raw(msgspec.json.encode(end.note)))
    doc = msgspec.json.encode(recorded)
    return Step(ref.generation, ref.position, ref.name, ref.occurrence, doc)


def _numbers(arm: Arm) -> tuple[int, ...]:
    """The numbers of the signals that counted for an arm of several waitpoints, if that is known:
    of each waitpoint only the last one is."""
    numbers = tuple([bound.counted for bound in arm.bound])
    counted = sum([tally.count for tally in arm.tallies])
    return numbers if len(numbers) > 1 and all(numbers) and counted == len(numbers) else ()
