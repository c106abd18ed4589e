"""A server in the event loop of the test, on SQLite in memory, and clients of it."""

from collections.abc import AsyncIterator

import pytest

from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from flowfabric.remote.client import RemoteClient
from flowfabric.remote.connection import Connection
from flowfabric.remote.engine import RemoteEngine
from flowfabric.store.clock import ManualClock
from flowfabric.store.sqlite.store import open_sqlite
from tests.kit.served import EngineApp, caller_named, served


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def inside(clock: ManualClock) -> AsyncIterator[Engine]:
    """The engine behind the server."""
    engine = await Engine.open(await open_sqlite(":memory:", clock=clock, inline=True))
    yield engine
    await engine.close()


@pytest.fixture
def app(inside: Engine) -> EngineApp:
    return EngineApp(inside)


@pytest.fixture
async def url(app: EngineApp) -> AsyncIterator[str]:
    async with served(app) as url:
        yield url


@pytest.fixture
async def client(url: str, clock: ManualClock) -> AsyncIterator[RemoteClient]:
    client = RemoteClient(Connection(url, None), clock)
    yield client
    await client.close()


@pytest.fixture
async def remote(url: str, clock: ManualClock) -> AsyncIterator[Engine]:
    """The engine, through the server."""
    remote = await RemoteEngine.open(url, None, clock)
    yield remote.as_engine()
    await remote.close()


@pytest.fixture
async def fabric(url: str, clock: ManualClock) -> AsyncIterator[Fabric]:
    async with Fabric(url, clock=clock) as fabric:
        yield fabric


@pytest.fixture
async def tenant(app: EngineApp, url: str, clock: ManualClock) -> AsyncIterator[Engine]:
    """The engine for a caller that sees the namespace `ours` alone."""
    app.callers = {"ours": caller_named("ours", namespaces=frozenset({"ours"}))}
    remote = await RemoteEngine.open(url, "ours", clock)
    yield remote.as_engine()
    await remote.close()
