"""What every operation is given: the connections, the queries, the names, the clock."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Snapshot
from flowfabric.store.clock import StoreClock
from flowfabric.store.postgres.dialer import FREE, PINNED, Connection
from flowfabric.store.postgres.link import Link
from flowfabric.store.postgres.low_water import LowWaterMarks
from flowfabric.store.postgres.names import NameBook
from flowfabric.store.postgres.wake import Notices, SecondLook
from flowfabric.store.postgres.wires import Wires
from flowfabric.store.readable import readable
from flowfabric.store.rows.execution import SNAPSHOT, read_snapshot
from flowfabric.store.rows.flow import Turn
from flowfabric.store.sql import RecordQueries

T = TypeVar("T")
Columns = Sequence[Sequence[Any] | None]

_IF_NEW = re.compile(r"on conflict \([a-z, ]+\) do nothing")
_ROUTE, _WORKER = SNAPSHOT.index("exec_route"), SNAPSHOT.index("worker")


class Learned:
    """What this process has learned from its own statements, so that it asks for less."""

    def __init__(self) -> None:
        self.suspects = True
        """Whether a suspect waited at the last claim."""
        self.rivals_until = Millis(0)
        """Until when claims expect to meet rows that others have locked."""
        self.special: set[tuple[str, ...]] = set()
        """Lanes of claims that met a lane which drains or has a concurrency."""
        self.low_water = LowWaterMarks()
        """Below which ranks claims have nothing to look at, where that is worth knowing."""
        self.second_look = SecondLook()
        """When waiting callers are woken, because a claim has left rows to others."""
        self.settled = 0
        """The number up to which every event can be read."""
        self.correction: tuple[bytes | None, float] = (None, float("-inf"))
        """The stored correction of the clock, and when (`OffsetClock.steady`) it was read."""
        self.turn = Turn()
        """The flow whose outbox is worked on next."""


class PostgresSession:
    """One link per kind of work; all of them share the few connections of the process."""

    def __init__(
        self, wires: Wires, queries: dict[str, str], clock: StoreClock, schema: str
    ) -> None:
        self.wires = wires
        self.dialer = wires.dialer
        self.queries = queries
        self.records = RecordQueries(queries, "$", f"{schema}.")
        self.clock = clock
        self.schema = schema
        self.submit = Link(wires, PINNED)
        self.claim = Link(wires, PINNED)
        self.renew = Link(wires, PINNED, urgent=True)
        self.end = Link(wires, PINNED)
        self.apply = Link(wires, PINNED)
        self.limit = Link(wires, PINNED)
        self.record = Link(wires, PINNED)
        self.load = Link(wires, PINNED)
        self.sweep = Link(wires, FREE)
        self.report = Link(wires, FREE)
        self.learned = Learned()
        self.book = NameBook(self.apply, queries)
        self.notices = Notices(wires, f"{schema}_wake")
        self.hints = self.notices.hints

    async def fetch(self, link: Link, name: str, *values: Any) -> list[Any]:
        """The rows of one named query."""
        return await self.ask(link, self.queries[name], *values)

    async def ask(self, link: Link, query: str, *values: Any) -> list[Any]:
        """The rows of one query."""

        async def work(connection: Connection, repeated: bool) -> list[Any]:
            return await connection.fetch(query, *values)

        return await link.run(work)

    async def snapshots(self, link: Link, name: str, *values: Any) -> list[Snapshot]:
        """The snapshots a named query gives, without those that cannot be read."""
        query = self.queries[name]

        async def work(connection: Connection, repeated: bool) -> list[Snapshot]:
            return await self.readable(connection, await connection.fetch(query, *values))

        return await link.run(work)

    async def readable(
        self,
        connection: Connection,
        rows: Sequence[Any],
        left_out: Callable[[Any], None] = lambda row: None,
    ) -> list[Snapshot]:
        """As `read`, without those that cannot be read."""
        await self.learn(connection, rows)
        read = partial(read_snapshot, names=self.book.names, uuid=same)
        return readable(rows, read, "execution", itemgetter(0), left_out)

    async def read(self, connection: Connection, rows: Sequence[Any]) -> list[Snapshot]:
        """Rows that begin with the columns of the view `snapshot`, as values. Corruption names one
        that cannot be read."""
        await self.learn(connection, rows)
        names = self.book.names
        return [read_snapshot(row, names, same) for row in rows]

    async def learn(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Knows every name that such rows have a number of; a row may be empty."""
        routes = {row[_ROUTE] or 0 for row in rows}
        workers = {row[_WORKER] or 0 for row in rows}
        await self.book.learn(connection, max(routes, default=0), max(workers, default=0))


async def insert_new(connection: Connection, query: str, values: Sequence[Any]) -> list[Any]:
    """The rows of a statement whose inserts most likely meet no conflict: sent without its
    `on conflict … do nothing`, which costs a record of WAL per row, and with it if there is one."""
    if not connection.is_in_transaction():
        with suppress(asyncpg.UniqueViolationError):
            return await connection.fetch(_certain(query), *values)
    return await connection.fetch(query, *values)


@cache
def _certain(query: str) -> str:
    return _IF_NEW.sub("", query)


def same(value: UUID) -> UUID:
    """The driver gives uuids as such."""
    return value


def columns(rows: Iterable[Sequence[Any]], width: int, shared: Sequence[int] = ()) -> Columns:
    """The rows turned into one array per column, which is how a statement takes many rows.

    A column without any value is sent as NULL: `unnest` fills it up. The first one, whose elements
    a statement may count, is sent as an empty array where there are no rows. Of the columns
    `shared`, one that has the same value in all rows is sent as that value alone. Each array costs
    the driver a microsecond, and each element half of one.
    """
    found: list[Sequence[Any]] = list(zip(*rows, strict=True))
    if not found:
        return [(), *[None] * (width - 1)]
    for number in shared:
        found[number] = once(found[number])
    return [c if c[0] is not None or c.count(None) < len(c) else None for c in found]


def once(column: Sequence[Any]) -> Sequence[Any]:
    """The column, or its first value alone if all are the same."""
    if len(column) < 2 or column[0] is None or column.count(column[0]) < len(column):
        return column
    return column[:1]


def without_ids(found: Columns, known: Sequence[Any] | None) -> Columns:
    """The columns of rows, with NULL for their first if those are the ids that are `known` in the
    same statement, one each and in their order."""
    return [None, *found[1:]] if found[0] and found[0] == known else found
