"""Changes: two of them folded into one write, and which endings need no load."""

from uuid import UUID

import pytest
from hypothesis import given
from msgspec.structs import replace

from flowfabric.core.base.errors import LeaseExpired, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, operator
from flowfabric.core.execution.attempt import JitterSource
from flowfabric.core.execution.change import Change, fold, refused, unchanged
from flowfabric.core.execution.model import Failure, Flags
from flowfabric.core.execution.step import Step
from flowfabric.core.flow import children
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind
from flowfabric.core.wait.model import Pending, Waits
from tests.kit.lab import TTL
from tests.kit.snapshots import NOW, OPERATOR, after, fresh, owner_of
from tests.kit.walk import POLICY, Act, Book, lives, play, running

EXPIRY = Millis(NOW + TTL)


@given(lives)
def test_folding_changes_writes_what_one_after_the_other_writes(life: list[Act]) -> None:
    turns = list(play(life))
    one_by_one, at_once = Book(fresh(policy=POLICY)), Book(fresh(policy=POLICY))
    folded: Change[object] | None = None
    for turn in turns:
        one_by_one.write(turn.change)
        folded = turn.change if folded is None else fold(folded, turn.change)
    if folded is not None:
        at_once.write(folded)
        assert folded.outcome is turns[-1].change.outcome
    assert at_once.all() == one_by_one.all()


def test_folding_with_an_answer_that_writes_nothing_keeps_the_write() -> None:
    held = running()
    write = attempt.complete(held, NOW, owner_of(held))
    answer: Change[object] = unchanged("told")
    assert fold(write, answer) == Change("told", write.before, write.after, write.events)
    assert fold(answer, write) == write
    assert fold(answer, unchanged("again")).after is None


def test_a_refusal_is_written_and_told_as_an_error() -> None:
    """G5"""
    held = running()
    write = attempt.hand_back(held, NOW, owner_of(held))
    error = LeaseExpired()
    change = refused(write, error)
    assert change.outcome is error
    assert (change.before, change.after) == (write.before, write.after)
    assert (change.events, change.attempts) == (write.events, write.attempts)


PLAIN = Flags.FLOW | Flags.LIMITS | Flags.BUDGETS | Flags.SUSPECT | Flags.WAITPOINTS


@pytest.mark.parametrize("flag", [flag for flag in Flags if flag and flag not in PLAIN])
def test_an_ending_of_what_owns_more_is_not_plain(flag: Flags) -> None:
    held = running()
    assert attempt.complete(held, NOW, owner_of(held)).plain_end
    rich = held.to(held.state, flags=flag)
    assert not attempt.complete(rich, NOW, owner_of(rich)).plain_end


SOME = UUID(int=7)


def test_the_end_of_one_with_waitpoints_is_plain_unless_one_of_them_runs_out() -> None:
    """That one has an alarm, which goes with the ending."""
    held = running()
    for expires_at, plain in ((None, True), (Millis(NOW + 1), False)):
        waits = Waits(pending=(Pending(SOME, "wp", expires_at, attempt=0),), signals=1)
        waiting = held.to(held.state, flags=Flags.WAITPOINTS, life=replace(held.life, waits=waits))
        change = attempt.complete(waiting, NOW, owner_of(waiting))
        assert change.plain_end is plain
        assert not (after(change).life.waits or Waits()).pending, "it closes either way"


def test_the_end_of_a_member_is_plain_and_owes_its_flow() -> None:
    held = running()
    flow = replace(held.execution, flow=SOME)
    member = replace(held, execution=flow).to(held.state, flags=Flags.FLOW)
    change = attempt.complete(member, NOW, owner_of(member))
    assert change.plain_end
    assert [entry.flow for entry in change.outbox] == [SOME]


CHILD = UUID(int=8)


def test_an_end_without_success_is_plain_and_owes_the_flows_that_were_started() -> None:
    """I-19: also where it is folded with the replay that follows"""
    held = running()
    parent = held.to(held.state, life=replace(held.life, flows=(CHILD,)))
    assert attempt.complete(parent, NOW, owner_of(parent)).outbox == ()
    failed = attempt.fail(
        parent, NOW, owner_of(parent), Failure("no", "permanent"), JitterSource(0.0)
    )
    assert failed.plain_end
    assert failed.after is not None
    owed = OutboxEntry(CHILD, held.execution.uuid, failed.after.head.version, OutboxKind.ORPHANED)
    assert failed.outbox == (owed,)
    again = operator.replay(failed.after, NOW)
    assert again.after is not None
    assert (again.after.life.flows, again.after.life.orphans) == ((), (CHILD,))
    assert again.outbox == ()
    assert fold(failed, again).outbox == (owed,)
    heard = children.forget(failed.after, NOW, CHILD, orphan=False)
    assert heard.after is not None
    assert heard.after.life.flows == ()
    assert heard.outbox == ()
    listed = children.start(held, NOW, CHILD)
    cancelled = operator.cancel(listed.after, NOW, OPERATOR, "enough")
    assert [entry.kind for entry in fold(listed, cancelled).outbox] == [OutboxKind.ORPHANED]


def test_only_an_ending_by_its_owner_that_writes_nothing_else_is_plain() -> None:
    held = running()
    step = Step(0, 0, "sleep", 0, b"")
    end = attempt.complete(held, NOW, owner_of(held))
    assert not Change(end.outcome, end.before, end.after, steps=(step,)).plain_end
    assert not Change(end.outcome, None, end.after).plain_end
    assert not unchanged("told").plain_end
    assert not attempt.hand_back(held, NOW, owner_of(held)).plain_end
    assert not operator.cancel(fresh(), NOW, OPERATOR, "enough").plain_end


def test_a_refusal_is_never_a_plain_ending() -> None:
    """A claim whose lease was renewed looks expired to its holder; over its cap, that would be an
    ending."""
    held = running(policy={"max_reclaim_count": 0})
    late = attempt.complete(held, EXPIRY, owner_of(held))
    assert isinstance(late.outcome, LeaseExpired)
    assert after(late).state != held.state
    assert not late.plain_end


def test_a_deadline_stands_until_the_end() -> None:
    deadline = Millis(NOW + 5000)
    held = running(deadline_at=deadline)
    assert attempt.hand_back(held, NOW, owner_of(held)).alarm == deadline
    assert attempt.complete(held, NOW, owner_of(held)).alarm is None
    assert Change(NotFound("execution")).alarm is None
