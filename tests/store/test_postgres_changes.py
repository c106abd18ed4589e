"""What owners and operators write, and what is refused."""

import asyncio
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, lease, operator
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import (
    EMPTY_LIFE,
    Ended,
    Failure,
    Flags,
    Outcome,
)
from flowfabric.store.queries import Progress, SideWrite
from tests.kit.snapshots import after, lease_of, owner_of
from tests.store.postgres_bench import (
    KEPT_AN_HOUR,
    OPERATOR,
    TTL,
    Bench,
    kinds,
    progress,
    renewal,
    step,
    until_waiting,
    uuid_of,
    uuids,
)

# -- renew


async def test_a_renewal_extends_and_never_shortens(bench: Bench) -> None:
    held = await bench.running()
    bench.clock.advance(10)
    assert await bench.store.renew([renewal(held, 5)], bench.now) == {
        held.execution.uuid: lease_of(held).expires_at
    }
    assert await bench.store.renew([renewal(held)], bench.now) == {
        held.execution.uuid: bench.now + TTL
    }
    stored = await bench.load(held)
    assert stored.head == held.head, "a renewal moves no version"
    assert lease_of(stored).renewed_at == bench.now


async def test_only_the_owner_of_a_living_lease_renews(bench: Bench) -> None:
    held = await bench.running()
    good = renewal(held)
    stale = [replace(good, epoch=good.epoch + 1), replace(good, lease_id=bench.fresh())]
    for wrong in stale:
        assert await bench.store.renew([wrong], bench.now) == {}
    bench.clock.advance(TTL)
    assert await bench.store.renew([good], bench.now) == {}


# -- end


async def test_an_ending_is_written_with_its_event(bench: Bench) -> None:
    held = await bench.running()
    change = bench.completion(held)
    assert await bench.store.end([change], bench.now) == {held.execution.uuid}
    stored = await bench.load(held)
    assert stored.head == after(change).head
    assert isinstance(stored.state, Ended)
    assert (stored.state.outcome, stored.state.result) == (Outcome.SUCCESS, b"done")
    assert stored.state.lease is not None
    assert stored.state.lease.id == lease_of(held).id
    assert await kinds(bench, held.execution.uuid) == [EventKind.CLAIMED, EventKind.COMPLETED]


async def test_an_ending_may_bring_a_new_life_or_none_and_several_events(bench: Bench) -> None:
    first, second, third = [await bench.running() for _ in range(3)]
    failed = attempt.fail(first, bench.now, owner_of(first), Failure("boom", "permanent"))
    assert failed.plain_end
    plain = bench.completion(second)
    twice = replace(plain, events=plain.events * 2)
    silent = replace(bench.completion(third), events=())
    ended = await bench.store.end([failed, twice, silent], bench.now)
    assert ended == set(uuids([first, second, third]))
    assert (await bench.load(first)).head == after(failed).head
    completed = EventKind.COMPLETED
    assert await kinds(bench, second.execution.uuid) == [EventKind.CLAIMED, completed, completed]
    assert await kinds(bench, third.execution.uuid) == [EventKind.CLAIMED]


async def test_an_ending_keeps_or_clears_the_life(bench: Bench) -> None:
    """A continued attempt has a past; what the change says of it stands."""
    lives = []
    for clear in (False, True):
        held = await bench.running()
        await bench.apply(attempt.hand_back(held, bench.now, owner_of(held)))
        (held,) = await bench.claim()
        change = bench.completion(held)
        if clear:
            change = replace(change, after=after(change).to(after(change).state, life=EMPTY_LIFE))
        assert await bench.store.end([change], bench.now) == {held.execution.uuid}
        lives.append((await bench.load(held)).life == after(change).life)
    assert lives == [True, True]


async def test_an_ending_under_another_fence_or_too_late_is_refused(bench: Bench) -> None:
    held = await bench.running()
    change = bench.completion(held)
    assert change.before is not None
    newer = replace(change, before=replace(held, head=replace(held.head, version=9)))
    epoch = replace(change, before=replace(held, head=replace(held.head, epoch=9)))
    for wrong in (newer, epoch):
        assert await bench.store.end([wrong], bench.now) == set()
    bench.clock.advance(TTL)
    assert await bench.store.end([change], bench.now) == set()
    assert await bench.load(held) == held
    assert await bench.store.end([change], Millis(bench.now - 1)) == {held.execution.uuid}
    assert await bench.store.end([change], Millis(bench.now - 1)) == set()


# -- note


async def test_steps_and_progress_are_written_beside_the_lease(bench: Bench) -> None:
    held = await bench.running()
    uuid, lease_id, epoch = held.execution.uuid, lease_of(held).id, held.head.epoch
    notes = [
        SideWrite(uuid, lease_id, epoch, step=step(1, "b")),
        SideWrite(uuid, lease_id, epoch, Progress(10, "begun"), step(0, "a")),
        SideWrite(uuid, lease_id, epoch, Progress(percent=20)),
    ]
    assert await bench.store.write_progress(notes, bench.now) == {uuid}
    assert (await bench.store.steps([(uuid, 0)]))[0] == [step(0, "a"), step(1, "b")]
    assert (await bench.store.steps([(uuid, 1)]))[0] == []
    assert await progress_of(bench, uuid) == Progress(20, "begun")
    assert await bench.store.write_progress([progress(held, message="on")], bench.now) == {uuid}
    assert await progress_of(bench, uuid) == Progress(20, "on")
    assert await bench.load(held) == held, "a note moves no version"


async def progress_of(bench: Bench, uuid: UUID) -> Progress | None:
    detail = await bench.store.detail(uuid)
    assert detail is not None
    return detail.progress.get(0)


async def test_a_recorded_step_stays_as_it_is(bench: Bench) -> None:
    held = await bench.running()
    uuid, lease_id, epoch = held.execution.uuid, lease_of(held).id, held.head.epoch
    for doc in (b"first", b"second"):
        note = SideWrite(uuid, lease_id, epoch, step=step(0, doc=doc))
        assert await bench.store.write_progress([note], bench.now) == {uuid}
    assert [s.doc for s in (await bench.store.steps([(uuid, 0)]))[0]] == [b"first"]


async def test_nothing_is_written_beside_a_lease_that_does_not_stand(bench: Bench) -> None:
    held, other = await bench.running(), await bench.running()
    good = progress(held, 50)
    wrong = [replace(good, epoch=9), replace(good, lease_id=bench.fresh())]
    written = await bench.store.write_progress([*wrong, progress(other, 1)], bench.now)
    assert written == {other.execution.uuid}
    assert await progress_of(bench, held.execution.uuid) is None
    bench.clock.advance(TTL)
    assert await bench.store.write_progress([good], bench.now) == set()


async def test_a_note_holds_off_the_end_of_its_lease_but_no_renewal(bench: Bench) -> None:
    held = await bench.running()
    writer = await bench.raw()
    query = bench.store.session.queries["progress_writes"]
    row = (held.execution.uuid, lease_of(held).id, held.head.epoch, 1, None, *[None] * 6)
    async with writer.transaction():
        await writer.fetch(query, *([value] for value in row), bench.now)
        assert await bench.store.renew([renewal(held)], bench.now)
        ending = asyncio.create_task(bench.store.end([bench.completion(held)], bench.now))
        watcher = await bench.raw()
        await until_waiting(watcher)
    assert await ending == {held.execution.uuid}


# -- apply


async def test_a_change_moves_the_row_and_writes_everything_else(bench: Bench) -> None:
    held = await bench.running(policy={"retry_policy": {"max_retries": 3}})
    change: Change[object] = attempt.fail(held, bench.now, owner_of(held), Failure("boom"))
    change = replace(change, steps=(step(0),))
    retrying = await bench.apply(change)
    assert await bench.load(held) == retrying
    assert await bench.store.attempts(held.execution.uuid) == list(change.attempts)
    assert (await bench.store.steps([(held.execution.uuid, 0)]))[0] == [step(0)]
    assert await kinds(bench, held.execution.uuid) == [
        EventKind.CLAIMED,
        EventKind.RETRY_SCHEDULED,
    ]


async def test_a_change_decided_on_an_older_version_is_refused(bench: Bench) -> None:
    submitted, neighbour = await bench.submit_many(2)
    newer = await bench.apply(operator.change_priority(submitted, bench.now, 5))
    stale = operator.cancel(submitted, bench.now, OPERATOR, "")
    fine = operator.cancel(neighbour, bench.now, OPERATOR, "")
    assert await bench.store.apply([stale, fine]) == {neighbour.execution.uuid}
    assert await bench.load(submitted) == newer
    assert await bench.store.apply([stale]) == set()


async def test_a_change_decided_on_an_older_expiry_is_refused(bench: Bench) -> None:
    held = await bench.running()
    lost = lease.mark_expired(held, lease_of(held).expires_at)
    bench.clock.advance(10)
    await bench.store.renew([renewal(held)], bench.now)
    assert await bench.store.apply([lost]) == set()
    renewed = await bench.load(held)
    assert await bench.store.apply([lease.revoke(renewed, bench.now, reason="")])


async def test_a_lease_changes_in_place_for_its_owner(bench: Bench) -> None:
    held = await bench.running()
    bench.clock.advance(10)
    renewed = await bench.apply(lease.renew(held, bench.now, owner_of(held), TTL))
    assert await bench.load(held) == renewed
    assert renewed.head.version == held.head.version + 1


async def test_every_kind_of_move_is_read_back_as_it_was_written(bench: Bench) -> None:
    submitted = await bench.submit(policy=KEPT_AN_HOUR, deadline_at=bench.now + 10**6)
    assert submitted.head.flags == Flags.DEADLINE | Flags.RETENTION
    current = await bench.apply(operator.block(submitted, bench.now, "paused_by_operator"))
    assert await bench.load(current) == current
    current = await bench.apply(operator.unblock(current, bench.now))
    assert await bench.load(current) == current
    (current,) = await bench.claim()
    change = attempt.delay(current, bench.now, owner_of(current), Millis(bench.now + 50))
    current = await bench.apply(change)
    assert await bench.load(current) == current
    bench.clock.advance(50)
    current = await bench.apply(operator.due(current, bench.now, 0.0, Millis(0), UUID(int=7)))
    (current,) = await bench.claim()
    current = await bench.apply(lease.revoke(current, bench.now, reason="mine"))
    assert await bench.load(current) == current
    current = await bench.apply(operator.cancel(current, bench.now, OPERATOR, "no"))
    assert await bench.load(current) == current
    current = await bench.apply(operator.replay(current, bench.now))
    assert await bench.load(current) == current
    assert len(await bench.store.attempts(current.execution.uuid)) >= 1


async def test_a_deadline_follows_the_change_and_goes_with_the_end(bench: Bench) -> None:
    submitted = await bench.submit(deadline_at=bench.now + 100)
    assert await bench.store.next_due(bench.now) == bench.now + 100
    assert await bench.store.due(Millis(bench.now + 100), 9) == uuids([submitted])
    ended = await bench.apply(operator.cancel(submitted, bench.now, OPERATOR, ""))
    assert await bench.store.due(Millis(bench.now + 100), 9) == []
    await bench.apply(operator.replay(ended, bench.now))
    assert await bench.store.next_due(bench.now) is None


async def test_of_two_rivals_for_one_execution_one_writes(bench: Bench) -> None:
    other = await bench.other_store()
    for _ in range(5):
        submitted = await bench.submit()
        rivals: list[Change[object]] = [
            operator.cancel(submitted, bench.now, OPERATOR, "a"),
            operator.change_priority(submitted, bench.now, 5),
        ]
        answers = await asyncio.gather(bench.store.apply(rivals[:1]), other.apply(rivals[1:]))
        assert sorted(map(len, answers)) == [0, 1]


async def test_an_ending_and_an_operator_exclude_each_other(bench: Bench) -> None:
    other = await bench.other_store()
    for _ in range(5):
        held = await bench.running()
        revoked = lease.revoke(held, bench.now, reason="")
        answers = await asyncio.gather(
            bench.store.end([bench.completion(held)], bench.now), other.apply([revoked])
        )
        assert sorted(map(len, answers)) == [0, 1]
        if answers[1]:
            assert uuids(await bench.claim()) == [uuid_of(revoked)]


async def test_an_empty_batch_writes_nothing(bench: Bench) -> None:
    assert await bench.store.submit([], bench.now) == []
    assert await bench.store.renew([], bench.now) == {}
    assert await bench.store.end([], bench.now) == set()
    assert await bench.store.write_progress([], bench.now) == set()
    assert await bench.store.apply([]) == set()
    assert await bench.store.load([]) == {}
