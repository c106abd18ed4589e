"""One look tells a process at rest all there is to do."""

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.schedule import Schedule
from flowfabric.store.queries import Glance
from tests.kit import limiting
from tests.kit.lab import TTL, Lab


async def look(lab: Lab) -> Glance:
    now = lab.clock.now()
    return await lab.engine.store.glance("sweep", "me", now, Millis(now + 1000))


async def deadline(lab: Lab) -> None:
    await lab.submit(deadline_at=Millis(lab.clock.now() + TTL))


async def delay(lab: Lab) -> None:
    await lab.submit(delay_until=Millis(lab.clock.now() + TTL))


async def lease(lab: Lab) -> None:
    await lab.running()


async def schedule(lab: Lab) -> None:
    await lab.engine.schedules.put(Schedule(name="tick", kind="tick", every=Millis(TTL)))


async def test_an_empty_store_has_nothing_to_do(lab: Lab) -> None:
    assert await look(lab) == Glance(has_duty=True, inbox=False, ready=False)


async def test_what_waits_for_a_worker_is_seen_and_is_nothing_to_sweep(lab: Lab) -> None:
    await lab.submit()
    assert await look(lab) == Glance(has_duty=True, inbox=False, ready=True)


@pytest.mark.parametrize("make", [deadline, delay, lease, schedule])
async def test_what_becomes_due_is_told_before_and_seen_then(
    lab: Lab, make: Callable[[Lab], Awaitable[None]]
) -> None:
    await make(lab)
    before = await look(lab)
    assert not before.busy
    assert before.next_at is not None
    lab.clock.advance(before.next_at - lab.clock.now())
    assert (await look(lab)).busy
    await lab.engine.sweep.once()
    assert not (await look(lab)).busy


async def test_leases_and_ready_executions_are_looked_at_only_if_asked_for(lab: Lab) -> None:
    claim = await lab.running()
    assert (await look(lab)).leases_end_at == claim.expires_at
    lab.clock.advance(TTL)
    now = lab.clock.now()
    assert (await look(lab)).leases_end_at == now
    without = await lab.engine.store.glance("sweep", "me", now, Millis(now + 1000), leases=False)
    assert without == Glance(has_duty=True, inbox=False, ready=False)
    await lab.submit()
    unseen = await lab.engine.store.glance(
        "sweep", "me", now, Millis(now + 1000), ready=False, leases=False
    )
    assert unseen == without
    assert await lab.engine.store.due(now, 9, leases=False) == []
    assert await lab.engine.store.next_due(Millis(0), leases=False) is None
    assert await lab.engine.store.next_due(Millis(0)) == now


async def test_only_the_holder_of_the_duty_is_told_what_to_sweep(lab: Lab) -> None:
    await delay(lab)
    lab.clock.advance(TTL)
    now = lab.clock.now()
    assert (await look(lab)).busy
    other = await lab.engine.store.glance("sweep", "other", now, Millis(now + 1000))
    assert other == Glance(has_duty=False, inbox=False, ready=False)


async def test_those_who_wait_for_a_quota_are_looked_after(lab: Lab) -> None:
    await limiting.define(lab, concurrency=1)
    await limiting.crowd(lab, 2)
    seen = await look(lab)
    assert seen.lines
    assert not seen.busy
