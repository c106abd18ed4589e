"""One suite for every store: each test gets an empty store and a clock that stands still."""

from collections.abc import AsyncIterator

import pytest

from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.open import open_store, sqlite_path
from flowfabric.store.sqlite.store import open_sqlite
from tests.kit.lab import Lab


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(request: pytest.FixtureRequest, store_url: str, clock: ManualClock) -> Store:
    """For rules of the core SQLite needs no threads, which take longer than the rules."""
    if store_url.startswith("sqlite:") and request.node.get_closest_marker("rules"):
        return await open_sqlite(sqlite_path(store_url), clock=clock, inline=True)
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
