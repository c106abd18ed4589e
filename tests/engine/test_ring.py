"""How a process reads the key ring: once for all that ask at the same time."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import Unavailable
from flowfabric.engine.wait import keys
from flowfabric.engine.wait.keys import Ring
from flowfabric.store.clock import ManualClock

MANY = 50


class Kept:
    """A store with nothing but a clock, whose reads wait until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.reads = 0
        self.trouble: list[Exception] = []
        self.go_on = asyncio.Event()
        monkeypatch.setattr(keys, "find", self._find)

    async def _find(self, *asked: object) -> None:
        self.reads += 1
        await self.go_on.wait()
        if self.trouble:
            raise self.trouble.pop()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(monkeypatch)


def ring_of(kept: Any) -> Ring:
    return Ring(kept, None, make=False)


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_many_that_ask_at_once_share_a_read_and_go_on_together(kept: Kept) -> None:
    ring = ring_of(kept)
    asking = [asyncio.create_task(ring.read()) for _ in range(MANY)]
    await turns(2)
    assert kept.reads == 1
    kept.go_on.set()
    await turns(4)
    assert all(task.done() for task in asking)
    assert kept.reads == 1


async def test_after_a_read_that_failed_the_next_one_reads(kept: Kept) -> None:
    ring = ring_of(kept)
    kept.trouble = [Unavailable("away")]
    asking = [asyncio.create_task(ring.read()) for _ in range(MANY)]
    kept.go_on.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in found].count(Unavailable) == 1
    assert kept.reads == 2


async def test_a_reader_that_goes_away_leaves_the_read_to_the_next(kept: Kept) -> None:
    ring = ring_of(kept)
    first, second = (asyncio.create_task(ring.read()) for _ in range(2))
    await turns(2)
    first.cancel()
    await turns(2)
    assert kept.reads == 2
    kept.go_on.set()
    await second
    assert first.cancelled()


async def test_one_that_asks_for_a_fresh_ring_reads_after_the_others(kept: Kept) -> None:
    ring = ring_of(kept)
    first = asyncio.create_task(ring.read())
    await turns(1)
    fresh = asyncio.create_task(ring.read(fresh=True))
    kept.go_on.set()
    await asyncio.gather(first, fresh)
    assert kept.reads == 2
