"""Budgets through the engine: made, spent, released, reset. C-T79 to C-T93, F-36 to F-41."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import FlowFabricError, Invalid, NotFound, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import MAX_AMOUNT, MAX_DEPTH, Budget, Limit, OnHard, OnSoft, Scope
from flowfabric.core.limit.spend import (
    AlreadyApplied,
    Created,
    HardBreach,
    Known,
    Reset,
    SoftBreach,
    Spent,
)
from flowfabric.store.queries import LedgerNeeds
from flowfabric.store.rows.record import BUDGETS
from tests.kit.flow_lab import declare
from tests.kit.lab import Lab
from tests.kit.situations import take
from tests.kit.spending import TEAM, make, report, spend, tokens, used

DAY = 24 * 3_600_000


# -- what there is


async def test_a_budget_is_made_once_and_defined_as_often_as_one_likes(lab: Lab) -> None:
    """C-T79, C-T87, C-T93, F-39: what was spent stays, the next report sees the new limits"""
    budgets = lab.engine.budgets
    assert await budgets.create(tokens(10, every=Millis(DAY))) == Created("team")
    assert await budgets.create(tokens(99)) == Known("team")
    first = await budgets.get("team")
    assert first.limits == {"tokens": Limit(hard=10)}
    assert first.next_reset_at == lab.clock.now() + DAY
    assert first.created_at == lab.clock.now()
    await spend(lab, 9)
    assert await budgets.define(tokens(12, every=Millis(DAY))) == Known("team")
    assert await spend(lab, 3) == Spent()
    assert await budgets.define(tokens(5)) == Known("team")
    assert await spend(lab, 1) == HardBreach("team", "tokens", 12, 5)
    after = await budgets.get("team")
    assert (after.used, after.breaches, after.next_reset_at) == ({"tokens": 12}, 1, None)
    assert await budgets.define(tokens(name="other")) == Created("other")


async def test_a_limit_of_zero_is_none(lab: Lab) -> None:
    """§2.0, §2.7: limit 0 = no limit, when amounts are counted and when runs start"""
    await make(lab, hard=0, soft=5)
    assert await spend(lab, 10**12) == SoftBreach("team", "tokens", 10**12, 5)
    assert (await lab.running(policy=TEAM)).snapshot.execution.rules.budget_ids == ("team",)
    await make(lab, hard=5, soft=9, name="other")
    assert await spend(lab, 5, "other") == Spent()
    assert await spend(lab, 1, "other") == HardBreach("other", "tokens", 5, 5)


async def test_the_first_dimension_that_does_not_fit_is_named(lab: Lab) -> None:
    """§2.2, §2.3: in the order of the report; of record_spend, which sorts them, by name"""
    budgets = lab.engine.budgets
    hard = {name: Limit(hard=1) for name in ("a", "z")}
    soft = {name: Limit(soft=1) for name in ("a", "z")}
    await budgets.create(Budget(name="hard", limits=hard))
    await budgets.create(Budget(name="soft", limits=soft))
    claim = await lab.running()
    amounts = {"z": 5, "a": 5}
    assert await budgets.spend("hard", amounts) == HardBreach("hard", "z", 0, 1)
    assert await budgets.report(claim, amounts, budgets=["hard"]) == HardBreach("hard", "z", 0, 1)
    assert await budgets.spend("hard", amounts, execution=claim.id) == HardBreach("hard", "a", 0, 1)
    assert await budgets.spend("soft", amounts) == SoftBreach("soft", "z", 5, 1)
    assert await budgets.spend("soft", amounts, execution=claim.id) == SoftBreach(
        "soft", "a", 10, 1
    )
    assert (await budgets.get("soft")).soft_breaches == 2


async def test_an_empty_key_is_none(lab: Lab) -> None:
    """§2.2: only a dedup key that is not empty counts once"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    for _ in range(2):
        assert await spend(lab, 1, key="") == Spent()
        assert await report(lab, claim, 1, key="") == Spent()
    assert await used(lab, "team") == [4]


async def test_nothing_more_is_still_above_a_limit(lab: Lab) -> None:
    """C-T80, C-T81, §2.2: what counts is the new value of every dimension that is reported"""
    await make(lab, hard=10, soft=5)
    assert await spend(lab, 0) == Spent()
    assert isinstance(await spend(lab, 6), SoftBreach)
    assert await spend(lab, 0) == SoftBreach("team", "tokens", 6, 5)
    await lab.engine.budgets.spend("team", {"calls": 1})
    assert (await lab.engine.budgets.get("team")).soft_breaches == 2
    await spend(lab, 4)
    assert isinstance(await spend(lab, 0), SoftBreach)  # at the limit, and not over it
    await lab.engine.budgets.define(tokens(9))
    assert await spend(lab, 0) == HardBreach("team", "tokens", 10, 9)
    both = await lab.engine.budgets.spend("team", {"tokens": 0, "calls": 1})
    assert isinstance(both, HardBreach)
    assert (await lab.engine.budgets.get("team")).used == {"tokens": 10, "calls": 1}


async def test_budgets_are_listed_by_name(lab: Lab) -> None:
    for name in ("c", "a", "b"):
        await make(lab, name=name)
    budgets = lab.engine.budgets
    assert [budget.name for budget in await budgets.list()] == ["a", "b", "c"]
    assert [budget.name for budget in await budgets.list(after="a", limit=1)] == ["b"]
    assert await budgets.list(limit=0) == []


async def test_what_does_not_exist_is_told(lab: Lab) -> None:
    """C-T84, C-T87, F-39"""
    budgets = lab.engine.budgets
    claim = await lab.running()
    for call in (
        budgets.get("nowhere"),
        spend(lab, 1, "nowhere"),
        report(lab, claim, 1, budgets=["nowhere"]),
        budgets.reserve(claim, {"tokens": 1}, budgets=["nowhere"]),
        budgets.settle(claim, UUID(int=1), {"tokens": 1}, budgets=["nowhere"]),
        budgets.release("nowhere", claim.id),
        budgets.reset("nowhere"),
        budgets.grant("nowhere", "tokens", 1),
        budgets.create(tokens(name="x", parent="nowhere")),
        lab.submit(policy={"budget_ids": ["nowhere"]}),
    ):
        with pytest.raises(NotFound, match="nowhere"):
            await call
    assert not await budgets.delete("nowhere")


# -- spending


async def test_every_dimension_is_counted(lab: Lab) -> None:
    """F-37: the standard ones and any other, before a limit names them or not"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    amounts = {"input_tokens": 3, "output_tokens": 4, "wall_ms": 5, "größe": 6, "nothing": 0}
    assert await lab.engine.budgets.report(claim, amounts) == Spent()
    budget = await lab.engine.budgets.get("team")
    assert budget.used == {name: number for name, number in amounts.items() if number}


async def test_soft_keeps_what_was_spent_and_hard_counts_nothing(lab: Lab) -> None:
    """C-T80, C-T81, C-T85, C-T88, I-23"""
    limits = {"a": Limit(hard=10, soft=5), "b": Limit(hard=10), "c": Limit(hard=10)}
    await make(lab, limits=limits)
    budgets = lab.engine.budgets

    async def give(**amounts: int) -> Any:
        return await budgets.spend(["team"], amounts)

    assert await give(a=5, b=5) == Spent()
    assert await give(a=1) == SoftBreach("team", "a", 6, 5)
    lab.clock.advance(7)
    assert await give(b=6, c=11, a=1) == HardBreach("team", "b", 5, 10)
    budget = await budgets.get("team")
    assert budget.used == {"a": 6, "b": 5}
    assert (budget.breaches, budget.soft_breaches) == (1, 1)
    assert (budget.breached_at, budget.breached_dimension) == (lab.clock.now(), "b")
    assert await give(a=4, b=5, c=10) == SoftBreach("team", "a", 10, 5)
    assert await give(c=1) == HardBreach("team", "c", 10, 10)


async def test_a_key_counts_once_for_a_day_on_each_budget(lab: Lab) -> None:
    """C-T82, C-T88, I-24, F-36, Q-5: the outcome is remembered, a refusal is not"""
    await make(lab, 10, 3)
    await make(lab, 10, name="other")
    assert isinstance(await spend(lab, 11, key="k"), HardBreach)
    first = await spend(lab, 4, key="k")
    assert first == SoftBreach("team", "tokens", 4, 3)
    assert await spend(lab, 4, key="k") == AlreadyApplied(first)
    assert await spend(lab, 4, "other", key="k") == Spent()
    together = await asyncio.gather(*(spend(lab, 1, key="l") for _ in range(5)))
    assert sorted(type(answer).__name__ for answer in together) == [
        *["AlreadyApplied"] * 4,
        "SoftBreach",
    ]
    assert await used(lab, "team", "other") == [5, 4]
    await lab.pass_time(DAY - 1)
    assert isinstance(await spend(lab, 4, key="k"), AlreadyApplied)
    await lab.pass_time(1)
    assert await spend(lab, 4, key="k") == SoftBreach("team", "tokens", 9, 3)


async def test_what_was_counted_is_not_forgotten_with_its_key(lab: Lab) -> None:
    """F-36: keys that are over are deleted, and nothing else"""
    await make(lab)
    await spend(lab, 4, key="k")
    lab.clock.advance(DAY)
    await lab.engine._limits.trim()
    books = await lab.engine.store.ledger(LedgerNeeds(("team",), (("team", "k"),)))
    assert (books.charges, books.budgets["team"].used) == ({}, {"tokens": 4})


async def test_advice_is_counted_and_told(lab: Lab) -> None:
    """Q-9: on_hard=warn"""
    await make(lab, on_hard=OnHard.WARN)
    assert await spend(lab, 11) == SoftBreach("team", "tokens", 11, 10)
    assert (await lab.engine.budgets.get("team")).soft_breaches == 1
    await lab.submit(policy=TEAM)
    assert len(await lab.claim()) == 1


async def test_no_person_is_asked_about_advice(lab: Lab) -> None:
    """Q-9: on_soft=approve is for soft limits; an approval could not raise the hard one"""
    await make(lab, 10, 20, on_hard=OnHard.WARN, on_soft=OnSoft.APPROVE)
    assert await spend(lab, 11) == SoftBreach("team", "tokens", 11, 10, OnSoft.WARN)
    assert await spend(lab, 10) == SoftBreach("team", "tokens", 21, 20, OnSoft.APPROVE)
    await lab.engine.budgets.grant("team", "tokens", 20)
    assert await spend(lab, 1) == SoftBreach("team", "tokens", 22, 10, OnSoft.WARN)


async def test_a_store_that_is_away_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-T90: never a silent yes, and what was not written does not count"""
    await make(lab)
    for name in ("ledger", "post"):

        async def away(*args: object) -> None:
            raise Unavailable("gone")

        with monkeypatch.context() as cut:
            cut.setattr(lab.engine.store, name, away)
            with pytest.raises(Unavailable):
                await spend(lab, 1)
    assert await used(lab, "team") == [0]


async def test_a_run_that_lost_its_lease_is_counted_and_marked(lab: Lab) -> None:
    """Q-6: it was consumed"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    handle = lab.engine.attempts.seal(claim)
    assert await report(lab, handle, 1, key="mine") == Spent()
    await lab.engine.claims.revoke(claim.id, reason="enough")
    assert await report(lab, claim, 2, key="late") == Spent()
    assert await used(lab, "team") == [3]
    books = await lab.engine.store.ledger(LedgerNeeds(charges=(("team", "mine"), ("team", "late"))))
    stale = {key: charge.stale for (_, key), charge in books.charges.items()}
    assert stale == {"mine": False, "late": True}
    assert await lab.engine.budgets.release("team", claim.id) == {"tokens": 3}


# -- release


async def test_counters_go_back_to_zero(lab: Lab) -> None:
    """§2.4, server-sdk.md 7.12: a counter that was released is 0 and stays, also beside others"""
    await make(lab, 100)
    run = await lab.submit()
    await lab.engine.budgets.spend("team", {"tokens": 25, "cents": 4}, execution=run)
    await lab.engine.budgets.release("team", run)
    assert (await lab.engine.budgets.get("team")).used == {"cents": 0, "tokens": 0}
    assert await lab.engine.budgets.release("team", run) == {}
    await lab.engine.budgets.spend("team", {"tokens": 1})
    assert (await lab.engine.budgets.get("team")).used == {"cents": 0, "tokens": 1}


async def test_a_release_takes_back_exactly_what_one_execution_spent(lab: Lab) -> None:
    """C-T89, I-25, I-26: twice is once, without a ledger it is nothing, others keep theirs"""
    await make(lab, 100)
    one, two = await lab.submit(), await lab.submit()
    for number in (1, 2, 3):
        await spend(lab, number, execution=one)
        await spend(lab, number * 10, execution=two)
    await spend(lab, 5)
    budgets = lab.engine.budgets
    assert await budgets.release("team", one) == {"tokens": 6}
    assert await budgets.release("team", one) == {}
    assert await budgets.release("team", await lab.submit()) == {}
    assert await used(lab, "team") == [65]
    assert await budgets.release("team", two) == {"tokens": 60}
    assert await used(lab, "team") == [5]
    for missing in ("no id", "{fp:1}:zzz"):
        with pytest.raises(Invalid):
            await budgets.release("team", missing)
        with pytest.raises(Invalid):
            await spend(lab, 1, execution=missing)


async def test_an_execution_that_is_unknown_has_spent_all_the_same(lab: Lab) -> None:
    """Coordination.md 2.3: its existence is not checked, because the amount was consumed"""
    await make(lab, 100)
    one = await lab.submit()
    ghost = str(one).replace(str(one.uuid), str(UUID(int=5)))
    assert await spend(lab, 7, execution=ghost, key="k") == Spent()
    assert await spend(lab, 7, execution=ghost, key="k") == AlreadyApplied(Spent())
    assert isinstance(await spend(lab, 94, execution=ghost), HardBreach)
    await spend(lab, 2, execution=one)
    assert await used(lab, "team") == [9]
    assert await lab.engine.budgets.release("team", ghost) == {"tokens": 7}
    assert await lab.engine.budgets.release("team", ghost) == {}
    assert await used(lab, "team") == [2]


async def test_a_release_after_a_reset_touches_nothing_new(lab: Lab) -> None:
    """F-38"""
    await make(lab, None, name="org")
    await make(lab, 100, parent="org")
    old, new = await lab.submit(), await lab.submit()
    await spend(lab, 7, execution=old)
    await lab.engine.budgets.reset("team")
    await spend(lab, 5, execution=new)
    assert await lab.engine.budgets.release("team", old) == {}
    assert await used(lab, "team", "org") == [5, 12]
    await lab.engine.budgets.reset("org")
    await spend(lab, 1, execution=new)
    assert await lab.engine.budgets.release("team", new) == {"tokens": 6}
    assert await used(lab, "team", "org") == [0, 0]


# -- reset


async def test_scheduled_resets_keep_their_rhythm(lab: Lab) -> None:
    """C-T84, C-T86, F-41: when due, by the sweep; missed periods are left out"""
    await make(lab, every=Millis(10_000))
    await make(lab, name="never")
    start = lab.clock.now()
    assert isinstance(await spend(lab, 11), HardBreach)
    for name in ("team", "never"):
        await spend(lab, 10, name)
    await lab.pass_time(9_999)
    assert await used(lab, "team", "never") == [10, 10]
    await lab.pass_time(4)
    budget = await lab.engine.budgets.get("team")
    assert (budget.used, budget.period, budget.resets) == ({}, 1, 1)
    assert (budget.reset_at, budget.next_reset_at) == (start + 10_000, start + 20_000)
    assert (budget.breaches, budget.breached_at, budget.breached_dimension) == (1, None, None)
    await lab.engine.sweep.once()
    await lab.pass_time(25_000)
    budget = await lab.engine.budgets.get("team")
    assert (budget.resets, budget.next_reset_at) == (2, start + 40_000)
    assert await used(lab, "never") == [10]


async def test_a_reset_by_hand_moves_the_next_one(lab: Lab) -> None:
    """C-T84, C-T85, coordination.md 2.5: a whole period begins, and the rhythm goes on from it"""
    await make(lab, every=Millis(10_000))
    await spend(lab, 10)
    lab.clock.advance(3_000)
    due = Millis(lab.clock.now() + 10_000)
    assert await lab.engine.budgets.reset("team") == Reset(due)
    assert await spend(lab, 10) == Spent()
    assert isinstance(await spend(lab, 1), HardBreach)
    await lab.pass_time(9_999)
    assert await used(lab, "team") == [10]
    await lab.pass_time(2_501)  # F-41: the sweep comes late, and nothing drifts
    budget = await lab.engine.budgets.get("team")
    assert (budget.used, budget.next_reset_at) == ({}, due + 10_000)
    await make(lab, name="never")
    assert await lab.engine.budgets.reset("never") == Reset(None)


async def test_a_reset_by_hand_after_its_time_has_come(lab: Lab) -> None:
    """C-T84: nobody has swept; both resets count, and what is spent then is of the new period"""
    await make(lab, every=Millis(10_000))
    lab.clock.advance(17_500)
    assert await lab.engine.budgets.reset("team") == Reset(Millis(lab.clock.now() + 10_000))
    await spend(lab, 2)
    await lab.engine.sweep.once()
    assert await used(lab, "team") == [2]
    assert (await lab.engine.budgets.get("team")).resets == 2


async def test_resets_by_the_calendar(lab: Lab) -> None:
    """F-41: midnight in Berlin, over the change of the clocks"""

    def at(*parts: int) -> int:
        return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]

    lab.clock.advance(at(2030, 3, 30, 12) - lab.clock.now())
    await make(lab, cron="0 0 * * *", timezone="Europe/Berlin")
    await spend(lab, 10)
    assert (await lab.engine.budgets.get("team")).next_reset_at == at(2030, 3, 30, 23)
    await lab.pass_time(11 * 3_600_000)
    budget = await lab.engine.budgets.get("team")
    assert (budget.used, budget.next_reset_at) == ({}, at(2030, 3, 31, 22))


async def test_a_stale_timer_does_no_harm(lab: Lab, second_lab: Lab) -> None:
    """C-T86: two sweeps at once, one of them late"""
    await make(lab, every=Millis(10_000))
    lab.clock.advance(10_000)
    due = await second_lab.engine.store.records.due(BUDGETS, lab.clock.now(), 9)
    assert [budget.name for budget in due] == ["team"]
    await lab.engine.sweep.once()
    await spend(lab, 3)
    await second_lab.engine._budget_gate.sweep()
    budget = await lab.engine.budgets.get("team")
    assert (budget.used, budget.resets) == ({"tokens": 3}, 1)


# -- budgets of budgets


async def test_all_levels_are_charged_or_none(lab: Lab) -> None:
    """I-23: one change, whichever level refuses"""
    await make(lab, 20, name="org")
    await make(lab, 10, parent="org")
    await make(lab, None, name="run", parent="team")
    await make(lab, None, name="side", parent="org")
    assert await spend(lab, 6, "run") == Spent()
    assert await spend(lab, 5, "run") == HardBreach("team", "tokens", 6, 10)
    assert await spend(lab, 14, "side") == Spent()
    assert await spend(lab, 1, "run") == HardBreach("org", "tokens", 20, 20)
    both = await lab.engine.budgets.spend(["run", "side"], {"tokens": 1, "free": 1})
    assert both == HardBreach("org", "tokens", 20, 20)
    assert await used(lab, "org", "team", "run", "side") == [20, 6, 6, 14]
    assert "free" not in (await lab.engine.budgets.get("side")).used


async def test_the_tree_of_budgets_stays_a_tree(lab: Lab) -> None:
    budgets = lab.engine.budgets
    await make(lab, name="b0")
    for depth in range(1, MAX_DEPTH):
        await make(lab, name=f"b{depth}", parent=f"b{depth - 1}")
    with pytest.raises(Invalid, match="deep"):
        await budgets.create(tokens(name="more", parent=f"b{MAX_DEPTH - 1}"))
    for parent in (None, "b3", "b0"):
        with pytest.raises(Invalid, match="another parent"):
            await budgets.define(tokens(name="b2", parent=parent))
    with pytest.raises(Invalid, match="itself"):
        await budgets.create(tokens(name="x", parent="x"))
    with pytest.raises(Invalid, match="'b0' has child budgets"):
        await budgets.delete("b0")
    await spend(lab, 1, f"b{MAX_DEPTH - 1}")
    for depth in reversed(range(MAX_DEPTH)):
        assert await budgets.delete(f"b{depth}")
    assert await budgets.list() == []


async def test_no_budget_joins_a_parent_that_is_being_deleted(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part is made after the delete has looked, before it has written"""
    await make(lab, name="org")
    honest = lab.engine.store.post

    async def raced(books: Any) -> bool:
        monkeypatch.setattr(lab.engine.store, "post", honest)
        await make(second_lab, parent="org")
        return await honest(books)

    monkeypatch.setattr(lab.engine.store, "post", raced)
    with pytest.raises(Invalid, match="'org' has child budgets"):
        await lab.engine.budgets.delete("org")
    assert await spend(lab, 1) == Spent()
    answers = await asyncio.gather(
        lab.engine.budgets.delete("team"),
        lab.engine.budgets.create(tokens(name="run", parent="team")),
        lab.engine.budgets.delete("team"),
        lab.engine.budgets.create(tokens(99)),
        return_exceptions=True,
    )
    assert any(isinstance(answer, FlowFabricError) for answer in answers)
    for budget in await lab.engine.budgets.list():
        await spend(lab, 1, budget.name)  # nothing hangs in the air


async def test_deleted_and_created_again_it_has_forgotten_everything(lab: Lab) -> None:
    """Also when both come at the same moment"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    await report(lab, claim, 7, key="k")
    gone, made = await asyncio.gather(
        lab.engine.budgets.delete("team"), lab.engine.budgets.create(tokens(5))
    )
    if made == Known("team"):
        made = await lab.engine.budgets.create(tokens(5))
    assert (gone, made) == (True, Created("team"))
    assert await report(lab, claim, 5, key="k") == Spent()
    assert await lab.engine.budgets.release("team", claim.id) == {"tokens": 5}


# -- what holds without being named


async def test_budgets_of_a_namespace_a_flow_and_a_run_hold_without_being_named(lab: Lab) -> None:
    """F-07, Q-9"""
    drawn = await declare(lab, "a>b")
    flow, run = str(drawn.id), str(drawn["a"])
    await make(lab, name="ns", scope=Scope.NAMESPACE, scope_id="default")
    await make(lab, name="flow", scope=Scope.FLOW, scope_id=flow.upper())
    await make(lab, name="run", scope=Scope.RUN, scope_id=run)
    await make(lab, name="elsewhere", scope=Scope.NAMESPACE, scope_id="other")
    await make(lab, name="tenant", scope=Scope.TENANT, scope_id="acme")
    budgets = lab.engine.budgets
    assert set(await budgets.attached_to(run)) == {"ns", "flow", "run"}
    assert set(await budgets.attached_to(drawn["b"])) == {"ns", "flow"}
    claim = await take(lab, drawn["a"])
    assert await report(lab, claim, 3) == Spent()
    assert await used(lab, "ns", "flow", "run", "elsewhere", "tenant") == [3, 3, 3, 0, 0]
    assert await report(lab, claim, 1, budgets=["run"]) == Spent()
    assert await used(lab, "ns", "run") == [3, 4]


async def test_a_run_goes_on_when_one_of_its_budgets_is_deleted(lab: Lab) -> None:
    """Whoever it limited no longer is: nothing is refused because it is gone"""
    await make(lab)
    await make(lab, name="other")
    claim = await lab.running(policy={"budget_ids": ["team", "other"]})
    held = await lab.engine.budgets.reserve(claim, {"tokens": 2})
    await lab.engine.budgets.delete("team")
    assert await report(lab, claim, 3) == Spent()
    again = await lab.engine.budgets.reserve(claim, {"tokens": 1})
    for answer in (held, again):
        id = answer.reservation.id  # type: ignore[union-attr]
        assert await lab.engine.budgets.settle(claim, id, {"tokens": 1}) == Spent()
    assert await used(lab, "other") == [5]
    await lab.engine.budgets.delete("other")
    assert await report(lab, claim, 3) == Spent()
    with pytest.raises(NotFound):
        await lab.submit(policy={"budget_ids": ["team"]})


async def test_without_a_budget_everything_is_free_and_checked(lab: Lab) -> None:
    claim = await lab.running()
    assert await report(lab, claim, 10**9) == Spent()
    with pytest.raises(Invalid):
        await report(lab, claim, -1)


# -- bad input


@pytest.mark.rules
async def test_bad_input_is_refused_and_changes_nothing(lab: Lab) -> None:
    await make(lab, 10, 5)
    claim = await lab.running(policy=TEAM)
    budgets = lab.engine.budgets
    wrong: list[Any] = [
        {},
        None,
        {"tokens": -1},
        {"tokens": 1.5},
        {"tokens": True},
        {"tokens": 2**63},
        {"": 1},
        {f"d{number}": 1 for number in range(65)},
    ]
    for amounts in wrong:
        calls: list[Any] = [
            budgets.spend("team", amounts),
            budgets.report(claim, amounts),
            budgets.reserve(claim, amounts),
            budgets.settle(claim, UUID(int=1), amounts),
        ]
        for call in calls:
            with pytest.raises(Invalid):
                await call
    more: list[Any] = [
        spend(lab, 1, ""),
        spend(lab, 1, key=5),
        spend(lab, 1, key="x" * 10_000),
        budgets.spend([], {"tokens": 1}),
        budgets.spend(5, {"tokens": 1}),  # type: ignore[arg-type]
        budgets.spend([f"b{n}" for n in range(17)], {"tokens": 1}),
        budgets.settle(claim, "no uuid", {"tokens": 1}),  # type: ignore[arg-type]
        budgets.cancel_reservation(claim, 5),  # type: ignore[arg-type]
        budgets.reserve(claim, {"tokens": 1}, id="forged"),  # type: ignore[arg-type]
        budgets.grant("team", "tokens", 0),
        budgets.grant("team", "tokens", 2**63),
        budgets.grant("team", "cost", 1),
        budgets.create({"name": "x"}),  # type: ignore[arg-type]
        budgets.create(tokens(-1, name="x")),
        budgets.create(tokens(name="x", cron="nonsense")),
        budgets.create(tokens(name="x", scope=Scope.FLOW, scope_id="no flow")),
        budgets.create(tokens(name="x", scope=Scope.RUN, scope_id="no run")),
        budgets.define(tokens(name="x" * 257)),
        budgets.list(limit=1.5),  # type: ignore[arg-type]
        budgets.list(after="a\0"),
    ]
    for call in more:
        with pytest.raises(Invalid):
            await call
    assert [budget.name for budget in await budgets.list()] == ["team"]
    budget = await budgets.get("team")
    assert (budget.used, budget.reserved, budget.breaches) == ({}, {}, 0)


async def test_the_largest_amounts_can_be_kept(lab: Lab) -> None:
    await lab.engine.budgets.create(Budget(name="team", limits={"a": Limit(soft=1)}))
    await lab.engine.budgets.spend("team", {"a": MAX_AMOUNT})
    with pytest.raises(Invalid, match="that many"):
        await lab.engine.budgets.spend("team", {"a": 1})
    claim = await lab.running(policy=TEAM)
    for number in range(1, 4):
        await lab.engine.budgets.settle(claim, UUID(int=number), {"a": MAX_AMOUNT})
    budget = await lab.engine.budgets.get("team")
    assert (budget.used, budget.overrun) == ({"a": MAX_AMOUNT}, {"a": MAX_AMOUNT})
    assert await lab.engine.budgets.grant("team", "a", MAX_AMOUNT, key="k") == MAX_AMOUNT + 1
    assert await lab.engine.budgets.grant("team", "a", MAX_AMOUNT, key="k") == MAX_AMOUNT + 1
    with pytest.raises(Invalid, match="that many"):
        await lab.engine.budgets.grant("team", "a", 1)
