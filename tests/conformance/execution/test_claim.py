"""Claiming: who gets what, in which order, and never two the same."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId, lane_partition
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.handle import HandleKind
from flowfabric.core.execution.model import AttemptOutcome, Outcome, Start
from flowfabric.core.execution.status import (
    AttemptState,
    Blocking,
    Eligibility,
    Ownership,
    Phase,
    PublicState,
    Vector,
)
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import ClaimCall
from tests.kit.lab import TTL, W1, W2, Lab

RETRY = {"retry_policy": {"max_retries": 9, "backoff": {"type": "fixed", "delay_ms": 0}}}


def needs(*capabilities: str) -> dict[str, Any]:
    return {"routing_requirements": {"required_capabilities": list(capabilities)}}


def ids(claims: Sequence[Claim]) -> list[ExecutionId]:
    return [claim.id for claim in claims]


# -- what a claim does


async def test_what_was_submitted_can_be_claimed_run_and_completed(lab: Lab) -> None:
    """E-X03, E-T050"""
    id = await lab.submit(payload=b"in")
    claim = await lab.claim_one()
    assert (claim.id, claim.payload, claim.epoch) == (id, b"in", 1)
    assert claim.expires_at == lab.clock.now() + TTL
    assert await lab.state(id) is PublicState.ACTIVE
    await lab.engine.attempts.progress(claim, 50, "half")
    await lab.complete(claim, b"out")
    assert await lab.state(id) is PublicState.COMPLETED
    assert await lab.engine.views.result(id) == b"out"
    completions = await lab.events(id, family=Family.COMPLETION)
    assert [event.completion for event in completions] == [Outcome.SUCCESS]


async def test_a_claimed_execution_is_active_leased_and_runs_its_first_attempt(lab: Lab) -> None:
    """E-T051, E-T056, S5"""
    claim = await lab.running()
    assert (claim.epoch, claim.attempt, claim.lease.start) == (1, 0, Start.INITIAL)
    assert await lab.vector(claim.id) == Vector(
        Phase.ACTIVE,
        Ownership.LEASED,
        Eligibility.NOT_APPLICABLE,
        Blocking.NONE,
        "none",
        AttemptState.RUNNING,
    )
    described = await lab.engine.views.describe(claim.id)
    assert described is not None
    assert described.lease is not None
    assert (described.lease.lease_id, described.lease.epoch) == (claim.lease.id, 1)
    assert (described.lease.worker, described.lease.instance) == ("w1", "w1-a")
    assert (described.attempt, described.attempt_id) == (0, claim.attempt_id)
    assert await lab.engine.grants.eligible("default") == []
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.index, attempt.type) == (0, Start.INITIAL)
    assert (attempt.outcome, attempt.worker) == (AttemptOutcome.STARTED, W1)
    assert [event.lease for event in await lab.events(claim.id)] == ["acquired"]


async def test_a_claim_is_a_fresh_handle_of_this_store(lab: Lab) -> None:
    """E-T052"""
    claim = await lab.running()
    body = lab.engine.attempts.open(lab.engine.attempts.seal(claim))
    assert (claim.handle_kind, body.kind) == (HandleKind.FRESH, HandleKind.FRESH)
    assert (body.store, body.execution_id) == (lab.engine.store.name, claim.id)
    assert (body.lease_id, body.epoch, body.attempt_id) == (
        claim.lease.id,
        claim.epoch,
        claim.attempt_id,
    )


async def test_with_nothing_eligible_a_claim_is_empty_and_no_error(lab: Lab) -> None:
    """E-T053"""
    assert await lab.claim() == []
    assert await lab.claim(limit=500, lanes=["nobody"]) == []
    assert await lab.claim(max_wait=0.01) == []


async def test_a_claim_waits_for_work_that_comes_within_its_time(lab: Lab, second_lab: Lab) -> None:
    """§3.2: also for work that another process submits."""
    for submitter in (lab, second_lab):
        waiting = asyncio.create_task(lab.claim(max_wait=30.0))
        assert await lab.claim(lanes=["nobody"]) == []
        id = await submitter.submit()
        assert ids(await waiting) == [id]


async def test_the_first_claim_and_no_other_sets_the_start(lab: Lab) -> None:
    """E-T055, INV-28"""
    id = await lab.submit(policy=RETRY)
    assert await started_at(lab, id) is None
    lab.clock.advance(10)
    first = lab.clock.now()
    claim = await lab.claim_one()
    assert await started_at(lab, id) == first
    await lab.fail(claim)
    lab.clock.advance(10)
    claim = await lab.claim_one()
    assert await started_at(lab, id) == first
    await lab.complete(claim)
    assert await started_at(lab, id) == first
    await lab.engine.executions.replay(id)
    lab.clock.advance(10)
    await lab.claim_one()
    assert await started_at(lab, id) == first


async def started_at(lab: Lab, id: ExecutionId) -> Millis | None:
    described = await lab.engine.views.describe(id)
    assert described is not None
    return described.started_at


# -- capabilities


async def test_a_worker_gets_only_what_it_can_run(lab: Lab) -> None:
    """E-T054, E-T064, E-T065: a mismatch changes no state."""
    id = await lab.submit(policy=needs("gpu", "linux"))
    before = await lab.vector(id)
    for offered in ([], ["gpu"], ["GPU", "LINUX"], ["gpu linux".replace(" ", "-")]):
        assert await lab.claim(capabilities=offered) == []
    assert await lab.vector(id) == before
    assert await lab.events(id) == ()
    assert ids(await lab.claim(capabilities=["x", "linux", "gpu"])) == [id]


async def test_a_run_without_requirements_is_taken_by_any_worker(lab: Lab) -> None:
    """E-T064"""
    plain = [await lab.submit(policy=policy) for policy in (None, {}, needs())]
    assert ids(await lab.claim(limit=1)) == plain[:1]
    assert ids(await lab.claim(capabilities=["gpu"], limit=5)) == plain[1:]


async def test_what_a_worker_cannot_run_hides_nothing_behind_it(lab: Lab) -> None:
    """E-X12"""
    for number in range(30):
        await lab.submit(priority=9000, policy=needs("gpu", f"model-{number % 7}"))
    low = await lab.submit(priority=1)
    lowest = await lab.submit(lane="other")
    assert ids(await lab.claim(limit=5)) == [low, lowest]


async def test_a_new_requirement_is_seen_by_a_worker_that_claimed_before(
    lab: Lab, second_lab: Lab
) -> None:
    """Routes that appear later, also through another process, reach a running worker."""
    assert await lab.claim(capabilities=["gpu"]) == []
    ids_made = [await second_lab.submit(policy=needs("gpu"), lane="a")]
    assert ids(await lab.claim(capabilities=["gpu"])) == ids_made
    late = await second_lab.submit(policy=needs("gpu"), lane="b", namespace="n")
    assert ids(await lab.claim(capabilities=["gpu", "tpu"])) == [late]


# -- order


async def test_higher_priority_first_then_the_older_then_as_submitted(lab: Lab) -> None:
    """E-T074, §1.5"""
    old = await lab.submit(priority=5)
    twins = [await lab.submit(priority=5) for _ in range(3)]
    lab.clock.advance(1000)
    high = await lab.submit(priority=6)
    young = await lab.submit(priority=5)
    assert ids(await lab.claim(limit=10)) == [high, old, *twins, young]


async def test_priority_beats_any_age(lab: Lab) -> None:
    old = await lab.submit(priority=0)
    lab.clock.advance(365 * 86_400_000)
    young = await lab.submit(priority=1)
    assert [(await lab.claim_one()).id, (await lab.claim_one()).id] == [young, old]


async def test_order_is_global_over_lanes_and_partitions(lab: Lab) -> None:
    """E-X12, §3.2"""
    lanes = [f"lane-{number}" for number in range(12)]
    assert len({lane_partition(lane) for lane in lanes}) > 5
    made = {}
    for number, lane in enumerate(lanes):
        priority = number * 7 % 12
        made[priority] = await lab.submit(lane=lane, priority=priority)
    best_first = [made[priority] for priority in sorted(made, reverse=True)]
    assert ids(await lab.claim(limit=5)) == best_first[:5]
    assert ids(await lab.claim(limit=5, lanes=lanes)) == best_first[5:10]
    assert [(await lab.claim_one()).id for _ in range(2)] == best_first[10:]


async def test_order_is_global_over_very_many_lanes(lab: Lab) -> None:
    """E-X12: also over more of them than a store would merge at once."""
    made = [await lab.submit(lane=f"lane-{number}", priority=number) for number in range(130)]
    assert ids(await lab.claim(limit=3)) == made[:126:-1]
    assert [(await lab.claim_one()).id for _ in range(3)] == made[126:123:-1]
    assert ids(await lab.claim(limit=100)) == made[123:23:-1]


async def test_a_batch_is_best_first_over_requirements_and_namespaces(lab: Lab) -> None:
    made = [
        await lab.submit(priority=1),
        await lab.submit(priority=4, policy=needs("gpu")),
        await lab.submit(priority=3, namespace="b"),
        await lab.submit(priority=2, lane="x", policy=needs("gpu", "tpu")),
    ]
    best_first = [made[1], made[2], made[3], made[0]]
    assert ids(await lab.claim(limit=4, capabilities=["gpu", "tpu"])) == best_first


async def test_a_claim_takes_no_more_than_it_asked_for(lab: Lab) -> None:
    made = [await lab.submit() for _ in range(7)]
    assert ids(await lab.claim(limit=3)) == made[:3]
    assert ids(await lab.claim(limit=500)) == made[3:]
    assert await lab.claim() == []


async def test_a_changed_priority_changes_the_place_in_the_order(lab: Lab) -> None:
    first, second = await lab.submit(priority=5), await lab.submit(priority=5)
    await lab.engine.executions.change_priority(second, 6)
    assert await lab.engine.grants.eligible("default") == [second, first]
    await lab.engine.executions.change_priority(second, -1)
    assert ids(await lab.claim(limit=2)) == [first, second]


# -- lanes and namespaces


async def test_a_claim_stays_in_its_lanes(lab: Lab) -> None:
    mail = await lab.submit(lane="mail")
    gpu = await lab.submit(lane="gpu")
    zoo = await lab.submit(lane="zoo", priority=9000)
    assert ids(await lab.claim(lanes=["mail"], limit=5)) == [mail]
    assert ids(await lab.claim(lanes=["mail", "gpu", "never seen"], limit=5)) == [gpu]
    assert ids(await lab.claim(limit=5)) == [zoo]


async def test_lanes_without_weights_are_merged_by_priority(lab: Lab) -> None:
    made = {}
    for priority, lane in [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "a")]:
        made[priority] = await lab.submit(lane=lane, priority=priority)
    assert ids(await lab.claim(lanes=["b", "a"], limit=5)) == [made[p] for p in (5, 4, 3, 2, 1)]


async def flood(lab: Lab, **lanes: int) -> dict[ExecutionId, str]:
    return {
        await lab.submit(lane=lane, priority=9000 if lane == "a" else 0): lane
        for lane, count in lanes.items()
        for _ in range(count)
    }


async def test_lanes_with_weights_are_served_in_proportion(lab: Lab) -> None:
    """§11: lane by weight, then rank."""
    lane_of = await flood(lab, a=40, b=40)
    taken = await lab.claim(lanes={"a": 1, "b": 3}, limit=20)
    assert Counter(lane_of[id] for id in ids(taken)) == {"a": 5, "b": 15}


async def test_lanes_with_weights_are_served_in_proportion_one_at_a_time(lab: Lab) -> None:
    lane_of = await flood(lab, a=40, b=40, c=40)
    weights = {"a": 1, "b": 2, "c": 5}
    taken = [(await lab.claim_one(lanes=weights)).id for _ in range(32)]
    assert Counter(lane_of[id] for id in taken) == {"a": 4, "b": 8, "c": 20}
    assert Counter(lane_of[id] for id in taken[:8]) == {"a": 1, "b": 2, "c": 5}


async def test_equal_weights_are_a_proportion_too(lab: Lab) -> None:
    lane_of = await flood(lab, a=10, b=10)
    taken = [(await lab.claim_one(lanes={"a": 1, "b": 1})).id for _ in range(8)]
    assert Counter(lane_of[id] for id in taken) == {"a": 4, "b": 4}


async def test_a_lane_without_work_leaves_its_share_to_the_others(lab: Lab) -> None:
    lane_of = await flood(lab, a=6, b=1)
    taken = await lab.claim(lanes={"a": 1, "b": 9, "empty": 90}, limit=7)
    assert Counter(lane_of[id] for id in ids(taken)) == {"a": 6, "b": 1}
    assert len(set(ids(taken))) == 7
    assert await lab.claim(lanes={"a": 1, "b": 9, "empty": 90}, limit=7) == []


async def test_within_a_lane_weights_leave_the_order_as_it_is(lab: Lab) -> None:
    made = {priority: await lab.submit(lane="a", priority=priority) for priority in (1, 3, 2)}
    taken = [(await lab.claim_one(lanes={"a": 3, "b": 1})).id for _ in range(3)]
    assert taken == [made[3], made[2], made[1]]


async def test_a_paused_lane_is_passed_over_until_it_is_resumed(lab: Lab, second_lab: Lab) -> None:
    """§3.2"""
    running = await lab.running(lane="mail")
    paused = await lab.submit(lane="mail", priority=9000)
    other = await lab.submit(lane="gpu")
    await second_lab.engine.lanes.pause("mail")
    await lab.engine.lanes.pause("mail")
    assert ids(await lab.claim(limit=5)) == [other]
    assert await lab.claim(lanes=["mail"]) == []
    assert await lab.claim(lanes={"mail": 2, "gpu": 1}, limit=5) == []
    assert await lab.state(paused) is PublicState.WAITING
    await lab.complete(running)
    late = await lab.submit(lane="mail")
    await lab.engine.lanes.resume("mail")
    assert ids(await lab.claim(limit=5)) == [paused, late]


async def test_a_lane_may_be_paused_before_anything_was_submitted_to_it(lab: Lab) -> None:
    await lab.engine.lanes.pause("later")
    id = await lab.submit(lane="later")
    assert await lab.claim() == []
    await lab.engine.lanes.resume("later")
    assert ids(await lab.claim()) == [id]


async def test_a_claim_stays_in_its_namespace(lab: Lab) -> None:
    a = await lab.submit(namespace="a")
    b = await lab.submit(namespace="b", priority=9)
    assert await lab.claim(namespace="c", limit=5) == []
    assert ids(await lab.claim(namespace="a", limit=5)) == [a]
    assert ids(await lab.claim(limit=5)) == [b]


async def test_a_claim_takes_only_the_kinds_it_names(lab: Lab) -> None:
    mail = await lab.submit("mail", priority=9)
    resize = [await lab.submit("resize", priority=priority) for priority in (8, 7)]
    scale = await lab.submit("scale", lane="other", policy=needs("gpu"))
    assert await lab.claim(kinds=["nobody"], limit=5) == []
    assert await lab.claim(kinds=[], limit=5) == []
    taken = await lab.claim(kinds=["scale", "resize"], limit=5, capabilities=["gpu"])
    assert ids(taken) == [*resize, scale]
    assert ids(await lab.claim(limit=5)) == [mail]


@pytest.mark.rules
async def test_a_call_like_an_earlier_one_is_checked_where_its_types_are_others(lab: Lab) -> None:
    assert await lab.claim(limit=1, kinds=frozenset({"mail"})) == []
    mail = await lab.submit("mail")
    for wrong in (True, 1.0):
        with pytest.raises(Invalid):
            await lab.claim(limit=wrong, kinds=frozenset({"mail"}))
    with pytest.raises(Invalid):
        await lab.claim(limit=1, kinds=(["mail"],))
    kinds = ["resize"]
    assert await lab.claim(limit=1, kinds=kinds) == []
    kinds.append("mail")
    assert ids(await lab.claim(limit=1, kinds=kinds)) == [mail]


# -- rivals and repeats


async def test_two_claimers_at_once_never_get_the_same(lab: Lab, second_lab: Lab) -> None:
    """E-T075, INV-1"""
    made = {await lab.submit(lane=f"l{number % 3}") for number in range(60)}
    taken: list[ExecutionId] = []
    while len(taken) < 60:
        claims = [
            each.claim(worker, limit=4)
            for each, worker in [(lab, W1), (second_lab, W2), (lab, W2), (second_lab, W1)]
        ]
        found = [id for claimed in await asyncio.gather(*claims) for id in ids(claimed)]
        assert found, "a round of rivals takes something while there is something"
        taken += found
    assert len(taken) == len(set(taken))
    assert set(taken) == made
    epochs = [(await lab.engine.views.describe(id)) for id in made]
    assert {each.epoch for each in epochs if each} == {1}


async def test_rivals_for_the_last_one_get_it_once(lab: Lab, second_lab: Lab) -> None:
    id = await lab.submit()
    labs = [lab, second_lab] * 5
    claimed = await asyncio.gather(*(each.claim() for each in labs))
    assert [id for claims in claimed for id in ids(claims)] == [id]
    assert len(await lab.events(id)) == 1


def call(lab: Lab, limit: int = 2, **members: Any) -> ClaimCall:
    defaults: dict[str, Any] = {
        "id": UUID("018f4c3e-0000-7000-8000-0000000000ca"),
        "worker": W1,
        "capabilities": frozenset(),
        "lanes": (),
        "namespace": None,
        "limit": limit,
        "ttl": TTL,
    }
    return ClaimCall(**{**defaults, **members})


async def test_a_repeated_claim_call_returns_what_it_already_holds(lab: Lab) -> None:
    """INV-23: a lost reply is harmless."""
    made = [await lab.submit(payload=bytes([number])) for number in range(3)]
    store, now = lab.engine.store, lab.clock.now()
    first = await store.claim(call(lab), now)
    lab.clock.advance(5)
    again = await store.claim(call(lab, repeated=True), lab.clock.now())
    assert again == [replace(taken, again=True) for taken in first]
    assert [taken.snapshot.execution.id for taken in again] == made[:2]
    assert [taken.payload for taken in again] == [b"\0", b"\1"]
    assert len(await lab.events(made[0])) == 1
    assert await lab.engine.grants.eligible("default") == made[2:]


async def test_a_repeated_call_that_took_nothing_takes_now(lab: Lab) -> None:
    store, now = lab.engine.store, lab.clock.now()
    assert await store.claim(call(lab), now) == []
    id = await lab.submit()
    [taken] = await store.claim(call(lab, repeated=True), now)
    assert (taken.snapshot.execution.id, taken.snapshot.head.epoch) == (id, 1)


async def test_a_repeated_call_does_not_bring_back_what_has_ended(lab: Lab) -> None:
    made = [await lab.submit() for _ in range(2)]
    store, now = lab.engine.store, lab.clock.now()
    await store.claim(call(lab), now)
    await lab.engine.executions.cancel(made[0], reason="no")
    [left] = await store.claim(call(lab, repeated=True), now)
    assert left.snapshot.execution.id == made[1]
