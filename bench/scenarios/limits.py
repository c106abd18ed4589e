"""What limits cost: the same work with and without them."""

import asyncio
import time
from functools import lru_cache, partial

from bench.scenario import PAYLOAD, Figures, Load, least, scenario
from bench.scenarios.lifecycle import opened, take
from bench.windows import Windows, take_turns
from flowfabric.core.execution.policy import parse_policy
from flowfabric.core.execution.submission import Submission
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.engine import Engine

PAGE = 500


@lru_cache(maxsize=10_000)
def submission(lane: str, key: str = "") -> Submission:
    """Behind a concurrency of its key, if it has one."""
    policy = parse_policy({"quotas": [{"quota": lane, "key": key}]}) if key else None
    return Submission(kind="noop", payload=PAYLOAD, lane=lane, policy=policy)


@scenario(
    "limits",
    [least("limits", "pipeline with 1,000 keys", "/s", "unlimited pipeline", ratio=0.75)],
)
async def limits(load: Load) -> Figures:
    """From the first submission to the last completion in one process, with and without keys."""
    runs, keys = load.size.runs // 2, load.size.keys
    async with opened(load.url) as engine:
        await engine.quotas.define(Quota(name="keyed", concurrency_per_key=2))
        for lane, some in (("plain", 0), ("keyed", keys)):
            await _pipeline(engine, lane, some, runs // 5)  # warms up
        plain = Windows(load.url, partial(_pipeline, engine, "plain", 0, runs))
        keyed = Windows(load.url, partial(_pipeline, engine, "keyed", keys, runs))
        await take_turns(plain, keyed)
    return {"limits": keyed.figure(plain.rate)}


async def _pipeline(engine: Engine, lane: str, keys: int, runs: int) -> tuple[int, float]:
    began = time.perf_counter()
    taking = asyncio.create_task(take(engine, lane, runs, callers=4, batch=100))
    for start in range(0, runs, PAGE):
        numbers = range(start, min(runs, start + PAGE))
        await engine.executions.submit_many(
            [submission(lane, str(n % keys) if keys else "") for n in numbers]
        )
    await taking
    return runs, time.perf_counter() - began
