"""Lines before quotas: nobody is overlooked, whoever else stands there."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from flowfabric.core.quota import Quota
from flowfabric.core.release import Standing
from flowfabric.core.submission import Submission
from tests.lab import Lab


def using(**quotas: str) -> dict[str, object]:
    return {"quotas": [{"quota": name, "key": key} for name, key in quotas.items()]}


async def settled(lab: Lab) -> None:
    """Whoever can go now has gone. No sweep has looked."""
    await lab.engine._limits.drain()


async def test_queues_that_are_new_at_once_are_all_seen(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T80: executions of several quotas come together; nobody looks at the lines before all of
    their queues are known, so none is left to the sweep."""
    store, order = lab.engine.store, list[str]()
    put_queues, standing = store.put_queues, store.standing

    async def noted(queues: Any) -> None:
        order.append("noting")
        await asyncio.sleep(0)
        await put_queues(queues)
        order.append("noted")

    async def looked_at(ask: Any) -> Standing:
        order.append("looked")
        return await standing(ask)

    monkeypatch.setattr(store, "put_queues", noted)
    monkeypatch.setattr(store, "standing", looked_at)
    names = [f"quota-{number}" for number in range(6)]
    for name in names:
        await lab.engine.quotas.create(Quota(name=name, concurrency=1))
    await settled(lab)
    order.clear()
    submissions = [Submission(kind="job", policy=using(**{name: ""})) for name in names]
    await asyncio.gather(*map(lab.engine.executions.submit, submissions))
    await settled(lab)
    assert "looked" in order
    assert all(after == "noted" for before, after in pairwise(order) if before == "noting")
    assert len(await lab.claim(limit=10)) == len(names)
