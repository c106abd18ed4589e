"""Every method of the contract, on a file, in memory, with threads and without."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.attempt import delay, fail, hand_back
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.grant import Grantee, issue_grant
from flowfabric.core.execution.lease import Owner, Taking, lose, mark_expired, revoke, take
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Failure,
    Hold,
    Lost,
    Ready,
    Source,
    Start,
    Waiting,
)
from flowfabric.core.execution.step import Step
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import MAX_BATCH
from flowfabric.store.queries import NEWEST, Claimable, EventQuery, Progress, Renewal, SideWrite
from flowfabric.store.sqlite import open_sqlite
from tests.kit.snapshots import lease_of, owner_of
from tests.store.sqlite_bench import TTL, W1, W2, Bench, text_of, uuids

OPERATOR = Owner(source=Source.OPERATOR)
RETRIES = {"retry_policy": {"max_retries": 3}}


@pytest.fixture(params=["file", "memory", "inline file", "inline memory"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    path = str(tmp_path / "work.db") if "file" in request.param else ":memory:"
    clock = ManualClock()
    store = await open_sqlite(path, clock=clock, inline="inline" in request.param)
    await store.migrate()
    yield Bench(store, clock)
    await store.close()


# -- submit


async def test_what_was_submitted_is_loaded_as_it_was(bench: Bench) -> None:
    creations = [
        bench.creation(),
        bench.creation("report", lane="slow", namespace="other", payload=b"\0\xff", priority=7),
        bench.creation(delay_until=bench.now + 1000, deadline_at=bench.now + 5000, key="k"),
        bench.creation(policy={"routing_requirements": {"required_capabilities": ["gpu", "a"]}}),
    ]
    assert await bench.store.submit(creations, bench.now) == [None] * 4
    wanted = {item.snapshot.execution.uuid: item.snapshot for item in creations}
    assert await bench.store.load(list(wanted)) == wanted


async def test_a_known_id_is_told_and_changes_nothing(bench: Bench) -> None:
    first = bench.creation(payload=b"first")
    again = replace(first, payload=b"second")
    other = bench.creation()
    assert await bench.store.submit([first], bench.now) == [None]
    assert await bench.store.submit([other, again], bench.now) == [None, text_of(first)]
    detail = await bench.store.detail(first.snapshot.execution.uuid)
    assert detail is not None
    assert detail.payload == b"first"


async def test_a_live_key_is_told_before_a_known_id(bench: Bench) -> None:
    keyed, plain = bench.creation(key="k"), bench.creation()
    await bench.store.submit([keyed, plain], bench.now)
    both = replace(bench.creation(key="k"), snapshot=plain.snapshot)
    fresh = bench.creation(key="k")
    assert await bench.store.submit([both], bench.now) == [text_of(keyed)]
    assert await bench.store.submit([fresh], bench.now) == [text_of(keyed)]
    assert await bench.load(fresh.snapshot.execution.uuid) is None


async def test_a_key_belongs_to_its_namespace(bench: Bench) -> None:
    await bench.submit(key="k")
    await bench.submit(key="k", namespace="other")


async def test_a_key_whose_window_has_passed_is_taken_over(bench: Bench) -> None:
    policy = {"dedup_window_ms": 1000}
    await bench.submit(key="k", policy=policy)
    bench.clock.advance(999)
    assert await bench.store.submit([bench.creation(key="k")], bench.now) != [None]
    bench.clock.advance(1)
    second = bench.creation(key="k", policy=policy)
    assert await bench.store.submit([second], bench.now) == [None]
    assert await bench.store.submit([bench.creation(key="k")], bench.now) == [text_of(second)]


@pytest.mark.parametrize("count", [1, 3, 99, MAX_BATCH])
async def test_a_batch_of_any_size_is_written_whole(bench: Bench, count: int) -> None:
    made = set(await bench.submit_many(count))
    assert (await bench.store.load(list(made))).keys() == made
    held = [taken.snapshot for taken in await bench.claim(limit=count)]
    renewals = [Renewal(s.execution.uuid, lease_of(s).id, 1, TTL) for s in held]
    assert (await bench.store.renew(renewals, bench.now)).keys() == made
    notes = [
        SideWrite(r.uuid, r.lease_id, 1, Progress(1), Step(0, 0, "s", 0, b"")) for r in renewals
    ]
    assert await bench.store.write_progress(notes, bench.now) == made
    backs = [hand_back(snapshot, bench.now, owner_of(snapshot)) for snapshot in held]
    assert await bench.apply(*backs) == made
    held = [taken.snapshot for taken in await bench.claim(limit=count)]
    assert await bench.end(*map(bench.completing, held)) == made


# -- claim


async def test_a_claim_takes_the_best_first(bench: Bench) -> None:
    low = await bench.submit(priority=1)
    bench.clock.advance(1)
    lane = await bench.submit(lane="slow", priority=5)
    high = await bench.submit(priority=9)
    assert uuids(await bench.claim(limit=2)) == [high, lane]
    assert uuids(await bench.claim(limit=2)) == [low]
    assert await bench.claim(limit=2) == []


async def test_a_claim_is_what_the_core_would_have_taken(bench: Bench) -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 700}}
    uuid = await bench.submit(payload=b"p", policy=policy, deadline_at=bench.now + 9000)
    before = await bench.loaded(uuid)
    assert isinstance(before.state, Ready)
    call = bench.call()
    (taken,) = await bench.store.claim(call, bench.now)
    wanted = take(before, bench.now, before.state.next, Taking(call.id, W1, TTL))
    assert taken.snapshot == wanted.after
    assert taken.payload == b"p"
    assert await bench.load(uuid) == wanted.after
    (event,) = (await bench.store.events(EventQuery())).events
    assert (event.kind, event.epoch, event.attempt, event.worker) == (EventKind.CLAIMED, 1, 0, W1)


@pytest.mark.parametrize("each", [2, 8])
async def test_each_of_several_calls_has_a_lease_of_its_own(bench: Bench, each: int) -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 700}}
    for _ in range(2 * each + 1):
        await bench.submit(policy=policy)
    calls = [bench.call(limit=each), bench.call(W2, limit=each + 1, ttl=Millis(2 * TTL))]
    answers = await bench.store.claim_all(calls, bench.now)
    assert [len(taken) for taken in answers] == [each, each + 1]
    for call, taken in zip(calls, answers, strict=True):
        for item in taken:
            lease = lease_of(item.snapshot)
            assert (lease.id, lease.worker) == (call.id, call.worker)
            assert (lease.expires_at, lease.times_out_at) == (bench.now + call.ttl, bench.now + 700)
            assert await bench.load(item.snapshot.execution.uuid) == item.snapshot


async def test_an_interrupted_attempt_is_resumed_and_a_lost_one_reclaimed(bench: Bench) -> None:
    held = await bench.running()
    await bench.apply(hand_back(held, bench.now, owner_of(held)))
    resumed = await bench.claim_one(W2)
    assert lease_of(resumed).start is Start.CONTINUE
    bench.clock.advance(TTL)
    await bench.apply(mark_expired(resumed, bench.now))
    lost = await bench.loaded(held.execution.uuid)
    assert isinstance(lost.state, Lost)
    reclaimed = await bench.claim_one()
    assert (
        reclaimed
        == take(lost, bench.now, lost.state.next, Taking(lease_of(reclaimed).id, W1, TTL)).after
    )
    kinds = [event.kind for event in (await bench.store.events(EventQuery())).events]
    assert kinds[-3:] == [EventKind.RESUMED, EventKind.LEASE_EXPIRED, EventKind.RECLAIMED]
    assert reclaimed.head.epoch == 3


async def test_a_claim_keeps_to_lanes_namespace_kinds_and_capabilities(bench: Bench) -> None:
    plain = await bench.submit()
    other = await bench.submit("report", lane="slow", namespace="other")
    gpu = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    special = await bench.submit(policy=gpu)
    assert await bench.claim(limit=9, lanes=("nowhere",)) == []
    assert await bench.claim(limit=9, namespace="nowhere") == []
    assert await bench.claim(limit=9, kinds=frozenset({"unknown"})) == []
    assert uuids(await bench.claim(limit=9, kinds=frozenset({"report"}))) == [other]
    assert uuids(await bench.claim(limit=9, lanes=("default", "slow"))) == [plain]
    assert uuids(await bench.claim(limit=9, capabilities=frozenset({"gpu", "ssd"}))) == [special]


async def test_a_live_hold_keeps_an_execution_for_one_worker(bench: Bench) -> None:
    uuid = await bench.submit()
    grantee = Grantee(W2.id, frozenset(), Millis(100))
    granted = issue_grant(await bench.loaded(uuid), bench.now, grantee)
    assert await bench.apply(granted) == {uuid}
    assert (await bench.loaded(uuid)).state == replace(
        (await bench.loaded(uuid)).state, hold=Hold(Millis(bench.now + 100), W2.id)
    )
    bench.clock.advance(99)
    assert await bench.claim(W1) == []
    assert await bench.store.snapshots(Claimable("default", None, bench.now, 10)) == []
    assert uuids(await bench.claim(W2)) == [uuid]


async def test_a_hold_that_ran_out_keeps_no_worker_away(bench: Bench) -> None:
    held = await bench.running()
    await bench.apply(lose(held, bench.now, lease_of(held), revoked=False, grace=Millis(50)))
    assert await bench.claim(W1) == []
    bench.clock.advance(50)
    assert uuids(await bench.claim(W1)) == [held.execution.uuid]


async def test_a_repeated_claim_gives_what_it_took_before(bench: Bench) -> None:
    await bench.submit_many(5)
    call = bench.call(limit=3)
    first = await bench.store.claim(call, bench.now)
    again = await bench.store.claim(replace(call, repeated=True), bench.now)
    assert again == [replace(item, again=True) for item in first]
    more = await bench.store.claim(replace(call, repeated=True, limit=5), bench.now)
    assert [item.again for item in more] == [True] * 3 + [False] * 2
    assert uuids(more[:3]) == uuids(again)


async def test_the_order_is_exact_over_a_hundred_routes(bench: Bench) -> None:
    made = []
    for number in range(100):
        bench.clock.advance(1)
        made += await bench.submit_many(3, lane=f"lane-{number * 37 % 100}")
    assert (
        uuids(await bench.claim(limit=250))
        == sorted(made, key=lambda uuid: (made.index(uuid) // 3, uuid.bytes))[:250]
    )


# -- renew, end, note


async def test_a_renewal_extends_and_never_shortens(bench: Bench) -> None:
    held = await bench.running()
    uuid, lease = held.execution.uuid, lease_of(held)
    bench.clock.advance(1000)
    short = Renewal(uuid, lease.id, 1, Millis(10))
    assert await bench.store.renew([short], bench.now) == {uuid: lease.expires_at}
    assert await bench.store.renew([replace(short, ttl=TTL)], bench.now) == {uuid: bench.now + TTL}
    renewed = await bench.loaded(uuid)
    assert lease_of(renewed).renewed_at == bench.now
    assert renewed.head.version == held.head.version
    assert await bench.end(bench.completing(held)) == {uuid}


async def test_a_renewal_with_another_fence_or_too_late_is_refused(bench: Bench) -> None:
    held = await bench.running()
    right = Renewal(held.execution.uuid, lease_of(held).id, 1, TTL)
    wrong = [replace(right, epoch=2), replace(right, lease_id=bench.uuid())]
    for renewal in [*wrong, replace(right, uuid=bench.uuid())]:
        assert await bench.store.renew([renewal], bench.now) == {}
    bench.clock.advance(TTL)
    assert await bench.store.renew([right], bench.now) == {}


async def test_an_end_moves_the_lease_to_done(bench: Bench) -> None:
    held = await bench.running()
    change = bench.completing(held, b"result")
    assert await bench.end(change) == {held.execution.uuid}
    ended = await bench.loaded(held.execution.uuid)
    assert isinstance(ended.state, Ended)
    assert change.after is not None
    assert ended.head == change.after.head
    assert ended.state.result == b"result"
    assert (await bench.store.events(EventQuery())).events[-1].kind is EventKind.COMPLETED
    assert await bench.end(change) == set()


async def test_an_end_keeps_its_life_and_a_failure_brings_a_new_one(bench: Bench) -> None:
    held = await bench.running(policy=RETRIES)
    await bench.apply(fail(held, bench.now, owner_of(held), Failure("boom")))
    bench.clock.advance(3_600_000)
    failed = await bench.load(held.execution.uuid)
    await bench.apply(operator.due(failed, bench.now, 0.0, Millis(0), UUID(int=7)))
    retried = await bench.claim_one()
    assert retried.life.retries == 1
    await bench.end(bench.completing(retried))
    assert (await bench.loaded(held.execution.uuid)).life == retried.life
    last = await bench.running()
    change = fail(last, bench.now, owner_of(last), Failure("bad", "permanent"))
    assert change.plain_end
    await bench.end(change)
    assert (await bench.loaded(last.execution.uuid)).life.failure == Failure("bad", "permanent")


async def test_an_end_is_refused_when_the_lease_moved_or_ran_out(bench: Bench) -> None:
    stale, late = await bench.running(), await bench.running()
    await bench.apply(hand_back(stale, bench.now, owner_of(stale)))
    fresh = await bench.claim_one(W2)
    ending = bench.completing(late)
    assert await bench.end(bench.completing(stale)) == set()
    bench.clock.advance(TTL)
    assert await bench.end(ending) == set()
    assert (await bench.loaded(fresh.execution.uuid)) == fresh


async def test_steps_and_progress_are_written_under_the_lease(bench: Bench) -> None:
    held = await bench.running()
    uuid, lease = held.execution.uuid, lease_of(held)
    first, second = Step(0, 1, "charge", 0, b"1"), Step(0, 0, "load", 0, b"2")
    changed = replace(first, doc=b"other")
    notes = [
        SideWrite(uuid, lease.id, 1, step=first, progress=Progress(10, "begun")),
        SideWrite(uuid, lease.id, 1, step=second),
        SideWrite(uuid, lease.id, 1, step=changed, progress=Progress(percent=20)),
    ]
    assert await bench.store.write_progress(notes, bench.now) == {uuid}
    assert await bench.store.steps([(uuid, 0)]) == [[second, first]]
    assert await bench.store.steps([(uuid, 1)]) == [[]]
    detail = await bench.store.detail(uuid)
    assert detail is not None
    assert detail.progress == {0: Progress(20, "begun")}
    assert detail.snapshot == held


async def test_a_note_of_another_owner_is_not_written(bench: Bench) -> None:
    held = await bench.running()
    uuid, lease = held.execution.uuid, lease_of(held)
    wrong = [
        SideWrite(uuid, bench.uuid(), 1),
        SideWrite(uuid, lease.id, 2),
        SideWrite(bench.uuid(), lease.id, 1),
    ]
    step = Step(0, 0, "charge", 0, b"1")
    notes = [replace(note, step=step, progress=Progress(1)) for note in wrong]
    assert await bench.store.write_progress(notes, bench.now) == set()
    bench.clock.advance(TTL)
    late = SideWrite(uuid, lease.id, 1, step=step)
    assert await bench.store.write_progress([late], bench.now) == set()
    assert await bench.store.steps([(uuid, 0)]) == [[]]


# -- apply


async def test_a_change_is_written_whole_or_not_at_all(bench: Bench) -> None:
    held = await bench.running(policy=RETRIES)
    uuid = held.execution.uuid
    retry = fail(held, bench.now, owner_of(held), Failure("boom"))
    late = delay(held, bench.now, owner_of(held), Millis(bench.now + 10))
    assert await bench.apply(retry) == {uuid}
    assert await bench.apply(late) == set()
    assert await bench.load(uuid) == retry.after
    assert await bench.store.attempts(uuid) == list(retry.attempts)
    kinds = [event.kind for event in (await bench.store.events(EventQuery())).events]
    assert kinds == [EventKind.CLAIMED, EventKind.RETRY_SCHEDULED]


async def test_changes_stand_or_fall_one_by_one(bench: Bench) -> None:
    first, second = await bench.running(), await bench.running()
    parked = await bench.submit(delay_until=bench.now + 1000)
    ready = await bench.submit()
    moved = hand_back(second, bench.now, owner_of(second))
    await bench.apply(moved)
    changes = [
        operator.cancel(first, bench.now, OPERATOR, "no"),
        operator.cancel(second, bench.now, OPERATOR, "no"),
        operator.cancel(await bench.load(parked), bench.now, OPERATOR, "no"),
        operator.change_priority(await bench.load(ready), bench.now, 5),
    ]
    assert await bench.apply(*changes) == {first.execution.uuid, parked, ready}
    for change in (changes[0], changes[2], changes[3]):
        assert change.after is not None
        found = await bench.loaded(change.after.execution.uuid)
        assert found.head == change.after.head
    assert await bench.load(second.execution.uuid) == moved.after


async def test_a_renewed_lease_is_decided_again_by_the_general_way(bench: Bench) -> None:
    held = await bench.running()
    uuid = held.execution.uuid
    bench.clock.advance(TTL - 1)
    await bench.store.renew([Renewal(uuid, lease_of(held).id, 1, TTL)], bench.now)
    bench.clock.advance(1)
    assert await bench.apply(mark_expired(held, bench.now)) == set()
    assert isinstance((await bench.loaded(uuid)).state, Active)


async def test_a_replay_leaves_done_and_sets_its_deadline_again(bench: Bench) -> None:
    policy = {"timeout_policy": {"execution_deadline_ms": 1000}}
    held = await bench.running(policy=policy)
    uuid = held.execution.uuid
    await bench.apply(bench.completing(held, b"r"))
    assert await bench.store.next_due(bench.now) is None
    bench.clock.advance(100)
    replay = operator.replay(await bench.load(uuid), bench.now)
    assert await bench.apply(replay) == {uuid}
    assert await bench.load(uuid) == replay.after
    assert await bench.store.attempts(uuid) == list(replay.attempts)
    assert await bench.store.next_due(bench.now) == bench.now + 1000


async def test_a_step_recorded_by_a_change_stays_when_recorded_again(bench: Bench) -> None:
    held = await bench.running()
    step = Step(0, 0, "sleep", 0, b"1")
    back = hand_back(held, bench.now, owner_of(held))
    await bench.apply(replace(back, steps=(step,)))
    again = await bench.claim_one()
    note = SideWrite(again.execution.uuid, lease_of(again).id, 2, step=replace(step, doc=b"2"))
    await bench.store.write_progress([note], bench.now)
    assert await bench.store.steps([(held.execution.uuid, 0)]) == [[step]]


async def test_nothing_is_written_for_a_change_without_a_result(bench: Bench) -> None:
    held = await bench.running()
    nothing = mark_expired(held, bench.now)
    assert nothing.after is None
    assert await bench.apply(nothing) == set()
    assert await bench.apply() == set()


# -- what is due


async def test_what_time_has_made_due_is_found(bench: Bench) -> None:
    parked = await bench.submit(delay_until=bench.now + 10)
    limits = {"timeout_policy": {"attempt_timeout_ms": 20}}
    running = (await bench.running(policy=limits)).execution.uuid
    leased = (await bench.running()).execution.uuid
    deadline = await bench.submit(deadline_at=bench.now + 30)
    start = bench.now
    assert await bench.store.due(bench.now, 10) == []
    for wait, uuid in ((10, parked), (20, running), (30, deadline), (TTL, leased)):
        assert await bench.store.next_due(bench.now) == start + wait
        bench.clock.advance(start + wait - bench.now)
        assert uuid in await bench.store.due(bench.now, 10)
    assert set(await bench.store.due(bench.now, 10)) == {parked, running, deadline, leased}
    assert len(await bench.store.due(bench.now, 3)) == 3
    assert await bench.store.next_due(bench.now) is None


async def test_an_execution_with_two_things_due_is_named_once(bench: Bench) -> None:
    uuid = await bench.submit(delay_until=bench.now + 10, deadline_at=bench.now + 10)
    bench.clock.advance(10)
    assert await bench.store.due(bench.now, 10) == [uuid]


async def test_a_suspended_or_waiting_execution_without_a_moment_is_never_due(bench: Bench) -> None:
    uuid = await bench.submit()
    await bench.apply(operator.block(await bench.load(uuid), bench.now, "paused_by_operator"))
    assert isinstance((await bench.loaded(uuid)).state, Waiting)
    bench.clock.advance(10**9)
    assert await bench.store.due(bench.now, 10) == []


async def test_trim_deletes_all_that_belongs_to_an_execution(bench: Bench) -> None:
    held = await bench.running(key="k", tags={"app.a": "b"}, policy=RETRIES)
    uuid = held.execution.uuid
    note = SideWrite(uuid, lease_of(held).id, 1, Progress(1), Step(0, 0, "s", 0, b""))
    await bench.store.write_progress([note], bench.now)
    await bench.end(bench.completing(held))
    kept = await bench.submit()
    ended_at = bench.now
    assert await bench.store.trim(Millis(ended_at - 1), bench.now, 10) == 0
    assert await bench.store.trim(ended_at, bench.now, 10) == 1
    assert await bench.load(uuid) is None
    assert await bench.store.detail(uuid) is None
    assert await bench.store.steps([(uuid, 0)]) == [[]]
    assert (await bench.store.events(EventQuery())).events == ()
    assert await bench.store.submit([bench.creation(key="k")], bench.now) == [None]
    assert await bench.load(kept) is not None


async def test_trim_keeps_a_key_that_another_run_has_taken_over(bench: Bench) -> None:
    held = await bench.running(key="k", policy={"dedup_window_ms": 10})
    await bench.end(bench.completing(held))
    bench.clock.advance(10)
    second = bench.creation(key="k")
    await bench.store.submit([second], bench.now)
    assert await bench.store.trim(bench.now, bench.now, 10) == 1
    assert await bench.store.submit([bench.creation(key="k")], bench.now) == [text_of(second)]


async def test_an_execution_with_its_own_retention_goes_when_that_has_passed(bench: Bench) -> None:
    policy = {"stream_policy": {"retention_ttl_ms": 1000}}
    held = await bench.running(policy=policy)
    await bench.apply(bench.completing(held))
    bench.clock.advance(999)
    assert await bench.store.trim(bench.now, bench.now, 10) == 0
    bench.clock.advance(1)
    assert await bench.store.trim(Millis(0), bench.now, 10) == 1


async def test_numbers_of_events_are_not_used_again_after_trim(bench: Bench) -> None:
    held = await bench.running()
    await bench.end(bench.completing(held))
    last = (await bench.store.events(EventQuery(after=NEWEST))).cursor
    assert last == 2
    await bench.store.trim(bench.now, bench.now, 10)
    assert (await bench.store.events(EventQuery(after=NEWEST))).cursor == last
    await bench.running()
    assert [event.seq for event in (await bench.store.events(EventQuery())).events] == [last + 1]


async def test_a_revoked_lease_is_lost(bench: Bench) -> None:
    held = await bench.running()
    change = revoke(held, bench.now, reason="drain")
    assert await bench.apply(change) == {held.execution.uuid}
    assert await bench.load(held.execution.uuid) == change.after


async def test_an_unknown_execution_is_nowhere(bench: Bench) -> None:
    nobody = UUID(int=7)
    assert await bench.store.load([nobody]) == {}
    assert await bench.store.load([]) == {}
    assert await bench.store.detail(nobody) is None
    assert await bench.store.attempts(nobody) == []
    assert not await bench.store.set_tags(nobody, {"a": "b"}, bench.now)
