"""Runs that wait for the end of another one: they are signalled once, whatever dies meanwhile."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.flow.children import end_signal
from flowfabric.core.flow.model import FlowState
from tests.kit.flowing import Growing
from tests.kit.lab import Lab
from tests.kit.situations import missing_ids, take


async def complete(lab: Lab, id: ExecutionId) -> None:
    await lab.engine.attempts.complete(await take(lab, id))


async def cancel(lab: Lab, id: ExecutionId) -> None:
    await lab.engine.executions.cancel(id, reason="enough")


async def signals(lab: Lab, run: ExecutionId) -> list[str]:
    return [row.signal.key for row in await lab.engine.signals.of(run)]


@pytest.mark.parametrize("end", [complete, cancel])
async def test_the_end_of_a_run_is_signalled_once(
    lab: Lab, end: Callable[[Lab, ExecutionId], Awaitable[None]]
) -> None:
    child, waiting = await lab.submit(), await lab.submit(delay_until=lab.engine.now() + 9_000)
    for _ in range(2):
        assert not await lab.engine.executions.await_end(child, waiting.uuid)
    await end(lab, child)
    await lab.engine.flows.drain()
    await lab.engine.sweep.once()
    assert await signals(lab, waiting) == [end_signal(child.uuid)]
    assert await lab.engine.executions.await_end(child, waiting.uuid)
    assert not await lab.engine.store.owed_flows(1)


async def test_the_sweep_signals_what_the_process_that_ended_the_run_did_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, waiting = await lab.submit(), await lab.submit(delay_until=lab.engine.now() + 9_000)
    await lab.engine.executions.await_end(child, waiting.uuid)
    monkeypatch.setattr(lab.engine._dispatcher, "committed", lambda commit: None)
    await cancel(lab, child)
    assert await signals(lab, waiting) == []
    await lab.engine.sweep.once()
    await lab.engine.sweep.once()
    assert await signals(lab, waiting) == [end_signal(child.uuid)]


@pytest.mark.parametrize("member", [UUID(int=1), UUID(int=2**128 - 1)])
async def test_a_run_and_a_flow_of_one_id_are_owed_what_is_theirs(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, member: UUID
) -> None:
    """I-22: clients name both, and an outbox entry of one may stand before those of the other"""
    child, waiting = await lab.submit(), await lab.submit(delay_until=lab.engine.now() + 9_000)
    flow = await Growing.begin(lab, id=waiting.uuid)
    await flow.add("a", id=ExecutionId.member(flow.id, member))
    await flow.seal()
    await lab.engine.executions.await_end(child, waiting.uuid)
    monkeypatch.setattr(lab.engine._dispatcher, "committed", lambda commit: None)
    await cancel(lab, child)
    await complete(lab, flow["a"])
    assert len((await lab.engine.store.owing([flow.id], 9)).entries) == 2
    assert (await flow.check()).state is FlowState.COMPLETED
    assert await signals(lab, waiting) == [end_signal(child.uuid)]


async def test_a_run_that_is_gone_or_has_ended_is_owed_nothing(lab: Lab) -> None:
    child, waiting = await lab.submit(), await lab.submit()
    await lab.engine.executions.await_end(child, waiting.uuid)
    await lab.engine.executions.await_end(child, (await missing_ids(lab))[0].uuid)
    await cancel(lab, waiting)
    await cancel(lab, child)
    await lab.engine.flows.drain()
    await lab.engine.sweep.once()
    assert not await lab.engine.store.owed_flows(1)


async def test_nothing_waits_for_a_run_that_does_not_exist(lab: Lab) -> None:
    waiting = await lab.submit()
    with pytest.raises(NotFound):
        await lab.engine.executions.await_end((await missing_ids(lab))[0], waiting.uuid)
