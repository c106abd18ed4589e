"""A server with the dashboard and a small application, in the event loop of the tests."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from flowfabric import Context, Fabric, Fail
from flowfabric.core.access.token import AccessScope
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.server.http.asgi import App
from flowfabric.worker.run.options import WorkerSettings

LONG = "a" + "-very-long-name" * 14  # 197 characters
IDLE = "idle"
"""A lane that no worker serves."""


def application(url: str) -> Fabric:
    """Tasks of every kind that the pages show."""
    fabric = Fabric(url)
    fabric.quota("api", concurrency=2)
    fabric.budget("tokens", tokens=1000, every="1d")

    @fabric.task(name="greet")
    async def greet(ctx: Context, name: str) -> str:
        await ctx.emit(f"greeting {name}")
        return await ctx.step(hello, name)

    @fabric.task(name="break")
    async def break_(number: int) -> None:
        raise Fail(f"part {number} is broken")

    @fabric.task(name="deploy", budgets=["tokens"])
    async def deploy(ctx: Context, version: str) -> str:
        await ctx.spend(tokens=250)
        verdict = await ctx.approval("release", about={"version": version, "risk": "low"})
        return "released" if verdict.approved else "held back"

    @fabric.task(name="pay")
    async def pay(ctx: Context) -> int:
        return await ctx.wait_for_signal("paid", int)

    @fabric.task(name="wait", lane=IDLE)
    async def wait(number: int = 0) -> int:
        return number

    @fabric.task(name="add", quotas=["api"])
    async def add(parts: list[int], more: int = 1) -> int:
        return sum(parts) + more

    @fabric.task(name="tidy", every="1h")
    async def tidy() -> str:
        return "tidy"

    return fabric


async def hello(name: str) -> str:
    return f"Hello, {name}!"


class Site:
    """A fabric, its worker and its server. `stop` and `start` take the server away and back."""

    def __init__(self, fabric: Fabric, engine: Engine) -> None:
        self.fabric = fabric
        self.engine = engine
        self._listening = _socket(0)
        self.port = self._listening.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def start(self, app: App | None = None, *, is_open: bool = True) -> None:
        context = ServerContext(self.engine, Authentication(self.engine, is_open=is_open))
        config = uvicorn.Config(
            app or create_app(context), lifespan="off", log_config=None, ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._context = context
        if self._listening.fileno() < 0:
            self._listening = _socket(self.port)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        assert self._server is not None
        assert self._serving is not None
        self._context.draining.set()
        self._server.should_exit = True
        await self._serving
        self._listening.close()

    async def token(self, name: str, *scopes: AccessScope) -> str:
        made = await self.engine.tokens.create(name, scopes=scopes)
        return made.secret.reveal()


def _socket(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


@asynccontextmanager
async def open_site(
    folder: Path, *, work: bool = True, is_open: bool = True
) -> AsyncIterator[Site]:
    fabric = application(f"sqlite:///{folder / 'site.db'}")
    async with fabric:
        site = Site(fabric, await fabric.engine())
        site.engine.sweep.start()
        await site.start(is_open=is_open)
        settings = WorkerSettings(name="ada", concurrency=10, lanes=["default"], drain="1s")
        worker = await fabric.worker(settings)
        working = asyncio.create_task(worker.run()) if work else None
        try:
            yield site
        finally:
            worker.stop()
            if working is not None:
                await working
            await site.stop()
