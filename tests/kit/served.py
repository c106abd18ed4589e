"""An engine behind HTTP in the process of the test, so that both share a clock."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import uvicorn

from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.core.base.errors import FlowFabricError
from flowfabric.engine.engine import Engine
from flowfabric.fabric import Fabric
from flowfabric.remote.engine import RemoteEngine
from flowfabric.remote.operations import OPERATIONS, SERVICES
from flowfabric.remote.wire import CALLS_PATH, HINTS_PATH, MEDIA_TYPE
from flowfabric.server.remote.operations import Operations
from flowfabric.store.open import open_store

HTTP = "http"
"""The store of a test that goes through a server: SQLite behind HTTP."""


SERVER = "server"
"""The same in a thread, for tests without an event loop."""


def is_through_http(item: Any) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and any(kind in callspec.params.values() for kind in (HTTP, SERVER))


def shares_loop(item: Any) -> bool:
    """Whether the server is in the event loop of the test."""
    return HTTP in item.callspec.params.values()


ALL_SCOPES = frozenset({"read", "submit", "work", "signal", "operate", "admin"})


def caller_named(
    name: str = "test",
    scopes: frozenset[str] = ALL_SCOPES,
    namespaces: frozenset[str] | None = None,
) -> Identity:
    return Identity(name, frozenset(AccessScope(scope) for scope in scopes), namespaces)


EVERYONE = caller_named()
Send = Callable[[Any], Awaitable[None]]


class EngineApp:
    """The smallest ASGI application with the operations of an engine. `refuse` makes it answer with
    a status instead; `lose` executes the next request and loses its answer; `refuse_after_loss` is
    what it refuses with from then on, as a server that dies with the answer."""

    def __init__(self, engine: Engine, callers: dict[str, Identity] | None = None) -> None:
        self.operations = Operations(engine)
        self.callers = callers
        self.requests = 0
        self.refuse: int | None = None
        self.refuse_after_loss: int | None = None
        self.lose = 0

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        self.requests += 1
        if self.refuse is not None:
            return await _answer(send, self.refuse, b'{"error": "not now"}')
        header = dict(scope["headers"]).get(b"authorization", b"").decode()
        caller = self._caller(header)
        if caller is None:
            why = b"invalid" if header else b"missing"
            return await _answer(send, 401, b'{"code": "%s_credentials"}' % why)
        if scope["path"].endswith(HINTS_PATH):
            return await self._hints(caller, receive, send)
        assert scope["path"].endswith(CALLS_PATH)
        try:
            reply = await self.operations.answer(caller, await _body(receive))
        except FlowFabricError as error:
            return await _answer(send, 400, b'{"error": "%s"}' % str(error).encode())
        if self.lose:
            self.lose -= 1
            self.refuse = self.refuse_after_loss
            reply, more = reply[:-1], len(reply)  # it breaks off
            return await _answer(send, 200, reply, more)
        return await _answer(send, 200, reply)

    def _caller(self, header: str) -> Identity | None:
        if self.callers is None:
            return EVERYONE
        return self.callers.get(header.removeprefix("Bearer "))

    async def _hints(self, caller: Identity, receive: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        gone = asyncio.ensure_future(_disconnect(receive))
        telling = asyncio.ensure_future(self._tell(caller, send))
        try:
            await asyncio.wait({gone, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            telling.cancel()

    async def _tell(self, caller: Identity, send: Send) -> None:
        async for byte in self.operations.hints(caller):
            await send({"type": "http.response.body", "body": byte, "more_body": True})


async def _answer(send: Send, status: int, body: bytes, size: int | None = None) -> None:
    length = len(body) if size is None else size
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": size is not None})


async def _disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


class QuietServer(uvicorn.Server):
    """Leaves the signals of the test alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serves an application on a port of this machine; gives its URL."""
    # The event loop turns off Nagle's algorithm only for sockets that say they are TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, ws="none")
    server = QuietServer(config)
    running = asyncio.ensure_future(server.serve([listener]))
    while not server.started:  # noqa: ASYNC110 - it does not say so otherwise
        await asyncio.sleep(0)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await running
        listener.close()


_REMOTE = frozenset(
    {"hinted_by", "hints", "identity", "jitter", "leases", "now", "settle", "suspects_seen"}
)


class EngineThroughHttp:
    """An engine as a test has it, whose operations go through HTTP. What a client cannot do, such
    as sweeping or looking into the store, is done in the engine behind the server."""

    def __init__(self, remote: RemoteEngine, inside: Engine) -> None:
        self._remote = remote
        self._inside = inside
        self.close = remote.close
        for name in SERVICES:
            if name != "engine":
                here, there = getattr(inside, name), getattr(remote, name)
                setattr(self, name, ServiceThroughHttp(name, there, here))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remote if name in _REMOTE else self._inside, name)


class ServiceThroughHttp:
    def __init__(self, name: str, remote: Any, inside: Any) -> None:
        self._name = name
        self._remote = remote
        self._inside = inside

    def __getattr__(self, method: str) -> Any:
        is_remote = f"{self._name}.{method}" in OPERATIONS or hasattr(type(self._remote), method)
        return getattr(self._remote if is_remote else self._inside, method)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._remote(*args, **kwargs)


def beside(fabric: Fabric, remote: Engine, inside: Engine) -> Engine:
    """Lets a fabric that uses a server, and its test, reach what is behind it."""
    through = cast(Engine, EngineThroughHttp(cast(RemoteEngine, remote), inside))
    fabric._engine = through
    return through


@asynccontextmanager
async def through_http(engine: Engine) -> AsyncIterator[Engine]:
    """The engine, used through a server of its own. It is closed in the end."""
    async with served(EngineApp(engine)) as url:
        remote = await RemoteEngine.open(url, None, engine.clock)
        try:
            yield cast(Engine, EngineThroughHttp(remote, engine))
        finally:
            await remote.close()
            await engine.close()


@contextmanager
def served_in_thread(store_url: str, callers: dict[str, Identity] | None = None) -> Iterator[str]:
    """A server with an event loop of its own, for tests that have none; gives its URL."""
    ready: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        engine = await Engine.open(await open_store(store_url))
        engine.sweep.start()
        async with served(EngineApp(engine)) as url:
            ready.set_result((url, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()
        await engine.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    url, stop = ready.result(60)
    try:
        yield url
    finally:
        stop()
        thread.join(20)
