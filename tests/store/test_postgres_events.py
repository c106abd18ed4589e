"""Events that nobody skips, and hints that anybody may."""

import asyncio
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.execution.event import EventKind
from flowfabric.store.postgres import events as events_module
from flowfabric.store.queries import NEWEST, EventQuery
from tests.store.postgres_bench import (
    W1,
    Bench,
    id_of,
)

# -- events


async def test_events_are_read_after_a_cursor(bench: Bench) -> None:
    assert (await bench.store.events(EventQuery(after=NEWEST))).cursor == 0
    assert await bench.store.events(EventQuery()) == await bench.store.events(EventQuery())
    held = [await bench.running() for _ in range(3)]
    page = await bench.store.events(EventQuery(limit=2))
    assert [event.id for event in page.events] == [id_of(s) for s in held[:2]]
    rest = await bench.store.events(EventQuery(after=page.cursor))
    assert [event.id for event in rest.events] == [id_of(held[2])]
    assert rest.cursor == (await bench.store.events(EventQuery(after=NEWEST))).cursor
    assert (await bench.store.events(EventQuery(after=rest.cursor))).events == ()
    await bench.store.end([bench.completion(held[0])], bench.now)
    (event,) = (await bench.store.events(EventQuery(after=rest.cursor))).events
    assert (event.kind, event.id, event.worker) == (EventKind.COMPLETED, id_of(held[0]), W1)


async def test_events_can_be_filtered_and_the_cursor_passes_the_rest(bench: Bench) -> None:
    one = await bench.running(namespace="n", tags={"t.k": "v"})
    two = await bench.running(namespace="m")
    await bench.store.end([bench.completion(one), bench.completion(two)], bench.now)
    last = (await bench.store.events(EventQuery(after=NEWEST))).cursor
    completed, claimed = EventKind.COMPLETED, EventKind.CLAIMED

    async def told(**members: object) -> list[tuple[str, EventKind]]:
        page = await bench.store.events(EventQuery(**members))  # type: ignore[arg-type]
        assert page.cursor == last
        return [(str(event.id), event.kind) for event in page.events]

    ones = [(id_of(one), claimed), (id_of(one), completed)]
    assert await told(uuid=one.execution.uuid) == ones
    assert await told(namespace="n") == ones
    assert await told(tag=("t.k", "v")) == ones
    assert await told(kinds=frozenset({completed}), namespace="m") == [(id_of(two), completed)]
    assert await told(kinds=frozenset({EventKind.FAILED})) == []
    assert await told(uuid=one.execution.uuid, namespace="m") == []


async def draw_late(writer: object, uuid: UUID) -> None:
    """Writes an event in the writer's transaction, which draws a number and is not committed."""
    await writer.execute(  # type: ignore[attr-defined]
        "insert into flowfabric.event (id, at, kind, epoch) values ($1, 0, 30, 1)", uuid
    )


async def test_an_event_committed_late_is_not_skipped(bench: Bench) -> None:
    held = await bench.running()
    cursor = (await bench.store.events(EventQuery(after=NEWEST))).cursor
    slow = await bench.raw()
    transaction = slow.transaction()
    await transaction.start()
    await draw_late(slow, held.execution.uuid)
    await bench.store.end([bench.completion(held)], bench.now)
    reading = asyncio.create_task(bench.store.events(EventQuery(after=cursor)))
    watcher = await bench.raw()
    statements = """select count(*) from pg_stat_activity where datname = current_database()
        and pid <> pg_backend_pid() and query ilike '%= any($1::text[])%'"""
    while await watcher.fetchval(statements) == 0:
        assert not reading.done()
    await transaction.commit()
    page = await reading
    assert [event.kind for event in page.events] == [
        EventKind.PRIORITY_CHANGED,
        EventKind.COMPLETED,
    ]


async def test_a_reader_does_not_wait_for_ever_and_skips_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "PATIENCE_SECONDS", 0.0)
    held = await bench.running()
    cursor = (await bench.store.events(EventQuery(after=NEWEST))).cursor
    slow = await bench.raw()
    async with slow.transaction():
        await draw_late(slow, held.execution.uuid)
        await bench.store.end([bench.completion(held)], bench.now)
        page = await bench.store.events(EventQuery(after=cursor))
        assert (page.events, page.cursor, page.settled) == ((), cursor, False)
        with pytest.raises(Unavailable):
            await bench.store.events(EventQuery(after=NEWEST))
    monkeypatch.undo()
    page = await bench.store.events(EventQuery(after=cursor))
    assert (len(page.events), page.settled) == (2, True)


async def test_transactions_that_write_no_event_hold_up_no_reader(bench: Bench) -> None:
    stranger = await bench.raw()
    async with stranger.transaction():
        await stranger.execute("create table unrelated (n int)")
        held = await bench.running()
        page = await bench.store.events(EventQuery())
        assert [event.id for event in page.events] == [id_of(held)]


async def test_readers_of_busy_writers_see_every_event_once(bench: Bench) -> None:
    other = await bench.other_store()
    submitted = await bench.submit_many(200)
    writing = True
    seen: list[tuple[str, EventKind]] = []

    async def read() -> None:
        cursor, quiet = 0, False
        while not quiet:
            quiet = not writing
            page = await other.events(EventQuery(after=cursor, limit=7))
            seen.extend((str(event.id), event.kind) for event in page.events)
            quiet = quiet and page.cursor == cursor
            cursor = page.cursor

    async def work(store: object) -> None:
        while taken := await store.claim(bench.call(9), bench.now):  # type: ignore[attr-defined]
            ends = [bench.completion(item.snapshot) for item in taken]
            await store.end(ends, bench.now)  # type: ignore[attr-defined]

    reader = asyncio.create_task(read())
    third = await bench.other_store()
    await asyncio.gather(work(bench.store), work(third))
    writing = False
    await reader
    expected = {(id_of(s), k) for s in submitted for k in (EventKind.CLAIMED, EventKind.COMPLETED)}
    assert len(seen) == len(expected)
    assert set(seen) == expected


# -- wake-ups


async def test_a_hint_wakes_waiters_here_and_elsewhere(bench: Bench) -> None:
    other = await bench.other_store()
    assert await other.hints.wait(5.0), "whoever starts to listen looks once"
    here = asyncio.create_task(bench.store.hints.wait(5.0))
    there = asyncio.create_task(other.hints.wait(5.0))
    await asyncio.wait([here], timeout=0)
    bench.store.hints.send()
    assert all(await asyncio.gather(here, there))


async def test_without_a_hint_a_waiter_comes_back_by_itself(bench: Bench) -> None:
    assert await bench.store.hints.wait(5.0)
    assert not await bench.store.hints.wait(0.0)


async def test_a_hint_since_the_last_look_is_not_missed(bench: Bench) -> None:
    assert await bench.store.hints.wait(5.0)
    seen = bench.store.hints.count
    assert await bench.claim() == []
    bench.store.hints.send()
    assert await bench.store.hints.wait(0.0, seen)
    assert not await bench.store.hints.wait(0.0, bench.store.hints.count)
