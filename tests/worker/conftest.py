"""Every test gets an empty store of each kind; it never learns which one. It is also run through
HTTP, with the engine in the same event loop: a test that needs the store itself, or that keeps the
event loop from answering, is marked `inside`."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from tests.kit.served import HTTP, EngineApp, beside, is_through_http, served
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
def clock() -> ManualClock:
    """The clock of `bench`."""
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgres", HTTP])
def place(request: pytest.FixtureRequest, empty_store: Callable[[str], str]) -> str:
    """The URL of an empty store, also where the test reaches it through a server."""
    return empty_store(request.param)


@pytest.fixture
async def behind(
    request: pytest.FixtureRequest, wire: Wire, place: str, clock: ManualClock
) -> AsyncIterator[Engine | None]:
    """The engine behind the server, if there is one."""
    if not is_through_http(request.node):
        yield None
        return
    standing = "bench" in request.fixturenames
    store = await open_store(place, clock=clock if standing else None)
    engine = await Engine.open(wire.around(store))
    if not standing:
        engine.sweep.start()
    yield engine
    await engine.close()


@pytest.fixture
async def store_url(place: str, behind: Engine | None) -> AsyncIterator[str]:
    if behind is None:
        yield place
        return
    async with served(EngineApp(behind)) as url:
        yield url


@pytest.fixture
async def fabric(wire: Wire, store_url: str, behind: Engine | None) -> AsyncIterator[Fabric]:
    """On the real clock, for workers that run."""
    async with Fabric(store_url) as fabric:
        if behind is not None:
            beside(fabric, await fabric.engine(), behind)
        yield fabric


@pytest.fixture
async def bench(
    wire: Wire, store_url: str, behind: Engine | None, clock: ManualClock
) -> AsyncIterator[Bench]:
    """On a clock that stands still, for runs driven by hand."""
    async with Fabric(store_url, clock=clock) as fabric:
        engine = await fabric.engine()
        if behind is not None:
            engine = beside(fabric, engine, behind)
        yield Bench(fabric, engine, clock)


@pytest.fixture
def log() -> Log:
    return Log()
