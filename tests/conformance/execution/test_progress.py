"""What an owner writes beside its lease: progress and steps."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    Invalid,
    StaleLease,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.join import Edge
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.flow.flows import FlowCreated
from flowfabric.store.queries import Progress
from tests.kit.lab import Lab
from tests.kit.owners import (
    RETRYING,
    STEP,
)
from tests.kit.situations import RETRY_AT_ONCE, take

# -- what is written beside the lease


async def progress_of(lab: Lab, id: str) -> Progress | None:
    description = await lab.engine.views.describe(id)
    assert description is not None
    return description.progress


async def test_progress_stores_percentage_and_message(lab: Lab) -> None:
    """E-T149: what is not given stays as it was, and no event is written"""
    claim = await lab.running()
    assert await progress_of(lab, claim.id) is None
    await lab.engine.attempts.progress(claim, 10, "begun")
    assert await progress_of(lab, claim.id) == Progress(10, "begun")
    await lab.engine.attempts.progress(claim, 50)
    assert await progress_of(lab, claim.id) == Progress(50, "begun")
    await lab.engine.attempts.progress(claim, message="halfway")
    assert await progress_of(lab, claim.id) == Progress(50, "halfway")
    await lab.engine.attempts.progress(claim, 0, "")
    assert await progress_of(lab, claim.id) == Progress(0, "")
    assert [event.kind for event in await lab.events(claim.id)] == [EventKind.CLAIMED]


async def test_every_attempt_keeps_what_it_has_reported(lab: Lab) -> None:
    """§2.6, §3.13: the progress is that of the attempt"""
    first = await lab.running(policy=RETRY_AT_ONCE)
    await lab.engine.attempts.progress(first, 10, "begun")
    await lab.engine.attempts.progress(first, 90)
    await lab.fail(first)
    silent = await lab.claim_one()
    assert await reports(lab, first.id) == [Progress(90, "begun"), None]
    await lab.lose(silent)
    last = await lab.claim_one()
    await lab.engine.attempts.progress(last, message="again")
    told = [Progress(90, "begun"), None, Progress(None, "again")]
    assert await reports(lab, first.id) == told
    assert await progress_of(lab, first.id) == told[-1]
    await lab.complete(last)
    await lab.engine.executions.replay(first.id)
    assert await reports(lab, first.id) == told


async def reports(lab: Lab, id: str) -> list[Progress | None]:
    return [attempt.progress for attempt in await lab.engine.views.attempts(id)]


async def test_progress_is_seen_as_the_last_thing_that_happened(lab: Lab) -> None:
    claim = await lab.running()
    lab.clock.advance(500)
    await lab.engine.attempts.progress(claim, 10)
    description = await lab.engine.views.describe(claim.id)
    assert description is not None
    assert description.touched_at == lab.clock.now()


async def begins_again_by_a_retry(lab: Lab, claim: Claim) -> None:
    await lab.fail(claim)


async def begins_again_by_a_takeover(lab: Lab, claim: Claim) -> None:
    await lab.lose(claim)


async def begins_again_by_a_replay(lab: Lab, claim: Claim) -> None:
    await lab.complete(claim)
    await lab.engine.executions.replay(claim.id)


@pytest.mark.parametrize(
    "again", [begins_again_by_a_retry, begins_again_by_a_takeover, begins_again_by_a_replay]
)
async def test_a_new_attempt_has_no_progress_of_the_old_one(
    lab: Lab, again: Callable[[Lab, Claim], Awaitable[None]]
) -> None:
    """§3.13: progress is of the attempt; what the new one leaves out is not taken from the old"""
    claim = await lab.running(policy=RETRY_AT_ONCE)
    await lab.engine.attempts.progress(claim, 90, "nearly done")
    await again(lab, claim)
    claim = await lab.claim_one()
    assert claim.attempt == 1
    assert await progress_of(lab, claim.id) is None
    await lab.engine.attempts.progress(claim, 5)
    assert await progress_of(lab, claim.id) == Progress(5, None)
    await lab.complete(claim)
    assert await progress_of(lab, claim.id) == Progress(5, None)


async def test_an_attempt_that_goes_on_keeps_its_progress(lab: Lab) -> None:
    """Also while it is interrupted, and after its worker was lost"""
    claim = await lab.running()
    await lab.engine.attempts.progress(claim, 50, "halfway")
    await lab.engine.attempts.hand_back(claim)
    assert await progress_of(lab, claim.id) == Progress(50, "halfway")
    claim = await lab.claim_one()
    await lab.engine.attempts.progress(claim, 60)
    await lab.lose(claim)
    assert await progress_of(lab, claim.id) == Progress(60, "halfway")


async def touched_at(lab: Lab, id: str) -> Millis:
    description = await lab.engine.views.describe(id)
    assert description is not None
    return description.touched_at


async def test_every_change_is_seen_as_the_last_thing_that_happened(lab: Lab) -> None:
    """All transitions set last_mutation_at, also those no event tells of"""
    engine = lab.engine
    delayed = await lab.submit(delay_until=Millis(lab.clock.now() + 5))
    await lab.pass_time(5)
    assert await touched_at(lab, delayed) == lab.clock.now()
    acts: list[Callable[[], Awaitable[object]]] = [
        lambda: engine.executions.block(delayed, "paused_by_operator"),
        lambda: engine.executions.unblock(delayed),
        lambda: engine.executions.hold(delayed),
        lambda: engine.executions.unhold(delayed),
        lambda: engine.grants.issue(delayed, "w1"),
    ]
    for act in acts:
        lab.clock.advance(7)
        await act()
        assert await touched_at(lab, delayed) == lab.clock.now()


async def test_a_pending_waitpoint_is_seen_as_the_last_thing_that_happened(lab: Lab) -> None:
    """§3.33, §3.38: when it is made, and when it closes because no suspension used it"""
    claim = await lab.running()
    lab.clock.advance(7)
    await lab.engine.suspensions.create_waitpoint(claim, "callback", expires_in=Millis(5))
    assert await touched_at(lab, claim.id) == lab.clock.now()
    await lab.pass_time(5)
    assert await lab.engine.suspensions.waitpoints(claim.id) == []
    assert await touched_at(lab, claim.id) == lab.clock.now()


async def test_limits_and_upstreams_are_seen_as_the_last_thing_that_happened(lab: Lab) -> None:
    """§2.7: admission, an edge that is applied and one that is satisfied, told by no event"""
    await lab.engine.quotas.create(Quota(name="one", concurrency=1))
    first, second = [await lab.submit(policy={"quotas": [{"quota": "one"}]}) for _ in range(2)]
    await lab.engine.sweep.once()
    lab.clock.advance(7)
    await lab.complete(await lab.claim_one())
    await lab.engine.sweep.once()
    assert await lab.state(second) is PublicState.WAITING
    assert await touched_at(lab, second) == lab.clock.now()
    assert await touched_at(lab, first) == lab.clock.now()
    flow = await lab.engine.flows.create("nightly", eager=True)
    assert isinstance(flow, FlowCreated)
    upstream, child = [
        (await lab.engine.flows.add(flow.id, Submission(kind="job"))).id for _ in range(2)
    ]
    lab.clock.advance(7)
    await lab.engine.flows.stage(Edge(flow.id, flow.id, upstream.uuid, child.uuid))
    assert await lab.state(child) is PublicState.WAITING_CHILDREN
    assert await touched_at(lab, child) == lab.clock.now()
    lab.clock.advance(7)
    await lab.complete(await take(lab, upstream))
    await lab.engine.sweep.once()
    assert await lab.state(child) is PublicState.WAITING
    assert await touched_at(lab, child) == lab.clock.now()


async def test_nothing_is_seen_to_have_happened_in_the_future(lab: Lab) -> None:
    """§2.7: many that one millisecond admits are told apart, and all were admitted in it"""
    await lab.engine.quotas.create(Quota(name="many", concurrency=3))
    policy = {"quotas": [{"quota": "many"}]}
    ids = [await lab.submit(policy=policy) for _ in range(3)]
    await lab.engine.sweep.once()
    assert [await touched_at(lab, id) for id in ids] == [lab.clock.now()] * 3


@pytest.mark.rules
@pytest.mark.parametrize("percent", [-1, 101, 10**30, 5.0, "5", True])
async def test_progress_is_a_whole_percentage(lab: Lab, percent: Any) -> None:
    """§3.13"""
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.attempts.progress(claim, percent)
    assert await progress_of(lab, claim.id) is None


@pytest.mark.rules
@pytest.mark.parametrize("message", ["x" * 4097, "nul \0", "\ud800", 5])
async def test_a_progress_message_is_short_storable_text(lab: Lab, message: Any) -> None:
    claim = await lab.running()
    await lab.engine.attempts.progress(claim, message="x" * 4096)
    with pytest.raises(Invalid):
        await lab.engine.attempts.progress(claim, message=message)
    assert await progress_of(lab, claim.id) == Progress(None, "x" * 4096)


async def test_writing_beside_a_lease_does_not_disturb_its_owner(lab: Lab) -> None:
    """Renewals, progress and steps leave the version alone that an ending is decided on."""
    claim = await lab.running()
    await lab.engine.attempts.progress(claim, 10)
    await lab.engine.attempts.record_step(claim, STEP)
    await lab.engine.claims.renew(claim)
    found = await lab.engine.store.load([claim.uuid])
    assert found[claim.uuid].head == claim.snapshot.head
    await lab.complete(claim, b"done")
    assert await lab.engine.views.result(claim.id) == b"done"


async def steps_of(lab: Lab, claim: Claim, generation: int = 0) -> list[Step]:
    return await lab.engine.attempts.steps(claim.uuid, generation)


async def test_a_recorded_step_is_never_overwritten(lab: Lab) -> None:
    """INV-23: also not by another attempt"""
    first = await lab.running(policy=RETRYING)
    recorded = replace(STEP, doc=b"first")
    await lab.engine.attempts.record_step(first, recorded)
    await lab.engine.attempts.record_step(first, replace(STEP, doc=b"second"))
    assert await steps_of(lab, first) == [recorded]
    await lab.fail(first)
    await lab.pass_time(10)
    second = await lab.claim_one()
    await lab.engine.attempts.record_step(second, replace(STEP, doc=b"third"))
    assert await steps_of(lab, second) == [recorded]


async def test_steps_are_told_apart_by_name_and_occurrence_and_come_in_order(lab: Lab) -> None:
    claim = await lab.running()
    steps = [
        Step(0, 2, "charge", 1, b"c"),
        Step(0, 0, "charge", 0, b"a"),
        Step(0, 1, "mail", 0, bytes(range(256))),
        Step(1, 0, "charge", 0, b"another generation"),
    ]
    for step in steps:
        await lab.engine.attempts.record_step(claim, step)
    assert await steps_of(lab, claim) == [steps[1], steps[2], steps[0]]
    assert await steps_of(lab, claim, generation=1) == [steps[3]]


async def test_a_claim_brings_what_was_recorded_before_it_or_leaves_it_to_be_read(lab: Lab) -> None:
    claim = await lab.running()
    assert claim.steps is None
    for step in (Step(0, 1, "mail", 0, b"b"), Step(0, 0, "charge", 0, b"a")):
        await lab.engine.attempts.record_step(claim, step)
    await lab.engine.attempts.hand_back(claim)
    again = await lab.claim_one()
    assert again.steps in (None, tuple(await steps_of(lab, claim)))
    await lab.engine.attempts.record_step(again, Step(0, 2, "ship", 0, b"c"))
    await lab.lose(again)
    third = await lab.claim_one()
    assert third.steps in (None, tuple(await steps_of(lab, claim)))


@pytest.mark.rules
async def test_a_step_needs_a_name_and_bytes_that_can_be_stored(lab: Lab) -> None:
    claim = await lab.running()
    wrong: list[dict[str, Any]] = [
        {"name": "x" * 2049},
        {"name": "nul \0"},
        {"doc": "text"},
        {"doc": bytes((1 << 20) + 1)},
    ]
    for members in wrong:
        with pytest.raises(Invalid):
            await lab.engine.attempts.record_step(claim, replace(STEP, **members))
    assert await steps_of(lab, claim) == []


async def test_steps_outlive_a_loss_and_a_failure_but_not_a_success(lab: Lab) -> None:
    """A replay keeps the steps of a run that had failed and begins anew after one that had
    succeeded."""
    claim = await lab.running()
    await lab.engine.attempts.record_step(claim, STEP)
    await lab.lose(claim)
    claim = await lab.claim_one()
    await lab.fail(claim)
    await lab.engine.executions.replay(claim.id)
    claim = await lab.claim_one()
    assert claim.snapshot.life.generation == 0
    assert await steps_of(lab, claim) == [STEP]
    await lab.complete(claim)
    await lab.engine.executions.replay(claim.id)
    claim = await lab.claim_one()
    assert claim.snapshot.life.generation == 1
    assert await steps_of(lab, claim, claim.snapshot.life.generation) == []


async def test_an_owner_that_lost_its_lease_does_not_hear_the_answer_of_the_next(lab: Lab) -> None:
    """Both in one process, in one batch."""
    old = await lab.running()
    await lab.lose(old)
    new = await lab.claim_one()
    theirs, ours = await asyncio.gather(
        lab.engine.attempts.record_step(old, replace(STEP, name="stale")),
        lab.engine.attempts.record_step(new, STEP),
        return_exceptions=True,
    )
    assert (type(theirs), ours) == (StaleLease, None)
    assert await lab.engine.attempts.steps(new.uuid, STEP.generation) == [STEP]
