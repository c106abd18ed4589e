"""Which members a replay of a flow runs again, and what their joins count. §1.16, F-14, C-T77."""

from typing import Any

import pytest

from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import AnyOf, On, Quorum
from flowfabric.core.flow.model import FlowState
from tests.kit.flow_lab import declare
from tests.kit.flowing import counters, replay, replay_all
from tests.kit.lab import Lab


async def test_a_branch_for_a_failure_that_did_not_happen_is_left_alone(lab: Lab) -> None:
    """A healthy flow with a cleanup nobody needed: there is nothing to replay"""
    drawn = await declare(lab, "a>b", "a>cleanup>report", on={"a>cleanup": On.FAILURE})
    await drawn.complete("a")
    await drawn.complete("b")
    before = await drawn.check()
    assert (before.state, before.ended) == (FlowState.COMPLETED, {"success": 2, "skipped": 2})
    assert await replay_all(drawn) == set()
    assert await drawn.check() == before


async def test_beside_a_failure_unneeded_branches_are_left_alone(lab: Lab) -> None:
    """What was skipped because of the failure runs again, what was not needed does not"""
    drawn = await declare(
        lab, "a>b>c", "a>cleanup", "b>alarm", on={"a>cleanup": On.FAILURE, "b>alarm": On.FAILURE}
    )
    await drawn.complete("a")
    await drawn.fail("b")
    await drawn.complete("alarm")
    assert await replay_all(drawn) == {"b", "c"}
    await drawn.complete("b")
    await drawn.complete("c")
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.COMPLETED, {"success": 4, "skipped": 1})


async def test_a_member_that_can_never_run_is_not_replayed(lab: Lab) -> None:
    """Skipped for two reasons, and only one of them is replayed"""
    drawn = await declare(lab, "ok>both", "bad>both", on={"ok>both": On.FAILURE})
    await drawn.complete("ok")
    await drawn.fail("bad")
    assert await replay_all(drawn) == {"bad"}
    await drawn.complete("bad")
    assert (await drawn.check()).ended == {"success": 2, "skipped": 1}


@pytest.mark.parametrize(("second", "cleaned"), [("complete", False), ("fail", True)])
async def test_a_failed_cleanup_waits_for_what_it_cleans_up_after(
    lab: Lab, second: str, cleaned: bool
) -> None:
    """Its join is counted from the new outcome: unneeded if that is a success"""
    drawn = await declare(lab, "a>cleanup", on={"a>cleanup": On.FAILURE})
    await drawn.fail("a")
    await drawn.fail("cleanup")
    assert await replay_all(drawn) == {"a", "cleanup"}
    await drawn.settled()
    assert await lab.state(drawn["cleanup"]) is PublicState.WAITING_CHILDREN
    await (drawn.complete("a") if second == "complete" else drawn.fail("a"))
    if cleaned:
        await drawn.complete("cleanup")
        assert (await drawn.check()).ended == {"failed": 1, "success": 1}
    else:
        flow = await drawn.check()
        assert (flow.state, flow.ended) == (FlowState.COMPLETED, {"success": 1, "skipped": 1})


async def test_a_cleanup_that_was_cancelled_and_is_not_needed_is_skipped(lab: Lab) -> None:
    drawn = await declare(lab, "a>cleanup", on={"a>cleanup": On.FAILURE})
    await lab.engine.executions.cancel(drawn["cleanup"], reason="enough")
    await drawn.complete("a")
    assert (await drawn.check()).state is FlowState.FAILED
    assert await replay_all(drawn) == {"cleanup"}
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.COMPLETED, {"success": 1, "skipped": 1})


async def test_what_waits_for_any_end_waits_for_the_new_one(lab: Lab) -> None:
    drawn = await declare(lab, "a>b", on={"a>b": On.ANY_END})
    await drawn.fail("a")
    await drawn.fail("b")
    assert await replay_all(drawn) == {"a", "b"}
    await drawn.settled()
    assert await lab.state(drawn["b"]) is PublicState.WAITING_CHILDREN
    await drawn.complete("a")
    await drawn.complete("b")
    assert (await drawn.check()).state is FlowState.COMPLETED


async def test_a_race_that_had_to_be_won_by_all_runs_again_as_a_whole(lab: Lab) -> None:
    drawn = await declare(lab, "a>z", "b>z", "c>z", joins={"z": Quorum(3)})
    await drawn.fail("a")
    assert (await drawn.check()).ended == {"failed": 1, "spared": 2, "skipped": 1}
    assert await replay_all(drawn) == {"a", "b", "c", "z"}
    await drawn.complete("a", "b", "c")
    await drawn.complete("z")
    assert (await drawn.check()).state is FlowState.COMPLETED


async def test_what_a_member_that_was_given_up_waits_for_runs_again_with_it(lab: Lab) -> None:
    """`pre` was given up for another join, which can never be satisfied. But `b` needs it"""
    joins = {"z": Quorum(2), "alarm": Quorum(2)}
    on = {"h>alarm": On.FAILURE}
    drawn = await declare(lab, "a>z", "pre>b>z", "pre>alarm", "h>alarm", joins=joins, on=on)
    await drawn.fail("a")
    await drawn.complete("h")
    assert (await drawn.check()).ended == {"failed": 1, "success": 1, "spared": 2, "skipped": 2}
    assert await replay_all(drawn) == {"a", "pre", "b", "z"}
    await drawn.complete("a", "pre")
    await drawn.complete("b")
    await drawn.complete("z")
    assert (await drawn.check()).state is FlowState.COMPLETED


async def test_what_only_a_loser_led_to_is_left_alone(lab: Lab) -> None:
    """The race was won: nothing failed, so nothing is replayed"""
    drawn = await declare(lab, "x>z", "y>z", "y>k", joins={"z": AnyOf()})
    await drawn.complete("x")
    await drawn.complete("z")
    assert (await drawn.check()).ended == {"success": 2, "spared": 1, "skipped": 1}
    assert await replay_all(drawn) == set()


async def test_a_race_that_cannot_be_won_any_more_is_left_alone(lab: Lab) -> None:
    """Two of three had to fail and two succeeded: the third was cancelled, and nothing failed"""
    on = {f"{name}>alarm": On.FAILURE for name in "abc"}
    drawn = await declare(lab, *on, joins={"alarm": Quorum(2)}, on=on)
    await drawn.complete("a", "b")
    assert (await drawn.check()).ended == {"success": 2, "spared": 1, "skipped": 1}
    assert await replay_all(drawn) == set()


async def test_a_member_whose_upstream_recovered_alone_runs_at_once(lab: Lab) -> None:
    drawn = await declare(lab, "a>b")
    await drawn.fail("a")
    await replay(drawn, "a")
    await drawn.complete("a")
    assert await replay_all(drawn) == {"b"}
    await drawn.complete("b")
    assert (await drawn.check()).state is FlowState.COMPLETED


@pytest.mark.parametrize("ended", [False, True])
async def test_an_edge_that_was_satisfied_stays_so(lab: Lab, ended: bool) -> None:
    """C-T29, I-9, execution §3.22: though its upstream `a` runs again, or has failed since"""
    drawn = await declare(lab, "a>c", "b>c")
    await drawn.complete("a")
    await drawn.fail("b")
    await replay(drawn, "a")
    if ended:
        await drawn.fail("a")
    assert await replay(drawn, "c", "b") == [PublicState.WAITING_CHILDREN, PublicState.WAITING]
    assert await counters(drawn, "c") == (2, 1, 0, 0)
    await drawn.complete("b")
    await drawn.complete("c")
    assert await counters(drawn, "c") == (2, 2, 0, 0)
    if not ended:
        await drawn.fail("a")
    assert (await drawn.check()).state is FlowState.FAILED
    assert await replay_all(drawn) == {"a"}


@pytest.mark.parametrize("second", ["complete", "fail"])
@pytest.mark.inside
async def test_an_upstream_that_ends_while_its_downstream_is_replayed_is_counted(
    lab: Lab, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the upstream and the write its edge was not open: the ending is brought
    afterwards, whatever it is"""
    drawn = await declare(lab, "a>b")
    await drawn.fail("a")
    await replay(drawn, "a")
    honest = lab.engine.executions._upstreams

    async def late(*args: Any) -> Any:
        found = await honest(*args)
        await (drawn.complete("a") if second == "complete" else drawn.fail("a"))
        return found

    monkeypatch.setattr(lab.engine.executions, "_upstreams", late)
    await replay(drawn, "b")
    await drawn.settled()
    states = {"complete": PublicState.WAITING, "fail": PublicState.SKIPPED}
    assert await lab.state(drawn["b"]) is states[second]


async def test_a_flow_that_is_counted_while_it_is_looked_at_is_seen_as_it_is(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header and what is owed to it are of one moment: together they say that it runs again"""
    drawn = await declare(lab, "a")
    await drawn.fail("a")
    with monkeypatch.context() as still:
        still.setattr(lab.engine._dispatcher, "committed", lambda commit: None)
        await replay(drawn, "a")
    honest = lab.engine.store.owing

    async def late(flows: Any, limit: int) -> Any:
        monkeypatch.undo()
        await lab.engine._resolver.resolve(drawn.id)
        return await honest(flows, limit)

    monkeypatch.setattr(lab.engine.store, "owing", late)
    seen = await lab.engine.flow_views.get(drawn.id)
    assert seen is not None
    assert (seen.state, seen.ended_at) == (FlowState.RUNNING, None)
