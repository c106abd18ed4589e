"""The rows of flows without an engine: a store, and what the tests write into it."""

from collections.abc import AsyncIterator

import pytest

from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.store.flow_bench import Bench


@pytest.fixture
async def bench(store: Store, clock: ManualClock) -> AsyncIterator[Bench]:
    await store.migrate()
    yield Bench(store, clock)
    await store.close()
