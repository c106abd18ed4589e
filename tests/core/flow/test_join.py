"""Joins as pure functions: what is decided, whatever the order of endings.

Behaviour: coordination.md 1.6; invariants I-7 to I-11.
"""

from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.flow.join import (
    AllOf,
    AnyOf,
    Join,
    JoinPolicy,
    JoinState,
    On,
    Quorum,
    Rest,
    count,
    evaluate,
    satisfies,
)

Ending = tuple[On, Outcome]

endings = st.lists(st.tuples(st.sampled_from(On), st.sampled_from(Outcome)), max_size=8)


@st.composite
def games(draw: st.DrawFn) -> tuple[JoinPolicy, list[Ending], int]:
    """A policy, endings of its upstreams, and how many more upstreams there are."""
    ended = draw(endings)
    more = draw(st.integers(0, 3))
    n = len(ended) + more
    rest = draw(st.sampled_from(Rest))
    policies: list[st.SearchStrategy[JoinPolicy]] = [st.just(AllOf()), st.just(AnyOf(rest))]
    if n:
        policies.append(st.integers(1, n).map(lambda k: Quorum(k, rest)))
    return draw(st.one_of(policies)), ended, more


def needed(policy: JoinPolicy, n: int) -> int:
    match policy:
        case AllOf():
            return n
        case AnyOf():
            return min(1, n)
        case Quorum(k=k):
            return k


def defined(policy: JoinPolicy, good: int, bad: int, n: int) -> JoinState:
    """The definition: enough have ended as asked; or so many have not that it cannot be enough."""
    if good >= needed(policy, n):
        return JoinState.SATISFIED
    if n - bad < needed(policy, n):
        return JoinState.IMPOSSIBLE
    return JoinState.PENDING


def play(policy: JoinPolicy, ended: list[Ending], n: int) -> list[Join]:
    """The join after each ending."""
    join = evaluate(Join(policy=policy, n=n), Millis(0))
    played = [join]
    for number, (on, outcome) in enumerate(ended, 1):
        join = evaluate(count(join, on, outcome), Millis(number))
        played.append(join)
    return played


@given(games())
def test_a_join_is_what_its_definition_says_after_every_ending(
    game: tuple[JoinPolicy, list[Ending], int],
) -> None:
    """I-10, I-11: the first decision of the definition stands"""
    policy, ended, more = game
    n = len(ended) + more
    fired = JoinState.PENDING
    good = bad = 0
    for number, join in enumerate(play(policy, ended, n)):
        if number:
            met = satisfies(*ended[number - 1])
            good, bad = good + met, bad + (not met)
        if fired is JoinState.PENDING:
            fired = defined(policy, good, bad, n)
        assert join.state is fired
        assert (join.succeeded, join.failed + join.skipped) == (good, bad)


@given(games())
def test_a_join_fires_once_and_is_never_both(game: tuple[JoinPolicy, list[Ending], int]) -> None:
    """I-7, I-8: after it has fired only the counters move"""
    policy, ended, more = game
    n = len(ended) + more
    played = play(policy, ended, n)
    fired = [join for join in played if join.state is not JoinState.PENDING]
    assert len({(join.state, join.fired_at) for join in fired}) <= 1
    assert played[-len(fired) :] == fired or not fired
    for join in played:
        assert 0 <= join.succeeded + join.failed + join.skipped <= n
        assert join.running == n - join.succeeded - join.failed - join.skipped


@given(games())
def test_once_all_have_ended_a_join_is_decided(game: tuple[JoinPolicy, list[Ending], int]) -> None:
    """I-11: nobody waits for ever"""
    policy, ended, _ = game
    if isinstance(policy, Quorum) and policy.k > len(ended):
        policy = Quorum(max(1, len(ended)), policy.rest)
    last = play(policy, ended, len(ended))[-1]
    assert last.state is not JoinState.PENDING or (isinstance(policy, Quorum) and not ended)


@pytest.mark.parametrize("policy", [AllOf(), AnyOf(), *map(Quorum, (1, 2, 3))])
def test_the_order_of_endings_decides_nothing(policy: JoinPolicy) -> None:
    """I-9: every order of every three endings gives the same state and counters"""
    for outcomes in product((Outcome.SUCCESS, Outcome.FAILED, Outcome.SKIPPED), repeat=3):
        ended = [(On.SUCCESS, outcome) for outcome in outcomes]
        last = {
            (join.state, join.succeeded, join.failed, join.skipped)
            for order in permutations(ended)
            for join in play(policy, list(order), 3)[-1:]
        }
        assert len(last) == 1


def test_skips_are_counted_apart() -> None:
    """F-21: for every policy"""
    for policy in (AllOf(), AnyOf(), Quorum(1)):
        join = Join(policy=policy, n=3)
        for outcome in (Outcome.SKIPPED, Outcome.FAILED, Outcome.CANCELLED):
            join = count(join, On.SUCCESS, outcome)
        assert (join.succeeded, join.failed, join.skipped) == (0, 2, 1)
    assert count(Join(n=1), On.ANY_END, Outcome.SKIPPED).succeeded == 1


@pytest.mark.parametrize("policy", [AllOf(), AnyOf(), Quorum(2)])
def test_a_join_without_upstreams_is_satisfied(policy: JoinPolicy) -> None:
    """Q-8"""
    join = evaluate(Join(policy=policy), Millis(7))
    assert (join.state, join.fired_at) == (JoinState.SATISFIED, 7)


def test_a_quorum_waits_for_edges_that_are_not_there_yet() -> None:
    """F-12: it is not impossible, it is not complete"""
    join = Join(policy=Quorum(2), n=1)
    assert evaluate(join, Millis(0)).state is JoinState.PENDING
    failed = count(join, On.SUCCESS, Outcome.FAILED)
    assert evaluate(failed, Millis(0)).state is JoinState.PENDING


@pytest.mark.parametrize(
    ("policy", "cancels"),
    [
        (AllOf(), False),
        (AnyOf(), True),
        (Quorum(2), True),
        (AnyOf(Rest.LET_RUN), False),
        (Quorum(2, Rest.LET_RUN), False),
    ],
)
def test_who_cancels_the_rest(policy: JoinPolicy, cancels: bool) -> None:
    """I-17: cancelling is what happens unless one is told to let them run"""
    assert Join(policy=policy).cancels_rest is cancels
