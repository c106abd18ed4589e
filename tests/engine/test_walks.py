"""Pages of a flow's members: the next is worked on while one is under way."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.execution.model import Snapshot
from flowfabric.engine.flow.walks import overlapping

Page = list[Snapshot]


async def pages(*given: Page) -> AsyncIterator[Page]:
    for page in given:
        yield page


async def test_two_pages_are_under_way_at_once_and_no_third() -> None:
    first, second, third = Page(), Page(), Page()
    begun: list[int] = []
    written = asyncio.Event()

    async def write(page: Page) -> None:
        begun.append(id(page))
        await written.wait()

    working = asyncio.ensure_future(overlapping(pages(first, second, third), write))
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun == [id(first), id(second)]
    written.set()
    await working
    assert begun == [id(first), id(second), id(third)]


async def test_trouble_with_a_page_stops_the_next_and_is_raised() -> None:
    first, second = Page(), Page()
    stopped = asyncio.Event()

    async def write(page: Page) -> None:
        if page is first:
            raise Unavailable("gone")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    with pytest.raises(Unavailable):
        await overlapping(pages(first, second), write)
    await asyncio.sleep(0)
    assert stopped.is_set()


async def test_trouble_with_the_last_page_is_raised() -> None:
    async def write(page: Page) -> None:
        raise Unavailable("gone")

    with pytest.raises(Unavailable):
        await overlapping(pages([]), write)


async def test_a_page_that_cannot_be_read_leaves_no_work_behind() -> None:
    ended = asyncio.Event()

    async def write(page: Page) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    async def failing() -> AsyncIterator[Page]:
        yield []
        await asyncio.sleep(0)
        raise Unavailable("gone")

    with pytest.raises(Unavailable):
        await overlapping(failing(), write)
    assert ended.is_set()


async def test_a_caller_that_is_cancelled_leaves_no_work_behind() -> None:
    ended: list[int] = []

    async def write(page: Page) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(id(page))

    first, second = Page(), Page()
    working = asyncio.ensure_future(overlapping(pages(first, second), write))
    for _ in range(5):
        await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert ended == [id(first), id(second)]
