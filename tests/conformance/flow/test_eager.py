"""Flows that grow without a seal, as over HTTP: members run as soon as their own edges allow.

Behaviour: coordination.md 1.3, 1.5; invariants I-8 to I-15; flaws F-01, F-12, F-13.
"""

import pytest

from flowfabric.core.base.errors import FlowTerminal, InvalidGraph, NotActive
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import AllOf, AnyOf, JoinPolicy, JoinState, Quorum
from flowfabric.core.flow.model import CancelPolicy, FlowState
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.flow.flows import FlowCreated
from tests.kit.flowing import Growing, counters, join_of, kept, replay
from tests.kit.lab import W2, Lab
from tests.kit.race import Race
from tests.kit.situations import completions


async def eager(lab: Lab, *names: str) -> Growing:
    """A flow that is not sealed: its members run as soon as their own edges allow."""
    made = await lab.engine.flows.create("nightly", eager=True)
    assert isinstance(made, FlowCreated)
    flow = Growing(lab, made.id, {})
    for name in names:
        await flow.add(name)
    return flow


async def test_edges_are_added_one_by_one_while_upstreams_end(lab: Lab) -> None:
    """I-10, I-12, coordination.md 1.5: each further edge of a flow that is not sealed gates the
    child again, until a worker has it"""
    flow = await eager(lab, "a", "b", "c", "child")
    await flow.complete("a")
    await flow.link("a>child")
    assert await lab.state(flow["child"]) is PublicState.WAITING
    await flow.link("b>child")
    assert await lab.state(flow["child"]) is PublicState.WAITING_CHILDREN
    await flow.complete("b")
    claim = await flow.take("child")
    await flow.link("c>child")
    assert await lab.state(flow["child"]) is PublicState.ACTIVE
    await flow.complete("c")
    assert await counters(flow, "child") == (3, 3, 0, 0)
    await lab.complete(claim)
    await flow.check()


async def test_a_further_edge_and_a_claim_of_another_engine_at_once(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-12, I-15: the claim was faster, so the child runs; if it is replayed it waits"""
    flow = await eager(lab, "a", "b", "child")
    await flow.complete("a")
    await flow.link("a>child")
    claims: list[Claim] = []

    async def take() -> None:
        claims.extend(await second_lab.claim(W2, limit=2))

    race = Race(lab, monkeypatch)
    race.before("apply_flow", take)
    await flow.link("b>child")
    assert (race.left, await lab.state(flow["child"])) == (0, PublicState.ACTIVE)
    await second_lab.complete(next(each for each in claims if each.id == flow["child"]))
    assert (await join_of(flow, "child")).state is JoinState.PENDING
    assert await replay(flow, "child") == [PublicState.WAITING_CHILDREN]
    await second_lab.complete(next(each for each in claims if each.id == flow["b"]))
    await flow.settled()
    await flow.complete("child")
    await flow.check()


async def test_edges_are_added_one_by_one_though_an_upstream_has_failed(lab: Lab) -> None:
    """I-8, I-13, I-15: the child is skipped with the first of them; the others are counted"""
    flow = await eager(lab, "a", "b", "c", "child")
    await flow.fail("a")
    await flow.complete("b")
    for word in ("a>child", "b>child", "c>child"):
        await flow.link(word)
    await flow.complete("c")
    assert await counters(flow, "child") == (3, 2, 1, 0)
    assert await completions(lab, flow["child"]) == [Outcome.SKIPPED]
    assert (await join_of(flow, "child")).state is JoinState.IMPOSSIBLE
    assert await replay(flow, "child") == [PublicState.WAITING_CHILDREN]
    await flow.check()


@pytest.mark.parametrize("running", [False, True])
async def test_an_upstream_that_has_failed_skips_a_child_whose_join_was_satisfied(
    lab: Lab, running: bool
) -> None:
    """I-10, I-12, I-13, F-01: the edge opens the join again and is settled at once; the child is
    skipped by the same change"""
    flow = await eager(lab, "a", "b", "child", "next")
    await flow.link("a>child")
    await flow.link("child>next")
    await flow.complete("a")
    await flow.fail("b")
    claim = await flow.take("child") if running else None
    await flow.link("b>child")
    assert await lab.state(flow["child"]) is PublicState.SKIPPED
    assert await lab.claim(limit=10) == []
    await flow.settled()
    assert await counters(flow, "child") == (2, 1, 1, 0)
    assert await completions(lab, flow["child"]) == [Outcome.SKIPPED]
    assert await completions(lab, flow["next"]) == [Outcome.SKIPPED]
    if claim is not None:
        with pytest.raises(NotActive):
            await lab.complete(claim)
    await flow.check()


async def test_an_edge_into_any_of_that_has_fired_is_refused_without_a_seal_as_well(
    lab: Lab,
) -> None:
    """F-13"""
    flow = await eager(lab, "a", "b", "child")
    await lab.engine.flows.set_join(flow.id, flow["child"], AnyOf())
    await flow.complete("a")
    await flow.link("a>child")
    await flow.settled()
    before = await kept(flow)
    with pytest.raises(InvalidGraph):
        await flow.link("b>child")
    assert await kept(flow) == before


@pytest.mark.parametrize("policy", [AllOf(), AnyOf(), Quorum(2)])
async def test_a_join_has_not_fired_before_its_first_edge(lab: Lab, policy: JoinPolicy) -> None:
    """C-T35, coordination.md 1.4 and Q-8: it is pending, and keeps no member waiting"""
    flow = await eager(lab, "a", "b", "child")
    assert await lab.engine.flows.set_join(flow.id, flow["child"], policy)
    join = await join_of(flow, "child")
    assert (join.state, join.fired_at, join.n) == (JoinState.PENDING, None, 0)
    assert await lab.state(flow["child"]) is PublicState.WAITING
    assert await lab.engine.flow_views.eligibility(flow["child"]) == "eligible"
    await flow.link("a>child")
    await flow.link("b>child")
    assert await lab.state(flow["child"]) is PublicState.WAITING_CHILDREN
    await flow.complete("a")
    if await lab.state(flow["b"]) is PublicState.WAITING:
        await flow.complete("b")
    await flow.complete("child")
    await flow.check()


@pytest.mark.parametrize("policy", list(CancelPolicy))
async def test_a_flow_without_members_is_over_when_it_is_cancelled(
    lab: Lab, policy: CancelPolicy
) -> None:
    """C-T10, C-T65: a caller that waits for it is answered, and retention deletes it"""
    flow = await eager(lab)
    answer = await lab.engine.flows.cancel(flow.id, policy=policy)
    assert (answer.remaining, answer.scheduled) == ((), False)
    ended = await lab.engine.flow_views.wait(flow.id, 1)
    assert (ended.state, ended.ended_at) == (FlowState.CANCELLED, lab.clock.now())


async def test_a_flow_without_members_is_over_when_it_is_sealed(lab: Lab) -> None:
    """C-T10, I-22: as one that is grown and sealed in Python; until then it is open"""
    flow = await eager(lab)
    assert await lab.engine.flows.set_tags(flow.id, {"app.team": "blue"}) == 1
    assert (await flow.flow()).ended_at is None
    await flow.seal()
    assert (await flow.check()).state is FlowState.COMPLETED
    with pytest.raises(FlowTerminal):
        await flow.add("late")
