"""Fresh databases for benchmarks, with durable settings."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kit.postgres import start_server


def use_uvloop() -> None:
    """Uses uvloop if it is installed."""
    with suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


DURABLE = """
fsync = on
full_page_writes = on
synchronous_commit = on
shared_buffers = 1GB
max_wal_size = 8GB
max_connections = 100
jit = off
log_min_messages = error
"""


@contextmanager
def fresh(store: str) -> Iterator[str]:
    """The URL of an empty store that is deleted afterwards. FLOWFABRIC_BENCH_POSTGRES_URL names a
    server (and an empty database) to use instead of the bundled one."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder) / 'bench.db'}"
        return
    if given := os.environ.get("FLOWFABRIC_BENCH_POSTGRES_URL"):
        yield given
        return
    server = start_server(DURABLE)
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
