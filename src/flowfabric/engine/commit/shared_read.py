"""A read that one caller does for all that need it at the same moment."""

import asyncio
from collections.abc import Awaitable, Callable


class SharedRead:
    """The others wait for the one that reads, and then go on in one turn of the event loop: a lock
    would let them go one by one."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done: asyncio.Event | None = None

    async def when(self, needed: Callable[[], bool], read: Callable[[], Awaitable[None]]) -> None:
        """Reads if it is still needed after what is being read has come."""
        while self._done is not None:
            await self._done.wait()
        if not needed():
            return
        self._done = done = asyncio.Event()
        try:
            await read()
        finally:
            self._done = None
            done.set()
