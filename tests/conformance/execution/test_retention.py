"""Retention: what ended long ago is forgotten, whole, and nothing else is. §3.62, INV-27."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from flowfabric.store.queries import Query
from tests.kit import situations
from tests.kit.lab import Lab
from tests.kit.situations import ENDED, LIVING, load, take, timeouts

DAY = 86_400_000
WEEK = Millis(7 * DAY)


@pytest.mark.parametrize("name", ENDED)
async def test_what_ended_long_ago_is_forgotten(lab: Lab, name: str) -> None:
    """§3.62: after seven days, to the millisecond"""
    id = await ENDED[name](lab)
    lab.clock.advance(WEEK - 1)
    assert await lab.engine.sweep.trim() == 0
    assert await lab.engine.views.state(id) is not None
    lab.clock.advance(1)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(id) is None
    assert await lab.engine.sweep.trim() == 0


async def test_what_lives_is_never_forgotten(lab: Lab, subtests: pytest.Subtests) -> None:
    """INV-27"""
    for name, situation in LIVING.items():
        with subtests.test(name):
            id = await situation(lab)
            before = await load(lab, id)
            lab.clock.advance(100 * WEEK)
            assert await lab.engine.sweep.trim() == 0
            assert await load(lab, id) == before


async def test_nothing_of_the_forgotten_remains(lab: Lab) -> None:
    """INV-27: attempts, steps, tags, key, events, deadline; its neighbours lose nothing"""
    members: dict[str, Any] = {
        "policy": {**situations.RETRY_AT_ONCE, **timeouts(deadline=10 * WEEK)},
        "tags": {"app.tenant": "a"},
    }
    kept = await situations.waiting(lab, key="other", **members)
    id = await lab.submit(key="once", payload=b"payload", **members)
    first = await take(lab, id)
    await lab.engine.attempts.progress(first, 50, "half")
    await lab.engine.attempts.record_step(first, Step(0, 0, "charge", 0, b"1"))
    await lab.fail(first)
    await lab.complete(await take(lab, id), b"result")
    lab.clock.advance(WEEK)
    assert await lab.engine.sweep.trim() == 1
    views, executions = lab.engine.views, lab.engine.executions
    for read in (views.describe(id), views.info(id), views.result(id), views.namespace(id)):
        assert await read is None
    for call in (
        views.context(id),
        views.attempts(id),
        views.attempts_made(id),
        executions.replay(id),
        executions.set_tag(id, "app.tenant", "b"),
    ):
        with pytest.raises(NotFound):
            await call
    assert await executions.get_tag(id, "app.tenant") is None
    assert not await lab.events(id)
    assert await lab.engine.attempts.steps(id.uuid, 0) == []
    assert [info.id for info in (await views.list(Query(tag=("app.tenant", "a")))).items] == [kept]
    assert (await views.counts()).by_state.get("completed", 0) == 0
    again = await executions.submit(Submission(kind="job", id=id, key="once", **members))
    assert again == Submitted(id, PublicState.WAITING)
    assert await views.attempts(id) == []
    assert (await take(lab, id)).epoch == 1
    await lab.pass_time(10 * WEEK)
    assert await views.state(kept) is PublicState.EXPIRED


@pytest.mark.parametrize(
    ("retention", "kept_for"), [(1000, 1000), (0, 0), (30 * DAY, 30 * DAY), (None, WEEK)]
)
async def test_an_execution_may_have_a_retention_of_its_own(
    lab: Lab, retention: int | None, kept_for: int
) -> None:
    """§3.62: shorter or longer than everybody's"""
    stream = {} if retention is None else {"stream_policy": {"retention_ttl_ms": retention}}
    id = await situations.completed(lab, policy=stream)
    if kept_for:
        lab.clock.advance(kept_for - 1)
        assert await lab.engine.sweep.trim() == 0
        lab.clock.advance(1)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(id) is None


@pytest.mark.parametrize("name", ENDED)
async def test_its_own_retention_counts_from_any_ending(lab: Lab, name: str) -> None:
    id = await ENDED[name](lab, policy={"stream_policy": {"retention_ttl_ms": 500}})
    lab.clock.advance(499)
    assert await lab.engine.sweep.trim() == 0
    lab.clock.advance(1)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(id) is None


async def test_the_retention_of_a_deployment_can_be_chosen(
    store_url: str, clock: ManualClock
) -> None:
    lab = await Lab.open(await open_store(store_url, clock=clock), clock, retention=Millis(60))
    short = await situations.completed(lab)
    own = await situations.completed(lab, policy={"stream_policy": {"retention_ttl_ms": 90}})
    lab.clock.advance(60)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(short) is None
    lab.clock.advance(30)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.engine.views.state(own) is None
    await lab.engine.close()


async def test_retention_is_not_limited_to_a_page(lab: Lab) -> None:
    submissions = [Submission(kind="job") for _ in range(1100)]
    await lab.engine.executions.submit_many(submissions)
    claims = [claim for _ in range(3) for claim in await lab.claim(limit=500)]
    await asyncio.gather(*(lab.complete(claim) for claim in claims))
    lab.clock.advance(WEEK)
    assert await lab.engine.sweep.trim() == 1100
    assert (await lab.engine.views.list(Query())).items == ()


async def test_two_engines_that_forget_at_once_forget_each_once(lab: Lab, second_lab: Lab) -> None:
    for _ in range(30):
        await situations.cancelled_unrun(lab)
    lab.clock.advance(WEEK)
    deleted = await asyncio.gather(lab.engine.sweep.trim(), second_lab.engine.sweep.trim())
    assert sum(deleted) == 30
