"""submit → claim → complete through the engine, without a worker."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
from msgspec import Struct

from bench import raw
from bench.cost import counted
from bench.crew import Crew, Line, crew
from bench.scenario import (
    PAYLOAD,
    RAW_CALLS,
    RAW_LIMIT,
    RESULT,
    Figure,
    Figures,
    Goal,
    Load,
    Metric,
    Size,
    least,
    most,
    percentile,
    scenario,
)  # fmt: skip
from bench.windows import TURNS, Windows, take_turns
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.open import open_store

CALLERS = 64


class Closed(Struct):
    """What a closed loop has done. Latencies in seconds."""

    done: int
    seconds: float
    latencies: list[float]


class ClosedLoop:
    """Submitters that each wait until their own execution is completed, and one claimer."""

    def __init__(self, engine: Engine, concurrency: int, lane: str) -> None:
        self._engine = engine
        self._concurrency = concurrency
        self._lane = lane
        self._waiting: dict[Any, asyncio.Future[None]] = {}
        self._latencies: list[float] = []
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()

    async def run(self, seconds: float) -> Closed:
        began = time.perf_counter()
        claiming = asyncio.create_task(self._claim())
        submitters = (self._submit(began + seconds) for _ in range(self._concurrency))
        await asyncio.gather(*submitters)
        elapsed = time.perf_counter() - began
        claiming.cancel()
        await asyncio.wait([claiming])
        return Closed(len(self._latencies), elapsed, self._latencies)

    async def _submit(self, stop_at: float) -> None:
        submission = Submission(kind="noop", payload=PAYLOAD, lane=self._lane)
        while (start := time.perf_counter()) < stop_at:
            outcome = await self._engine.executions.submit(submission)
            await self._future(outcome.id)
            del self._waiting[outcome.id]
            self._latencies.append(time.perf_counter() - start)

    async def _claim(self) -> None:
        worker = WorkerIdentity("bench", self._lane)
        while True:
            while (room := self._concurrency - len(self._running)) <= 0:
                self._room.clear()
                await self._room.wait()
            claims = await self._engine.claims.claim(
                worker, lanes=[self._lane], limit=room, max_wait=0.5
            )
            for claim in claims:
                job = asyncio.create_task(self._finish(claim))
                self._running.add(job)
                job.add_done_callback(self._finished)

    async def _finish(self, claim: Claim) -> None:
        await self._engine.attempts.complete(claim, RESULT)
        future = self._future(claim.id)
        if not future.done():
            future.set_result(None)

    def _finished(self, job: "asyncio.Task[None]") -> None:
        self._running.discard(job)
        self._room.set()

    def _future(self, id: Any) -> "asyncio.Future[None]":
        found = self._waiting.get(id)
        if found is None:
            found = self._waiting[id] = asyncio.get_running_loop().create_future()
        return found


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    engine = await Engine.open(await open_store(url))
    try:
        yield engine
    finally:
        await engine.close()


async def closed_loop(line: Line, number: int, url: str, concurrency: int, seconds: float) -> None:
    """One process of several, each with a lane of its own. A window whenever it is asked; the first
    one warms up."""
    async with opened(url) as engine:
        found = await ClosedLoop(engine, concurrency, f"lane-{number}").run(seconds / 5)
        while await line.ready(found):
            found = await ClosedLoop(engine, concurrency, f"lane-{number}").run(seconds)


class ClosedLoops:
    """Closed loops in processes of their own, and the latencies of all windows."""

    def __init__(self, others: Crew) -> None:
        self._others = others
        self._latencies: list[float] = []

    async def window(self) -> tuple[int, float]:
        self._others.say()
        parts: list[Closed] = await self._others.answers()
        self._latencies += [each for part in parts for each in part.latencies]
        return sum(part.done for part in parts), max(part.seconds for part in parts)

    def percentile(self, part: float) -> float:
        """In milliseconds."""
        return percentile(self._latencies, part)


def _name(processes: int, concurrency: int) -> str:
    return f"lifecycle-{concurrency}" if processes == 1 else f"lifecycle-2x{concurrency}"


def _metrics() -> Iterable[Metric]:
    yield least(RAW_CALLS, "raw limit of 100 callers that wait", "/s", RAW_LIMIT)
    for processes, concurrency in Size().loads:
        name = _name(processes, concurrency)
        callers = "one caller" if concurrency == 1 else f"{concurrency} callers"
        what = f"lifecycle, {callers}" + (" in each of two processes" if processes == 2 else "")
        if name == "lifecycle-100":
            goal = Goal(10_000, 0.6)
            yield least(name, what, "/s", RAW_CALLS, postgres=goal, sqlite=11_000)
        else:
            rate = 14_000 if name == "lifecycle-2x100" else None
            yield least(name, what, "/s", RAW_LIMIT, postgres=rate)
        yield most(f"{name} p50", f"{what}, p50")
        yield most(f"{name} p99", f"{what}, p99", postgres=20 if name == "lifecycle-100" else None)


@scenario("lifecycle", list(_metrics()))
async def lifecycle(load: Load) -> Figures:
    """Submit, claim and complete; every caller waits until its own execution has ended."""
    found: Figures = {}
    limit = await load.raw_limit()
    for processes, concurrency in load.size.loads:
        name, reference = _name(processes, concurrency), limit
        is_compared = name == "lifecycle-100"
        seconds = load.size.seconds / 2 if is_compared else load.size.seconds
        async with crew(processes, closed_loop, load.url, concurrency, seconds) as others:
            loops = ClosedLoops(others)
            ours = Windows(load.url, loops.window)
            if is_compared:
                calls = Windows(load.url, partial(_raw_calls, load, seconds))
                await take_turns(calls, ours)
                found[RAW_CALLS], reference = calls.figure(limit), calls.rate
            else:
                await ours.add()
        found[name] = ours.figure(reference)
        for part, share in (("p50", 0.5), ("p99", 0.99)):
            found[f"{name} {part}"] = Figure(loops.percentile(share))
    return found


async def _raw_calls(load: Load, seconds: float) -> tuple[int, float]:
    return await raw.calls(load.fresh(), seconds, 100, PAYLOAD, RESULT)


@scenario(
    "cost",
    [
        most("cost client", "CPU of the client per execution", "µs"),
        most("cost server", "CPU of the server per execution", "µs"),
        most("cost wal", "WAL per execution", "B", postgres=2_200),
        most("cost disk", "disk per finished execution", "B"),
    ],
)
async def cost(load: Load) -> Figures:
    """What one execution costs at full load, payload 450 bytes and result 90: CPU, WAL, disk."""
    async with opened(load.url):
        pass  # makes the tables
    empty = await _disk(load.url)
    async with opened(load.url) as engine:
        warm_up = await ClosedLoop(engine, 100, "cost").run(load.size.seconds / 5)
        async with counted(load.url) as spent:
            done = (await ClosedLoop(engine, 100, "cost").run(2 * load.size.seconds)).done
    disk = (await _disk(load.url) - empty) / max(1, warm_up.done + done)
    each = 1e6 / max(1, done)
    found = {"cost client": Figure(spent.client * each), "cost disk": Figure(disk)}
    if load.store == "postgres":
        found["cost server"] = Figure(spent.server * each)
        found["cost wal"] = Figure(spent.wal / max(1, done))
    return found


async def _disk(url: str) -> int:
    if url.startswith("sqlite"):
        return sum(each.stat().st_size for each in _files(url))
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("select pg_database_size(current_database())"))
    finally:
        await connection.close()


def _files(url: str) -> list[Path]:
    path = Path(url.removeprefix("sqlite:///"))
    return list(path.parent.glob(f"{path.name}*"))


@scenario(
    "claims",
    [least("claims-64", "claims of one each by 64 callers", "/s", "batched claims", ratio=0.8)],
)
async def claims(load: Load) -> Figures:
    """Claim one and complete it, by many callers of one process, against two callers with batches;
    both have as many executions under way."""
    runs, each = load.size.runs, load.size.runs // TURNS
    async with opened(load.url) as engine:
        for lane in ("single", "batched"):
            await fill(engine, Submission(kind="noop", payload=PAYLOAD, lane=lane), runs)
        single = partial(take, engine, "single", each, callers=CALLERS, batch=1)
        batched = partial(take, engine, "batched", each, callers=2, batch=CALLERS // 2)
        ours, reference = Windows(load.url, single), Windows(load.url, batched)
        await take_turns(reference, ours)
    return {"claims-64": ours.figure(reference.rate)}


async def fill(engine: Engine, submission: Submission, count: int) -> None:
    for start in range(0, count, 5_000):
        await engine.executions.submit_many([submission] * min(5_000, count - start))


async def take(
    engine: Engine, lane: str, count: int, *, callers: int, batch: int
) -> tuple[int, float]:
    """Claims and completes just `count` executions, by workers with names of their own. Also the
    seconds it took."""
    left, began = count, time.perf_counter()

    async def work(number: int) -> None:
        nonlocal left
        worker = WorkerIdentity("bench", f"{lane}-{number}")
        while left > 0:
            wanted = min(batch, left)
            left -= wanted
            taken = await engine.claims.claim(worker, lanes=[lane], limit=wanted, max_wait=0.02)
            left += wanted - len(taken)
            if batch == 1:  # as a caller with one execution would write it
                for each in taken:
                    await engine.attempts.complete(each, RESULT)
            else:
                await asyncio.gather(*(engine.attempts.complete(each, RESULT) for each in taken))

    await asyncio.gather(*(work(number) for number in range(callers)))
    return count, time.perf_counter() - began
