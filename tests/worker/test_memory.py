"""What a run leaves in memory: nothing that waits for the garbage collector."""

import gc

import pytest

from flowfabric.worker.run.active import ActiveRun
from flowfabric.worker.run.scope import CallScope
from tests.worker.bench import Bench


@pytest.mark.rules
async def test_a_plain_run_is_gone_when_it_has_ended(bench: Bench) -> None:
    @bench.fabric.task()
    async def double(n: int) -> int:
        return n * 2

    runs = await double.submit_many(range(20))
    gc.collect()
    gc.disable()
    try:
        before = _held()
        assert await bench.work() == 20
        assert _held() == before
    finally:
        gc.enable()
    assert [await run.result(1) for run in runs] == [n * 2 for n in range(20)]


def _held() -> int:
    return sum(type(each) in (ActiveRun, CallScope) for each in gc.get_objects())
