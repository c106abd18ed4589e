"""Members that clean up when their flow, or a join of it, cancels them."""

from typing import Any

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import AnyOf, Edge
from flowfabric.core.flow.model import CancelPolicy, FlowState
from tests.kit.flow_lab import Drawn, declare, fresh
from tests.kit.lab import W2, Lab
from tests.kit.situations import described, suspend

BOUND = Millis(5_000)
CLEANS_UP: dict[str, Any] = {"policy": {"cleanup_policy": {"cleanup_timeout_ms": BOUND}}}


async def cancel(drawn: Drawn, **options: Any) -> None:
    await drawn.lab.engine.flows.cancel(drawn.id, **{"reason": "enough", **options})


async def test_a_cancelled_flow_ends_with_the_cleanup_of_its_last_member(lab: Lab) -> None:
    drawn = await declare(
        lab,
        *("running>child", "suspended", "waiting", "at_once"),
        given=dict.fromkeys(["running", "suspended", "waiting"], CLEANS_UP),
    )
    running = await drawn.take("running")
    await suspend(lab, await drawn.take("suspended"))
    await drawn.take("at_once")
    await cancel(drawn)
    await drawn.settled()
    assert await drawn.states() == {
        "running": PublicState.ACTIVE,
        "child": PublicState.CANCELLED,
        "suspended": PublicState.WAITING,
        "waiting": PublicState.CANCELLED,
        "at_once": PublicState.CANCELLED,
    }
    flow = await drawn.check()
    assert (flow.state, flow.ended_at) == (FlowState.CANCELLED, None)
    seen = await described(lab, drawn["running"])
    assert (seen.cancel_reason, seen.cancelled_by) == ("enough", "operator_override")

    await lab.engine.attempts.finish_cleanup(running)
    await drawn.settled()
    assert (await drawn.flow()).ended_at is None
    woken = await lab.claim_one(W2)
    assert woken.id == drawn["suspended"]
    await lab.engine.attempts.finish_cleanup(woken)
    flow = await drawn.check()
    assert flow.ended_at == lab.clock.now()
    assert (flow.state, flow.ended) == (FlowState.CANCELLED, {"cancelled": 5})
    assert set(map(tuple, (await drawn.endings()).values())) == {(Outcome.CANCELLED,)}


async def test_cancelling_the_flow_again_extends_no_cleanup(lab: Lab) -> None:
    drawn = await declare(lab, "a", given={"a": CLEANS_UP})
    await drawn.take("a")
    await cancel(drawn)
    await drawn.settled()
    await lab.pass_time(BOUND - 1)
    await cancel(drawn)
    await drawn.settled()
    kinds = [event.kind for event in await lab.events(drawn["a"])]
    assert kinds.count(EventKind.CLEANING_UP) == 1
    await lab.pass_time(1)
    assert (await drawn.check()).ended == {"cancelled": 1}


async def test_cancel_pending_tells_no_member_that_has_begun(lab: Lab) -> None:
    drawn = await declare(lab, "begun", "waiting", given={"begun": CLEANS_UP})
    claim = await drawn.take("begun")
    await cancel(drawn, policy=CancelPolicy.PENDING)
    await drawn.settled()
    assert (await described(lab, drawn["begun"])).cleanup is None
    await lab.complete(claim)
    assert (await drawn.check()).ended == {"success": 1, "cancelled": 1}


async def test_what_completes_before_it_hears_of_the_cancel_has_completed(lab: Lab) -> None:
    drawn = await declare(lab, "a>b", given={"a": CLEANS_UP})
    claim = await drawn.take("a")
    await cancel(drawn)
    await drawn.settled()
    await lab.complete(claim)
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.CANCELLED, {"success": 1, "cancelled": 1})


async def test_losers_of_a_join_clean_up_while_its_winner_goes_on(lab: Lab) -> None:
    drawn = await declare(
        lab,
        *("fast>after", "slow>after"),
        joins={"after": AnyOf()},
        given={"slow": CLEANS_UP},
    )
    slow = await drawn.take("slow")
    await drawn.complete("fast")
    seen = await described(lab, drawn["slow"])
    assert seen.cleanup is not None
    assert (seen.state, seen.cancelled_by) == (PublicState.ACTIVE, "operator_override")
    await drawn.complete("after")
    assert (await drawn.flow()).ended_at is None
    await lab.engine.attempts.finish_cleanup(slow)
    flow = await drawn.check()
    assert (flow.state, flow.ended) == (FlowState.COMPLETED, {"success": 2, "spared": 1})


@pytest.mark.parametrize("cancelled_first", [False, True])
async def test_a_join_that_becomes_impossible_cuts_no_cleanup_short(
    lab: Lab, cancelled_first: bool
) -> None:
    """The member has begun and waits for its upstreams again."""
    drawn = await declare(lab, "a", "b", given={"b": CLEANS_UP})
    claim = await drawn.take("b")
    await lab.engine.flows.stage(
        Edge(
            id=fresh(lab),
            flow=drawn.id,
            upstream=drawn["a"].uuid,
            downstream=drawn["b"].uuid,
        )
    )
    await lab.engine.attempts.wait_children(claim)
    if cancelled_first:
        await lab.engine.executions.cancel(drawn["b"], reason="enough")
    await drawn.fail("a")
    woken = await lab.claim_one(W2)
    assert woken.id == drawn["b"]
    assert woken.snapshot.life.cleanup is not None
    await lab.engine.attempts.finish_cleanup(woken)
    assert (await drawn.check()).ended == {"failed": 1, "cancelled": 1}
    seen = await described(lab, drawn["b"])
    assert seen.cancel_reason == ("enough" if cancelled_first else "dependency_impossible")
