"""The limit: plain SQL with the fewest row writes that keep the promises, and no code of ours.

A durable row per execution with its payload, a row that says it is ready, a lease with an epoch in
place of it, the end with its result, two events of history. There are two loops:

- `limit`: batches of a hundred; on Postgres three of them at once, so that client and server work
  at the same time. No caller waits for a single execution. Ratios to a "raw limit" refer to this.
- `calls`: callers that each submit one execution and wait for its end, as those of the lifecycle
  do, through the smallest group commit there is: what is left of the limit once each execution has
  calls of its own.

`picking_up` is the least that a pickup can take on Postgres: a commit that submits, a notification,
and a commit that claims, in two processes.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import asyncpg

from bench.crew import Line, crew

BATCH = 100
CALLERS = 3
LEASE = 30_000
REST = 0.02
"""Seconds that both processes of a pickup have been idle."""

_POSTGRES = """
create table execution (id uuid primary key, created_at bigint, lane int, priority smallint,
    payload bytea);
create table ready (created_at bigint, id uuid, lane int, priority smallint, epoch int)
    with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
create index on ready (lane, priority desc, created_at, id);
create table lease (id uuid primary key, expires_at bigint, epoch int, worker int);
create table done (id uuid primary key, ended_at bigint, epoch int, outcome smallint, result bytea);
create table event (seq bigserial primary key, id uuid, at bigint, epoch int, kind smallint);
"""
_SUBMIT = """
with made as (
    insert into execution select id, $3::bigint, 1, 0, payload
    from unnest($1::uuid[], $2::bytea[]) as given (id, payload)
    on conflict (id) do nothing returning id)
insert into ready select $3::bigint, id, 1, 0, 0 from made
"""
_CLAIM = """
with taken as (
    delete from ready where ctid = any (array(
        select ctid from ready where lane = 1
        order by priority desc, created_at, id limit $1 for update skip locked))
    returning id, epoch + 1 as epoch),
leased as (insert into lease select id, $2::bigint + 30000, epoch, 1 from taken),
noted as (insert into event (id, at, epoch, kind) select id, $2::bigint, epoch, 1 from taken)
select taken.id, taken.epoch, execution.payload from taken join execution using (id)
"""
_END = """
with freed as (
    delete from lease using unnest($1::uuid[], $2::int[], $3::bytea[]) as given (id, epoch, result)
    where lease.id = given.id and lease.epoch = given.epoch
    returning given.id, given.epoch, given.result),
noted as (insert into event (id, at, epoch, kind) select id, $4::bigint, epoch, 2 from freed)
insert into done select id, $4::bigint, epoch, 1, result from freed returning id
"""
_PLANS = {
    "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_hashjoin": "off",
    "enable_mergejoin": "off", "enable_bitmapscan": "off",
}  # fmt: skip

_SQLITE = """
pragma journal_mode = wal; pragma synchronous = full;
create table execution (id blob primary key, created_at int, lane int, priority int, payload blob)
    without rowid;
create table ready (lane int, priority int, created_at int, id blob, epoch int,
    primary key (lane, priority, created_at, id)) without rowid;
create table lease (id blob primary key, expires_at int, epoch int, worker int) without rowid;
create table done (id blob primary key, ended_at int, epoch int, outcome int, result blob)
    without rowid;
create table event (seq integer primary key, id blob, at int, epoch int, kind int);
"""
_HEADS = """
select ready.id, ready.epoch + 1, ready.created_at, execution.payload
from ready join execution on execution.id = ready.id
where ready.lane = 1 order by ready.priority, ready.created_at, ready.id limit ?
"""
_TAKE = "delete from ready where lane = 1 and priority = 0 and created_at = ? and id = ?"
_EVENT = "insert into event (id, at, epoch, kind) values (?, ?, ?, ?)"

Id = Any
Taken = list[tuple[Id, int]]
"""Ids with their epochs."""


class Database(Protocol):
    """The three statements, each for a batch."""

    async def submit(self, ids: list[Id], payload: bytes) -> object: ...
    async def claim(self, most: int) -> Taken: ...
    async def end(self, taken: Taken, result: bytes) -> object: ...
    def id(self) -> Id: ...


async def limit(url: str, seconds: float, payload: bytes, result: bytes) -> tuple[int, float]:
    """Executions that were submitted, claimed and completed in an empty database, and the seconds
    it took."""
    async with _opened(url) as databases:
        began = time.perf_counter()
        work = (_batches(each, began + seconds, payload, result) for each in databases)
        return sum(await asyncio.gather(*work)), time.perf_counter() - began


async def _batches(database: Database, stop_at: float, payload: bytes, result: bytes) -> int:
    done = 0
    while done == 0 or time.perf_counter() < stop_at:
        await database.submit([database.id() for _ in range(BATCH)], payload)
        taken = await database.claim(BATCH)
        await database.end(taken, result)
        done += len(taken)
    return done


async def calls(
    url: str, seconds: float, callers: int, payload: bytes, result: bytes
) -> tuple[int, float]:
    """The same as `limit`, by callers that each wait for the end of their own execution."""
    async with _opened(url) as databases:
        loop = _Calls(databases, callers, payload, result)
        began = time.perf_counter()
        return await loop.run(began + seconds), time.perf_counter() - began


class _Calls:
    def __init__(
        self, databases: list[Database], callers: int, payload: bytes, result: bytes
    ) -> None:
        self._callers = callers
        self._claiming, self._new_id = databases[-1], databases[0].id
        self._submit = _GroupCommit(lambda ids: databases[0].submit(ids, payload))
        self._end = _GroupCommit(lambda taken: databases[len(databases) // 2].end(taken, result))
        self._ready = asyncio.Event()
        self._ended: dict[Id, asyncio.Future[None]] = {}

    async def run(self, stop_at: float) -> int:
        claiming = asyncio.create_task(self._claim())
        done = sum(await asyncio.gather(*(self._call(stop_at) for _ in range(self._callers))))
        claiming.cancel()
        await asyncio.wait([claiming])
        return done

    async def _call(self, stop_at: float) -> int:
        done = 0
        while done == 0 or time.perf_counter() < stop_at:
            id = self._new_id()
            ended = self._ended[id] = asyncio.get_running_loop().create_future()
            await self._submit(id)
            self._ready.set()
            await ended
            done += 1
        return done

    async def _claim(self) -> None:
        finishing: set[asyncio.Task[None]] = set()
        while True:
            await self._ready.wait()
            self._ready.clear()
            while taken := await self._claiming.claim(self._callers):
                for each in taken:
                    job = asyncio.create_task(self._finish(each))
                    finishing.add(job)
                    job.add_done_callback(finishing.discard)

    async def _finish(self, taken: tuple[Id, int]) -> None:
        await self._end(taken)
        self._ended.pop(taken[0]).set_result(None)


@asynccontextmanager
async def picking_up(url: str, payload: bytes) -> AsyncIterator[Callable[[], Awaitable[float]]]:
    """A function that takes one sample: the seconds from before a submit until another process
    holds the execution. Both were idle before."""
    async with AsyncExitStack() as stack:
        submitting, hinting = [await _connected(stack, url) for _ in range(2)]
        await submitting.execute(_POSTGRES)
        submit = await submitting.prepare(_SUBMIT)
        others = await stack.enter_async_context(crew(1, _claimer, url))

        async def sample() -> float:
            others.say()
            await asyncio.sleep(REST)
            began, now = time.time(), _now()
            await submit.fetch([_uuid7(now)], [payload], now)
            await hinting.execute("notify ready")
            (held_at,) = await others.answers()
            return float(held_at) - began

        yield sample


async def _claimer(line: Line, number: int, url: str) -> None:
    """Claims when it is notified, and answers with the moment at which it holds the execution."""
    async with AsyncExitStack() as stack:
        claiming, listening = [await _connected(stack, url) for _ in range(2)]
        claim = await claiming.prepare(_CLAIM)
        notified, held_at = asyncio.Event(), None
        await listening.add_listener("ready", lambda *_: notified.set())
        while await line.ready(held_at):
            await notified.wait()
            notified.clear()
            await claim.fetch(1, _now())
            held_at = time.time()


class _GroupCommit:
    """Writes what has come while the last batch was written."""

    def __init__(self, write: Callable[[list[Any]], Awaitable[object]]) -> None:
        self._write = write
        self._waiting: list[tuple[Any, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    def __call__(self, item: Any) -> "asyncio.Future[None]":
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._drain())
        return written

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await self._write([item for item, _ in batch])
            for _, written in batch:
                written.set_result(None)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[list[Database]]:
    """An empty database: on Postgres so many connections, on SQLite one."""
    async with AsyncExitStack() as stack:
        if url.startswith("sqlite"):
            database = _Sqlite(Path(url.removeprefix("sqlite:///")))
            stack.callback(database.close)
            yield [database]
            return
        callers = [await _connected(stack, url) for _ in range(CALLERS)]
        await callers[0].execute(_POSTGRES)
        yield [
            _Postgres([await caller.prepare(text) for text in (_SUBMIT, _CLAIM, _END)])
            for caller in callers
        ]


async def _connected(stack: AsyncExitStack, url: str) -> Any:
    connection = await asyncpg.connect(url, server_settings=_PLANS)
    stack.push_async_callback(connection.close)
    return connection


class _Postgres:
    def __init__(self, prepared: list[Any]) -> None:
        self._submit, self._claim, self._end = prepared

    async def submit(self, ids: list[Id], payload: bytes) -> object:
        return await self._submit.fetch(ids, [payload] * len(ids), _now())

    async def claim(self, most: int) -> Taken:
        return [(each[0], each[1]) for each in await self._claim.fetch(most, _now())]

    async def end(self, taken: Taken, result: bytes) -> object:
        ids, epochs = [each[0] for each in taken], [each[1] for each in taken]
        return await self._end.fetch(ids, epochs, [result] * len(taken), _now())

    def id(self) -> UUID:
        return _uuid7(_now())


class _Sqlite:
    """One connection in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.executescript(_SQLITE)
        self._thread = ThreadPoolExecutor(1)

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()

    async def submit(self, ids: list[Id], payload: bytes) -> object:
        return await self._commit(self._insert, ids, payload)

    async def claim(self, most: int) -> Taken:
        taken: Taken = await self._commit(self._take, most)
        return taken

    async def end(self, taken: Taken, result: bytes) -> object:
        return await self._commit(self._finish, taken, result)

    def id(self) -> bytes:
        return _uuid7(_now()).bytes

    async def _commit(self, write: Callable[..., Any], *args: Any) -> Any:
        def run() -> Any:
            with self._connection:
                self._connection.execute("begin immediate")
                return write(_now(), *args)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _insert(self, now: int, ids: list[Id], payload: bytes) -> None:
        run = self._connection.executemany
        run("insert into execution values (?, ?, 1, 0, ?)", [(id, now, payload) for id in ids])
        run("insert into ready values (1, 0, ?, ?, 0)", [(now, id) for id in ids])

    def _take(self, now: int, most: int) -> Taken:
        run = self._connection.executemany
        heads = self._connection.execute(_HEADS, (most,)).fetchall()
        taken = [(id, epoch) for id, epoch, _, _ in heads]
        run(_TAKE, [(created_at, id) for id, _, created_at, _ in heads])
        leases = [(id, now + LEASE, epoch) for id, epoch in taken]
        run("insert into lease values (?, ?, ?, 1)", leases)
        run(_EVENT, [(id, now, epoch, 1) for id, epoch in taken])
        return taken

    def _finish(self, now: int, taken: Taken, result: bytes) -> None:
        run = self._connection.executemany
        run("delete from lease where id = ? and epoch = ?", taken)
        run("insert into done values (?, ?, ?, 1, ?)", [(i, now, e, result) for i, e in taken])
        run(_EVENT, [(id, now, epoch, 2) for id, epoch in taken])


def _now() -> int:
    return time.time_ns() // 1_000_000


def _uuid7(now: int) -> UUID:
    noise = int.from_bytes(os.urandom(10), "big")
    return UUID(int=now << 80 | 7 << 76 | (noise & (2**12 - 1)) << 64 | 2 << 62 | noise >> 18)
