"""The few connections of a process, lent to one piece of work at a time.

A connection that is silent is not waited for: it is cut, another one is dialled, and through that
one the server is asked what became of the old session and whether the other connections still
reach it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import NoReturn, TypeVar

import asyncpg
from msgspec import Struct

from flowfabric.core.base.errors import FlowFabricError, Unavailable
from flowfabric.store.postgres.dialer import (
    CONNECT_SECONDS,
    FREE,
    PINNED,
    Connection,
    Dialer,
    turn_into,
)
from flowfabric.store.postgres.faults import Broken, is_refusal, translate

T = TypeVar("T")

SIZE = 2
"""Connections of a store. The heartbeat of a worker has a store of its own, with one."""
GREETING_SECONDS = 4.0
REFUSED_SECONDS = 1.0
"""How long a server that refused a connection is not asked for one, while there are others."""

_BEGUN = "_top_xact"
"""Where the driver keeps the outermost transaction of a connection. A driver that keeps it in
another place refuses the name, and the connection is replaced."""
_UNSURE: Mapping[str, str] = {}
"""Settings of a connection whose change was interrupted: they are neither of the two."""

log = logging.getLogger("flowfabric.postgres")


class Served(Struct, frozen=True):
    """Which process of the server serves a connection."""

    pid: int
    since: datetime


class Wire:
    """One connection: dialled when needed, dialled again when broken."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.settings: Mapping[str, str] = FREE
        self.served: Served | None = None
        self.lent = False
        self.interrupted = False
        """Whether its last work may have left a transaction open: the next work would be done in
        it, be answered, and never be committed."""

    @property
    def stands(self) -> bool:
        return self.connection is not None and not self.connection.is_closed()

    @property
    def in_transaction(self) -> bool:
        """For the server, or only for the driver: see `_forget_transaction`."""
        if self.connection is None or not self.stands:
            return False
        begun = getattr(self.connection, _BEGUN, None)
        return begun is not None or self.connection.is_in_transaction()


class _Waiter(Struct, eq=False):
    slow: bool
    free: "asyncio.Future[Wire]"


class Wires:
    """Lends connections. Questions, which may be slow, have at most one of them, so that there is
    always one for work."""

    def __init__(self, dialer: Dialer, size: int = SIZE) -> None:
        self.dialer = dialer
        self._wires = [Wire() for _ in range(size)]
        self._waiting: list[_Waiter] = []
        self._slow = False
        self._left: list[Served] = []
        self._doubtful = False
        self._refused_until = 0.0
        self._closed = False
        self._returned = asyncio.Event()

    @property
    def standing(self) -> list[Wire]:
        return [wire for wire in self._wires if wire.stands]

    async def adopt(self, connection: Connection) -> None:
        """Takes over a connection that was made to look."""
        wire = self._wires[-1]
        wire.connection, wire.settings = connection, FREE
        await self._introduce(wire, connection)

    async def lend(
        self,
        work: Callable[[Connection], Awaitable[T]],
        settings: Mapping[str, str],
        limit: float,
        *,
        urgent: bool = False,
    ) -> T:
        """Does a piece of work on a connection with these settings, which is cut when the work
        takes longer than `limit` seconds. Raises Broken when it breaks, Unavailable without one."""
        wire = await self._take(slow=settings is FREE, urgent=urgent)
        try:
            connection = await self._prepared(wire, settings)
            # Not `_limited`: every statement comes here.
            timer = asyncio.get_running_loop().call_later(limit, self._cut, connection)
            try:
                return await work(connection)
            finally:
                timer.cancel()
        except asyncio.CancelledError:
            wire.interrupted = True  # perhaps between its BEGIN and the answer to it
            raise
        except Exception as error:
            wire.interrupted = wire.in_transaction
            # Whatever happened, a connection that is closed says what to do: dial another one.
            if not wire.stands and not isinstance(error, Broken | Refused | FlowFabricError):
                raise Broken from error
            raise
        finally:
            if not wire.stands:
                self._drop(wire)
            self._give_back(wire, slow=settings is FREE)

    async def close(self) -> None:
        """Waits for what is under way."""
        self._closed = True
        for wire in self._wires:
            while wire.lent:
                self._returned.clear()
                await self._returned.wait()
            connection, wire.connection = wire.connection, None
            if connection is None:
                continue
            try:
                await connection.close(timeout=CONNECT_SECONDS)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    # -- who gets which

    async def _take(self, *, slow: bool, urgent: bool) -> Wire:
        if not self._waiting and (wire := self._lent_to(slow=slow)) is not None:
            return wire
        waiter = _Waiter(slow, asyncio.get_running_loop().create_future())
        self._waiting.insert(0 if urgent else len(self._waiting), waiter)
        self._assign()
        try:
            return await waiter.free
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.free.done() and not waiter.free.cancelled():
                self._give_back(waiter.free.result(), slow=slow)
            raise

    def _give_back(self, wire: Wire, *, slow: bool) -> None:
        wire.lent = False
        self._returned.set()
        if slow:
            self._slow = False
        self._assign()

    def _assign(self) -> None:
        for waiter in list(self._waiting):
            if waiter.free.done():
                continue  # cancelled, and has not run since: it takes itself off the list
            if waiter.slow and self._slow:
                continue
            wire = self._lent_to(slow=waiter.slow)
            if wire is None:
                return
            self._waiting.remove(waiter)
            waiter.free.set_result(wire)

    def _lent_to(self, *, slow: bool) -> Wire | None:
        """A free connection, which is taken from now on."""
        wire = None if slow and self._slow else self._best(slow=slow)
        if wire is not None:
            wire.lent = True
            self._slow = self._slow or slow
        return wire

    def _best(self, *, slow: bool) -> Wire | None:
        """Questions have the last one, which keeps its settings; work has the others first. Where
        the server refuses more, those that stand must do."""
        if not slow:
            for wire in self._wires:
                if not wire.lent and wire.settings is PINNED and wire.stands:
                    return wire
        free = [wire for wire in self._wires if not wire.lent]
        if self._is_refused():
            free = [wire for wire in free if wire.stands]
        if slow:
            last = [wire for wire in free if wire is self._wires[-1]]
            return next(iter(last or free), None)
        return min(free, key=self._cost, default=None)

    def _cost(self, wire: Wire) -> int:
        """Of a connection for work that is not set up for it: a new one, the one of questions."""
        return 0 if not wire.stands and wire is not self._wires[-1] else 1

    def _is_refused(self) -> bool:
        """Whether it is of no use to dial, and not necessary."""
        recently = asyncio.get_running_loop().time() < self._refused_until
        return recently and bool(self.standing)

    # -- dialling

    async def _prepared(self, wire: Wire, settings: Mapping[str, str]) -> Connection:
        if self._closed:
            raise Unavailable(f"{self.dialer.address.shown}: the store was closed")
        if wire.connection is not None and wire.connection.is_closed():
            self._drop(wire)
        connection = wire.connection
        if connection is None:
            connection = await self._dialled(wire, settings)
        settled = wire.settings is settings or self.dialer.pooled
        if settled and not self._left and not wire.interrupted:
            return connection
        try:
            with self._limited(connection, GREETING_SECONDS):
                await self._tidy_up(wire, connection, settings)
        except Exception as error:
            connection.terminate()
            raise Broken from error
        return connection

    async def _tidy_up(
        self, wire: Wire, connection: Connection, settings: Mapping[str, str]
    ) -> None:
        """Ends what the work before has left on the connection, and on others that broke."""
        if wire.interrupted:
            await connection.execute("rollback")
            _forget_transaction(connection)
            wire.interrupted = False
        if wire.settings is not settings and not self.dialer.pooled:
            wire.settings = _UNSURE
            await connection.execute(turn_into(settings))
            wire.settings = settings
        if self._left:
            await self._bury(connection)

    async def _dialled(self, wire: Wire, settings: Mapping[str, str]) -> Connection:
        try:
            connection = await self.dialer.dial(settings)
        except Exception as error:
            self._failed(error)
        wire.connection, wire.settings, wire.interrupted = connection, settings, False
        try:
            await self._introduce(wire, connection)
        except Exception as error:
            connection.terminate()
            raise Broken from error
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _failed(self, error: Exception) -> NoReturn:
        """If the server refused, the caller may use another connection, or gets the reason.
        Otherwise the new connection broke, and is opened again."""
        if not is_refusal(error):
            raise Broken from error
        self._refused_until = asyncio.get_running_loop().time() + REFUSED_SECONDS
        if self.standing:
            raise Refused from error
        raise translate(error, self.dialer.address) from error

    async def _introduce(self, wire: Wire, connection: Connection) -> None:
        if self.dialer.pooled:
            return
        with self._limited(connection, GREETING_SECONDS):
            row = await connection.fetchrow(self.dialer.queries["session"])
        wire.served = None if row is None else Served(row[0], row[1])

    # -- what broken connections left behind

    def _drop(self, wire: Wire) -> None:
        connection, wire.connection = wire.connection, None
        if wire.served is not None:
            self._left.append(wire.served)
            wire.served = None
        if connection is not None:
            connection.terminate()

    @contextmanager
    def _limited(self, connection: Connection, seconds: float) -> Iterator[None]:
        """The connection is cut if the block takes longer."""
        timer = asyncio.get_running_loop().call_later(seconds, self._cut, connection)
        try:
            yield
        finally:
            timer.cancel()

    def _cut(self, connection: Connection) -> None:
        self._doubtful = True
        connection.terminate()

    async def _bury(self, connection: Connection) -> None:
        """What a broken connection left running must have an end before a caller looks what became
        of it."""
        left, self._left = self._left, []
        try:
            values = ([each.pid for each in left], [each.since for each in left])
            rows = await connection.fetch(self.dialer.queries["ended_sessions"], *values)
        except BaseException:
            self._left += left
            raise
        if not all(ended for _, ended in rows):
            self._left += left
            raise Broken(f"{self.dialer.address.shown}: a session of the server does not end")
        if self._doubtful:
            self._doubtful = False
            if len(rows) < len(left) or any(not worked for worked, _ in rows):
                log.warning("%s: a silent connection was replaced", self.dialer.address.shown)
                await self._look_at_others(connection)

    async def _look_at_others(self, connection: Connection) -> None:
        """The server was not at work for a connection that had no answer: packets were lost on the
        way. Others may have met the same: idle ones are dialled again, and those that wait for an
        answer the server does not work on have it never."""
        others = [w for w in self.standing if w.connection is not connection and w.served]
        for wire in others:
            if not wire.lent:
                self._drop(wire)
        pids = [wire.served.pid for wire in others if wire.served is not None]
        if pids:
            rows = await connection.fetch(self.dialer.queries["idle_sessions"], pids)
            idle = {pid for (pid,) in rows}
            for wire in others:
                if wire.connection and wire.served and wire.served.pid in idle:
                    wire.connection.terminate()
        if self._left:
            with suppress(Broken):
                await self._bury(connection)


def _forget_transaction(connection: Connection) -> None:
    """To the driver, a transaction whose BEGIN was interrupted goes on for ever: all that follow on
    the connection would be savepoints in it, which the server refuses."""
    setattr(connection, _BEGUN, None)


class Refused(Exception):
    """The server takes no more connections, but there are others to use."""
