"""Making connections, the way the server (or a pooler before it) allows."""

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

import asyncpg

from flowfabric.core.base.errors import Unavailable
from flowfabric.store.postgres.address import Address

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

CONNECT_SECONDS = 5.0
OLDEST_SERVER = 15

LOCK_MILLIS = 25
"""How long one statement waits for a lock. Work on rows that a transaction of the application keeps
locked is tried again from here, so that no connection and no neighbour waits with it."""
FROZEN_MILLIS = 1000
"""A transaction whose client says nothing for so long is ended by the server: a process that was
stopped keeps no row locked."""
SILENT_MILLIS = 8000
"""Packets unanswered for this long mean that the other end is gone."""

BOUNDS = {
    "idle_in_transaction_session_timeout": str(FROZEN_MILLIS),
    "lock_timeout": str(LOCK_MILLIS),
}
_COMMON = {
    "application_name": "flowfabric",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    "idle_in_transaction_session_timeout": BOUNDS["idle_in_transaction_session_timeout"],
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": str(SILENT_MILLIS),
}
_PLANNED = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "lock_timeout": BOUNDS["lock_timeout"],
}
PINNED = _COMMON | _PLANNED
"""Left alone, the planner makes queue statements two to three times slower."""
FREE = _COMMON | {"plan_cache_mode": "force_custom_plan"}
"""For questions whose best plan depends on what is asked."""

_FORGETFUL = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
"""A statement prepared a moment ago is unknown, or another's: the session is a different one."""


def turn_into(settings: Mapping[str, str]) -> str:
    """The statements that make a session with the other settings one with these."""
    names = sorted(_PLANNED)
    return "; ".join(
        f"set {name} = '{settings[name]}'" if name in settings else f"set {name} to default"
        for name in names
    )


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
        later = self.address.pooler == "session"  # it takes no settings on connect
        connection: Connection = await asyncpg.connect(
            self.address.dsn,
            timeout=CONNECT_SECONDS,
            server_settings=None if self.pooled or later else dict(settings),
            statement_cache_size=0 if self.pooled else 400,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
        )
        _keep_alive(connection)
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
        except BaseException:
            connection.terminate()
            raise
        return len(seen) > 1

    def _found_pooler(self, error: asyncpg.ProtocolViolationError) -> None:
        if self.pooled or self.address.pooler is not None:
            raise error
        self.pooled = True


def _keep_alive(connection: Connection) -> None:
    """The kernel asks a silent peer whether it is there, and gives up unanswered packets."""
    transport = getattr(connection, "_transport", None)
    found = None if transport is None else transport.get_extra_info("socket")
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with socket.socket(fileno=os.dup(found.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", 5),
            ("TCP_KEEPINTVL", 2),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", SILENT_MILLIS),
        ):
            if (option := getattr(socket, name, None)) is not None:  # not every system has them
                same.setsockopt(socket.IPPROTO_TCP, option, value)
