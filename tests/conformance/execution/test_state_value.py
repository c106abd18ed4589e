"""What an execution shows of itself: a value that the owner writes beside its lease."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    FenceRequired,
    Invalid,
    NotFound,
    PayloadTooLarge,
    StaleLease,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.text import MAX_STATE_VALUE
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import Progress
from tests.conformance.execution.test_progress import (
    begins_again_by_a_replay,
    begins_again_by_a_retry,
    begins_again_by_a_takeover,
    progress_of,
)
from tests.kit.lab import Lab
from tests.kit.situations import RETRY_AT_ONCE


async def test_the_last_value_wins_and_stays_after_the_end(lab: Lab) -> None:
    claim = await lab.running()
    assert await lab.engine.views.state_value(claim.id) is None
    version = claim.snapshot.head.version
    await lab.engine.attempts.set_state(claim, b'"a"')
    await lab.engine.attempts.set_state(claim, b'{"b":1}')
    assert await lab.engine.views.state_value(claim.id) == b'{"b":1}'
    vector = await lab.engine.views.vector(claim.id)
    assert vector is not None
    loaded = (await lab.engine.store.load([claim.uuid]))[claim.uuid]
    assert loaded.head.version == version, "a side write does not bump the version"
    await lab.complete(claim)
    assert await lab.engine.views.state_value(claim.id) == b'{"b":1}'


async def test_values_set_at_once_keep_their_order_and_leave_progress_alone(lab: Lab) -> None:
    claim = await lab.running()
    attempts = lab.engine.attempts
    await asyncio.gather(
        attempts.set_state(claim, b"1"),
        attempts.progress(claim, 10, "begun"),
        attempts.set_state(claim, b"2"),
        attempts.progress(claim, 20),
        attempts.set_state(claim, b"3"),
    )
    assert await lab.engine.views.state_value(claim.id) == b"3"
    assert await progress_of(lab, claim.id) == Progress(20, "begun")


async def test_a_value_alone_is_no_progress(lab: Lab) -> None:
    claim = await lab.running()
    await lab.engine.attempts.set_state(claim, b"1")
    assert await progress_of(lab, claim.id) is None


@pytest.mark.parametrize(
    "again", [begins_again_by_a_retry, begins_again_by_a_takeover, begins_again_by_a_replay]
)
async def test_the_next_attempt_keeps_the_value(
    lab: Lab, again: Callable[[Lab, Claim], Awaitable[None]]
) -> None:
    claim = await lab.running(policy=RETRY_AT_ONCE)
    await lab.engine.attempts.set_state(claim, b"1")
    await again(lab, claim)
    assert await lab.engine.views.state_value(claim.id) == b"1"
    second = await lab.claim_one()
    await lab.engine.attempts.progress(second, 5)
    assert await lab.engine.views.state_value(claim.id) == b"1"
    await lab.engine.attempts.set_state(second, b"2")
    assert await lab.engine.views.state_value(claim.id) == b"2"
    assert await progress_of(lab, claim.id) == Progress(5, None)


async def test_only_the_owner_sets_it(lab: Lab) -> None:
    claim = await lab.running(policy=RETRY_AT_ONCE)
    await lab.lose(claim)
    await lab.claim_one()
    with pytest.raises(StaleLease):
        await lab.engine.attempts.set_state(claim, b"1")
    with pytest.raises(FenceRequired):
        await lab.engine.attempts.set_state(FencedExecution(claim.id), b"1")
    assert await lab.engine.views.state_value(claim.id) is None


async def test_what_is_no_value_is_refused(lab: Lab) -> None:
    claim = await lab.running()
    with pytest.raises(Invalid):
        await lab.engine.attempts.set_state(claim, {"a": 1})  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge):
        await lab.engine.attempts.set_state(claim, bytes(MAX_STATE_VALUE + 1))
    await lab.engine.attempts.set_state(claim, bytes(MAX_STATE_VALUE))
    with pytest.raises(NotFound):
        await lab.engine.views.state_value(ExecutionId.of(0, UUID(int=7 << 76)))
