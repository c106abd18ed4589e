"""Hears the hints of other processes by LISTEN or, where that is impossible, looks for news."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from flowfabric.core.base.errors import FlowFabricError, Unavailable
from flowfabric.store.hints import NOTHING, Hints, Topic, Topics
from flowfabric.store.postgres.dialer import FREE, PINNED, Connection, Dialer
from flowfabric.store.postgres.faults import translate
from flowfabric.store.postgres.link import Link
from flowfabric.store.postgres.wires import Wires

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
DEAF_PAUSE = 30.0
"""Seconds until listening is tried again where a try-out was not heard."""
ECHO_SECONDS = 2.0

SHORTEST_GAP, LONGEST_GAP = 0.02, 0.04
"""Seconds between two looks for news: a small part of the quiet so far."""

log = logging.getLogger("flowfabric.postgres")


class Listener:
    """Listens while tasks wait, and tries first whether a notification comes back.

    One of the connections for work listens as well: it is in use all the time, so that one which
    fell silent is noticed. With a `listen` address in the URL it is a connection of its own. Where
    neither hears anything (a pooler hands the server's sessions around, the connection was lost),
    it asks every few hundredths of a second whether hints were sent, in one small statement.
    """

    def __init__(
        self,
        wires: Wires,
        link: Link,
        channel: str,
        hints: Hints,
        heard: Callable[[str], None],
        send: Callable[[Topics], Awaitable[None]],
    ) -> None:
        self._dialer = wires.dialer
        self._link = link
        self._numbers = Link(wires, PINNED)
        self._channel = channel
        self._hints = hints
        self._heard = heard
        self._send = send
        listen = self._dialer.address.listen
        self._direct = None if listen is None else Dialer(listen, self._dialer.queries)
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._broken = asyncio.Event()
        self._echo = asyncio.Event()
        self._number: int | None = None
        self._look_under_way: asyncio.Task[None] | None = None
        self._hears = True

    def start(self) -> None:
        """Called whenever a task waits."""
        self._asked.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="flowfabric-listener")

    def echoed(self) -> None:
        self._echo.set()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._look_under_way is not None:
            await asyncio.wait([self._look_under_way])
        self._leave()

    async def _run(self) -> None:
        """Keeps listening. What was missed before it listens is found by one look: all wake up."""
        if self._dialer.pooled and self._direct is None:
            log.info(
                "%s: a pooler shares sessions, so nothing can be listened for; looking for news "
                "every %.0f ms. `listen` in the URL names a direct address.",
                self._dialer.address.shown,
                LONGEST_GAP * 1000,
            )
            await self._poll(None)
        pause = FIRST_PAUSE
        while True:
            try:
                await self._listen()
            except Exception as error:
                self._leave()
                self._missed(error)
                await self._poll(DEAF_PAUSE if isinstance(error, Deaf) else pause)
                pause = min(LONGEST_PAUSE, pause * 2)
                continue
            self._hears_again()
            pause = FIRST_PAUSE
            self._hints.wake()
            await self._broken.wait()
            self._leave()

    # -- listening

    async def _listen(self) -> None:
        self._broken.clear()
        self._echo.clear()
        if self._direct is None:
            await self._link.run(self._attach)
        else:
            try:
                connection = await self._direct.dial(FREE)
            except Exception as error:
                raise translate(error, self._direct.address) from error
            await self._attach(connection, False)
        await self._send(NOTHING)
        try:
            async with asyncio.timeout(ECHO_SECONDS):
                await self._echo.wait()
        except TimeoutError:
            place = (self._direct or self._dialer).address.shown
            raise Deaf(
                f"{place}: a notification sent to {self._dialer.address.shown} was not heard there"
            ) from None

    async def _attach(self, connection: Connection, repeated: bool) -> None:
        self._connection = connection
        connection.add_termination_listener(self._ended)
        await connection.add_listener(self._channel, self._on_notification)

    def _ended(self, connection: object) -> None:
        self._broken.set()

    def _on_notification(self, connection: object, pid: int, channel: str, payload: object) -> None:
        self._heard(str(payload))

    def _leave(self) -> None:
        """Forgets the connection. One for work goes on without listening, if it stands."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.remove_termination_listener(self._ended)
        if self._direct is not None:
            connection.terminate()

    def _missed(self, error: Exception) -> None:
        if self._hears:
            log.warning(
                "hints of other processes cannot be heard; looking for news every %.0f ms until "
                "they can: %s",
                LONGEST_GAP * 1000,
                error,
                exc_info=None if isinstance(error, FlowFabricError) else error,
            )
        self._hears = False

    def _hears_again(self) -> None:
        if not self._hears:
            log.warning("hints of other processes are heard again")
        self._hears = True

    # -- looking

    async def _poll(self, seconds: float | None) -> None:
        """Looks for news while tasks wait, for so many seconds, or for good."""
        loop = asyncio.get_running_loop()
        ends_at = None if seconds is None else loop.time() + seconds
        while ends_at is None or loop.time() < ends_at:
            if not self._hints.waiting:
                self._asked.clear()
                await self._asked.wait()
            # A statement is not cut off when the store is closed: its connection would be lost.
            self._look_under_way = asyncio.create_task(self._look())
            try:
                await asyncio.shield(self._look_under_way)
            except FlowFabricError:  # the sweep says so
                await asyncio.sleep(LONGEST_PAUSE)
            await asyncio.sleep(min(LONGEST_GAP, max(SHORTEST_GAP, self._hints.quiet / 100)))

    async def _look(self) -> None:
        if self._number is None:
            self._number = await self._numbers.run(self._newest)
            self._hints.wake()
        hints, inbox = await self._link.run(partial(self._news, self._number))
        self._number += hints
        if hints:
            self._hints.wake()
        elif inbox:
            self._hints.wake(Topic.INBOX)

    async def _news(self, number: int, connection: Connection, repeated: bool) -> tuple[int, bool]:
        """How many hints there were since that number, and whether the inbox has entries. Asked
        without arguments it is one round trip, also through a pooler, but the driver then tells
        only how many rows the answer had: two for each hint, one for the inbox."""
        query = self._dialer.queries["news"].replace("$1", str(number))
        status = await connection.execute(query)
        hints, inbox = divmod(int(status.removeprefix("SELECT ")), 2)
        return hints, inbox > 0

    async def _newest(self, connection: Connection, repeated: bool) -> int:
        number: int = await connection.fetchval(self._dialer.queries["newest_hint"])
        return number


class Deaf(Unavailable):
    """A notification did not come back."""
