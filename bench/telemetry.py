"""What metrics cost: `python -m bench.telemetry postgres` runs the lifecycle with metrics on and
off in turn and compares the CPU per execution, which repeats where rates do not."""

import asyncio
import statistics
import sys
import time

from bench.cost import counted
from bench.scenarios.lifecycle import ClosedLoop, opened
from bench.stores import fresh, use_uvloop
from flowfabric.metrics import disable, enable, render

ROUNDS = 10
SECONDS = 1.5
CONCURRENCY = 100

Rounds = tuple[list[float], list[float]]


async def measure(url: str) -> tuple[Rounds, Rounds]:
    """Microseconds of CPU per execution by round, off and on: of this process alone, and with the
    database server."""
    own: Rounds = ([], [])
    whole: Rounds = ([], [])
    async with opened(url) as engine:
        await ClosedLoop(engine, CONCURRENCY, "warm").run(SECONDS)
        for number in range(2 * ROUNDS):
            is_on = number % 4 in (1, 2)  # off, on, on, off: a drift hits both
            if is_on:
                enable()
            else:
                disable()
            async with counted(url) as cost:
                done = await ClosedLoop(engine, CONCURRENCY, "bench").run(SECONDS)
            own[is_on].append(cost.client * 1e6 / done.done)
            whole[is_on].append(cost.cpu_us(done.done))
        disable()
        began = time.process_time()
        text = await render(engine)
        print(f"a scrape: {(time.process_time() - began) * 1e3:.0f} ms, {len(text) / 1e3:.0f} kB")
    return own, whole


def main() -> None:
    use_uvloop()
    with fresh(sys.argv[1]) as url:
        own, whole = asyncio.run(measure(url))
    for what, (off, on) in (("this process", own), ("with the server", whole)):
        before, after = statistics.median(off), statistics.median(on)
        more = (after / before - 1) * 100
        print(f"{what}: {before:.1f} µs off, {after:.1f} µs on: {more:+.1f} %")


if __name__ == "__main__":
    main()
