"""The stores under test: their addresses, and the faults that only one of them can have."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psycopg

from chaos.proxy import ProxyThread
from tests.kit.postgres import start_server

SETTINGS = """
fsync = off
synchronous_commit = on
max_connections = 200
log_min_messages = panic
"""
"""The server crashes, the machine does not: what was written to the kernel survives."""

BACKENDS = """
select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()
"""

Fault = Callable[[random.Random], None]


class Target(NamedTuple):
    """Workers and the submitter use `url`; the checks use `direct`, without the proxy."""

    name: str
    url: str
    direct: str
    faults: Mapping[str, Fault]


@contextmanager
def sqlite_target(folder: Path) -> Iterator[Target]:
    url = f"sqlite:///{folder / 'chaos.db'}"
    yield Target("sqlite", url, url, {})


@contextmanager
def postgres_target(folder: Path) -> Iterator[Target]:
    server = start_server(SETTINGS)
    direct = server.get_uri()
    proxy = ProxyThread(direct)
    try:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
        yield Target("postgres", url, direct, _network(proxy) | _server(direct))
    finally:
        proxy.close()
        server.cleanup()


def _network(proxy: ProxyThread) -> dict[str, Fault]:
    def outage(dice: random.Random) -> None:
        proxy.refuse(True)
        time.sleep(dice.uniform(0.2, 4))
        proxy.refuse(False)

    return {
        "every connection is cut": lambda _: proxy.cut(),
        "open connections fall silent": lambda _: proxy.silence(),
        "the database cannot be reached": outage,
    }


def _server(direct: str) -> dict[str, Fault]:
    def crash(dice: random.Random) -> None:
        """Kills one backend, so that the server ends all others and recovers. Just after another
        fault there may be no backend to kill, or the server may still be recovering."""
        with suppress(psycopg.OperationalError, ProcessLookupError):
            with psycopg.connect(direct) as connection:
                found = connection.execute(BACKENDS).fetchall()
            if found:
                os.kill(dice.choice(found)[0], signal.SIGKILL)

    return {"the database server crashes": crash}
