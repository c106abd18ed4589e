"""Fills a store with executions that wait, have finished and hold slots of a limit, by plain SQL.

    await fill(url, waiting=1_000_000, finished=1_000_000, keys=5_000)

Half of those that wait can be claimed (lane `filled`), the other half wait in `keys` lines of the
quota `filled`, each of which has one run under way. The rows are those that the engine would have
written, so claims, sweeps and lists work on them.
"""

import asyncio
import os
import sqlite3
from uuid import UUID, uuid4

import asyncpg

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.policy import parse_policy
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.core.limit.quota import Quota, Use, Uses, queue_of
from flowfabric.engine.engine import Engine
from flowfabric.store.open import open_store

LANE = "filled"
QUOTA = "filled"
DAY = 24 * 3600 * 1000


async def fill(url: str, waiting: int, finished: int, keys: int) -> None:
    """Adds that many executions to the store, which is created if it is not there."""
    engine = await Engine.open(await open_store(url))
    try:
        await engine.quotas.define(Quota(name=QUOTA, concurrency_per_key=1))
        free, held = await _patterns(engine)
        uses: list[Uses] = [(Use(quota=QUOTA, key=f"filled-{n}"),) for n in range(keys)]
        await engine.store.put_queues([(queue_of(each), each) for each in uses])
        now = engine.store.clock.now()
    finally:
        await engine.close()
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        await asyncio.to_thread(_fill_sqlite, path, now, free, held, uses, waiting, finished)
    else:
        await _fill_postgres(url, now, free, held, uses, waiting, finished)


async def _patterns(engine: Engine) -> tuple[UUID, UUID]:
    """Two executions whose rows are copied: one that has finished, one that holds a slot."""
    policy = parse_policy({"quotas": [{"quota": QUOTA, "key": str(uuid4())}]})
    made = [
        await engine.executions.submit(Submission(kind="noop", lane=LANE, payload=b"x" * 450)),
        await engine.executions.submit(Submission(kind="noop", lane=LANE, policy=policy)),
    ]
    worker = WorkerIdentity("fill", "fill")
    left = len(made)
    while left:
        for claim in await engine.claims.claim(worker, lanes=[LANE], limit=9, max_wait=1.0):
            left -= 1
            if claim.id == _id(made[0]):
                await engine.attempts.complete(claim, b"x" * 90)
    return _id(made[0]).uuid, _id(made[1]).uuid


def _id(made: object) -> ExecutionId:
    assert isinstance(made, Submitted)
    return made.id


_NEW = """
insert into filled
select
    n, cast(
        lpad(to_hex(at), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
        || substr(md5(n::text), 4, 15) as uuid
    ), at,
    case when n <= $4 then 'done' when n <= $5 then 'ready' when n <= $6 then 'parked'
        else 'lease' end
from (
    select n, $1::bigint - $2::bigint + n * $2::bigint / greatest(1, $3::bigint) as at
    from generate_series(1, $3::bigint) as n
) as numbered
"""

_POSTGRES = [
    """
    insert into flowfabric.execution (id, created_at, route, policy, payload)
    select f.id, f.at, e.route, e.policy, e.payload from filled f
    join flowfabric.execution e
        on e.id = case when f.part in ('done', 'ready') then $1::uuid else $2::uuid end
    """,
    """
    insert into flowfabric.done
        (id, rank, ended_at, started_at, version, epoch, attempt, flags, start, outcome, claim,
         worker, result)
    select f.id, f.at, f.at + 9, f.at + 5, d.version, d.epoch, d.attempt, d.flags, d.start,
        case when f.n % 20 = 0 then 1 else 0 end, gen_random_uuid(), d.worker, d.result
    from filled f join flowfabric.done d on d.id = $1::uuid where f.part = 'done'
    """,
    """
    insert into flowfabric.event (id, at, kind, epoch, attempt, worker, detail)
    select f.id, f.at + 5, v.kind, v.epoch, v.attempt, v.worker, v.detail
    from filled f join flowfabric.event v on v.id = $1::uuid
    where f.part = 'done' order by f.n, v.seq
    """,
    """
    insert into flowfabric.ready
        (id, rank, route, version, epoch, attempt, flags, start, held_until)
    select f.id, f.at, e.route, 1, 0, 0, 0, 0, 0
    from filled f join flowfabric.execution e on e.id = f.id where f.part = 'ready'
    """,
    """
    insert into flowfabric.parked
        (id, rank, version, epoch, attempt, flags, start, gate, life, queue)
    select f.id, f.at, 1, 0, 0, l.flags, 0, 8, l.life,
        ($2::bigint[])[1 + f.n % cardinality($2::bigint[])]
    from filled f join flowfabric.lease l on l.id = $1::uuid where f.part = 'parked'
    """,
    """
    insert into flowfabric.lease
        (id, rank, started_at, expires_at, claim, worker, version, epoch, attempt, flags, start,
         life, queue, route)
    select f.id, f.at, f.at, $3::bigint + 3600000, gen_random_uuid(), l.worker, l.version, l.epoch,
        l.attempt, l.flags, l.start, l.life,
        ($2::bigint[])[1 + f.n % cardinality($2::bigint[])], l.route
    from filled f join flowfabric.lease l on l.id = $1::uuid where f.part = 'lease'
    """,
]


async def _fill_postgres(
    url: str, now: Millis, free: UUID, held: UUID, uses: list[Uses], waiting: int, finished: int
) -> None:
    queues = [queue_of(each) for each in uses]
    ready = finished + (waiting // 2 if queues else waiting)
    bounds = (finished, ready, finished + waiting)
    values = [(free, held), (free,), (free,), (), (held, queues), (held, queues, now)]
    connection = await asyncpg.connect(url)
    try:
        total = finished + waiting + len(queues)
        await connection.execute(
            "create temporary table filled (n bigint, id uuid, at bigint, part text)"
        )
        await connection.execute(_NEW, now, DAY, total, *bounds)
        for statement, given in zip(_POSTGRES, values, strict=True):
            await connection.execute(statement, *given)
        await connection.execute("vacuum analyze")
    finally:
        await connection.close()


_SQLITE_NEW = """
insert into filled
with recursive numbered (n) as (select 1 union all select n + 1 from numbered limit :total)
select
    n, new_id(at), at, case when n <= :done then 'done'
        when n <= :ready then 'ready' when n <= :parked then 'parked' else 'lease' end
from (select n, :now - :day + n * :day / :total as at from numbered)
"""


def _new_id(at: int) -> bytes:
    return at.to_bytes(6, "big") + b"\x70\x00\x80" + os.urandom(7)


def _fill_sqlite(
    path: str, now: Millis, free: UUID, held: UUID, uses: list[Uses], waiting: int, finished: int
) -> None:
    connection = sqlite3.connect(path)
    connection.create_function("new_id", 1, _new_id)
    total = finished + waiting + len(uses)
    ready = finished + (waiting // 2 if uses else waiting)
    bounds = {"total": total, "done": finished, "ready": ready, "parked": finished + waiting}
    common = {"free": free.bytes, "held": held.bytes, "now": now, "day": DAY, **bounds}
    connection.execute("create temporary table filled (n integer primary key, id blob, at, part)")
    connection.execute("create temporary table lines (n integer primary key, queue)")
    rows = [(n, queue_of(each)) for n, each in enumerate(uses)]
    connection.executemany("insert into lines values (?, ?)", rows)
    common["lines"] = max(1, len(rows))
    with connection:
        connection.execute(_SQLITE_NEW, common)
        for statement in _SQLITE:
            connection.execute(statement, common)
    connection.execute("analyze")
    connection.close()


_SQLITE = [
    """
    insert into execution (id, created_at, route, policy, payload)
    select f.id, f.at, e.route, e.policy, e.payload from filled f
    join execution e on e.id = case when f.part in ('done', 'ready') then :free else :held end
    """,
    """
    insert into done
        (id, rank, ended_at, started_at, version, epoch, attempt, flags, start, outcome, claim,
         worker, result)
    select f.id, f.at, f.at + 9, f.at + 5, d.version, d.epoch, d.attempt, d.flags, d.start,
        f.n % 20 = 0, randomblob(16), d.worker, d.result
    from filled f join done d on d.id = :free where f.part = 'done'
    """,
    """
    insert into event (id, at, kind, epoch, attempt, worker, detail)
    select f.id, f.at + 5, v.kind, v.epoch, v.attempt, v.worker, v.detail
    from filled f join event v on v.id = :free where f.part = 'done'
    """,
    """
    insert into ready (id, rank, route, version, epoch, attempt, flags, start, held_until)
    select f.id, f.at, e.route, 1, 0, 0, 0, 0, 0
    from filled f join execution e on e.id = f.id where f.part = 'ready'
    """,
    """
    insert into parked (id, rank, version, epoch, attempt, flags, start, gate, life, queue)
    select f.id, f.at, 1, 0, 0, l.flags, 0, 8, l.life, q.queue
    from filled f join lease l on l.id = :held join lines q on q.n = f.n % :lines
    where f.part = 'parked'
    """,
    """
    insert into lease
        (id, rank, started_at, expires_at, claim, worker, version, epoch, attempt, flags, start,
         life, queue, route)
    select f.id, f.at, f.at, :now + 3600000, randomblob(16), l.worker, l.version, l.epoch,
        l.attempt, l.flags, l.start, l.life, q.queue, l.route
    from filled f join lease l on l.id = :held join lines q on q.n = f.n % :lines
    where f.part = 'lease'
    """,
]
