"""The worker registry on every store."""

from typing import Any

import pytest

from flowfabric.core.errors import Invalid
from flowfabric.core.registry import Marked, NotRegistered, Presence, Refreshed, Registered
from flowfabric.core.time import Millis
from tests.lab import Lab

TTL = 30_000


def ada(**members: Any) -> Presence:
    return Presence(**{"worker": "ada", "instance": "ada-1", "ttl": Millis(TTL), **members})


async def instances(lab: Lab) -> list[str]:
    return [presence.instance for presence in await lab.engine.workers.list()]


async def test_a_worker_registers_and_is_listed_with_what_it_can_run(lab: Lab) -> None:
    outcome = await lab.engine.workers.register(
        ada(lanes=("fast",), kinds=("charge",), capabilities=("gpu", "cpu"), concurrency=7)
    )
    assert outcome == Registered(Millis(lab.clock.now() + TTL))
    (found,) = await lab.engine.workers.list()
    assert found.capabilities == ("cpu", "gpu")
    assert (found.lanes, found.kinds, found.concurrency) == (("fast",), ("charge",), 7)
    assert found.registered_at == found.seen_at == lab.clock.now()


async def test_registering_again_replaces_what_was_said(lab: Lab) -> None:
    await lab.engine.workers.register(ada(capabilities=("cpu",)))
    lab.clock.advance(10)
    again = await lab.engine.workers.register(ada(capabilities=("gpu",)))
    assert isinstance(again, Refreshed)
    (found,) = await lab.engine.workers.list()
    assert found.capabilities == ("gpu",)


async def test_an_instance_belongs_to_one_worker(lab: Lab) -> None:
    await lab.engine.workers.register(ada())
    with pytest.raises(Invalid, match="belongs to worker 'ada'"):
        await lab.engine.workers.register(ada(worker="bob"))
    lab.clock.advance(TTL)
    assert isinstance(await lab.engine.workers.register(ada(worker="bob")), Registered)


async def test_a_heartbeat_keeps_a_worker_there(lab: Lab) -> None:
    await lab.engine.workers.register(ada())
    lab.clock.advance(TTL - 1)
    beat = await lab.engine.workers.heartbeat("ada-1", running=3)
    assert beat == Refreshed(Millis(lab.clock.now() + TTL))
    lab.clock.advance(TTL - 1)
    (found,) = await lab.engine.workers.list()
    assert found.running == 3


async def test_a_worker_that_was_silent_must_register_again(lab: Lab) -> None:
    await lab.engine.workers.register(ada())
    lab.clock.advance(TTL)
    assert await instances(lab) == []
    assert await lab.engine.workers.heartbeat("ada-1") == NotRegistered()
    assert await lab.engine.workers.sweep() == 1
    assert await lab.engine.workers.heartbeat("ada-1") == NotRegistered()
    assert isinstance(await lab.engine.workers.register(ada()), Registered)


async def test_a_worker_marked_dead_is_gone_and_keeps_its_leases(lab: Lab) -> None:
    await lab.engine.workers.register(ada())
    claim = await lab.running()
    marked = await lab.engine.workers.mark_dead("ada-1", reason="host lost")
    assert marked == Marked()
    assert await lab.engine.workers.mark_dead("ada-1", reason="again") == NotRegistered()
    assert await lab.engine.workers.heartbeat("ada-1") == NotRegistered()
    await lab.complete(claim)


async def test_workers_are_listed_by_namespace_and_page_by_page(lab: Lab) -> None:
    for number in range(5):
        await lab.engine.workers.register(ada(instance=f"ada-{number}"))
    await lab.engine.workers.register(ada(instance="ada-9", namespace="other"))
    first = await lab.engine.workers.list(limit=3)
    rest = await lab.engine.workers.list(after=first[-1].instance, limit=3)
    assert [p.instance for p in first + rest] == [f"ada-{number}" for number in range(5)]
    assert await lab.engine.workers.list(limit=0) == []


@pytest.mark.parametrize(
    "presence",
    [
        ada(worker=""),
        ada(instance="two words"),
        ada(lanes=("",)),
        ada(capabilities=("a,b",)),
        ada(concurrency=0),
        ada(running=-1),
        ada(ttl=0),
        ada(namespace=""),
        ada(kinds=("",)),
    ],
)
async def test_what_cannot_be_is_refused(lab: Lab, presence: Presence) -> None:
    with pytest.raises(Invalid):
        await lab.engine.workers.register(presence)
    assert await instances(lab) == []


@pytest.mark.parametrize("reason", ["x" * 257, "line\nbreak", None])
async def test_a_reason_is_short_and_plain(lab: Lab, reason: Any) -> None:
    with pytest.raises(Invalid):
        await lab.engine.workers.mark_dead("ada-1", reason=reason)
