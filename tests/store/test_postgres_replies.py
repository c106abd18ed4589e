"""Replies lost after the commit: done once, and told right."""

import asyncio

import pytest
from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, lease, operator
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.frame import BEGINNING, END, NewFrame, StreamMode
from flowfabric.core.execution.lease import Taking
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.stream import Stream, StreamHeader, append
from flowfabric.core.flow.progress import claim_with
from flowfabric.store.postgres.link import Link
from flowfabric.store.queries import EventQuery, FrameQuery, FrameRows, FrameWrite, SideWrite
from tests.kit.flow_lab import declare
from tests.kit.lab import Lab
from tests.kit.snapshots import after, lease_of, owner_of
from tests.store.postgres_bench import (
    OPERATOR,
    TTL,
    Bench,
    id_of,
    its_connection,
    lose_reply,
    progress,
    renewal,
    step,
    until_waiting,
    uuid_of,
    uuids,
)

# -- a reply lost after the commit


async def test_a_lost_reply_to_a_submit_is_no_duplicate(bench: Bench) -> None:
    there = await bench.submit(key="old")
    await bench.submit()
    lose_reply(bench.store.session.submit)
    given = ExecutionId.solo("default", bench.fresh())
    creations = [
        bench.creation(),
        bench.creation(key="new"),
        bench.creation(id=given),
        bench.creation(key="old"),
        bench.creation(id=id_of(there)),
    ]
    bench.clock.advance(1)
    answers = await bench.store.submit(creations, bench.now)
    assert answers[:4] == [None, None, None, id_of(there)]
    assert len(await bench.claim(99)) == 5


async def test_an_id_known_before_a_lost_reply_stays_a_duplicate(bench: Bench) -> None:
    there = await bench.submit()
    bench.clock.advance(1)
    lose_reply(bench.store.session.submit)
    again = bench.creation(id=id_of(there))
    assert await bench.store.submit([again], bench.now) == [id_of(there)]


async def test_a_lost_reply_to_a_claim_loses_nothing(bench: Bench) -> None:
    submitted = await bench.submit_many(3)
    await bench.claim(1)
    lose_reply(bench.store.session.claim)
    call = bench.call(2)
    taken = await bench.store.claim(call, bench.now)
    assert uuids(item.snapshot for item in taken) == uuids(submitted[1:])
    assert {lease_of(item.snapshot).id for item in taken} == {call.id}
    assert [item.payload for item in taken] == [b"", b""]
    events = (await bench.store.events(EventQuery())).events
    assert len(events) == 3


async def test_a_lost_reply_to_a_renewal_renews(bench: Bench) -> None:
    held = await bench.running()
    bench.clock.advance(5)
    lose_reply(bench.store.session.renew)
    assert await bench.store.renew([renewal(held)], bench.now) == {
        held.execution.uuid: bench.now + TTL
    }


async def test_a_lost_reply_to_an_ending_is_recognised(bench: Bench) -> None:
    held, failing = await bench.running(), await bench.running()
    gone = await bench.running()
    await bench.apply(lease.revoke(gone, bench.now, reason=""))
    lose_reply(bench.store.session.end)
    changes = [
        bench.completion(held),
        attempt.fail(failing, bench.now, owner_of(failing), Failure("no", "permanent")),
        bench.completion(gone),
    ]
    ended = await bench.store.end(changes, bench.now)
    assert (ended, ended.repeated) == (set(uuids([held, failing])), True)
    events = await bench.store.events(EventQuery(uuid=held.execution.uuid))
    assert [e.kind for e in events.events] == [EventKind.CLAIMED, EventKind.COMPLETED]


async def test_a_lost_reply_to_a_follow_on_claim_tells_what_was_taken(bench: Bench) -> None:
    lab = await Lab.open(bench.store, bench.clock)
    flow = await declare(lab, "a>b", given={"b": {"payload": b"given"}})
    held = await lab.claim_one()
    ending = bench.completion(held.snapshot)
    following = await lab.engine.attempts._downstreams.after([ending], bench.now)
    (release,) = following.changes
    call = bench.call(1)
    claimed = claim_with(release.change, bench.now, Taking(call.id, call.worker, call.ttl))
    assert claimed is not None
    lose_reply(bench.store.session.end)
    downstream = replace(release, claimed=claimed)
    rows = await bench.store.end_and_claim([ending], bench.now, [downstream], call)
    assert rows == {flow["a"].uuid, flow["b"].uuid}
    assert rows.claimed == {flow["b"].uuid: b"given"}
    assert (await bench.store.load([flow["b"].uuid]))[flow["b"].uuid] == claimed.after


async def test_an_ending_by_another_owner_is_not_taken_for_its_own(bench: Bench) -> None:
    held, other = await bench.running(), await bench.running()
    await bench.apply(operator.cancel(held, bench.now, OPERATOR, ""))
    lose_reply(bench.store.session.end)
    changes = [bench.completion(held), bench.completion(other)]
    assert await bench.store.end(changes, bench.now) == {other.execution.uuid}


async def test_a_lost_reply_to_a_note_writes_it_once(bench: Bench) -> None:
    held = await bench.running()
    lose_reply(bench.store.session.end)
    note = SideWrite(held.execution.uuid, lease_of(held).id, held.head.epoch, None, step(0))
    notes = [note, progress(held, 7)]
    assert await bench.store.write_progress(notes, bench.now) == {held.execution.uuid}
    assert len((await bench.store.steps([(held.execution.uuid, 0)]))[0]) == 1


@pytest.mark.parametrize("maxlen", [10, 1])
async def test_a_lost_reply_to_an_append_writes_it_once(bench: Bench, maxlen: int) -> None:
    """Also when frames have to go for the new ones."""
    held, other = await bench.running(), await bench.running()
    writes = []
    for number, snapshot in enumerate((held, other)):
        stream = Stream(uuid=snapshot.execution.uuid, attempt=0, header=StreamHeader(maxlen=maxlen))
        frames = [NewFrame(payload=b"1"), NewFrame(payload=b"2")]
        part = append(stream, bench.now, frames, number)
        writes.append(FrameWrite(lease_of(snapshot).id, snapshot.head.epoch, 0, part))
    await bench.apply(operator.cancel(other, bench.now, OPERATOR, ""))
    lose_reply(bench.store.session.end)
    assert await bench.store.write_frames(writes, bench.now) == {(held.execution.uuid, 0)}
    query = FrameQuery(held.execution.uuid, 0, BEGINNING, END, 10, tuple(StreamMode))
    (found,) = await bench.store.read_frames([query])
    assert isinstance(found, FrameRows)
    assert [frame.payload for frame in found.frames] == [b"1", b"2"][-maxlen:]


async def test_a_lost_reply_to_a_general_change_is_recognised(bench: Bench) -> None:
    ready, stale, parked = await bench.submit_many(3)
    held = await bench.running(priority=9)
    ended = await bench.ended(priority=9)
    await bench.apply(operator.change_priority(stale, bench.now, 3))
    changes = [
        operator.change_priority(ready, bench.now, 5),
        operator.cancel(stale, bench.now, OPERATOR, ""),
        operator.block(parked, bench.now, "paused_by_operator"),
        lease.renew(held, bench.now, owner_of(held), TTL),
        operator.replay(await bench.load(ended), bench.now),
    ]
    lose_reply(bench.store.session.apply)
    expected = {uuid_of(change) for change in changes} - {stale.execution.uuid}
    assert await bench.store.apply(changes) == expected
    for change in changes:
        if uuid_of(change) in expected:
            assert await bench.load(after(change)) == after(change)


async def test_a_rivals_equal_version_is_not_taken_for_ones_own(bench: Bench) -> None:
    mine, other = await bench.submit_many(2)
    await bench.apply(operator.change_priority(mine, bench.now, 3))
    lose_reply(bench.store.session.apply)
    changes = [
        operator.change_priority(mine, bench.now, 4),
        operator.change_priority(other, bench.now, 4),
    ]
    assert await bench.store.apply(changes) == {other.execution.uuid}


@pytest.mark.parametrize("name", ["load", "sweep", "report", "apply"])
async def test_a_lost_reply_to_a_question_is_asked_again(bench: Bench, name: str) -> None:
    submitted = await bench.submit()
    link: Link = getattr(bench.store.session, name)
    lose_reply(link)
    match name:
        case "load":
            assert await bench.load(submitted) == submitted
        case "sweep":
            assert (await bench.store.glance("d", "me", bench.now, Millis(bench.now + 1))).has_duty
        case "report":
            assert [route.lane for route in await bench.store.routes()] == ["default"]
        case _:
            held = bench.creation(lane="never seen")
            assert await bench.store.submit([held], bench.now) == [None]
            assert bench.store.session.book.newest_route == 2
    assert link.seam is None


async def test_what_a_broken_connection_left_running_ends_before_the_repeat(bench: Bench) -> None:
    """The network breaks while the claim still waits inside the server."""
    await bench.claim()
    submitted = await bench.submit()
    blocker, watcher = await bench.raw(), await bench.raw()
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute("lock table flowfabric.event in exclusive mode")
    connection = await bench.store.session.claim.run(its_connection)
    await connection.execute("set lock_timeout = 0")
    claiming = asyncio.create_task(bench.claim())
    await until_waiting(watcher)
    connection.terminate()
    ends = """select count(*) from pg_stat_activity where datname = current_database()
        and pid <> pg_backend_pid() and query ilike '%pg_terminate_backend(a.pid%'"""
    while await watcher.fetchval(ends) == 0:
        assert not claiming.done()
    await until_waiting(watcher)
    await transaction.commit()
    assert uuids(await claiming) == uuids([submitted])
    assert await watcher.fetchval("select count(*) from flowfabric.lease") == 1
