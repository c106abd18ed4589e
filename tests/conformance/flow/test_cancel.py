"""Cancelling flows: durable at the header, then member by member. §1.12–1.14, I-19, I-20, I-21,
F-05, F-16, F-33, F-34, F-35, C-T65 to C-T75."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    FlowTerminal,
    Invalid,
    LeaseLost,
    NotFound,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, Family
from flowfabric.core.execution.model import AttemptOutcome
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.join import Edge, Quorum, Rest
from flowfabric.core.flow.model import Cancellation, CancelPolicy, FlowState
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.flow.flows import FlowCancelled, FlowCreated
from flowfabric.engine.flow.walks import LIVING_PAGE
from flowfabric.store.queries import MembersOf
from tests.kit.flow_lab import Drawn, declare, fresh
from tests.kit.flowing import Growing
from tests.kit.lab import Lab
from tests.kit.situations import DELAY, RETRY, completions, described, suspend

CANCELLED = PublicState.CANCELLED
POLICIES = list(CancelPolicy)


async def cancel(drawn: Drawn, **options: Any) -> FlowCancelled:
    return await drawn.lab.engine.flows.cancel(drawn.id, **{"reason": "enough", **options})


async def mixed(lab: Lab) -> Drawn:
    """Members in every state a member may have, each on its own."""
    far = Millis(lab.clock.now() + DELAY)
    drawn = await declare(
        lab,
        *("waiting", "delayed", "leased", "suspended", "retrying", "lost", "handed_back"),
        *("completed", "failed", "leased>child"),
        given={"delayed": {"delay_until": far}, "retrying": {"policy": RETRY}},
    )
    lost = await drawn.take("lost")
    await lab.lose(lost)
    await lab.fail(await drawn.take("retrying"))
    await lab.engine.attempts.hand_back(await drawn.take("handed_back"))
    await suspend(lab, await drawn.take("suspended"))
    await drawn.complete("completed")
    await drawn.fail("failed")
    await drawn.take("leased")
    return drawn


# -- by policy


async def test_cancel_all_ends_every_member_that_has_not_ended(lab: Lab) -> None:
    """E-T174, E-T196, E-X11, F-05, F-35, C-T71: the child is cancelled too, not skipped; what
    had ended stays as it was; each ending is told once"""
    drawn = await mixed(lab)
    assert await cancel(drawn) == FlowCancelled(drawn.id, CancelPolicy.ALL, "enough")
    await drawn.settled()
    kept = {"completed": PublicState.COMPLETED, "failed": PublicState.FAILED}
    assert await drawn.states() == {name: kept.get(name, CANCELLED) for name in drawn.members}
    outcomes = {"completed": Outcome.SUCCESS, "failed": Outcome.FAILED}
    assert await drawn.endings() == {
        name: [outcomes.get(name, Outcome.CANCELLED)] for name in drawn.members
    }
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (
        FlowState.CANCELLED,
        {"success": 1, "failed": 1, "cancelled": 8},
    )


async def test_cancel_pending_ends_only_those_that_never_started(lab: Lab) -> None:
    """Q-1, F-33: suspended, retrying, lost and running members go on"""
    drawn = await mixed(lab)
    before = await drawn.states()
    answer = await cancel(drawn, policy="cancel_pending")
    assert answer == FlowCancelled(drawn.id, CancelPolicy.PENDING, "enough")
    await drawn.settled()
    pending = {"waiting", "delayed", "child"}
    after = await drawn.states()
    assert {name for name, state in after.items() if state is CANCELLED} == pending
    assert {name: after[name] for name in after if name not in pending} == {
        name: before[name] for name in before if name not in pending
    }
    flow = await drawn.check()
    assert (flow.state, flow.ended_at) == (FlowState.CANCELLED, None)


async def test_what_cancel_pending_leaves_alone_ends_as_it_would(lab: Lab) -> None:
    drawn = await declare(lab, "a>b", "c")
    claim = await drawn.take("a")
    await cancel(drawn, policy=CancelPolicy.PENDING)
    await lab.complete(claim)
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.CANCELLED, {"success": 1, "cancelled": 2})
    assert flow.ended_at == lab.clock.now()


async def test_a_member_that_starts_meanwhile_is_not_pending(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q-1: looked at again when it is cancelled"""
    drawn = await declare(lab, "a", "b")
    honest, begun = lab.engine.store.page, list[Claim]()

    async def members(query: MembersOf) -> Any:
        found = await honest(query)
        if await drawn.state() is FlowState.CANCELLED and not begun:
            begun.append(await drawn.take("a"))
        return found

    await lab.engine.flows.cancel_header(drawn.id, policy="cancel_pending")
    monkeypatch.setattr(lab.engine.store, "page", members)
    await drawn.settled()
    assert await drawn.states() == {"a": PublicState.ACTIVE, "b": CANCELLED}
    await lab.complete(begun[0])


@pytest.mark.parametrize("eager", [False, True])
async def test_no_member_waits_for_edges_that_cannot_come(lab: Lab, eager: bool) -> None:
    """I-6, I-11, I-13: a cancelled flow takes no edge, so a quorum of more upstreams than there are
    is impossible, also for one that an operator holds; nothing else of the flow is touched"""
    made = await lab.engine.flows.create("nightly", eager=eager)
    assert isinstance(made, FlowCreated)
    flow = Growing(lab, made.id, {})
    for name in ("a", "b", "busy"):
        await flow.add(name)
    if not eager:
        await flow.seal()
    for name in ("short", "next", "held", "enough"):
        await flow.add(name)
    for name, k in (("short", 2), ("held", 2), ("enough", 1), ("busy", 2)):
        join = Quorum(k, Rest.LET_RUN)
        await lab.engine.flows.set_join(flow.id, flow[name], join)
    claim = await flow.take("busy")
    for word in ("a>short", "short>next", "a>held", "a>enough", "b>busy"):
        await flow.link(word)
    await lab.engine.executions.hold(flow["held"])
    await lab.engine.flows.cancel(flow.id, policy=CancelPolicy.FLOW_ONLY)
    await flow.settled()
    assert await flow.states() == {
        "a": PublicState.WAITING,
        "b": PublicState.WAITING,
        "busy": PublicState.ACTIVE,
        "short": PublicState.SKIPPED,
        "next": PublicState.SKIPPED,
        "held": PublicState.SKIPPED,
        "enough": PublicState.WAITING_CHILDREN,
    }
    await lab.complete(claim)
    await flow.complete("a", "b")
    await flow.complete("enough")
    assert (await flow.check()).ended_at is not None


async def test_flow_only_leaves_every_member_alone(lab: Lab) -> None:
    """C-T66, F-33: only the graph is closed"""
    drawn = await mixed(lab)
    before = await drawn.states()
    assert await cancel(drawn, policy="flow_only") == FlowCancelled(
        drawn.id, CancelPolicy.FLOW_ONLY, "enough"
    )
    assert await drawn.states() == before
    assert not (await lab.engine.store.owing([drawn.id], 1)).entries
    assert await drawn.state() is FlowState.CANCELLED


async def test_a_flow_that_only_was_closed_ends_when_its_members_have(lab: Lab) -> None:
    drawn = await declare(lab, "a>b")
    await cancel(drawn, policy="flow_only")
    await drawn.complete("a")
    assert (await drawn.flow()).ended_at is None
    await drawn.complete("b")
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.CANCELLED, {"success": 2})


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_cancelled_flow_takes_no_members_and_no_edges(
    lab: Lab, policy: CancelPolicy
) -> None:
    drawn = await declare(lab, "a", "b")
    await cancel(drawn, policy=policy)
    flows, before = lab.engine.flows, await drawn.flow()
    edge = Edge(fresh(lab), drawn.id, drawn["a"].uuid, drawn["b"].uuid)
    with pytest.raises(FlowTerminal):
        await flows.add(drawn.id, Submission(kind="late"))
    with pytest.raises(FlowTerminal):
        await flows.stage(edge)
    with pytest.raises(FlowTerminal):
        await flows.seal(drawn.id)
    await drawn.settled()
    after = await drawn.flow()
    assert (after.nodes, after.edges, after.revision) == (before.nodes, before.edges, 2)


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_flow_without_members_is_over_at_once(lab: Lab, policy: CancelPolicy) -> None:
    """C-T65: and nothing is owed to it"""
    created = await lab.engine.flows.create("empty", id=fresh(lab))
    flow = Drawn(lab, created.id, {})  # type: ignore[union-attr]
    assert await cancel(flow, policy=policy) == FlowCancelled(flow.id, policy, "enough")
    assert not (await lab.engine.store.owing([flow.id], 1)).entries
    assert (await flow.check()).ended_at == lab.clock.now()


async def test_an_open_flow_is_cancelled_with_the_members_it_holds(lab: Lab) -> None:
    """They were never let go, and they never are"""
    flow = fresh(lab)
    await lab.engine.flows.create("growing", id=flow)
    added = await lab.engine.flows.add(flow, Submission(kind="job"))
    await lab.engine.flows.cancel(flow)
    drawn = Drawn(lab, flow, {"a": added.id})
    assert await drawn.states() == {"a": CANCELLED}
    assert (await drawn.check()).state is FlowState.CANCELLED


# -- what a cancelled member leaves behind


async def test_a_running_member_loses_its_lease(lab: Lab) -> None:
    """F-35, coordination.md 1.12: its worker hears of it when it asks; the source is an operator"""
    drawn = await declare(lab, "a")
    claim = await drawn.take("a")
    await cancel(drawn)
    with pytest.raises(LeaseLost):
        await lab.engine.claims.renew(claim)
    with pytest.raises(LeaseLost):
        await lab.complete(claim)
    seen = await described(lab, claim.id)
    assert (seen.state, seen.lease, seen.cancel_reason) == (CANCELLED, None, "enough")
    assert seen.cancelled_by == "operator_override"
    assert await drawn.endings() == {"a": [Outcome.CANCELLED]}


async def test_a_cancelled_member_is_never_claimed_again(lab: Lab) -> None:
    """INV-30: whatever it was doing, and however long one waits"""
    drawn = await mixed(lab)
    await cancel(drawn)
    for _ in range(3):
        await lab.pass_time(10 * DELAY)
        assert await lab.claim(limit=50) == []
    assert set((await drawn.endings()).keys()) == set(drawn.members)


async def test_the_attempt_in_hand_ends_with_the_member(lab: Lab) -> None:
    """E-T175, C-T74: whatever it was before, it is a cancelled attempt now"""
    drawn = await declare(lab, "a", given={"a": {"policy": RETRY}})
    await lab.fail(await drawn.take("a"))
    await lab.pass_time(DELAY)
    await drawn.take("a")
    await cancel(drawn)
    first, second = await lab.engine.views.attempts(drawn["a"])
    assert (first.outcome, second.outcome) == (AttemptOutcome.FAILURE, AttemptOutcome.CANCELLED)


async def test_a_suspended_member_hears_no_signal_any_more(lab: Lab) -> None:
    drawn = await declare(lab, "a")
    await suspend(lab, await drawn.take("a"))
    await cancel(drawn)
    assert await drawn.states() == {"a": CANCELLED}
    await lab.pass_time(10 * DELAY)
    assert await drawn.endings() == {"a": [Outcome.CANCELLED]}


async def test_a_deep_graph_is_cancelled_and_never_skipped(lab: Lab) -> None:
    """Q-2: whichever of it comes first"""
    drawn = await declare(lab, "a>b>c>d>e", "a>e", "b>e", "x>e")
    await drawn.complete("x")
    await cancel(drawn)
    flow = await drawn.check()
    assert flow.ended == {"success": 1, "cancelled": 5}
    assert await drawn.endings() == {
        name: [Outcome.SUCCESS if name == "x" else Outcome.CANCELLED] for name in drawn.members
    }


# -- waiting for it, or not


async def test_waiting_means_for_the_members(lab: Lab) -> None:
    """F-16, C-T73"""
    drawn = await declare(lab, *(f"m{n}" for n in range(40)))
    answer = await cancel(drawn, timeout=60)
    assert (answer.scheduled, answer.remaining) == (False, ())
    assert set((await drawn.states()).values()) == {CANCELLED}


async def test_members_on_many_pages_are_all_cancelled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-19, C-T73: the next page is decided while one is written"""
    monkeypatch.setattr("flowfabric.engine.flow.walks.LIVING_PAGE", 3)
    drawn = await declare(lab, "a>b>c>d>e", "a>e", *(f"m{n}" for n in range(11)))
    await drawn.complete("m0")
    assert (await cancel(drawn)).remaining == ()
    assert (await drawn.check()).ended == {"success": 1, "cancelled": 15}


async def test_in_the_background_the_members_follow(lab: Lab) -> None:
    drawn = await declare(lab, "a>b", "c")
    answer = await cancel(drawn, wait=False)
    assert answer.scheduled
    assert set(answer.remaining) == set(drawn.members.values())
    assert await drawn.state() is FlowState.CANCELLED
    await lab.engine._dispatcher.drain()
    assert (await drawn.check()).ended == {"cancelled": 3}


@pytest.mark.parametrize("policy", POLICIES)
async def test_with_nothing_left_to_cancel_nothing_is_scheduled(
    lab: Lab, policy: CancelPolicy
) -> None:
    drawn = await declare(lab, "a")
    await drawn.take("a")
    answer = await cancel(drawn, policy=policy, wait=False)
    assert answer.scheduled == (policy is CancelPolicy.ALL)


async def test_a_timeout_leaves_the_rest_to_the_background(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T73"""
    drawn = await declare(lab, "a", "b")
    honest, gate = lab.engine.store.page, asyncio.Event()

    async def slow(query: MembersOf) -> Any:
        if query.living and query.limit == LIVING_PAGE:
            await gate.wait()
        return await honest(query)

    monkeypatch.setattr(lab.engine.store, "page", slow)
    with pytest.raises(TimeoutError):
        await cancel(drawn, timeout=0.01)
    assert await drawn.state() is FlowState.CANCELLED
    gate.set()
    await lab.engine._dispatcher.drain()
    assert (await drawn.check()).ended == {"cancelled": 2}


@pytest.mark.rules
@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "soon"])
async def test_a_timeout_that_is_none_cancels_nothing(lab: Lab, timeout: Any) -> None:
    """C-T67: what is wrong is refused before anything is done"""
    drawn = await declare(lab, "a")
    with pytest.raises(Invalid):
        await cancel(drawn, timeout=timeout)
    assert await drawn.state() is FlowState.RUNNING


# -- again, too late, unknown


@pytest.mark.parametrize("policy", POLICIES)
async def test_cancelling_again_gives_the_first_answer(lab: Lab, policy: CancelPolicy) -> None:
    """I-21, E-T197, C-T70"""
    drawn = await declare(lab, "a>b")
    await drawn.take("a")
    await cancel(drawn, policy=policy)
    await drawn.settled()
    flow, endings = await drawn.flow(), await drawn.endings()
    lab.clock.advance(5)
    for other in POLICIES:
        again = await cancel(drawn, policy=other, reason="another", wait=other != policy)
        assert (again.policy, again.reason, again.remaining) == (policy, "enough", ())
        assert not again.scheduled
    assert (await drawn.flow(), await drawn.endings()) == (flow, endings)
    assert flow.cancel == Cancellation(Millis(lab.clock.now() - 5), "enough", policy)


async def test_cancelling_again_finishes_what_a_header_owes(lab: Lab) -> None:
    drawn = await declare(lab, "a", "b")
    await lab.engine.flows.cancel_header(drawn.id)
    assert (await cancel(drawn)).remaining == ()
    assert (await drawn.check()).ended == {"cancelled": 2}


async def test_a_flow_that_has_ended_is_not_cancelled(lab: Lab) -> None:
    drawn = await declare(lab, "a")
    await drawn.complete("a")
    before = await drawn.flow()
    with pytest.raises(FlowTerminal):
        await cancel(drawn)
    failed = await declare(lab, "a")
    await failed.fail("a")
    with pytest.raises(FlowTerminal):
        await cancel(failed)
    assert await drawn.flow() == before
    assert await failed.state() is FlowState.FAILED


async def test_an_unknown_flow_is_not_cancelled(lab: Lab) -> None:
    with pytest.raises(NotFound):
        await lab.engine.flows.cancel(fresh(lab))
    with pytest.raises(Invalid):
        await lab.engine.flows.cancel("flow")  # type: ignore[arg-type]


@pytest.mark.rules
@pytest.mark.parametrize("policy", ["all", "cancel_flow_only", "", "CANCEL_ALL", None, 1])
async def test_there_are_three_policies_and_no_other_words(lab: Lab, policy: Any) -> None:
    """F-33"""
    drawn = await declare(lab, "a")
    with pytest.raises(Invalid):
        await cancel(drawn, policy=policy)
    with pytest.raises(Invalid):
        await cancel(drawn, reason="x" * 10_000)
    assert await drawn.state() is FlowState.RUNNING


async def test_acknowledging_is_harmless(lab: Lab) -> None:
    """I-20, E-T198, C-T68: known or not, once or twice; nothing is told"""
    drawn = await declare(lab, "a")
    flows, before = lab.engine.flows, await drawn.flow()
    for flow in (drawn.id, drawn.id, fresh(lab)):
        await flows.acknowledge(flow, drawn["a"])
    assert await drawn.flow() == before
    await cancel(drawn)
    events = await lab.events(drawn["a"])
    await flows.acknowledge(drawn.id, drawn["a"])
    assert await lab.events(drawn["a"]) == events


# -- what is told


@pytest.mark.parametrize("policy", POLICIES)
async def test_an_operator_is_told_once_that_a_flow_was_cancelled(
    lab: Lab, policy: CancelPolicy
) -> None:
    """E-T196"""
    drawn = await declare(lab, "a>b", "c")
    await cancel(drawn, policy=policy)
    await cancel(drawn, policy=policy)
    await drawn.settled()
    found = [
        event
        for id in drawn.members.values()
        for event in await lab.events(id, family=Family.OPERATOR)
        if event.kind is EventKind.FLOW_CANCEL_REQUESTED
    ]
    (event,) = found
    assert (event.operator, event.detail) == (
        "flow_cancel_requested",
        {
            "flow_id": str(drawn.id),
            "policy": str(policy),
            "reason": "enough",
            "member_count": 3,
        },
    )
    assert (event.lease, event.completion) == (None, None)


async def test_the_report_disturbs_no_caller(lab: Lab) -> None:
    """The member that tells it may be running, and may have ended"""
    drawn = await declare(lab, "a")
    claim = await drawn.take("a")
    await cancel(drawn, policy="flow_only")
    await lab.engine.claims.renew(claim)
    await lab.complete(claim, b"1")
    assert await completions(lab, claim.id) == [Outcome.SUCCESS]
    other = await declare(lab, "a", "b")
    await other.complete("a")
    await cancel(other)
    assert (await other.check()).ended == {"success": 1, "cancelled": 1}
    assert await lab.engine.views.result(other["a"]) == b"a"
