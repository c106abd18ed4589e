"""The servers of a run: one durable Postgres and one Redis for all systems, an empty database for
each session."""

import itertools
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psycopg
from msgspec import Struct
from psycopg import sql

from bench import stores
from bench.peers import cpu, install
from tests.kit.postgres import with_database

REDIS_SETTINGS = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")


class Place(Struct):
    """An empty store."""

    url: str
    server: int | None = None
    """The process of the server, if it runs on this machine."""
    admin: str | None = None


class Servers:
    """Starts each server when a system first asks for it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._postgres: str | None = None
        self._redis: Redis | None = None
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @contextmanager
    def empty(self, store: str) -> Iterator[Place]:
        if store == "sqlite":
            with stores.fresh("sqlite") as url:
                yield Place(url)
        elif store == "redis":
            if self._redis is None:
                self._redis = self._stack.enter_context(Redis())
            self._redis.clear()
            yield Place(self._redis.url, self._redis.process)
        else:
            if self._postgres is None:
                self._postgres = self._stack.enter_context(stores.fresh("postgres"))
            with _database(self._postgres, f"peers_{next(self._numbers)}") as place:
                yield place


@contextmanager
def _database(admin: str, name: str) -> Iterator[Place]:
    with psycopg.connect(admin, autocommit=True) as connection:
        quoted = sql.Identifier(name)
        connection.execute(sql.SQL("create database {}").format(quoted))
        try:
            server = cpu.parent_named(connection.info.backend_pid, "postgres")
            yield Place(with_database(admin, name), server, admin)
        finally:
            connection.execute(sql.SQL("drop database {} with (force)").format(quoted))


def written(place: Place) -> int | None:
    """Bytes of write-ahead log until now; None where there is none."""
    if place.admin is None:
        return None
    with psycopg.connect(place.admin, autocommit=True) as connection:
        row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
        return int(row[0]) if row else None


class Redis:
    """A server of its own, with what Redis calls a good compromise between speed and safety."""

    def __enter__(self) -> Self:
        program = install.redis_server()
        self._folder = tempfile.TemporaryDirectory()
        self._port = _free_port()
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--dir", self._folder.name]
        log = Path(self._folder.name) / "redis.log"
        self._process = subprocess.Popen(
            [program, *options, *REDIS_SETTINGS, "--logfile", str(log)]
        )
        self._wait()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def process(self) -> int:
        return self._process.pid

    def clear(self) -> None:
        self._ask("FLUSHALL SYNC")

    def _ask(self, command: str) -> str:
        with socket.create_connection(("127.0.0.1", self._port), timeout=30) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(1000).decode()

    def _wait(self) -> None:
        until = time.monotonic() + 10
        while True:
            try:
                if self._ask("PING").startswith("+PONG"):
                    return
            except OSError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise install.InstallError("redis-server did not start") from None
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
