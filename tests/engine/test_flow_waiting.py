"""Waiting for flows: many callers, few queries."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import NotFound, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphNode
from flowfabric.core.flow.model import Flow
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.commit.watcher import AwaitedFlows, Watcher
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow.dispatch import MAX_PASSES
from flowfabric.store.rows.record import FLOWS, RecordKind
from flowfabric.store.sqlite.store import open_sqlite

GRAPH = Graph((GraphNode("only", Submission(kind="noop")),))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = await Engine.open(await open_sqlite(":memory:", inline=True))
    yield engine
    await engine.close()


async def declare(engine: Engine, many: int) -> list[UUID]:
    return [(await engine.flows.declare("batch", GRAPH)).id for _ in range(many)]


async def test_two_hundred_waiters_cost_one_query_per_hint(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = await declare(engine, 200)
    asked: list[int] = []
    looked = asyncio.Event()
    plain = engine.store.records.get

    async def counted(kind: RecordKind[UUID, Flow], ids: Sequence[UUID]) -> dict[UUID, Flow]:
        asked.append(len(ids))
        looked.set()
        return await plain(kind, ids)

    monkeypatch.setattr(engine.store.records, "get", counted)
    watcher = Watcher(engine.store, AwaitedFlows(engine.store))
    tasks = [asyncio.create_task(watcher.wait(flow, flow)) for flow in flows for _ in range(5)]
    await looked.wait()
    assert asked == [200]
    monkeypatch.setattr(engine.store.records, "get", plain)
    for flow in flows:
        await engine.flows.cancel(flow)
    ended = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert {flow.id for flow in ended} == set(flows)


async def test_what_this_process_ends_is_told_without_a_query(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (flow,) = await declare(engine, 1)
    found = (await engine.store.records.get(FLOWS, [flow]))[flow]
    watcher = Watcher(engine.store, AwaitedFlows(engine.store))
    task = asyncio.create_task(watcher.wait(flow, flow))
    looked = asyncio.Event()

    async def unwanted(*_: object) -> dict[UUID, Flow]:
        looked.set()
        return {flow: found}

    monkeypatch.setattr(engine.store.records, "get", unwanted)
    await looked.wait()
    looked.clear()
    ended = replace(found, ended_at=Millis(5))
    watcher.committed(Commit(ended_flows=(ended,)))
    assert await task == ended
    assert not looked.is_set()


async def test_a_sweep_ends_although_flows_never_stop_owing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy flow owes something again whenever it was looked at."""
    flows = await declare(engine, 2)
    passes: list[Sequence[UUID]] = []

    async def owing(limit: int) -> list[UUID]:
        return flows

    async def resolve(some: Sequence[UUID]) -> int:
        passes.append(some)
        return len(some)

    monkeypatch.setattr(engine.store, "owed_flows", owing)
    monkeypatch.setattr(engine._dispatcher, "_resolve_all", resolve)
    assert await engine._dispatcher.sweep() == 2
    assert passes == [flows] * (1 + MAX_PASSES)


async def test_a_flow_that_has_ended_is_told_at_once(engine: Engine) -> None:
    (flow,) = await declare(engine, 1)
    await engine.flows.cancel(flow)
    assert (await engine.flow_views.wait(flow, timeout=20)).ended_at is not None
    assert (await engine.flow_views.wait(flow, timeout=0)).ended_at is not None


async def test_a_flow_that_does_not_exist_is_not_found(engine: Engine) -> None:
    (flow,) = await declare(engine, 1)
    patient = asyncio.create_task(engine.flow_views.wait(flow))
    with pytest.raises(NotFound):
        await engine.flow_views.wait(UUID(int=7), timeout=20)
    with pytest.raises(NotFound):
        await engine.flow_views.wait(UUID(int=7), timeout=0)
    assert not patient.done()
    patient.cancel()


async def test_a_caller_that_stops_waiting_stops_no_other(engine: Engine) -> None:
    (flow,) = await declare(engine, 1)
    impatient = engine.flow_views.wait(flow, timeout=0)
    patient = asyncio.create_task(engine.flow_views.wait(flow))
    with pytest.raises(TimeoutError, match="is running"):
        await impatient
    await engine.flows.cancel(flow)
    assert (await asyncio.wait_for(patient, 60)).id == flow


async def test_a_closed_engine_lets_waiters_go() -> None:
    engine = await Engine.open(await open_sqlite(":memory:", inline=True))
    (flow,) = await declare(engine, 1)
    patient = asyncio.create_task(engine.flow_views.wait(flow))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(Unavailable):
        await patient
