"""Events of the worker registry: one for each transition, in the numbering of all events.

§7, §8; F-60, I-41, I-43, I-45.
"""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family, StoredEvent
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.registry import Marked, NotRegistered, Presence
from tests.kit import situations
from tests.kit.damage import spoil
from tests.kit.lab import Lab
from tests.kit.race import Race

TTL = 30_000


def ada(**members: Any) -> Presence:
    return Presence(**{"worker": "ada", "instance": "ada-1", "ttl": Millis(TTL), **members})


async def told(lab: Lab, **filters: Any) -> list[StoredEvent]:
    return list((await lab.engine.events.read(family=Family.WORKER, **filters)).events)


async def changes(lab: Lab, **filters: Any) -> list[str | None]:
    return [event.registry for event in await told(lab, **filters)]


async def test_an_event_says_which_worker_came_and_what_it_offers(lab: Lab) -> None:
    """C-T131, I-41"""
    at = lab.clock.advance(5)
    await lab.engine.workers.register(ada(lanes=("fast",), capabilities=("gpu",), namespace="n"))
    (event,) = await told(lab)
    assert (event.registry, event.at, event.namespace) == ("registered", at, "n")
    assert (event.id, event.lane, event.epoch) == (None, "", 0)
    assert event.worker == WorkerIdentity("ada", "ada-1")
    assert event.detail is not None
    assert (event.detail["lanes"], event.detail["capabilities"]) == (["fast"], ["gpu"])


async def test_saying_the_same_again_is_no_transition(lab: Lab) -> None:
    """F-60: neither is a heartbeat"""
    await lab.engine.workers.register(ada())
    lab.clock.advance(10)
    await lab.engine.workers.register(ada())
    await lab.engine.workers.heartbeat("ada-1", running=3)
    assert await changes(lab) == ["registered"]


async def test_other_capabilities_are_a_transition(lab: Lab) -> None:
    """C-T131: a hot restart with other capabilities"""
    await lab.engine.workers.register(ada(capabilities=("cpu",)))
    await lab.engine.workers.register(ada(capabilities=("gpu",)))
    registered, changed = await told(lab)
    assert (registered.registry, changed.registry) == ("registered", "changed")
    assert changed.detail is not None
    assert changed.detail["capabilities"] == ["gpu"]


async def test_a_reason_is_any_text_without_control_characters(lab: Lab) -> None:
    """C-T132, §7.3"""
    for reason in ("power\u00a0cut", "a\u2028b", "\u200d"):
        await lab.engine.workers.register(ada())
        assert await lab.engine.workers.mark_dead("ada-1", reason=reason) == Marked()
        assert (await told(lab))[-1].reason == reason
    for reason in ("a\tb", "a\x7f", "a\x85b"):
        with pytest.raises(Invalid):
            await lab.engine.workers.mark_dead("ada-1", reason=reason)


async def test_a_dead_worker_is_reported_once_with_the_reason(lab: Lab) -> None:
    """I-41, §7.3: whether or not its leases are revoked, and however often it is marked"""
    for revoke in (False, True):
        await lab.engine.workers.register(ada())
        await lab.engine.workers.mark_dead("ada-1", reason="on fire", revoke=revoke)
        again = await lab.engine.workers.mark_dead("ada-1", reason="still", revoke=revoke)
        assert again == NotRegistered()
    assert await changes(lab) == ["registered", "marked_dead"] * 2
    assert [event.reason for event in await told(lab)] == [None, "on fire"] * 2


@pytest.mark.inside
async def test_a_mark_that_another_process_finishes_is_one_event(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-41: the entry goes later, which is no transition"""
    await lab.engine.workers.register(ada())

    async def dies() -> None:
        raise asyncio.CancelledError

    Race(lab, monkeypatch).before("held_leases", dies)
    with pytest.raises(asyncio.CancelledError):
        await lab.engine.workers.mark_dead("ada-1", reason="gone", revoke=True)
    lab.clock.advance(10_000)
    await lab.engine.workers.finish()
    assert await lab.engine.workers.get("ada-1") is None
    assert await changes(lab) == ["registered", "marked_dead"]


async def test_the_sweep_reports_a_worker_that_fell_silent(lab: Lab) -> None:
    """C-T131, §7.6"""
    await lab.engine.workers.register(ada(namespace="n"))
    lab.clock.advance(TTL)
    assert (await lab.engine.workers.sweep(), await lab.engine.workers.sweep()) == (1, 0)
    _, expired = await told(lab)
    assert (expired.registry, expired.namespace) == ("expired", "n")
    assert expired.worker == WorkerIdentity("ada", "ada-1")


async def test_one_whole_sweep_removes_silent_workers_as_well(lab: Lab) -> None:
    """C-T131, §7.6: the time to live is swept with everything else that is due"""
    await lab.engine.workers.register(ada())
    lab.clock.advance(TTL - 1)
    await lab.engine.sweep.once()
    assert await lab.engine.workers.get("ada-1") is not None
    lab.clock.advance(1)
    await lab.engine.sweep.once()
    assert await lab.engine.workers.get("ada-1") is None
    assert await changes(lab) == ["registered", "expired"]


async def test_an_entry_that_cannot_be_read_expires_with_an_event(lab: Lab, store_url: str) -> None:
    """I-41: the key says which instance it was"""
    await lab.engine.workers.register(ada())
    await spoil(store_url, "presence", "doc", "ada-1", key="instance")
    lab.clock.advance(TTL)
    assert await lab.engine.workers.sweep() == 1
    _, expired = await told(lab)
    assert expired.worker == WorkerIdentity("", "ada-1")


async def test_a_worker_that_comes_back_unswept_has_expired_before(lab: Lab) -> None:
    """I-41: the sweep will not see the old entry any more"""
    await lab.engine.workers.register(ada())
    lab.clock.advance(TTL)
    await lab.engine.workers.register(ada(worker="bob"))
    assert await lab.engine.workers.sweep() == 0
    _, expired, registered = await told(lab)
    assert (expired.registry, registered.registry) == ("expired", "registered")
    assert [each.worker and each.worker.id for each in (expired, registered)] == ["ada", "bob"]


async def test_leaving_is_a_transition_of_its_own(lab: Lab) -> None:
    await lab.engine.workers.register(ada())
    await lab.engine.workers.deregister("ada-1")
    await lab.engine.workers.deregister("ada-1")
    assert await changes(lab) == ["registered", "deregistered"]


async def test_a_mark_and_a_sweep_at_once_are_one_event(lab: Lab, second_lab: Lab) -> None:
    """§7.6: exactly one of them removes the entry"""
    for number in range(10):
        instance = f"ada-{number}"
        await lab.engine.workers.register(ada(instance=instance))
        lab.clock.advance(TTL)
        await asyncio.gather(
            lab.engine.workers.mark_dead(instance, reason="late"),
            second_lab.engine.workers.sweep(),
        )
        ours = [
            event.registry
            for event in await told(lab)
            if event.worker is not None and event.worker.instance == instance
        ]
        assert ours in (["registered", "marked_dead"], ["registered", "expired"])


async def test_a_rival_that_registers_first_leaves_one_event_each(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-41: the event belongs to the write that won"""
    workers = lab.engine.workers
    Race(lab, monkeypatch).before(
        "records.put", lambda: workers.register(ada(capabilities=("gpu",)))
    )
    await workers.register(ada(capabilities=("cpu",)))
    assert await changes(lab) == ["registered", "changed"]


# -- among the others


async def test_they_share_the_cursor_of_all_events(lab: Lab) -> None:
    """I-43: one numbering, one order"""
    await lab.engine.workers.register(ada())
    id = await situations.cancelled_unrun(lab)
    await lab.engine.workers.deregister("ada-1")
    events = (await lab.engine.events.read()).events
    assert [event.id for event in events] == [None, id, None]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    after = await lab.engine.events.read(after=events[1].seq)
    assert [event.registry for event in after.events] == ["deregistered"]
    assert await lab.engine.events.tail() == events[-1].seq


async def test_filters_hold_for_them(lab: Lab) -> None:
    """I-45: their namespace is that of the entry, and no tag matches"""
    await lab.engine.workers.register(ada(namespace="n1"))
    await lab.engine.workers.register(ada(namespace="n2"))
    await situations.cancelled_unrun(lab, namespace="n1", tags={"app.x": "v"})
    assert [event.namespace for event in await told(lab, namespace="n1")] == ["n1"]
    assert await told(lab, namespace="n3") == []
    assert await told(lab, tag=("app.x", "v")) == []
    of_n2 = (await lab.engine.events.read(namespace="n2")).events
    assert [event.registry for event in of_n2] == ["registered"]


async def test_the_id_that_no_run_has_shows_no_worker(lab: Lab) -> None:
    """I-45: otherwise it would show the workers of every namespace"""
    await lab.engine.workers.register(ada())
    nobody = ExecutionId.of(0, UUID(int=0))
    assert (await lab.engine.events.read(execution=nobody)).events == ()


async def test_retention_deletes_old_ones(lab: Lab) -> None:
    """F-65: and says up to which number"""
    await lab.engine.workers.register(ada())
    first = (await told(lab))[0].seq
    lab.clock.advance(8 * 86_400_000)
    await lab.engine.workers.register(ada())
    await lab.engine.sweep.trim()
    assert await changes(lab) == ["expired", "registered"]
    assert await lab.engine.store.forgotten_event() == first


async def test_a_silent_worker_is_reported_within_half_a_minute(lab: Lab) -> None:
    """§7.6: the sweep looks every 30 seconds, however many turns it makes meanwhile"""
    await lab.engine.workers.register(ada(ttl=Millis(5_000)))
    await lab.engine.workers.register(ada(instance="ada-2", ttl=Millis(60_000)))
    for step in (0, 5_001, 24_998):
        lab.clock.advance(step)
        await lab.engine.sweep._turn()
        assert await changes(lab) == ["registered", "registered"]
    lab.clock.advance(1)
    await lab.engine.sweep._turn()
    event = (await told(lab))[-1]
    assert (event.registry, event.at) == ("expired", lab.clock.now())
    assert event.worker == WorkerIdentity("ada", "ada-1")
    for step in (30_000, 1):
        lab.clock.advance(step)
        await lab.engine.sweep._turn()
    assert await changes(lab) == ["registered", "registered", "expired", "expired"]


async def test_looking_for_silent_workers_is_one_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7.6: a process at rest writes nothing for it"""

    async def expire(*given: Any) -> Any:
        raise AssertionError("there is nothing to remove")

    monkeypatch.setattr(lab.engine.store.records, "expire", expire)
    assert await lab.engine.workers.sweep() == 0
    await lab.engine.workers.register(ada())
    assert await lab.engine.workers.sweep() == 0
