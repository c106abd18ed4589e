"""Signals: how soon a run continues, how many at once, and very many for one run.

    python -m bench.signal [--store sqlite|postgres] [--samples 300] [--rounds 5]

Runs wait at a callback; every signal carries its token and is verified. Sender and worker are one
process. "Many at once": a thousand suspended runs get a thousand signals at the same moment.
"Very many": one suspension that counts ten thousand sources; the last thousand signals should cost
as much as the first. The limit loop is that of `bench.lifecycle`.
"""

import argparse
import asyncio
import secrets
import statistics
import time
from collections import defaultdict
from typing import Any

from msgspec import Struct

from bench import limit, stores
from bench.lifecycle import closed_loop
from flowfabric import Context, Fabric, WorkerOptions
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.core.wait.condition.model import Count, CountKind
from flowfabric.core.wait.suspend import Binding, NowSuspended, Suspend, Wait
from flowfabric.engine.engine import Engine

MANY = 1000
SOURCES = 10_000
AT_ONCE = 100
CONCURRENCY = 100


class Case(Struct):
    """One waiting run, and its timestamps."""

    suspended: "asyncio.Future[None]"
    resumed: "asyncio.Future[None]"
    door: Any = None
    asked_at: float = 0.0
    running_at: float = 0.0


class Stage:
    """A worker in this process whose runs wait at a callback."""

    def __init__(self, url: str) -> None:
        self.fabric = Fabric(url)
        self.cases: dict[int, Case] = defaultdict(_case)
        self._by_run: dict[Any, Case] = {}

        @self.fabric.task()
        async def waits(ctx: Context, n: int) -> None:
            case = self.cases[n]
            case.door = await ctx.callback("go")
            self._by_run[ctx.info.id] = case
            await case.door.result()
            case.running_at = time.perf_counter()
            case.resumed.set_result(None)

        self.task = waits

    async def __aenter__(self) -> "Stage":
        engine = await self.fabric.engine()
        engine.suspensions.suspend = self._noting(engine.suspensions.suspend)  # type: ignore[method-assign]
        self._worker = await self.fabric.worker(WorkerOptions(concurrency=CONCURRENCY))
        self._running = asyncio.create_task(self._worker.run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._worker.stop()
        await self._running
        await self.fabric.close()

    def _noting(self, suspend: Any) -> Any:
        async def noting(owned: Any, request: Suspend) -> Any:
            case = self._by_run[owned.id]
            case.asked_at = time.perf_counter()
            answer = await suspend(owned, request)
            case.suspended.set_result(None)
            return answer

        return noting

    async def answer(self, case: Case) -> None:
        await self.fabric.signal(case.door.id, payload="go", token=case.door.token)


def _case() -> Case:
    loop = asyncio.get_running_loop()
    return Case(loop.create_future(), loop.create_future())


async def latency(stage: Stage, samples: int) -> tuple[list[float], list[float]]:
    """Milliseconds of the whole round, and of the part after the signal was sent, sorted."""
    whole, after = [], []
    for n in range(samples):
        case = stage.cases[n]
        await stage.task.submit(n)
        await case.suspended
        sent_at = time.perf_counter()
        await asyncio.gather(stage.answer(case), case.resumed)
        whole.append((case.running_at - case.asked_at) * 1000)
        after.append((case.running_at - sent_at) * 1000)
    return sorted(whole), sorted(after)


async def many(stage: Stage, first: int) -> tuple[float, float]:
    """Signals per second until all are delivered, and until all handlers run again."""
    cases = [stage.cases[n] for n in range(first, first + MANY)]
    await stage.task.submit_many([(n,) for n in range(first, first + MANY)])
    await asyncio.gather(*(case.suspended for case in cases))
    began = time.perf_counter()
    await asyncio.gather(*(stage.answer(case) for case in cases))
    delivered = time.perf_counter() - began
    await asyncio.gather(*(case.resumed for case in cases))
    running = max(case.running_at for case in cases) - began
    return MANY / delivered, MANY / running


async def very_many(engine: Engine) -> tuple[float, float]:
    """Seconds of the first and of the last thousand signals of one suspension."""
    claim, ticket = await _counting(engine)
    made = engine.signals.delivery
    seconds = []
    for start in range(0, SOURCES, AT_ONCE):
        began = time.perf_counter()
        deliveries = (
            made(ticket.id)(name="go", source_type="bench", source=f"source-{n}")
            for n in range(start, start + AT_ONCE)
        )
        await asyncio.gather(
            *(engine.signals.deliver(claim.id, each, ticket.token) for each in deliveries)
        )
        seconds.append(time.perf_counter() - began)
    part = 1000 // AT_ONCE
    assert str(await engine.views.state(claim.id)) == "waiting"  # the last signal woke it
    return sum(seconds[:part]), sum(seconds[-part:])


async def _counting(engine: Engine) -> tuple[Any, Any]:
    """A suspension that waits for `SOURCES` sources, and its waitpoint."""
    await engine.executions.submit(Submission(kind="counts", lane="counts"))
    (claim,) = await engine.claims.claim(
        WorkerIdentity("bench", "bench"), lanes=["counts"], limit=1
    )
    now = engine.now()
    binding = Binding(id=new_uuid7(now, secrets.randbits(74)), key="go")
    wait = Wait(condition=Count(SOURCES, CountKind.SOURCES, ("go",)), bindings=(binding,))
    request = Suspend(id=new_uuid7(now, secrets.randbits(74)), waits=(wait,))
    answer = await engine.suspensions.suspend(claim, request)
    assert isinstance(answer, NowSuspended)
    return claim, answer.waitpoints[0]


def line(what: str, figure: str, goal: str = "") -> None:
    print(f"| {what} | {figure} | {goal} |", flush=True)


async def measure(url: str, samples: int, rounds: int, ceiling: float) -> None:
    async with Stage(url) as stage:
        await latency(stage, 20)
        stage.cases.clear()
        whole, after = await latency(stage, samples)
        worst = int(samples * 0.99)
        line(
            "suspend → signal → handler runs, p50 / p99",
            f"{statistics.median(whole):.1f} / {whole[worst]:.1f} ms",
            "p50 ≤ 9 ms",
        )
        line(
            "of that after the signal was sent, p50 / p99",
            f"{statistics.median(after):.1f} / {after[worst]:.1f} ms",
        )
        found = [await many(stage, samples + MANY * n) for n in range(rounds)]
        delivered, running = (statistics.median(part) for part in zip(*found, strict=True))
        ratio = f"{delivered:,.0f}/s ({delivered / ceiling:.0%} of the limit)"
        line(f"{MANY:,} signals at once, delivered", ratio, "Postgres ≥ 1,500/s")
        ratio = f"{running:,.0f}/s ({running / ceiling:.0%} of the limit)"
        line("until all their handlers run again", ratio)
    async with Fabric(url) as fabric:
        first, last = await very_many(await fabric.engine())
    line(f"{SOURCES:,} signals for one, first 1,000", f"{1000 / first:,.0f}/s")
    line("last 1,000", f"{1000 / last:,.0f}/s ({last / first:.2f} times the time)", "about 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"])
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    stores.use_uvloop()
    for store in [options.store] if options.store else ["sqlite", "postgres"]:
        with stores.fresh(store) as url:
            ceiling = asyncio.run(limit.run(url, 2.0))
            lifecycle = asyncio.run(closed_loop(url, CONCURRENCY, 2.0, "lifecycle")).rate
            print(f"\n{store}: limit loop {ceiling:,.0f}/s, lifecycle {lifecycle:,.0f}/s")
            print("|  |  | goal |\n|---|---|---|")
            asyncio.run(measure(url, options.samples, options.rounds, ceiling))


if __name__ == "__main__":
    main()
