"""submit → claim → complete through the engine, against a limit loop that writes the same rows in
batches of a hundred with no engine at all.

    python -m bench.lifecycle [--store sqlite|postgres] [--seconds 4] [--quick]

Durable settings throughout: fsync and synchronous_commit on, synchronous=FULL.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from typing import Any

from msgspec import Struct

from bench import limit, stores
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.open import open_store


class Figures(Struct):
    done: int
    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return self.done / self.seconds

    def percentile(self, share: float) -> float:
        """In milliseconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


class ClosedLoop:
    """Submitters that each wait until their own execution is completed, and one claimer."""

    def __init__(self, engine: Engine, concurrency: int, lane: str) -> None:
        self._engine = engine
        self._concurrency = concurrency
        self._lane = lane
        self._waiting: dict[Any, asyncio.Future[None]] = {}
        self.latencies: list[float] = []

    async def run(self, seconds: float) -> Figures:
        began = time.perf_counter()
        claiming = asyncio.create_task(self._claim())
        submitters = (self._submit(began + seconds) for _ in range(self._concurrency))
        await asyncio.gather(*submitters)
        elapsed = time.perf_counter() - began
        claiming.cancel()
        await asyncio.wait([claiming])
        return Figures(len(self.latencies), elapsed, self.latencies)

    async def _submit(self, stop_at: float) -> None:
        submission = Submission(kind="noop", payload=limit.PAYLOAD, lane=self._lane)
        while (start := time.perf_counter()) < stop_at:
            outcome = await self._engine.executions.submit(submission)
            await self._future(outcome.id)
            del self._waiting[outcome.id]
            self.latencies.append(time.perf_counter() - start)

    async def _claim(self) -> None:
        worker = WorkerIdentity("bench", self._lane)
        running: set[asyncio.Task[None]] = set()
        while True:
            room = self._concurrency - len(running)
            if room <= 0:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                continue
            claims = await self._engine.claims.claim(
                worker, lanes=[self._lane], limit=room, max_wait=0.5
            )
            for claim in claims:
                job = asyncio.create_task(self._finish(claim))
                running.add(job)
                job.add_done_callback(running.discard)

    async def _finish(self, claim: Claim) -> None:
        await self._engine.attempts.complete(claim, limit.RESULT)
        future = self._future(claim.id)
        if not future.done():
            future.set_result(None)

    def _future(self, id: Any) -> "asyncio.Future[None]":
        found = self._waiting.get(id)
        if found is None:
            found = self._waiting[id] = asyncio.get_running_loop().create_future()
        return found


async def closed_loop(url: str, concurrency: int, seconds: float, lane: str) -> Figures:
    engine = await Engine.open(await open_store(url))
    figures = await ClosedLoop(engine, concurrency, lane).run(seconds)
    await engine.close()
    return figures


def _process(url: str, concurrency: int, seconds: float, lane: str, out: Any) -> None:
    stores.use_uvloop()
    out.put(asyncio.run(closed_loop(url, concurrency, seconds, lane)))


def measure(url: str, processes: int, concurrency: int, seconds: float) -> Figures:
    """The same load from one or several processes, each with its own lane."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    workers = [
        context.Process(target=_process, args=(url, concurrency, seconds, f"lane-{n}", out))
        for n in range(processes)
    ]
    for worker in workers:
        worker.start()
    parts = [out.get() for _ in workers]
    for worker in workers:
        worker.join()
    merged = [latency for part in parts for latency in part.latencies]
    return Figures(sum(part.done for part in parts), max(p.seconds for p in parts), merged)


def report(store: str, seconds: float, quick: bool) -> None:
    with stores.fresh(store) as url:
        stores.use_uvloop()
        ceiling = asyncio.run(limit.run(url, seconds))
        print(f"\n{store}: limit loop {ceiling:,.0f} executions/s (batches of 100, no engine)")
        print("| processes | concurrency | executions/s | of the limit | p50 ms | p99 ms |")
        print("|---|---|---|---|---|---|")
        for processes in (1,) if quick else (1, 2):
            for concurrency in (1, 16, 100):
                figures = measure(url, processes, concurrency, seconds)
                print(
                    f"| {processes} | {concurrency} | {figures.rate:,.0f} "
                    f"| {figures.rate / ceiling:.0%} "
                    f"| {statistics.median(figures.latencies) * 1000:.1f} "
                    f"| {figures.percentile(0.99):.1f} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for store in [options.store] if options.store else ["sqlite", "postgres"]:
        report(store, options.seconds, options.quick)


if __name__ == "__main__":
    main()
