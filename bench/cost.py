"""What work costs, counted and not timed: CPU of this process and of the database server, and the
bytes of WAL. On a noisy machine these repeat to a few percent where rates do not."""

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from msgspec import Struct

_TICK = os.sysconf("SC_CLK_TCK")


class Cost(Struct):
    """Seconds of CPU and bytes, in all until it is divided."""

    client: float = 0.0
    server: float = 0.0
    wal: int = 0
    transactions: int = 0
    seconds: float = 0.0

    def per(self, count: int) -> str:
        """Of each of `count`: `62 + 85 µs of CPU, 2.1 kB of WAL, 0.03 transactions`."""
        each = 1e6 / max(1, count)
        return (
            f"{self.client * each:.0f} + {self.server * each:.0f} µs of CPU, "
            f"{self.wal / max(1, count) / 1000:.2f} kB of WAL, "
            f"{self.transactions / max(1, count):.2f} transactions"
        )


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[Cost]:
    """Counts what the block costs; the server's part only for a Postgres on this machine."""
    cost = Cost()
    if not url.startswith("postgres"):
        before, began = time.process_time(), time.perf_counter()
        yield cost
        cost.client = time.process_time() - before
        cost.seconds = time.perf_counter() - began
        return
    connection = await asyncpg.connect(url)
    try:
        root = _postmaster(await connection.fetchval("select pg_backend_pid()"))
        wal, transactions = await _written(connection)
        server, before, began = _cpu_below(root), time.process_time(), time.perf_counter()
        yield cost
        cost.client = time.process_time() - before
        cost.seconds = time.perf_counter() - began
        cost.server = _cpu_below(root) - server
        ended_wal, ended_transactions = await _written(connection)
        cost.wal, cost.transactions = ended_wal - wal, ended_transactions - transactions
    finally:
        await connection.close()


async def _written(connection: "asyncpg.Connection[asyncpg.Record]") -> tuple[int, int]:
    row = await connection.fetchrow(
        "select pg_current_wal_lsn() - '0/0' as wal, sum(xact_commit)::bigint as transactions"
        " from pg_stat_database"
    )
    assert row is not None
    return int(row["wal"]), int(row["transactions"])


def _postmaster(backend: int) -> int:
    return int(_stat(backend)[1])


def _cpu_below(root: int) -> float:
    """Of the server and all its processes, ended ones included (the server has waited for them)."""
    own = _stat(root)
    ticks = sum(int(own[n]) for n in (11, 12, 13, 14))
    for process in _children(root):
        ticks += sum(int(_stat(process)[n]) for n in (11, 12))
    return ticks / _TICK


def _children(root: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int(_stat(int(entry.name))[1]) == root:
                    yield int(entry.name)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked


def _stat(process: int) -> list[str]:
    """The fields after the name, which may hold spaces: state, parent, …"""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
