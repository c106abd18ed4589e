"""A Postgres schema as one side of a copy."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.ids import read_uuid
from flowfabric.core.base.time import Millis
from flowfabric.store.copy import (
    PAGE_BYTES,
    PAGE_ROWS,
    Promotion,
    Usage,
    check_progress,
    column_list,
    key_list,
    read_promotion,
    size_of,
    write_promotion,
)
from flowfabric.store.foreign import postgres_identity
from flowfabric.store.layout import Row, TableLayout, check_covered, load_layout
from flowfabric.store.postgres.dialer import FREE, Connection
from flowfabric.store.postgres.faults import translate
from flowfabric.store.postgres.session import PostgresSession
from flowfabric.store.postgres.store import PostgresStore, open_postgres

T = TypeVar("T")

FEWEST, MOST = 32, 1024
"""Rows fetched at once: more of them while they are small."""
SMALL = 256 << 10
PATIENT_MILLIS = 10_000


class PostgresSide:
    """Implements `store.copy.Side`. Its own connection does the work."""

    def __init__(self, store: PostgresStore, connection: Connection, identity: str) -> None:
        self.shown = store.session.dialer.address.shown
        self.identity = identity
        self._store = store
        self._schema = store.session.schema
        self._queries = store.session.queries
        self._connection = connection

    def now(self) -> Millis:
        return self._store.clock.now()

    async def secret(self) -> bytes:
        return (await self._store.identity()).secret

    async def usage(self) -> Usage:
        now = self.now()
        ((leases, until),) = await self._rows("live_leases", now)
        ((duty,),) = await self._rows("live_duties", now)
        workers = tuple(name for (name,) in await self._rows("live_workers", now))
        return Usage(leases, until, workers, duty)

    async def quieten(self) -> None:
        with self._translated():
            await self._connection.transaction().start()
            names = ", ".join(f"{self._schema}.{table.name}" for table in load_layout())
            await self._connection.execute(self._queries["quiet_tables"].format(table=names))
            await self._connection.execute(self._queries["unbounded"])  # from here on
        check_covered(await self._columns(), self.shown)

    async def count(self, table: TableLayout) -> int:
        ((count,),) = await self._rows(self._filled("row_count", table))
        return int(count)

    async def is_empty(self, table: TableLayout) -> bool:
        return not await self._rows(self._filled("any_row", table))

    async def pages(self, table: TableLayout, after: Row = ()) -> AsyncIterator[Sequence[Row]]:
        types = {column.name: column.type for column in table.columns}
        values = [_given(value, types[name]) for name, value in zip(table.key, after, strict=False)]
        query = self._filled("rows_after" if after else "all_rows", table)
        plain = _Plain(table)
        async with self._connection.transaction():
            with self._translated():
                cursor = await self._connection.cursor(query, *values)
            page: list[Row] = []
            size, many = 0, FEWEST
            while True:
                with self._translated():
                    fetched = plain(await cursor.fetch(many))
                grown = sum(map(size_of, fetched))
                page, size = page + fetched, size + grown
                if page and (not fetched or len(page) >= PAGE_ROWS or size >= PAGE_BYTES):
                    yield page
                    page, size = [], 0
                if not fetched:
                    return
                many = min(MOST, many * 2) if grown < SMALL else max(FEWEST, many // 2)

    async def promotion(self) -> Promotion | None:
        rows = await self._rows("promotion")
        return read_promotion(bytes(rows[0][0])) if rows else None

    async def clear(self, tables: Sequence[TableLayout], promotion: Promotion) -> None:
        check_covered(await self._columns(), self.shown)

        async def work() -> None:
            for table in tables:
                await self._rows(self._filled("emptied_table", table))
            await self._rows("kept_version")
            await self._rows("new_promotion", write_promotion(promotion))

        await self._transaction(work)

    async def write(
        self, table: TableLayout, rows: Sequence[Row], before: Promotion, after: Promotion
    ) -> None:
        columns, records = _records(table, rows)

        async def work() -> None:
            await self._check(before)
            await self._connection.copy_records_to_table(
                table.name, schema_name=self._schema, columns=columns, records=records
            )
            await self._rows("new_promotion", write_promotion(after))

        await self._transaction(work)

    async def numbers(self) -> Mapping[str, int]:
        found = {}
        for table, column in _numbered():
            place = (f"{self._schema}.{table}", column)
            ((number,),) = await self._rows("last_number", *place)
            found[table] = int(number)
        return found

    async def finish(self, numbers: Mapping[str, int], before: Promotion, after: Promotion) -> None:
        async def work() -> None:
            await self._check(before)
            for table, column in _numbered():
                place = (f"{self._schema}.{table}", column)
                await self._rows("later_number", *place, numbers.get(table, 0))
            await self._rows("new_promotion", write_promotion(after))

        await self._transaction(work)
        for table in load_layout():
            await self._rows(self._filled("analyzed", table))

    async def close(self) -> None:
        self._connection.terminate()  # what it has locked is free
        await self._store.close()

    # -- statements

    async def _check(self, expected: Promotion) -> None:
        rows = await self._rows("locked_promotion")
        check_progress(bytes(rows[0][0]) if rows else None, expected)

    async def _columns(self) -> list[tuple[str, str]]:
        return [(table, column) for table, column in await self._rows("found_columns")]

    def _filled(self, name: str, table: TableLayout) -> str:
        return self._queries[name].format(
            "",  # `$1` and on stand in the text of no query that is filled in
            table=f"{self._schema}.{table.name}",
            columns=column_list(table.columns),
            key=key_list(table),
            marks=", ".join(f"${n}" for n in range(1, len(table.key) + 1)),
        )

    async def _rows(self, query: str, *values: object) -> list[Any]:
        """`query` is the name of one, or a text that was filled in."""
        with self._translated():
            return await self._connection.fetch(self._queries.get(query, query), *values)

    async def _transaction(self, work: Callable[[], Awaitable[T]]) -> T:
        with self._translated():
            async with self._connection.transaction():
                return await work()

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self._store.session)


async def open_side(url: str) -> PostgresSide:
    """The schema, up to date."""
    store = await open_postgres(url)
    try:
        await store.migrate()
        session = store.session
        identity = postgres_identity(await session.fetch(session.sweep, "database_identity"))
        with translated(session):
            return PostgresSide(store, await _dial(session), identity)
    except BaseException:
        await store.close()
        raise


async def _dial(session: PostgresSession) -> Connection:
    connection = await session.dialer.dial(FREE)
    # The other side may take long between two statements.
    await connection.execute("set idle_in_transaction_session_timeout = 0")
    await connection.execute("set statement_timeout = 0")
    await connection.execute(f"set lock_timeout = {PATIENT_MILLIS}")
    return connection


@contextmanager
def translated(session: PostgresSession) -> Iterator[None]:
    """Errors of the driver become those of the engine."""
    try:
        yield
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise translate(error, session.dialer.address) from error


class _Plain:
    """Makes rows of a table plain: the same values as SQLite gives them."""

    def __init__(self, table: TableLayout) -> None:
        self._changed = [
            (number, _bytes_of if column.type == "uuid" else int)
            for number, column in enumerate(table.columns)
            if column.type in ("uuid", "boolean")
        ]

    def __call__(self, records: Sequence[Any]) -> list[Row]:
        return [self._row(record) for record in records]

    def _row(self, record: Any) -> Row:
        row = list(record)
        for number, change in self._changed:
            if row[number] is not None:
                row[number] = change(row[number])
        return tuple(row)


def _bytes_of(value: UUID) -> bytes:
    return value.bytes


def _given(value: Any, type: str) -> Any:
    """A plain value as the driver wants it."""
    if value is None:
        return None
    return read_uuid(value) if type == "uuid" else bool(value) if type == "boolean" else value


def _records(table: TableLayout, rows: Sequence[Row]) -> tuple[list[str], list[Row]]:
    """The columns and rows as they are copied into the server."""
    names = [column.name for column in table.columns]
    changed = [
        (number, column.type)
        for number, column in enumerate(table.columns)
        if column.type in ("uuid", "boolean")
    ]
    records = []
    for row in rows:
        record = list(row)
        for number, type in changed:
            try:
                record[number] = _given(record[number], type)
            except (msgspec.MsgspecError, TypeError) as error:
                key = table.key_of(row)
                raise Corruption(f"{table.name} {key}: {names[number]} is not a {type}") from error
        if table.name == "flow":
            record.append(UUID(bytes=secrets.token_bytes(16)))
        records.append(tuple(record))
    return [*names, "stamp"] if table.name == "flow" else names, records


def _numbered() -> list[tuple[str, str]]:
    return [(t.name, c.name) for t in load_layout() for c in t.columns if c.identity]
