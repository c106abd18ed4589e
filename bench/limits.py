"""What limits cost: the same work with and without them, in one run.

    python -m bench.limits [--store sqlite|postgres] [--runs 5000] [--rounds 3] [--waiting 100000]

One process submits, claims and completes. "Pipeline" counts from the first submission until
everything is completed; "drain" only claims and completes what was submitted before. Every figure
stands beside the unlimited one of the same round, because the machine is noisy. Nothing is kept
waiting by a limit that is full for long: what is measured is the way through it.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

from msgspec import Struct

from bench import limit, stores
from flowfabric.core.execution import Worker
from flowfabric.core.policy import parse_policy
from flowfabric.core.quota import Quota, Rate
from flowfabric.core.submission import Submission
from flowfabric.core.time import Millis
from flowfabric.engine.engine import Engine
from flowfabric.store.open import open_store

BATCH = 100
AT_ONCE = 4
KEYS = 1000

WORKER = Worker("bench", "bench")

Make = Callable[[int], Submission]


class Case(Struct):
    """A way through a limit: what is submitted, and the quota before it."""

    name: str
    make: Make
    quota: Quota | None = None


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
        Quota(name="capped", concurrency=4 * BATCH),
    ),
    Case(
        f"{KEYS:,} concurrency keys",
        lambda n: submission("keyed", "keyed", str(n % KEYS)),
        Quota(name="keyed", concurrency_per_key=2),
    ),
]


async def take(engine: Engine, lane: str, count: int) -> None:
    """Claims and completes so many, a few batches at a time."""
    left = [count]

    async def work() -> None:
        while left[0] > 0:
            claims = await engine.claims.claim(WORKER, lanes=[lane], limit=BATCH, max_wait=1.0)
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


async def drain(engine: Engine, case: Case, waiting: int, runs: int) -> float:
    """Executions per second taken out of many that wait."""
    lane = case.make(0).lane
    for start in range(0, waiting, 5000):
        await engine.executions.submit_many(
            case.make(n) for n in range(start, min(waiting, start + 5000))
        )
    began = time.perf_counter()
    await take(engine, lane, runs)
    return runs / (time.perf_counter() - began)


async def measure(url: str, runs: int, rounds: int, waiting: int) -> None:
    engine = await Engine.open(await open_store(url))
    for case in CASES:
        if case.quota is not None:
            await engine.quotas.define(case.quota)
    print("| pipeline | executions/s | of the unlimited |")
    print("|---|---|---|")
    figures: dict[str, list[float]] = {case.name: [] for case in CASES}
    for _ in range(rounds):
        for case in CASES:
            figures[case.name].append(await pipeline(engine, case, runs))
    plain = figures["unlimited"]
    for name, found in figures.items():
        ratio = statistics.median(a / b for a, b in zip(found, plain, strict=True))
        print(f"| {name} | {statistics.median(found):,.0f} | {ratio:.0%} |")
    await _deep(engine, runs, waiting)
    await engine.close()


async def _deep(engine: Engine, runs: int, waiting: int) -> None:
    plain = Case("plain", lambda n: submission("deep-plain"))
    deep = Case("deep", lambda n: submission("deep", "deep"))
    await engine.quotas.define(Quota(name="deep", concurrency=4 * BATCH))
    print(f"\n| drain of {runs:,} out of {waiting:,} that wait | executions/s | of the unlimited |")
    print("|---|---|---|")
    free = await drain(engine, plain, waiting, runs)
    print(f"| unlimited | {free:,.0f} | 100% |")
    behind = await drain(engine, deep, waiting, runs)
    print(f"| behind one concurrency | {behind:,.0f} | {behind / free:.0%} |")
    beside = await drain(engine, Case("beside", lambda n: submission("beside")), runs, runs)
    print(f"| unlimited, beside those | {beside:,.0f} | {beside / free:.0%} |")


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
            asyncio.run(measure(url, options.runs, options.rounds, options.waiting))


if __name__ == "__main__":
    main()
