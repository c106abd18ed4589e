"""Reservations: set aside, settled, given back by themselves when the lease is gone. F-42."""

from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Invalid, LeaseLost, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import Reservation
from flowfabric.core.limit.spend import AlreadyApplied, HardBreach, Overrun, Reserved, Spent
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import LedgerNeeds
from tests.kit.lab import W2, Lab
from tests.kit.situations import RETRY, take
from tests.kit.spending import TEAM, make, reserved, settled, spend, tokens, used
from tests.kit.waits import suspend


async def reserve(lab: Lab, claim: Any, number: int, **options: Any) -> Reservation:
    """An estimate that fits."""
    answer = await lab.engine.budgets.reserve(claim, {"tokens": number}, **options)
    assert isinstance(answer, Reserved)
    return answer.reservation


async def settle(lab: Lab, claim: Any, id: UUID, number: int, **options: Any) -> Any:
    return await lab.engine.budgets.settle(claim, id, {"tokens": number}, **options)


async def kept(lab: Lab, *ids: UUID) -> set[UUID]:
    """Those of these reservations that are still there."""
    return set((await lab.engine.store.ledger(LedgerNeeds(reservations=ids))).reservations)


async def test_what_is_set_aside_no_other_run_spends(lab: Lab) -> None:
    """F-42, I-23"""
    await make(lab, 20, name="org")
    await make(lab, parent="org")
    claim = await lab.running(policy=TEAM)
    held = await reserve(lab, claim, 7)
    assert await reserved(lab, "team", "org") == [7, 7]
    assert await used(lab, "team", "org") == [0, 0]
    assert await spend(lab, 4) == HardBreach("team", "tokens", 7, 10)
    assert await lab.engine.budgets.reserve(claim, {"tokens": 4}) == HardBreach(
        "team", "tokens", 7, 10
    )
    assert await spend(lab, 3) == Spent()
    assert await settle(lab, claim, held.id, 7) == Spent()
    assert (await reserved(lab, "team", "org"), await used(lab, "team", "org")) == (
        [0, 0],
        [10, 10],
    )
    assert await lab.engine.budgets.release("team", claim.id) == {"tokens": 7}


@pytest.mark.parametrize(
    ("actual", "answer", "counted", "over"),
    [
        (0, Spent(), 5, {}),
        (2, Spent(), 7, {}),
        (4, Spent(), 9, {}),
        (5, Spent(), 10, {}),
        (9, Overrun("team", "tokens", 10, 10, 4), 10, {"tokens": 4}),
    ],
)
async def test_what_was_really_consumed_counts(
    lab: Lab, actual: int, answer: Any, counted: int, over: dict[str, int]
) -> None:
    """F-42, I-23: less, as much, more, and more than there is"""
    await make(lab)
    await spend(lab, 5)
    claim = await lab.running(policy=TEAM)
    held = await reserve(lab, claim, 4)
    assert await settle(lab, claim, held.id, actual) == answer
    assert await settle(lab, claim, held.id, actual) == AlreadyApplied(answer)
    budget = await lab.engine.budgets.get("team")
    assert (budget.used, budget.reserved, budget.overrun) == ({"tokens": counted}, {}, over)
    assert budget.breaches == len(over)
    await lab.engine.budgets.reset("team")
    assert (await lab.engine.budgets.get("team")).overrun == {}


async def test_a_reservation_is_cancelled_once(lab: Lab) -> None:
    await make(lab)
    claim = await lab.running(policy=TEAM)
    held = await reserve(lab, claim, 7)
    cancel = lab.engine.budgets.cancel_reservation
    assert [await cancel(claim, held.id), await cancel(claim, held.id)] == [True, False]
    assert not await cancel(claim, UUID(int=7))
    assert (await reserved(lab, "team"), await kept(lab, held.id)) == ([0], set())


async def test_repeating_a_reservation_sets_nothing_more_aside(lab: Lab) -> None:
    await make(lab)
    claim = await lab.running(policy=TEAM)
    first = await reserve(lab, claim, 7, id=UUID(int=7))
    assert await reserve(lab, claim, 7, id=UUID(int=7)) == first
    assert await reserved(lab, "team") == [7]


async def test_a_reservation_belongs_to_one_execution(lab: Lab) -> None:
    await make(lab, 100)
    mine, other = await lab.running(policy=TEAM), await lab.running(W2, policy=TEAM)
    held = await reserve(lab, mine, 7)
    for call in (
        settle(lab, other, held.id, 7),
        lab.engine.budgets.cancel_reservation(other, held.id),
        lab.engine.budgets.reserve(other, {"tokens": 7}, id=held.id),
    ):
        with pytest.raises(Invalid, match="another run"):
            await call
    assert (await reserved(lab, "team"), await used(lab, "team")) == ([7], [0])


async def test_only_the_owner_of_a_live_lease_sets_aside(lab: Lab) -> None:
    await make(lab)
    gone = await lab.running(policy=TEAM)
    await lab.engine.claims.revoke(gone.id, reason="enough")
    late = await take(lab, await lab.submit(), W2)
    lab.clock.advance(late.ttl)  # ran out, and nobody has marked it
    for claim in (gone, late, lab.engine.attempts.seal(gone)):
        with pytest.raises(LeaseLost):
            await lab.engine.budgets.reserve(claim, {"tokens": 1}, budgets=["team"])
    with pytest.raises(Invalid):
        await lab.engine.budgets.reserve("forged", {"tokens": 1})
    assert await reserved(lab, "team") == [0]


# -- given back when the lease ends


async def complete(lab: Lab, claim: Claim) -> None:
    await lab.complete(claim)


async def fail(lab: Lab, claim: Claim) -> None:
    await lab.fail(claim, "permanent")


async def retry(lab: Lab, claim: Claim) -> None:
    await lab.fail(claim)


async def wait(lab: Lab, claim: Claim) -> None:
    await suspend(lab, claim)


async def delay(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 5000))


async def hand_back(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.hand_back(claim)


async def cancel(lab: Lab, claim: Claim) -> None:
    await lab.engine.executions.cancel(claim.id, reason="enough")


async def cancel_owned(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.cancel(claim, "enough")


async def revoke(lab: Lab, claim: Claim) -> None:
    await lab.engine.claims.revoke(claim.id, reason="enough")


async def expire(lab: Lab, claim: Claim) -> None:
    await lab.lose(claim)


WAYS = [complete, fail, retry, wait, delay, hand_back, cancel, cancel_owned, revoke, expire]


async def test_what_a_lease_has_set_aside_goes_with_it(lab: Lab, second_lab: Lab) -> None:
    """F-42: however it ends; at once in this process, by the sweep of another after a crash"""
    await make(lab, 1000)
    for way in WAYS:
        for crash in (False, True):
            claim = await take(lab, await lab.submit(policy={**TEAM, **RETRY}))
            first, second = [await reserve(lab, claim, number) for number in (3, 4)]
            assert await reserved(lab, "team") == [7]
            if crash:
                lab.engine._budget_gate._reserving.clear()  # a process that knows nothing of it
            await way(lab, claim)
            await settled(lab)
            if crash and way is not expire:
                assert await reserved(lab, "team") == [7], way
                await second_lab.engine.sweep.once()
            assert await reserved(lab, "team") == [0], way
            assert await kept(lab, first.id, second.id) == set()
            await second_lab.engine.sweep.once()
            await lab.engine.sweep.once()
            assert await reserved(lab, "team") == [0], way
    assert await used(lab, "team") == [0]


async def test_it_is_given_back_once_and_not_from_others(lab: Lab, second_lab: Lab) -> None:
    """What the next lease sets aside stays"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    held = await reserve(lab, claim, 4)
    await lab.lose(claim)
    again = await lab.claim_one(W2)
    other = await reserve(lab, again, 5)
    await second_lab.engine.sweep.once()
    await settled(lab)
    assert await reserved(lab, "team") == [5]
    assert await kept(lab, held.id, other.id) == {other.id}
    assert not await lab.engine.budgets.cancel_reservation(claim, held.id)
    assert await reserved(lab, "team") == [5]


async def test_the_same_id_under_the_next_lease_is_a_new_one(lab: Lab, second_lab: Lab) -> None:
    """A handler that runs again; what the old lease had is not mistaken for it"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    id = UUID(int=7)
    await reserve(lab, claim, 4, id=id)
    lab.engine._budget_gate._reserving.clear()
    await lab.engine.claims.revoke(claim.id, reason="enough")
    again = await lab.claim_one(W2)
    assert (await reserve(lab, again, 5, id=id)).epoch == again.epoch
    await second_lab.engine.sweep.once()
    assert (await reserved(lab, "team"), await kept(lab, id)) == ([5], {id})
    assert await settle(lab, again, id, 5) == Spent()
    assert (await reserved(lab, "team"), await used(lab, "team")) == ([0], [5])


@pytest.mark.parametrize("swept", [False, True])
async def test_settling_after_the_lease_is_gone_counts_once(lab: Lab, swept: bool) -> None:
    """Q-6: it was consumed, whether it is still set aside or was given back"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    held = await reserve(lab, claim, 4)
    lab.engine._budget_gate._reserving.clear()
    await lab.engine.claims.revoke(claim.id, reason="enough")
    if swept:
        await lab.engine.sweep.once()
    assert await reserved(lab, "team") == [0 if swept else 4]
    assert await settle(lab, claim, held.id, 3) == Spent()
    assert await settle(lab, claim, held.id, 3) == AlreadyApplied(Spent())
    await lab.engine.sweep.once()
    assert (await reserved(lab, "team"), await used(lab, "team")) == ([0], [3])
    key = f"settle:{held.id}"
    books = await lab.engine.store.ledger(LedgerNeeds(charges=(("team", key),)))
    assert books.charges["team", key].stale


async def test_a_settlement_that_counted_before_the_crash_keeps_nothing_set_aside(lab: Lab) -> None:
    """I-24: the next owner sets aside again, and settles what is counted already"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    held = await reserve(lab, claim, 4)
    assert await settle(lab, claim, held.id, 3, key="call") == Spent()
    await lab.lose(claim)
    again = await lab.claim_one(W2)
    held = await reserve(lab, again, 4)
    assert await settle(lab, again, held.id, 3, key="call") == AlreadyApplied(Spent())
    assert (await reserved(lab, "team"), await used(lab, "team")) == ([0], [3])


async def test_nothing_is_set_aside_for_what_is_counted_already(lab: Lab) -> None:
    """I-24: the next owner is not refused because of what its run has consumed itself"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    held = await reserve(lab, claim, 6, key="call")
    assert await settle(lab, claim, held.id, 6, key="call") == Spent()
    await lab.lose(claim)
    again = await lab.claim_one(W2)
    held = await reserve(lab, again, 6, key="call")
    assert (held.budgets, await reserved(lab, "team")) == ((), [0])
    assert await settle(lab, again, held.id, 6, key="call") == AlreadyApplied(Spent())
    assert await used(lab, "team") == [6]
    answer = await lab.engine.budgets.reserve(again, {"tokens": 6}, key="another")
    assert answer == HardBreach("team", "tokens", 6, 10)


async def test_a_forged_id_settles_as_what_was_consumed(lab: Lab) -> None:
    await make(lab)
    claim = await lab.running(policy=TEAM)
    assert await settle(lab, claim, UUID(int=99), 11) == Overrun("team", "tokens", 10, 10, 1)
    with pytest.raises(NotFound):
        await settle(lab, claim, UUID(int=98), 1, budgets=["nowhere"])


async def test_a_reset_leaves_what_is_set_aside(lab: Lab) -> None:
    """C-T84: and it is settled in the new period"""
    await make(lab)
    claim = await lab.running(policy=TEAM)
    await spend(lab, 4)
    held = await reserve(lab, claim, 6)
    await lab.engine.budgets.reset("team")
    assert (await reserved(lab, "team"), await used(lab, "team")) == ([6], [0])
    assert await settle(lab, claim, held.id, 6) == Spent()
    assert (await reserved(lab, "team"), await used(lab, "team")) == ([0], [6])


async def test_a_deleted_budget_leaks_nothing_above_and_nothing_into_the_next(lab: Lab) -> None:
    await make(lab, 100, name="org")
    await make(lab, parent="org")
    claim, other = await lab.running(policy=TEAM), await lab.running(W2, policy=TEAM)
    await reserve(lab, claim, 6)
    await lab.engine.budgets.delete("team")
    lab.clock.advance(1)
    await make(lab, parent="org")
    await reserve(lab, other, 5)
    assert await reserved(lab, "team", "org") == [5, 11]
    await lab.complete(claim)
    await settled(lab)
    assert await reserved(lab, "team", "org") == [5, 5]


async def test_without_a_budget_nothing_is_set_aside(lab: Lab) -> None:
    claim = await lab.running()
    held = await reserve(lab, claim, 10**9)
    assert held.budgets == ()
    assert await settle(lab, claim, held.id, 5) == Spent()
    assert not await lab.engine.budgets.cancel_reservation(claim, held.id)


async def test_a_reservation_of_named_budgets_is_settled_there(lab: Lab) -> None:
    await make(lab)
    await lab.engine.budgets.create(tokens(name="other"))
    claim = await lab.running(policy=TEAM)
    held = await reserve(lab, claim, 5, budgets=["other"])
    assert await settle(lab, claim, held.id, 4, budgets=["other"]) == Spent()
    again = await settle(lab, claim, held.id, 4, budgets=["other"])
    assert again == AlreadyApplied(Spent())
    assert await used(lab, "team", "other") == [0, 4]


@pytest.mark.parametrize("named", [None, ("team",)])
async def test_what_was_settled_counts_once_though_its_budget_was_made_again(
    lab: Lab, named: tuple[str, ...] | None
) -> None:
    """F-42, C-T82: the budget that was deleted knows nothing of it; the one it is part of does"""
    await make(lab, 20, name="org")
    await make(lab, parent="org")
    claim = await lab.running(policy=TEAM)
    held = await reserve(lab, claim, 7, budgets=named)
    assert await settle(lab, claim, held.id, 7, budgets=named) == Spent()
    await lab.engine.budgets.delete("team")
    lab.clock.advance(1)
    await make(lab, parent="org")
    assert await settle(lab, claim, held.id, 7, budgets=named) == AlreadyApplied(Spent())
    assert await used(lab, "team", "org") == [0, 7]
