"""Limits on Postgres: what is special to this store."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from flowfabric.core.budget import Budget, Limit
from flowfabric.core.budgeting import create
from flowfabric.core.execution import Gate, Snapshot, Waiting
from flowfabric.core.lane import Lane
from flowfabric.core.lease import Owner
from flowfabric.core.quota import Quota, Rate, queue_of
from flowfabric.core.release import release
from flowfabric.core.spending import Books, Spending, reserve, spend
from flowfabric.core.time import Millis
from flowfabric.store.limits import BookAsk, StandingAsk
from tests.postgres import Databases
from tests.store.postgres_bench import Bench, lose_reply, migrated_template, opened

OPERATOR = Owner(source="operator_override")


@pytest.fixture
def database(databases: Databases, fresh_database: Callable[..., str]) -> str:
    return fresh_database(template=migrated_template(databases))


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


def limited(*uses: tuple[str, str]) -> dict[str, Any]:
    return {"policy": {"quotas": [{"quota": quota, "key": key} for quota, key in uses]}}


async def waiting(
    bench: Bench, count: int, *uses: tuple[str, str], **members: Any
) -> list[Snapshot]:
    found = await bench.submit_many(count, **limited(*uses), **members)
    named = found[0].execution.uses
    await bench.store.put_queues([(queue_of(named), named)])
    return found


def ask(bench: Bench, quota: str = "a", queues: tuple[int, ...] | None = None) -> StandingAsk:
    return StandingAsk(quota, queues, lines=100, depth=50, now=bench.now)


async def test_smoke(bench: Bench) -> None:
    store = bench.store
    assert await store.put_quota(Quota(name="a", concurrency=3, rate=Rate(2, Millis(1000))), 0)
    assert not await store.put_quota(Quota(name="a", concurrency=3), 0)
    many = await waiting(bench, 5, ("a", "k"))
    few = await waiting(bench, 2, ("a", "l"), ("b", ""))
    assert isinstance(many[0].state, Waiting)
    standing = await store.standing(ask(bench))
    assert {line.id for line in standing.lines} == {
        queue_of(many[0].execution.uses),
        queue_of(few[0].execution.uses),
    }
    assert standing.quotas["a"].version == 1
    found = release(standing, bench.now, 500)
    assert len(found.moves) == 2
    through = await store.release(found)
    assert through is not None
    assert through.moved == {move.uuid for move in found.moves}
    assert through.lanes == {"default"}
    assert await store.release(found) is None
    standing = await store.standing(ask(bench))
    assert sum(count for _, count in standing.held) == 2
    assert standing.admitted == {("a", ""): [(bench.now, 2)]}
    assert len(await bench.claim(9)) == 2
    crowds = await store.crowds(-1, 9)
    assert all(crowd.known for crowd in crowds)
    assert {crowd.gate for crowd in crowds} == {Gate.LIMIT}
    print(await store.queue_counts("a", 9), await store.wait_counts("default", None))
    assert await store.trim_queues(bench.now, 99) == 0
    print(await store.lane_settings(None))


async def test_books(bench: Bench) -> None:
    store = bench.store
    books = Books()
    create(books, Budget(name="top", limits={"t": Limit(hard=10)}), bench.now)
    create(books, Budget(name="part", parent="top", limits={"t": Limit(hard=10)}), bench.now)
    assert await store.post(books)
    assert not await store.post(books)
    held = await bench.running()
    uuid = held.execution.uuid
    books = await store.books(
        BookAsk(budgets=("part",), charges=(("part", "k"),), executions=(uuid,))
    )
    assert set(books.budgets) == {"top", "part"}
    spend(books, Spending(("part",), {"t": 3}, uuid, "k"), bench.now)
    reserve(books, Spending(("part",), {"t": 3}, uuid), bench.fresh(), 1, bench.now)
    lose_reply(store.session.limit)
    assert await store.post(books)
    assert not await store.post(books)
    again = await store.books(
        BookAsk(budgets=("part",), charges=(("part", "k"),), executions=(uuid,))
    )
    assert again.budgets["top"].used == {"t": 3}
    assert [len(again.ledgers), len(again.charges), len(again.reservations)] == [2, 1, 1]
    assert await store.stale_reservations(9) == []
    assert await store.has_parts("top")


async def test_cap(bench: Bench) -> None:
    await bench.store.put_lane(Lane(name="a", concurrency=2), 0)
    await bench.submit_many(5, lane="a")
    await bench.submit_many(2, lane="b")
    assert len(await bench.claim(9)) == 4
    assert await bench.claim(9) == []
