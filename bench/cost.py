"""What work costs, counted and not timed: CPU of this process with its children and of the
database server, and the bytes of WAL. On a noisy machine these repeat to a few percent where rates
do not."""

import os
import resource
import time
from collections.abc import AsyncIterator
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

    def add(self, other: "Cost") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def parts_us(self, count: int, **more: float) -> dict[str, float]:
        """Microseconds of each of `count`, by who has used them. `more` are parts of the client's,
        in seconds, that are named on their own."""
        whole = {**more, "client": self.client - sum(more.values()), "database": self.server}
        return {name: seconds * 1e6 / max(1, count) for name, seconds in whole.items()}

    def cpu_us(self, count: int) -> float:
        return (self.client + self.server) * 1e6 / max(1, count)

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
    """Counts what the block costs; the server's CPU only for a Postgres on this machine."""
    cost = Cost()
    if not url.startswith("postgres"):
        client, began = _client_cpu(None), time.perf_counter()
        yield cost
        cost.client, cost.seconds = _client_cpu(None) - client, time.perf_counter() - began
        return
    connection = await asyncpg.connect(url)
    try:
        root = await _postmaster(connection)
        wal, transactions = await _written(connection)
        server, client, began = _server_cpu(root), _client_cpu(root), time.perf_counter()
        yield cost
        cost.client, cost.seconds = _client_cpu(root) - client, time.perf_counter() - began
        cost.server = _server_cpu(root) - server
        ended_wal, ended_transactions = await _written(connection)
        cost.wal, cost.transactions = ended_wal - wal, ended_transactions - transactions
    finally:
        await connection.close()


async def _written(connection: "asyncpg.Connection[asyncpg.Record]") -> tuple[int, int]:
    row = await connection.fetchrow(
        "select pg_current_wal_insert_lsn() - '0/0' as wal, sum(xact_commit)::bigint as done"
        " from pg_stat_database"
    )
    assert row is not None
    return int(row["wal"]), int(row["done"])


async def _postmaster(connection: "asyncpg.Connection[asyncpg.Record]") -> int | None:
    """The process of the server, if it runs on this machine."""
    remote = "select inet_server_addr() is distinct from inet_client_addr()"
    if await connection.fetchval(remote):
        return None
    found = _stats().get(await connection.fetchval("select pg_backend_pid()"))
    return int(found[1]) if found else None


def _server_cpu(root: int | None) -> float:
    """Of the server and all its processes, ended ones included (the server has waited for them)."""
    stats = _stats()
    if root is None or root not in stats:
        return 0.0
    below = [each for each in stats.values() if int(each[1]) == root]
    return _seconds(stats[root], 4) + sum(_seconds(each, 2) for each in below)


def _client_cpu(server: int | None) -> float:
    """Of this process, the children it has waited for, and all below it that live, but for the
    server."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    stats, own = _stats(), os.getpid()
    alive = sum(_seconds(stats[each], 4) for each in _below(stats, own, but=server))
    return time.process_time() + ended.ru_utime + ended.ru_stime + alive


def process_cpu(process: int) -> float:
    """Of a process and all below it, ended ones included that were waited for."""
    stats = _stats()
    return sum(_seconds(stats[each], 4) for each in [process, *_below(stats, process)])


def _below(stats: dict[int, list[str]], root: int, but: int | None = None) -> list[int]:
    """The processes that `root` has started, and those that these have."""
    found, parents = list[int](), {root}
    while parents:
        children = {each for each, stat in stats.items() if int(stat[1]) in parents} - {but}
        found += children
        parents = children
    return found


def _seconds(stat: list[str], fields: int) -> float:
    """User and system time; with four fields also that of ended children."""
    return sum(int(each) for each in stat[11 : 11 + fields]) / _TICK


def _stats() -> dict[int, list[str]]:
    """The fields of every process after its name, which may hold spaces: state, parent, …"""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
    return found


def memory() -> tuple[float, float]:
    """Megabytes that this process holds, and has held at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    now, most = (int(found[name].split()[0]) / 1000 for name in ("VmRSS", "VmHWM"))
    return now, most
