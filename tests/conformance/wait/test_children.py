"""A running execution waits for others: it gives its lease up and goes on, the same attempt, when
they have ended. And what is written while somebody else decides is not overlooked.

Behaviour: execution.md 3.17; review R1 (a), (d); design §2 rule 1.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from flowfabric.core.base.errors import InvalidHandle, LeaseExpired, NotActive, StaleLease
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.outcome import AttemptOutcome, Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.grow import Added
from flowfabric.core.flow.join import AnyOf, JoinState, Rest
from flowfabric.core.flow.model import FlowState
from flowfabric.engine.execution.claims import Claim
from tests.kit.flowing import Growing, after_commit, counters, die_after_commits, join_of
from tests.kit.lab import W2, Lab
from tests.kit.race import Race, kinds
from tests.kit.situations import RETRY_AT_ONCE, completions, described, load, take

HELD, WAITING, ACTIVE = PublicState.WAITING_CHILDREN, PublicState.WAITING, PublicState.ACTIVE
FIRST = 9000


async def family(lab: Lab, *children: str) -> tuple[Growing, Claim]:
    """A running parent in a sealed flow that depends on its children."""
    flow = await Growing.begin(lab, "keep")
    await flow.seal()
    await flow.add("parent", priority=FIRST)
    claim = await flow.take("parent")
    for child in children:
        await flow.add(child)
        await flow.link(f"{child}>parent", input=child)
    return flow, claim


async def went_on(lab: Lab, claim: Claim) -> Claim:
    """The execution goes on once, as the same attempt with a new lease."""
    again = await take_resumed(lab, claim.id)
    assert (again.attempt, again.epoch) == (claim.attempt, claim.epoch + 1)
    assert await lab.state(claim.id) is ACTIVE
    return again


async def take_resumed(lab: Lab, id: ExecutionId) -> Claim:
    claim = await lab.claim_one(W2)
    assert claim.id == id, "it did not go on"
    return claim


# -- waiting


async def test_a_parent_gives_its_lease_up_until_its_children_have_ended(lab: Lab) -> None:
    """E-T151: S12, told, nothing to claim; then the same attempt, and what they gave"""
    flow, claim = await family(lab, "one", "two")
    answer = await lab.engine.attempts.wait_children(claim)
    assert answer.state is HELD
    seen = await described(lab, claim.id)
    assert (seen.vector.public, seen.vector.attempt) == (HELD, "attempt_interrupted")
    *_, told = await lab.events(claim.id)
    assert (told.kind, told.lease) == (EventKind.WAITING_CHILDREN, "released")
    assert told.reason == "waiting_children"
    await flow.complete("one")
    assert await lab.state(claim.id) is HELD
    await flow.complete("two")
    again = await went_on(lab, claim)
    given = await lab.engine.flow_views.inputs(await load(lab, claim.id))
    assert given == {"one": b"one", "two": b"two"}
    await lab.complete(again)
    await flow.complete("keep")
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_with_nothing_to_wait_for_it_goes_on_at_once(lab: Lab) -> None:
    """Execution.md 3.17: otherwise it would wait for ever; also outside of any flow"""
    _, member = await family(lab)
    for claim in (member, await take(lab, await lab.submit(priority=FIRST))):
        answer = await lab.engine.attempts.wait_children(claim)
        assert answer.state is WAITING
        await went_on(lab, claim)


async def test_when_all_have_ended_it_goes_on_at_once(lab: Lab) -> None:
    """Execution.md 3.17"""
    flow, claim = await family(lab, "one", "two")
    await flow.complete("one", "two")
    assert await lab.state(claim.id) is ACTIVE
    assert (await lab.engine.attempts.wait_children(claim)).state is WAITING
    await went_on(lab, claim)


async def test_waiting_twice_is_waiting_once(lab: Lab) -> None:
    """E-T151: the answer was lost; by the claim and by the handle"""
    flow, claim = await family(lab, "one")
    handle = lab.engine.attempts.seal(claim)
    first = await lab.engine.attempts.wait_children(handle)
    for owned in (claim, handle):
        assert await lab.engine.attempts.wait_children(owned) == first
    told = await kinds(lab, claim.id)
    assert told.count(EventKind.WAITING_CHILDREN) == 1
    await flow.complete("one")
    assert await lab.state(claim.id) is WAITING
    assert await lab.engine.attempts.wait_children(handle) == first, "INV-23"
    await went_on(lab, claim)


async def test_only_the_owner_may_wait(lab: Lab) -> None:
    """INV-3: an old lease, an expired one, an execution that has ended, a forged handle"""
    _, claim = await family(lab, "one")
    with pytest.raises(InvalidHandle):
        await lab.engine.attempts.wait_children("forged")
    await lab.lose(claim)
    with pytest.raises(LeaseExpired):
        await lab.engine.attempts.wait_children(claim)
    again = await take_resumed(lab, claim.id)
    with pytest.raises(StaleLease):
        await lab.engine.attempts.wait_children(claim)
    await lab.complete(again)
    with pytest.raises(NotActive):
        await lab.engine.attempts.wait_children(again)


async def test_a_child_that_fails_skips_the_parent_that_waits(lab: Lab) -> None:
    """F-15, I-13: with the attempt that it has interrupted"""
    flow, claim = await family(lab, "one", "two")
    await lab.engine.attempts.wait_children(claim)
    await flow.fail("one")
    assert await completions(lab, claim.id) == [Outcome.SKIPPED]
    assert (await described(lab, claim.id)).vector.attempt == "attempt_terminal"
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert attempt.outcome is AttemptOutcome.CANCELLED
    *leases, told = await lab.events(claim.id)
    assert (told.kind, told.lease) == (EventKind.SKIPPED, None)  # it had given its lease up
    assert list(await lab.events(claim.id, family=Family.LEASE)) == leases


async def test_a_parent_may_wait_for_the_first(lab: Lab) -> None:
    """I-11: any-of, and the others run on"""
    flow = await Growing.begin(lab, "one", "two")
    await flow.seal()
    await flow.add("parent", priority=FIRST)
    claim = await flow.take("parent")
    await lab.engine.flows.set_join(flow.id, claim.id, AnyOf(Rest.LET_RUN))
    # Before the first one ends: a join that has fired takes no more edges.
    await flow.link("one>parent")
    await flow.link("two>parent")
    await lab.engine.attempts.wait_children(claim)
    await flow.complete("two")
    await lab.complete(await went_on(lab, claim))
    await flow.complete("one")
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_a_parent_that_fails_before_it_waits_is_tried_again_after_its_children(
    lab: Lab,
) -> None:
    """I-12: a retry waits as well"""
    flow = await Growing.begin(lab, "one")
    await flow.seal()
    await flow.add("parent", priority=FIRST, policy=RETRY_AT_ONCE)
    claim = await flow.take("parent")
    await flow.link("one>parent")
    await lab.fail(claim)
    assert (await described(lab, claim.id)).vector.public is HELD
    await flow.complete("one")
    again = await take_resumed(lab, claim.id)
    assert again.attempt == claim.attempt + 1


async def test_a_parent_whose_lease_was_lost_goes_on_when_it_is_reclaimed(lab: Lab) -> None:
    """I-12: whoever takes it over owns it, and can wait again"""
    flow, claim = await family(lab, "one")
    await lab.lose(claim)
    again = await take_resumed(lab, claim.id)
    assert (await lab.engine.attempts.wait_children(again)).state is HELD
    await flow.complete("one")
    await went_on(lab, again)


# -- races


@pytest.mark.parametrize("owned", ["claim", "handle"])
async def test_a_parent_that_waits_sees_the_last_child_that_ends_meanwhile(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, owned: str
) -> None:
    """R1 (a): settled between its decision and its change; parked for ever otherwise"""
    flow, claim = await family(lab, "one")
    child = await flow.take("one")

    async def rival() -> None:
        await second_lab.complete(child)
        await after_commit(second_lab)

    race = Race(lab, monkeypatch)
    race.before("apply", rival)
    handle = lab.engine.attempts.seal(claim)
    await lab.engine.attempts.wait_children(claim if owned == "claim" else handle)
    assert race.left == 0
    assert (await join_of(flow, "parent")).state is JoinState.SATISFIED
    await went_on(lab, claim)


@pytest.mark.parametrize("method", ["unsettled", "apply", "count_flows"])
async def test_the_last_child_finds_a_parent_that_waits_meanwhile(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """R1 (a): the other way round, at every step of the settling"""
    flow, claim = await family(lab, "one")
    with monkeypatch.context() as dead:
        die_after_commits(lab, dead)
        await lab.complete(await flow.take("one"))
    race = Race(lab, monkeypatch)
    race.before(method, lambda: second_lab.engine.attempts.wait_children(claim))
    await lab.engine.sweep.once()
    assert race.left == 0
    await went_on(lab, claim)


async def test_children_end_and_parents_wait_at_once(lab: Lab, second_lab: Lab) -> None:
    """R1 (a): without any barrier, from two engines"""
    for number in range(10):
        flow, claim = await family(lab, "one", "two")
        first, last = await flow.take("one"), await flow.take("two")
        calls: list[Awaitable[object]] = [
            lab.engine.attempts.wait_children(claim),
            second_lab.complete(first),
            lab.complete(last),
        ]
        await asyncio.gather(*(calls if number % 2 else reversed(calls)))
        await after_commit(lab)
        await after_commit(second_lab)
        await lab.complete(await went_on(lab, claim))


Ending = Callable[[Lab, Claim], Awaitable[object]]


def complete(lab: Lab, claim: Claim) -> Awaitable[object]:
    return lab.complete(claim, b"done")


def fail(lab: Lab, claim: Claim) -> Awaitable[object]:
    return lab.fail(claim, "permanent")


def cancel(lab: Lab, claim: Claim) -> Awaitable[object]:
    return lab.engine.executions.cancel(claim.id, reason="enough")


@pytest.mark.parametrize("ending", [complete, fail, cancel])
async def test_an_ending_sees_the_flow_that_was_joined_meanwhile(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    """R1 (d): the worker ends on a value that knows of no flow; counted, and the join fires"""
    flow = await Growing.begin(lab, "keep")
    await flow.seal()
    flow.members["a"] = await lab.submit(flow=flow.id)
    claim = await flow.take("a")

    async def rival() -> None:
        await second_lab.engine.flows.join(flow.id, claim.id)
        await flow.add("child")
        await flow.link("a>child")

    race = Race(lab, monkeypatch)
    race.before("apply" if ending is cancel else "end", rival)
    await ending(lab, claim)
    assert race.left == 0
    await flow.settled()
    good = ending is complete
    assert await lab.state(flow["child"]) is (WAITING if good else PublicState.SKIPPED)
    assert await counters(flow, "child") == (1, int(good), int(not good), 0)
    await flow.check()


@pytest.mark.parametrize("ending", [complete, fail, cancel])
async def test_joining_sees_the_ending_that_happened_meanwhile(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    """R1 (d): the other way round; counted once"""
    flow = await Growing.begin(lab, "keep")
    await flow.seal()
    flow.members["a"] = await lab.submit(flow=flow.id)
    claim = await flow.take("a")
    race = Race(lab, monkeypatch)
    race.before("apply_flow", lambda: ending(second_lab, claim))
    assert await lab.engine.flows.join(flow.id, claim.id) == Added(claim.id, 2)
    assert race.left == 0
    assert (await flow.check()).over == 1


async def test_joining_and_completing_at_once_counts_once(lab: Lab, second_lab: Lab) -> None:
    """R1 (d), I-9: without any barrier, from one engine and from two"""
    flow = await Growing.begin(lab, "keep")
    await flow.seal()
    for number in range(20):
        other = second_lab if number % 2 else lab
        id = flow.members[f"m{number}"] = await lab.submit(flow=flow.id)
        claim = await take(lab, id)
        await asyncio.gather(other.engine.flows.join(flow.id, id), lab.complete(claim))
        await after_commit(lab)
    assert (await flow.check()).ended == {"success": 20}


async def test_a_parent_that_waits_meets_an_edge_that_is_staged_meanwhile(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1 (a), I-12: it waits for the child it did not know of"""
    flow, claim = await family(lab)
    await flow.add("one")
    edge = flow.edge("one>parent")
    race = Race(lab, monkeypatch)
    race.before("apply", lambda: second_lab.engine.flows.stage(edge))
    answer = await lab.engine.attempts.wait_children(claim)
    assert race.left == 0
    assert answer.state is HELD
    await flow.complete("one")
    await went_on(lab, claim)
