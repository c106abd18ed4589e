"""The sweep undoes blocks whose cause is gone. Coordination §4.6, §2.7, C-T98, C-T103, F-45, and
execution §3.28."""

from typing import Any

import pytest

from flowfabric.core.base.errors import NotEligible, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.gate import LOOK_AGAIN
from flowfabric.core.execution.registry import Presence
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.limit import blocks
from tests.kit.lab import Lab
from tests.kit.limiting import using
from tests.kit.spending import TEAM, claimed, make, spend, spent_out

BUDGET, QUOTA, ROUTE = "waiting_for_budget", "waiting_for_quota", "waiting_for_capable_worker"
GPU = {"routing_requirements": {"required_capabilities": ["cuda", "gpu"]}}


async def blocked(lab: Lab, reason: str, **members: Any) -> ExecutionId:
    id = await lab.submit(**members)
    await lab.engine.settle()
    await lab.engine.executions.block(id, reason, "because")
    return id


async def eligibility(lab: Lab, id: str) -> str:
    await lab.engine.settle()
    return (await lab.vector(id)).eligibility


async def looked(lab: Lab, millis: int = LOOK_AGAIN) -> None:
    await lab.pass_time(millis)
    await lab.engine.settle()


async def offer(lab: Lab, instance: str, *capabilities: str, namespace: str = "default") -> None:
    await lab.engine.workers.register(
        Presence(worker="w", instance=instance, capabilities=capabilities, namespace=namespace)
    )


@pytest.mark.parametrize("reason", [BUDGET, QUOTA])
async def test_a_block_without_a_cause_ends_at_the_next_look(lab: Lab, reason: str) -> None:
    """§4.6: no budget, no quota of the run is in its way"""
    id = await blocked(lab, reason)
    await looked(lab, LOOK_AGAIN - 1)
    assert await eligibility(lab, id) != "eligible_now"
    await looked(lab, 1)
    assert await eligibility(lab, id) == "eligible_now"
    info = await lab.engine.views.info(id)
    assert info is not None
    assert info.blocking_detail is None
    assert (await lab.claim_one()).id == id


@pytest.mark.parametrize("reason", ["paused_by_operator", "paused_by_policy"])
async def test_what_a_person_has_blocked_stays_so(lab: Lab, reason: str) -> None:
    """§4.6: only budget, quota and route are looked at"""
    await offer(lab, "a", "cuda", "gpu")
    id = await blocked(lab, reason)
    for _ in range(3):
        await looked(lab)
    assert (await lab.vector(id)).blocking == reason
    await lab.engine.executions.unblock(id, reason)


async def test_a_budget_block_lasts_while_the_budget_is_spent(lab: Lab) -> None:
    """§2.7: until every attached budget is below its limits again"""
    await make(lab)
    await spend(lab, 10)
    id = await blocked(lab, BUDGET, policy=TEAM)
    for _ in range(3):
        await looked(lab)
    assert await eligibility(lab, id) == "blocked_by_budget"
    await lab.engine.budgets.reset("team")
    await looked(lab)
    assert await eligibility(lab, id) == "eligible_now"


async def test_a_quota_block_becomes_a_place_in_the_line(lab: Lab) -> None:
    """§4.6: it stays blocked by its quota until there is room"""
    await lab.engine.quotas.create(Quota(name="q", concurrency=1))
    id = await blocked(lab, QUOTA, policy=using("q"))
    await lab.submit(policy=using("q"))
    await lab.engine.settle()
    holder = await lab.claim_one()
    await looked(lab)
    assert await eligibility(lab, id) == "blocked_by_quota"
    await lab.complete(holder)
    assert await eligibility(lab, id) == "eligible_now"


async def test_a_route_block_ends_when_one_worker_can_run_it(lab: Lab) -> None:
    """C-T103, E-T067, F-45: what two workers offer together helps neither"""
    id = await blocked(lab, ROUTE, policy=GPU)
    await looked(lab)
    assert await eligibility(lab, id) == "blocked_by_route"  # nobody is there
    await offer(lab, "a", "cuda")
    await offer(lab, "b", "gpu")
    await offer(lab, "c", "cuda", "gpu", namespace="elsewhere")
    await looked(lab)
    assert await eligibility(lab, id) == "blocked_by_route"
    await offer(lab, "d", "cuda", "gpu", "more")
    await looked(lab)
    assert await eligibility(lab, id) == "eligible_now"
    assert (await lab.claim_one(capabilities=["cuda", "gpu"])).id == id


@pytest.mark.inside
async def test_workers_that_cannot_be_read_keep_no_run_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T104, E-T068: the claim asks for capabilities again"""
    id = await blocked(lab, ROUTE, policy=GPU)

    async def fail(*_: object) -> list[Presence]:
        raise Unavailable("away")

    monkeypatch.setattr(blocks, "live_workers", fail)
    await looked(lab)
    assert await eligibility(lab, id) == "eligible_now"


@pytest.mark.inside
async def test_budgets_that_cannot_be_read_keep_it_blocked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§4.6, I-29"""
    await make(lab)
    id = await blocked(lab, BUDGET, policy=TEAM)

    async def fail(*_: object) -> dict[str, object]:
        raise Unavailable("away")

    monkeypatch.setattr(lab.engine._budget_gate.known, "budgets", fail)
    await looked(lab)
    assert await eligibility(lab, id) == "blocked_by_budget"
    monkeypatch.undo()
    await looked(lab)
    assert await eligibility(lab, id) == "eligible_now"


async def test_a_look_writes_no_event_and_changes_no_reason(lab: Lab) -> None:
    """INV-24: a person who unblocks it later still says for what it was blocked"""
    id = await blocked(lab, ROUTE, policy=GPU)
    await looked(lab)
    assert not await lab.events(id)
    with pytest.raises(NotEligible):
        await lab.engine.executions.unblock(id, QUOTA)
    await lab.engine.executions.unblock(id, ROUTE)
    await looked(lab)
    assert await eligibility(lab, id) == "eligible_now"


async def test_a_run_that_waits_in_the_line_of_its_quota_stays_there(lab: Lab) -> None:
    """I-27: only room admits it, so that no window gets more starts than its limit"""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    await lab.running(policy=using("q"))
    id = await lab.submit(policy=using("q"))
    assert await eligibility(lab, id) == "blocked_by_quota"
    with pytest.raises(NotEligible, match="waits in the line of its quotas"):
        await lab.engine.executions.unblock(id, QUOTA)
    assert await eligibility(lab, id) == "blocked_by_quota"


async def test_a_run_that_waits_for_its_budget_can_be_unblocked(lab: Lab) -> None:
    """§3.7, §4.6, C-T98: it is eligible, and waits again if a claim finds the budget used up"""
    id = await spent_out(lab)
    executions = lab.engine.executions
    with pytest.raises(NotEligible):
        await executions.unblock(id, "waiting_for_quota")
    for expected in ("waiting_for_budget", None):
        await executions.unblock(id, expected)
        vector = await lab.vector(id)
        assert (vector.eligibility, vector.blocking) == ("eligible_now", "waiting_for_worker")
        assert await claimed(lab) == []
        assert (await lab.vector(id)).eligibility == "blocked_by_budget"
    await executions.block(await lab.submit(), "paused_by_operator")
    await lab.engine.budgets.reset("team")
    assert [claim.id for claim in await claimed(lab)] == [id]
