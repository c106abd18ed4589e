"""How fast a claim is with many waiting executions, and with many that this worker cannot run.

    python -m bench.backlog [--store sqlite|postgres] [--rows 1000000]

Prints the median of a claim of one with 1,000 and with many waiting rows, and with 100,000 rows
ahead that this worker cannot run.
"""

import argparse
import asyncio
import secrets
import statistics
import time

from bench import limit, stores
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.policy import Policy, RoutingRequirements
from flowfabric.core.execution.submission import Submission, create
from flowfabric.engine.engine import Engine
from flowfabric.store.contract import MAX_BATCH, Store
from flowfabric.store.open import open_store

GPU = Policy(routing_requirements=RoutingRequirements(required_capabilities=("gpu",)))


async def fill(store: Store, submission: Submission, rows: int) -> None:
    for start in range(0, rows, MAX_BATCH):
        now = store.clock.now()
        batch = [
            create(submission, new_uuid7(now, secrets.randbits(74)), now)
            for _ in range(min(MAX_BATCH, rows - start))
        ]
        await store.submit(batch, now)


async def median_claim(engine: Engine, lane: str, tries: int = 200) -> float:
    """Milliseconds of a claim of one."""
    worker, found = WorkerIdentity("bench", "bench"), []
    for _ in range(tries):
        start = time.perf_counter()
        claims = await engine.claims.claim(worker, lanes=[lane], limit=1)
        found.append(time.perf_counter() - start)
        await engine.attempts.complete(claims[0])
    return statistics.median(found) * 1000


async def run(url: str, rows: int) -> None:
    store = await open_store(url)
    engine = await Engine.open(store)
    plain = Submission(kind="noop", payload=limit.PAYLOAD, lane="few")
    await fill(store, plain, 1000)
    few = await median_claim(engine, "few")
    await fill(store, Submission(kind="noop", payload=limit.PAYLOAD, lane="many"), rows)
    many = await median_claim(engine, "many")
    again = await median_claim(engine, "few")
    foreign = Submission(kind="noop", payload=limit.PAYLOAD, lane="mixed", policy=GPU, priority=9)
    await fill(store, foreign, 100_000)
    await fill(store, Submission(kind="noop", payload=limit.PAYLOAD, lane="mixed"), 300)
    behind = await median_claim(engine, "mixed")
    base = (few + again) / 2
    print(f"claim of one, 1,000 waiting: {base:.2f} ms")
    print(f"claim of one, {rows:,} waiting: {many:.2f} ms ({many / base:.2f} times)")
    print(f"behind 100,000 this worker cannot run: {behind:.2f} ms ({behind / base:.2f} times)")
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    for store in [options.store] if options.store else ["sqlite", "postgres"]:
        print(f"\n{store}")
        with stores.fresh(store) as url:
            stores.use_uvloop()
            asyncio.run(run(url, options.rows))


if __name__ == "__main__":
    main()
