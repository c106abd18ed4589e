"""The seventeen legal combinations, proved over every value the union can take and over every
state the rules can reach."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Corruption, FlowFabricError, NotEligible
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, grant, lease, operator, reclaim
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.grant import Grantee
from flowfabric.core.execution.lease import Owner, Taking, fence_of
from flowfabric.core.execution.model import (
    EMPTY_LIFE,
    Active,
    AttemptOutcome,
    Ended,
    Failure,
    Gate,
    InterruptedAttempt,
    Lease,
    Life,
    Lost,
    LostLease,
    Next,
    Outcome,
    Ready,
    Snapshot,
    Source,
    Start,
    State,
    Suspended,
    Waiting,
    WorkerIdentity,
)
from flowfabric.core.execution.status import (
    AttemptState,
    Blocking,
    Eligibility,
    Ownership,
    Phase,
    PublicState,
    Vector,
    blocking_detail,
    derive_public,
    vector,
    vector_of,
)
from flowfabric.core.execution.submission import Submission, create
from flowfabric.core.wait import resume
from flowfabric.core.wait.model import Arm, Pending, Suspension, Waits

NOW = Millis(1_700_000_000_000)
LATER = Millis(NOW + 3_600_000)
SOME = UUID("018f4c3e-0000-7000-8000-0123456789ab")
WORKER = WorkerIdentity("w1", "w1-a")
LEASE = Lease(SOME, 0, Start.INITIAL, WORKER, NOW, Millis(NOW + 30_000))

FIRST, RETRY, REPLAY = (
    AttemptState.PENDING_FIRST,
    AttemptState.PENDING_RETRY,
    AttemptState.PENDING_REPLAY,
)
INTERRUPTED = AttemptState.INTERRUPTED


def runnable(eligibility: Eligibility, blocking: Blocking, *attempts: AttemptState) -> set[Vector]:
    shape = partial(Vector, Phase.RUNNABLE, Ownership.UNOWNED, eligibility, blocking, "none")
    return {shape(attempt) for attempt in attempts}


def active(ownership: Ownership, blocking: Blocking, attempt: AttemptState) -> set[Vector]:
    return {Vector(Phase.ACTIVE, ownership, Eligibility.NOT_APPLICABLE, blocking, "none", attempt)}


def terminal(outcomes: set[str], *attempts: AttemptState) -> set[Vector]:
    shape = partial(
        Vector, Phase.TERMINAL, Ownership.UNOWNED, Eligibility.NOT_APPLICABLE, Blocking.NONE
    )
    return {shape(outcome, attempt) for outcome, attempt in product(outcomes, attempts)}


def suspended(*reasons: Blocking) -> set[Vector]:
    shape = partial(Vector, Phase.SUSPENDED, Ownership.UNOWNED, Eligibility.NOT_APPLICABLE)
    return {shape(reason, "none", INTERRUPTED) for reason in reasons}


TIME, DEPENDENCIES = Eligibility.NOT_UNTIL_TIME, Eligibility.DEPENDENCIES

LEGAL: dict[str, set[Vector]] = {
    "S1": runnable(Eligibility.ELIGIBLE_NOW, Blocking.WORKER, FIRST),
    "S2": runnable(TIME, Blocking.DELAY, FIRST),
    "S3": runnable(DEPENDENCIES, Blocking.CHILDREN, FIRST, RETRY, REPLAY),
    "S4": set().union(
        *(
            runnable(eligibility, reason, FIRST, RETRY, REPLAY, INTERRUPTED)
            for eligibility, reason in [
                (Eligibility.BUDGET, Blocking.BUDGET),
                (Eligibility.QUOTA, Blocking.QUOTA),
                (Eligibility.ROUTE, Blocking.CAPABLE_WORKER),
                (Eligibility.OPERATOR, Blocking.OPERATOR),
                (Eligibility.LANE_STATE, Blocking.POLICY),
            ]
        )
    ),
    "S5": active(Ownership.LEASED, Blocking.NONE, AttemptState.RUNNING),
    "S6": active(Ownership.EXPIRED, Blocking.WORKER, INTERRUPTED),
    "S7": active(Ownership.REVOKED, Blocking.WORKER, INTERRUPTED),
    "S8": suspended(
        Blocking.SIGNAL,
        Blocking.APPROVAL,
        Blocking.CALLBACK,
        Blocking.TOOL_RESULT,
        Blocking.OPERATOR,
        Blocking.POLICY,
        Blocking.BUDGET,
    ),
    "S9": runnable(Eligibility.ELIGIBLE_NOW, Blocking.WORKER, INTERRUPTED),
    "S10": runnable(TIME, Blocking.RESUME_DELAY, INTERRUPTED),
    "S11": runnable(TIME, Blocking.DELAY, INTERRUPTED),
    "S12": runnable(DEPENDENCIES, Blocking.CHILDREN, INTERRUPTED),
    "S13": runnable(TIME, Blocking.RETRY_BACKOFF, RETRY),
    "S14": runnable(Eligibility.ELIGIBLE_NOW, Blocking.WORKER, RETRY),
    "S15": runnable(Eligibility.ELIGIBLE_NOW, Blocking.WORKER, REPLAY),
    "S16": terminal(
        # Skipped too: coordination.md 1.7, a join that becomes impossible while its member runs.
        {"success", "failed", "cancelled", "expired", "skipped"},
        AttemptState.TERMINAL,
    ),
    "S17": terminal({"cancelled", "expired", "skipped"}, FIRST, RETRY, REPLAY),
}


def number_of(shape: Vector) -> str:
    numbers = [number for number, shapes in LEGAL.items() if shape in shapes]
    assert len(numbers) == 1, f"{shape} is no legal combination"
    return numbers[0]


def union() -> Iterator[tuple[State, Life]]:
    """Every state of the union, with everything the projection could look at."""
    nexts = [Next(start, index) for start, index in product(Start, (0, 1))]
    lives = [EMPTY_LIFE, *(Life(blocked=word) for word in [*Blocking, "nonsense"])]
    for gate, next, life in product(Gate, nexts, lives):
        yield Waiting(gate, next, NOW), life
    for next, life in product(nexts, lives):
        yield Ready(next), life
        yield Lost(False, next), life
        yield Lost(True, next), life
        for reason in REASONS:
            yield Suspended(next, SOME, reason, NOW), life
    for start in Start:
        yield Active(Lease(SOME, 0, start, WORKER, NOW, NOW)), EMPTY_LIFE
    for outcome, index, pending in product(Outcome, (None, 0), (None, *Start)):
        yield Ended(outcome, NOW, index, pending), EMPTY_LIFE


REASONS = {
    "waiting_for_signal": Blocking.SIGNAL,
    "waiting_for_approval": Blocking.APPROVAL,
    "waiting_for_callback": Blocking.CALLBACK,
    "waiting_for_tool_result": Blocking.TOOL_RESULT,
    "waiting_for_operator_review": Blocking.OPERATOR,
    "manual_pause": Blocking.OPERATOR,
    "paused_by_policy": Blocking.POLICY,
    "paused_by_budget": Blocking.BUDGET,
    "step_boundary": Blocking.SIGNAL,
    "anything else": Blocking.SIGNAL,
}


def test_exactly_the_seventeen_legal_combinations_come_out_of_the_whole_union() -> None:
    """§2.3, INV-6"""
    seen: set[Vector] = set()
    corrupt = 0
    for state, life in union():
        try:
            seen.add(vector_of(state, life))
        except Corruption:
            corrupt += 1
    assert seen == set().union(*LEGAL.values())
    assert {number_of(shape) for shape in seen} == {f"S{number}" for number in range(1, 18)}
    assert corrupt > 0


@pytest.mark.parametrize(
    ("state", "number"),
    [
        (Waiting(Gate.INBOX, Next(Start.INITIAL, 0)), "S1"),
        (Ready(Next(Start.INITIAL, 0)), "S1"),
        (Waiting(Gate.DELAY, Next(Start.INITIAL, 0), NOW), "S2"),
        (Waiting(Gate.UNSEALED, Next(Start.INITIAL, 0)), "S3"),
        (Waiting(Gate.DEPENDENCIES, Next(Start.INITIAL, 0)), "S3"),
        (Waiting(Gate.DEPENDENCIES, Next(Start.RETRY, 1)), "S3"),
        (Waiting(Gate.DEPENDENCIES, Next(Start.REPLAY, 1)), "S3"),
        (Waiting(Gate.LIMIT, Next(Start.INITIAL, 0)), "S4"),
        (Waiting(Gate.LIMIT, Next(Start.RETRY, 1)), "S4"),
        (Waiting(Gate.BUDGET, Next(Start.CONTINUE, 0)), "S4"),
        (Waiting(Gate.BLOCKED, Next(Start.REPLAY, 1)), "S4"),
        (Active(LEASE), "S5"),
        (Lost(False, Next(Start.RECLAIM, 1)), "S6"),
        (Lost(True, Next(Start.RECLAIM, 1)), "S7"),
        (Suspended(Next(Start.CONTINUE, 0), SOME, "waiting_for_signal", NOW), "S8"),
        (Ready(Next(Start.CONTINUE, 0)), "S9"),
        (Waiting(Gate.RESUME_DELAY, Next(Start.CONTINUE, 0), NOW), "S10"),
        (Waiting(Gate.WORKER_DELAY, Next(Start.CONTINUE, 0), NOW), "S11"),
        (Waiting(Gate.DEPENDENCIES, Next(Start.CONTINUE, 0)), "S12"),
        (Waiting(Gate.BACKOFF, Next(Start.RETRY, 1), NOW), "S13"),
        (Ready(Next(Start.RETRY, 1)), "S14"),
        (Ready(Next(Start.REPLAY, 1)), "S15"),
        (Ended(Outcome.SUCCESS, NOW, 0), "S16"),
        (Ended(Outcome.FAILED, NOW, 0), "S16"),
        (Ended(Outcome.SKIPPED, NOW, 0), "S16"),
        (Ended(Outcome.SKIPPED, NOW, None, Start.INITIAL), "S17"),
        (Ended(Outcome.CANCELLED, NOW, 0, Start.RETRY), "S17"),
        (Ended(Outcome.EXPIRED, NOW, 0, Start.REPLAY), "S17"),
    ],
)
def test_each_state_reads_as_its_numbered_combination(state: State, number: str) -> None:
    """§2.3: an arrival reads as S1, an unsealed member as S3, a wait for a limit as S4."""
    assert number_of(vector_of(state, EMPTY_LIFE)) == number


@pytest.mark.parametrize(
    ("state", "life"),
    [
        (Waiting(Gate.BACKOFF, Next(Start.INITIAL, 0), NOW), EMPTY_LIFE),
        (Waiting(Gate.RESUME_DELAY, Next(Start.RETRY, 1), NOW), EMPTY_LIFE),
        (Waiting(Gate.DELAY, Next(Start.RETRY, 1), NOW), EMPTY_LIFE),
        (Waiting(Gate.BLOCKED, Next(Start.INITIAL, 0)), Life(blocked="nonsense")),
        (Waiting(Gate.BLOCKED, Next(Start.INITIAL, 0)), Life(blocked="waiting_for_signal")),
        (Ended(Outcome.SUCCESS, NOW, None, Start.INITIAL), EMPTY_LIFE),
        (Ended(Outcome.CANCELLED, NOW, 0, Start.CONTINUE), EMPTY_LIFE),
    ],
)
def test_a_state_no_rule_writes_is_told_as_corruption(state: State, life: Life) -> None:
    """§2.3: reads say so rather than guess."""
    with pytest.raises(Corruption):
        vector_of(state, life)


# -- every state the rules can reach

POLICIES: list[dict[str, Any]] = [
    {},
    {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}}},
    {"retry_policy": {"max_retries": 1}, "timeout_policy": {"attempt_timeout_ms": 10}},
    {"timeout_policy": {"execution_deadline_ms": 100, "max_reclaim_count": 1}},
]

Move = Callable[[Snapshot, Owner, Millis], Change[Any]]
TAKING = Taking(SOME, WORKER, Millis(30_000))
GRANTEE = Grantee("w1", frozenset(), Millis(10_000))

MOVES: list[Move] = [
    lambda s, o, now: attempt.complete(s, now, o, b"{}"),
    lambda s, o, now: attempt.fail(s, now, o, Failure("boom")),
    lambda s, o, now: attempt.fail(s, now, o, Failure("boom", "permanent")),
    lambda s, o, now: attempt.delay(s, now, o, Millis(now + 10)),
    lambda s, o, now: attempt.hand_back(s, now, o),
    lambda s, o, now: operator.cancel(s, now, o, "enough"),
    lambda s, o, now: operator.cancel_owned(s, now, o, "enough"),
    lambda s, o, now: operator.expire(s, now),
    lambda s, o, now: operator.change_priority(s, now, 5, anywhere=True),
    lambda s, o, now: operator.replay(s, now),
    lambda s, o, now: operator.block(s, now, "paused_by_operator"),
    lambda s, o, now: operator.block(s, now, "waiting_for_budget"),
    lambda s, o, now: operator.unblock(s, now),
    lambda s, o, now: resume.resume(s, now),
    lambda s, o, now: resume.resume(s, now, Millis(10)),
    lambda s, o, now: operator.due(s, now, 0.5, Millis(0), UUID(int=7)),
    lambda s, o, now: lease.renew(s, now, o, Millis(30_000)),
    lambda s, o, now: lease.revoke(s, now, reason="tired"),
    lambda s, o, now: lease.mark_expired(s, now),
    lambda s, o, now: take(s, now),
    lambda s, o, now: grant.issue_grant(s, now, GRANTEE),
    lambda s, o, now: grant.claim_granted(s, now, TAKING),
    lambda s, o, now: grant.claim_resumed(s, now, TAKING),
    lambda s, o, now: grant.grant_and_claim(s, now, TAKING),
    lambda s, o, now: reclaim.issue_reclaim_grant(s, now, GRANTEE),
    lambda s, o, now: reclaim.reclaim(s, now, TAKING),
    lambda s, o, now: reclaim.reclaim(s, now, TAKING, 0),
]


def take(snapshot: Snapshot, now: Millis) -> Change[Snapshot]:
    if not isinstance(snapshot.state, Ready | Lost):
        raise NotEligible
    return lease.take(snapshot, now, snapshot.state.next, TAKING)


def beginnings() -> Iterator[Snapshot]:
    for policy, delay in product(POLICIES, (None, Millis(NOW + 10))):
        submission = Submission(kind="job", policy=policy, delay_until=delay)
        yield create(submission, SOME, NOW).snapshot
    # What other parts of the engine write: a suspension and a wait for dependencies.
    first = create(Submission(kind="job"), SOME, NOW).snapshot
    paused = Life(
        paused=InterruptedAttempt(0, Start.INITIAL, WORKER, 1, NOW, NOW, "waiting_for_signal")
    )
    carry_on = Next(Start.CONTINUE, 0)
    asleep = replace(paused, waits=Waits(suspension=Suspension(id=SOME)))
    yield first.to(Suspended(carry_on, SOME, "waiting_for_signal", NOW), life=asleep, epoch=1)
    yield first.to(Waiting(Gate.DEPENDENCIES, carry_on), life=paused, epoch=1)
    yield first.to(Waiting(Gate.DEPENDENCIES, Next(Start.INITIAL, 0)))


def owner_of(snapshot: Snapshot) -> Owner:
    if isinstance(snapshot.state, Active):
        return Owner.of(fence_of(snapshot, snapshot.state.lease))
    return Owner(source=Source.OPERATOR)


def outcomes(snapshot: Snapshot) -> Iterator[Snapshot]:
    """What one step can make of a state, now or much later."""
    for move, now in product(MOVES, (NOW, LATER)):
        try:
            after = move(snapshot, owner_of(snapshot), now).after
        except FlowFabricError:
            continue
        if after is not None:
            yield after


def shape_of(snapshot: Snapshot) -> object:
    """Enough of a snapshot to tell apart states from which different things can happen."""
    state, life = snapshot.state, snapshot.life
    start = getattr(getattr(state, "next", None), "start", None)
    rest = (getattr(state, name, None) for name in ("gate", "revoked", "outcome", "pending"))
    counters = (life.retries, min(life.losses, 2), min(life.replays, 1))
    held = getattr(state, "hold", None) is not None
    was = (life.blocked, life.paused is not None, life.lapsed is not None)
    return type(state), start, *rest, *counters, held, *was, str(snapshot.execution.policy)


def reachable() -> list[Snapshot]:
    found: dict[object, Snapshot] = {}
    fresh = deque(beginnings())
    while fresh:
        snapshot = fresh.popleft()
        if shape_of(snapshot) not in found:
            found[shape_of(snapshot)] = snapshot
            fresh.extend(outcomes(snapshot))
    return list(found.values())


def test_every_state_the_rules_reach_is_a_legal_combination_and_all_are_reached() -> None:
    """INV-6, INV-7, E-X28"""
    snapshots = reachable()
    numbers = {number_of(vector(snapshot)) for snapshot in snapshots}
    assert numbers == {f"S{number}" for number in range(1, 18)}
    assert len(snapshots) > 100
    for snapshot in snapshots:
        shape = vector(snapshot)
        assert shape.public is derive_public(shape.phase, shape.eligibility, shape.outcome)
        assert (shape.ownership is Ownership.LEASED) is isinstance(snapshot.state, Active)


# -- the public state


@pytest.mark.parametrize(
    ("phase", "eligibility", "outcome", "public"),
    [
        (Phase.TERMINAL, Eligibility.NOT_APPLICABLE, "success", PublicState.COMPLETED),
        (Phase.TERMINAL, Eligibility.NOT_APPLICABLE, "failed", PublicState.FAILED),
        (Phase.TERMINAL, Eligibility.NOT_APPLICABLE, "cancelled", PublicState.CANCELLED),
        (Phase.TERMINAL, Eligibility.NOT_APPLICABLE, "expired", PublicState.EXPIRED),
        (Phase.TERMINAL, Eligibility.NOT_APPLICABLE, "skipped", PublicState.SKIPPED),
        (Phase.TERMINAL, Eligibility.NOT_APPLICABLE, "none", PublicState.FAILED),
        (Phase.SUSPENDED, Eligibility.NOT_APPLICABLE, "none", PublicState.SUSPENDED),
        (Phase.ACTIVE, Eligibility.NOT_APPLICABLE, "none", PublicState.ACTIVE),
        (Phase.RUNNABLE, Eligibility.ELIGIBLE_NOW, "none", PublicState.WAITING),
        (Phase.RUNNABLE, Eligibility.NOT_UNTIL_TIME, "none", PublicState.DELAYED),
        (Phase.RUNNABLE, Eligibility.DEPENDENCIES, "none", PublicState.WAITING_CHILDREN),
        (Phase.RUNNABLE, Eligibility.BUDGET, "none", PublicState.RATE_LIMITED),
        (Phase.RUNNABLE, Eligibility.QUOTA, "none", PublicState.RATE_LIMITED),
        (Phase.RUNNABLE, Eligibility.ROUTE, "none", PublicState.WAITING),
        (Phase.RUNNABLE, Eligibility.LANE_STATE, "none", PublicState.WAITING),
        (Phase.RUNNABLE, Eligibility.OPERATOR, "none", PublicState.WAITING),
        (Phase.RUNNABLE, Eligibility.NOT_APPLICABLE, "none", PublicState.WAITING),
        (Phase.SUBMITTED, Eligibility.ELIGIBLE_NOW, "none", PublicState.WAITING),
        (Phase.SUBMITTED, Eligibility.NOT_UNTIL_TIME, "none", PublicState.WAITING),
    ],
)
def test_the_public_state_follows_from_phase_eligibility_and_outcome(
    phase: Phase, eligibility: Eligibility, outcome: str, public: PublicState
) -> None:
    """E-T023, D-16"""
    assert derive_public(phase, eligibility, outcome) is public


@pytest.mark.parametrize("revoked", [False, True])
def test_a_lost_execution_is_publicly_active(revoked: bool) -> None:
    """E-T023"""
    shape = vector_of(Lost(revoked, Next(Start.RECLAIM, 1)), EMPTY_LIFE)
    assert shape.public is PublicState.ACTIVE


@pytest.mark.parametrize(("reason", "blocking"), REASONS.items())
def test_a_suspension_blocks_for_the_reason_it_was_asked_for(
    reason: str, blocking: Blocking
) -> None:
    """§2.4"""
    state = Suspended(Next(Start.CONTINUE, 0), SOME, reason, NOW)
    assert vector_of(state, EMPTY_LIFE).blocking is blocking


def test_four_attempt_states_are_final_and_three_are_not() -> None:
    """E-T024"""
    final = {outcome.value for outcome in AttemptOutcome if outcome.final}
    assert final == {"ended_success", "ended_failure", "ended_cancelled", "interrupted_reclaimed"}
    assert {outcome.value for outcome in AttemptOutcome} - final == {
        "created",
        "started",
        "suspended",
    }


def test_the_words_of_every_dimension_are_those_of_the_specification() -> None:
    """E-T025"""
    assert " ".join(Phase) == "submitted runnable active suspended terminal"
    assert " ".join(Ownership) == "unowned leased lease_expired_reclaimable lease_revoked"
    assert " ".join(Eligibility) == (
        "eligible_now not_eligible_until_time blocked_by_dependencies blocked_by_budget "
        "blocked_by_quota blocked_by_route blocked_by_lane_state blocked_by_operator not_applicable"
    )
    assert " ".join(Blocking) == (
        "none waiting_for_worker waiting_for_retry_backoff waiting_for_resume_delay "
        "waiting_for_delay waiting_for_signal waiting_for_approval waiting_for_callback "
        "waiting_for_tool_result waiting_for_children waiting_for_budget waiting_for_quota "
        "waiting_for_capable_worker waiting_for_locality_match paused_by_operator "
        "paused_by_policy paused_by_flow_cancel"
    )
    assert " ".join(AttemptState) == (
        "none pending_first_attempt running_attempt attempt_interrupted pending_retry_attempt "
        "pending_replay_attempt attempt_terminal"
    )
    assert " ".join(PublicState) == (
        "waiting delayed rate_limited waiting_children active suspended completed failed "
        "cancelled expired skipped"
    )


SUSPENDED = Suspended(Next(Start.CONTINUE, 0), SOME, "waiting_for_signal", NOW)


def waiting_at(*keys: str) -> Life:
    """A life with an open suspension at waitpoints of these keys."""
    arm = Arm({}, bound=tuple(Pending(SOME, key) for key in keys))
    return Life(waits=Waits(suspension=Suspension(id=SOME, arms=(arm,))))


@pytest.mark.parametrize(
    ("state", "life", "detail"),
    [
        (Waiting(Gate.DELAY, Next(Start.INITIAL, 0), NOW), EMPTY_LIFE, f"delayed until {NOW}"),
        (
            Waiting(Gate.BACKOFF, Next(Start.RETRY, 2), NOW),
            EMPTY_LIFE,
            f"attempt 1 failed, retry after {NOW}",
        ),
        (
            Waiting(Gate.RESUME_DELAY, Next(Start.CONTINUE, 0), NOW),
            EMPTY_LIFE,
            f"resume delayed until {NOW}",
        ),
        (Waiting(Gate.BLOCKED, Next(Start.INITIAL, 0)), Life(detail="lunch"), "lunch"),
        (
            Lost(True, Next(Start.RECLAIM, 1)),
            Life(lapsed=LostLease(0, Start.INITIAL, SOME, 1, WORKER, NOW, NOW, NOW, "tired")),
            "lease revoked: tired",
        ),
        (Lost(False, Next(Start.RECLAIM, 1)), EMPTY_LIFE, "lease expired, awaiting reclaim"),
        (SUSPENDED, waiting_at("a", "b", "a"), "waits at a, b"),
        (SUSPENDED, waiting_at(*"abcdef"), "waits at a, b, c, d, e and 1 more"),
        (SUSPENDED, waiting_at(), None),
        (Ready(Next(Start.INITIAL, 0)), EMPTY_LIFE, None),
    ],
)
def test_the_detail_says_in_words_what_is_waited_for(
    state: State, life: Life, detail: str | None
) -> None:
    first = create(Submission(kind="job"), SOME, NOW).snapshot
    assert blocking_detail(first.to(state, life=life)) == detail
