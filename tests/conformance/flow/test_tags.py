"""Tags of flows: free text about a flow, in any state, all or none. C-T139; coordination.md §10."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Invalid, InvalidTag, NotFound
from tests.kit.flow_lab import Drawn, declare, fresh
from tests.kit.lab import Lab

WRONG_KEYS = ["nodot", "Upper.case", "app.", ".app", "", "app.x y"]


async def listed(lab: Lab, key: str, value: str) -> list[UUID]:
    return [flow.id for flow in await lab.engine.flow_views.page(tag=(key, value))]


async def test_a_batch_of_tags_is_counted_and_stored(lab: Lab) -> None:
    """C-T139: beside those it was created with; only the moment of the last change moves"""
    drawn = await declare(lab, "a>b", tags={"app.tenant": "a", "app.old": "1"})
    before = await drawn.flow()
    now = lab.clock.advance(5)
    assert await lab.engine.flows.set_tags(drawn.id, {"z.last": "1", "app.tenant": "b"}) == 2
    after = await drawn.flow()
    assert after.tags == {"app.tenant": "b", "app.old": "1", "z.last": "1"}
    assert (after.mutated_at, after.revision, after.state) == (now, before.revision, before.state)
    assert await listed(lab, "app.tenant", "b") == [drawn.id]
    assert await listed(lab, "app.tenant", "a") == []


async def test_a_flow_that_does_not_exist_takes_no_tags(lab: Lab) -> None:
    """C-T139"""
    with pytest.raises(NotFound) as caught:
        await lab.engine.flows.set_tags(fresh(lab), {"app.tenant": "a"})
    assert caught.value.entity == "flow"


@pytest.mark.rules
@pytest.mark.parametrize("key", WRONG_KEYS)
async def test_keys_that_break_the_pattern_store_nothing(lab: Lab, key: str) -> None:
    """C-T139: before the flow is looked for, alone and in a batch"""
    drawn = await declare(lab, "a")
    for id in (drawn.id, fresh(lab)):
        for tags in ({key: "v"}, {"app.good": "v", key: "v"}):
            with pytest.raises(InvalidTag):
                await lab.engine.flows.set_tags(id, tags)
    assert (await drawn.flow()).tags == {}


@pytest.mark.rules
@pytest.mark.parametrize("tags", [{}, {"app.x": 1}, {"app.x": "\0"}, None, "app.x"])
async def test_a_batch_that_says_nothing_is_refused(lab: Lab, tags: Any) -> None:
    """C-T139: empty input"""
    drawn = await declare(lab, "a")
    with pytest.raises(Invalid):
        await lab.engine.flows.set_tags(drawn.id, tags)


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_a_flow_that_has_ended_is_still_tagged(lab: Lab, ending: str) -> None:
    """C-T139: and stays as it ended"""
    drawn: Drawn = await declare(lab, "a")
    match ending:
        case "completed":
            await drawn.complete("a")
        case "failed":
            await drawn.fail("a")
        case _:
            await lab.engine.flows.cancel(drawn.id, reason="enough")
    before = await drawn.check()
    lab.clock.advance(5)
    await lab.engine.flows.set_tags(drawn.id, {"app.note": "kept"})
    after = await drawn.check()
    assert (after.state, after.ended_at, after.ended) == (
        before.state,
        before.ended_at,
        before.ended,
    )
    assert after.tags == {"app.note": "kept"}


async def test_tags_set_at_once_are_all_kept(lab: Lab, second_lab: Lab) -> None:
    """C-T139: while members are added"""
    flow = fresh(lab)
    await lab.engine.flows.create("growing", id=flow)
    await asyncio.gather(
        *(
            each.engine.flows.set_tags(flow, {f"app.t{number}": str(number)})
            for number, each in enumerate([lab, second_lab] * 4)
        )
    )
    found = await lab.engine.flow_views.get(flow)
    assert found is not None
    assert found.tags == {f"app.t{number}": str(number) for number in range(8)}
