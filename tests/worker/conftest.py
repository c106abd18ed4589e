"""Every test gets an empty store of each kind; it never learns which one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowfabric.fabric import Fabric
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from tests.worker.bench import Bench, Log, Wire


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Between every engine of the test and its store. Ask for it before the engine."""
    wire = Wire()

    async def opened(url: str, **options: Any) -> Any:
        return wire.around(await open_store(url, **options))

    monkeypatch.setattr("flowfabric.fabric.open_store", opened)
    return wire


@pytest.fixture
async def fabric(wire: Wire, store_url: str) -> AsyncIterator[Fabric]:
    """On the real clock, for workers that run."""
    async with Fabric(store_url) as fabric:
        yield fabric


@pytest.fixture
async def bench(wire: Wire, store_url: str) -> AsyncIterator[Bench]:
    """On a clock that stands still, for runs driven by hand."""
    clock = ManualClock()
    async with Fabric(store_url, clock=clock) as fabric:
        yield Bench(fabric, await fabric.engine(), clock)


@pytest.fixture
def log() -> Log:
    return Log()
