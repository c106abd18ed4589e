"""Hints to other processes, by NOTIFY."""

import asyncio
import secrets

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.store.hints import EVERYTHING, NOTHING, Hints, Topic, Topics
from flowfabric.store.postgres.dialer import PINNED, Connection
from flowfabric.store.postgres.link import Link
from flowfabric.store.postgres.listener import Listener
from flowfabric.store.postgres.wires import Wires

GAP_SECONDS = 0.005
FAILED_PAUSE = 0.05


class Notices:
    """Passes hints on to other processes, at most one per 5 ms; `listener` hears theirs. A process
    that waits for nothing does not listen, and one that cannot listen sends all the same."""

    def __init__(self, wires: Wires, channel: str) -> None:
        self._dialer = wires.dialer
        self._link = Link(wires, PINNED, bare=True)
        self._origin = secrets.token_hex(8)
        self._topics = NOTHING
        self._pending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.hints = Hints(listen=self._listen, tell=self._tell)
        self.listener = Listener(wires, self._link, channel, self.hints, self._heard, self._send)

    async def close(self) -> None:
        self._closed = True
        self.hints.wake()
        self._pending.set()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task])  # a statement is not cut off: its connection would be lost
        await self.listener.close()

    def _listen(self) -> None:
        if not self._closed:
            self.listener.start()

    def _tell(self, topics: Topics) -> None:
        if self._closed:
            return
        self._topics |= topics
        self._pending.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="flowfabric-hints")

    async def _run(self) -> None:
        while not self._closed:
            await self._pending.wait()
            self._pending.clear()
            topics, self._topics = self._topics, NOTHING
            if not topics:
                continue
            try:
                await self._send(topics)
            except FlowFabricError:  # the hint is lost, which costs the poll floor
                await asyncio.sleep(FAILED_PAUSE)
            await asyncio.sleep(GAP_SECONDS)

    async def _send(self, topics: Topics) -> None:
        """One statement. Without arguments it also passes a pooler as it is; with one it is
        prepared."""
        query, payload = self._dialer.queries["hint"], f"{self._origin}:{topics}"

        async def work(connection: Connection, repeated: bool) -> None:
            if self._dialer.pooled:
                await connection.execute(query.replace("$1", f"'{payload}'"))
            else:
                await connection.fetch(query, payload)

        await self._link.run(work)

    def _heard(self, payload: str) -> None:
        """`origin:topics`; an application's transaction sends none, older releases only the
        origin. No topics are this process's own try-out."""
        origin, _, number = payload.partition(":")
        if origin == self._origin:
            self.listener.echoed()
        elif not origin:
            self.hints.wake(Topic.INBOX)
        else:
            self.hints.wake(int(number) & EVERYTHING if number.isdecimal() else EVERYTHING)


FIRST_LOOK = 0.02
LAST_LOOK = 1.0
"""Seconds. While claims take nothing, each look waits twice as long as the one before: 0.02, 0.04,
0.08, … A stuck session may hold the rows of a claim for hours."""


class SecondLook:
    """When callers that wait for work look again, because a claim has left rows to other claims: no
    hint tells that there are more. One look is for all claims that end meanwhile."""

    def __init__(self) -> None:
        self._planned = False
        self._after = FIRST_LOOK

    def plan(self, hints: Hints) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_later(self._after, self._look, hints)
            self._after = min(LAST_LOOK, self._after * 2)

    def took(self) -> None:
        """A claim took something: the next look is an early one again."""
        self._after = FIRST_LOOK

    def _look(self, hints: Hints) -> None:
        self._planned = False
        hints.wake(Topic.WORK)
