"""Marking workers dead, and taking their leases away."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import Contention, Invalid, LeaseRevoked, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.registry import Marked, NotRegistered, Presence, Registered
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.workers import ABANDONED_AFTER, LOOK_EVERY
from tests.kit.flow_lab import failing
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.race import kinds


def w1(**members: Any) -> Presence:
    return Presence(**{"worker": W1.id, "instance": W1.instance, "ttl": Millis(TTL), **members})


async def holding(lab: Lab, count: int, **members: Any) -> list[Claim]:
    """A registered worker that holds so many leases."""
    await lab.engine.workers.register(w1())
    return [await lab.running(**members) for _ in range(count)]


async def mark(lab: Lab, **options: Any) -> Marked | NotRegistered:
    return await lab.engine.workers.mark_dead(
        W1.instance, **{"reason": "host lost", "revoke": True, **options}
    )


async def leases(lab: Lab) -> int:
    return len(await lab.engine.workers.leases(W1.instance))


async def test_a_worker_marked_dead_is_gone_and_keeps_its_leases(lab: Lab) -> None:
    """C-T131: asked again, nobody is there"""
    (claim,) = await holding(lab, 1)
    assert await mark(lab, revoke=False) == Marked()
    assert await mark(lab, revoke=False) == NotRegistered()
    assert await mark(lab, revoke=True) == NotRegistered()
    assert await lab.engine.workers.heartbeat(W1.instance) == NotRegistered()
    assert await lab.engine.workers.get(W1.instance) is None
    assert await leases(lab) == 1
    await lab.complete(claim)


async def test_marking_a_worker_dead_can_take_its_leases_away(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T131, F-61: each by a change of its own, page by page; others take the work over at once,
    and the dead worker can change nothing any more"""
    monkeypatch.setattr("flowfabric.engine.workers.PAGE", 2)
    claims = await holding(lab, 5)
    other = await lab.running(W2)
    assert await mark(lab) == Marked(5)
    assert await mark(lab) == NotRegistered()
    assert await lab.engine.workers.list(alive=None) == []
    for claim in claims:
        with pytest.raises(LeaseRevoked, match="worker w1-a was marked dead: host lost"):
            await lab.complete(claim)
        assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_REVOKED]
    taken = await lab.claim(W2, limit=9)
    assert {claim.id for claim in taken} == {claim.id for claim in claims}
    await lab.complete(other)


async def test_only_its_own_leases_fall_with_a_worker(lab: Lab) -> None:
    """F-61: by worker id, by instance, and by namespace unless it claims from every one"""
    (mine,) = await holding(lab, 1)
    elsewhere = await lab.running(namespace="b")
    stranger = await lab.running(WorkerIdentity("stranger", W1.instance))
    assert await mark(lab) == Marked(1)
    assert (await lab.claim_one(W2)).id == mine.id
    await lab.engine.workers.register(w1(everywhere=True))
    assert await mark(lab) == Marked(1)
    with pytest.raises(LeaseRevoked):
        await lab.complete(elsewhere)
    await lab.complete(stranger)


async def test_a_worker_whose_time_ran_out_can_still_be_marked(lab: Lab) -> None:
    """C-T131: nobody need wait for leases that are longer than the silence"""
    await lab.engine.workers.register(w1(ttl=Millis(1)))
    claim = await lab.running()
    lab.clock.advance(1)
    assert await mark(lab) == Marked(1)
    assert (await lab.claim_one(W2)).id == claim.id


@pytest.mark.parametrize("survives", range(4))
async def test_the_sweep_finishes_what_was_begun(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    """C-T131, F-61: the process dies after some of its writes; the mark stays until all is done,
    and nobody registers, beats or signs off over it meanwhile"""
    monkeypatch.setattr("flowfabric.engine.workers.PAGE", 1)
    claims = await holding(lab, 3)
    with monkeypatch.context() as cut:
        left = [survives]
        store = lab.engine.store
        cut.setattr(store, "apply", failing(store.apply, left))
        cut.setattr(store.records, "drop", failing(store.records.drop, left))
        with pytest.raises(Unavailable):
            await mark(lab)
    assert await leases(lab) == 3 - survives
    workers = second_lab.engine.workers
    (entry,) = await workers.list(alive=False)
    assert (entry.marked_at, entry.reason) == (lab.clock.now(), "host lost")
    assert await workers.list() == []
    assert await workers.heartbeat(W1.instance) == NotRegistered()
    assert await workers.deregister(W1.instance) == NotRegistered()
    assert await mark(lab, revoke=False) == NotRegistered()
    with pytest.raises(Contention, match="leases are being revoked"):
        await workers.register(w1())
    lab.clock.advance(ABANDONED_AFTER - 1)
    await second_lab.engine.sweep.once()
    assert await leases(lab) == 3 - survives, "whoever marked it may be at it"
    lab.clock.advance(10 * TTL if survives == 3 else LOOK_EVERY)
    assert await workers.sweep() == 0, "a marked entry does not run out"
    await second_lab.engine.sweep.once()
    assert await leases(lab) == 0
    assert await workers.get(W1.instance) is None
    assert isinstance(await workers.register(w1()), Registered)
    for claim in claims:
        assert (await kinds(lab, claim.id)).count(EventKind.LEASE_REVOKED) == 1


async def test_asking_again_finishes_as_well(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-61: and the reason of the first stays"""
    (claim,) = await holding(lab, 1)
    with monkeypatch.context() as cut:
        cut.setattr(lab.engine.store, "apply", failing(lab.engine.store.apply, [0]))
        with pytest.raises(Unavailable):
            await mark(lab)
    assert await mark(lab, reason="another") == Marked(1)
    with pytest.raises(LeaseRevoked, match="host lost"):
        await lab.complete(claim)


async def test_what_a_live_worker_claims_after_the_mark_stays(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-61: it lives after all, and taking that as well might never end"""
    (old,) = await holding(lab, 1)
    with monkeypatch.context() as cut:
        cut.setattr(lab.engine.store, "apply", failing(lab.engine.store.apply, [0]))
        with pytest.raises(Unavailable):
            await mark(lab)
    lab.clock.advance(1)
    fresh = await lab.running()
    await lab.pass_time(ABANDONED_AFTER)
    with pytest.raises(LeaseRevoked):
        await lab.complete(old)
    await lab.complete(fresh)


async def test_several_mark_at_once_while_the_worker_works(lab: Lab, second_lab: Lab) -> None:
    """I-41, F-61: every lease ends once, revoked or by its owner"""
    claims = await holding(lab, 12)
    answers = await asyncio.gather(
        mark(lab),
        mark(second_lab),
        *(lab.complete(claim) for claim in claims[::2]),
        lab.engine.workers.heartbeat(W1.instance),
        return_exceptions=True,
    )
    revoked = sum(answer.revoked for answer in answers if isinstance(answer, Marked))
    completed = sum(answer is None for answer in answers)
    assert revoked + completed == 12
    assert await leases(lab) == 0
    assert await lab.engine.workers.get(W1.instance) is None
    for claim in claims:
        assert len(await kinds(lab, claim.id)) == 2


@pytest.mark.rules
@pytest.mark.parametrize(
    "bad",
    [
        {"reason": "x" * 257},
        {"reason": "é" * 129},
        {"reason": "line\nbreak"},
        {"reason": None},
        {"revoke": "yes"},
        {"revoke": 1},
        {"namespace": ""},
        {"instance": ""},
        {"instance": "two words"},
        {"instance": None},
    ],
    ids=repr,
)
async def test_arguments_are_checked_before_any_access(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, bad: dict[str, Any]
) -> None:
    """C-T132"""
    monkeypatch.setattr(lab.engine.store.records, "get", None)
    with pytest.raises(Invalid):
        await lab.engine.workers.mark_dead(
            bad.get("instance", W1.instance),
            **{"reason": "", **{name: bad[name] for name in bad if name != "instance"}},
        )
