"""The sweep looks at everybody who waits for limits, but spends little of its time on it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from flowfabric.store.queries import Crowd
from tests.kit.lab import Lab

USING = {"quotas": [{"quota": "q", "key": ""}]}


async def test_a_look_at_every_waiter_rests_as_long_as_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-47: a round that took long is not begun again at once; a rate that opens is seen all the
    same, and a round that was asked for looks at everybody."""
    clock = ManualClock()
    lab = await Lab.open(await open_store(f"sqlite:///{tmp_path}/rest.db", clock=clock), clock)
    loop, store, looks = asyncio.get_running_loop(), lab.engine.store, list[float]()
    spent, real, crowds = 0.0, loop.time, store.crowds

    async def slow(after: int, limit: int) -> list[Crowd]:
        nonlocal spent
        looks.append(loop.time())
        spent += 0.5
        return await crowds(after, limit)

    def time() -> Any:
        return real() + spent

    await lab.engine.quotas.create(Quota(name="q", rate=Rate(1, Millis(50))))
    await asyncio.gather(lab.submit(policy=USING), lab.submit(policy=USING))
    await lab.engine._limits.drain()
    await lab.complete(await lab.claim_one())
    monkeypatch.setattr(loop, "time", time)
    monkeypatch.setattr(store, "crowds", slow)
    await lab.engine.sweep._turn()
    assert len(looks) == 1
    clock.advance(50)
    await lab.engine.sweep._turn()
    await lab.engine._limits.drain()
    assert len(looks) == 1
    assert len(await lab.claim()) == 1, "the rate has opened meanwhile"
    await lab.engine.sweep.once()
    assert len(looks) == 2
    await lab.submit(policy=USING)  # somebody waits: otherwise a turn has nothing to look at
    spent += 5
    await lab.engine.sweep._turn()
    assert len(looks) == 3
    await lab.engine.close()
