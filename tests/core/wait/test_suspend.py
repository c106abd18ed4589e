"""The rules of suspending and waking as pure functions."""

from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    LeaseExpired,
    NoSigningKey,
    NotFound,
    NotSuspended,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Flags,
    Outcome,
    Ready,
    Snapshot,
    Suspended,
)
from flowfabric.core.execution.status import vector
from flowfabric.core.execution.step import Recorded, Step
from flowfabric.core.wait import resume
from flowfabric.core.wait.condition.codec import read_condition, write_condition
from flowfabric.core.wait.condition.model import ByName, Single, Wildcard, all_waitpoints
from flowfabric.core.wait.keyring import EMPTY_RING
from flowfabric.core.wait.model import (
    Arm,
    Behaviour,
    DedupRecord,
    Loaded,
    ReceivedSignal,
    ResumePolicy,
    Signal,
    StepRef,
    Waited,
    Waits,
)
from flowfabric.core.wait.request import (
    PAST_TOLERANCE,
    Binding,
    Suspend,
    Wait,
    WaitpointUse,
    check_suspend,
)
from flowfabric.core.wait.suspend import (
    REPEAT_GRACE,
    REPEAT_WINDOW,
    AlreadyMet,
    NowSuspended,
    needs_to_suspend,
    suspend,
)
from flowfabric.core.wait.waitpoint import NewWaitpoint, create, describe, expire_pending
from tests.kit.lab import TTL
from tests.kit.situations import is_legal
from tests.kit.snapshots import ALL, NOW, after, owner_of, running

LATER = Millis(NOW + 1_000)
WAITPOINT = UUID(int=7)
SUSPENSION = UUID(int=8)
SYNTHETIC = UUID(int=9)


def nothing() -> Loaded:
    return Loaded({}, {}, [])


def wait(
    key: str = "go", id: UUID = WAITPOINT, use: WaitpointUse = WaitpointUse.FRESH, **members: Any
) -> Wait:
    binding = Binding(id=id, key=key, use=use)
    return Wait(**{"condition": Single(key), "bindings": (binding,), **members})


def request(*waits: Wait, **members: Any) -> Suspend:
    given = {"id": SUSPENSION, "waits": waits or (wait(),), "kid": "k1", **members}
    return Suspend(**given)


def suspending(
    held: Snapshot, wanted: Suspend, memory: Loaded | None = None, at: Millis = NOW
) -> Change[NowSuspended | AlreadyMet]:
    return suspend(held, at, memory or nothing(), owner_of(held), wanted)


def waits_of(snapshot: Snapshot) -> Waits:
    assert snapshot.life.waits is not None
    return snapshot.life.waits


def asleep(*waits: Wait, **members: Any) -> Snapshot:
    return after(suspending(running(), request(*waits, **members)))


def with_pending(**members: Any) -> tuple[Snapshot, Loaded]:
    held = running()
    new = NewWaitpoint(id=WAITPOINT, key="go", kid="k1", **members)
    change = create(held, NOW, nothing(), owner_of(held), new)
    return after(change), Loaded({WAITPOINT: change.waitpoints[0]}, {}, [])


def heard(number: int, name: str = "yes") -> ReceivedSignal:
    return ReceivedSignal(Signal(number, UUID(int=100 + number), WAITPOINT, "go", name, NOW))


# -- suspending


def test_a_suspend_is_one_change_of_everything() -> None:
    """INV-12: state, waitpoint, event and flag together."""
    change = suspending(running(), request(wait(timeout_at=LATER)))
    slept = after(change)
    assert isinstance(slept.state, Suspended)
    assert (slept.state.suspension, slept.state.due_at) == (SUSPENSION, LATER)
    assert slept.state.since == NOW
    assert slept.head.flags & Flags.WAITPOINTS
    assert [waitpoint.id for waitpoint in change.waitpoints] == [WAITPOINT]
    assert [event.kind for event in change.events] == [EventKind.SUSPENDED]
    assert [bound.id for bound in waits_of(slept).active] == [WAITPOINT]
    assert is_legal(vector(slept))


def test_what_must_be_remembered_is_asked_for() -> None:
    held, _ = with_pending()
    wanted = request(wait(use=WaitpointUse.PENDING), idempotency_key="k")
    ask = needs_to_suspend(held, wanted)
    assert ask is not None
    assert (ask.waitpoints, ask.buffered) == ((WAITPOINT,), ((WAITPOINT, 0),))
    assert len(ask.dedup) == 1
    assert needs_to_suspend(None, wanted) is None
    plain = needs_to_suspend(held, replace(wanted, idempotency_key=""))
    assert plain is not None
    assert plain.dedup == ()


@pytest.mark.parametrize(
    ("timeout", "until"),
    [
        (None, NOW + REPEAT_WINDOW),
        (LATER, LATER + REPEAT_GRACE),
        (Millis(NOW - 5), NOW + REPEAT_GRACE),
        (Millis(NOW + 2 * REPEAT_WINDOW), NOW + REPEAT_WINDOW),
    ],
)
def test_how_long_an_answer_is_remembered(timeout: Millis | None, until: int) -> None:
    """E-T213"""
    wanted = request(wait(timeout_at=timeout), idempotency_key="k")
    held = running()
    change = suspending(held, wanted)
    [record] = change.dedup
    assert record.until == until
    assert record.stands(Millis(until - 1))
    assert not record.stands(Millis(until))
    known = Loaded({}, {record.key: record}, [])
    again = suspend(after(change), NOW, known, owner_of(held), wanted)
    assert isinstance(again.outcome, NowSuspended)
    assert isinstance(change.outcome, NowSuspended)
    assert again.outcome.suspension == change.outcome.suspension
    assert again.outcome.waitpoints == change.outcome.waitpoints
    assert again.after is None


def test_a_mark_that_ran_out_is_as_good_as_none() -> None:
    wanted = request(idempotency_key="k")
    [record] = suspending(running(), wanted).dedup
    old = DedupRecord(record.key, NOW, record.doc)
    change = suspending(running(), replace(wanted, id=UUID(int=99)), Loaded({}, {old.key: old}, []))
    assert isinstance(change.outcome, NowSuspended)
    assert change.outcome.suspension == UUID(int=99)


def test_a_lease_that_ran_out_is_marked_and_refused() -> None:
    held = running()
    change = suspend(held, Millis(NOW + TTL), nothing(), owner_of(held), request())
    assert isinstance(change.outcome, LeaseExpired)
    assert [event.kind for event in change.events] == [EventKind.LEASE_EXPIRED]
    assert change.waitpoints == ()


def test_nothing_fresh_without_a_key() -> None:
    """E-T232"""
    with pytest.raises(NoSigningKey):
        suspending(running(), request(kid=None))
    held, memory = with_pending()
    assert (
        suspending(held, request(wait(use=WaitpointUse.PENDING), kid=None), memory).after
        is not None
    )


def test_a_missing_execution_cannot_be_suspended() -> None:
    held = running()
    with pytest.raises(NotFound):
        suspend(None, NOW, nothing(), owner_of(held), request())


@pytest.mark.parametrize("state", [name for name in ALL if name != "running"])
def test_only_what_runs_can_be_suspended(state: str) -> None:
    """E-T214"""
    held = running()
    with pytest.raises(FlowFabricError):
        suspend(ALL[state], NOW, nothing(), owner_of(held), request())


def test_a_timeout_may_be_a_little_late() -> None:
    """E-T218"""
    edge = request(wait(timeout_at=Millis(NOW - PAST_TOLERANCE)))
    assert check_suspend(edge, NOW) is edge
    with pytest.raises(Invalid, match="timeout_at_in_past"):
        check_suspend(edge, Millis(NOW + 1))


def test_what_a_request_says_unless_told_otherwise() -> None:
    """E-T219: the policy's defaults, the key made of an id, a matcher through JSON and back."""
    policy = ResumePolicy()
    assert (policy.target, policy.resume_delay) == ("runnable", None)
    assert (policy.consume_matched_signals, policy.close_waitpoint_on_resume) == (True, True)
    assert policy.retain_signal_buffer_until_closed is False
    assert Binding.fresh(WAITPOINT) == Binding(id=WAITPOINT, key=f"wpk:{WAITPOINT}")
    assert (wait().behaviour, request().requested_by) == (None, "worker")  # then the policy's
    for condition in (Single("go", ByName("yes")), Single("go", Wildcard())):
        through = msgspec.json.decode(msgspec.json.encode(write_condition(condition)))
        assert read_condition(through) == condition


# -- what came before


def test_signals_that_came_before_are_enough() -> None:
    """E-T228: the lease is kept, the signal counts for this suspension, nobody is told."""
    held, memory = with_pending()
    memory.signals.append(heard(1))
    change = suspending(held, request(wait(use=WaitpointUse.PENDING)), memory)
    assert isinstance(change.outcome, AlreadyMet)
    gone_on = after(change)
    assert isinstance(gone_on.state, Active)
    assert vector(gone_on) == vector(held)
    assert (change.events, change.counted) == ((), ((1, SUSPENSION),))
    assert waits_of(gone_on).pending == ()
    last = waits_of(gone_on).last
    assert last is not None
    assert (last.reason, last.closer) == ("resumed", heard(1).signal.id)


def test_signals_an_earlier_wait_took_are_not_heard_again() -> None:
    """A lasting waitpoint stays open after a wait, and its signals count once."""
    held, memory = with_pending(lasting=True)
    memory.signals += [heard(1), heard(2)]
    keep = ResumePolicy(close_waitpoint_on_resume=False)
    for number in (1, 2, 3):
        id = UUID(int=1_000 + number)
        again = replace(request(wait(use=WaitpointUse.PENDING, policy=keep)), id=id)
        change = suspending(held, again, memory)
        if number == 3:
            break
        assert isinstance(change.outcome, AlreadyMet)
        assert change.counted == ((number, id),)
        held = after(change)
        [left] = waits_of(held).pending
        assert (left.taken, left.counted) == (number, 0)
    assert isinstance(change.outcome, NowSuspended)


def test_steps_are_written_by_the_change_that_satisfies() -> None:
    held, memory = with_pending()
    memory.signals.append(heard(1))
    ref = StepRef(generation=2, position=4, name="w", occurrence=1, branch="b")
    made = Step(2, 3, "before", 0, b"1")
    wanted = request(wait(use=WaitpointUse.PENDING, step=ref), steps=(made,))
    change = suspending(held, wanted, memory)
    [first, step] = change.steps
    assert first == made
    assert (step.generation, step.position, step.name, step.occurrence) == (2, 4, "w", 1)
    recorded = msgspec.json.decode(step.doc, type=Recorded)
    assert (recorded.waited, recorded.branch) == (Waited.SIGNALLED, "b")
    assert recorded.suspension == SUSPENSION


# -- waking


@pytest.mark.parametrize("state", [name for name in ALL if name != "suspended"])
def test_what_is_not_suspended_cannot_be_woken(state: str) -> None:
    """E-T235, E-X08"""
    with pytest.raises(NotSuspended):
        resume.resume(ALL[state], NOW)
    change = resume.expire_suspension(ALL[state], LATER, SYNTHETIC)
    assert change.outcome == AlreadySatisfied("not_suspended_cleaned")
    assert change.after is None


def test_timers_without_a_suspension() -> None:
    """E-X08"""
    gone = resume.expire_suspension(None, NOW, SYNTHETIC)
    assert gone.outcome == AlreadySatisfied("not_found")
    slept = asleep(wait(timeout_at=LATER))
    head = replace(slept.head, life=replace(slept.life, waits=None))
    empty = resume.expire_suspension(replace(slept, head=head), LATER, SYNTHETIC)
    assert empty.outcome == AlreadySatisfied("no_active_suspension_cleaned")
    early = resume.expire_suspension(slept, Millis(LATER - 1), SYNTHETIC)
    assert early.outcome == AlreadySatisfied("not_yet_due")


@pytest.mark.parametrize("behaviour", Behaviour)
def test_every_behaviour_leads_to_a_legal_state(behaviour: Behaviour) -> None:
    """E-X24: INV-12 as well, a suspension is open exactly while it is suspended."""
    slept = asleep(wait(timeout_at=LATER, behaviour=behaviour))
    change = resume.expire_suspension(slept, LATER, SYNTHETIC)
    assert isinstance(change.outcome, resume.SuspensionExpired)
    assert change.outcome.behaviour is behaviour
    woken = after(change)
    assert is_legal(vector(woken))
    assert change.outcome.state is vector(woken).public
    is_open = waits_of(woken).suspension is not None
    assert is_open == isinstance(woken.state, Suspended)
    assert is_open == (behaviour is Behaviour.ESCALATE)
    assert [row.signal.id for row in change.signals] == (
        [SYNTHETIC] if behaviour is Behaviour.AUTO_RESUME else []
    )


def test_the_sweep_and_the_timer_decide_the_same() -> None:
    slept = asleep(wait(timeout_at=LATER, behaviour=Behaviour.CANCEL))
    swept = operator.due(slept, LATER, 0.5, Millis(0), SYNTHETIC)
    timed = resume.expire_suspension(slept, LATER, SYNTHETIC)
    assert (swept.after, swept.events) == (timed.after, timed.events)
    assert isinstance(after(swept).state, Ended)


def test_the_deadline_goes_before_the_timeout() -> None:
    held = running(deadline_at=LATER)
    slept = after(suspending(held, request(wait(timeout_at=LATER, behaviour=Behaviour.CANCEL))))
    end = after(operator.due(slept, LATER, 0.5, Millis(0), SYNTHETIC)).state
    assert isinstance(end, Ended)
    assert end.outcome is Outcome.EXPIRED


def test_until_ends_no_wait() -> None:
    ref = StepRef(generation=0, position=0, name="w", occurrence=0)
    slept = asleep(wait(step=ref), until=LATER)
    change = resume.expire_suspension(slept, LATER, SYNTHETIC)
    assert isinstance(after(change).state, Ready)
    assert change.steps == ()
    assert [left.id for left in waits_of(after(change)).pending] == [WAITPOINT]


def test_a_resume_ends_every_wait() -> None:
    """E-T233"""
    refs = [StepRef(generation=0, position=at, name=str(at), occurrence=0) for at in (0, 1)]
    slept = asleep(wait("a", step=refs[0]), wait("b", UUID(int=77), step=refs[1]))
    change = resume.resume(slept, NOW)
    assert [step.name for step in change.steps] == ["0", "1"]
    assert (waits_of(after(change)).pending, waits_of(after(change)).suspension) == ((), None)


# -- pending waitpoints


def test_pending_waitpoints_run_out_at_their_moment() -> None:
    held, _ = with_pending(expires_in=Millis(1_000))
    assert held.alarm_at == LATER
    early = expire_pending(held, Millis(LATER - 1))
    assert (early.outcome, early.after) == (AlreadySatisfied("not_yet_due"), None)
    closed = after(expire_pending(held, LATER))
    assert waits_of(closed).pending == ()
    assert closed.state == held.state


def test_an_end_leaves_nothing_open() -> None:
    """E-T163, E-T164: whatever the execution did."""
    both = Wait(
        condition=all_waitpoints("a", "b"),
        bindings=(Binding(id=WAITPOINT, key="a"), Binding(id=UUID(int=77), key="b")),
    )
    for snapshot in (asleep(both), with_pending()[0]):
        end = snapshot.to(Ended(Outcome.CANCELLED, NOW, attempt=0))
        assert waits_of(end) == Waits(signals=0)
        assert end.alarm_at is None


def test_what_belongs_to_the_execution_is_found_again_by_a_replay() -> None:
    held = with_pending(lasting=True)[0]
    end = held.to(Ended(Outcome.CANCELLED, NOW, attempt=0))
    assert waits_of(end).pending == waits_of(held).pending
    assert end.alarm_at is None
    assert describe(end, {}, EMPTY_RING) == []
    assert waits_of(after(operator.replay(end, NOW))).pending == waits_of(held).pending
    succeeded = held.to(Ended(Outcome.SUCCESS, NOW, attempt=0))
    assert waits_of(after(operator.replay(succeeded, NOW))).pending == ()


# -- behaviours of a timeout


@pytest.mark.parametrize(
    ("word", "behaviour"),
    [
        *[(behaviour.value, behaviour) for behaviour in Behaviour],
        ("auto_resume", Behaviour.AUTO_RESUME),
        ("of a newer release", Behaviour.FAIL),
        ("", Behaviour.FAIL),
    ],
)
def test_a_stored_behaviour_that_is_not_known_fails_the_run(
    word: str, behaviour: Behaviour
) -> None:
    """§3.39: the short and the long form are accepted; unknown is fail"""
    stored = msgspec.json.encode({"condition": {}, "behaviour": word})
    assert msgspec.json.decode(stored, type=Arm).behaviour is behaviour
