"""Who gets what: capabilities, grants, namespaces, lanes, and work that ages."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    GrantExists,
    Invalid,
    InvalidCapabilities,
    NotEligible,
    NotFound,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.engine.context import EngineOptions
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit.lab import W1, W2, Lab
from tests.kit.limiting import crowd, define, finish, one, settled, slots
from tests.kit.situations import missing_ids


def needs(*tokens: Any) -> dict[str, Any]:
    return {"routing_requirements": {"required_capabilities": list(tokens)}}


def ids(claims: Iterable[Claim]) -> list[ExecutionId]:
    return [claim.id for claim in claims]


# -- routes of other processes


async def test_the_first_claim_takes_the_best_of_a_route_never_seen_before(
    lab: Lab, second_lab: Lab
) -> None:
    """The order is by priority over all routes, also those another process has just added."""
    plain = [await lab.submit(kind="old") for _ in range(3)]
    assert ids(await lab.claim()) == plain[:1]
    kind = await second_lab.submit(kind="new", priority=5)
    assert ids(await lab.claim()) == [kind]
    lane = await second_lab.submit(lane="new", priority=5)
    capable = await second_lab.submit(policy=needs("gpu"), priority=4)
    space = await second_lab.submit(namespace="new", priority=3)
    found = ids(await lab.claim(limit=4, capabilities=["gpu"]))
    assert found == [lane, capable, space, plain[1]]


async def test_a_new_route_is_seen_where_lanes_are_limited(lab: Lab, second_lab: Lab) -> None:
    await lab.engine.lanes.set("narrow", concurrency=2)
    plain = [await lab.submit(lane="narrow", kind="old") for _ in range(3)]
    assert ids(await lab.claim(lanes=["narrow"])) == plain[:1]
    kind = await second_lab.submit(lane="narrow", kind="new", priority=5)
    assert ids(await lab.claim(lanes=["narrow"], limit=3)) == [kind]


# -- capabilities


MATCHES = {
    "superset": (["gpu"], ["gpu", "cuda", "x"], True),
    "exact": (["gpu", "cuda"], ["cuda", "gpu"], True),
    "empty requirement": ([], [], True),
    "empty requirement, rich worker": ([], ["gpu"], True),
    "one missing": (["gpu", "cuda"], ["gpu"], False),
    "no overlap": (["gpu"], ["cuda"], False),
    "nothing offered": (["gpu"], [], False),
    "another case": (["gpu"], ["GPU"], False),
    "a part of the word": (["gpu"], ["gpu-a100", "gp"], False),
}


async def test_a_claim_matches_capabilities(lab: Lab, subtests: pytest.Subtests) -> None:
    """C-T101, I-33"""
    for number, (name, (required, offered, fits)) in enumerate(MATCHES.items()):
        with subtests.test(name):
            lane = f"l{number}"
            id = await lab.submit(lane=lane, policy=needs(*required))
            found = ids(await lab.claim(lanes=[lane], capabilities=offered, limit=5))
            assert found == ([id] if fits else [])


async def test_a_claim_walks_past_what_it_cannot_run(lab: Lab) -> None:
    """C-T106, C-T103, F-44: the head stays where it is, and nothing has to be unblocked"""
    heads = [await lab.submit(priority=9, policy=needs("gpu", f"m{n}")) for n in range(20)]
    low = await lab.submit()
    before = await lab.vector(heads[0])
    assert ids(await lab.claim(limit=9)) == [low]
    assert await lab.vector(heads[0]) == before
    assert before.eligibility == "eligible_now"
    assert await lab.events(heads[0]) == ()
    capable = ["gpu", *(f"m{n}" for n in range(20))]
    assert ids(await lab.claim(W2, capabilities=capable, limit=99)) == heads


async def test_two_workers_together_are_not_one_that_can(lab: Lab) -> None:
    """F-45, I-33: each worker is matched by itself, never a union"""
    id = await lab.submit(policy=needs("gpu", "cuda"))
    for offered in (["gpu"], ["cuda"], ["gpu"], ["cuda"]):
        assert await lab.claim(capabilities=offered) == []
    assert ids(await lab.claim(capabilities=["gpu", "cuda"])) == [id]


@pytest.mark.rules
@pytest.mark.inside
async def test_requirements_that_make_no_sense_are_refused(lab: Lab) -> None:
    """C-T102: fail closed, at submit and at claim"""
    wrong: list[Any] = ["a,b", "a b", "", "a\n", 7, None, "x" * 5000]
    for token in wrong:
        with pytest.raises(InvalidCapabilities):
            await lab.submit(policy=needs("gpu", token))
        with pytest.raises(InvalidCapabilities):
            await lab.claim(capabilities=["gpu", token])
    policies: list[dict[str, Any]] = [{"routing_requirements": []}, {"routing_requirements": "gpu"}]
    for policy in policies:
        with pytest.raises(Invalid):
            await lab.submit(policy=policy)
    assert await lab.claim(limit=9) == []


# -- grants


async def test_a_granted_head_hides_no_run_behind_it(lab: Lab) -> None:
    """F-43, I-30, C-T99: others get the next one; who it is for gets it; it runs out"""
    head, next, last = [await lab.submit(priority=9 - n) for n in range(3)]
    await lab.engine.grants.issue(head, W2.id, ttl=Millis(1_000))
    assert ids(await lab.claim(W1, limit=1)) == [next]
    with pytest.raises(GrantExists):
        await lab.engine.grants.issue(head, W1.id)
    with pytest.raises(FlowFabricError):
        await lab.engine.grants.claim(head, W1)
    lab.clock.advance(1_000)
    assert ids(await lab.claim(W1, limit=9)) == [head, last]


async def test_an_operator_takes_one_in_one_step(lab: Lab) -> None:
    """C-T109, I-30: whatever it requires; refused it leaves no grant behind"""
    id = await lab.submit(policy=needs("gpu"))
    claim = await lab.engine.grants.take(id)
    assert (claim.id, claim.epoch) == (id, 1)
    with pytest.raises(FlowFabricError):
        await lab.engine.grants.take(id)
    await lab.complete(claim)
    with pytest.raises(FlowFabricError):
        await lab.engine.grants.take(id)
    for missing in await missing_ids(lab):
        with pytest.raises(NotFound):
            await lab.engine.grants.take(missing)
    await define(lab, concurrency=1)
    first, second = await crowd(lab, 2, priority=9)
    with pytest.raises(NotEligible):
        await lab.engine.grants.take(second)
    await finish(lab, await lab.engine.grants.take(first))
    assert ids(await lab.claim(limit=1)) == [second]


async def test_a_grant_in_front_of_a_limit_keeps_its_slot(lab: Lab) -> None:
    """F-43, I-28: granted is ready; it runs out without giving the slot to another"""
    await define(lab, concurrency=1)
    first, second = await crowd(lab, 2)
    await lab.engine.grants.issue(first, W2.id, ttl=Millis(1_000))
    assert await lab.claim(W1, limit=9) == []
    await lab.pass_time(1_000)
    assert await slots(lab) == (1, 1)
    (claim,) = await lab.claim(W1, limit=9)
    assert claim.id == first
    await finish(lab, claim)
    assert ids(await lab.claim(W1, limit=9)) == [second]


# -- tenants, lanes, batches


async def test_a_tenant_never_gets_the_work_of_another(lab: Lab, second_lab: Lab) -> None:
    """F-49: one lane, many namespaces; limits are shared only by name"""
    made: dict[str, list[ExecutionId]] = {}
    for tenant in ("a", "b", "A"):
        made[tenant] = [await lab.submit(namespace=tenant, priority=n) for n in range(3)]
    asked = [
        each.claim(worker, namespace=tenant, limit=9)
        for each, worker, tenant in ((lab, W1, "a"), (second_lab, W2, "b"), (lab, W2, "nobody"))
    ]
    a, b, nobody = await asyncio.gather(*asked)
    assert (ids(a), ids(b), nobody) == (made["a"][::-1], made["b"][::-1], [])
    assert ids(await lab.claim(limit=9)) == made["A"][::-1]


async def test_one_claim_takes_many_of_several_lanes_in_order(lab: Lab, second_lab: Lab) -> None:
    """F-50, C-T100: best first over all lanes named, at most as many as asked for, each once"""
    made = [await lab.submit(lane=f"l{n % 4}", priority=n) for n in range(12)]
    wanted = [id for n, id in enumerate(made) if n % 4 in (1, 3)][::-1]
    assert ids(await lab.claim(lanes=["l1", "l3"], limit=4)) == wanted[:4]
    rest = await asyncio.gather(*(each.claim(limit=3) for each in [lab, second_lab] * 2))
    taken = [id for claims in rest for id in ids(claims)]
    assert len(taken) == len(set(taken))
    taken += ids(await lab.claim(limit=99))
    assert sorted(taken) == sorted(set(made) - set(wanted[:4]))


# -- aging


@pytest.fixture
async def aging(store: Store, clock: ManualClock) -> AsyncIterator[Lab]:
    """Whoever waits a second is worth one more point of priority."""
    lab = await Lab.open(store, clock, aging=Millis(1_000))
    yield lab
    await lab.engine.close()


async def test_old_work_overtakes_urgent_work_in_the_end(aging: Lab) -> None:
    """F-47: aging; exactly when it has waited long enough"""
    old = await aging.submit()
    aging.clock.advance(4_999)
    urgent = await aging.submit(priority=5)
    aging.clock.advance(2)
    late = await aging.submit(priority=5)
    assert ids(await aging.claim(limit=9)) == [urgent, old, late]


async def test_a_changed_priority_ages_as_well(aging: Lab) -> None:
    """F-47, I-32"""
    old = await aging.submit()
    aging.clock.advance(2_500)
    new = await aging.submit(priority=2)
    newer = await aging.submit(priority=1)
    await aging.engine.executions.change_priority(newer, 3)
    assert ids(await aging.claim(limit=9)) == [newer, old, new]


async def test_who_waits_at_a_limit_ages_as_well(aging: Lab) -> None:
    """F-47: old work is not kept at the limit for ever by a stream of urgent work"""
    await define(aging, concurrency=1)
    running = await one(aging)
    old = await one(aging)
    aging.clock.advance(3_500)
    for priority in (3, 4):
        await one(aging, priority=priority)
    claim = await aging.claim_one()
    assert claim.id == running
    order = []
    for _ in range(3):
        await finish(aging, claim)
        await settled(aging)
        claim = await aging.claim_one()
        order.append(claim.snapshot.priority)
        if claim.id == old:
            break
    assert order == [4, 0]


async def test_without_aging_priority_always_comes_first(lab: Lab) -> None:
    """I-32"""
    old = await lab.submit()
    lab.clock.advance(365 * 86_400_000)
    urgent = await lab.submit(priority=1)
    assert ids(await lab.claim(limit=9)) == [urgent, old]


@pytest.mark.rules
def test_aging_is_a_span() -> None:
    for wrong in (0, -1, True, 1.5, "0s", "soon", 10**15):
        with pytest.raises(Invalid):
            EngineOptions(aging=wrong)  # type: ignore[arg-type]
    assert EngineOptions(aging="1s").rank_step == 1_000
    assert EngineOptions(aging=Millis(1)).rank_step == 1
