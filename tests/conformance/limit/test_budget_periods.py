"""Periods of budgets begin at their moment; whoever a budget no longer limits goes on."""

import pytest

from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.submission import Submission
from flowfabric.core.limit.budget import Budget, Limit, Scope
from flowfabric.core.limit.quota import Rate
from flowfabric.core.limit.spend import BudgetLedger, HardBreach, Spent
from flowfabric.store.queries import LedgerNeeds
from tests.kit.lab import W1, Lab
from tests.kit.limiting import define, finish, settled

HOUR = Millis(3_600_000)


def budget(name: str = "team", hard: int = 10, **members: object) -> Budget:
    return Budget(name=name, limits={"calls": Limit(hard=hard)}, **members)  # type: ignore[arg-type]


async def test_a_period_ends_at_its_moment_for_who_spends(lab: Lab) -> None:
    """C-T86: nobody has swept. What was spent before the moment is of the old period, what is spent
    after it of the new one: never twice the limit in one."""
    await lab.engine.budgets.define(budget(every=HOUR))
    assert await lab.engine.budgets.spend("team", {"calls": 10}) == Spent()
    lab.clock.advance(HOUR - 1)
    assert isinstance(await lab.engine.budgets.spend("team", {"calls": 1}), HardBreach)
    lab.clock.advance(1)
    assert await lab.engine.budgets.spend("team", {"calls": 10}) == Spent()
    await lab.engine.sweep.once()
    assert isinstance(await lab.engine.budgets.spend("team", {"calls": 1}), HardBreach)
    found = await lab.engine.budgets.get("team")
    assert (found.used, found.period, found.resets) == ({"calls": 10}, 1, 1)


async def test_a_period_ends_at_its_moment_for_who_looks(lab: Lab) -> None:
    """C-T86: status and list tell the present period; a missed one counts as none."""
    made_at = lab.clock.now()
    await lab.engine.budgets.define(budget(every=HOUR))
    await lab.engine.budgets.spend("team", {"calls": 4})
    lab.clock.advance(3 * HOUR + 5)
    found = await lab.engine.budgets.get("team")
    (listed,) = await lab.engine.budgets.list()
    assert found == listed
    assert (found.used, found.next_reset_at) == ({}, made_at + 4 * HOUR)
    assert found.reset_at == made_at + 3 * HOUR


async def test_a_period_ends_at_its_moment_at_the_door(lab: Lab) -> None:
    """C-T86: new work is let in, and who was refused until then too, before any sweep."""
    await lab.engine.budgets.define(budget(every=HOUR))
    await lab.engine.budgets.spend("team", {"calls": 10})
    refused = await lab.submit(policy={"budget_ids": ["team"]})
    assert await lab.claim() == []
    lab.clock.advance(HOUR)
    fresh = await lab.submit(policy={"budget_ids": ["team"]})
    assert {claim.id for claim in await lab.claim(limit=5)} == {refused, fresh}


async def test_another_scope_frees_those_it_no_longer_limits(lab: Lab) -> None:
    """The budget of a namespace becomes the budget of another one; and the parent of such a
    budget keeps nobody either."""
    await lab.engine.budgets.define(budget("all", 5))
    here = budget("here", 50, parent="all", scope=Scope.NAMESPACE, scope_id="default")
    await lab.engine.budgets.define(here)
    await lab.engine.budgets.spend("here", {"calls": 5})
    run = await lab.submit()
    named = await lab.submit(policy={"budget_ids": ["all"]})
    assert await lab.claim(limit=5) == []
    there = budget("here", 50, parent="all", scope=Scope.NAMESPACE, scope_id="other")
    await lab.engine.budgets.define(there)
    await settled(lab)
    assert [claim.id for claim in await lab.claim(limit=5)] == [run]
    assert (await lab.engine.explain(named)).main.code == "budget_exhausted"


async def test_the_sweep_finds_who_is_no_longer_limited(lab: Lab, second_lab: Lab) -> None:
    """The process that changed the scope died before it let anybody in."""
    await lab.engine.budgets.define(budget(scope=Scope.NAMESPACE, scope_id="default"))
    await lab.engine.budgets.spend("team", {"calls": 10})
    run = await lab.submit()
    assert await lab.claim() == []
    second_lab.engine._budget_gate.free_soon = lambda names: None  # type: ignore[method-assign]
    await second_lab.engine.budgets.define(budget(scope=Scope.NAMESPACE, scope_id="other"))
    lab.engine._budget_gate.known.forget_attached()
    await lab.engine.sweep.once()
    assert (await lab.claim_one()).id == run


async def test_deleting_a_part_frees_who_waits_for_the_whole(lab: Lab) -> None:
    """It was limited by the parent because of the part only."""
    await lab.engine.budgets.define(budget("all", 5))
    part = budget("part", 50, parent="all", scope=Scope.NAMESPACE, scope_id="default")
    await lab.engine.budgets.define(part)
    await lab.engine.budgets.spend("part", {"calls": 5})
    run = await lab.submit()
    assert await lab.claim() == []
    await lab.engine.budgets.delete("part")
    await settled(lab)
    assert (await lab.claim_one()).id == run


@pytest.mark.inside
async def test_runs_of_a_deleted_budget_are_admitted_with_few_reads(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are: they are looked at page by page."""
    await lab.engine.budgets.define(budget())
    await lab.engine.budgets.spend("team", {"calls": 10})
    submission = Submission(kind="job", policy={"budget_ids": ["team"]})
    await lab.engine.executions.submit_many([submission] * 30)
    assert await lab.claim(limit=30) == []
    reads = 0
    honest = lab.engine.store.ledger

    async def ledger(ask: LedgerNeeds) -> BudgetLedger:
        nonlocal reads
        reads += 1
        return await honest(ask)

    monkeypatch.setattr(lab.engine.store, "ledger", ledger)
    await lab.engine.budgets.delete("team")
    await settled(lab)
    assert reads < 5
    assert len(await lab.claim(limit=30)) == 30


async def test_a_deleted_budget_is_refused_at_once(lab: Lab) -> None:
    """The process that deleted it does not remember it."""
    await lab.engine.budgets.define(budget())
    await lab.submit(policy={"budget_ids": ["team"]})
    await lab.engine.budgets.delete("team")
    with pytest.raises(NotFound):
        await lab.submit(policy={"budget_ids": ["team"]})


@pytest.mark.parametrize("per_key", [False, True])
async def test_one_its_budget_refuses_takes_no_start_of_a_rate(lab: Lab, per_key: bool) -> None:
    """C-T95: three starts a minute are admitted; the first spends the budget, the two behind it are
    refused when they are taken, and two others start in their place."""
    rate = Rate(3, Millis(60_000))
    await define(lab, rate=None if per_key else rate, rate_per_key=rate if per_key else None)
    await lab.engine.budgets.define(budget(hard=1))
    uses = [{"quota": "q", "key": "k"}]
    poor = [await lab.submit(policy={"quotas": uses, "budget_ids": ["team"]}) for _ in range(3)]
    rich = [await lab.submit(policy={"quotas": uses}) for _ in range(3)]
    await settled(lab)
    first = await lab.claim_one(W1)
    assert first.id == poor[0]
    await lab.engine.budgets.report(first, {"calls": 1})
    await finish(lab, first)
    started = []
    for _ in range(4):
        for claim in await lab.claim(limit=5):
            started.append(claim.id)
            await finish(lab, claim)
        await settled(lab)
    assert started == rich[:2]
    assert (await lab.engine.explain(rich[2])).main.code == "rate_used_up"
    lab.clock.advance(59_999)
    await lab.engine.sweep.once()
    assert await lab.claim() == []
    await lab.pass_time(1)
    await settled(lab)
    assert [claim.id for claim in await lab.claim(limit=5)] == [rich[2]]


async def test_one_that_was_admitted_under_other_limits_gives_no_start_back(lab: Lab) -> None:
    """C-T95: it was not counted, so what was counted of others stays."""
    await define(lab, concurrency=9)
    await lab.engine.budgets.define(budget(hard=1))
    uses = [{"quota": "q", "key": ""}]
    await lab.submit(policy={"quotas": uses, "budget_ids": ["team"]})
    await settled(lab)
    await lab.engine.budgets.spend("team", {"calls": 1})
    await define(lab, rate=Rate(1, Millis(60_000)))
    rich = [await lab.submit(policy={"quotas": uses}) for _ in range(2)]
    await settled(lab)
    started = []
    for _ in range(3):
        started += [claim.id for claim in await lab.claim(limit=5)]
        await settled(lab)
    assert started == rich[:1]


async def test_one_whose_window_has_passed_gives_no_start_back(lab: Lab) -> None:
    """C-T95: two are let through at a moment, one a millisecond later. A second later nothing of
    the first two counts any more; the one of them that its budget refuses then was counted no more
    than the other, so what was counted of the third stays."""
    await define(lab, rate=Rate(3, Millis(1_000)))
    await lab.engine.budgets.define(budget(hard=1))
    uses = [{"quota": "q", "key": ""}]
    first = await lab.submit(policy={"quotas": uses})
    await settled(lab)
    poor = await lab.submit(policy={"quotas": uses, "budget_ids": ["team"]})
    await settled(lab)
    lab.clock.advance(1)
    third = await lab.submit(policy={"quotas": uses})
    await settled(lab)
    await lab.engine.budgets.spend("team", {"calls": 1})
    lab.clock.advance(999)
    others = [await lab.submit(policy={"quotas": uses}) for _ in range(4)]
    await settled(lab)
    started = []
    for _ in range(4):
        started += [claim.id for claim in await lab.claim(limit=10)]
        await settled(lab)
    assert poor not in started
    assert started == [first, third, *others[:2]]
