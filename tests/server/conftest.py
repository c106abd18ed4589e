"""A server on each store, in the event loop of the test, with a clock that stands still."""

from collections.abc import AsyncIterator

import httpx
import pytest

from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.server.http.asgi import App
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from tests.kit.http_work import HttpWorker, client_of, person, server_for
from tests.kit.lab import Lab


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(store_url: str, clock: ManualClock) -> AsyncIterator[Engine]:
    engine = await Engine.open(await open_store(store_url, clock=clock))
    yield engine
    await engine.close()


@pytest.fixture
def context(engine: Engine) -> ServerContext:
    """A server that asks for no token."""
    return ServerContext(engine, Authentication(engine, is_open=True))


@pytest.fixture
async def http(context: ServerContext) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that server."""
    transport = httpx.ASGITransport(create_app(context))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


@pytest.fixture
def lab(engine: Engine, clock: ManualClock) -> Lab:
    """What a worker does, on the engine that the server has."""
    return Lab(engine, clock)


@pytest.fixture
def server(engine: Engine) -> tuple[ServerContext, App]:
    """A server that asks for no token, but knows some callers by theirs."""
    return server_for(
        engine,
        tenant=person("tenant", namespaces={"acme"}),
        partner=person("partner", namespaces={"acme", "beta"}),
        reader=person("reader", scopes={"read"}),
    )


@pytest.fixture
async def worker(engine: Engine, server: tuple[ServerContext, App]) -> AsyncIterator[HttpWorker]:
    async with client_of(server[1]) as http:
        yield HttpWorker(engine, http)
