"""Many who spend at once, rivals at the worst moment, and replies that are lost."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import RetryExhausted, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import Limit
from flowfabric.core.limit.spend import AlreadyApplied, HardBreach, Reserved, Spent
from flowfabric.store.queries import LedgerNeeds
from tests.kit.lab import W2, Lab
from tests.kit.spending import TEAM, claimed, make, report, reserved, settled, spend, tokens, used

Rival = Callable[[], Awaitable[object]]


class Posts:
    """Lets a rival go first, or loses the reply, the next time books are written."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.honest = lab.engine.store.post
        self.rival: Rival | None = None
        self.lose = False
        self.written = 0
        monkeypatch.setattr(lab.engine.store, "post", self.post)

    async def post(self, books: Any) -> bool:
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival()
        written = await self.honest(books)
        self.written += written
        if self.lose:
            self.lose = False
            raise Unavailable("the reply was lost")
        return written


@pytest.fixture
def posts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Posts:
    return Posts(lab, monkeypatch)


def count(answers: list[Any]) -> Counter[str]:
    return Counter(type(answer).__name__ for answer in answers)


async def test_a_hundred_spend_at_once_and_end_exactly_at_the_limit(
    lab: Lab, second_lab: Lab
) -> None:
    """I-23, I-25: two processes, three levels; nobody passes and nothing is lost"""
    await make(lab, 250, name="org")
    await make(lab, 200, parent="org")
    one, two = await lab.submit(), await lab.submit()
    answers = await asyncio.gather(
        *(spend(lab, 3, execution=one, key=f"a{n}") for n in range(50)),
        *(spend(second_lab, 3, execution=two, key=f"b{n}") for n in range(50)),
    )
    assert count(answers) == {"Spent": 66, "HardBreach": 34}
    assert await used(lab, "team", "org") == [198, 198]
    assert (await lab.engine.budgets.get("team")).breaches == 34
    ask = LedgerNeeds(executions=(one.uuid, two.uuid))
    ledgers = (await lab.engine.store.ledger(ask)).ledgers
    for name in ("team", "org"):
        noted = [entry.amounts["tokens"] for entry in ledgers.values() if entry.budget == name]
        assert sum(noted) == 198
    again = await asyncio.gather(*(spend(second_lab, 3, key=f"a{n}") for n in range(50)))
    assert count(again)["AlreadyApplied"] == count(answers[:50])["Spent"]


async def test_a_hundred_share_few_writes(lab: Lab, posts: Posts) -> None:
    """A hot record is folded, not fought over"""
    await make(lab, 1000)
    before = posts.written
    await asyncio.gather(*(spend(lab, 1) for _ in range(100)))
    assert await used(lab, "team") == [100]
    assert posts.written - before <= 3


async def test_a_refusal_in_a_batch_refuses_no_other(lab: Lab) -> None:
    await make(lab)
    answers = await asyncio.gather(
        spend(lab, 6),
        spend(lab, 5),
        spend(lab, 1, "nowhere"),
        spend(lab, 4),
        lab.engine.budgets.spend("team", {"tokens": 0, "cost": 1}),
        return_exceptions=True,
    )
    assert count(list(answers)) == {"Spent": 3, "HardBreach": 1, "NotFound": 1}
    assert (await lab.engine.budgets.get("team")).used == {"tokens": 10, "cost": 1}


async def test_a_reset_against_a_spend(lab: Lab, second_lab: Lab, posts: Posts) -> None:
    """Whoever is second decides again: the spend counts in the new period, or was before it"""
    await make(lab)
    await spend(lab, 10)
    posts.rival = lambda: second_lab.engine.budgets.reset("team")
    assert await spend(lab, 8) == Spent()
    assert await used(lab, "team") == [8]
    posts.rival = lambda: spend(second_lab, 2)
    await lab.engine.budgets.reset("team")
    budget = await lab.engine.budgets.get("team")
    assert (budget.used, budget.resets, budget.period) == ({}, 2, 2)


async def test_a_spend_against_a_budget_that_is_made_again(
    lab: Lab, second_lab: Lab, posts: Posts
) -> None:
    """I-23, I-24: the new one has its own limits and has forgotten everything, although it was
    made in the same millisecond"""
    await make(lab, 100)

    async def rival() -> None:
        assert await second_lab.engine.budgets.delete("team")
        await make(second_lab, 5)

    posts.rival = rival
    assert await spend(lab, 8) == HardBreach("team", "tokens", 0, 5)
    budget = await lab.engine.budgets.get("team")
    assert (budget.used, budget.limits, budget.breaches) == ({}, {"tokens": Limit(hard=5)}, 1)


async def test_a_scheduled_reset_by_two_sweeps_is_one(
    lab: Lab, second_lab: Lab, posts: Posts
) -> None:
    """C-T86"""
    await make(lab, every=Millis(10_000))
    lab.clock.advance(10_000)

    async def rival() -> None:
        await second_lab.engine._budget_gate.sweep()
        await spend(second_lab, 3)

    posts.rival = rival
    await lab.engine._budget_gate.sweep()
    budget = await lab.engine.budgets.get("team")
    assert (budget.resets, budget.used) == (1, {"tokens": 3})


async def test_a_release_against_a_reset(lab: Lab, second_lab: Lab, posts: Posts) -> None:
    """F-38: at the worst moment too"""
    await make(lab)
    old, new = await lab.submit(), await lab.submit()
    await spend(lab, 6, execution=old)

    async def rival() -> None:
        await second_lab.engine.budgets.reset("team")
        await spend(second_lab, 9, execution=new)

    posts.rival = rival
    assert await lab.engine.budgets.release("team", old) == {}
    assert await used(lab, "team") == [9]


async def test_a_release_of_an_earlier_period_against_a_spend(
    lab: Lab, second_lab: Lab, posts: Posts
) -> None:
    """I-25, I-26: what the run spends meanwhile is still in its ledger"""
    await make(lab)
    id = await lab.submit()
    await spend(lab, 6, execution=id)
    await lab.engine.budgets.reset("team")
    posts.rival = lambda: spend(second_lab, 4, execution=id)
    assert await lab.engine.budgets.release("team", id) == {"tokens": 4}
    assert await used(lab, "team") == [0]


async def test_a_release_of_a_part_against_a_spend_of_the_whole(
    lab: Lab, second_lab: Lab, posts: Posts
) -> None:
    """I-25, I-26: the whole has begun a new period, the part has not"""
    await make(lab, name="whole")
    await make(lab, parent="whole")
    id = await lab.submit()
    await spend(lab, 6, execution=id)
    await lab.engine.budgets.reset("whole")
    posts.rival = lambda: spend(second_lab, 4, "whole", execution=id)
    assert await lab.engine.budgets.release("team", id) == {"tokens": 6}
    assert await used(lab, "whole", "team") == [0, 0]


async def test_two_releases_at_once_are_one(lab: Lab, second_lab: Lab, posts: Posts) -> None:
    """I-26"""
    await make(lab)
    id = await lab.submit()
    await spend(lab, 6, execution=id)
    await spend(lab, 3)
    posts.rival = lambda: second_lab.engine.budgets.release("team", id)
    assert await lab.engine.budgets.release("team", id) == {}
    answers = await asyncio.gather(*(lab.engine.budgets.release("team", id) for _ in range(5)))
    assert answers == [{}] * 5
    assert await used(lab, "team") == [3]


async def test_two_settle_one_reservation(lab: Lab, second_lab: Lab, posts: Posts) -> None:
    """I-24: in one batch, and in two processes"""
    await make(lab, 100)
    claim = await lab.running(policy=TEAM)
    budgets, others = lab.engine.budgets, second_lab.engine.budgets
    for number in range(2):
        held = await budgets.reserve(claim, {"tokens": 5})
        assert isinstance(held, Reserved)
        id = held.reservation.id
        if number:
            posts.rival = lambda id=id: others.settle(claim, id, {"tokens": 4})
            answers = [await budgets.settle(claim, id, {"tokens": 4})]
            assert count(answers) == {"AlreadyApplied": 1}
        else:
            answers = await asyncio.gather(
                *(budgets.settle(claim, id, {"tokens": 4}) for _ in range(3))
            )
            assert count(answers) == {"Spent": 1, "AlreadyApplied": 2}
    assert (await used(lab, "team"), await reserved(lab, "team")) == ([8], [0])


async def test_a_settle_against_the_sweep(lab: Lab, second_lab: Lab, posts: Posts) -> None:
    """F-42: given back by the sweep while its late owner settles; counted once, given back once"""
    await make(lab, 100)
    claim, other = await lab.running(policy=TEAM), await lab.running(W2, policy=TEAM)
    held = await lab.engine.budgets.reserve(claim, {"tokens": 5})
    await lab.engine.budgets.reserve(other, {"tokens": 2})
    assert isinstance(held, Reserved)
    lab.engine._budget_gate._reserving.clear()
    await lab.engine.claims.revoke(claim.id, reason="enough")
    posts.rival = second_lab.engine.sweep.once
    answer = await lab.engine.budgets.settle(claim, held.reservation.id, {"tokens": 4})
    assert answer == Spent()
    await lab.engine.sweep.once()
    assert (await used(lab, "team"), await reserved(lab, "team")) == ([4], [2])


async def test_the_last_of_a_budget_is_reserved_by_one(lab: Lab, second_lab: Lab) -> None:
    """I-23"""
    await make(lab)
    claims = [await lab.running(policy=TEAM) for _ in range(10)]
    engines = (lab.engine, second_lab.engine)
    answers = await asyncio.gather(
        *(
            engines[number % 2].budgets.reserve(claim, {"tokens": 4})
            for number, claim in enumerate(claims)
        )
    )
    assert count(answers) == {"Reserved": 2, "HardBreach": 8}
    assert await reserved(lab, "team") == [8]
    await asyncio.gather(*(lab.complete(claim) for claim in claims))
    await settled(lab)
    await second_lab.engine.sweep.once()
    assert await reserved(lab, "team") == [0]


async def test_a_lease_that_goes_while_its_owner_sets_aside_leaks_nothing(
    lab: Lab, second_lab: Lab, posts: Posts
) -> None:
    """F-42"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    posts.rival = lambda: second_lab.engine.claims.revoke(claim.id, reason="enough")
    await lab.engine.budgets.reserve(claim, {"tokens": 4})
    await second_lab.engine.sweep.once()
    assert await reserved(lab, "team") == [0]


async def test_a_caller_that_always_loses_gives_up(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(lab)

    async def never(books: Any) -> bool:
        return False

    with monkeypatch.context() as cut:
        cut.setattr(lab.engine.store, "post", never)
        cut.setattr("flowfabric.engine.limit.ledger.MAX_ROUNDS", 3)
        with pytest.raises(RetryExhausted):
            await spend(lab, 1)
    assert await used(lab, "team") == [0]


async def test_a_lost_reply_counts_once(lab: Lab, posts: Posts) -> None:
    """I-24, C-T90: whoever asks again with the same key is told what it was"""
    await make(lab, 100)
    claim = await lab.running(policy=TEAM)
    budgets, id = lab.engine.budgets, UUID(int=7)

    async def twice(call: Callable[[], Awaitable[Any]]) -> Any:
        posts.lose = True
        with pytest.raises(Unavailable):
            await call()
        return await call()

    assert await twice(lambda: spend(lab, 1, key="a")) == AlreadyApplied(Spent())
    assert await twice(lambda: report(lab, claim, 2, key="b")) == AlreadyApplied(Spent())
    assert isinstance(await twice(lambda: budgets.reserve(claim, {"tokens": 9}, id=id)), Reserved)
    assert await reserved(lab, "team") == [9]
    assert await twice(lambda: budgets.settle(claim, id, {"tokens": 4})) == AlreadyApplied(Spent())
    assert (await used(lab, "team"), await reserved(lab, "team")) == ([7], [0])
    assert await twice(lambda: budgets.release("team", claim.id)) == {}
    assert await used(lab, "team") == [1]
    await budgets.define(tokens(100, 5))
    assert await twice(lambda: budgets.grant("team", "tokens", 5, key="a")) == 10
    assert isinstance(await twice(lambda: spend(lab, 100, key="c")), HardBreach)


async def test_a_key_of_a_grant_is_none_of_a_spend(lab: Lab) -> None:
    await lab.engine.budgets.create(tokens(100, limits={"tokens": Limit(soft=5)}))
    await spend(lab, 1, key="k")
    assert await lab.engine.budgets.grant("team", "tokens", 5, key="k") == 10
    assert await lab.engine.budgets.grant("team", "tokens", 5, key="k") == 10


async def test_a_spend_between_the_take_and_the_look_is_seen(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T92: budgets are asked after the take, so nothing that was spent before it is missed"""
    await make(lab)
    id = await lab.submit(policy=TEAM)
    honest = lab.engine.store.claim

    async def raced(*args: Any) -> Any:
        taken = await honest(*args)
        await spend(second_lab, 10)
        return taken

    with monkeypatch.context() as late:
        late.setattr(lab.engine.store, "claim", raced)
        assert await lab.claim() == []
    await lab.engine.budgets.reset("team")
    assert [claim.id for claim in await claimed(lab)] == [id]


async def test_who_is_turned_away_while_it_is_cancelled_stays_cancelled(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(lab)
    await spend(lab, 10)
    id = await lab.submit(policy=TEAM)
    honest = lab.engine.store.ledger

    async def raced(ask: Any) -> Any:
        monkeypatch.setattr(lab.engine.store, "ledger", honest)
        await second_lab.engine.claims.revoke(id, reason="enough")
        await second_lab.engine.executions.cancel(id, reason="enough")
        return await honest(ask)

    monkeypatch.setattr(lab.engine.store, "ledger", raced)
    assert await lab.claim() == []
    assert (await lab.state(id)).value == "cancelled"
