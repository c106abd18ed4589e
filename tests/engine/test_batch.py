"""Group commit: nobody waits for a timer, nobody pays for somebody else's mistake."""

import asyncio
from collections.abc import Hashable, Sequence

import pytest

from flowfabric.core.base.errors import FlowFabricError, Invalid, Overloaded
from flowfabric.engine.commit import batch
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.cores import Cores


class Door:
    """A flush that stops at a door until it is opened, and remembers what went through."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.written: list[str] = []
        self.entered = asyncio.Event()
        self._door = asyncio.Event()
        if is_open:
            self._door.set()

    def open(self) -> None:
        self._door.set()

    async def flush(self, items: list[str]) -> Sequence[str | Exception]:
        self.batches.append(items)
        self.entered.set()
        await self._door.wait()
        self.written += items
        return [Invalid(item) if item.startswith("bad") else item.upper() for item in items]


def first_letter(item: str) -> tuple[Hashable, ...]:
    return (item[0],)


async def test_an_idle_call_goes_at_once_and_alone() -> None:
    door = Door(is_open=True)
    batcher = Batcher("test", door.flush)
    assert await batcher.put("a") == "A"
    assert await batcher.put("b") == "B"
    assert door.batches == [["a"], ["b"]]


async def test_calls_that_arrive_meanwhile_ride_the_next_flush_together() -> None:
    door = Door()
    batcher = Batcher("test", door.flush)
    first = batcher.put("a")
    await door.entered.wait()
    others = [batcher.put(item) for item in "bcd"]
    assert batcher.waiting == 3
    door.open()
    assert await asyncio.gather(first, *others) == ["A", "B", "C", "D"]
    assert door.batches == [["a"], ["b", "c", "d"]]
    assert batcher.waiting == 0


async def test_calls_made_in_one_breath_are_one_flush() -> None:
    door = Door(is_open=True)
    batcher = Batcher("test", door.flush)
    await asyncio.gather(*(batcher.put(item) for item in "abc"))
    assert door.batches == [["a", "b", "c"]]


async def test_the_second_item_of_a_key_rides_the_next_flush_in_order() -> None:
    """Design §2, rule 5: one item per record and per unique key."""
    door = Door(is_open=True)
    batcher = Batcher("test", door.flush, keys=first_letter)
    items = ["a1", "a2", "b1", "a3", "c1", "b2"]
    answers = await asyncio.gather(*(batcher.put(item) for item in items))
    assert answers == [item.upper() for item in items]
    assert door.batches == [["a1", "b1", "c1"], ["a2", "b2"], ["a3"]]


async def test_a_flush_has_a_largest_number_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_ITEMS", 2)
    door = Door(is_open=True)
    batcher = Batcher("test", door.flush)
    await asyncio.gather(*(batcher.put(item) for item in "abcde"))
    assert door.batches == [["a", "b"], ["c", "d"], ["e"]]


class Watch:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(batch, "monotonic", lambda: self.now)


async def test_callers_in_step_are_parted_into_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of work for longer than its last flush took, a batcher flushes half of what waits; while
    it has work it takes everything."""
    monkeypatch.setattr(batch, "FEW", 3)
    monkeypatch.setattr(Cores, "crowded", lambda _: False)
    watch = Watch(monkeypatch)
    batches: list[list[str]] = []

    async def flush(items: list[str]) -> list[str]:
        batches.append(items)
        watch.now += 1
        return items

    batcher = Batcher("test", flush, halves=True)
    await asyncio.gather(*(batcher.put(item) for item in "abcdefg"))
    assert batches == [["a", "b", "c", "d"], ["e", "f", "g"]]
    watch.now += 1.4  # both halves come back one after the other: there is hardly a pause
    await asyncio.gather(*(batcher.put(item) for item in "abcde"))
    assert batches[2:] == [["a", "b", "c", "d", "e"]]
    watch.now += 1.6
    await asyncio.gather(*(batcher.put(item) for item in "abcde"))
    assert batches[3:] == [["a", "b", "c"], ["d", "e"]]
    watch.now += 1.6
    await asyncio.gather(*(batcher.put(item) for item in "abc"))
    assert batches[5:] == [["a", "b", "c"]]  # too few


async def test_nothing_is_halved_while_the_processors_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "FEW", 1)
    monkeypatch.setattr(Cores, "crowded", lambda _: True)
    door = Door(is_open=True)
    batcher = Batcher("test", door.flush, halves=True)
    await asyncio.gather(*(batcher.put(item) for item in "bcde"))
    assert door.batches == [["b", "c", "d", "e"]]


async def test_a_batcher_without_halves_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "FEW", 1)
    Watch(monkeypatch)
    door = Door(is_open=True)
    batcher = Batcher("test", door.flush)
    await asyncio.gather(*(batcher.put(item) for item in "bcde"))
    assert door.batches == [["b", "c", "d", "e"]]


async def test_the_documented_caps_are_those_of_the_design() -> None:
    assert (batch.MAX_ITEMS, batch.MAX_BYTES) == (500, 4 << 20)


async def test_a_flush_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item larger than that goes alone rather than never; nobody is overtaken."""
    monkeypatch.setattr(batch, "MAX_BYTES", 10)
    door = Door(is_open=True)
    batcher = Batcher("test", door.flush, weight=len)
    items = ["a" * 4, "b" * 6, "c" * 11, "d" * 3, "e" * 8]
    await asyncio.gather(*(batcher.put(item) for item in items))
    assert [[item[0] for item in items] for items in door.batches] == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]


async def test_a_full_queue_refuses_with_a_hint_when_to_come_again() -> None:
    door = Door()
    batcher = Batcher("writes", door.flush, capacity=2)
    first = batcher.put("a")
    await door.entered.wait()
    queued = [batcher.put("b"), batcher.put("c")]
    with pytest.raises(Overloaded) as caught:
        batcher.put("d")
    assert caught.value.retryable
    assert caught.value.retry_after > 0
    assert "writes" in caught.value.detail
    door.open()
    assert await asyncio.gather(first, *queued) == ["A", "B", "C"]
    assert await batcher.put("e") == "E"
    assert "d" not in door.written


async def test_an_item_that_fails_gets_its_error_alone() -> None:
    door = Door(is_open=True)
    batcher = Batcher("test", door.flush)
    answers = await asyncio.gather(
        *(batcher.put(item) for item in ["a", "bad", "c"]), return_exceptions=True
    )
    assert (answers[0], answers[2]) == ("A", "C")
    assert isinstance(answers[1], Invalid)
    assert len(door.batches) == 1


async def test_a_flush_that_fails_as_a_whole_tells_every_caller_in_it_and_no_other() -> None:
    failures = [OSError("gone")]

    async def flush(items: list[str]) -> list[str]:
        if failures:
            raise failures.pop()
        return items

    batcher = Batcher("test", flush)
    answers = await asyncio.gather(*(batcher.put(item) for item in "ab"), return_exceptions=True)
    assert [type(answer) for answer in answers] == [OSError, OSError]
    assert await batcher.put("c") == "c"


async def test_a_caller_that_goes_away_stops_no_other_caller_and_its_item_is_written() -> None:
    """Before and while the flush that carries it."""
    door = Door()
    batcher = Batcher("test", door.flush)
    under_way = batcher.put("a")
    await door.entered.wait()
    queued, neighbour = batcher.put("b"), batcher.put("c")
    under_way.cancel()
    queued.cancel()
    door.open()
    assert await neighbour == "C"
    assert door.written == ["a", "b", "c"]
    assert await batcher.put("d") == "D"


async def test_an_error_for_a_caller_that_went_away_reaches_no_other() -> None:
    door = Door()
    batcher = Batcher("test", door.flush)
    gone = batcher.put("bad")
    await door.entered.wait()
    gone.cancel()
    door.open()
    await batcher.drain()
    assert gone.cancelled()


async def test_a_cancelled_task_does_not_cancel_the_flush() -> None:
    door = Door()
    batcher = Batcher("test", door.flush)

    async def call() -> str:
        return await batcher.put("a")

    caller = asyncio.create_task(call())
    await door.entered.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    door.open()
    await batcher.drain()
    assert door.written == ["a"]


async def test_draining_waits_for_everything_that_was_queued() -> None:
    door = Door()
    batcher = Batcher("test", door.flush)
    first = batcher.put("a")
    await door.entered.wait()
    second = batcher.put("b")
    drained = asyncio.create_task(batcher.drain())
    await asyncio.wait([drained], timeout=0)
    assert not drained.done()
    door.open()
    await drained
    assert (first.result(), second.result()) == ("A", "B")
    await batcher.drain()


async def test_a_stopped_flush_says_that_its_effect_is_unknown() -> None:
    door = Door()
    batcher = Batcher("stopped", door.flush)
    pending = batcher.put("a")
    await door.entered.wait()
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "flowfabric-stopped")
    task.cancel()
    with pytest.raises(FlowFabricError, match="unknown"):
        await pending
    door.open()
    assert await batcher.put("b") == "B"


async def test_a_stopped_flush_leaves_a_caller_that_went_away_alone() -> None:
    door = Door()
    batcher = Batcher("stopped", door.flush)
    pending = batcher.put("a")
    await door.entered.wait()
    pending.cancel()
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "flowfabric-stopped")
    task.cancel()
    await batcher.drain()
    assert pending.cancelled()


async def test_a_key_that_thousands_share_does_not_make_every_batch_read_the_whole_queue() -> None:
    asked = 0

    def key(item: str) -> tuple[Hashable, ...]:
        nonlocal asked
        asked += 1
        return ("same",)

    door = Door(is_open=True)
    batcher = Batcher("test", door.flush, keys=key)
    items = [str(number) for number in range(3 * batch.MAX_ITEMS)]
    await asyncio.gather(*map(batcher.put, items))
    assert door.written == items
    assert asked <= len(items) * (batch.MAX_ITEMS + 1)


async def test_what_waits_when_the_loop_ends_is_given_up() -> None:
    """Its caller must not wait for ever, and no task be left behind."""
    door = Door()
    batcher = Batcher("test", door.flush)
    first = batcher.put("a")
    await door.entered.wait()
    second = batcher.put("b")
    assert batcher._task is not None
    batcher._task.cancel()
    for future in (first, second):
        with pytest.raises(FlowFabricError, match="the engine was stopped"):
            await future
