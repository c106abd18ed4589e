"""Kinds of work: each has one statement in flight, on one of the connections of the process."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import asyncpg
from msgspec import Struct

from flowfabric.core.base.errors import Locked
from flowfabric.store.postgres.dialer import BOUNDS, FREE, PINNED, Connection
from flowfabric.store.postgres.faults import PATIENCE_SECONDS, RIVALS, Broken, is_broken, translate
from flowfabric.store.postgres.wires import Refused, Wires

T = TypeVar("T")
Work = Callable[[Connection, bool], Awaitable[T]]
"""What to do on a connection. The flag says that it may have been done before: the reply of an
earlier try was lost."""

WORK_SECONDS = 4.0
QUESTION_SECONDS = 15.0
"""How long the first try may take; the next one twice as long. Three tries of work fit into a
lease."""
MAX_BREAKS = 3
MAX_RIVALS = 10
LOCKED_PAUSE = 0.02

_BOUNDED = "; ".join(f"set local {name} = '{value}'" for name, value in BOUNDS.items())


class Link:
    """One kind of work. `bare` work is one statement without arguments, which needs no transaction
    around it to pass a pooler.

    `seam` is for tests: it runs after the work is done and before the caller hears of it.
    """

    def __init__(
        self,
        wires: Wires,
        settings: Mapping[str, str],
        *,
        urgent: bool = False,
        bare: bool = False,
    ) -> None:
        self._wires = wires
        self._dialer = wires.dialer
        self._settings = settings
        self._urgent = urgent
        self._bare = bare
        self._limit = QUESTION_SECONDS if settings is FREE else WORK_SECONDS
        self._lock = asyncio.Lock()
        self.seam: Callable[[Connection], Awaitable[None]] | None = None

    async def run(
        self, work: Work[T], *, limit: float | None = None, patience: float = PATIENCE_SECONDS
    ) -> T:
        """Does the work, again if the reply was lost or a rival won; errors are the engine's.

        `limit` is how long the first try may take, `patience` how long it is retried while another
        session holds a lock it needs; both in seconds."""
        loop = asyncio.get_running_loop()
        tries = _Tries(_cancels(), loop.time() + patience)
        while True:
            try:
                async with self._lock:
                    return await self._until_answered(work, limit or self._limit, tries)
            except Exception as error:
                if _cancels() > tries.cancels:  # its rollback failed, and hid that it was cancelled
                    raise asyncio.CancelledError from error
                if not isinstance(error, Locked) or loop.time() >= tries.give_up_at:
                    raise
            await asyncio.sleep(LOCKED_PAUSE)  # meanwhile others have the connection

    async def _until_answered(self, work: Work[T], limit: float, tries: "_Tries") -> T:
        breaks = rivals = 0
        while True:
            once = partial(self._done, work, tries.is_repeat)
            try:
                return await self._wires.lend(
                    once, self._settings, limit * 2**breaks, urgent=self._urgent
                )
            except Refused:
                continue  # one of the connections there are
            except Broken as error:
                breaks += 1
                tries.broke(PATIENCE_SECONDS if not self._urgent else 0.0)
                if breaks >= MAX_BREAKS or _cancels() > tries.cancels:
                    raise self._translated(error.__cause__ or error) from error
            except RIVALS as error:
                rivals += 1
                if rivals >= MAX_RIVALS:
                    raise self._translated(error) from error
                await asyncio.sleep(secrets.randbelow(1000) / 1_000_000 * rivals)

    async def _done(self, work: Work[T], repeated: bool, connection: Connection) -> T:
        try:
            if self._dialer.pooled and not self._bare:
                done = await self._bounded(work, connection, repeated)
            else:
                done = await work(connection, repeated)
            if self.seam is not None:
                await self.seam(connection)
            return done
        except RIVALS:
            raise
        except Exception as error:
            if connection.is_closed() or is_broken(error):
                connection.terminate()
                raise Broken from error
            if not isinstance(error, asyncpg.PostgresError | asyncpg.DataError):
                raise
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                connection.terminate()  # the server may have changed its role: look again
            raise self._translated(error) from error

    async def _bounded(self, work: Work[T], connection: Connection, repeated: bool) -> T:
        """Through a pooler that hands sessions around, a session keeps no settings: everything is
        a transaction that brings its own."""
        async with connection.transaction(isolation="read_committed"):
            if self._settings is PINNED:
                await connection.execute(_BOUNDED)
            return await work(connection, repeated)

    def _translated(self, error: BaseException) -> Exception:
        if not isinstance(error, Exception):
            raise error
        return translate(error, self._dialer.address)


class _Tries(Struct):
    """The tries of one call: how often its task had been asked to end before the first, until when
    it waits for locks, and whether a reply was lost, so that the next try may be a repeat."""

    cancels: int
    give_up_at: float
    is_repeat: bool = False

    def broke(self, patience: float) -> None:
        """Only this call knows that it may be done already: it waits for locks by itself, rather
        than be sent in pieces by a caller that does not know."""
        self.is_repeat = True
        self.give_up_at = max(self.give_up_at, asyncio.get_running_loop().time() + patience)


def _cancels() -> int:
    """How often this task was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
