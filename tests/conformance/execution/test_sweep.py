"""The sweep: what is due is done, once, by whoever has the duty; what was lost is found.

E-X07, E-X20, §3.30, §3.66, INV-18.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Corruption, LeaseExpired, LeaseLost, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import Active, Lost, Outcome, Snapshot, Start
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.engine import sweep as sweep_module
from flowfabric.engine.commit import pacer
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.open import open_store
from flowfabric.store.queries import Glance
from tests.kit import limiting, situations
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.situations import DELAY, RETRY, completions, load, take, timeouts

DAY = 86_400_000
WEEK = Millis(7 * DAY)


# -- expired leases are found


async def test_lost_leases_are_listed_by_expiry_and_id_whatever_claim_they_come_from(
    lab: Lab,
) -> None:
    """E-X20, §3.30: claimed, granted, taken by an operator, resumed, reclaimed, revoked"""
    grants, claims = lab.engine.grants, lab.engine.claims
    plain = await lab.running()
    granted = await take(lab, await lab.submit())
    taken = await grants.take(await lab.submit(), ttl=TTL)
    resumed_id = await situations.resumed(lab)
    await grants.issue(resumed_id, "w1")
    resumed = await grants.claim_resumed(resumed_id, W1, ttl=TTL)
    lost_id = await situations.lost(lab)
    await grants.issue_reclaim(lost_id, "w2")
    reclaimed = await grants.reclaim(lost_id, W2, ttl=TTL)
    assert isinstance(reclaimed, Claim)
    revoked = await take(lab, await lab.submit())
    revoked_at = lab.clock.now()
    await claims.revoke(revoked.id, reason="r")
    lab.clock.advance(TTL)
    ran_out = (plain, granted, taken, resumed, reclaimed)
    ends = {revoked.uuid: revoked_at} | {claim.uuid: claim.expires_at for claim in ran_out}
    expected = sorted([*ran_out, revoked], key=lambda claim: (ends[claim.uuid], claim.uuid))
    for _ in range(2):
        page = await claims.expired()
        assert [entry.id for entry in page] == [claim.id for claim in expected]
        assert [entry.lease_id for entry in page] == [claim.lease.id for claim in expected]
        assert [entry.epoch for entry in page] == [claim.epoch for claim in expected]
        assert [entry.attempt for entry in page] == [claim.attempt for claim in expected]
        assert [entry.expires_at for entry in page] == [ends[claim.uuid] for claim in expected]
        instances = [claim.lease.worker.instance for claim in expected]
        assert [entry.instance for entry in page] == instances
        await lab.engine.sweep.once()


async def test_the_list_of_lost_leases_has_pages(lab: Lab) -> None:
    """E-X20: the cursor is exclusive; nothing twice, nothing missed"""
    ids = []
    for number in range(7):
        ids.append((await take(lab, await lab.submit())).id)
        lab.clock.advance(number % 3 == 2)
    lab.clock.advance(TTL)
    claims = lab.engine.claims
    whole = await claims.expired()
    assert sorted(entry.id for entry in whole) == sorted(ids)
    paged, cursor = [], None
    while page := await claims.expired(after=cursor, limit=2):
        paged += page
        cursor = (page[-1].expires_at, page[-1].id)
    assert paged == whole
    assert await claims.expired(limit=0) == []
    assert len(await claims.expired(limit=100_000)) == 7


async def test_the_list_of_lost_leases_knows_what_was_lost_when_and_where(lab: Lab) -> None:
    """§3.30: as of a moment, of a namespace, and nothing that is alive, ended or waiting"""
    mine = await take(lab, await lab.submit(namespace="mine"))
    await situations.waiting(lab)
    await situations.completed(lab)
    claims = lab.engine.claims
    assert await claims.expired() == []
    assert len(await claims.expired(as_of=mine.expires_at)) == 1
    assert await claims.expired(as_of=Millis(mine.expires_at - 1)) == []
    lab.clock.advance(TTL)
    assert [entry.id for entry in await claims.expired(namespace="mine")] == [mine.id]
    assert await claims.expired(namespace="other") == []
    await lab.engine.sweep.once()
    await lab.claim_one(W2)
    assert await claims.expired() == []


# -- the sweep


async def test_one_sweep_does_everything_that_is_due(lab: Lab) -> None:
    """§3.66"""
    members: dict[str, Any] = {"deadline_at": Millis(lab.clock.now() + 1000)}
    late = await lab.submit(**members)
    delayed = await situations.delayed(lab)
    backing = await situations.backing_off(lab)
    leased = await situations.running(lab)
    slow = await situations.running(lab, policy=timeouts(attempt=1000))
    untouched = await situations.suspended(lab)
    lab.clock.advance(TTL)
    assert await lab.engine.sweep.once() == 5
    states = [await lab.state(id) for id in (late, delayed, backing, leased, slow, untouched)]
    assert states == ["expired", "waiting", "waiting", "active", "expired", "suspended"]
    assert await lab.engine.sweep.once() == 0


async def test_a_sweep_is_not_limited_to_a_page(lab: Lab) -> None:
    until = Millis(lab.clock.now() + 1)
    submissions = [Submission(kind="job", delay_until=until) for _ in range(1200)]
    await lab.engine.executions.submit_many(submissions)
    lab.clock.advance(1)
    assert await lab.engine.sweep.once() == 1200
    counts = await lab.engine.views.counts()
    assert counts.by_state["waiting"] == 1200


async def test_two_engines_that_sweep_at_once_do_each_thing_once(lab: Lab, second_lab: Lab) -> None:
    """C-T129, §3.66: safe to run on many nodes"""
    leased = [await situations.running(lab, policy=RETRY) for _ in range(20)]
    late = [await lab.submit(deadline_at=Millis(lab.clock.now() + 5)) for _ in range(20)]
    slow = [await situations.running(lab, policy=timeouts(attempt=9)) for _ in range(20)]
    lab.clock.advance(TTL)
    await asyncio.gather(
        *(each.engine.sweep.once() for each in (lab, second_lab) for _ in range(3))
    )
    for id in leased:
        assert [event.lease for event in await lab.events(id)] == ["acquired", "expired"]
    for id in late + slow:
        assert await completions(lab, id) == [Outcome.EXPIRED]
    for id in leased:
        seen = await lab.engine.views.describe(id)
        assert seen is not None
        assert (seen.reclaims, seen.attempts_made) == (0, 1)


async def test_a_row_that_cannot_be_swept_stops_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """§3.66: never stops at one bad row"""
    bad, good = await situations.delayed(lab), await situations.delayed(lab)
    lab.clock.advance(DELAY)
    store = lab.engine.store
    honest = store.load

    async def broken(uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        if bad.uuid in uuids:
            raise Corruption("no document")
        return await honest(uuids)

    monkeypatch.setattr(store, "load", broken)
    with caplog.at_level(logging.ERROR, "flowfabric.sweep"):
        assert await lab.engine.sweep.once() == 2
    assert "sweeping it failed" in caplog.text
    monkeypatch.undo()
    assert await lab.state(good) is PublicState.WAITING
    assert await lab.state(bad) is PublicState.DELAYED


async def test_a_stale_timer_is_looked_at_once_and_changes_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-18: the rule decides on what is stored now"""
    ids = [await situations.ALL[name](lab) for name in ("running", "waiting", "completed")]
    befores = [await load(lab, id) for id in ids]

    async def stale(*_: Any, **looks: Any) -> list[UUID]:
        return [*(id.uuid for id in ids), UUID(int=9)]

    monkeypatch.setattr(lab.engine.store, "due", stale)
    assert await lab.engine.sweep.once() == 4
    assert [await load(lab, id) for id in ids] == befores


class Looks:
    """Which glances have looked at ready executions, and which at leases."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready: list[bool] = []
        self.leases: list[bool] = []
        self._glance = lab.engine.store.glance
        monkeypatch.setattr(lab.engine.store, "glance", self.glance)

    async def glance(self, *given: Any, ready: bool, leases: bool) -> Glance:
        self.ready.append(ready)
        self.leases.append(leases)
        return await self._glance(*given, ready=ready, leases=leases)


async def test_all_leases_are_read_once_a_second_or_when_one_ends(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the sweep turns: there may be many, and most of them are renewed in time."""
    looks = Looks(lab, monkeypatch)
    monkeypatch.setattr(pacer, "TIMES", 0.0)
    claim = await lab.running()
    for step in (0, 1, 998, 1, TTL - 1001, 1):
        assert isinstance((await load(lab, claim.id)).state, Active)
        lab.clock.advance(step)
        await lab.engine.sweep._turn()
    assert looks.leases == [True, False, False, True, True, True]
    assert looks.ready == [True] * 6
    assert isinstance((await load(lab, claim.id)).state, Lost)


async def test_after_a_look_that_took_long_only_the_known_end_of_a_lease_is_looked_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a transaction that stays open: a look walks over all rows that are gone."""
    looks = Looks(lab, monkeypatch)
    monkeypatch.setattr(pacer, "TIMES", 1e9)
    claim = await lab.running()
    for step in (0, 1000, TTL - 1000, 1000, 1000):
        lab.clock.advance(step)
        await lab.engine.sweep._turn()
    assert looks.leases == [True, False, True, True, False]  # again, for the end of the next one
    assert looks.ready == [True, False, False, False, False]
    assert isinstance((await load(lab, claim.id)).state, Lost)


async def test_lines_at_limits_are_looked_at_without_asking_what_is_due(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing else is to be done, and not before the last long look has rested."""
    store, asked = lab.engine.store, list[str]()

    def record(name: str) -> None:
        honest = getattr(store, name)

        async def call(*given: Any, **more: Any) -> Any:
            asked.append(name)
            return await honest(*given, **more)

        monkeypatch.setattr(store, name, call)

    await limiting.define(lab, concurrency=1)
    await limiting.crowd(lab, 3)
    monkeypatch.setattr(pacer, "TIMES", 0.0)
    await lab.engine.sweep._turn()  # the first one looks at everything
    for name in ("due", "next_due", "owed_flows", "crowds"):
        record(name)
    await lab.engine.sweep._turn()
    monkeypatch.setattr(pacer, "TIMES", 1e9)
    await lab.engine.sweep._turn()
    await lab.engine.sweep._turn()
    assert asked == ["crowds", "crowds"]


@pytest.fixture
async def live_engine(store_url: str) -> AsyncIterator[Engine]:
    """An engine on the real clock."""
    engine = await Engine.open(await open_store(store_url))
    yield engine
    await engine.close()


async def test_the_sweep_runs_in_the_background(live_engine: Engine) -> None:
    """C-T130, INV-18 on the real clock: a delay, a lease and a deadline come true by themselves"""
    live_engine.sweep.start()
    live_engine.sweep.start()
    soon = Millis(live_engine.now() + 50)
    late = await live_engine.executions.submit(Submission(kind="late", deadline_at=soon))
    assert isinstance(late, Submitted)
    ending = await live_engine.views.wait(late.id, timeout=20)
    assert ending.outcome is Outcome.EXPIRED
    soon = Millis(live_engine.now() + 50)
    await live_engine.executions.submit(Submission(kind="delayed", delay_until=soon))
    (first,) = await live_engine.claims.claim(W1, ttl=Millis(50), max_wait=20)
    (second,) = await live_engine.claims.claim(W2, max_wait=20)
    assert (second.id, second.attempt, second.lease.start) == (first.id, 1, Start.RECLAIM)
    with pytest.raises(LeaseLost):
        await live_engine.attempts.complete(first)
    await live_engine.attempts.complete(second)


class Turns:
    """Counts how often the duty was asked for, and lets a test wait for the next time."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[bool] = []
        self._more = asyncio.Event()
        self._glance = lab.engine.store.glance
        monkeypatch.setattr(lab.engine.store, "glance", self.glance)
        monkeypatch.setattr(sweep_module, "MAX_PAUSE", 0.01)

    async def glance(self, *given: Any, **looks: Any) -> Glance:
        seen = await self._glance(*given, **looks)
        self.answers.append(seen.has_duty)
        self._more.set()
        return seen

    async def wait_for(self, answer: bool, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.answers.count(answer) < times:
                self._more.clear()
                await self._more.wait()


async def test_the_duty_moves_when_its_holder_is_gone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §5: anyone takes over when it lapses, nobody before"""
    turns = Turns(lab, monkeypatch)
    now = lab.clock.now()
    crashed_until = Millis(now + sweep_module.DUTY_SPAN)
    assert (await lab.engine.store.glance("sweep", "crashed", now, crashed_until)).has_duty
    id = await lab.submit(deadline_at=Millis(now + 1))
    lab.clock.advance(1)
    lab.engine.sweep.start()
    await turns.wait_for(False, times=3)
    assert await lab.state(id) is PublicState.WAITING
    lab.clock.advance(sweep_module.DUTY_SPAN)
    assert (await lab.engine.views.wait(id, timeout=20)).outcome is Outcome.EXPIRED


async def test_who_stops_gives_the_duty_back(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(lab, monkeypatch)
    lab.engine.sweep.start()
    await turns.wait_for(True)
    now = lab.clock.now()
    other = second_lab.engine.store
    assert not (await other.glance("sweep", "next", now, Millis(now + 1))).has_duty
    await lab.engine.sweep.stop()
    await lab.engine.sweep.stop()
    assert (await other.glance("sweep", "next", now, Millis(now + 1))).has_duty
    await other.drop_duty("sweep", "somebody else")
    assert not (await other.glance("sweep", "third", now, Millis(now + 1))).has_duty
    await other.drop_duty("sweep", "next")
    assert (await other.glance("sweep", "third", now, Millis(now + 1))).has_duty


async def test_a_look_under_way_does_not_take_the_duty_after_the_stop(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may finish a statement whose caller was cancelled"""
    honest = lab.engine.store.glance
    asked, goes_on = asyncio.Event(), asyncio.Event()
    looks: list[asyncio.Task[Glance]] = []

    async def late(*given: Any, **which: Any) -> Glance:
        await goes_on.wait()
        return await honest(*given, **which)

    async def glance(*given: Any, **which: Any) -> Glance:
        looks.append(asyncio.create_task(late(*given, **which)))
        asked.set()
        return await asyncio.shield(looks[-1])

    monkeypatch.setattr(lab.engine.store, "glance", glance)
    lab.engine.sweep.start()
    await asked.wait()
    stopping = asyncio.create_task(lab.engine.sweep.stop())
    other, now = second_lab.engine.store, lab.clock.now()
    assert (await other.glance("sweep", "next", now, now)).has_duty
    await other.drop_duty("sweep", "next")
    goes_on.set()
    await asyncio.gather(stopping, *looks)
    assert (await other.glance("sweep", "next", now, Millis(now + 1))).has_duty


@pytest.mark.parametrize("trouble", [Unavailable("gone"), RuntimeError("bug")])
async def test_a_sweep_in_trouble_goes_on_when_it_is_over(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: Exception,
) -> None:
    turns = Turns(lab, monkeypatch)
    store = lab.engine.store
    honest, troubles = store.due, [trouble, trouble]

    async def troubled(*given: Any, **looks: Any) -> list[UUID]:
        if troubles:
            raise troubles.pop()
        return await honest(*given, **looks)

    monkeypatch.setattr(store, "due", troubled)
    id = await lab.submit(deadline_at=lab.clock.now())
    with caplog.at_level(logging.WARNING, "flowfabric.sweep"):
        lab.engine.sweep.start()
        await turns.wait_for(True, times=3)
        assert (await lab.engine.views.wait(id, timeout=20)).outcome is Outcome.EXPIRED
    assert "sweep" in caplog.text


async def test_the_sweep_sleeps_no_longer_than_the_next_timer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design §5: until the next due moment, and at most a second"""
    pauses: list[float] = []
    more = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        more.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(lab.engine.sweep, "_pause", pause)
    for delay, expected in ((None, 1.0), (250, 0.25), (60_000, 0.25)):
        if delay is not None:
            await lab.submit(delay_until=Millis(lab.clock.now() + delay))
        lab.engine.sweep.start()
        async with asyncio.timeout(60):
            await more.wait()
        more.clear()
        await lab.engine.sweep.stop()
        assert pauses[-1] == pytest.approx(expected)


async def test_retention_is_swept_in_the_background_as_well(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(lab, monkeypatch)
    lab.engine.sweep.start()
    await turns.wait_for(True)
    id = await situations.completed(lab)
    deleted = asyncio.Event()
    trim = lab.engine.store.trim

    async def watched(*given: Any, **whose: Any) -> int:
        count = await trim(*given, **whose)
        if count:
            deleted.set()
        return count

    monkeypatch.setattr(lab.engine.store, "trim", watched)
    lab.clock.advance(WEEK + 60_000)
    async with asyncio.timeout(60):
        await deleted.wait()
    assert await lab.engine.views.state(id) is None


async def test_a_lease_found_expired_by_its_owner_is_not_swept_again(lab: Lab) -> None:
    """G5 and the sweep are one transition, whoever is first"""
    claim = await lab.running()
    lab.clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await lab.complete(claim)
    assert await lab.engine.sweep.once() == 0
    kinds = [event.kind for event in await lab.events(claim.id)]
    assert kinds == [EventKind.CLAIMED, EventKind.LEASE_EXPIRED]


async def test_a_duty_taken_before_the_clock_was_set_back_is_taken_over(lab: Lab) -> None:
    """Its holder is gone; nobody may wait an hour for it."""
    store, now = lab.engine.store, lab.clock.now()
    span = sweep_module.DUTY_SPAN
    assert (
        await store.glance("sweep", "gone", Millis(now + 3_600_000), Millis(now + 3_602_500))
    ).has_duty
    assert (await store.glance("sweep", "here", now, Millis(now + span))).has_duty
    assert not (
        await store.glance("sweep", "other", Millis(now - 100), Millis(now - 100 + span))
    ).has_duty


async def test_what_becomes_due_does_not_wait_until_everything_old_is_deleted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of deletions, then another look at what is due."""
    calls: list[str] = []
    store = lab.engine.store
    pages = iter([sweep_module.PAGE, sweep_module.PAGE, 3])

    async def trim(*_: Any, **whose: Any) -> int:
        calls.append("trim")
        return next(pages)

    async def due(*_: Any, **looks: Any) -> list[UUID]:
        calls.append("due")
        return []

    monkeypatch.setattr(store, "trim", trim)
    monkeypatch.setattr(store, "due", due)
    turns = Turns(lab, monkeypatch)
    lab.engine.sweep.start()
    await turns.wait_for(True, times=4)
    await lab.engine.sweep.stop()
    assert calls[:6] == ["due", "trim"] * 3
