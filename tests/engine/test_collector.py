"""The garbage collector's threshold while a process works."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphNode
from flowfabric.engine import collector
from flowfabric.engine.collector import OBJECTS, rare_collections
from flowfabric.engine.engine import Engine
from flowfabric.store.sqlite import open_sqlite


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.collect()  # an engine that a test has left open gives up its hold when it is freed
    monkeypatch.setattr(collector, "_holders", 0)  # those that are still open
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_the_collector_looks_rarely_while_a_worker_runs() -> None:
    with rare_collections():
        assert gc.get_threshold() == (OBJECTS, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_the_last_of_several_workers_restores_the_threshold() -> None:
    first, second = rare_collections(), rare_collections()
    with second:
        with first:
            pass
        assert gc.get_threshold() == (OBJECTS, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (50_000, 5, 5)])
def test_what_the_application_has_chosen_stays(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    with rare_collections():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_what_the_application_chooses_meanwhile_stays() -> None:
    with rare_collections():
        gc.set_threshold(1_000, 5, 5)
    assert gc.get_threshold() == (1_000, 5, 5)


def test_a_failing_worker_restores_the_threshold() -> None:
    with pytest.raises(ZeroDivisionError), rare_collections():
        raise ZeroDivisionError
    assert gc.get_threshold() == (700, 10, 10)


async def test_the_collector_looks_rarely_while_members_are_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = await Engine.open(await open_sqlite(":memory:", inline=True))
    seen: list[int] = []
    plain = engine.store.apply

    async def apply(changes: Any) -> Any:
        seen.append(gc.get_threshold()[0])
        return await plain(changes)

    monkeypatch.setattr(engine.store, "apply", apply)
    members = tuple(GraphNode(str(n), Submission(kind="noop")) for n in range(3))
    flow = await engine.flows.declare("batch", Graph(members))
    await engine.flows.cancel(flow.id)
    await engine.close()
    assert seen == [OBJECTS]
    assert gc.get_threshold() == (700, 10, 10)


async def test_an_engine_that_claims_is_a_worker_until_it_is_closed() -> None:
    engine = await Engine.open(await open_sqlite(":memory:", inline=True))
    assert gc.get_threshold() == (700, 10, 10)
    for _ in range(2):
        assert not await engine.claims.claim(WorkerIdentity("w", "i"))
        assert gc.get_threshold() == (OBJECTS, 10, 10)
    await engine.close()
    assert gc.get_threshold() == (700, 10, 10)
