"""A SQLite file as one side of a copy."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

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
    refuse_memory,
    size_of,
    write_promotion,
)
from flowfabric.store.foreign import sqlite_identity
from flowfabric.store.layout import Row, TableLayout, check_covered, load_layout
from flowfabric.store.open import sqlite_path
from flowfabric.store.sql import load_queries
from flowfabric.store.sqlite.connection import MEMORY, connect, translate
from flowfabric.store.sqlite.runner import patiently
from flowfabric.store.sqlite.store import SqliteStore, open_sqlite

T = TypeVar("T")

CHECKPOINT_EVERY = 16
"""Pages after which the log is copied into the file."""


class SqliteSide:
    """Implements `store.copy.Side`. Its own connection does the work, in a thread."""

    def __init__(self, store: SqliteStore, connection: sqlite3.Connection) -> None:
        self.shown = store.path
        self.identity = sqlite_identity(store.path)
        self._store = store
        self._connection = connection
        self._queries = load_queries("sqlite")
        self._pages = 0

    def now(self) -> Millis:
        return self._store.clock.now()

    async def secret(self) -> bytes:
        return (await self._store.identity()).secret

    async def usage(self) -> Usage:
        return await self._do(self._usage)

    async def quieten(self) -> None:
        def begin() -> None:
            patiently(lambda: self._connection.execute("begin immediate"))
            check_covered(self._rows("found_columns"), self.shown)

        await self._do(begin)

    async def count(self, table: TableLayout) -> int:
        ((count,),) = await self._do(lambda: self._rows(self._filled("row_count", table)))
        return int(count)

    async def is_empty(self, table: TableLayout) -> bool:
        return not await self._do(lambda: self._rows(self._filled("any_row", table)))

    async def pages(self, table: TableLayout, after: Row = ()) -> AsyncIterator[Sequence[Row]]:
        name = "rows_after" if after else "all_rows"
        cursor = await self._do(lambda: self._execute(self._filled(name, table), after))
        try:
            while page := await self._do(lambda: _page(cursor)):
                yield page
        finally:
            cursor.close()

    async def promotion(self) -> Promotion | None:
        found = await self._do(self._promotion)
        return None if found is None else read_promotion(found)

    async def clear(self, tables: Sequence[TableLayout], promotion: Promotion) -> None:
        def work() -> None:
            with self._transaction():
                check_covered(self._rows("found_columns"), self.shown)
                for table in tables:
                    self._execute(self._filled("emptied_table", table))
                self._execute("kept_version")
                self._execute("new_promotion", (write_promotion(promotion),))

        await self._do(work)

    async def write(
        self, table: TableLayout, rows: Sequence[Row], before: Promotion, after: Promotion
    ) -> None:
        def work() -> None:
            with self._transaction():
                check_progress(self._promotion(), before)
                self._connection.executemany(self._filled("new_rows", table), rows)
                self._execute("new_promotion", (write_promotion(after),))
            self._pages += 1
            if not self._pages % CHECKPOINT_EVERY:
                self._connection.execute("pragma wal_checkpoint(passive)").fetchone()

        await self._do(work)

    async def numbers(self) -> Mapping[str, int]:
        def work() -> dict[str, int]:
            found = {}
            for table in _numbered():
                rows = self._rows("last_number", {"table": table})
                found[table] = int(rows[0][0]) if rows else 0
            return found

        return await self._do(work)

    async def finish(self, numbers: Mapping[str, int], before: Promotion, after: Promotion) -> None:
        def work() -> None:
            with self._transaction():
                check_progress(self._promotion(), before)
                for table in _numbered():
                    value = {"table": table, "number": numbers.get(table, 0)}
                    if not self._execute("later_number", value).rowcount:
                        self._execute("new_number", value)
                self._execute("new_promotion", (write_promotion(after),))
            self._connection.execute("pragma optimize")

        await self._do(work)

    async def close(self) -> None:
        def work() -> None:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            self._connection.close()

        await self._do(work)
        await self._store.close()

    # -- in the thread

    def _usage(self) -> Usage:
        now = (self.now(),)
        ((leases, until),) = self._rows("live_leases", now)
        ((duty,),) = self._rows("live_duties", now)
        workers = tuple(name for (name,) in self._rows("live_workers", now))
        return Usage(leases, until, workers, duty)

    def _promotion(self) -> bytes | None:
        rows = self._rows("promotion")
        return bytes(rows[0][0]) if rows else None

    def _filled(self, name: str, table: TableLayout) -> str:
        return self._queries[name].format(
            table=table.name,
            columns=column_list(table.columns),
            key=key_list(table),
            marks=", ".join("?" * len(table.columns if name == "new_rows" else table.key)),
        )

    def _execute(self, query: str, values: Any = ()) -> sqlite3.Cursor:
        """`query` is the name of one, or a text that was filled in."""
        return self._connection.execute(self._queries.get(query, query), values)

    def _rows(self, query: str, values: Any = ()) -> list[tuple[Any, ...]]:
        return self._execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        patiently(lambda: self._connection.execute("begin immediate"))
        try:
            yield
            self._connection.execute("commit")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            raise

    async def _do(self, work: Callable[[], T]) -> T:
        def guarded() -> T:
            try:
                return work()
            except Exception as error:
                raise translate(error, self.shown) from error

        return await asyncio.to_thread(guarded)


async def open_side(url: str) -> SqliteSide:
    """The file with its schema up to date."""
    path = sqlite_path(url)
    refuse_memory(path)
    store = await open_sqlite(path)
    try:
        await store.migrate()
        connection = patiently(lambda: connect(store.path, "FULL"))
    except BaseException:
        await store.close()
        raise
    return SqliteSide(store, connection)


async def open_fresh() -> SqliteSide:
    """A store that was just made, for what every store has from its first moment on."""
    store = await open_sqlite(MEMORY, inline=True)
    await store.migrate()
    return SqliteSide(store, store.writer.session.connection)


def _page(cursor: sqlite3.Cursor) -> list[Row]:
    page: list[Row] = []
    size = 0
    for row in cursor:
        page.append(row)
        size += size_of(row)
        if len(page) >= PAGE_ROWS or size >= PAGE_BYTES:
            break
    return page


def _numbered() -> list[str]:
    return [t.name for t in load_layout() if any(column.identity for column in t.columns)]
