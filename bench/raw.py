"""The limit: plain SQL with the fewest row writes that keep the promises, and no code of ours.

A durable row per execution with its payload, a row that says it is ready, a lease with an epoch in
place of it, the end with its result, two events of history. Batches of a hundred; on Postgres three
callers, so that client and server work at the same time. All ratios to a "raw limit" refer to this.
"""

import asyncio
import os
import sqlite3
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

BATCH = 100
CALLERS = 3
LEASE = 30_000

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
_EVENT = "insert into event (id, at, epoch, kind) values (?, ?, ?, ?)"


async def limit(url: str, seconds: float, payload: bytes, result: bytes) -> tuple[int, float]:
    """Executions that were submitted, claimed and completed in an empty database, and the seconds
    it took."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        return await asyncio.to_thread(_sqlite, path, seconds, payload, result)
    callers = [await asyncpg.connect(url, server_settings=_PLANS) for _ in range(CALLERS)]
    try:
        await callers[0].execute(_POSTGRES)
        prepared = [
            [await caller.prepare(text) for text in (_SUBMIT, _CLAIM, _END)] for caller in callers
        ]
        began = time.perf_counter()
        work = (_postgres(each, began + seconds, payload, result) for each in prepared)
        return sum(await asyncio.gather(*work)), time.perf_counter() - began
    finally:
        for caller in callers:
            await caller.close()


async def _postgres(prepared: list[Any], stop_at: float, payload: bytes, result: bytes) -> int:
    submit, claim, end = prepared
    done = 0
    while done == 0 or time.perf_counter() < stop_at:
        now = _now()
        await submit.fetch([_uuid7(now) for _ in range(BATCH)], [payload] * BATCH, now)
        taken = await claim.fetch(BATCH, now)
        ids, epochs = [each[0] for each in taken], [each[1] for each in taken]
        done += len(await end.fetch(ids, epochs, [result] * len(taken), _now()))
    return done


def _sqlite(path: Path, seconds: float, payload: bytes, result: bytes) -> tuple[int, float]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(_SQLITE)
    run = connection.executemany
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        now = _now()
        ids = [_uuid7(now).bytes for _ in range(BATCH)]
        connection.execute("begin immediate")
        run("insert into execution values (?, ?, 1, 0, ?)", [(id, now, payload) for id in ids])
        run("insert into ready values (1, 0, ?, ?, 0)", [(now, id) for id in ids])
        connection.execute("commit")
        taken = _claim(connection, now)
        connection.execute("begin immediate")
        run("delete from lease where id = ? and epoch = ?", taken)
        run("insert into done values (?, ?, ?, 1, ?)", [(i, now, e, result) for i, e in taken])
        run(_EVENT, [(id, now, epoch, 2) for id, epoch in taken])
        connection.execute("commit")
        done += len(taken)
    elapsed = time.perf_counter() - began
    connection.close()
    return done, elapsed


def _claim(connection: sqlite3.Connection, now: int) -> list[tuple[bytes, int]]:
    run = connection.executemany
    connection.execute("begin immediate")
    heads = connection.execute(_HEADS, (BATCH,)).fetchall()
    taken = [(id, epoch) for id, epoch, _, _ in heads]
    run(
        "delete from ready where lane = 1 and priority = 0 and created_at = ? and id = ?",
        [(created_at, id) for id, _, created_at, _ in heads],
    )
    run("insert into lease values (?, ?, ?, 1)", [(id, now + LEASE, epoch) for id, epoch in taken])
    run(_EVENT, [(id, now, epoch, 1) for id, epoch in taken])
    connection.execute("commit")
    return taken


def _now() -> int:
    return time.time_ns() // 1_000_000


def _uuid7(now: int) -> UUID:
    noise = int.from_bytes(os.urandom(10), "big")
    return UUID(int=now << 80 | 7 << 76 | (noise & (2**12 - 1)) << 64 | 2 << 62 | noise >> 18)
