"""Every test gets a fresh store of each kind; it never learns which one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from flowfabric.fabric import Fabric
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from tests.postgres import Databases
from tests.worker.bench import Bench, Log, Wire

STORES = ["sqlite", "postgres"]


@pytest.fixture(scope="session")
def migrated_template(databases: Databases) -> str:
    """A migrated database, made once per worker process and copied for every test."""
    url = databases.create()

    async def migrate() -> None:
        store = await open_store(url)
        await store.migrate()
        await store.close()

    asyncio.run(migrate())
    return url


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'work.db'}"
    fresh: Callable[..., str] = request.getfixturevalue("fresh_database")
    return fresh(template=request.getfixturevalue("migrated_template"))


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
