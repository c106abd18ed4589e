"""One suite for every store: each test gets an empty store and a clock that stands still. It is
also run through HTTP: a test that looks inside the engine is marked `inside`."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.open import open_store, sqlite_path
from flowfabric.store.sqlite.store import open_sqlite
from tests.kit.lab import Lab
from tests.kit.race import Race
from tests.kit.served import HTTP, is_through_http, through_http


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgres", HTTP])
def store_url(request: pytest.FixtureRequest, empty_store: Callable[[str], str]) -> str:
    return empty_store(request.param)


@pytest.fixture
async def store(request: pytest.FixtureRequest, store_url: str, clock: ManualClock) -> Store:
    """For rules of the core SQLite needs no threads, which take longer than the rules."""
    if store_url.startswith("sqlite:") and (
        request.node.get_closest_marker("rules") or is_through_http(request.node)
    ):
        return await open_sqlite(sqlite_path(store_url), clock=clock, inline=True)
    return await open_store(store_url, clock=clock)


@pytest.fixture
async def lab(
    request: pytest.FixtureRequest, store: Store, clock: ManualClock
) -> AsyncIterator[Lab]:
    lab = await Lab.open(store, clock)
    if is_through_http(request.node):
        async with through_http(lab.engine) as engine:
            yield Lab(engine, clock)
        return
    yield lab
    await lab.engine.close()


@pytest.fixture
async def second_lab(lab: Lab, store_url: str, clock: ManualClock) -> AsyncIterator[Lab]:
    """Another engine on the same database, as another process would have it."""
    other = await Lab.open(await open_store(store_url, clock=clock), clock)
    yield other
    await other.engine.close()


@pytest.fixture
def race(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Race]:
    race = Race(lab, monkeypatch)
    yield race
    assert race.left == 0, "the rival never had its chance"
