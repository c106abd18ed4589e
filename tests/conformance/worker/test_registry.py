"""The worker registry on every store."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, RetryExhausted
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.registry import (
    Marked,
    NotRegistered,
    Presence,
    Refreshed,
    Registered,
)
from tests.kit.lab import W1, Lab
from tests.kit.race import Race

TTL = 30_000


def ada(**members: Any) -> Presence:
    return Presence(**{"worker": "ada", "instance": "ada-1", "ttl": Millis(TTL), **members})


async def instances(lab: Lab) -> list[str]:
    return [presence.instance for presence in await lab.engine.workers.list()]


async def test_a_worker_registers_and_is_listed_with_what_it_can_run(lab: Lab) -> None:
    """C-T131, I-41"""
    outcome = await lab.engine.workers.register(
        ada(lanes=("fast",), kinds=("charge",), capabilities=("gpu", "cpu"), concurrency=7)
    )
    assert outcome == Registered(Millis(lab.clock.now() + TTL))
    (found,) = await lab.engine.workers.list()
    assert found.capabilities == ("cpu", "gpu")
    assert (found.lanes, found.kinds, found.concurrency) == (("fast",), ("charge",), 7)
    assert found.registered_at == found.seen_at == lab.clock.now()


async def test_registering_again_replaces_what_was_said(lab: Lab) -> None:
    """C-T131, I-41: registered, then refreshed; one entry"""
    await lab.engine.workers.register(ada(capabilities=("cpu",)))
    lab.clock.advance(10)
    again = await lab.engine.workers.register(ada(capabilities=("gpu",)))
    assert isinstance(again, Refreshed)
    (found,) = await lab.engine.workers.list()
    assert found.capabilities == ("gpu",)


async def test_an_instance_belongs_to_one_worker(lab: Lab) -> None:
    """C-T132, F-61: the same rule on every store"""
    await lab.engine.workers.register(ada())
    with pytest.raises(Invalid, match=r"instance_id reassigned.* belongs to worker 'ada'"):
        await lab.engine.workers.register(ada(worker="bob"))
    lab.clock.advance(TTL)
    assert isinstance(await lab.engine.workers.register(ada(worker="bob")), Registered)


async def test_a_heartbeat_keeps_a_worker_there(lab: Lab) -> None:
    """C-T131, F-69"""
    await lab.engine.workers.register(ada())
    lab.clock.advance(TTL - 1)
    beat = await lab.engine.workers.heartbeat("ada-1", running=3)
    assert beat == Refreshed(Millis(lab.clock.now() + TTL))
    lab.clock.advance(TTL - 1)
    (found,) = await lab.engine.workers.list()
    assert found.running == 3


async def test_a_worker_that_was_silent_must_register_again(lab: Lab) -> None:
    """C-T131, F-69: one record with one expiry, and nothing of it stays"""
    await lab.engine.workers.register(ada())
    lab.clock.advance(TTL)
    assert await instances(lab) == []
    assert await lab.engine.workers.heartbeat("ada-1") == NotRegistered()
    assert await lab.engine.workers.sweep() == 1
    assert await lab.engine.workers.heartbeat("ada-1") == NotRegistered()
    assert isinstance(await lab.engine.workers.register(ada()), Registered)


async def test_two_workers_want_an_instance_at_once(lab: Lab, second_lab: Lab) -> None:
    """I-41, C-T132, F-61: one of them gets it, whoever reads what meanwhile"""
    for number in range(10):
        answers = await asyncio.gather(
            *(
                bench.engine.workers.register(ada(worker=name, instance=f"x-{number}"))
                for name, bench in (("ada", lab), ("bob", second_lab), ("eve", lab))
            ),
            return_exceptions=True,
        )
        (won,) = [answer for answer in answers if isinstance(answer, Registered)]
        assert won.expires_at == lab.clock.now() + TTL
        assert sum(isinstance(answer, Invalid) for answer in answers) == 2
    assert len(await instances(lab)) == 10


async def test_a_heartbeat_does_not_bring_back_what_is_gone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-41: the entry it read is compared with the one that is there when it writes"""
    workers = lab.engine.workers
    await workers.register(ada())

    async def taken_over() -> None:
        await workers.mark_dead("ada-1", reason="host lost")
        await workers.register(ada(worker="bob"))

    Race(lab, monkeypatch).before("records.put", taken_over)
    assert await workers.heartbeat("ada-1", worker="ada", running=1) == NotRegistered()
    (found,) = await workers.list()
    assert found.worker == "bob"
    assert await workers.deregister("ada-1", worker="ada") == NotRegistered()
    assert await workers.deregister("ada-1", worker="bob") == Marked()
    assert await workers.deregister("ada-1") == NotRegistered()


async def test_who_always_loses_gives_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.engine.workers.register(ada())

    async def never(*_: object) -> bool:
        return False

    for name in ("put", "drop"):
        monkeypatch.setattr(lab.engine.store.records, name, never)
    workers = lab.engine.workers
    for call in (
        lambda: workers.register(ada()),
        lambda: workers.heartbeat("ada-1", running=1),
        lambda: workers.deregister("ada-1"),
        lambda: workers.mark_dead("ada-1", reason=""),
        lambda: workers.mark_dead("ada-1", reason="", revoke=True),
    ):
        with pytest.raises(RetryExhausted):
            await call()


async def test_only_transitions_are_told(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """F-60, C-T131: one line and one event when a worker comes and goes, none for a heartbeat"""
    caplog.set_level("INFO", logger="flowfabric.registry")
    workers = lab.engine.workers
    await workers.register(ada())
    await workers.register(ada())
    for _ in range(3):
        await workers.heartbeat("ada-1")
    await workers.deregister("ada-1")
    await workers.register(ada())
    lab.clock.advance(TTL)
    assert (await workers.sweep(), await workers.sweep()) == (1, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "worker ada-1 (default) registered as ada",
        "worker ada-1 (default) signed off",
        "worker ada-1 (default) registered as ada",
        "worker ada-1 (default) fell silent and was removed",
    ]
    assert [event.registry for event in (await lab.engine.events.read()).events] == [
        "registered",
        "deregistered",
        "registered",
        "expired",
    ]


# -- the list


async def test_workers_are_listed_by_namespace_and_page_by_page(lab: Lab) -> None:
    """C-T131: by (namespace, instance); a page is short only at the end"""
    workers = lab.engine.workers
    names = ["ada-0", "B", "ada-1", "é", "Z-9", "ada-10"]
    for name in names:
        await workers.register(ada(instance=name))
        await workers.register(ada(instance=name, namespace="Other"))
    here = [("default", name) for name in sorted(names)]
    there = [("Other", name) for name in sorted(names)]
    assert [p.key for p in await workers.list()] == here
    assert [p.key for p in await workers.list(after="Z-9")] == here[
        here.index(("default", "Z-9")) + 1 :
    ]
    for namespace, wanted in (("default", here), (None, there + here)):
        found: list[Presence] = []
        while page := await workers.list(
            namespace=namespace, after=found[-1].key if found else None, limit=5
        ):
            found += page
        assert [p.key for p in found] == wanted
    assert await workers.list(limit=0) == []


async def test_a_list_without_a_limit_has_up_to_a_thousand_workers(lab: Lab) -> None:
    """§7.4: limit default 1000"""
    names = [f"ada-{number:03}" for number in range(101)]
    await asyncio.gather(*(lab.engine.workers.register(ada(instance=name)) for name in names))
    assert [entry.instance for entry in await lab.engine.workers.list()] == names


async def test_dead_entries_do_not_shorten_a_page(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T131: those that ran out are skipped, however many lie between two live ones"""
    monkeypatch.setattr("flowfabric.engine.workers.PAGE", 2)
    for number in range(9):
        long = number in (0, 5, 8)
        ttl = Millis(TTL if long else 1)
        await lab.engine.workers.register(ada(instance=f"ada-{number}", ttl=ttl))
    lab.clock.advance(1)
    page = await lab.engine.workers.list(limit=2)
    assert [p.instance for p in page] == ["ada-0", "ada-5"]
    assert [p.instance for p in await lab.engine.workers.list(after="ada-5", limit=2)] == ["ada-8"]
    assert len(await lab.engine.workers.list(alive=False)) == 6
    assert len(await lab.engine.workers.list(alive=None)) == 9


async def test_workers_are_filtered_by_what_they_can_run(lab: Lab) -> None:
    """C-T131, F-69: per worker, never the union of what they offer"""
    offers: dict[str, dict[str, Any]] = {
        "any": {},
        "cpu": {"lanes": ("slow",), "kinds": ("charge",), "capabilities": ("cpu",)},
        "gpu": {"lanes": ("fast", "slow"), "kinds": ("draw",), "capabilities": ("cpu", "gpu")},
    }
    for instance, members in offers.items():
        await lab.engine.workers.register(ada(instance=instance, **members))

    async def found(**filters: Any) -> list[str]:
        return [p.instance for p in await lab.engine.workers.list(**filters)]

    assert await found(lane="fast") == ["any", "gpu"]
    assert await found(lane="slow", kind="charge") == ["any", "cpu"]
    assert await found(capabilities=["cpu"]) == ["cpu", "gpu"]
    assert await found(capabilities={"gpu", "cpu"}, lane="slow") == ["gpu"]
    assert await found(capabilities=("tpu",)) == []
    assert await found(kind="draw", namespace="nowhere") == []


@pytest.mark.rules
@pytest.mark.parametrize(
    "filters",
    [
        {"lane": ""},
        {"lane": 7},
        {"kind": ""},
        {"capabilities": "gpu"},
        {"capabilities": ["a b"]},
        {"alive": "yes"},
        {"namespace": ""},
        {"namespace": 7},
        {"limit": "7"},
        {"after": 7},
        {"after": ("a",)},
        {"after": ("a", None)},
        {"after": "ada-1", "namespace": None},
        {"after": "a\0"},
    ],
    ids=repr,
)
async def test_a_filter_that_cannot_be_is_refused(lab: Lab, filters: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await lab.engine.workers.list(**filters)


async def test_a_worker_that_lies_is_found_out(lab: Lab) -> None:
    """C-T131: what it holds is counted from its leases, by instance, worker and namespace"""
    workers = lab.engine.workers
    me = ada(worker=W1.id, instance=W1.instance, concurrency=4)
    await workers.register(me)
    await workers.register(ada(worker=W1.id, instance=W1.instance, namespace="b", everywhere=True))
    await workers.heartbeat(W1.instance, running=1)
    claims = [await lab.running(namespace=name) for name in ("default", "default", "b", "c")]
    await lab.running(WorkerIdentity("other", W1.instance))
    entries = await workers.list(namespace=None)
    assert [(entry.namespace, entry.load) for entry in entries] == [("b", 0.0), ("default", 0.25)]
    assert await workers.held(entries) == [4, 2]
    assert await workers.held([]) == []
    everything = await workers.leases(W1.instance, worker=W1.id)
    assert [lease.id for lease in everything] == sorted(
        (claim.id for claim in claims), key=lambda id: id.uuid
    )
    one = everything[0]
    assert (one.lease_id, one.epoch, one.worker) == (claims[0].lease.id, claims[0].epoch, W1)
    assert (one.since, one.expires_at) == (lab.clock.now(), claims[0].expires_at)
    assert (one.namespace, one.lane, one.kind, one.attempt) == ("default", "default", "job", 0)
    assert await workers.leases(W1.instance, worker=W1.id, after=one.id) == everything[1:]
    assert len(await workers.leases(W1.instance)) == 5
    assert len(await workers.leases(W1.instance, namespace="c")) == 1
    assert await workers.leases(W1.instance, limit=0) == []
    assert await workers.leases("nobody") == []


# -- bad values


@pytest.mark.rules
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
        ada(lanes="fast"),
        ada(everywhere="yes"),
        "ada-1",
    ],
)
async def test_what_cannot_be_is_refused(lab: Lab, presence: Presence) -> None:
    with pytest.raises(Invalid):
        await lab.engine.workers.register(presence)
    assert await instances(lab) == []
