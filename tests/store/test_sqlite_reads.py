"""Lists, counts, events and the plans behind them."""

import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.attempt import hand_back
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner, revoke
from flowfabric.core.execution.model import (
    EMPTY_LIFE,
    Active,
    Ended,
    Gate,
    Lease,
    Lost,
    Next,
    Outcome,
    Ready,
    Source,
    Start,
    State,
    Suspended,
    Waiting,
)
from flowfabric.core.execution.status import PublicState, vector_of
from flowfabric.core.limit.lane import Lane, LaneState
from flowfabric.store.clock import ManualClock
from flowfabric.store.queries import NEWEST, Claimable, EventQuery, Page, Progress, Query, SideWrite
from flowfabric.store.rows.record import LANES
from flowfabric.store.sql import load_queries
from flowfabric.store.sqlite import lists, open_sqlite
from flowfabric.store.sqlite.session import SqliteSession
from tests.kit.snapshots import lease_of, owner_of
from tests.store.sqlite_bench import TTL, W1, W2, Bench, text_of, uuids

OPERATOR = Owner(source=Source.OPERATOR)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    clock = ManualClock()
    store = await open_sqlite(str(tmp_path / "work.db"), clock=clock)
    await store.migrate()
    yield Bench(store, clock)
    await store.close()


def listed(page: Page) -> list[UUID]:
    return [snapshot.execution.uuid for snapshot in page.items]


async def one_of_each(bench: Bench) -> dict[PublicState, list[UUID]]:
    """Executions in all public states the first rules can reach."""
    held = [await bench.running() for _ in range(4)]
    await bench.end(bench.completing(held[0]))
    cancelled = operator.cancel(held[1], bench.now, OPERATOR, "no")
    await bench.apply(cancelled, revoke(held[2], bench.now, reason="drain"))
    blocked = [await bench.submit() for _ in range(2)]
    for uuid, reason in zip(blocked, ("waiting_for_quota", "paused_by_operator"), strict=True):
        await bench.apply(operator.block(await bench.load(uuid), bench.now, reason))
    found = [snapshot.execution.uuid for snapshot in held]
    return {
        PublicState.COMPLETED: [found[0]],
        PublicState.CANCELLED: [found[1]],
        PublicState.ACTIVE: found[2:],
        PublicState.RATE_LIMITED: [blocked[0]],
        PublicState.WAITING: [blocked[1], await bench.submit()],
        PublicState.DELAYED: [await bench.submit(delay_until=bench.now + 1000)],
    }


# -- lists


async def test_pages_follow_one_another_in_both_directions(bench: Bench) -> None:
    made = []
    for _ in range(4):
        made += sorted(await bench.submit_many(3), key=lambda uuid: uuid.bytes)
        bench.clock.advance(1)
    for newest_first in (False, True):
        found: list[UUID] = []
        query = Query(limit=5, newest_first=newest_first)
        page = await bench.store.page(query)
        while True:
            found += listed(page)
            if page.cursor is None:
                break
            page = await bench.store.page(
                Query(limit=5, newest_first=newest_first, after=page.cursor)
            )
        assert found == (made[::-1] if newest_first else made)


async def test_a_list_is_filtered_by_everything_at_once(bench: Bench) -> None:
    wanted = await bench.submit("report", lane="slow", namespace="ns", tags={"app.a": "1"})
    await bench.submit("report", lane="slow", namespace="ns", tags={"app.a": "2"})
    await bench.submit("other", lane="slow", namespace="ns", tags={"app.a": "1"})
    await bench.submit("report", namespace="ns", tags={"app.a": "1"})
    await bench.submit("report", lane="slow", tags={"app.a": "1"})
    everything = Query(
        kind="report",
        lane="slow",
        namespace="ns",
        tag=("app.a", "1"),
        states=(PublicState.WAITING,),
        created_from=bench.now,
        created_until=Millis(bench.now + 1),
    )
    assert listed(await bench.store.page(everything)) == [wanted]
    assert listed(await bench.store.page(Query(created_until=bench.now))) == []
    assert listed(await bench.store.page(Query(created_from=Millis(bench.now + 1)))) == []


async def test_a_list_of_a_state_has_exactly_those_in_it(bench: Bench) -> None:
    made = await one_of_each(bench)
    for state in PublicState:
        found = listed(await bench.store.page(Query(states=(state,))))
        assert sorted(found) == sorted(made.get(state, [])), state
    both = Query(states=(PublicState.RATE_LIMITED, PublicState.DELAYED))
    assert len((await bench.store.page(both)).items) == 2


async def test_a_page_looks_at_a_bounded_number_of_rows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "MAX_EXAMINED", 50)
    await bench.submit_many(120)
    bench.clock.advance(1)
    last = await bench.submit("rare")
    page, pages = await bench.store.page(Query(kind="rare")), 1
    while page.cursor is not None:
        assert page.items == ()
        page, pages = await bench.store.page(Query(kind="rare", after=page.cursor)), pages + 1
    assert listed(page) == [last]
    assert pages == 3


async def test_executions_are_counted_by_public_state(bench: Bench) -> None:
    made = await one_of_each(bench)
    counts = await bench.store.counts(None, None)
    assert counts.by_state == {state: len(made.get(state, [])) for state in PublicState}
    assert counts.capped == frozenset()
    await bench.submit(lane="slow", namespace="ns")
    for namespace, lane in (("ns", None), (None, "slow"), ("ns", "slow")):
        few = await bench.store.counts(namespace, lane)
        assert sum(few.by_state.values()) == few.by_state[PublicState.WAITING] == 1


async def test_counting_stops_and_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MAX_COUNTED", 10)
    await bench.submit_many(10)
    assert (await bench.store.counts(None, None)).capped == frozenset()
    await bench.submit_many(20)
    counts = await bench.store.counts(None, None)
    assert counts.by_state[PublicState.WAITING] == 10
    assert PublicState.WAITING in counts.capped
    assert PublicState.DELAYED not in counts.capped


def test_every_spot_has_the_public_state_the_core_derives() -> None:
    lease = Lease(UUID(int=1), 0, Start.INITIAL, W1, Millis(1), Millis(2))
    next = {gate: Next(Start.CONTINUE, 0) for gate in Gate} | {Gate.BACKOFF: Next(Start.RETRY, 1)}
    states: dict[int, State] = {
        lists.READY: Ready(next[Gate.DELAY]),
        lists.LOST: Lost(False, Next(Start.RECLAIM, 1)),
        lists.LEASED: Active(lease),
        20: Suspended(next[Gate.DELAY], UUID(int=1), "waiting_for_signal", Millis(1)),
        **{gate: Waiting(gate, next[gate]) for gate in Gate if gate is not Gate.BLOCKED},
        **{
            lists.ENDED + outcome: Ended(
                outcome, Millis(1), 0, Start.INITIAL if outcome is Outcome.SKIPPED else None
            )
            for outcome in Outcome
        },
    }
    for public, spots in lists.SPOTS.items():
        for spot in spots:
            if spot != Gate.BLOCKED:
                assert vector_of(states.pop(spot), EMPTY_LIFE).public is public
    assert states == {}


# -- the rest of the reads


async def test_a_detail_tells_when_anything_last_happened(bench: Bench) -> None:
    start = bench.now
    uuid = await bench.submit(tags={"app.a": "1"})
    bench.clock.advance(1)
    assert await bench.store.set_tags(uuid, {"app.a": "2", "app.b": "3"}, bench.now)
    detail = await bench.store.detail(uuid)
    assert detail is not None
    assert detail.tags == {"app.a": "2", "app.b": "3"}
    assert detail.touched_at == start + 1
    bench.clock.advance(1)
    held = await bench.claim_one()
    bench.clock.advance(1)
    note = SideWrite(uuid, lease_of(held).id, 1, progress=Progress(1))
    await bench.store.write_progress([note], bench.now)
    detail = await bench.store.detail(uuid)
    assert detail is not None
    assert detail.touched_at == start + 3


async def test_candidates_are_given_in_claim_order(bench: Bench) -> None:
    low, high = await bench.submit(priority=1), await bench.submit("other", priority=2)
    await bench.submit(lane="slow")
    await bench.submit(namespace="ns")
    lost = await bench.running(priority=9)
    await bench.apply(revoke(lost, bench.now, reason="drain"))
    found = await bench.store.snapshots(Claimable("default", "default", bench.now, 10))
    assert [snapshot.execution.uuid for snapshot in found] == [high, low]
    assert len(await bench.store.snapshots(Claimable("default", None, bench.now, 1))) == 1
    assert len(await bench.store.snapshots(Claimable("default", None, bench.now, 9))) == 3


async def test_candidates_for_a_worker_are_those_it_could_claim(bench: Bench) -> None:
    gpu = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    plain, special = await bench.submit(), await bench.submit(policy=gpu)

    async def found(*offered: str) -> set[UUID]:
        candidates = await bench.store.snapshots(
            Claimable("default", None, bench.now, 9, capabilities=frozenset(offered))
        )
        return {snapshot.execution.uuid for snapshot in candidates}

    assert await found() == {plain}
    assert await found("gpu") == {plain, special}
    assert await bench.store.records.put(LANES, Lane(name="default", state=LaneState.PAUSED), 0)
    assert await found("gpu") == set()
    assert len(await bench.store.snapshots(Claimable("default", None, bench.now, 9))) == 2


async def test_leases_that_ran_out_and_lost_ones_are_listed(bench: Bench) -> None:
    first = await bench.running()
    revoked = await bench.running(namespace="ns")
    bench.clock.advance(1)
    second = await bench.running()
    await bench.apply(revoke(revoked, bench.now, reason="drain"))
    as_of = Millis(bench.now + TTL)
    found = await bench.store.expired_leases(as_of, None, 10, None)
    wanted = [revoked, first, second]
    assert [item.id for item in found] == [text_of(snapshot) for snapshot in wanted]
    assert [item.lease_id for item in found] == [lease_of(snapshot).id for snapshot in wanted]
    assert {(item.instance, item.epoch, item.attempt) for item in found} == {("w1-a", 1, 0)}
    assert [item.expires_at for item in found] == [
        bench.now,
        lease_of(first).expires_at,
        lease_of(second).expires_at,
    ]
    after = (found[0].expires_at, wanted[0].execution.uuid)
    assert await bench.store.expired_leases(as_of, after, 1, None) == found[1:2]
    one = await bench.store.expired_leases(as_of, None, 10, "ns")
    assert [item.id for item in one] == [text_of(revoked)]
    early = await bench.store.expired_leases(bench.now, None, 10, None)
    assert [item.id for item in early] == [text_of(revoked)]


async def test_the_leases_of_an_instance_are_found(bench: Bench) -> None:
    await bench.submit_many(3)
    mine = uuids(await bench.claim(W1, limit=2))
    await bench.claim(W2)
    found = await bench.store.held_leases("w1-a", 10)
    assert {lease.id.uuid for lease in found} == set(mine)
    assert len(await bench.store.held_leases("w1-a", 1)) == 1
    assert await bench.store.held_leases("nobody", 10) == []


async def test_routes_are_those_anything_was_submitted_to(bench: Bench) -> None:
    for lane in ("c", "a", "b", "a"):
        await bench.submit(lane=lane)
    await bench.submit(lane="a", namespace="ns")
    assert sorted((route.lane, route.namespace) for route in await bench.store.routes()) == [
        ("a", "default"),
        ("a", "ns"),
        ("b", "default"),
        ("c", "default"),
    ]


# -- duties and the secret


async def test_a_duty_has_one_holder_until_it_lapses(bench: Bench) -> None:
    until = Millis(bench.now + 100)
    assert (await bench.store.glance("sweep", "a", bench.now, until)).has_duty
    assert not (await bench.store.glance("sweep", "b", bench.now, until)).has_duty
    assert (await bench.store.glance("sweep", "a", bench.now, Millis(until + 1))).has_duty
    assert (await bench.store.glance("other", "b", bench.now, until)).has_duty
    bench.clock.advance(101)
    assert (await bench.store.glance("sweep", "b", bench.now, Millis(bench.now + 1))).has_duty
    await bench.store.drop_duty("sweep", "a")
    assert not (await bench.store.glance("sweep", "a", bench.now, until)).has_duty
    await bench.store.drop_duty("sweep", "b")
    assert (await bench.store.glance("sweep", "a", bench.now, until)).has_duty


async def test_the_secret_is_made_once(bench: Bench) -> None:
    secret = (await bench.store.identity()).secret
    assert len(secret) == 32
    assert (await bench.store.identity()).secret == secret


# -- events


async def test_events_are_read_after_a_cursor(bench: Bench) -> None:
    held = [await bench.running() for _ in range(3)]
    await bench.end(*[bench.completing(snapshot) for snapshot in held])
    first = await bench.store.events(EventQuery(limit=4))
    assert [event.seq for event in first.events] == [1, 2, 3, 4]
    assert first.cursor == 4
    rest = await bench.store.events(EventQuery(after=first.cursor, limit=4))
    assert [event.seq for event in rest.events] == [5, 6]
    assert rest.cursor == (await bench.store.events(EventQuery(after=NEWEST))).cursor == 6
    assert (await bench.store.events(EventQuery(after=6))).cursor == 6


async def test_events_are_filtered_and_the_cursor_passes_the_others(bench: Bench) -> None:
    tagged = await bench.running(tags={"app.run": "1"}, namespace="ns")
    plain = await bench.running()
    await bench.end(bench.completing(tagged), bench.completing(plain))
    uuid = tagged.execution.uuid
    queries = [
        EventQuery(uuid=uuid),
        EventQuery(namespace="ns"),
        EventQuery(tag=("app.run", "1")),
    ]
    for query in queries:
        page = await bench.store.events(query)
        assert {event.id for event in page.events} == {text_of(tagged)}
        assert len(page.events) == 2
    page = await bench.store.events(EventQuery(kinds=frozenset({EventKind.CLAIMED})))
    assert [event.kind for event in page.events] == [EventKind.CLAIMED] * 2
    assert page.cursor == 4
    both = EventQuery(uuid=uuid, kinds=frozenset({EventKind.COMPLETED}), namespace="ns")
    (event,) = (await bench.store.events(both)).events
    assert (event.namespace, event.lane, event.worker) == ("ns", "default", W1)


async def test_the_detail_of_an_event_is_kept(bench: Bench) -> None:
    held = await bench.running()
    await bench.apply(hand_back(held, bench.now, owner_of(held)))
    (_, event) = (await bench.store.events(EventQuery())).events
    assert event.detail == {"until": bench.now}


# -- plans


def plan(path: str, name: str) -> str:
    connection = sqlite3.connect(path)
    query = load_queries("sqlite")[name]
    given = dict.fromkeys(re.findall(r":(\w+)", query), "[1]")
    found = connection.execute("explain query plan " + query, given)
    text = "\n".join(row[3] for row in found)
    connection.close()
    return text


async def test_a_claim_walks_the_ready_table_in_its_order(bench: Bench) -> None:
    await bench.submit_many(100)
    text = plan(bench.store.path, "claimable_executions")
    assert "SEARCH r USING PRIMARY KEY (route=?)" in text
    assert "TEMP B-TREE" not in text
    heads = plan(bench.store.path, "waiting_routes")
    assert "SEARCH best USING PRIMARY KEY (route=?)" in heads


@pytest.mark.timeout(120)
async def test_a_claim_costs_the_same_whatever_waits(bench: Bench) -> None:
    """Counted in steps of the database's own machine, so that no clock is asked."""
    few = await steps_of_claim(bench)
    await bench.submit_many(50_000, "other")
    gpu = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    await bench.submit_many(25_000, policy=gpu, lane="special")
    await bench.submit_many(25_000)
    assert await steps_of_claim(bench) < 2 * few


async def steps_of_claim(bench: Bench) -> int:
    await bench.submit_many(20)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    # Set by the thread that writes: this one would hold Python's lock while it waits for a
    # connection whose callback waits for Python's lock.
    writer = bench.store.writer
    await writer.run(lambda session: session.connection.set_progress_handler(count, 10))
    assert len(await bench.claim(limit=10, kinds=frozenset({"job"}))) == 10
    await writer.run(lambda session: session.connection.set_progress_handler(None, 0))
    assert steps > 0
    return steps


async def test_lists_and_events_are_read_no_further_than_needed(bench: Bench) -> None:
    for name in (
        "listed_executions",
        "listed_executions_newest_first",
        "events_after",
        "events_of",
    ):
        text = plan(bench.store.path, name)
        assert "MATERIALIZE" not in text
        assert "TEMP B-TREE" not in text


async def test_failures_are_found_by_index(bench: Bench) -> None:
    text = plan(bench.store.path, "failed_executions")
    assert "done_ended_at (outcome=? AND ended_at>? AND ended_at<?)" in text
    assert "SCAN" not in text


async def test_what_is_due_is_found_by_index(bench: Bench) -> None:
    text = plan(bench.store.path, "due_executions")
    assert "SEARCH d USING COVERING INDEX deadline_at (at<?)" in text
    assert "SEARCH d USING COVERING INDEX parked_due_at (due_at<?)" in text


async def test_a_snapshot_is_loaded_by_its_key_from_every_table(bench: Bench) -> None:
    connection = sqlite3.connect(bench.store.path)
    query = "explain query plan " + load_queries("sqlite")["snapshots"]
    text = "\n".join(row[3] for row in connection.execute(query, (b"",)))
    connection.close()
    assert text.count("SCAN") == text.count("SCAN snapshot") == 1
    assert text.count("(id=?)") == 8


async def test_a_failed_read_does_not_keep_the_reader_in_the_past(tmp_path: Path) -> None:
    """A cursor in the hands of an error would hold its transaction open."""
    store = await open_sqlite(str(tmp_path / "a.db"))
    await store.migrate()
    await store.records.put(LANES, Lane(name="a"), 0)
    kept: list[object] = []

    def stumble(session: SqliteSession) -> None:
        for row in session.connection.execute("select name from lane order by name"):
            raise Corruption(str(row))

    await store.records.put(LANES, Lane(name="b"), 0)
    for _ in range(2):
        with pytest.raises(Corruption) as raised:
            await store.reader.run(stumble)
        kept.append(raised)
    await store.records.put(LANES, Lane(name="c"), 0)
    assert [lane.name for lane in await store.records.page(LANES)] == ["a", "b", "c"]
    await store.close()
