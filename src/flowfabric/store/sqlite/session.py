"""A connection with the named queries and the interned names: what every operation works with."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any
from uuid import UUID

from flowfabric.core.base import ids
from flowfabric.core.execution.model import Route, WorkerIdentity
from flowfabric.store.rows import execution as rows
from flowfabric.store.rows.execution import Names
from flowfabric.store.sql import RecordQueries, load_queries

Values = Sequence[Any] | Mapping[str, Any]

_WIDTHS = (64, 32, 16, 8, 4, 2, 1)
_MANY = 8
_BYTES = {bytes}


class NameRegistry:
    """The routes and workers known to this process, shared by its connections.

    A number belongs to a name for ever, but only once its transaction has committed.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.routes_seen = 0
        self.workers_seen = 0
        self.suspects_seen = True
        self.lanes_seen = False
        self._fresh_routes: list[int] = []
        self._fresh_workers: list[int] = []

    def add_fresh_route(self, number: int, route: Route) -> None:
        self.names.add_route(number, route)
        self._fresh_routes.append(number)

    def add_fresh_worker(self, number: int, worker: WorkerIdentity) -> None:
        self.names.add_worker(number, worker)
        self._fresh_workers.append(number)

    def keep(self) -> None:
        """The transaction has committed."""
        self._fresh_routes.clear()
        self._fresh_workers.clear()

    def forget(self) -> None:
        """The transaction is about to be rolled back; its numbers may go to other names."""
        names = self.names
        for number in self._fresh_routes:
            del names.route_numbers[names.routes.pop(number)]
            self.routes_seen = min(self.routes_seen, number - 1)
        for number in self._fresh_workers:
            del names.worker_numbers[names.workers.pop(number)]
            self.workers_seen = min(self.workers_seen, number - 1)
        self.keep()


class SqliteSession:
    """One connection, used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, registry: NameRegistry) -> None:
        self.connection = connection
        self.registry = registry
        self.names = registry.names
        self._queries = load_queries("sqlite")
        self.records = _record_queries()

    def execute(self, name: str, values: Values = ()) -> sqlite3.Cursor:
        return self.connection.execute(self._queries[name], values)

    def rows(self, name: str, values: Values = ()) -> list[tuple[Any, ...]]:
        return self.execute(name, values).fetchall()

    def row(self, name: str, values: Values = ()) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self.execute(name, values).fetchone()
        return row

    def insert(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Runs a query that ends in `values (?, …)` for many rows, few statements."""
        if not rows:
            return
        query, start, count = self._queries[name], 0, len(rows)
        nulls, values = _bindable(rows)
        each = len(values) // count
        for width in _WIDTHS:
            while count - start >= width:
                part = values[start * each : (start + width) * each]
                self.connection.execute(_wide_values(query, width, nulls), part)
                start += width

    def given(self, name: str, rows: Sequence[Sequence[Any]], *after: object) -> sqlite3.Cursor:
        """Runs a query that reads `values (?, …)` for many rows; `after` are its other values."""
        return self.given_to(self._queries[name], rows, *after)

    def given_to(self, query: str, rows: Sequence[Sequence[Any]], *after: object) -> sqlite3.Cursor:
        """As `given`, for the text of a query."""
        nulls, values = _bindable(rows)
        width = _width(len(rows))
        last = values[len(values) - len(values) // len(rows) :]
        wide = _wide_values(query, width, nulls)
        return self.connection.execute(wide, [*values, *last * (width - len(rows)), *after])

    def each(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(self._queries[name], rows)

    def among(self, name: str, keys: Sequence[bytes | str], *before: object) -> sqlite3.Cursor:
        """Runs a query that ends in `in (?)` for many keys; `before` are its other values."""
        bound = _quick(keys)
        width = _width(len(bound))
        filling = [bound[-1]] * (width - len(bound))
        query = _wide_keys(self._queries[name], width)
        return self.connection.execute(query, (*before, *bound, *filling))

    # -- names

    def learn(self) -> None:
        """Reads the names other processes have interned since."""
        self.learn_routes()
        registry = self.registry
        for number, id, instance in self.rows("workers_after", (registry.workers_seen,)):
            self.names.add_worker(number, WorkerIdentity(id, instance))
            registry.workers_seen = number

    def learn_routes(self) -> None:
        registry = self.registry
        after = (registry.routes_seen,)
        for number, namespace, lane, kind, tokens in self.rows("routes_after", after):
            capabilities = tuple(tokens.split(",")) if tokens else ()
            self.names.add_route(number, Route(namespace, lane, kind, capabilities))
            registry.routes_seen = number

    def intern_route(self, route: Route) -> int:
        """The number of a route, given now if it has none. Only inside a writing transaction."""
        number = self.names.route_numbers.get(route)
        return self._intern_route(route) if number is None else number

    def intern_workers(self, workers: Iterable[WorkerIdentity]) -> None:
        for worker in workers:
            if worker not in self.names.worker_numbers:
                self._intern_worker(worker)

    def _intern_route(self, route: Route) -> int:
        self.learn_routes()
        if (number := self.names.route_numbers.get(route)) is not None:
            return number
        values = {
            "namespace": route.namespace,
            "lane": route.lane,
            "capabilities": ",".join(route.capabilities),
            "kind": route.kind,
        }
        number = self.execute("new_route", values).lastrowid
        assert number is not None  # noqa: S101 - an insert has a row
        self.registry.add_fresh_route(number, route)
        return number

    def _intern_worker(self, worker: WorkerIdentity) -> None:
        self.learn()
        if worker in self.names.worker_numbers:
            return
        values = {"id": worker.id, "instance": worker.instance}
        number = self.execute("new_worker", values).lastrowid
        assert number is not None  # noqa: S101 - an insert has a row
        self.registry.add_fresh_worker(number, worker)


@cache
def _record_queries() -> RecordQueries:
    return RecordQueries(load_queries("sqlite"), "?")


id_bytes: rows.Key = attrgetter("bytes")
"""An id as SQLite keeps it."""

read_uuid = ids.read_uuid
"""An id that SQLite kept."""


def plain(found: Iterable[rows.Row]) -> list[rows.Row]:
    """Rows with ids as SQLite keeps them."""
    return [
        tuple(value.bytes if isinstance(value, UUID) else value for value in row) for row in found
    ]


def keyed(id: bytes, row: rows.Row) -> rows.Row:
    """A row whose only key is its first column."""
    return (id, *row[1:])


def _width(count: int) -> int:
    """What is asked for may be asked for twice, so that one statement serves many lengths."""
    most: int = 1 << (count - 1).bit_length()
    return most * 3 // 4 if count <= most * 3 // 4 else most


def _bindable(rows: Sequence[Sequence[Any]]) -> tuple[tuple[bool, ...], list[Any]]:
    """Which columns are NULL in all rows, and the values of the others row by row, as they bind
    fastest.

    The driver looks for an adapter for every None and every `bytes`, which takes 0.35 and 0.45 µs;
    an int takes 0.03 µs and a `bytearray` 0.1 µs. Rows have up to five of each.
    """
    if len(rows) < _MANY:
        return (), list(chain.from_iterable(rows))
    columns = list(zip(*rows, strict=True))
    nulls = tuple(column[0] is None and column.count(None) == len(rows) for column in columns)
    kept = [_quick(column) for column, null in zip(columns, nulls, strict=True) if not null]
    values: list[Any] = [None] * (len(rows) * len(kept))
    for place, column in enumerate(kept):
        values[place :: len(kept)] = column
    return nulls, values


def _quick(values: Sequence[Any]) -> Sequence[Any]:
    """The same values, as they bind fastest."""
    if type(values[0]) is bytes and set(map(type, values)) == _BYTES:
        return list(map(bytearray, values))
    return values


@lru_cache(maxsize=1024)
def _wide_values(query: str, width: int, nulls: tuple[bool, ...] = ()) -> str:
    """`values (?, ?)` becomes `values (?, ?), (?, ?)`, with `null` where `nulls` says so; what
    follows it stays."""
    before, word, rest = query.partition("values (")
    group, _, after = rest.partition(")")
    if any(nulls):
        parts = zip(group.split(", "), nulls, strict=True)
        group = ", ".join("null" if null else part for part, null in parts)
    return before + word[:-1] + ", ".join([f"({group})"] * width) + after


@lru_cache(maxsize=256)
def _wide_keys(query: str, width: int) -> str:
    return query.replace("in (?)", f"in ({', '.join('?' * width)})")
