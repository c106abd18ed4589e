"""Empty databases for benchmarks, with durable settings."""

import asyncio
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg import sql

from tests.kit.postgres import database_name, start_server, with_database

SERVER = "FLOWFABRIC_BENCH_POSTGRES_URL"
DURABLE = """
fsync = on
full_page_writes = on
synchronous_commit = on
shared_buffers = 1GB
min_wal_size = 2GB
max_wal_size = 8GB
max_connections = 300
jit = off
log_min_messages = error
"""
WAL_FILES = 128
DURABILITY = {
    "postgres": "fsync before every commit is answered",
    "sqlite": "fsync before every commit is answered (synchronous = FULL)",
}

Fresh = Callable[[], str]


def use_uvloop() -> None:
    """Uses uvloop if it is installed."""
    with suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


@contextmanager
def fresh(store: str) -> Iterator[str]:
    """The URL of an empty store that is deleted afterwards."""
    with server(store) as url, databases(url) as make:
        yield make()


@contextmanager
def server(store: str) -> Iterator[str]:
    """A Postgres server with a data directory of its own, or the one that
    FLOWFABRIC_BENCH_POSTGRES_URL names (it must be allowed to create databases); for SQLite, a
    folder."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}"
    elif given := os.environ.get(SERVER):
        yield given
    else:
        started = start_server(DURABLE)
        try:
            _recycle_wal(started.get_uri())
            yield started.get_uri()
        finally:
            started.cleanup()


def _recycle_wal(url: str) -> None:
    """Gives a new server WAL files to use again, as one has that has run for a while. Without them
    some commits create a file of 16 MB, for 70 to 100 ms."""
    with psycopg.connect(url, autocommit=True) as admin:
        for _ in range(WAL_FILES):
            admin.execute("select pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
        admin.execute("checkpoint")


@contextmanager
def databases(url: str) -> Iterator[Fresh]:
    """Makes empty databases on a server, and deletes them at the end."""
    if url.startswith("sqlite"):
        with tempfile.TemporaryDirectory(dir=Path(url.removeprefix("sqlite:///"))) as folder:
            numbers = itertools.count(1)
            yield lambda: f"sqlite:///{folder}/{next(numbers)}.db"
        return
    made: list[str] = []
    with psycopg.connect(url, autocommit=True) as admin:

        def make() -> str:
            name = f"bench_{os.getpid()}_{len(made)}"
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            made.append(with_database(url, name))
            return made[-1]

        try:
            yield make
        finally:
            for each in made:
                name = sql.Identifier(database_name(each))
                admin.execute(sql.SQL("drop database {} with (force)").format(name))


def version(url: str) -> str:
    """Of the server."""
    with psycopg.connect(url) as connection:
        number = connection.info.server_version
    return f"{number // 10_000}.{number % 10_000}"
