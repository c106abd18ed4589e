"""What grows: dead rows behind an old transaction, and tables with very many rows."""

import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import asyncpg

from bench.scenario import PAYLOAD, RESULT, Figure, Figures, Load, least, most, scenario
from bench.scenarios.lifecycle import ClosedLoop, fill, opened, take
from bench.scenarios.limits import submission
from bench.windows import TURNS, Windows, take_turns
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.engine import Engine
from flowfabric.store.queries import Query

WORKER = WorkerIdentity("bench", "bench")
FEW = 1_000
FEW_KEYS = 100
"""So that the newest hundred of both databases wait for their keys."""
HOLD_FOR = 24 * 3600
TRIES = 60
SMALL = "time in small tables"


@scenario(
    "old-transaction",
    [
        least("old-transaction", "end of an old transaction", "/s", "rate without it", ratio=0.9),
        most("old-transaction cpu", "CPU per execution then", "µs", "CPU without it", ratio=1.2),
    ],
    once=True,
)
async def old_transaction(load: Load) -> Figures:
    """Another session holds a snapshot open, at full load: no row that is deleted can be removed.
    Rate and CPU at the end, in turn with a database beside it that has no such session."""
    window = max(load.size.seconds, min(5.0, load.size.held / 4))
    calm_url = load.fresh()
    async with opened(load.url) as engine, opened(calm_url) as calm:
        for each in (engine, calm):
            await ClosedLoop(each, 100, "held").run(window / 5)
        async with held_open(load.url):
            await ClosedLoop(engine, 100, "held").run(max(0.0, load.size.held - window))
            with_it, without = (
                Windows(url, partial(_full_load, each, window / TURNS))
                for url, each in ((load.url, engine), (calm_url, calm))
            )
            await take_turns(without, with_it)
    return {
        "old-transaction": Figure(with_it.rate, without.rate),
        "old-transaction cpu": Figure(with_it.cpu_us, without.cpu_us),
    }


async def _full_load(engine: Engine, seconds: float) -> tuple[int, float]:
    closed = await ClosedLoop(engine, 100, "held").run(seconds)
    return closed.done, closed.seconds


@asynccontextmanager
async def held_open(url: str) -> AsyncIterator[None]:
    """A transaction of the application that has read once and does not end."""
    if url.startswith("sqlite"):
        reader = sqlite3.connect(Path(url.removeprefix("sqlite:///")), isolation_level=None)
        reader.execute("begin")
        reader.execute("select count(*) from sqlite_master").fetchone()
        yield
        reader.close()
        return
    connection = await asyncpg.connect(url)
    async with connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("select count(*) from pg_class")
        yield
    await connection.close()


@scenario(
    "tables",
    [
        most("tables claim", "claim of one from big tables", of=SMALL, ratio=1.2),
        most("tables sweep", "round of the sweep over big tables", of=SMALL, ratio=1.2),
        most("tables list", "list of the newest hundred in big tables", of=SMALL, ratio=1.2),
        most("tables lane", "list of a hundred old ones of a lane", of=SMALL),
    ],
    once=True,
)
async def tables(load: Load) -> Figures:
    """With very many waiting and finished executions and 5,000 held keys, against a database of a
    thousand; both in turn."""
    async with opened(load.url) as small, opened(load.fresh()) as big:
        await _fill(small, min(FEW, load.size.rows), held=min(FEW_KEYS, load.size.held_keys))
        await _fill(big, load.size.rows, held=load.size.held_keys)
        found = {}
        for name, part in _PARTS.items():
            for engine in (small, big):
                await part(engine)
            times = [(await part(small), await part(big)) for _ in range(TRIES)]
            few, many = (statistics.median(each) * 1000 for each in zip(*times, strict=True))
            found[f"tables {name}"] = Figure(many, few)
    return found


async def _fill(engine: Engine, rows: int, held: int) -> None:
    """As many finished as waiting executions, and keys that each have a running and a waiting
    execution."""
    await fill(engine, Submission(kind="noop", payload=PAYLOAD, lane="finished"), rows)
    await take(engine, "finished", rows, callers=4, batch=100)
    await fill(engine, Submission(kind="noop", payload=PAYLOAD, lane="waiting"), rows + TRIES + 1)
    await engine.quotas.define(Quota(name="keys", concurrency_per_key=1))
    for _ in range(2):
        await engine.executions.submit_many([submission("keys", f"key-{n}") for n in range(held)])
    taken = 0
    while taken < held:
        found = await engine.claims.claim(
            WORKER, lanes=["keys"], limit=500, ttl=HOLD_FOR, max_wait=1.0
        )
        taken += len(found)
    await _vacuum(engine)


async def _vacuum(engine: Engine) -> None:
    """What autovacuum would have done a minute later."""
    address = getattr(getattr(engine.store, "session", None), "dialer", None)
    if address is not None:
        connection = await asyncpg.connect(address.address.dsn)
        await connection.execute("vacuum analyze")
        await connection.close()


async def _claim(engine: Engine) -> float:
    began = time.perf_counter()
    (claim,) = await engine.claims.claim(WORKER, lanes=["waiting"], limit=1)
    seconds = time.perf_counter() - began
    await engine.attempts.complete(claim, RESULT)
    return seconds


async def _sweep(engine: Engine) -> float:
    """What the holder of the duty does in the background: a glance, and the round that follows."""
    began = time.perf_counter()
    await engine.sweep._turn()
    return time.perf_counter() - began


async def _list(engine: Engine, lane: str | None = None) -> float:
    began = time.perf_counter()
    await engine.views.list(Query(lane=lane, limit=100, newest_first=True))
    return time.perf_counter() - began


_PARTS: dict[str, Callable[[Engine], Awaitable[float]]] = {
    "claim": _claim,
    "sweep": _sweep,
    "list": _list,
    "lane": partial(_list, lane="finished"),
}
