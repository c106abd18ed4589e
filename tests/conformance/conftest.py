"""One suite for every store: each test gets a fresh store and a clock that stands still."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.open import open_store
from tests.lab import Lab
from tests.postgres import Databases

STORES = ["sqlite", "postgres"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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
        return f"sqlite:///{tmp_path / 'lab.db'}"
    fresh: Callable[..., str] = request.getfixturevalue("fresh_database")
    return fresh(template=request.getfixturevalue("migrated_template"))


@pytest.fixture
async def store(store_url: str, clock: ManualClock) -> Store:
    return await open_store(store_url, clock=clock)


@pytest.fixture
async def lab(store: Store, clock: ManualClock) -> AsyncIterator[Lab]:
    lab = await Lab.open(store, clock)
    yield lab
    await lab.engine.close()


@pytest.fixture
async def second_lab(lab: Lab, store_url: str, clock: ManualClock) -> AsyncIterator[Lab]:
    """Another engine on the same database, as another process would have it."""
    other = await Lab.open(await open_store(store_url, clock=clock), clock)
    yield other
    await other.engine.close()
