"""What a lane waits for, in numbers, on every store."""

import random

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.core.limit.quota import Quota, Rate
from tests.kit import situations
from tests.kit.explaining import GPU, register, settled, using, why
from tests.kit.lab import Lab


async def test_a_lane_is_told_in_numbers(lab: Lab) -> None:
    """41 % blocked by quota openai: everything that waits, each once, by name"""
    await register(lab, "w7", lanes=("default",))
    await lab.engine.quotas.create(Quota(name="openai", concurrency_per_key=1))
    await lab.engine.quotas.create(Quota(name="mail", rate=Rate(1, Millis(60_000))))
    await lab.engine.budgets.create(Budget(name="team", limits={"tokens": Limit(hard=1)}))
    await lab.engine.budgets.spend("team", {"tokens": 1})
    for key in ("a", "b", "c"):
        for _ in range(4):
            await lab.submit(policy=using(("openai", key)))
    for _ in range(2):
        await lab.submit(policy=using(("mail", "")))
    await settled(lab)
    for _ in range(2):
        await lab.submit(policy={"budget_ids": ["team"]})
    assert len(await lab.claim(limit=9)) == 4
    await lab.submit(policy=GPU)
    await lab.submit(namespace="acme", policy=GPU)
    await situations.delayed(lab)
    await lab.submit(lane="elsewhere")
    found = await lab.engine.explain.lane("default")
    assert [(share.code, share.text, share.count) for share in found.shares] == [
        ("quota_full", "blocked by quota openai", 9),
        ("budget_exhausted", "blocked by budget team", 2),
        ("rate_used_up", "blocked by quota mail", 1),
        ("delayed", "delayed", 1),
        ("no_capable_worker", "ready, no live worker offers cuda and gpu", 1),
        ("no_worker", "ready, no live worker takes work of namespace acme", 1),
    ]
    assert (found.waiting, found.running, found.capped) == (15, 4, False)
    assert found.shares[0].words == "60 % blocked by quota openai"
    mine = await lab.engine.explain.lane("default", "acme")
    assert [share.words for share in mine.shares] == [
        "100 % ready, no live worker takes work of namespace acme"
    ]
    await lab.engine.lanes.pause("default", by="ada")
    (paused,) = (await lab.engine.explain.lane("default")).reasons
    assert paused.code == "lane_paused"
    empty = await lab.engine.explain.lane("nothing")
    assert (empty.waiting, empty.shares, empty.reasons) == (0, (), ())


async def test_what_a_lane_counts_is_what_its_runs_say(lab: Lab) -> None:
    """The numbers of a lane are those of its executions, whatever their situation"""
    draw = random.Random(7)
    names = [name for name in situations.LIVING for _ in range(draw.randint(1, 2))]
    ids: list[ExecutionId] = [await situations.LIVING[name](lab) for name in names]
    said: dict[str, int] = {}
    for id in ids:
        found = await why(lab, id)
        said[found.main.code] = said.get(found.main.code, 0) + 1
    told = await lab.engine.explain.lane("default")
    counted = {str(share.code): share.count for share in told.shares}
    active = said.pop("leased", 0) + said.pop("lost")
    assert (counted, told.running) == (said, active)
