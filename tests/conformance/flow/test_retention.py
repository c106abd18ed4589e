"""Flows are forgotten as a whole, and not before they have ended. F-28."""

from collections.abc import AsyncIterator

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.policy import Policy, StreamPolicy
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.model import FlowState
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit.flow_lab import Drawn, declare
from tests.kit.lab import Lab

KEPT = Millis(1_000)


@pytest.fixture
async def lab(store: Store, clock: ManualClock) -> AsyncIterator[Lab]:
    lab = await Lab.open(store, clock, retention=KEPT)
    yield lab
    await lab.engine.close()


async def is_gone(drawn: Drawn) -> bool:
    """All of it, or nothing of it."""
    views = drawn.lab.engine.flow_views
    left = [
        await views.get(drawn.id) is not None,
        bool(await views.members(drawn.id)),
        *[await drawn.lab.engine.views.state(id) is not None for id in drawn.members.values()],
    ]
    assert len(set(left)) == 1, left
    return not left[0]


async def test_members_wait_for_their_flow(lab: Lab) -> None:
    """F-28: an upstream stays as long as somebody depends on it"""
    drawn = await declare(lab, "a>b", "c")
    await drawn.complete("a")
    await lab.pass_time(10 * KEPT)
    assert await lab.engine.sweep.trim() == 0
    await drawn.complete("b", "c")
    assert (await drawn.check()).state is FlowState.COMPLETED
    assert await lab.engine.sweep.trim() == 0
    lab.clock.advance(KEPT - 1)
    assert await lab.engine.sweep.trim() == 0
    assert not await is_gone(drawn)


async def test_then_all_of_it_goes(lab: Lab) -> None:
    drawn, other = await declare(lab, "a>b", "a>c", tags={"app.x": "y"}), await declare(lab, "a")
    await drawn.fail("a")
    lab.clock.advance(KEPT)
    assert await lab.engine.sweep.trim() == 3
    assert await is_gone(drawn)
    assert not await is_gone(other)
    views = lab.engine.flow_views
    assert [flow.id for flow in await views.page()] == [other.id]
    assert await views.page(tag=("app.x", "y")) == []
    assert await views.edges(drawn.id) == []


async def test_a_cancelled_flow_goes_when_its_last_member_has_ended(lab: Lab) -> None:
    drawn = await declare(lab, "a", "b")
    await drawn.take("a")
    await lab.engine.flows.cancel(drawn.id, policy="cancel_pending")
    lab.clock.advance(KEPT)
    assert await lab.engine.sweep.trim() == 0
    await lab.engine.executions.cancel(drawn["a"], reason="enough")
    await drawn.settled()
    lab.clock.advance(KEPT)
    assert await lab.engine.sweep.trim() == 2
    assert await is_gone(drawn)


async def test_a_replay_keeps_all_of_it(lab: Lab) -> None:
    drawn = await declare(lab, "a>b")
    await drawn.fail("a")
    lab.clock.advance(KEPT - 1)
    await lab.engine.flows.replay(drawn.id)
    await drawn.settled()
    lab.clock.advance(10 * KEPT)
    assert await lab.engine.sweep.trim() == 0
    assert await drawn.states() == {"a": PublicState.WAITING, "b": PublicState.WAITING_CHILDREN}
    await drawn.complete("a")
    await drawn.complete("b")
    lab.clock.advance(KEPT)
    assert await lab.engine.sweep.trim() == 2
    assert await is_gone(drawn)


async def test_a_flow_that_is_gone_can_be_declared_again(lab: Lab) -> None:
    drawn = await declare(lab, "a>b")
    await drawn.fail("a")
    lab.clock.advance(KEPT)
    await lab.engine.sweep.trim()
    again = await declare(lab, "a>b", id=drawn.id)
    assert again.members == drawn.members
    await again.complete("a")
    await again.complete("b")
    assert (await again.check()).state is FlowState.COMPLETED


async def test_a_large_flow_goes_page_by_page(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.engine.sweep.PAGE", 5)
    drawn = await declare(lab, *(f"a>m{n}" for n in range(12)))
    await drawn.fail("a")
    lab.clock.advance(KEPT)
    assert await lab.engine.sweep.trim() == 13
    assert await is_gone(drawn)


async def test_what_retention_took_is_not_run_again(lab: Lab) -> None:
    """Declaring an ended flow again creates nothing, though some of its members are gone"""
    kept = Policy(stream_policy=StreamPolicy(retention_ttl_ms=1_000_000))
    given = {"b": {"policy": kept}}
    drawn = await declare(lab, "a>b", given=given)
    await drawn.complete("a")
    await drawn.complete("b")
    lab.clock.advance(KEPT)
    assert await lab.engine.sweep.trim() == 1
    await declare(lab, "a>b", given=given, id=drawn.id)
    assert await lab.claim(limit=2) == []
    assert (await drawn.flow()).ended == {"success": 2}
