"""Replaying members of flows, and whole flows. §1.16, F-14, F-17, C-T76, C-T77, I-15, I-22."""

import asyncio
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowTerminal, Invalid, MaxReplays, NotFound, NotTerminal
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import AnyOf, Join, JoinState, On, Quorum, Rest
from flowfabric.core.flow.model import FlowState
from flowfabric.core.flow.progress import Settlement, needed_to_settle
from flowfabric.core.flow.progress import settle as settle_edges
from tests.kit.flow_lab import Drawn, declare, fresh, settle
from tests.kit.flowing import after_commit, die_after_commits, replay, replay_all
from tests.kit.lab import Lab
from tests.kit.race import Race
from tests.kit.situations import described

SUCCESS, FAILED, SKIPPED = Outcome.SUCCESS, Outcome.FAILED, Outcome.SKIPPED
LET_RUN = Rest.LET_RUN


async def join_of(drawn: Drawn, name: str) -> Join:
    return (await drawn.lab.engine.flow_views.groups(drawn.id))[drawn[name]]


# -- one member


@pytest.mark.inside
async def test_a_member_is_replayed_while_its_upstream_fails(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-14, I-9: the ending that made its join impossible is from before the replay, so the member
    waits for the next one; the edge that was settled before stays counted"""
    drawn = await declare(lab, "a>c", "b>c")
    await drawn.complete("a")
    await lab.engine.executions.cancel(drawn["c"], reason="enough")
    await drawn.settled()
    claim = await drawn.take("b")
    race = Race(lab, monkeypatch)

    async def ends() -> None:
        await second_lab.fail(claim, "permanent")
        await settle(second_lab.engine)

    race.before("apply", ends)
    assert await replay(drawn, "c") == [PublicState.WAITING_CHILDREN]
    await drawn.settled()
    assert (race.left, await lab.state(drawn["c"])) == (0, PublicState.WAITING_CHILDREN)
    await replay(drawn, "b")
    await drawn.complete("b", "c")
    assert (await drawn.check()).state is FlowState.COMPLETED


@pytest.mark.inside
async def test_a_replay_is_decided_together_with_an_ending(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-7, I-9: the ending makes the join impossible, and the replay follows in the same write: no
    edge that was settled before is forgotten"""
    drawn = await declare(lab, "a>c", "b>c")
    await drawn.complete("a")
    await lab.engine.executions.cancel(drawn["c"], reason="enough")
    await drawn.settled()
    die_after_commits(lab, monkeypatch)
    await lab.fail(await drawn.take("b"), "permanent")
    monkeypatch.undo()
    edges = await lab.engine.flow_views.edges(drawn.id, upstream=drawn["b"])
    ending = (Settlement(edges[0].edge.id, FAILED),)
    decisions = lab.engine.executions._context.decisions
    honest, first = decisions.decide_loaded, [True]

    def together(id: Any, rule: Any, needs: Any) -> Any:
        if first and first.pop():
            brought = partial(settle_edges, settlements=ending)
            honest(id, brought, partial(needed_to_settle, settlements=ending))
        return honest(id, rule, needs)

    monkeypatch.setattr(decisions, "decide_loaded", together)
    assert await replay(drawn, "c") == [PublicState.WAITING_CHILDREN]
    await drawn.settled()
    assert (first, (await join_of(drawn, "c")).succeeded) == ([], 1)
    assert await lab.state(drawn["c"]) is PublicState.WAITING_CHILDREN
    await replay(drawn, "b")
    await drawn.complete("b", "c")
    assert (await drawn.check()).state is FlowState.COMPLETED


async def test_a_failed_member_runs_again_and_its_flow_with_it(lab: Lab) -> None:
    """C-T76, I-22: running again, and then to an end again"""
    drawn = await declare(lab, "a", "b")
    await drawn.fail("a")
    await drawn.complete("b")
    failed = await drawn.check()
    assert (failed.state, failed.ended) == (FlowState.FAILED, {"failed": 1, "success": 1})
    lab.clock.advance(10)
    assert await replay(drawn, "a") == [PublicState.WAITING]
    again = await drawn.check()
    assert (again.state, again.ended, again.ended_at) == (FlowState.RUNNING, {"success": 1}, None)
    lab.clock.advance(10)
    await drawn.complete("a")
    flow = await drawn.check()
    assert (flow.state, flow.ended, flow.ended_at) == (
        FlowState.COMPLETED,
        {"success": 2},
        lab.clock.now(),
    )
    assert await drawn.endings() == {"a": [FAILED, SUCCESS], "b": [SUCCESS]}


async def test_a_member_that_succeeded_may_run_again_too(lab: Lab) -> None:
    """I-15: what came after it stays as it is; its edges were settled once"""
    drawn = await declare(lab, "a>b")
    await drawn.complete("a")
    await drawn.complete("b")
    await replay(drawn, "a")
    assert (await drawn.check()).state is FlowState.RUNNING
    await drawn.fail("a")
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.FAILED, {"failed": 1, "success": 1})
    assert await drawn.endings() == {"a": [SUCCESS, FAILED], "b": [SUCCESS]}
    assert (await join_of(drawn, "b")).succeeded == 1


async def test_a_flow_runs_and_ends_as_often_as_it_is_replayed(lab: Lab) -> None:
    """I-22"""
    drawn = await declare(lab, "a>b")
    for _ in range(3):
        await drawn.fail("a")
        flow = await drawn.check()
        assert (flow.state, flow.ended) == (FlowState.FAILED, {"failed": 1, "skipped": 1})
        assert await replay_all(drawn) == {"a", "b"}
        assert (await drawn.check()).ended == {}
    await drawn.complete("a")
    await drawn.complete("b")
    assert (await drawn.check()).state is FlowState.COMPLETED
    assert await drawn.endings() == {
        "a": [FAILED, FAILED, FAILED, SUCCESS],
        "b": [SKIPPED, SKIPPED, SKIPPED, SUCCESS],
    }


# -- one that was skipped


async def test_a_skipped_member_waits_again_for_what_it_lacks(lab: Lab) -> None:
    """E-T186, E-T187, C-T77, F-14: what succeeded still counts, the rest is open again"""
    drawn = await declare(lab, "a>d", "b>d", "c>d")
    await drawn.complete("a", "b")
    await drawn.fail("c")
    assert await lab.state(drawn["d"]) is PublicState.SKIPPED
    assert await replay(drawn, "d") == [PublicState.WAITING_CHILDREN]
    seen = await described(lab, drawn["d"])
    assert (seen.vector.eligibility, seen.vector.blocking) == (
        "blocked_by_dependencies",
        "waiting_for_children",
    )
    assert (seen.vector.attempt, seen.replays, seen.ended_at) == (
        "pending_replay_attempt",
        1,
        None,
    )
    join = await join_of(drawn, "d")
    assert (join.succeeded, join.failed, join.skipped) == (2, 0, 0)
    assert (join.state, join.running, join.fired_at) == (JoinState.PENDING, 1, None)
    edges = await lab.engine.flow_views.edges(drawn.id, downstream=drawn["d"])
    assert {state.edge.upstream: state.outcome for state in edges} == {
        drawn["a"].uuid: SUCCESS,
        drawn["b"].uuid: SUCCESS,
        drawn["c"].uuid: None,
    }
    *_, event = await lab.events(drawn["d"])
    assert event.detail == {"branch": "skipped_flow_member", "groups_reset": 1}
    assert (await drawn.check()).ended == {"success": 2, "failed": 1}


@pytest.mark.parametrize("first", ["child", "parent", "parent_ended"])
async def test_a_branch_recovers_in_whichever_order_it_is_replayed(lab: Lab, first: str) -> None:
    """§1.16, F-14: the failed one first, or the skipped one, or when the failed one has long
    succeeded"""
    drawn = await declare(lab, "a>c", "b>c")
    await drawn.complete("a")
    await drawn.fail("b")
    match first:
        case "child":
            await replay(drawn, "c", "b")
            await drawn.complete("b")
        case "parent":
            await replay(drawn, "b", "c")
            await drawn.complete("b")
        case _:
            await replay(drawn, "b")
            await drawn.complete("b")
            assert await lab.state(drawn["c"]) is PublicState.SKIPPED
            await replay(drawn, "c")
            await drawn.settled()
    assert await lab.state(drawn["c"]) is PublicState.WAITING
    await drawn.complete("c")
    assert (await drawn.check()).state is FlowState.COMPLETED
    assert await drawn.endings() == {
        "a": [SUCCESS],
        "b": [FAILED, SUCCESS],
        "c": [SKIPPED, SUCCESS],
    }


async def test_a_skipped_member_is_skipped_again_if_its_upstream_fails_again(lab: Lab) -> None:
    drawn = await declare(lab, "a>b>c")
    await drawn.fail("a")
    await replay(drawn, "c", "b", "a")
    await drawn.fail("a")
    assert await drawn.endings() == {
        "a": [FAILED, FAILED],
        "b": [SKIPPED, SKIPPED],
        "c": [SKIPPED, SKIPPED],
    }
    assert (await drawn.check()).ended == {"failed": 1, "skipped": 2}


async def test_a_skipped_member_waits_until_its_upstream_is_replayed(lab: Lab) -> None:
    """F-14: it is not skipped again behind the back of whoever replayed it"""
    drawn = await declare(lab, "a>b")
    await drawn.fail("a")
    await replay(drawn, "b")
    await lab.pass_time(60_000)
    assert await lab.state(drawn["b"]) is PublicState.WAITING_CHILDREN
    with pytest.raises(NotTerminal):
        await replay(drawn, "b")
    assert (await drawn.check()).state is FlowState.RUNNING


@pytest.mark.parametrize("policy", [AnyOf(LET_RUN), Quorum(2, LET_RUN), Quorum(3, LET_RUN)])
async def test_joins_of_every_kind_are_counted_again(lab: Lab, policy: Any) -> None:
    """F-14: a race that had become impossible can be won after a replay, and fires once"""
    names = ["a", "b", "c"]
    drawn = await declare(lab, *(f"{name}>z" for name in names), joins={"z": policy})
    await drawn.fail("a", "b", "c")
    assert (await join_of(drawn, "z")).state is JoinState.IMPOSSIBLE
    assert await replay_all(drawn) == {"a", "b", "c", "z"}
    assert replace(await join_of(drawn, "z"), floors={}, rounds={}) == Join(policy=policy, n=3)
    needed = (await join_of(drawn, "z")).needed
    for number, name in enumerate(names, 1):
        await drawn.complete(name)
        ready = await lab.state(drawn["z"]) is PublicState.WAITING
        assert ready == (number >= needed)
    await drawn.complete("z")
    assert (await drawn.check()).state is FlowState.COMPLETED


async def test_an_edge_on_failure_is_satisfied_by_the_new_ending(lab: Lab) -> None:
    """Skipped because its upstream succeeded; the next time it fails"""
    drawn = await declare(lab, "a>alarm", on={"a>alarm": On.FAILURE})
    await drawn.complete("a")
    assert await lab.state(drawn["alarm"]) is PublicState.SKIPPED
    await replay(drawn, "a")
    await drawn.fail("a")
    await replay(drawn, "alarm")
    await drawn.settled()
    assert await lab.state(drawn["alarm"]) is PublicState.WAITING
    await drawn.complete("alarm")
    assert (await drawn.check()).ended == {"failed": 1, "success": 1}


# -- a whole flow


async def test_replaying_a_flow_runs_again_what_did_not_succeed(lab: Lab) -> None:
    """F-14: the failed ancestors too; what succeeded stays"""
    drawn = await declare(lab, "a>b>c>d", "a>x", "e")
    await drawn.complete("a", "e")
    await drawn.fail("b")
    await drawn.complete("x")
    assert (await drawn.check()).ended == {"success": 3, "failed": 1, "skipped": 2}
    assert await replay_all(drawn) == {"b", "c", "d"}
    for name in "bcd":
        await drawn.complete(name)
    assert (await drawn.check()).state is FlowState.COMPLETED
    told = await drawn.endings()
    assert [told[name] for name in "aex"] == [[SUCCESS]] * 3
    assert [told[name] for name in "bcd"] == [[FAILED, SUCCESS], *[[SKIPPED, SUCCESS]] * 2]


async def test_a_cancelled_and_an_expired_member_are_replayed_with_the_rest(lab: Lab) -> None:
    soon = lab.clock.now() + 1_000
    drawn = await declare(lab, "a>b", "c>b", given={"c": {"deadline_at": soon}})
    await lab.engine.executions.cancel(drawn["a"], reason="enough")
    await lab.pass_time(1_000)
    assert (await drawn.check()).ended == {"cancelled": 1, "expired": 1, "skipped": 1}
    assert await replay_all(drawn) == {"a", "b", "c"}
    await drawn.complete("a", "c")
    await drawn.complete("b")
    assert (await drawn.check()).state is FlowState.COMPLETED


async def test_losers_of_a_race_are_left_alone(lab: Lab) -> None:
    """Q-3: they were cancelled because the race was won"""
    drawn = await declare(lab, "a>z", "b>z", "c", joins={"z": AnyOf()})
    await drawn.complete("a")
    await drawn.complete("z")
    await drawn.fail("c")
    assert (await drawn.check()).ended == {"success": 2, "spared": 1, "failed": 1}
    assert await replay_all(drawn) == {"c"}
    await drawn.complete("c")
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.COMPLETED, {"success": 3, "spared": 1})


async def test_those_who_were_cancelled_because_a_race_was_lost_run_again(lab: Lab) -> None:
    drawn = await declare(lab, "a>z", "b>z", "c>z", joins={"z": Quorum(2)})
    await drawn.fail("a", "b")
    assert (await drawn.check()).ended == {"failed": 2, "spared": 1, "skipped": 1}
    assert await replay_all(drawn) == {"a", "b", "c", "z"}
    await drawn.complete("b", "c")
    await drawn.complete("z")
    assert (await drawn.check()).ended == {"success": 3, "spared": 1}


async def test_replaying_a_flow_twice_replays_nothing_twice(lab: Lab) -> None:
    drawn = await declare(lab, "a>b")
    await drawn.fail("a")
    assert await replay_all(drawn) == {"a", "b"}
    assert await replay_all(drawn) == set()
    drawn2 = await declare(lab, "a")
    await drawn2.complete("a")
    assert await replay_all(drawn2) == set()
    assert await drawn2.state() is FlowState.COMPLETED


async def test_two_who_replay_a_flow_at_once_share_the_work(lab: Lab, second_lab: Lab) -> None:
    drawn = await declare(lab, *(f"a>m{n}" for n in range(20)))
    await drawn.fail("a")
    one, two = await asyncio.gather(
        lab.engine.flows.replay(drawn.id), second_lab.engine.flows.replay(drawn.id)
    )
    assert sorted(each.id for each in [*one, *two]) == sorted(drawn.members.values())
    assert (await drawn.check()).ended == {}
    await drawn.complete("a")
    await drawn.complete(*(f"m{n}" for n in range(20)))
    assert (await drawn.check()).state is FlowState.COMPLETED


async def test_a_flow_with_a_member_that_may_not_be_replayed_is_not_replayed(lab: Lab) -> None:
    """Whole or not at all: nobody waits for one that never comes"""
    never = {"policy": {"max_replay_count": 0}}
    drawn = await declare(lab, "a>b", "c", given={"a": never})
    await drawn.fail("a", "c")
    before = await drawn.flow()
    with pytest.raises(MaxReplays):
        await replay_all(drawn)
    assert (await drawn.check()) == before


# -- where it is refused


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending", "flow_only"])
async def test_in_a_cancelled_flow_nothing_is_replayed(lab: Lab, policy: str) -> None:
    drawn = await declare(lab, "a>b", "c")
    await drawn.fail("a")
    await lab.engine.flows.cancel(drawn.id, policy=policy)
    await drawn.settled()
    before = await drawn.flow()
    for name in ("a", "b"):
        with pytest.raises(FlowTerminal):
            await replay(drawn, name)
    with pytest.raises(FlowTerminal):
        await replay_all(drawn)
    assert await drawn.flow() == before


async def test_the_flow_is_asked_last(lab: Lab) -> None:
    """Execution §3.22, checks 2 to 4"""
    never: dict[str, Any] = {"policy": {"max_replay_count": 0}}
    drawn = await declare(lab, "a", "b", given={"a": never})
    await drawn.fail("a")
    await lab.engine.flows.cancel(drawn.id, policy="flow_only")
    await drawn.settled()
    with pytest.raises(NotTerminal):
        await replay(drawn, "b")
    with pytest.raises(MaxReplays):
        await replay(drawn, "a")


async def test_an_unknown_flow_is_not_replayed(lab: Lab) -> None:
    with pytest.raises(NotFound):
        await lab.engine.flows.replay(fresh(lab))
    with pytest.raises(Invalid):
        await lab.engine.flows.replay("flow")  # type: ignore[arg-type]


# -- while endings are settled


async def test_an_ending_that_was_taken_back_reaches_no_member(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-17: a failure nobody settled yet is replayed; its children wait for what comes of that"""
    drawn = await declare(lab, "a>b")
    with monkeypatch.context() as still:
        still.setattr(lab.engine._dispatcher, "committed", lambda commit: None)
        await lab.fail(await drawn.take("a"), "permanent")
        await replay(drawn, "a")
    await drawn.settled()
    assert await lab.state(drawn["b"]) is PublicState.WAITING_CHILDREN
    assert (await drawn.check()).ended == {}
    await drawn.complete("a")
    await drawn.complete("b")
    assert (await drawn.check()).ended == {"success": 2}
    assert await drawn.endings() == {"a": [FAILED, SUCCESS], "b": [SUCCESS]}


async def test_of_two_endings_the_later_one_is_settled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-17: failed, replayed, succeeded, all before anybody settled"""
    drawn = await declare(lab, "a>b")
    with monkeypatch.context() as still:
        still.setattr(lab.engine._dispatcher, "committed", lambda commit: None)
        await lab.fail(await drawn.take("a"), "permanent")
        await replay(drawn, "a")
        await lab.complete(await drawn.take("a"))
    await drawn.settled()
    assert await lab.state(drawn["b"]) is PublicState.WAITING
    assert (await drawn.check()).ended == {"success": 1}


async def test_replays_and_endings_in_any_order_leave_exact_counts(
    lab: Lab, second_lab: Lab
) -> None:
    """I-22: two processes settle, one replays what the other fails"""
    names = [f"m{n}" for n in range(12)]
    drawn = await declare(lab, *(f"{name}>{name}x" for name in names))

    async def storm(name: str) -> None:
        await lab.fail(await drawn.take(name), "permanent")
        await second_lab.engine.executions.replay(drawn[name])
        await lab.complete(await drawn.take(name))

    await asyncio.gather(*(storm(name) for name in names), second_lab.engine.sweep.once())
    await drawn.settled()
    await second_lab.engine._dispatcher.drain()
    flow = await drawn.check()
    skipped = flow.ended.get("skipped", 0)
    assert flow.ended.get("success") == 12
    await replay_all(drawn)
    await drawn.settled()
    await drawn.complete(*(f"{name}x" for name in names))
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.COMPLETED, {"success": 24})
    told = await drawn.endings()
    assert sum(told[f"{name}x"] == [SKIPPED, SUCCESS] for name in names) == skipped


async def test_an_ending_that_was_settled_but_not_counted_skips_no_second_time(lab: Lab) -> None:
    """F-14: a member that waits again waits for a new ending, not for one it has heard of"""
    drawn = await declare(lab, "a>b", "c")  # c: or the count could not wait for the sweep
    await lab.fail(await drawn.take("a"), "permanent")
    await after_commit(lab)
    assert await lab.state(drawn["b"]) is PublicState.SKIPPED
    await lab.engine.executions.replay(drawn["b"])
    await after_commit(lab)
    assert await lab.state(drawn["b"]) is PublicState.WAITING_CHILDREN
    await lab.engine.executions.replay(drawn["a"])
    await drawn.complete("a")
    assert await lab.state(drawn["b"]) is PublicState.WAITING


async def test_a_replay_that_overlooks_a_cancel_is_cancelled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = await declare(lab, "a", "b")
    await drawn.fail("a")
    honest = lab.engine._context.decisions.decide_loaded

    async def late(*args: Any) -> Any:
        await lab.engine.flows.cancel(drawn.id)
        return await honest(*args)

    monkeypatch.setattr(lab.engine._context.decisions, "decide_loaded", late)
    await lab.engine.executions.replay(drawn["a"])
    assert (await drawn.check()).state is FlowState.CANCELLED
    assert set((await drawn.states()).values()) == {PublicState.CANCELLED}
