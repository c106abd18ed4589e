"""The door to `ready`: one order, and work waits at the first gate that is closed."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.gate import DELAYS, admit, closed
from flowfabric.core.execution.model import (
    Flags,
    Gate,
    Life,
    Next,
    Ready,
    Snapshot,
    Start,
    Suspended,
    Waiting,
)
from flowfabric.core.execution.submission import Submission, create
from flowfabric.core.wait import resume
from flowfabric.core.wait.model import Suspension, Waits

NOW = Millis(1_700_000_000_000)
SOME = UUID("018f4c3e-0000-7000-8000-0123456789ab")
NO_GRACE = Millis(0)

delays = st.sampled_from(sorted(DELAYS))
nexts = st.builds(Next, st.sampled_from(Start), st.integers(0, 5))
moments = st.integers(NOW - 1000, NOW + 1000).map(Millis)
blocks = st.sampled_from([None, "paused_by_operator", "waiting_for_budget"])


def waiting(life: Life, start: Start = Start.INITIAL) -> Snapshot:
    first = create(Submission(kind="job"), SOME, NOW).snapshot
    return first.to(admit(life, Next(start, 0), NOW, first.head.flags), life=life)


@given(nexts)
def test_what_nothing_holds_is_ready(next: Next) -> None:
    assert admit(Life(), next, NOW, Flags.NONE) == Ready(next)


@given(nexts, delays, moments)
def test_a_moment_that_has_not_come_closes_the_gate_it_was_set_for(
    next: Next, gate: Gate, moment: Millis
) -> None:
    life = Life(not_before=moment, delay=gate)
    expected = Waiting(gate, next, moment) if moment > NOW else Ready(next)
    assert admit(life, next, NOW, Flags.NONE) == expected


@given(nexts)
def test_a_moment_without_a_name_is_a_plain_delay(next: Next) -> None:
    life = Life(not_before=Millis(NOW + 1))
    assert admit(life, next, NOW, Flags.NONE) == Waiting(Gate.DELAY, next, Millis(NOW + 1))


@given(nexts, delays, moments)
def test_a_block_comes_before_any_delay_and_has_no_end_of_its_own(
    next: Next, gate: Gate, moment: Millis
) -> None:
    life = Life(blocked="paused_by_operator", not_before=moment, delay=gate)
    assert admit(life, next, NOW, Flags.NONE) == Waiting(Gate.BLOCKED, next, due_at=None)


@given(nexts, blocks, delays, st.none() | moments, st.sampled_from([None, "llm"]), st.booleans())
def test_work_waits_at_the_first_closed_gate_and_at_that_one_only(
    next: Next,
    blocked: str | None,
    gate: Gate,
    moment: Millis | None,
    budget: str | None,
    limited: bool,
) -> None:
    life = Life(blocked=blocked, not_before=moment, delay=gate, budget=budget)
    flags = Flags.LIMITS if limited else Flags.NONE
    expected = [
        found
        for found, holds in [
            (Gate.BLOCKED, blocked is not None),
            (gate, moment is not None and moment > NOW),
            (Gate.BUDGET, budget is not None),
            (Gate.LIMIT, limited),
        ]
        if holds
    ]
    state = admit(life, next, NOW, flags)
    assert state.next == next
    assert list(closed(life, NOW, flags)) == expected
    assert (state.gate if isinstance(state, Waiting) else None) == first_of(expected)


def first_of(gates: list[Gate]) -> Gate | None:
    return gates[0] if gates else None


def test_passing_one_gate_asks_the_rest() -> None:
    """What was not reached yet travels along: a block that is lifted leaves the delay."""
    until = Millis(NOW + 10)
    blocked = waiting(Life(blocked="paused_by_operator", not_before=until, delay=Gate.DELAY))
    freed = operator.unblock(blocked, NOW).after
    assert freed is not None
    assert freed.state == Waiting(Gate.DELAY, Next(Start.INITIAL, 0), until)
    promoted = operator.due(freed, until, 0.5, NO_GRACE, SOME).after
    assert promoted is not None
    assert promoted.state == Ready(Next(Start.INITIAL, 0))
    assert (promoted.life.blocked, promoted.life.not_before) == (None, None)


def test_time_opens_delays_and_nothing_else() -> None:
    """An arrival is parked only when it was refused, and one that is held has a time only until it
    is a member: their time ends them."""
    for gate in Gate:
        until = Millis(NOW + 10)
        life = Life(not_before=until, delay=gate, blocked="paused_by_operator")
        parked = waiting(Life()).to(Waiting(gate, Next(Start.CONTINUE, 0), until), life=life)
        if gate in DELAYS:
            parked = parked.to(parked.state, life=replace(life, blocked=None))
        early = operator.due(parked, Millis(until - 1), 0.5, NO_GRACE, SOME)
        late = operator.due(parked, until, 0.5, NO_GRACE, SOME)
        assert early.after is None
        ends = {Gate.INBOX, Gate.UNSEALED}  # refused, or left alone
        assert (late.after is not None) is (gate in DELAYS | ends)


def test_a_resumed_suspension_passes_the_same_door() -> None:
    """A resume delay is a gate like the others; without one the execution is ready."""
    next = Next(Start.CONTINUE, 0)
    open = Life(waits=Waits(suspension=Suspension(id=SOME)))
    asleep = waiting(Life()).to(Suspended(next, SOME, "waiting_for_signal", NOW), life=open)
    at_once = resume.resume(asleep, NOW).after
    later = resume.resume(asleep, NOW, Millis(10)).after
    assert at_once is not None
    assert later is not None
    assert at_once.state == Ready(next)
    assert later.state == Waiting(Gate.RESUME_DELAY, next, Millis(NOW + 10))


@pytest.mark.parametrize(
    ("delay", "state"),
    [
        (None, Ready(Next(Start.INITIAL, 0))),
        (NOW, Ready(Next(Start.INITIAL, 0))),
        (Millis(NOW - 1), Ready(Next(Start.INITIAL, 0))),
        (Millis(NOW + 1), Waiting(Gate.DELAY, Next(Start.INITIAL, 0), Millis(NOW + 1))),
    ],
)
def test_a_submission_enters_through_the_same_door(
    delay: Millis | None, state: Waiting | Ready
) -> None:
    """§3.1: delayed only when the moment is after now."""
    made = create(Submission(kind="job", delay_until=delay), SOME, NOW).snapshot
    assert made.state == state


def test_the_numbers_of_the_gates_are_stored_and_stay() -> None:
    assert [(gate.name, gate.value) for gate in Gate] == [
        ("INBOX", 0),
        ("UNSEALED", 1),
        ("BLOCKED", 2),
        ("DEPENDENCIES", 3),
        ("DELAY", 4),
        ("BACKOFF", 5),
        ("RESUME_DELAY", 6),
        ("WORKER_DELAY", 7),
        ("LIMIT", 8),
        ("BUDGET", 9),
    ]
