"""`flowfabric demo --serve`: server, dashboard, two workers and the sample application in one
process, on one SQLite file, until Ctrl-C."""

import asyncio
import logging
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from flowfabric.core.base.errors import Invalid
from flowfabric.demo import lively
from flowfabric.server.options import ListenAddress, ServerOptions
from flowfabric.server.processes import bind
from flowfabric.server.run import Server, address_of
from flowfabric.worker.run.loop import Worker
from flowfabric.worker.run.options import WorkerSettings

PORT = 9090
WORKERS = {"ada": 4, "bob": 3}


def main(port: int | None = None) -> int:
    """Serves until SIGINT or SIGTERM, and leaves no file behind."""
    logging.getLogger("flowfabric").setLevel(logging.CRITICAL)  # the sample fails on purpose
    home = Path(tempfile.mkdtemp(prefix="flowfabric-demo-"))
    try:
        asyncio.run(serve(home, port))
    except KeyboardInterrupt:
        pass
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print("stopped; everything was cleaned up", file=sys.stderr)
    return 0


async def serve(home: Path, port: int | None = None) -> None:
    """The whole sample; prints the address when it can be opened."""
    fabric = lively.fabric
    fabric.url = f"sqlite:///{home / 'demo.db'}"
    with _listening(port) as listening:
        options = ServerOptions(listen=ListenAddress(*listening.getsockname()[:2]))
        async with fabric:
            server = await Server.open(await fabric.engine(), options, [listening])
            async with _working(server):
                address = address_of(listening, options)
                print(f"Dashboard: {address}/  (Ctrl-C stops it)", flush=True)
                await server.run()


def _listening(port: int | None) -> socket.socket:
    host = "127.0.0.1"
    if port is not None:
        return bind(ListenAddress(host, port))
    try:
        return bind(ListenAddress(host, PORT))
    except Invalid:  # something else listens there
        return bind(ListenAddress(host, 0))


@asynccontextmanager
async def _working(server: Server) -> AsyncIterator[None]:
    """Two workers and a busy shop, as long as the server runs."""
    workers = [
        await lively.fabric.worker(
            WorkerSettings(name=name, instance=f"{name}-1", concurrency=slots, drain="2s")
        )
        for name, slots in WORKERS.items()
    ]
    shop = asyncio.create_task(lively.open_shop(), name="flowfabric-demo-shop")
    runs = [asyncio.create_task(worker.run(), name="flowfabric-worker") for worker in workers]
    server.on_drain(lambda: _stop(workers))
    try:
        yield
    finally:
        shop.cancel()
        _stop(workers)
        with suppress(asyncio.CancelledError):
            await shop
        await asyncio.gather(*runs)


def _stop(workers: list[Worker]) -> None:
    for worker in workers:
        worker.stop()
