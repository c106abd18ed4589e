"""Flows of a run that ends without success: they are cancelled with it, whatever dies meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import NotActive, NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from flowfabric.core.flow.cancel import PARENT_ENDED
from flowfabric.core.flow.join import Edge
from flowfabric.core.flow.model import CancelPolicy, FlowState, Parent
from flowfabric.engine.execution.claims import Claim
from tests.kit.flow_lab import Drawn, declare, draw, failing, fresh
from tests.kit.flowing import after_commit, die_after_commits
from tests.kit.lab import W2, Lab
from tests.kit.situations import RETRY_AT_ONCE, load, missing_ids, suspend, take, timeouts

CANCELLED, RUNNING = PublicState.CANCELLED, FlowState.RUNNING
SIGNAL = "flow-ended"


async def start(lab: Lab, run: str, *words: str, **options: Any) -> Drawn:
    """A flow of a run."""
    return await declare(lab, *(words or ("a>b",)), parent=Parent(str(run), SIGNAL), **options)


async def running(lab: Lab, **policy: Any) -> Claim:
    return await take(lab, await lab.submit(policy=policy or None))


async def claimed_again(lab: Lab, run: ExecutionId) -> Claim:
    (found,) = [each for each in await lab.claim(limit=9) if each.id == run]
    return found


async def listed(lab: Lab, run: ExecutionId) -> tuple[tuple[UUID, ...], tuple[UUID, ...]]:
    """The flows the run would take along, and those it took along before."""
    life = (await load(lab, run)).life
    return life.flows, life.orphans


async def is_taken_along(flow: Drawn) -> None:
    found = await flow.check()
    assert found.state is FlowState.CANCELLED
    assert found.cancel is not None
    assert (found.cancel.reason, found.cancel.policy) == (PARENT_ENDED, CancelPolicy.ALL)
    assert set((await flow.states()).values()) == {CANCELLED}
    for id in flow.members.values():
        assert (await load(flow.lab, id)).life.cancel_reason == PARENT_ENDED


async def is_left_alone(flow: Drawn) -> None:
    await flow.settled()
    assert await flow.state() is RUNNING
    assert CANCELLED not in (await flow.states()).values()


# -- how a run ends


async def cancelled(lab: Lab, claim: Claim) -> None:
    await lab.engine.executions.cancel(claim.id, reason="enough")


async def cancelled_by_its_owner(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.cancel(claim, "enough")


async def failed(lab: Lab, claim: Claim) -> None:
    """By the claim that was held before the flow was there."""
    await lab.fail(claim, "permanent")


async def failed_later(lab: Lab, claim: Claim) -> None:
    """By a claim that knows of the flow, so that the end is one statement."""
    await lab.engine.attempts.hand_back(claim)
    again = await claimed_again(lab, claim.id)
    assert len(again.snapshot.life.flows) == 1
    await lab.fail(again, "permanent")


async def expired(lab: Lab, claim: Claim) -> None:
    lab.clock.advance(10_000)
    await lab.engine.executions.expire(claim.id)


async def cancelled_in_its_sleep(lab: Lab, claim: Claim) -> None:
    await suspend(lab, claim)
    assert await lab.state(claim.id) is PublicState.SUSPENDED
    await lab.engine.executions.cancel(claim.id, reason="enough")


async def cancelled_while_lost(lab: Lab, claim: Claim) -> None:
    lab.clock.advance(claim.ttl)
    await lab.engine.claims.mark_expired(claim.id)
    await lab.engine.executions.cancel(claim.id, reason="enough")


Ending = Callable[[Lab, Claim], Awaitable[None]]
ENDINGS: list[tuple[Ending, dict[str, Any]]] = [
    (cancelled, {}),
    (cancelled_by_its_owner, {}),
    (failed, {}),
    (failed_later, {}),
    (expired, timeouts(deadline=10_000)),
    (cancelled_in_its_sleep, {}),
    (cancelled_while_lost, {}),
]


@pytest.mark.parametrize(("end", "policy"), ENDINGS, ids=[end.__name__ for end, _ in ENDINGS])
async def test_a_run_that_ends_without_success_cancels_its_flow(
    lab: Lab, end: Ending, policy: dict[str, Any]
) -> None:
    """I-19: right after the commit, members that run included"""
    claim = await running(lab, **policy)
    flow = await start(lab, claim.id, "a>b", "c")
    held = await take(lab, flow["a"], W2)
    await end(lab, claim)
    await after_commit(lab)
    assert await flow.states() == dict.fromkeys("abc", CANCELLED)
    await is_taken_along(flow)
    with pytest.raises(NotActive):
        await lab.complete(held)


async def test_a_skipped_member_cancels_its_flow(lab: Lab) -> None:
    """I-19: its join became impossible while it waited for its upstreams"""
    outer = await declare(lab, "up", "run")
    claim = await outer.take("run")
    flow = await start(lab, claim.id)
    await lab.engine.flows.stage(_edge(outer, "up", "run"))
    await lab.engine.attempts.wait_children(claim)
    await outer.fail("up")
    assert await lab.state(outer["run"]) is PublicState.SKIPPED
    await is_taken_along(flow)


def _edge(flow: Drawn, upstream: str, downstream: str) -> Edge:
    return Edge(
        id=fresh(flow.lab),
        flow=flow.id,
        upstream=flow[upstream].uuid,
        downstream=flow[downstream].uuid,
    )


async def test_flows_of_flows_follow_by_themselves(lab: Lab) -> None:
    """I-19"""
    claim = await running(lab)
    chain = [await start(lab, claim.id, "a", "b")]
    for _ in range(3):
        chain.append(await start(lab, (await chain[-1].take("a")).id, "a", "b"))
    await lab.engine.executions.cancel(claim.id, reason="enough")
    await after_commit(lab)
    for flow in chain:
        await is_taken_along(flow)


async def test_a_run_takes_all_its_flows_along_and_no_others(lab: Lab) -> None:
    claim, other = await running(lab), await running(lab)
    mine = [await start(lab, claim.id, "a") for _ in range(3)]
    theirs, nobodys = await start(lab, other.id, "a"), await declare(lab, "a")
    await lab.engine.executions.cancel(claim.id, reason="enough")
    await after_commit(lab)
    for flow in mine:
        await is_taken_along(flow)
    for flow in (theirs, nobodys):
        await is_left_alone(flow)


# -- when a flow goes on


async def test_a_run_that_succeeds_leaves_its_flow_alone(lab: Lab) -> None:
    """Its claim is older than the flow: steps and the end are written all the same"""
    claim = await running(lab)
    flow = await start(lab, claim.id, "a")
    await lab.engine.attempts.record_step(claim, Step(0, 0, "flow", 0, b"{}"))
    await lab.complete(claim)
    await is_left_alone(flow)
    await flow.complete("a")
    assert (await flow.check()).state is FlowState.COMPLETED
    await lab.engine.executions.replay(claim.id)
    assert await listed(lab, claim.id) == ((), ())


async def test_a_run_that_is_tried_again_keeps_its_flow(lab: Lab) -> None:
    claim = await running(lab, **RETRY_AT_ONCE)
    flow = await start(lab, claim.id)
    await lab.fail(claim)
    await is_left_alone(flow)
    lost = await claimed_again(lab, claim.id)
    await lab.lose(lost)
    await is_left_alone(flow)
    await lab.fail(await claimed_again(lab, claim.id))
    await is_left_alone(flow)
    await lab.fail(await claimed_again(lab, claim.id))
    assert await lab.state(claim.id) is PublicState.FAILED
    await is_taken_along(flow)


async def test_a_flow_that_is_over_stays_as_it_is(lab: Lab) -> None:
    """The run has heard of it and forgets it: a long run that starts many flows stays small"""
    claim = await running(lab)
    done, alive = await start(lab, claim.id, "a"), await start(lab, claim.id, "a")
    await done.complete("a")
    assert await listed(lab, claim.id) == ((alive.id,), ())
    await lab.fail(claim, "permanent")
    await is_taken_along(alive)
    assert (await done.check()).state is FlowState.COMPLETED


@pytest.mark.parametrize(("page", "early"), [(500, False), (2, True)])
async def test_a_flow_whose_end_was_not_counted_is_not_cancelled(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, page: int, early: bool
) -> None:
    """All its members had ended when the run did; whoever knew it has died. The replay may come
    before anybody else finds out"""
    monkeypatch.setattr("flowfabric.engine.flow.resolver.PAGE", page)
    claim = await running(lab)
    flow = await start(lab, claim.id, "a", "b", "c")
    held = [await flow.take(name) for name in "abc"]
    die_after_commits(lab, monkeypatch)
    for each in held:
        await lab.complete(each)
    await lab.fail(claim, "permanent")
    if early:
        await lab.engine.executions.replay(claim.id)
        assert await listed(lab, claim.id) == ((), (flow.id,))
    await second_lab.engine.sweep.once()
    found = await Drawn(second_lab, flow.id, flow.members).check()
    assert (found.state, found.ended) == (FlowState.COMPLETED, {"success": 3})
    if not early:
        await lab.engine.executions.replay(claim.id)
    assert await listed(lab, claim.id) == ((), ()), "a replay uses what it gave"


# -- crashes


async def test_a_death_right_after_the_end_is_made_up_for(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-19: recorded with the ending, found by the sweep of another process"""
    claim = await running(lab)
    flow = await start(lab, claim.id)
    inner = await start(lab, (await flow.take("a")).id, "a")
    die_after_commits(lab, monkeypatch)
    await lab.fail(claim, "permanent")
    await lab.engine._dispatcher.drain()
    assert [await each.state() for each in (flow, inner)] == [RUNNING, RUNNING]
    await second_lab.engine.sweep.once()
    for each in (flow, inner):
        await is_taken_along(Drawn(second_lab, each.id, each.members))


@pytest.mark.parametrize("survives", range(6))
async def test_a_death_at_any_write_loses_no_member(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    """I-19"""
    claim = await running(lab)
    flow = await start(lab, claim.id, "a>b", "c")
    inner = await start(lab, (await flow.take("a")).id, "a")
    with monkeypatch.context() as cut:
        left = [survives]
        await lab.engine.executions.cancel(claim.id, reason="enough")
        for name in ("apply", "apply_flow", "count_flows"):
            cut.setattr(lab.engine.store, name, failing(getattr(lab.engine.store, name), left))
        await lab.engine._dispatcher.drain()
    for each in (flow, inner):
        await is_taken_along(each)


@pytest.mark.parametrize("written", [0, 1])
async def test_a_run_that_ends_while_it_declares_its_flow(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """I-19: what was written later is cancelled as well"""
    claim = await running(lab)
    executions = lab.engine.flows._executions
    honest, calls = executions.put_all, []

    async def put_all(creations: Any) -> None:
        calls.append(creations)
        if len(calls) == written + 1:
            await lab.engine.executions.cancel(claim.id, reason="enough")
            await after_commit(lab)
        await honest(creations)

    monkeypatch.setattr(executions, "put_all", put_all)
    await is_taken_along(await start(lab, claim.id, "a>b", "c"))


async def test_a_run_that_is_not_there_or_has_ended_starts_no_flow(lab: Lab) -> None:
    """Nobody would ever cancel it"""
    claim = await running(lab)
    known = await start(lab, claim.id, "a")
    await lab.complete(claim)
    flow = fresh(lab)
    with pytest.raises(NotActive):
        await start(lab, claim.id, "a", id=flow)
    for id in await missing_ids(lab):
        with pytest.raises(NotFound):
            await start(lab, id, "a", id=flow)
    assert await lab.engine.flow_views.get(flow) is None
    again = await lab.engine.flows.declare(
        "nightly", draw("a"), id=known.id, parent=Parent(str(claim.id), SIGNAL)
    )
    assert not again.created


# -- replays


async def test_a_replay_knows_which_flows_were_cancelled(lab: Lab, second_lab: Lab) -> None:
    """Also when it comes before they are"""
    claim = await running(lab)
    flow = await start(lab, claim.id, "a")
    await asyncio.gather(
        lab.engine.executions.cancel(claim.id, reason="enough"),
        lab.engine.executions.replay(claim.id),
    )
    assert await listed(lab, claim.id) == ((), (flow.id,))
    assert await second_lab.engine.flow_views.is_orphan(flow.id)
    await is_taken_along(flow)
    again = await take(lab, claim.id)
    another = await start(lab, claim.id, "a")
    assert not await lab.engine.flow_views.is_orphan(another.id)
    await lab.fail(again, "permanent")
    await is_taken_along(another)
    await lab.engine.executions.replay(claim.id)
    assert await listed(lab, claim.id) == ((), (flow.id, another.id))


async def test_a_replay_of_a_member_takes_nothing_back(lab: Lab) -> None:
    """An ending and a replay in one write owe the flow of the member both, and its own its end"""
    outer = await declare(lab, "run")
    flow = await start(lab, (await outer.take("run")).id, "a")
    await asyncio.gather(
        lab.engine.executions.cancel(outer["run"], reason="enough"),
        lab.engine.executions.replay(outer["run"]),
    )
    await is_taken_along(flow)
    assert (await outer.check()).state is RUNNING
    await outer.complete("run")
    assert (await outer.check()).ended == {"success": 1}


async def test_a_flow_that_an_operator_cancels_is_not_an_orphan(lab: Lab) -> None:
    claim = await running(lab)
    flow = await start(lab, claim.id, "a")
    await lab.engine.flows.cancel(flow.id, reason="enough")
    await flow.settled()
    assert await listed(lab, claim.id) == ((), ())
    assert not await lab.engine.flow_views.is_orphan(flow.id)
    assert await lab.engine.flow_views.is_orphan(fresh(lab)), "whatever is gone can be made anew"
