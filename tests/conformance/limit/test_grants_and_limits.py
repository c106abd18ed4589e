"""Grants, closed lanes and spent budgets."""

from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import GrantExists, GrantExpired, NotEligible, Unavailable
from flowfabric.core.base.ids import derive_attempt_id
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.grant import NotReclaimable
from flowfabric.core.execution.new_attempt import NewAttempt
from flowfabric.core.execution.policy import parse_policy
from flowfabric.core.execution.status import PublicState
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.core.limit.quota import Rate
from flowfabric.engine.execution.grants import EXAMINED
from tests.kit.lab import W1, W2, Lab
from tests.kit.limiting import began, define, finish, one, settled, slots
from tests.kit.situations import load, timeouts

TEAM = {"budget_ids": ["team"]}


async def spend_all(lab: Lab) -> None:
    await lab.engine.budgets.define(Budget(name="team", limits={"calls": Limit(hard=1)}))
    await lab.engine.budgets.spend("team", {"calls": 1})


@pytest.mark.parametrize("how", ["pause", "drain"])
async def test_a_search_passes_over_a_closed_lane_and_a_named_run_does_not(
    lab: Lab, how: str
) -> None:
    """C-T99: who names a run has decided about it."""
    id = await lab.submit()
    await getattr(lab.engine.lanes, how)("default")
    assert await lab.engine.grants.find_and_issue("w1", lane="default") is None
    await lab.engine.grants.issue(id, "w1")
    assert (await lab.engine.grants.claim(id, W1)).id == id


async def test_a_search_passes_over_a_lane_that_runs_as_many_as_it_may(lab: Lab) -> None:
    await lab.engine.lanes.set("default", concurrency=1)
    claim = await lab.running()
    id = await lab.submit()
    assert await lab.engine.grants.find_and_issue("w2", lane="default") is None
    assert await lab.engine.grants.eligible("default") == [id]
    await lab.complete(claim)
    found = await lab.engine.grants.find_and_issue("w2", lane="default")
    assert found is not None
    assert found.id == id


async def test_a_search_lets_runs_without_budget_wait_for_it(lab: Lab) -> None:
    """Execution 3.5 (which [C] holds over E-T073), coordination 2.7: the run is blocked by its
    budget, the detail names the budget, and what is behind it is found."""
    await spend_all(lab)
    poor = await lab.submit(policy=TEAM)
    assert await lab.engine.grants.find_and_issue("w1", lane="default") is None
    blocked = await lab.vector(poor)
    assert (blocked.eligibility, blocked.blocking) == ("blocked_by_budget", "waiting_for_budget")
    assert blocked.public is PublicState.RATE_LIMITED
    described = await lab.engine.views.describe(poor)
    assert described is not None
    assert "team" in str(described.blocking_detail)
    rich = await lab.submit()
    found = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert found is not None
    assert found.id == rich


async def test_a_search_that_finds_something_blocks_what_it_passed_over(lab: Lab) -> None:
    """Execution 3.5: the poor run was looked at first, and comes back with its budget."""
    await spend_all(lab)
    poor = await lab.submit(policy=TEAM, priority=10)
    rich = await lab.submit()
    found = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert found is not None
    assert found.id == rich
    assert (await lab.vector(poor)).eligibility == "blocked_by_budget"
    await lab.engine.budgets.reset("team")
    await lab.engine._limits.drain()
    found = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert found is not None
    assert found.id == poor


@pytest.mark.inside
async def test_a_grant_is_told_whatever_becomes_of_the_runs_before_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Execution 3.5: a grant that nobody knows of would keep its run for as long as it lasts."""
    await spend_all(lab)
    poor = await lab.submit(policy=TEAM, priority=10)
    rich = await lab.submit()

    async def fail(*_: object) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(lab.engine.grants._budget_gate, "hold_back", fail)
        found = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert found is not None
    assert found.id == rich
    assert await lab.engine.grants.find_and_issue("w1", lane="default") is None
    assert (await lab.vector(poor)).eligibility == "blocked_by_budget"


async def test_a_run_that_waits_for_its_budget_can_be_unblocked(lab: Lab) -> None:
    """Execution 3.28: like every admission block; its next claim asks the budget again"""
    await spend_all(lab)
    poor = await lab.submit(policy=TEAM)
    assert await lab.claim() == []
    with pytest.raises(NotEligible):
        await lab.engine.executions.unblock(poor, "waiting_for_quota")
    assert (await lab.vector(poor)).eligibility == "blocked_by_budget"
    await lab.engine.executions.unblock(poor, "waiting_for_budget")
    vector = await lab.vector(poor)
    assert (vector.eligibility, vector.blocking) == ("eligible_now", "waiting_for_worker")
    assert await lab.claim() == []
    assert (await lab.vector(poor)).eligibility == "blocked_by_budget"
    await lab.engine.budgets.reset("team")
    await lab.engine._limits.drain()
    assert (await lab.claim_one()).id == poor


async def test_spent_budgets_do_not_hide_what_is_behind_them(lab: Lab) -> None:
    """Execution 3.5: a search looks at a bounded number of runs. A page of which none
    may start goes and waits for the budget (S4), and comes back when the budget has room."""
    await spend_all(lab)
    poor = [await lab.submit(policy=TEAM) for _ in range(EXAMINED)]
    rich = await lab.submit()
    found = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert found is not None
    assert found.id == rich
    blocked = await lab.vector(poor[0])
    assert (blocked.eligibility, blocked.blocking) == ("blocked_by_budget", "waiting_for_budget")
    assert blocked.public is PublicState.RATE_LIMITED
    await lab.engine.budgets.reset("team")
    await lab.engine._limits.drain()
    found = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert found is not None
    assert found.id in poor


async def test_spent_budgets_keep_no_slots_of_a_quota(lab: Lab) -> None:
    """C-T95: a run that its budget refuses leaves its slot and its start to the next one."""
    await spend_all(lab)
    await define(lab, concurrency=2, rate=Rate(2, Millis(60_000)))
    uses = {"quotas": [{"quota": "q", "key": ""}]}
    poor = [await lab.submit(policy=uses | TEAM) for _ in range(2)]
    rich = await lab.submit(policy=uses)
    await settled(lab)
    found = await lab.engine.grants.find_and_issue("w1", lane="default")
    if found is None:  # its slot was not free yet when the last page was read
        await settled(lab)
        found = await lab.engine.grants.find_and_issue("w1", lane="default")
    assert found is not None
    assert found.id == rich
    assert [(await lab.vector(id)).eligibility for id in poor] == ["blocked_by_budget"] * 2


async def test_a_run_that_is_granted_is_not_held_back(lab: Lab) -> None:
    """Its grant is asked for budgets when it is redeemed."""
    await spend_all(lab)
    poor = [await lab.submit(policy=TEAM) for _ in range(EXAMINED + 1)]
    await lab.engine.grants.issue(poor[0], "w1")
    assert await lab.engine.grants.find_and_issue("w2", lane="default") is None
    assert (await lab.vector(poor[0])).eligibility == "eligible_now"
    assert (await lab.vector(poor[1])).eligibility == "blocked_by_budget"


async def test_a_named_run_is_asked_for_its_budgets_when_it_is_redeemed(lab: Lab) -> None:
    """C-T105: the grant is gone and the run waits for its budget; an operator takes it all the
    same."""
    await spend_all(lab)
    id = await lab.submit(policy=TEAM)
    await lab.engine.grants.issue(id, "w1")
    with pytest.raises(NotEligible, match="budget"):
        await lab.engine.grants.claim(id, W1)
    assert (await lab.engine.explain(id)).main.code == "budget_exhausted"
    await lab.engine.budgets.reset("team")
    await lab.engine._limits.drain()
    await lab.engine.budgets.spend("team", {"calls": 1})
    assert (await lab.engine.grants.take(id)).id == id


@pytest.mark.inside
@pytest.mark.parametrize("deadline", [None, 60_000])
async def test_a_redemption_without_budget_leaves_nothing_of_its_attempt(
    lab: Lab, deadline: int | None
) -> None:
    """INV-24: the id, the policy, the timeout and the deadline were for an attempt that never
    began; another worker runs it as it was planned"""
    await spend_all(lab)
    limits = timeouts(attempt=40_000, deadline=deadline)
    id = await lab.submit(policy={**TEAM, **limits})
    before = await load(lab, id)
    given = NewAttempt(
        id=UUID(int=9),
        policy=parse_policy({"priority": 7}),
        timeout=Millis(1_000),
        deadline_at=Millis(lab.clock.now() + 2_000),
    )
    await lab.engine.grants.issue(id, "w1")
    with pytest.raises(NotEligible, match="budget"):
        await lab.engine.grants.claim(id, W1, attempt=given)
    after = await load(lab, id)
    assert (after.deadline_at, after.life.given) == (before.deadline_at, ())
    assert after.head.flags == before.head.flags
    await lab.pass_time(3_000)
    assert await lab.state(id) is PublicState.RATE_LIMITED
    await lab.engine.budgets.reset("team")
    await lab.engine._limits.drain()
    claim = await lab.claim_one(W2)
    assert claim.attempt_id == derive_attempt_id(id.uuid, 0)
    assert claim.lease.times_out_at == lab.clock.now() + 40_000


@pytest.mark.inside
async def test_a_retry_without_budget_keeps_what_its_first_attempt_was_given(lab: Lab) -> None:
    """INV-24: the deadline that an earlier redemption has set stands"""
    policy = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 0}}}
    await lab.engine.budgets.define(Budget(name="team", limits={"calls": Limit(hard=1)}))
    id = await lab.submit(policy={**TEAM, **policy})
    first = NewAttempt(id=UUID(int=8), deadline_at=Millis(lab.clock.now() + 9_000))
    await lab.engine.grants.issue(id, "w1")
    claim = await lab.engine.grants.claim(id, W1, attempt=first)
    await lab.engine.budgets.report(claim, {"calls": 1})
    await lab.fail(claim)
    await lab.engine.grants.issue(id, "w1")
    second = NewAttempt(deadline_at=Millis(lab.clock.now() + 1_000))
    with pytest.raises(NotEligible, match="budget"):
        await lab.engine.grants.claim(id, W1, attempt=second)
    assert (await load(lab, id)).deadline_at == first.deadline_at
    assert [each.id for each in await lab.engine.views.attempts(id)] == [first.id]


@pytest.mark.parametrize("limits", [{"concurrency": 1}, {"concurrency_per_key": 1}])
async def test_a_grant_outlives_a_wait_for_a_slot(lab: Lab, limits: dict[str, Any]) -> None:
    """I-30, INV-17: a run that was held and waits in its line again is still its worker's"""
    await define(lab, **limits)
    id = await one(lab)
    granted = await lab.engine.grants.issue(id, W2, ttl=Millis(5_000))
    await lab.engine.executions.hold(id)
    claim = await began(lab)
    await lab.engine.executions.unhold(id)
    await finish(lab, claim)
    assert await slots(lab) == (1, 0)
    assert await lab.claim(W1) == []
    with pytest.raises(GrantExists):
        await lab.engine.grants.issue(id, W1)
    identity = await lab.engine.grants.identity(id)
    assert identity is not None
    assert (identity.worker, identity.expires_at) == (W2.id, granted.expires_at)
    await lab.pass_time(4_999)
    assert await lab.claim(W1) == []
    assert (await lab.engine.grants.claim(id, W2)).id == id


async def test_a_grant_that_ran_out_in_the_line_keeps_no_worker_away(lab: Lab) -> None:
    """I-30: an expired grant has no effect"""
    await define(lab, concurrency=1)
    id = await one(lab)
    await lab.engine.grants.issue(id, W2, ttl=Millis(1_000))
    await lab.engine.executions.hold(id)
    claim = await began(lab)
    await lab.engine.executions.unhold(id)
    await lab.pass_time(1_001)
    await finish(lab, claim)
    with pytest.raises(GrantExpired):
        await lab.engine.grants.claim(id, W2)
    assert (await lab.claim_one(W1)).id == id


async def test_a_repeated_redemption_keeps_what_it_has_started(lab: Lab) -> None:
    """§2.7, INV-23: nothing stops what is running; a caller that repeats gets the same lease"""
    await lab.engine.budgets.define(Budget(name="team", limits={"calls": Limit(hard=1)}))
    id = await lab.submit(policy=TEAM)
    await lab.engine.grants.issue(id, W1)
    claim = await lab.engine.grants.claim(id, W1, lease_id=UUID(int=7))
    await lab.engine.budgets.report(claim, {"calls": 1})
    again = await lab.engine.grants.claim(id, W1, lease_id=UUID(int=7))
    assert again.fence == claim.fence
    assert await lab.state(id) == "active"
    await lab.complete(claim)


async def test_a_redemption_that_comes_too_late_gives_no_slot_back(lab: Lab) -> None:
    """Execution 3.11, check 5: the grant is used up, and the slot was given back by the cancel"""
    await define(lab, concurrency=1)
    claim = await began(lab)
    for _ in range(2):
        await one(lab)
    await lab.lose(claim)
    await lab.engine.grants.issue_reclaim(claim.id, W2.id)
    await lab.engine.executions.cancel(claim.id, reason="enough")
    assert await slots(lab) == (1, 1)
    answer = await lab.engine.grants.reclaim(claim.id, W2)
    assert isinstance(answer, NotReclaimable)
    assert await slots(lab) == (1, 1)
