"""What every store keeps of lanes, and what a claim takes because of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import fail
from flowfabric.core.execution.lease import lose
from flowfabric.core.execution.model import Failure, Snapshot, Start
from flowfabric.core.limit.lane import Lane, LaneState
from flowfabric.core.wait.resume import resume
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.queries import Claimable, ClaimCall
from flowfabric.store.rows.record import LANES
from tests.kit.lab import TTL, W1
from tests.kit.situations import RETRY_AT_ONCE, suspension
from tests.kit.snapshots import lease_of, owner_of
from tests.store.limit_bench import Bench, uuid_of, uuids

PAUSED = LaneState.PAUSED
DRAINING = LaneState.DRAINING


@pytest.fixture
async def bench(store: Store, clock: ManualClock) -> AsyncIterator[Bench]:
    await store.migrate()
    yield Bench(store, clock)
    await store.close()


async def settle(bench: Bench, name: str, **members: Any) -> None:
    """Decides something about a lane, whatever was decided before."""
    old = (await bench.store.records.get(LANES, [name])).get(name, Lane())
    assert await bench.store.records.put(LANES, Lane(name=name, **members), old.version)


async def begun(bench: Bench, **members: Any) -> list[Snapshot]:
    """Executions that have begun and wait for a worker: one lost, one resumed, one to retry."""
    await bench.submit(3, policy=RETRY_AT_ONCE, **members)
    lost, woken, failed = await bench.claim()
    await bench.write(suspension(woken, bench.now))
    return [
        *await bench.write(lose(lost, bench.now, lease_of(lost), revoked=False)),
        *await bench.write(resume(await bench.load(woken), bench.now)),
        *await bench.write(fail(failed, bench.now, owner_of(failed), Failure("boom"))),
    ]


async def test_settings_are_kept_whole_and_changed_only_by_who_knows_them(bench: Bench) -> None:
    store = bench.store
    full = Lane(
        name="slow",
        state=DRAINING,
        concurrency=3,
        weight=7,
        by="me",
        reason="naïve 鍵",
        at=Millis(5),
        version=77,
        unknown={"later": [1]},
    )
    assert not await store.records.put(LANES, full, 1)
    assert await store.records.put(LANES, full, 0)
    assert not await store.records.put(LANES, Lane(name="slow"), 0)
    assert not await store.records.put(LANES, Lane(name="slow"), 2)
    assert await store.records.get(LANES, ["slow", "default"]) == {"slow": replace(full, version=1)}
    assert await store.records.put(LANES, Lane(name="slow", weight=2), 1)
    assert await store.records.put(LANES, Lane(name="other"), 0)
    both = [Lane(name="other", version=1), Lane(name="slow", weight=2, version=2)]
    assert await store.records.page(LANES) == both
    assert await store.records.get(LANES, []) == {}


async def test_nothing_is_taken_of_a_paused_lane(bench: Bench) -> None:
    started, slow = await begun(bench, lane="slow"), await bench.submit(1, lane="slow")
    (default,) = await bench.submit(1)
    await settle(bench, "slow", state=PAUSED, concurrency=5)
    assert uuids(await bench.claim()) == [uuid_of(default)]
    assert await bench.claim(lanes=("slow",)) == []
    await settle(bench, "slow")
    assert set(uuids(await bench.claim())) == set(uuids([*slow, *started]))


async def test_only_what_has_begun_is_taken_of_a_draining_lane(bench: Bench) -> None:
    """Retries, resumes and reclaims go on; nothing begins, and nothing is hidden."""
    lost, woken, failed = await begun(bench, lane="slow")
    (fresh,) = await bench.submit(1, lane="slow", priority=9)
    (other,) = await bench.submit(1, lane="slow", kind="other")
    (default,) = await bench.submit(1)
    await settle(bench, "slow", state=DRAINING)

    async def candidates(**members: Any) -> set[Any]:
        found = await bench.store.snapshots(Claimable("slow", None, bench.now, 9, **members))
        return {uuid_of(snapshot) for snapshot in found}

    assert await candidates(capabilities=frozenset()) == {uuid_of(woken), uuid_of(failed)}
    assert await candidates() == set(uuids([woken, failed, fresh, other]))
    taken = await bench.claim(limit=2)
    assert len(taken) == 2
    taken += await bench.claim()
    assert set(uuids(taken)) == set(uuids([lost, woken, failed, default]))
    starts = [
        lease_of(snapshot).start for snapshot in taken if uuid_of(snapshot) != uuid_of(default)
    ]
    assert set(starts) == {Start.RECLAIM, Start.CONTINUE, Start.RETRY}
    assert await bench.claim() == []
    await settle(bench, "slow", state=DRAINING, concurrency=3)
    assert await bench.claim() == []
    await settle(bench, "slow", concurrency=4)
    assert uuids(await bench.claim()) == [uuid_of(fresh)]
    await settle(bench, "slow")
    assert uuids(await bench.claim()) == [uuid_of(other)]


async def test_a_lane_runs_no_more_than_its_concurrency(bench: Bench) -> None:
    """Over all its routes; what it has no room for hides nobody behind it."""
    await settle(bench, "slow", concurrency=3)
    for kind in ("a", "b"):
        await bench.submit(3, lane="slow", kind=kind, priority=9)
    await bench.submit(1, lane="slow", kind="a", namespace="ns", priority=9)
    plain = await bench.submit(4, kind="c")
    taken = await bench.claim(limit=5)
    assert [snapshot.execution.route.lane for snapshot in taken] == ["slow"] * 3 + ["default"] * 2
    assert uuids(await bench.claim(limit=1)) == [uuid_of(plain[2])]
    assert await bench.claim(lanes=("slow",)) == []
    assert await bench.store.snapshots(Claimable("slow", None, bench.now, 9))
    await bench.store.end([bench.completing(taken[0])], bench.now)
    again = await bench.claim()
    assert sorted(snapshot.execution.route.lane for snapshot in again) == ["default", "slow"]
    await settle(bench, "slow", concurrency=1)
    assert await bench.claim() == []
    await settle(bench, "slow", concurrency=5)
    assert len(await bench.claim()) == 2
    await settle(bench, "slow")
    assert len(await bench.claim()) == 1


async def test_rivals_together_run_no_more_than_the_concurrency(bench: Bench) -> None:
    await settle(bench, "slow", concurrency=4)
    await bench.submit(20, lane="slow")
    left = 20
    while left:
        rounds = await asyncio.gather(*(bench.claim(limit=3) for _ in range(6)))
        running = [snapshot for taken in rounds for snapshot in taken]
        assert 0 < len(running) <= 4
        left -= len(await bench.store.end([bench.completing(s) for s in running], bench.now))


async def test_a_repeated_claim_gives_what_it_took_of_a_full_lane(bench: Bench) -> None:
    await settle(bench, "slow", concurrency=2)
    await bench.submit(5, lane="slow")
    call = ClaimCall(bench.fresh(), W1, frozenset(), (), None, 4, TTL)
    first = await bench.store.claim(call, bench.now)
    assert len(first) == 2
    again = await bench.store.claim(replace(call, repeated=True), bench.now)
    assert again == [replace(item, again=True) for item in first]
