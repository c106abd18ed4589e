"""What every store keeps of budgets; written whole or not at all."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.lease import lose
from flowfabric.core.limit import spend as spending
from flowfabric.core.limit.budget import Budget, Ledger, Limit, OnHard, OnSoft, Reservation, Scope
from flowfabric.core.limit.spend import BudgetLedger, Charge, Overrun, Spent
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.queries import LedgerNeeds
from flowfabric.store.rows.record import BUDGETS
from tests.kit.snapshots import lease_of
from tests.store.limit_bench import FAR, Bench, uuid_of

X, Y = UUID(int=1), UUID(int=2)


@pytest.fixture
async def bench(store: Store, clock: ManualClock) -> AsyncIterator[Bench]:
    await store.migrate()
    yield Bench(store, clock)
    await store.close()


def reservation(id: UUID, execution: UUID = X, epoch: int = 1) -> Reservation:
    return Reservation(id, ("team",), execution, epoch, {"tokens": 5}, Millis(7))


def charge(budget: str, key: str, until: int = FAR, **members: Any) -> Charge:
    return Charge(budget=budget, key=key, until=Millis(until), **members)


async def put(store: Store, *budgets: Budget) -> None:
    books = BudgetLedger()
    for budget in budgets:
        books.put(budget)
    assert await store.post(books)


async def all_of(store: Store) -> BudgetLedger:
    """Everything the tests below write."""
    keys = (("team", "k"), ("team", "l"), ("org", "k"))
    return await store.ledger(LedgerNeeds(("team", "org", "new"), keys, (X, Y), (X, Y)))


async def test_a_budget_is_kept_whole_with_all_it_is_part_of(bench: Bench) -> None:
    full = Budget(
        name="naïve 鍵",
        parent="team",
        scope=Scope.RUN,
        scope_id="r1",
        limits={"tokens": Limit(hard=9, soft=5, more=2), "cost": Limit(hard=(1 << 63) - 1)},
        on_hard=OnHard.SUSPEND,
        on_soft=OnSoft.APPROVE,
        every=Millis(1000),
        timezone="Europe/Berlin",
        used={"tokens": 3},
        reserved={"tokens": 1},
        overrun={"tokens": 2},
        granted={"tokens": 4},
        period=3,
        breaches=1,
        soft_breaches=2,
        breached_at=Millis(5),
        breached_dimension="tokens",
        resets=2,
        reset_at=Millis(4),
        next_reset_at=Millis(9),
        created_at=Millis(1),
        updated_at=Millis(2),
        unknown={"later": [1]},
    )
    team, org = Budget(name="team", parent="org"), Budget(name="org")
    await put(bench.store, full, team, org, Budget(name="other"))
    books = await bench.store.ledger(LedgerNeeds(budgets=(full.name, "unheard of")))
    assert books.budgets == {
        budget.name: replace(budget, version=1) for budget in (full, team, org)
    }
    assert (books.changed, books.new_ledgers, books.empty) == ({}, {}, True)
    assert (
        await bench.store.ledger(LedgerNeeds(budgets=("team", "org", "team")))
    ).budgets.keys() == {
        "team",
        "org",
    }
    assert await bench.store.ledger(LedgerNeeds()) == BudgetLedger()


async def test_books_hold_what_is_asked_for(bench: Bench) -> None:
    books = BudgetLedger()
    ledgers = [
        Ledger("team", X, 1, {"tokens": 5}),
        Ledger("org", X, 2, {}),
        Ledger("team", Y, 1, {"cost": 1}),
    ]
    for ledger in ledgers:
        books.put_ledger((ledger.budget, ledger.execution), ledger)
    overrun = Overrun("team", "tokens", 9, 9, 4)
    books.put_charge(charge("team", "k", outcome=overrun, stale=True))
    books.put_charge(charge("org", "k", 5, outcome=Spent()))
    books.put_reservation(Y, reservation(Y, X))
    books.put_reservation(X, reservation(X, Y, epoch=4))
    assert await bench.store.post(books)
    found = await bench.store.ledger(
        LedgerNeeds(charges=(("team", "k"), ("org", "l")), executions=(X,))
    )
    assert found.ledgers == {("team", X): ledgers[0], ("org", X): ledgers[1]}
    assert found.charges == {
        ("team", "k"): charge("team", "k", outcome=overrun, stale=True),
    }
    assert found.reservations == {Y: reservation(Y, X)}
    found = await bench.store.ledger(LedgerNeeds(reservations=(X, UUID(int=9)), executions=(X,)))
    assert found.reservations.keys() == {X, Y}
    assert found.reservations[X] == reservation(X, Y, epoch=4)
    assert await bench.store.post(BudgetLedger())


async def test_everything_is_written_or_nothing(bench: Bench) -> None:
    store = bench.store
    await put(store, Budget(name="team", used={"tokens": 1}), Budget(name="org"))

    def posting(**versions: int) -> BudgetLedger:
        books = BudgetLedger()
        for name, version in versions.items():
            books.budgets[name] = Budget(name=name, used={"tokens": 7}, version=version)
            books.changed[name] = version
        books.put_ledger(("team", X), Ledger("team", X, 0, {"tokens": 7}))
        books.put_charge(charge("team", "k"))
        books.put_reservation(X, reservation(X))
        return books

    before = await all_of(store)
    for stale in ({"team": 1, "org": 0}, {"team": 2}, {"team": 1, "new": 1}):
        assert not await store.post(posting(**stale))
    gone = posting(team=1)
    gone.put_reservation(Y, None)
    assert not await store.post(gone)
    assert await all_of(store) == before
    assert await store.post(posting(team=1, new=0))
    found = await all_of(store)
    assert {name: budget.version for name, budget in found.budgets.items()} == {
        "team": 2,
        "org": 1,
        "new": 1,
    }
    assert found.budgets["team"].used == {"tokens": 7}
    assert (len(found.ledgers), len(found.charges), len(found.reservations)) == (1, 1, 1)
    assert not await store.post(posting(team=1))


async def test_what_is_written_again_replaces_what_was(bench: Bench) -> None:
    store = bench.store
    for number in (1, 2):
        books = BudgetLedger()
        books.put_ledger(("team", X), Ledger("team", X, number, {"tokens": number}))
        books.put_charge(charge("team", "k", number))
        books.put_reservation(X, reservation(X, epoch=number))
        assert await store.post(books)
    found = await all_of(store)
    assert found.ledgers["team", X].period == 2
    assert found.charges["team", "k"].until == 2
    assert found.reservations[X].epoch == 2
    books = BudgetLedger()
    books.put_ledger(("team", X), None)
    books.put_ledger(("team", Y), None)
    books.put_reservation(X, None)
    assert await store.post(books)
    found = await all_of(store)
    assert (found.ledgers, found.reservations) == ({}, {})
    assert not await store.post(books)


async def test_a_removed_budget_is_removed_with_its_ledgers_and_charges(bench: Bench) -> None:
    store = bench.store
    await put(store, Budget(name="team", parent="org", next_reset_at=Millis(5)), Budget(name="org"))
    books = BudgetLedger()
    for name in ("team", "org"):
        books.put_ledger((name, X), Ledger(name, X, 0, {"tokens": 7}))
        books.put_charge(charge(name, "k"))
    assert await store.post(books)
    stale = await all_of(store)
    moved = await all_of(store)
    moved.put(replace(moved.budgets["team"], used={"tokens": 1}))
    assert await store.post(moved)
    stale.remove("team")
    assert not await store.post(stale)
    books = await all_of(store)
    books.remove("team")
    assert await store.post(books)
    found = await all_of(store)
    assert found.budgets.keys() == {"org"}
    assert found.ledgers.keys() == {("org", X)}
    assert found.charges.keys() == {("org", "k")}
    assert await store.records.next_due(BUDGETS) is None
    assert not await store.post(books)
    await put(store, Budget(name="team"))
    assert (await all_of(store)).budgets["team"].version == 1


async def test_what_was_noted_of_a_budget_that_goes_goes_with_it(bench: Bench) -> None:
    """The batch that removes a budget may have charged it, or make it anew."""
    store = bench.store
    await put(store, Budget(name="team"))
    books = await all_of(store)
    books.put_ledger(("team", X), Ledger("team", X, 0, {"tokens": 7}))
    books.put_charge(charge("team", "k"))
    books.remove("team")
    assert await store.post(books)
    found = await all_of(store)
    assert (found.budgets, found.ledgers, found.charges) == ({}, {}, {})
    books = BudgetLedger()
    books.put(Budget(name="new"))
    books.remove("new")
    assert await store.post(books)
    assert (await all_of(store)).budgets == {}


async def test_of_two_who_spend_at_once_one_is_told_to_look_again(bench: Bench) -> None:
    store = bench.store
    await put(store, Budget(name="org", limits={"tokens": Limit(hard=25)}))
    await put(store, Budget(name="team", parent="org"))

    async def spend(key: str) -> None:
        while True:
            books = await store.ledger(LedgerNeeds(("team",), (("team", key),), (X,)))
            asked = spending.Expense(("team",), {"tokens": 3}, execution=X, key=key)
            spending.spend(books, asked, bench.now)
            if await store.post(books):
                return

    await asyncio.gather(*(spend(f"{number}") for number in range(10)))
    found = await store.ledger(LedgerNeeds(("team",), (), (X,)))
    assert {name: budget.used for name, budget in found.budgets.items()} == {
        "team": {"tokens": 24},
        "org": {"tokens": 24},
    }
    assert found.ledgers["team", X].amounts == {"tokens": 24}
    assert found.budgets["org"].breaches == 2


async def test_budgets_are_found_by_what_is_asked_of_them(bench: Bench) -> None:
    store = bench.store
    assert (await store.records.next_due(BUDGETS), await store.attached()) == (None, [])
    await put(
        store,
        Budget(name="b", scope=Scope.NAMESPACE, scope_id="ns", next_reset_at=Millis(7)),
        Budget(name="a", scope=Scope.FLOW, scope_id="f", parent="c", next_reset_at=Millis(5)),
        Budget(name="c", scope=Scope.TENANT, scope_id="t", next_reset_at=Millis(9)),
        Budget(name="d", scope=Scope.ORGANISATION),
        Budget(name="e", scope=Scope.RUN, scope_id="r"),
    )
    assert sorted(await store.attached()) == [
        ("flow", "f", "a"),
        ("namespace", "ns", "b"),
        ("run", "r", "e"),
    ]
    assert [budget.name for budget in await store.records.page(BUDGETS, "", 9)] == [
        "a",
        "b",
        "c",
        "d",
        "e",
    ]
    assert [(b.name, b.version) for b in await store.records.page(BUDGETS, "b", 2)] == [
        ("c", 1),
        ("d", 1),
    ]
    assert await store.records.page(BUDGETS, "e", 9) == []
    assert await store.records.next_due(BUDGETS) == 5
    assert await store.records.due(BUDGETS, Millis(4), 9) == []
    for now, limit in ((7, 9), (99, 2)):
        due = await store.records.due(BUDGETS, Millis(now), limit)
        assert [budget.name for budget in due] == ["a", "b"]


async def test_reservations_whose_lease_is_gone_are_found(bench: Bench) -> None:
    held = await bench.running()
    other = await bench.running()
    books = BudgetLedger()
    for number, (snapshot, epoch) in enumerate([(held, 1), (held, 2), (other, 1)], 1):
        id = UUID(int=number)
        books.put_reservation(id, reservation(id, uuid_of(snapshot), epoch))
    never = UUID(int=9)
    books.put_reservation(never, reservation(never, never))
    assert await bench.store.post(books)

    async def stale(limit: int = 9) -> set[int]:
        return {id.int for id in (await bench.store.ledger(LedgerNeeds(stale=limit))).reservations}

    assert await stale() == {2, 9}
    await bench.write(lose(other, bench.now, lease_of(other), revoked=True))
    assert await stale() == {2, 3, 9}
    assert len(await stale(2)) == 2
    (again,) = await bench.claim()
    assert again.head.epoch == 2
    assert await stale() == {2, 3, 9}


async def test_charges_are_forgotten_when_their_time_has_passed(bench: Bench) -> None:
    books = BudgetLedger()
    for number in range(5):
        books.put_charge(charge("team", f"{number}", bench.now + number))
    assert await bench.store.post(books)
    assert await bench.store.trim_limits(Millis(bench.now - 1), Millis(bench.now - 1), 9) == 0
    assert await bench.store.trim_limits(Millis(bench.now + 3), Millis(bench.now + 3), 3) == 3
    assert await bench.store.trim_limits(Millis(bench.now + 3), Millis(bench.now + 3), 9) == 1
    keys = tuple(("team", f"{number}") for number in range(5))
    assert (await bench.store.ledger(LedgerNeeds(charges=keys))).charges.keys() == {("team", "4")}


async def test_what_an_execution_spent_goes_when_it_is_deleted(bench: Bench) -> None:
    """What it has set aside stays, so that it is given back"""
    gone, stays = await bench.running(), await bench.running()
    books = BudgetLedger()
    for number, snapshot in enumerate((gone, stays)):
        uuid, id = uuid_of(snapshot), UUID(int=number)
        books.put_ledger(("team", uuid), Ledger("team", uuid, 0, {"tokens": 7}))
        books.put_reservation(id, reservation(id, uuid))
    assert await bench.store.post(books)
    await bench.store.end([bench.completing(gone)], bench.now)
    bench.clock.advance(1)
    assert await bench.store.trim(bench.now, bench.now, 9) == 1
    found = await bench.store.ledger(LedgerNeeds(executions=(uuid_of(gone), uuid_of(stays))))
    assert found.ledgers.keys() == {("team", uuid_of(stays))}
    assert found.reservations.keys() == {UUID(int=0), UUID(int=1)}
    stale = await bench.store.ledger(LedgerNeeds(stale=9))
    assert list(stale.reservations) == [UUID(int=0)]
