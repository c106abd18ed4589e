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
from flowfabric.core.execution import Worker
from flowfabric.core.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.store.open import open_store

PAYLOAD = b'{"article":"' + b"x" * 436 + b'"}'
RESULT = b'{"ok":true,"rows":"' + b"y" * 70 + b'"}'


class Figures(Struct):
    done: int
    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return self.done / self.seconds

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


async def closed_loop(url: str, concurrency: int, seconds: float, lane: str) -> Figures:
    """Each submitter waits until its own execution is completed by the worker of this process."""
    engine = await Engine.open(await open_store(url))
    worker = Worker("bench", lane)
    waiting: dict[Any, asyncio.Future[None]] = {}
    latencies: list[float] = []
    stop_at = time.perf_counter() + seconds
    began = time.perf_counter()

    async def submitter() -> None:
        loop = asyncio.get_running_loop()
        while time.perf_counter() < stop_at:
            start = time.perf_counter()
            submission = Submission(kind="noop", payload=PAYLOAD, lane=lane)
            outcome = await engine.executions.submit(submission)
            future = waiting.setdefault(outcome.id, loop.create_future())
            await future
            del waiting[outcome.id]
            latencies.append(time.perf_counter() - start)

    async def finish(claim: Any) -> None:
        await engine.attempts.complete(claim, RESULT)
        future = waiting.setdefault(claim.id, asyncio.get_running_loop().create_future())
        if not future.done():
            future.set_result(None)

    async def claimer() -> None:
        running: set[asyncio.Task[None]] = set()
        while True:
            room = concurrency - len(running)
            if room <= 0:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                continue
            claims = await engine.claims.claim(worker, lanes=[lane], limit=room, max_wait=0.5)
            for claim in claims:
                job = asyncio.create_task(finish(claim))
                running.add(job)
                job.add_done_callback(running.discard)

    claiming = asyncio.create_task(claimer())
    await asyncio.gather(*(submitter() for _ in range(concurrency)))
    elapsed = time.perf_counter() - began
    claiming.cancel()
    await asyncio.wait([claiming])
    await engine.close()
    return Figures(len(latencies), elapsed, latencies)


def _process(url: str, concurrency: int, seconds: float, lane: str, out: Any) -> None:
    stores.use_uvloop()
    out.put(asyncio.run(closed_loop(url, concurrency, seconds, lane)))


def measure(url: str, processes: int, concurrency: int, seconds: float) -> Figures:
    """The same load from one or several processes, each with a lane of its own."""
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
