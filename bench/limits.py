"""What limits cost: the same work with and without them, in one run.

    python -m bench.limits [--store sqlite|postgres] [--runs 5000] [--rounds 3] [--waiting 100000]

"Claims" takes and completes what was submitted before: how fast a worker gets limited work. Behind
a concurrency, executions are admitted while the worker claims. "Pipeline" counts from the first
submission to the last completion, all in one process. Every figure stands beside the unlimited one
of the same round, because the machine is noisy.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from bench import limit, stores
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.policy import parse_policy
from flowfabric.core.execution.submission import Submission
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.engine.engine import Engine
from flowfabric.store.open import open_store

BATCH = 100
AT_ONCE = 4
KEYS = 1000

WORKER = WorkerIdentity("bench", "bench")

Make = Callable[[int], Submission]


class Case(Struct):
    """One case: what is submitted, and its quota."""

    name: str
    make: Make
    quota: Quota | None = None


@lru_cache(maxsize=10_000)
def submission(lane: str, quota: str = "", key: str = "") -> Submission:
    uses = [{"quota": quota, "key": key}] if quota else []
    policy = parse_policy({"quotas": uses}) if uses else None
    return Submission(kind="noop", payload=limit.PAYLOAD, lane=lane, policy=policy)


CASES = [
    Case("unlimited", lambda n: submission("plain")),
    Case(
        "a rate for all",
        lambda n: submission("rated", "rated"),
        Quota(name="rated", rate=Rate(2_000_000_000, Millis(1000))),
    ),
    Case(
        "one concurrency for all",
        lambda n: submission("capped", "capped"),
        Quota(name="capped", concurrency=10 * BATCH),
    ),
    Case(
        f"{KEYS:,} concurrency keys",
        lambda n: submission("keyed", "keyed", str(n % KEYS)),
        Quota(name="keyed", concurrency_per_key=2),
    ),
]


DEEP = Case(
    "of them, behind one concurrency",
    lambda n: submission("deep", "deep"),
    Quota(name="deep", concurrency=10 * BATCH),
)


async def take(engine: Engine, lane: str, count: int) -> None:
    """Claims and completes `count` executions, a few batches at a time."""
    left = [count]

    async def work() -> None:
        while left[0] > 0:
            claims = await engine.claims.claim(WORKER, lanes=[lane], limit=BATCH, max_wait=0.02)
            left[0] -= len(claims)
            await asyncio.gather(*(engine.attempts.complete(each, limit.RESULT) for each in claims))

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def pipeline(engine: Engine, case: Case, runs: int) -> float:
    """Executions per second from the first submission to the last completion."""
    lane = case.make(0).lane
    began = time.perf_counter()
    taking = asyncio.create_task(take(engine, lane, runs))
    for start in range(0, runs, 500):
        await engine.executions.submit_many(
            case.make(n) for n in range(start, min(runs, start + 500))
        )
    await taking
    return runs / (time.perf_counter() - began)


async def fill(engine: Engine, case: Case, waiting: int) -> None:
    for start in range(0, waiting, 5000):
        await engine.executions.submit_many(
            case.make(n) for n in range(start, min(waiting, start + 5000))
        )
    await engine._releases.drain()


async def claims(engine: Engine, case: Case, runs: int) -> float:
    """Executions claimed per second from those that wait."""
    began = time.perf_counter()
    await take(engine, case.make(0).lane, runs)
    return runs / (time.perf_counter() - began)


def report(title: str, figures: dict[str, list[float]]) -> None:
    plain = next(iter(figures.values()))
    print(f"| {title} | executions/s | of the unlimited |\n|---|---|---|")
    for name, found in figures.items():
        ratio = statistics.median(a / b for a, b in zip(found, plain, strict=True))
        print(f"| {name} | {statistics.median(found):,.0f} | {ratio:.0%} |")
    print()


async def opened(url: str) -> Engine:
    engine = await Engine.open(await open_store(url))
    for case in [*CASES, DEEP]:
        if case.quota is not None:
            await engine.quotas.define(case.quota)
    return engine


async def measure_claims(url: str, runs: int, rounds: int, waiting: int) -> None:
    engine = await opened(url)
    figures: dict[str, list[float]] = {case.name: [] for case in CASES}
    for case in CASES:
        await fill(engine, case, (rounds + 1) * runs)
    for _ in range(rounds):
        for case in CASES:
            figures[case.name].append(await claims(engine, case, runs))
    report("claims", figures)
    await _behind(engine, runs, rounds, waiting)
    await engine.close()


async def measure_pipeline(url: str, runs: int, rounds: int) -> None:
    engine = await opened(url)
    figures: dict[str, list[float]] = {case.name: [] for case in CASES}
    for _ in range(rounds):
        for case in CASES:
            figures[case.name].append(await pipeline(engine, case, runs))
    report("pipeline", figures)
    await engine.close()


async def _behind(engine: Engine, runs: int, rounds: int, waiting: int) -> None:
    """Claims while very many wait: from behind the limit, and beside them."""
    plain = CASES[0]
    beside = Case("unlimited, beside them", lambda n: submission("beside"))
    figures: dict[str, list[float]] = {c.name: [] for c in (plain, DEEP, beside)}
    await fill(engine, DEEP, waiting)
    for case in (plain, beside):
        await fill(engine, case, (rounds + 1) * runs)
    for _ in range(rounds):
        for case in (plain, DEEP, beside):
            figures[case.name].append(await claims(engine, case, runs))
    report(f"claims while {waiting:,} wait", figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"])
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waiting", type=int, default=100_000)
    options = parser.parse_args()
    stores.use_uvloop()
    for store in (options.store,) if options.store else ("sqlite", "postgres"):
        print(f"\n{store}")
        with stores.fresh(store) as url:
            asyncio.run(measure_claims(url, options.runs, options.rounds, options.waiting))
        with stores.fresh(store) as url:
            asyncio.run(measure_pipeline(url, options.runs, options.rounds))


if __name__ == "__main__":
    main()
