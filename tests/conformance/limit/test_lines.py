"""Lines before quotas: nobody is overlooked, whoever else stands there."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from flowfabric.core.execution.submission import Submission
from flowfabric.core.limit.quota import Quota
from flowfabric.core.limit.release import QuotaView
from tests.kit.lab import Lab


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
    put_queues, standing = store.put_queues, store.quota_view

    async def noted(queues: Any) -> None:
        order.append("noting")
        await asyncio.sleep(0)
        await put_queues(queues)
        order.append("noted")

    async def looked_at(ask: Any) -> QuotaView:
        order.append("looked")
        return await standing(ask)

    monkeypatch.setattr(store, "put_queues", noted)
    monkeypatch.setattr(store, "quota_view", looked_at)
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


async def test_a_quota_created_again_serves_old_lines_too(lab: Lab) -> None:
    """I-28: lines that were served often before their quota was deleted are not kept behind those
    that are new with it."""
    await lab.engine.quotas.create(Quota(name="q", concurrency=1))
    for _ in range(9):
        await lab.submit(policy=using(q="old"))
    await settled(lab)
    for _ in range(8):
        await lab.complete(await lab.claim_one())
        await settled(lab)
    last = await lab.claim_one()
    await lab.pass_time(1000)
    await lab.engine.quotas.delete("q")
    await lab.engine.quotas.create(Quota(name="q", concurrency=1))
    for key in ("old", "old", "old", "new", "new", "new"):
        await lab.submit(policy=using(q=key))
    await lab.complete(last)
    served = []
    for _ in range(6):
        await settled(lab)
        claim = await lab.claim_one()
        served.append(claim.policy.quotas[0].key)
        await lab.complete(claim)
    assert sorted(served[:2]) == sorted(served[2:4]) == ["new", "old"]
