"""Dedicated connections: each has one kind of work and one statement in flight."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import asyncpg
from msgspec import Struct

from flowfabric.core.errors import Unavailable
from flowfabric.store.postgres.address import Address
from flowfabric.store.postgres.faults import RIVALS, Broken, is_broken, translate

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

T = TypeVar("T")
Work = Callable[[Connection, bool], Awaitable[T]]
"""What to do on a connection. The flag says that it may have been done before: the reply of an
earlier try was lost."""

CONNECT_SECONDS = 10.0
STATEMENT_SECONDS = 20.0
QUESTION_SECONDS = 600.0
MAX_BREAKS = 3
MAX_RIVALS = 10
OLDEST_SERVER = 15

_COMMON = {
    "application_name": "flowfabric",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    "tcp_keepalives_idle": "30",
}
PINNED = _COMMON | {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    # Whoever waits for the application's own transaction must not hold up everybody else.
    "lock_timeout": "2000",
}
"""Left alone, the planner makes queue statements two to three times slower."""
FREE = _COMMON | {"plan_cache_mode": "force_custom_plan"}
"""For questions whose best plan depends on what is asked."""


_FORGETFUL = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
"""What was prepared a moment ago is unknown, or somebody else's: the session is another one."""


class Served(Struct, frozen=True):
    """Which process of the server serves a connection."""

    pid: int
    since: datetime


class Dialer:
    """Makes connections, the way the server (or a pooler before it) allows."""

    def __init__(self, address: Address, queries: Mapping[str, str]) -> None:
        self.address = address
        self.queries = queries
        self.pooled = address.pooler == "transaction"

    async def look(self) -> Connection:
        """The first connection of all: finds out whether a pooler hands the server's sessions
        around. If so nothing is pinned, prepared or listened for."""
        try:
            connection = await self.dial(FREE)
        except asyncpg.ProtocolViolationError as error:
            # A pooler refuses settings it does not know.
            self._found_pooler(error)
            return await self.dial(FREE)
        if self.address.pooler is None and not self.pooled and await self._is_shared(connection):
            await connection.close()
            self.pooled = True
            connection = await self.dial(FREE)
        if connection.get_server_version().major < OLDEST_SERVER:
            connection.terminate()
            raise Unavailable(f"{self.address.shown}: Postgres {OLDEST_SERVER} or later is needed")
        return connection

    async def dial(self, settings: Mapping[str, str]) -> Connection:
        later = self.address.pooler == "session"  # it takes no settings at the door
        connection: Connection = await asyncpg.connect(
            self.address.dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=STATEMENT_SECONDS if settings is PINNED else QUESTION_SECONDS,
            server_settings=None if self.pooled or later else dict(settings),
            statement_cache_size=0 if self.pooled else 200,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
        )
        if later:
            for name, value in settings.items():
                await connection.execute(f"set {name} = '{value}'")
        return connection

    async def _is_shared(self, connection: Connection) -> bool:
        """Whether the session answering is another one than was greeted, or changes."""
        seen = {connection.get_server_pid()}
        try:
            for _ in range(2):
                seen.add(await connection.fetchval(self.queries["served_by"]))
        except _FORGETFUL:
            return True
        return len(seen) > 1

    def _found_pooler(self, error: asyncpg.ProtocolViolationError) -> None:
        if self.pooled or self.address.pooler is not None:
            raise error
        self.pooled = True


class Link:
    """One connection: opened when needed, opened again when broken.

    `seam` is for tests: it runs after the work is done and before anybody is told.
    """

    def __init__(self, dialer: Dialer, settings: Mapping[str, str]) -> None:
        self._dialer = dialer
        self._settings = settings
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._served: Served | None = None
        self._left: Served | None = None
        self._closed = False
        self.seam: Callable[[Connection], Awaitable[None]] | None = None

    async def run(self, work: Work[T]) -> T:
        """Does the work, again if the reply was lost or a rival won; errors are the engine's."""
        breaks = rivals = 0
        async with self._lock:
            while True:
                try:
                    return await self._once(work, breaks > 0)
                except Broken as error:
                    breaks += 1
                    if breaks >= MAX_BREAKS:
                        raise self._translated(error.__cause__ or error) from error
                except RIVALS as error:
                    rivals += 1
                    if rivals >= MAX_RIVALS:
                        raise self._translated(error) from error
                    await asyncio.sleep(secrets.randbelow(1000) / 1_000_000 * rivals)

    async def close(self) -> None:
        """Waits for what is under way."""
        async with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                try:
                    await connection.close(timeout=CONNECT_SECONDS)
                except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    connection.terminate()

    async def _once(self, work: Work[T], repeated: bool) -> T:
        connection = await self._ready()
        try:
            if self._dialer.pooled:
                async with connection.transaction(isolation="read_committed"):
                    done = await work(connection, repeated)
            else:
                done = await work(connection, repeated)
            if self.seam is not None:
                await self.seam(connection)
            return done
        except RIVALS:
            raise
        except Exception as error:
            if connection.is_closed() or is_broken(error):
                self._drop()
                raise Broken from error
            if not isinstance(error, asyncpg.PostgresError | asyncpg.DataError):
                raise
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                self._drop()  # the server may have changed its role: look for another one
            raise self._translated(error) from error

    async def _ready(self) -> Connection:
        if self._closed:
            raise Unavailable(f"{self._dialer.address.shown}: the store was closed")
        if self._connection is not None and self._connection.is_closed():
            self._drop()
        if self._connection is None:
            try:
                self._connection = await self._connect()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                raise self._translated(error) from error
        return self._connection

    async def _connect(self) -> Connection:
        connection = await self._dialer.dial(self._settings)
        if self._dialer.pooled:
            return connection
        try:
            row = await connection.fetchrow(self._dialer.queries["session"])
            self._served = None if row is None else Served(*row)
            await self._bury(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _bury(self, connection: Connection) -> None:
        """What a broken connection left running must have an end before anybody looks what became
        of it."""
        left, self._left = self._left, None
        if left is not None:
            await connection.execute(self._dialer.queries["ended_session"], left.pid, left.since)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._left, self._served = self._served or self._left, None
        if connection is not None:
            connection.terminate()

    def _translated(self, error: BaseException) -> Exception:
        if not isinstance(error, Exception):
            raise error
        return translate(error, self._dialer.address)
