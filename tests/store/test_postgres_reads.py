"""What can be asked, and what is due."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, lease, operator
from flowfabric.core.execution.grant import Grantee, issue_grant
from flowfabric.core.execution.model import (
    EMPTY_LIFE,
    Active,
    Ended,
    Gate,
    Lease,
    Life,
    Lost,
    Next,
    Outcome,
    Ready,
    Snapshot,
    Start,
    State,
    Suspended,
    Waiting,
)
from flowfabric.core.execution.status import ADMISSION_BLOCKS, PublicState, vector
from flowfabric.core.limit.lane import Lane, LaneState
from flowfabric.store.postgres import lists
from flowfabric.store.queries import Claimable, Counts, EventQuery, Progress, Query
from flowfabric.store.rows.execution import COLUMNS, place_of, state_row
from flowfabric.store.rows.record import LANES
from tests.kit.snapshots import lease_of, owner_of
from tests.store.postgres_bench import (
    KEPT_AN_HOUR,
    OPERATOR,
    TTL,
    W1,
    W2,
    Bench,
    id_of,
    progress,
    renewal,
    uuids,
)

# -- one execution


async def test_a_detail_shows_everything(bench: Bench) -> None:
    creation = bench.creation(payload=b"abc", tags={"app.b": "2", "app.a": "1"})
    await bench.store.submit([creation], bench.now)
    uuid = creation.snapshot.execution.uuid
    detail = await bench.store.detail(uuid)
    assert detail is not None
    assert (detail.snapshot, detail.payload) == (creation.snapshot, b"abc")
    assert (detail.tags, detail.progress) == ({"app.a": "1", "app.b": "2"}, {})
    assert detail.touched_at == bench.now
    assert await bench.store.detail(bench.fresh()) is None


async def test_whatever_happens_touches_an_execution(bench: Bench) -> None:
    held = await bench.running()
    uuid = held.execution.uuid

    async def touched() -> bool:
        detail = await bench.store.detail(uuid)
        return detail is not None and detail.touched_at == bench.now

    bench.clock.advance(1)
    assert not await touched()
    await bench.store.renew([renewal(held)], bench.now)
    assert await touched()
    bench.clock.advance(1)
    await bench.store.write_progress([progress(held, 5)], bench.now)
    assert await touched()
    bench.clock.advance(1)
    await bench.store.set_tags(uuid, {"a.b": "c"}, bench.now)
    assert await touched()
    bench.clock.advance(1)
    await bench.store.end([bench.completion(held)], bench.now)
    assert await touched()


async def test_tags_are_added_and_replaced(bench: Bench) -> None:
    uuid = (await bench.submit(tags={"app.a": "1"})).execution.uuid
    assert await bench.store.set_tags(uuid, {"app.a": "2", "app.b": "3"}, bench.now)
    assert await bench.store.set_tags(uuid, {}, bench.now)
    detail = await bench.store.detail(uuid)
    assert detail is not None
    assert detail.tags == {"app.a": "2", "app.b": "3"}
    assert not await bench.store.set_tags(bench.fresh(), {"app.a": "2"}, bench.now)


async def test_another_process_reads_names_it_never_heard_of(bench: Bench) -> None:
    other = await bench.other_store()
    held = await bench.running(lane="elsewhere")
    assert await other.load(uuids([held])) == {held.execution.uuid: held}
    (event,) = (await other.events(EventQuery())).events
    assert (event.lane, event.worker) == ("elsewhere", W1)


# -- lists


def every_state() -> list[tuple[State, Life]]:
    """One of each kind of state there is, with the life that belongs to it."""
    first, again = Next(Start.INITIAL, 0), Next(Start.RETRY, 1)
    paused = Next(Start.CONTINUE, 0)
    held = Lease(UUID(int=1), 0, Start.INITIAL, W1, Millis(1), Millis(2))
    delays = (Gate.BACKOFF, Gate.RESUME_DELAY, Gate.WORKER_DELAY)
    plain = [gate for gate in Gate if gate not in (*delays, Gate.BLOCKED)]
    states: list[tuple[State, Life]] = [(Waiting(gate, first), EMPTY_LIFE) for gate in plain]
    states += [
        (Waiting(Gate.BACKOFF, again), EMPTY_LIFE),
        (Waiting(Gate.RESUME_DELAY, paused), EMPTY_LIFE),
        (Waiting(Gate.WORKER_DELAY, paused), EMPTY_LIFE),
    ]
    states += [
        (Waiting(Gate.BLOCKED, first), Life(blocked=str(reason))) for reason in ADMISSION_BLOCKS
    ]
    states += [(Suspended(paused, UUID(int=2), "because", Millis(1)), EMPTY_LIFE)]
    states += [(Ready(first), EMPTY_LIFE), (Active(held), EMPTY_LIFE)]
    states += [(Lost(revoked, Next(Start.RECLAIM, 1)), EMPTY_LIFE) for revoked in (True, False)]
    for outcome in Outcome:
        ran = outcome is not Outcome.SKIPPED
        states.append(
            (
                Ended(
                    outcome,
                    Millis(3),
                    attempt=0 if ran else None,
                    pending=None if ran else Start.INITIAL,
                    lease=held if ran else None,
                ),
                EMPTY_LIFE,
            )
        )
    return states


async def write_states(bench: Bench) -> list[Snapshot]:
    """Every kind of state as a row, whether or not a rule of today leads to it."""
    raw = await bench.raw()
    await bench.running(lane="only to intern the worker")
    written = []
    for state, life in every_state():
        bench.clock.advance(1)
        submitted = await bench.submit()
        snapshot = submitted.to(state, life=life, epoch=1)
        await raw.execute("delete from flowfabric.ready where id = $1", submitted.execution.uuid)
        place = place_of(state)
        row = state_row(snapshot, bench.store.session.book.names)
        marks = ", ".join(f"${n}" for n in range(1, len(row) + 1))
        names = ", ".join(COLUMNS[place])
        await raw.execute(f"insert into flowfabric.{place} ({names}) values ({marks})", *row)
        written.append(snapshot)
    return written


async def test_every_state_is_read_filtered_and_counted_as_the_core_names_it(
    bench: Bench,
) -> None:
    written = await write_states(bench)
    found = (await bench.store.page(Query(lane="default", limit=100))).items
    assert [s.head for s in found] == [s.head for s in written]
    assert [vector(s) for s in found] == [vector(s) for s in written]
    counts = await bench.store.counts(None, "default")
    for state in PublicState:
        wanted = [s for s in written if vector(s).public is state]
        page = await bench.store.page(Query(lane="default", states=(state,), limit=100))
        assert uuids(page.items) == uuids(wanted)
        assert counts.by_state.get(state, 0) == len(wanted)


async def test_a_page_goes_by_creation_both_ways(bench: Bench) -> None:
    submitted = []
    for _ in range(5):
        submitted += await bench.submit_many(2)
        bench.clock.advance(1)
    by_time = sorted(submitted, key=lambda s: (s.execution.created_at, s.execution.uuid))
    assert await everything(bench, Query(limit=3)) == uuids(by_time)
    assert await everything(bench, Query(limit=3, newest_first=True)) == uuids(by_time[::-1])
    assert await everything(bench, Query(limit=3, lane="default")) == uuids(by_time)
    start = by_time[0].execution.created_at
    span = Query(created_from=Millis(start + 1), created_until=Millis(start + 3))
    assert uuids((await bench.store.page(span)).items) == uuids(by_time[2:6])


async def everything(bench: Bench, query: Query) -> list[UUID]:
    """All pages of a query, none longer than it may be."""
    found: list[UUID] = []
    while True:
        page = await bench.store.page(query)
        assert len(page.items) <= query.limit
        found += uuids(page.items)
        if page.cursor is None:
            return found
        query = Query(
            lane=query.lane,
            kind=query.kind,
            limit=query.limit,
            newest_first=query.newest_first,
            after=page.cursor,
        )


async def test_a_page_can_be_filtered(bench: Bench) -> None:
    a = await bench.submit(kind="a", namespace="n", lane="l", tags={"t.k": "v"})
    b = await bench.submit(kind="b", namespace="m", lane="l", tags={"t.k": "w"})
    c = await bench.submit(kind="b", namespace="m", lane="other")

    async def found(**members: object) -> list[UUID]:
        return uuids((await bench.store.page(Query(**members))).items)  # type: ignore[arg-type]

    assert await found(kind="b") == uuids([b, c])
    assert await found(namespace="m", lane="l") == uuids([b])
    assert await found(tag=("t.k", "v")) == uuids([a])
    assert await found(tag=("t.x", "v")) == []
    assert await found(lane="nowhere") == []
    assert await found() == uuids([a, b, c])


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_page_looks_at_a_bounded_number_and_says_where_it_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    monkeypatch.setattr(lists, "MAX_EXAMINED", 4)
    await bench.submit_many(6)
    bench.clock.advance(1)
    rare = await bench.submit(kind="rare")
    bench.clock.advance(1)
    await bench.submit_many(6)
    query = Query(kind="rare", limit=10, newest_first=newest_first)
    first = await bench.store.page(query)
    assert first.items == ()
    assert first.cursor is not None
    assert await everything(bench, query) == uuids([rare])


async def test_candidates_are_ready_and_free_in_claim_order(bench: Bench) -> None:
    lost = await bench.running(lane="c")
    await bench.apply(lease.revoke(lost, bench.now, reason=""))
    low = await bench.submit(lane="a", namespace="n")
    high = await bench.submit(lane="a", namespace="m", priority=3)
    held = await bench.submit(lane="a")
    await bench.apply(issue_grant(held, bench.now, Grantee("w2", frozenset(), Millis(10))))
    await bench.submit(lane="b")
    now = bench.now
    assert await bench.store.snapshots(Claimable("a", None, now, 9)) == [high, low]
    assert await bench.store.snapshots(Claimable("a", "n", now, 9)) == [low]
    assert await bench.store.snapshots(Claimable("a", None, now, 1)) == [high]
    assert await bench.store.snapshots(Claimable("c", None, now, 9)) == []
    later = Millis(now + 10)
    assert uuids(await bench.store.snapshots(Claimable("a", None, later, 9))) == uuids(
        [high, low, held]
    )


async def test_candidates_of_a_worker_are_those_it_could_claim(bench: Bench) -> None:
    gpu = {"routing_requirements": {"required_capabilities": ["gpu", "x"]}}
    plain, needy = await bench.submit(), await bench.submit(policy=gpu)
    candidates, now = bench.store.snapshots, bench.now
    assert await candidates(Claimable("default", None, now, 9, frozenset({"gpu"}))) == [plain]
    offered = frozenset({"gpu", "x", "y"})
    assert len(await candidates(Claimable("default", None, now, 9, offered))) == 2
    await bench.store.records.put(LANES, Lane(name="default", state=LaneState.PAUSED), 0)
    assert await candidates(Claimable("default", None, now, 9, offered)) == []
    assert uuids(await candidates(Claimable("default", None, now, 9))) == uuids([plain, needy])


async def test_expired_leases_are_those_that_ran_out_and_those_lost(bench: Bench) -> None:
    revoked = await bench.running(namespace="n")
    await bench.apply(lease.revoke(revoked, bench.now, reason=""))
    bench.clock.advance(10)
    (reclaimed,) = await bench.claim()
    await bench.apply(lease.revoke(reclaimed, bench.now, reason=""))
    (lost_row,) = await bench.store.expired_leases(bench.now, None, 9, None)
    assert (lost_row.id, lost_row.lease_id) == (id_of(revoked), lease_of(reclaimed).id)
    assert (lost_row.epoch, lost_row.attempt) == (reclaimed.head.epoch, 1)
    bench.clock.advance(10)
    late = await bench.submit(namespace="m")
    held = [s for s in await bench.claim(9, worker=W2) if s.execution.uuid == late.execution.uuid]
    as_of = lease_of(held[0]).expires_at
    found = await bench.store.expired_leases(as_of, None, 9, None)
    assert [item.instance for item in found] == [W2.instance, W2.instance]
    assert len(await bench.store.expired_leases(as_of, None, 9, "m")) == 1
    first = found[0]
    rest = await bench.store.expired_leases(as_of, (first.expires_at, first.id.uuid), 9, None)
    assert rest == found[1:]
    assert await bench.store.expired_leases(Millis(as_of - 1), None, 9, None) == []


async def test_the_leases_of_an_instance(bench: Bench) -> None:
    await bench.submit_many(3)
    mine = await bench.claim(2, worker=W1)
    await bench.claim(1, worker=W2)
    found = await bench.store.held_leases(W1.instance, 9)
    assert {lease.id.uuid for lease in found} == set(uuids(mine))
    assert len(await bench.store.held_leases(W1.instance, 1)) == 1
    assert await bench.store.held_leases("nobody", 9) == []


async def test_routes_are_those_anything_was_submitted_to(bench: Bench) -> None:
    for lane in ("c", "a", "b", "a"):
        await bench.submit(lane=lane)
    await bench.submit(lane="a", namespace="other")
    assert sorted((route.lane, route.namespace) for route in await bench.store.routes()) == [
        ("a", "default"),
        ("a", "other"),
        ("b", "default"),
        ("c", "default"),
    ]


async def test_counting_stops_somewhere_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.submit_many(4, namespace="n")
    await bench.submit_many(1, namespace="m", delay_until=bench.now + 5)
    assert (await bench.store.counts(None, None)).by_state["waiting"] == 4
    monkeypatch.setattr(lists, "MAX_COUNTED", 3)
    counts = await bench.store.counts(None, None)
    assert (counts.by_state["waiting"], counts.by_state["delayed"]) == (3, 1)
    assert counts.capped == {"waiting"}
    other = await bench.store.counts("m", "default")
    assert (other.by_state["waiting"], other.by_state["delayed"]) == (0, 1)
    nothing = Counts(dict.fromkeys(PublicState, 0), frozenset())
    assert await bench.store.counts("m", "nowhere") == nothing
    await bench.submit_many(6, namespace="m", delay_until=bench.now + 5)
    counts = await bench.store.counts("m", None)
    assert counts.by_state["delayed"] == 3
    assert {"delayed", "suspended"} <= counts.capped
    assert "succeeded" not in counts.capped


async def test_counts_of_a_lane_look_at_a_bounded_number_of_endings(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lane among very many finished executions: what was not looked at may be of it."""
    for lane in ("other", "other", "other", "rare"):
        await bench.ended(lane=lane)
    assert await bench.store.counts(None, "rare") == Counts(
        {**dict.fromkeys(PublicState, 0), PublicState.COMPLETED: 1}, frozenset()
    )
    monkeypatch.setattr(lists, "MAX_COUNTED", 1)
    counts = await bench.store.counts(None, "rare")
    assert counts.by_state[PublicState.COMPLETED] <= 1
    assert counts.capped == {PublicState.COMPLETED}


# -- what is due


async def test_everything_that_time_made_due_is_found_once_and_oldest_first(bench: Bench) -> None:
    now = bench.now
    timed = await bench.running(
        policy={"timeout_policy": {"attempt_timeout_ms": 40}}, deadline_at=now + 60
    )
    leased = await bench.running()
    late = await bench.submit(delay_until=now + 50)
    soon = await bench.submit(delay_until=now + 10)
    both = await bench.submit(delay_until=now + 20, deadline_at=now + 30)
    never = await bench.submit()
    due = bench.store.due
    assert await due(now, 9) == []
    assert await due(Millis(now + 10), 9) == uuids([soon])
    assert await due(Millis(now + 60), 9) == uuids([soon, both, timed, late])
    assert await due(Millis(now + 60), 2) == uuids([soon, both])
    assert leased.execution.uuid in await due(lease_of(leased).expires_at, 9)
    assert never.execution.uuid not in await due(lease_of(leased).expires_at, 9)


async def test_the_next_due_moment_is_the_earliest_to_come(bench: Bench) -> None:
    now = bench.now
    assert await bench.store.next_due(now) is None
    held = await bench.running(policy={"timeout_policy": {"attempt_timeout_ms": 40}})
    await bench.submit(delay_until=now + 30)
    await bench.submit(deadline_at=now + 20)
    moments = []
    while (moment := await bench.store.next_due(now)) is not None:
        moments.append(moment - bench.now)
        now = moment
    assert moments == [20, 30, 40, lease_of(held).expires_at - bench.now]


async def test_trimming_leaves_nothing_of_what_it_deletes(bench: Bench) -> None:
    held = await bench.running(key="k", tags={"a.b": "c"}, deadline_at=bench.now + 10**9)
    await bench.store.write_progress([progress(held, 5)], bench.now)
    retried = await bench.apply(lease.revoke(held, bench.now, reason=""))
    (again,) = await bench.claim()
    await bench.apply(operator.cancel(again, bench.now, OPERATOR, ""))
    ended_at = bench.now
    bench.clock.advance(1)
    recent = await bench.ended()
    assert await bench.store.trim(ended_at, bench.now, 9) == 1
    assert await bench.store.load(uuids([retried])) == {}
    assert await bench.load(recent) == await bench.load(recent)
    raw = await bench.raw()
    left = {}
    for table in ("tag", "progress", "attempt", "step", "deadline", "dedup", "done", "event"):
        query = f"select count(*) from flowfabric.{table} where id = $1"
        left[table] = await raw.fetchval(query, held.execution.uuid)
    assert left == dict.fromkeys(left, 0)
    await bench.submit(key="k")


async def test_trimming_goes_by_pages_and_own_retention(bench: Bench) -> None:
    short = await bench.submit(policy=KEPT_AN_HOUR)
    await bench.apply(operator.cancel(short, bench.now, OPERATOR, ""))
    ended = [await bench.ended() for _ in range(3)]
    never = Millis(0)
    assert await bench.store.trim(bench.now, bench.now, 2) == 2
    assert await bench.store.trim(bench.now, bench.now, 2) == 1
    assert set(await bench.store.load(uuids([short, *ended]))) == {short.execution.uuid}
    bench.clock.advance(3_600_000 - 1)
    assert await bench.store.trim(never, bench.now, 9) == 0
    bench.clock.advance(1)
    assert await bench.store.trim(never, bench.now, 9) == 1


async def test_trimming_forgets_keys_whose_window_has_passed(bench: Bench) -> None:
    first = bench.creation(key="k")
    await bench.store.submit([first], bench.now)
    raw = await bench.raw()
    keys = "select count(*) from flowfabric.dedup"
    await bench.store.trim(Millis(0), Millis(first.key_until - 1), 9)
    assert await raw.fetchval(keys) == 1
    await bench.store.trim(Millis(0), first.key_until, 9)
    assert await raw.fetchval(keys) == 0


async def test_a_replay_and_a_trim_do_not_both_get_the_execution(bench: Bench) -> None:
    ended = await bench.ended()
    other = await bench.other_store()
    replay = operator.replay(await bench.load(ended), bench.now)
    trimmed, applied = await asyncio.gather(
        bench.store.trim(bench.now, bench.now, 9), other.apply([replay])
    )
    assert trimmed + len(applied) == 1
    assert len(await bench.store.load(uuids([ended]))) == len(applied)


async def test_a_duty_has_one_holder_until_it_lapses_or_is_dropped(bench: Bench) -> None:
    now = bench.now

    async def take(*asked: Any) -> bool:
        return (await bench.store.glance(*asked)).has_duty

    until = Millis(now + 10)
    assert await take("sweep", "a", now, until)
    assert not await take("sweep", "b", now, until)
    assert await take("sweep", "a", now, until)
    assert await take("other", "b", now, until)
    assert await take("sweep", "b", until, Millis(until + 10))
    await bench.store.drop_duty("sweep", "a")
    assert not await take("sweep", "a", until, Millis(until + 10))
    await bench.store.drop_duty("sweep", "b")
    assert await take("sweep", "a", until, Millis(until + 10))


async def test_progress_is_told_only_when_there_is_some(bench: Bench) -> None:
    held = await bench.running()
    await bench.store.write_progress([progress(held, message="so far")], bench.now)
    detail = await bench.store.detail(held.execution.uuid)
    assert detail is not None
    assert detail.progress == {0: Progress(None, "so far")}
    assert lease_of(held).expires_at - bench.now == TTL
    assert attempt.complete(held, bench.now, owner_of(held)).plain_end
