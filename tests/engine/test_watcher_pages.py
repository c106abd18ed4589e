"""Many that wait: which of the awaited runs are asked about after a hint, and the collector."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

import pytest

from flowfabric.engine.commit import watcher as module
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.commit.watcher import MANY, OLDEST, Watcher
from flowfabric.store.contract import MAX_BATCH
from flowfabric.store.hints import Topic
from flowfabric.store.sqlite.store import open_sqlite


class Numbers:
    """What is awaited are numbers; those in `ended` have an answer."""

    noun = "number"
    rest = 0.0
    topics = Topic.ENDINGS

    def __init__(self, *ended: int) -> None:
        self.ended = {UUID(int=number) for number in ended}
        self.pages: list[list[int]] = []

    def exists(self, asked: object) -> bool:
        return False

    def answer(self, asked: object, found: UUID | None) -> UUID | None:
        return found

    async def look(self, uuids: Sequence[UUID], *, whole: bool) -> Mapping[UUID, UUID | None]:
        self.pages.append([uuid.int for uuid in uuids])
        return {uuid: uuid for uuid in uuids if uuid in self.ended}

    def changed_by(self, commit: Commit) -> Mapping[UUID, UUID | None]:
        return {}


class Crowded(Numbers):
    """During each look at a new caller comes another one, for something else."""

    MOST = 1000
    watcher: "Watcher[UUID]"

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def look(self, uuids: Sequence[UUID], *, whole: bool) -> Mapping[UUID, UUID | None]:
        await asyncio.sleep(0)
        self.begun.set()
        if whole and len(self.pages) < self.MOST:
            new = UUID(int=len(self.pages) + 1)
            self.watcher.waiting[new] = {asyncio.get_running_loop().create_future(): new}
            self.watcher._look_soon(new, whole=True)
        return await super().look(uuids, whole=whole)


async def look(numbers: Numbers, waiting: int) -> set[int]:
    """The numbers that are answered by one look after a hint, while so many wait."""
    watcher = Watcher(await open_sqlite(":memory:", inline=True), numbers)
    loop = asyncio.get_running_loop()
    futures: dict[int, asyncio.Future[UUID]] = {n: loop.create_future() for n in range(waiting)}
    for number, future in futures.items():
        watcher.waiting[UUID(int=number)] = {future: number}
    await watcher._look(everywhere=False)
    return {number for number, future in futures.items() if future.done()}


async def test_the_oldest_are_asked_about_in_small_pages_while_that_finds_any() -> None:
    numbers = Numbers(0, OLDEST - 1, OLDEST)
    assert await look(numbers, 10 * MAX_BATCH) == {0, OLDEST - 1, OLDEST}
    assert [len(page) for page in numbers.pages] == [OLDEST] * 3 + [MAX_BATCH]
    assert numbers.pages[3][0] >= 3 * OLDEST


async def test_a_young_one_is_found_although_the_oldest_do_not_end() -> None:
    last = OLDEST + MAX_BATCH - 1
    numbers = Numbers(last)
    assert await look(numbers, last + 1) == {last}
    assert [len(page) for page in numbers.pages] == [OLDEST, MAX_BATCH]


async def test_new_callers_do_not_keep_others_from_their_answers() -> None:
    """However fast they come: a hint is followed by a look at those that wait already"""
    numbers = Crowded()
    store = await open_sqlite(":memory:", inline=True)
    numbers.watcher = Watcher(store, numbers)
    task = asyncio.create_task(numbers.watcher.wait(0, UUID(int=0)))
    await numbers.begun.wait()
    numbers.ended.add(UUID(int=0))
    store.hints.send(Topic.ENDINGS)
    assert await task == UUID(int=0)
    assert len(numbers.pages) < numbers.MOST
    await numbers.watcher.close()


@pytest.mark.parametrize("closed", [False, True])
async def test_the_collector_looks_rarely_while_many_wait(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    seen: list[str] = []

    @contextmanager
    def noting() -> Iterator[None]:
        seen.append("rarely")
        yield
        seen.append("as before")

    monkeypatch.setattr(module, "rare_collections", noting)
    numbers = Numbers()
    watcher = Watcher(await open_sqlite(":memory:", inline=True), numbers)
    tasks = [asyncio.create_task(watcher.wait(n, UUID(int=n))) for n in range(MANY + 5)]
    await asyncio.wait(tasks, timeout=0)
    assert seen == ["rarely"]
    if closed:
        await watcher.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await watcher._background.cancel()
    assert seen == ["rarely", "as before"]
