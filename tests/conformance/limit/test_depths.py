"""How many wait for a worker and how many run, by route, in one read."""

from uuid import UUID

from flowfabric.core.base.ids import ExecutionId
from tests.kit.lab import Lab


async def test_waiting_and_running_by_route(lab: Lab) -> None:
    first = await lab.submit("a", lane="one")
    await lab.submit("a", lane="one")
    await lab.submit("b", lane="two", namespace="other")
    await lab.claim(lanes=["two"])
    found = {(each.route.lane, each.route.kind): each for each in await lab.engine.lanes.depths()}
    assert sorted(found) == [("one", "a"), ("two", "b")]
    one, two = found["one", "a"], found["two", "b"]
    assert (one.waiting, one.running, one.oldest) == (2, 0, first.uuid)
    assert one.oldest_at == lab.clock.now()
    assert (two.waiting, two.running, two.oldest, two.oldest_at) == (0, 1, None, None)
    assert two.route.namespace == "other"


async def test_ids_of_clients_say_nothing_about_the_time(lab: Lab) -> None:
    """Clients of FlowFabric 0.15 mint random ids; the first in line stands for the oldest."""
    ids = [ExecutionId.of(86, UUID(int=number << 80 | 4 << 76 | 2 << 62)) for number in (2, 1)]
    begun = lab.clock.now()
    for id in ids:
        await lab.submit(id=id)
        lab.clock.advance(1_000)
    (depth,) = await lab.engine.lanes.depths()
    assert (depth.waiting, depth.oldest, depth.oldest_at) == (2, ids[0].uuid, begun)


async def test_nothing_waits_and_nothing_runs(lab: Lab) -> None:
    assert list(await lab.engine.lanes.depths()) == []
    claim = await lab.running()
    await lab.complete(claim)
    assert list(await lab.engine.lanes.depths()) == []


async def test_what_was_lost_waits_for_no_worker_of_its_own(lab: Lab) -> None:
    """A lost execution is taken over; it is no backlog."""
    claim = await lab.running()
    await lab.lose(claim)
    assert sum(each.running for each in await lab.engine.lanes.depths()) <= 1


async def test_a_limit_bounds_what_is_read(lab: Lab) -> None:
    for _ in range(5):
        await lab.submit()
    (depth,) = await lab.engine.store.depths(3)
    assert depth.waiting == 3


async def test_the_latest_failures_only(lab: Lab) -> None:
    """`most` bounds what is read; fewer than that are all of them."""
    for number in range(4):
        claim = await lab.running()
        await lab.fail(claim, category="permanent", message=f"broken in part {number}")
    all_of_them = await lab.engine.views.failures(most=10)
    assert all_of_them.complete
    assert sum(group.count for group in all_of_them.groups) == 4
    some = await lab.engine.views.failures(most=2)
    assert not some.complete
    assert sum(group.count for group in some.groups) == 2
