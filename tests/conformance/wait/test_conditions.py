"""Composite conditions, played through the engine: what is counted, when it fires, what is left.

E-T026, E-T280 to E-T292, E-X21; §4.
"""

import asyncio
import itertools

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, WaitpointClosed
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.status import PublicState
from flowfabric.core.wait.condition.model import (
    AllTrue,
    AnyTrue,
    ByName,
    Condition,
    Count,
    CountKind,
    OperatorOnly,
    Single,
    TimeoutOnly,
    all_waitpoints,
    any_waitpoint,
)
from flowfabric.core.wait.model import Effect, Waits
from flowfabric.core.wait.signal import DuplicateSignal
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import Lab
from tests.kit.signalling import deliver, effect, fresh, kept, waiting
from tests.kit.situations import load, take
from tests.kit.waits import SuspendAnswer, create_waitpoint, in_, named, suspend, wait_at, wait_on

pytestmark = pytest.mark.rules

BOTH = AllTrue((named("a"), named("b")))


class Play:
    """A suspended execution and short words to signal it: `key:name`, or `key` alone."""

    def __init__(self, lab: Lab, claim: Claim, answer: SuspendAnswer) -> None:
        self.lab = lab
        self.id = claim.id
        self.answer = answer
        self._tickets = {ticket.key: ticket for ticket in answer.waitpoints}

    async def hear(self, *words: str, source: str = "") -> list[Effect]:
        return [await self._one(word, source) for word in words]

    async def _one(self, word: str, source: str) -> Effect:
        key, _, name = word.partition(":")
        return await effect(self.lab, self.id, self._tickets[key], name or "x", source=source)

    async def waits(self) -> bool:
        return await self.lab.state(self.id) is PublicState.SUSPENDED

    async def closers(self) -> list[str]:
        """The signals that satisfied it, as `key:name`."""
        again = await self.lab.claim_one()
        assert again.id == self.id
        signals = await self.lab.engine.suspensions.observe(again)
        return [f"{signal.key}:{signal.name}" for signal in signals]


async def play(lab: Lab, condition: Condition) -> Play:
    claim, answer = await waiting(lab, condition)
    return Play(lab, claim, answer)


# -- all of


async def test_all_of_two_names_at_one_waitpoint(lab: Lab) -> None:
    """E-T280"""
    game = await play(lab, BOTH)
    assert await game.hear("go:a", "go:b") == [Effect.APPENDED, Effect.SATISFIED]
    assert not await game.waits()


async def test_a_member_that_is_true_already_hears_nothing_new(lab: Lab) -> None:
    """E-T281"""
    game = await play(lab, BOTH)
    assert await game.hear("go:b", "go:b", "go:b", "go:a") == [
        Effect.APPENDED,
        Effect.REPEATED,
        Effect.REPEATED,
        Effect.SATISFIED,
    ]
    assert await game.closers() == ["go:b", "go:a"]


async def test_all_of_three_waitpoints(lab: Lab) -> None:
    """E-T282: the extras come with ids, keys and tokens of their own"""
    game = await play(lab, all_waitpoints("a", "b", "c"))
    assert [ticket.key for ticket in game.answer.waitpoints] == ["a", "b", "c"]
    assert game.answer.primary.key == "a"
    assert len({ticket.id for ticket in game.answer.waitpoints}) == 3
    assert len({ticket.token for ticket in game.answer.waitpoints}) == 3
    assert await game.hear("c", "a") == [Effect.APPENDED] * 2
    assert await game.hear("b") == [Effect.SATISFIED]
    with pytest.raises(WaitpointClosed):
        await game.hear("a")


@pytest.mark.parametrize("order", list(itertools.permutations(["a", "b", "c"])))
async def test_the_order_plays_no_part(lab: Lab, order: tuple[str, ...]) -> None:
    """§4.2"""
    game = await play(lab, all_waitpoints("a", "b", "c"))
    effects = await game.hear(*order)
    assert effects == [Effect.APPENDED, Effect.APPENDED, Effect.SATISFIED]
    assert await game.closers() == [f"{key}:x" for key in order]


# -- counting


async def test_so_many_distinct_waitpoints(lab: Lab) -> None:
    """E-T283"""
    game = await play(lab, Count(2, CountKind.WAITPOINTS, ("a", "b", "c")))
    assert await game.hear("a", "a", "c") == [Effect.APPENDED, Effect.REPEATED, Effect.SATISFIED]


async def test_any_of_several_waitpoints(lab: Lab) -> None:
    game = await play(lab, any_waitpoint("a", "b"))
    assert await game.hear("b") == [Effect.SATISFIED]
    with pytest.raises(WaitpointClosed):
        await game.hear("a")


async def test_so_many_distinct_signals(lab: Lab) -> None:
    """E-T284: of any name, at any of the waitpoints"""
    game = await play(lab, Count(3, CountKind.SIGNALS, ("a", "b")))
    assert await game.hear("a:x", "a:x", "b:y") == [
        Effect.APPENDED,
        Effect.APPENDED,
        Effect.SATISFIED,
    ]


async def test_a_signal_delivered_twice_is_counted_once(lab: Lab) -> None:
    """E-T285"""
    claim, answer = await waiting(lab, Count(2, CountKind.SIGNALS, ("go",)))
    id = fresh()
    assert await effect(lab, claim.id, answer.primary, id=id) is Effect.APPENDED
    assert await deliver(lab, claim.id, answer.primary, id=id) == DuplicateSignal(id)
    assert await lab.state(claim.id) is PublicState.SUSPENDED


async def test_one_signal_id_at_two_waitpoints_is_counted_once(lab: Lab) -> None:
    """4.2: DistinctSignals counts signal ids; both signals are recorded"""
    claim, answer = await waiting(lab, Count(2, CountKind.SIGNALS, ("a", "b")))
    first, second = answer.waitpoints
    id = fresh()
    assert await effect(lab, claim.id, first, id=id) is Effect.APPENDED
    assert await effect(lab, claim.id, second, id=id) is Effect.REPEATED
    assert len(await kept(lab, claim.id)) == 2
    assert await effect(lab, claim.id, second) is Effect.SATISFIED


async def test_one_signal_id_at_two_waitpoints_is_counted_once_at_once(lab: Lab) -> None:
    """4.2: also when both come together"""
    claim, answer = await waiting(lab, Count(2, CountKind.SIGNALS, ("a", "b")))
    id = fresh()
    both = await asyncio.gather(
        *(effect(lab, claim.id, ticket, id=id) for ticket in answer.waitpoints)
    )
    assert sorted(both) == [Effect.APPENDED, Effect.REPEATED]
    assert await lab.state(claim.id) is PublicState.SUSPENDED


async def test_so_many_distinct_sources(lab: Lab) -> None:
    """E-T286, E-T287: all who say no name are one"""
    game = await play(lab, Count(3, CountKind.SOURCES, ("go",)))
    assert await game.hear("go", "go") == [Effect.APPENDED, Effect.REPEATED]
    assert await game.hear("go", source="ann") == [Effect.APPENDED]
    assert await game.hear("go", source="ann") == [Effect.REPEATED]
    assert await game.hear("go", source="bob") == [Effect.SATISFIED]


async def test_a_source_is_a_pair(lab: Lab) -> None:
    """§4.2: never joined with a separator"""
    claim, answer = await waiting(lab, Count(4, CountKind.SOURCES, ("go",)))
    pairs = [("a", "b"), ("a:", "b"), ("a", ":b"), ("a:b", "")]
    effects = [
        await effect(lab, claim.id, answer.primary, source_type=kind, source=who)
        for kind, who in pairs
    ]
    assert effects == [Effect.APPENDED] * 3 + [Effect.SATISFIED]


async def test_only_what_passes_the_matcher_is_counted(lab: Lab) -> None:
    """E-T288"""
    game = await play(lab, Count(1, CountKind.SIGNALS, ("go",), ByName("yes")))
    assert await game.hear("go:no", "go:Yes") == [Effect.MATCHER_FAILED] * 2
    assert await game.hear("go:yes") == [Effect.SATISFIED]
    assert await game.closers() == ["go:yes"]


async def test_a_count_that_can_never_be_reached_waits(lab: Lab) -> None:
    """§4.2: refused only for waitpoints, of which there are so many"""
    game = await play(lab, Count(1_000_000, CountKind.SOURCES, ("go",)))
    assert await game.hear("go") == [Effect.APPENDED]
    assert await game.waits()


async def test_a_waitpoint_named_twice_is_one(lab: Lab) -> None:
    game = await play(lab, AllTrue((Count(1, CountKind.WAITPOINTS, ("a", "a")), Single("b"))))
    assert await game.hear("a", "b") == [Effect.APPENDED, Effect.SATISFIED]


# -- trees


def nested(depth: int) -> Condition:
    """A tree of that many bodies within one another, a composite at the bottom."""
    inner: Condition = Count(2, CountKind.SIGNALS, ("deep",))
    for level in range(depth - 1):
        inner = AllTrue((named(f"n{level}", "top"), inner))
    return inner


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
async def test_deep_trees_fire(lab: Lab, depth: int) -> None:
    """E-T289, E-X21: with a composite at the bottom"""
    game = await play(lab, nested(depth))
    words = [f"top:n{level}" for level in range(depth - 1)]
    assert await game.hear("deep", *words) == [Effect.APPENDED] * depth
    assert await game.hear("deep") == [Effect.SATISFIED]


async def test_deeper_trees_are_refused_before_the_store_is_touched(lab: Lab) -> None:
    """E-T289"""
    claim = await lab.running()
    before = await load(lab, claim.id)
    with pytest.raises(Invalid, match="exceeds cap"):
        await suspend(lab, claim, wait_on(lab, nested(5)))
    assert await load(lab, claim.id) == before


@pytest.mark.parametrize(
    ("condition", "detail"),
    [
        (Count(0, CountKind.SIGNALS, ("go",)), "count_n_zero"),
        (Count(1, CountKind.SIGNALS, ()), "count_waitpoints_empty"),
        (Count(2, CountKind.WAITPOINTS, ("a", "a")), "count_exceeds_waitpoint_set"),
        (AllTrue(()), "allof_empty_members"),
    ],
)
async def test_conditions_that_make_no_sense_are_refused(
    lab: Lab, condition: Condition, detail: str
) -> None:
    """E-T290: and the text ends with the place"""
    claim = await lab.running()
    for wrong, path in (
        (condition, "<root>"),
        (AllTrue((Single("a"), condition)), "members[1]"),
    ):
        with pytest.raises(Invalid) as caught:
            await suspend(lab, claim, wait_on(lab, wrong, *wait_on(lab, "a").bindings))
        assert caught.value.detail.startswith(detail)
        assert caught.value.detail.endswith(path)


async def test_two_counts_do_not_share_what_they_count(lab: Lab) -> None:
    """E-X21: two equal kinds in one tree, each with its own waitpoint or name"""
    tree = AllTrue(
        (
            Count(2, CountKind.SIGNALS, ("a",)),
            Count(2, CountKind.SIGNALS, ("b",)),
            Count(2, CountKind.SOURCES, ("b",), ByName("vote")),
        )
    )
    game = await play(lab, tree)
    assert await game.hear("a", "a", "a") == [Effect.APPENDED] * 3
    assert await game.hear("b:vote", "b:vote", source="ann") == [Effect.APPENDED] * 2
    assert await game.waits()
    assert await game.hear("b:vote", source="bob") == [Effect.SATISFIED]


async def test_a_signal_counts_for_every_member_that_hears_it(lab: Lab) -> None:
    game = await play(
        lab, AllTrue((Single("go"), named("a"), Count(1, CountKind.SOURCES, ("go",))))
    )
    assert await game.hear("go:a") == [Effect.SATISFIED]


async def test_one_branch_of_several_is_enough(lab: Lab) -> None:
    game = await play(lab, AnyTrue((AllTrue((named("a"), named("b"))), Single("stop"))))
    assert await game.hear("go:a", "stop") == [Effect.APPENDED, Effect.SATISFIED]


async def test_members_that_no_signal_ends_wait_for_an_operator(lab: Lab) -> None:
    """§4.2"""
    for never in (OperatorOnly(), TimeoutOnly()):
        claim, answer = await waiting(lab, AllTrue((Single("go"), never)), timeout_at=in_(lab, 99))
        game = Play(lab, claim, answer)
        assert await game.hear("go", "go") == [Effect.APPENDED, Effect.REPEATED]
        await lab.engine.executions.resume(claim.id)
        await lab.complete(await lab.claim_one())


async def test_all_signals_that_contributed_are_observed_in_order(lab: Lab) -> None:
    """E-T270, E-T291, D-5: nothing that did not count"""
    game = await play(lab, AllTrue((named("a"), Count(2, CountKind.SOURCES, ("go",), ByName("v")))))
    await game.hear("go:v", source="ann")
    await game.hear("go:noise", "go:a", "go:a", source="eve")
    await game.hear("go:v", source="ann")
    assert await game.hear("go:v", source="bob") == [Effect.SATISFIED]
    assert await game.closers() == ["go:v", "go:a", "go:v"]
    assert len(await kept(lab, game.id)) == 6


async def test_the_closer_is_the_signal_that_made_it_true(lab: Lab) -> None:
    claim, answer = await waiting(lab, BOTH)
    await effect(lab, claim.id, answer.primary, "a")
    id = fresh()
    await effect(lab, claim.id, answer.primary, "b", id=id)
    closed = (await waits_of(lab, claim)).last
    assert closed is not None
    assert (closed.id, closed.closer, closed.reason) == (answer.suspension, id, "resumed")


async def waits_of(lab: Lab, claim: Claim) -> Waits:
    waits = (await load(lab, claim.id)).life.waits
    assert waits is not None
    return waits


async def test_every_waitpoint_belongs_to_its_execution(lab: Lab) -> None:
    """E-T292: found under the execution, closed with the suspension"""
    game = await play(lab, all_waitpoints("a", "b", "c"))
    listed = await lab.engine.suspensions.waitpoints(game.id)
    assert {item.execution for item in listed} == {game.id}
    assert {item.id for item in listed} == {ticket.id for ticket in game.answer.waitpoints}
    await game.hear("a", "b", "c")
    assert await lab.engine.suspensions.waitpoints(game.id) == []


# -- what came before


async def test_what_was_buffered_counts_in_a_composite_condition(lab: Lab) -> None:
    """E-X21, §4.5: exactly as if it came just after"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    assert await effect(lab, claim.id, ticket, "a", source="ann") is Effect.BUFFERED
    await effect(lab, claim.id, ticket, "c", source="ann")
    tree = AllTrue((named("a"), Count(3, CountKind.SOURCES, ("go",))))
    assert not (await suspend(lab, claim, wait_at(ticket, tree))).satisfied
    assert await effect(lab, claim.id, ticket, "a", source="ann") is Effect.REPEATED
    assert await effect(lab, claim.id, ticket, "d", source="bob") is Effect.APPENDED
    assert await effect(lab, claim.id, ticket, "e", source="cy") is Effect.SATISFIED
    again = await lab.claim_one()
    names = [signal.name for signal in await lab.engine.suspensions.observe(again)]
    assert names == ["a", "d", "e"]


async def test_what_was_buffered_may_be_all_of_it(lab: Lab) -> None:
    """AlreadySatisfied: the lease is kept, nothing is told of a release"""
    claim = await lab.running()
    ticket = await create_waitpoint(lab, claim, "go")
    for name in ("b", "a", "c"):
        await effect(lab, claim.id, ticket, name)
    answer = await suspend(lab, claim, wait_at(ticket, BOTH))
    assert answer.satisfied
    assert await lab.state(claim.id) is PublicState.ACTIVE
    observed = [signal.name for signal in await lab.engine.suspensions.observe(claim)]
    assert observed == ["b", "a"]
    with pytest.raises(WaitpointClosed):
        await effect(lab, claim.id, ticket, "late")
    await lab.complete(claim)


async def test_a_source_of_an_earlier_suspension_counts_again(lab: Lab) -> None:
    claim = await take(lab, await lab.submit())
    two = Count(2, CountKind.SOURCES, ("go",))
    for _ in range(2):
        game = Play(lab, claim, await suspend(lab, claim, wait_on(lab, two)))
        assert await game.hear("go", source="ann") == [Effect.APPENDED]
        assert await game.hear("go", source="bob") == [Effect.SATISFIED]
        claim = await lab.claim_one()


async def test_each_of_several_waits_counts_for_itself(lab: Lab) -> None:
    """Any of them wakes it; a source that was heard by one is new to the other"""
    claim = await lab.running()
    waits = [wait_on(lab, Count(2, CountKind.SOURCES, (key,))) for key in ("a", "b")]
    game = Play(lab, claim, await suspend(lab, claim, *waits))
    assert await game.hear("a", "b", "b", source="ann") == [
        Effect.APPENDED,
        Effect.APPENDED,
        Effect.REPEATED,
    ]
    assert await game.hear("b", source="bob") == [Effect.SATISFIED]
    with pytest.raises(WaitpointClosed):
        await game.hear("a", source="bob")


async def test_a_condition_of_a_newer_release_waits(lab: Lab) -> None:
    """§4.1: an unknown kind is kept and never satisfied; an operator still ends it"""
    claim, answer = await waiting(lab)
    snapshot = await load(lab, claim.id)
    waits = await waits_of(lab, claim)
    assert waits.suspension is not None
    (arm,) = waits.suspension.arms
    arm = replace(arm, condition={"kind": "Quorum", "of": ["go"]})
    newer = replace(waits, suspension=replace(waits.suspension, arms=(arm,)))
    await put_waits(lab, claim, newer)
    assert (await load(lab, claim.id)).head.version > snapshot.head.version
    assert await effect(lab, claim.id, answer.primary) is Effect.NOT_IN_CONDITION
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    await lab.engine.executions.resume(claim.id)
    await lab.complete(await lab.claim_one())


async def put_waits(lab: Lab, claim: Claim, waits: Waits) -> None:
    """Places waits as another release might have written them."""
    snapshot = await load(lab, claim.id)
    after = snapshot.to(snapshot.state, life=replace(snapshot.life, waits=waits))
    change = Change[None](None, snapshot, after)
    assert await lab.engine.store.apply([change]) == {claim.uuid}
