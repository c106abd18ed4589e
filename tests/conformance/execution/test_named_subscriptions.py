"""Named subscriptions: durable cursors that several processes share; gaps; followers.

§8.0, §8.1, §10; F-63, F-65, F-68, I-43, I-45.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, InvalidTag, NotFound, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.event_filter import (
    EventBatch,
    EventFilter,
    EventGap,
    encode_cursor,
)
from flowfabric.core.execution.policy import Policy, StreamPolicy
from flowfabric.core.execution.subscription import SAVE_AFTER, SAVE_EVERY, HeldElsewhere
from flowfabric.store.queries import EventPage
from tests.kit import situations
from tests.kit.lab import Lab
from tests.kit.race import Race

LEASE = Millis(10_000)
MINUTE = 60_000
DAY = 86_400_000
WEEK = 8 * DAY
SHORT = Policy(stream_policy=StreamPolicy(retention_ttl_ms=1))


async def end_one(lab: Lab, **members: Any) -> ExecutionId:
    return await situations.cancelled_unrun(lab, **members)


async def read(lab: Lab, holder: str = "a", limit: int = 100, name: str = "s") -> EventBatch:
    """The next events of a subscription; fails if another process has it."""
    found = await lab.engine.subscriptions.read(name, holder=holder, limit=limit, lease=LEASE)
    assert isinstance(found, EventBatch)
    return found


def ids(batch: EventBatch) -> list[ExecutionId | None]:
    return [event.id for event in batch.events]


async def next_batch(stream: AsyncGenerator[EventBatch, None]) -> EventBatch:
    async with asyncio.timeout(60):
        return await anext(stream)


# -- the record


async def test_a_subscription_begins_now_or_after_a_cursor(lab: Lab) -> None:
    """§8.1: an empty cursor is the tail"""
    old = await end_one(lab)
    await lab.engine.subscriptions.create("s")
    await lab.engine.subscriptions.create("all", after=0)
    new = await end_one(lab)
    assert ids(await read(lab)) == [new]
    everything = await lab.engine.subscriptions.read("all", holder="a")
    assert isinstance(everything, EventBatch)
    assert ids(everything) == [old, new]


async def test_creating_it_again_leaves_it_where_it_is(lab: Lab) -> None:
    made = await lab.engine.subscriptions.create("s", EventFilter(namespace="n"))
    await end_one(lab, namespace="n")
    assert await lab.engine.subscriptions.create("s", EventFilter(namespace="n")) == made
    with pytest.raises(Invalid, match="another filter"):
        await lab.engine.subscriptions.create("s", EventFilter(namespace="m"))
    assert len((await read(lab)).events) == 1


async def test_subscriptions_are_listed_by_name_and_deleted(lab: Lab) -> None:
    subscriptions = lab.engine.subscriptions
    for name, namespace in (("b", "n"), ("a", "n"), ("c", "m"), ("d", None)):
        await subscriptions.create(name, EventFilter(namespace=namespace))
    assert [each.name for each in await subscriptions.list()] == ["a", "b", "c", "d"]
    assert [each.name for each in await subscriptions.list(after="a", limit=2)] == ["b", "c"]
    assert [each.name for each in await subscriptions.list(namespace="n")] == ["a", "b"]
    await subscriptions.delete("a")
    for gone in (subscriptions.delete("a"), subscriptions.get("a"), subscriptions.ack("a", 0)):
        with pytest.raises(NotFound):
            await gone
    with pytest.raises(NotFound):
        await subscriptions.read("a", holder="x")


@pytest.mark.rules
@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 257, 7, None])
async def test_a_name_that_is_none_is_refused(lab: Lab, name: Any) -> None:
    with pytest.raises(Invalid):
        await lab.engine.subscriptions.create(name)


@pytest.mark.rules
async def test_arguments_that_make_no_sense_are_refused(lab: Lab) -> None:
    subscriptions = lab.engine.subscriptions
    wrong: list[Any] = [-1, "1", 1.5, True, 2**63]
    for cursor in wrong:
        with pytest.raises(Invalid):
            await subscriptions.create("s", after=cursor)
    with pytest.raises(InvalidTag):
        await subscriptions.create("s", EventFilter(tag=("nodot", "v")))
    with pytest.raises(Invalid):
        await subscriptions.create("s", EventFilter(families=("nonsense",)))  # type: ignore[arg-type]
    await subscriptions.create("s")
    odd: list[dict[str, Any]] = [
        {"limit": 0},
        {"limit": 1001},
        {"holder": ""},
        {"holder": "a b"},
        {"lease": 0},
    ]
    for members in odd:
        given: dict[str, Any] = {"holder": "a", **members}
        with pytest.raises(Invalid):
            await subscriptions.read("s", **given)
    for cursor in wrong:
        with pytest.raises(Invalid):
            await subscriptions.ack("s", cursor)


# -- reading and acknowledging


async def test_what_is_not_acknowledged_is_read_again(lab: Lab) -> None:
    """§8.0: at least once, in order, without a gap"""
    await lab.engine.subscriptions.create("s")
    made = [await end_one(lab) for _ in range(5)]
    first = await read(lab, limit=2)
    assert ids(first) == made[:2]
    assert await read(lab, limit=2) == first
    await lab.engine.subscriptions.ack("s", first.cursor)
    assert ids(await read(lab)) == made[2:]


async def test_a_part_of_a_batch_can_be_acknowledged(lab: Lab) -> None:
    await lab.engine.subscriptions.create("s")
    made = [await end_one(lab) for _ in range(3)]
    batch = await read(lab)
    await lab.engine.subscriptions.ack("s", batch.events[0].seq)
    assert ids(await read(lab)) == made[1:]


async def test_a_cursor_only_moves_forward(lab: Lab) -> None:
    await lab.engine.subscriptions.create("s")
    for _ in range(3):
        await end_one(lab)
    batch = await read(lab)
    await lab.engine.subscriptions.ack("s", batch.cursor)
    held = await lab.engine.subscriptions.ack("s", batch.events[0].seq)
    assert held.cursor == batch.cursor


async def test_what_was_never_read_cannot_be_acknowledged(lab: Lab) -> None:
    """An acknowledgement from another store, or a mistake, would lose events."""
    await lab.engine.subscriptions.create("s")
    await end_one(lab)
    tail = await lab.engine.events.tail()
    with pytest.raises(Invalid, match="never read"):
        await lab.engine.subscriptions.ack("s", tail)
    batch = await read(lab)
    with pytest.raises(Invalid, match="never read"):
        await lab.engine.subscriptions.ack("s", batch.cursor + 1)


async def test_one_process_at_a_time_reads_it(lab: Lab, second_lab: Lab) -> None:
    """F-68: consumer groups"""
    await lab.engine.subscriptions.create("s")
    made = [await end_one(lab) for _ in range(3)]
    batch = await read(lab, "a", limit=1)
    held = await second_lab.engine.subscriptions.read("s", holder="b")
    assert held == HeldElsewhere("a", Millis(lab.clock.now() + LEASE))
    await lab.engine.subscriptions.ack("s", batch.cursor)
    lab.clock.advance(LEASE)
    assert ids(await read(second_lab, "b")) == made[1:]
    assert isinstance(await lab.engine.subscriptions.read("s", holder="a"), HeldElsewhere)


async def test_a_holder_that_dies_loses_nothing(lab: Lab, second_lab: Lab) -> None:
    await lab.engine.subscriptions.create("s")
    made = [await end_one(lab) for _ in range(3)]
    assert ids(await read(lab, "a")) == made
    lab.clock.advance(LEASE)
    assert ids(await read(second_lab, "b")) == made


async def test_a_late_acknowledgement_counts_what_was_handled(lab: Lab) -> None:
    """A process that lost the subscription has handled its events all the same."""
    await lab.engine.subscriptions.create("s")
    made = [await end_one(lab) for _ in range(4)]
    late = await read(lab, "a", limit=3)
    lab.clock.advance(LEASE)
    assert ids(await read(lab, "b", limit=1)) == made[:1]
    await lab.engine.subscriptions.ack("s", late.cursor)
    assert ids(await read(lab, "b")) == made[3:]


async def test_a_holder_can_give_it_up(lab: Lab) -> None:
    await lab.engine.subscriptions.create("s")
    made = [await end_one(lab)]
    await read(lab, "a")
    await lab.engine.subscriptions.release("s", holder="b")
    assert isinstance(await lab.engine.subscriptions.read("s", holder="b"), HeldElsewhere)
    await lab.engine.subscriptions.release("s", holder="a")
    assert ids(await read(lab, "b")) == made


async def test_reading_nothing_holds_nothing_and_writes_nothing(lab: Lab) -> None:
    made = await lab.engine.subscriptions.create("s")
    for holder in ("a", "b"):
        assert (await read(lab, holder)).events == ()
    assert await lab.engine.subscriptions.get("s") == made


async def test_a_rival_that_acknowledges_meanwhile_is_noticed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that are acknowledged between the look and the taking are not given again."""
    subscriptions = lab.engine.subscriptions
    await subscriptions.create("s")
    made = [await end_one(lab) for _ in range(2)]
    batch = await read(lab, "a", limit=1)
    race = Race(lab, monkeypatch)
    race.before("records.put", lambda: subscriptions.ack("s", batch.cursor))
    assert ids(await read(lab, "a")) == made[1:]


async def test_two_processes_that_take_it_at_once_share_nothing(lab: Lab, second_lab: Lab) -> None:
    """Each event is given to one of them, and to the other only when the lease has passed."""
    await lab.engine.subscriptions.create("s")
    made = [await end_one(lab) for _ in range(20)]
    seen: list[ExecutionId | None] = []

    async def consume(each: Lab, holder: str) -> None:
        while len(seen) < len(made):
            found = await each.engine.subscriptions.read("s", holder=holder, limit=3, lease=LEASE)
            if isinstance(found, EventBatch) and found.events:
                seen.extend(ids(found))
                await each.engine.subscriptions.ack("s", found.cursor)
                await each.engine.subscriptions.release("s", holder=holder)
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await asyncio.gather(consume(lab, "a"), consume(second_lab, "b"))
    assert seen == made


# -- filters


async def test_namespace_tag_and_families_must_all_match(lab: Lab) -> None:
    """C-T135, I-45, F-64"""
    tag = ("app.tenant", "acme")
    wanted = EventFilter(namespace="n", tag=tag, families=(Family.COMPLETION, Family.OPERATOR))
    await lab.engine.subscriptions.create("s", wanted)
    mine = await end_one(lab, namespace="n", tags=dict([tag]))
    await end_one(lab, namespace="n", tags={"app.tenant": "contoso"})
    await end_one(lab, namespace="m", tags=dict([tag]))
    await end_one(lab, namespace="n")
    other = await lab.submit(namespace="n", tags=dict([tag]))
    await lab.engine.executions.change_priority(other, 3)
    await lab.claim_one()
    batch = await read(lab)
    assert ids(batch) == [mine, other]
    assert batch.cursor == await lab.engine.events.tail()


async def test_events_of_no_interest_move_the_cursor(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.2: filtered rows still advance it, and that is saved before retention can bite"""
    await lab.engine.subscriptions.create("s", EventFilter(namespace="rare"))
    begin = (await lab.engine.subscriptions.get("s")).cursor
    await end_one(lab)
    assert (await read(lab)).events == ()
    assert (await lab.engine.subscriptions.get("s")).cursor == begin, "not for every event"
    lab.clock.advance(SAVE_EVERY)
    await read(lab)
    saved = await lab.engine.subscriptions.get("s")
    assert (saved.cursor, saved.holder) == (await lab.engine.events.tail(), None)
    monkeypatch.setattr("flowfabric.core.execution.subscription.SAVE_AFTER", 2)
    for _ in range(2):
        await end_one(lab)
    assert SAVE_AFTER > 2
    await read(lab)
    assert (await lab.engine.subscriptions.get("s")).cursor == await lab.engine.events.tail()


# -- gaps


async def test_a_reader_that_comes_too_late_is_told(lab: Lab) -> None:
    """F-65, I-43: never silently"""
    await lab.engine.subscriptions.create("s")
    begin = (await lab.engine.subscriptions.get("s")).cursor
    await end_one(lab)
    deleted = await lab.engine.events.tail()
    lab.clock.advance(WEEK)
    left = await end_one(lab)
    assert await lab.engine.sweep.trim() == 1
    batch = await read(lab)
    assert (ids(batch), batch.gap) == ([left], EventGap(begin, deleted))
    assert await read(lab) == batch, "until it is acknowledged"
    await lab.engine.subscriptions.ack("s", batch.cursor)
    await end_one(lab)
    assert (await read(lab)).gap is None


async def test_a_run_stays_until_named_readers_have_read_its_events(lab: Lab) -> None:
    """F-65: also if its own retention is over; a minute is for the clocks of the writers"""
    await lab.engine.subscriptions.create("s")
    await lab.engine.subscriptions.create("others", EventFilter(namespace="other"))
    id = await end_one(lab, policy=SHORT)
    lab.clock.advance(30 * MINUTE)
    assert await lab.engine.sweep.trim() == 0
    batch = await read(lab)
    assert (ids(batch), batch.gap) == ([id], None)
    assert await lab.engine.sweep.trim() == 0, "it was read, and is not acknowledged"
    await lab.engine.subscriptions.ack("s", batch.cursor)
    assert await lab.engine.sweep.trim() == 0, "the other one has yet to pass it"
    assert (await read(lab, name="others")).events == ()
    assert await lab.engine.sweep.trim() == 1


async def test_named_readers_have_a_day(lab: Lab) -> None:
    """F-65: one that nobody reads any more does not keep runs for ever"""
    await lab.engine.subscriptions.create("s")
    await end_one(lab, policy=SHORT)
    lab.clock.advance(DAY - 1)
    assert await lab.engine.sweep.trim() == 0
    lab.clock.advance(1)
    assert await lab.engine.sweep.trim() == 1
    await end_one(lab)
    assert (await read(lab)).gap is not None


async def test_without_named_readers_runs_go_when_their_time_is_over(lab: Lab) -> None:
    await end_one(lab, policy=SHORT)
    lab.clock.advance(1)
    assert await lab.engine.sweep.trim() == 1


async def test_a_gap_with_nothing_behind_it_is_told_too(lab: Lab) -> None:
    """Where all events were deleted, the next one shows how far the gap goes."""
    await lab.engine.subscriptions.create("s", EventFilter(namespace="n"))
    await end_one(lab, namespace="n")
    deleted = await lab.engine.events.tail()
    lab.clock.advance(WEEK)
    assert await lab.engine.sweep.trim() == 1
    await end_one(lab, namespace="other")
    batch = await read(lab)
    assert batch.events == ()
    assert batch.gap is not None
    assert batch.gap.until == deleted
    await lab.engine.subscriptions.ack("s", batch.cursor)
    assert (await read(lab)).gap is None


async def test_a_gap_is_reported_before_the_next_event(lab: Lab) -> None:
    """Q-10: a reader whose events were all deleted learns it at once, not with the next event."""
    await lab.engine.subscriptions.create("s")
    await end_one(lab)
    deleted = await lab.engine.events.tail()
    lab.clock.advance(WEEK)
    assert await lab.engine.sweep.trim() == 1
    batch = await read(lab)
    assert batch == EventBatch((), deleted, EventGap(0, deleted))
    await lab.engine.subscriptions.ack("s", batch.cursor)
    left = await end_one(lab)
    following = await read(lab)
    assert (ids(following), following.gap) == ([left], None)


async def test_a_reader_that_has_read_everything_misses_nothing(lab: Lab) -> None:
    await lab.engine.subscriptions.create("s")
    await end_one(lab)
    await lab.engine.subscriptions.ack("s", (await read(lab)).cursor)
    lab.clock.advance(WEEK)
    assert await lab.engine.sweep.trim() == 1
    left = await end_one(lab)
    batch = await read(lab)
    assert (ids(batch), batch.gap) == ([left], None)


# -- followers


async def test_a_follower_gets_batches_with_cursors(lab: Lab) -> None:
    """§8.2, I-43: also when the filter leaves nothing of a batch"""
    wanted = EventFilter(namespace="n")
    async with aclosing(lab.engine.events.follow(wanted)) as stream:
        await end_one(lab)
        first = await next_batch(stream)
        assert (first.events, first.cursor) == ((), await lab.engine.events.tail())
        mine = await end_one(lab, namespace="n")
        assert ids(await next_batch(stream)) == [mine]
    again = await end_one(lab, namespace="n")
    async with aclosing(lab.engine.events.follow(wanted, after=first.cursor)) as stream:
        assert ids(await next_batch(stream)) == [mine, again]


async def test_a_follower_learns_of_a_gap(lab: Lab) -> None:
    """F-65"""
    await end_one(lab)
    deleted = await lab.engine.events.tail()
    lab.clock.advance(WEEK)
    await lab.engine.sweep.trim()
    left = await end_one(lab)
    async with aclosing(lab.engine.events.follow(EventFilter(), after=0)) as stream:
        batch = await next_batch(stream)
    assert (ids(batch), batch.gap) == ([left], EventGap(0, deleted))


async def test_a_slow_follower_holds_one_batch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """§8.3: back-pressure; the next batch is read when it is asked for, and nothing is lost"""
    made = [await end_one(lab) for _ in range(10)]
    pages: list[int] = []
    honest = lab.engine.store.events

    async def counted(query: Any) -> EventPage:
        page = await honest(query)
        pages.append(len(page.events))
        return page

    monkeypatch.setattr(lab.engine.store, "events", counted)
    seen: list[ExecutionId | None] = []
    async with aclosing(lab.engine.events.follow(EventFilter(), after=0, limit=3)) as stream:
        while len(seen) < len(made):
            before = len(pages)
            seen += ids(await next_batch(stream))
            await asyncio.sleep(0)
            assert len(pages) == before + 1
    assert seen == made
    assert max(pages) == 3


@pytest.mark.parametrize("limit", [0, -1, "1", None])
async def test_a_follower_needs_room_for_an_event(lab: Lab, limit: Any) -> None:
    with pytest.raises(Invalid):
        lab.engine.events.follow(EventFilter(), after=0, limit=limit)


async def test_a_follower_outlives_a_store_that_does_not_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§8.3: it continues from its position, without loss and without a repeat"""
    monkeypatch.setattr("flowfabric.engine.execution.events.FIRST_PAUSE", 0.001)
    honest, failures = lab.engine.store.events, 0

    async def unreliable(query: Any) -> EventPage:
        nonlocal failures
        failures += 1
        if failures % 2:
            raise Unavailable("the connection is lost")
        return await honest(query)

    made = [await end_one(lab) for _ in range(3)]
    monkeypatch.setattr(lab.engine.store, "events", unreliable)
    async with (
        aclosing(lab.engine.events.follow(EventFilter(), after=0, limit=1)) as stream,
        aclosing(lab.engine.events.subscribe(after=0)) as events,
    ):
        assert [ids(await next_batch(stream)) for _ in made] == [[id] for id in made]
        assert [(await anext(events)).id for _ in made] == made


async def test_followers_end_when_the_engine_closes(lab: Lab, second_lab: Lab) -> None:
    """They do not wait for a store that is not coming back."""
    streams = [
        second_lab.engine.events.follow(EventFilter(), after=0),
        second_lab.engine.events.follow(EventFilter()),
    ]
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.wait(waiting, timeout=0.05)
    await second_lab.engine.close()
    done, pending = await asyncio.wait(waiting, timeout=20)
    assert not pending
    assert all(isinstance(each.exception(), Exception) for each in done)


@pytest.mark.inside
async def test_many_followers_at_rest_ask_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait, one look a second serves them all, and what it finds is read once."""
    asked = 0
    honest = lab.engine.store.events

    async def counted(query: Any) -> EventPage:
        nonlocal asked
        asked += 1
        return await honest(query)

    monkeypatch.setattr(lab.engine.store, "events", counted)
    streams = [lab.engine.events.follow(EventFilter(), after=0) for _ in range(50)]
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.wait(waiting, timeout=0.3)
    assert asked <= 50 * 2 + 10, "each looks when it begins and once more, then one for all"
    before = asked
    id = await end_one(lab)
    async with asyncio.timeout(60):
        batches = await asyncio.gather(*waiting)
    assert [ids(batch) for batch in batches] == [[id]] * 50
    assert asked - before < 10
    for stream in streams:
        await stream.aclose()


async def test_followers_side_by_side_see_what_each_would_alone(lab: Lab) -> None:
    """C-T133, C-T135: with filters and limits of their own, close behind and far behind"""
    tag = ("app.tenant", "acme")
    filters = [
        EventFilter(),
        EventFilter(namespace="n0"),
        EventFilter(namespace="n1", families=(Family.COMPLETION,)),
        EventFilter(tag=tag),
        EventFilter(families=(Family.OPERATOR, Family.LEASE)),
    ]
    seen: dict[tuple[int, int], list[Any]] = {}
    expected = 0

    async def follow(number: int, limit: int) -> None:
        found = seen.setdefault((number, limit), [])
        stream = lab.engine.events.follow(filters[number], after=0, limit=limit)
        async with aclosing(stream):
            async for batch in stream:
                assert len(batch.events) <= limit
                found += batch.events
                if expected and batch.cursor >= expected:
                    return

    tasks = [
        asyncio.ensure_future(follow(number, limit))
        for number in range(len(filters))
        for limit in (1, 3, 100)
    ]
    for number in range(12):
        tags = dict([tag]) if number % 3 == 0 else {}
        await end_one(lab, namespace=f"n{number % 2}", tags=tags)
        await asyncio.wait(tasks, timeout=0.01)
    last = await lab.submit(namespace="n0", tags=dict([tag]))
    await lab.engine.executions.change_priority(last, 3)
    expected = await lab.engine.events.tail()
    await lab.engine.executions.change_priority(last, 4)
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)
    for (number, _), found in seen.items():
        alone = (await lab.engine.events.batch(filters[number], 0)).events
        assert tuple(found[: len(alone)]) == alone[: len(found)]
        assert len(found) >= len(alone) - 1


# -- cursors as text


async def test_a_cursor_as_text_continues_where_it_was(lab: Lab) -> None:
    """§8.1"""
    await end_one(lab)
    tail = await lab.engine.events.tail()
    assert await lab.engine.events.position("") == tail
    assert await lab.engine.events.position(encode_cursor(1)) == 1
    assert await lab.engine.events.position(encode_cursor(tail)) == tail


async def test_a_cursor_of_another_store_is_refused(lab: Lab) -> None:
    """§8.1: at subscribe time"""
    tail = await lab.engine.events.tail()
    for wrong in (encode_cursor(tail + 1), "nonsense", "0", "AQAAAAAAAAAAAAAAAAAAAAA="):
        with pytest.raises(Invalid):
            await lab.engine.events.position(wrong)
