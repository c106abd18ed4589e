"""Writing on a connection that belongs to the application, inside its own transaction.

Supports asyncpg, psycopg 3 (sync and async), SQLAlchemy 2 (connection or session, sync and async),
sqlite3, and the connections of Django (psycopg 3 or sqlite3 inside). Nothing is committed here: the
rows exist if and only if the application commits. A connection in autocommit mode is refused.
"""

import inspect
import os
import re
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import Invalid, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.store.queries import InboxEntry
from flowfabric.store.sql import load_queries

T = TypeVar("T")

_MAKERS = frozenset(
    {
        "Pool",
        "ConnectionPool",
        "AsyncConnectionPool",
        "Engine",
        "AsyncEngine",
        "sessionmaker",
        "async_sessionmaker",
    }
)
"""Classes of asyncpg, psycopg_pool and SQLAlchemy that hand out connections or sessions."""

MEMORY = ":memory:"

_NUMBERED = re.compile(r"\$(\d+)")


class TransactionEnding(Struct, frozen=True):
    """The end of an execution in the application's transaction, under its fence. Its `flow` is owed
    the ending, and so are the runs it is `awaited_by`."""

    uuid: UUID
    lease_id: UUID
    epoch: int
    version: int
    now: Millis
    result: bytes | None
    trim_at: Millis | None
    flow: UUID | None = None
    awaited_by: tuple[UUID, ...] = ()


class Foreign:
    """One connection of the application, from any supported library."""

    def __init__(self, connection: Any) -> None:
        self._errors: AbstractContextManager[Any] = nullcontext()
        if _library(connection) == "django":
            connection, self._errors = _inside_django(connection), connection.wrap_database_errors
        self._connection = _one_connection(connection)
        self._library = _library(connection)
        self.dialect = _dialect(connection, self._library)
        self._queries = load_queries(self.dialect)
        if _commits_by_itself(connection, self._library):
            raise Invalid("the connection has no open transaction; begin one first")

    async def check(self, expected: str | None) -> None:
        """Refuses a database without FlowFabric's tables, or one that belongs to another store than
        `expected` (None: any). It reads only the catalog, so that a refusal does not abort the
        application's transaction."""
        rows = await self.run("database_identity", {})
        if self.dialect == "sqlite":
            ((shown, migrated),) = rows
            found = sqlite_identity(shown)
        else:
            ((_, migrated, shown),) = rows
            found = postgres_identity(rows)
        named = f"the {self.dialect} database {shown or MEMORY} of this connection"
        if not migrated:
            raise Unavailable(f"{named} has no FlowFabric tables; run `flowfabric migrate` first")
        if expected is not None and found != expected:
            raise Invalid(f"{named} is not the database of this Fabric's runs")

    async def run(self, name: str, values: Mapping[str, Any]) -> list[Any]:
        """The rows of a named query. On Postgres the values are p1, p2, …"""
        with self._errors:
            return await self._run(name, values)

    async def _run(self, name: str, values: Mapping[str, Any]) -> list[Any]:
        query = self._queries[name]
        match self._library:
            case "asyncpg":
                found: list[Any] = await self._connection.fetch(query, *values.values())
                return found
            case "psycopg":
                cursor = self._connection.cursor(row_factory=_plain_rows())
                result = cursor.execute(_NUMBERED.sub(r"%(p\1)s", query), dict(values))
            case "sqlite3":
                cursor = self._connection.cursor()
                cursor.row_factory = None
                return list(cursor.execute(query, dict(values)).fetchall())
            case _:
                result = self._connection.execute(_text(query), dict(values))
        result = await result if inspect.isawaitable(result) else result
        return await _rows(result)


def sqlite_identity(path: str) -> str:
    """The identity of a database file, or of a connection's private in-memory database."""
    return f"sqlite {os.path.realpath(path)}" if path else f"sqlite {MEMORY}"


def postgres_identity(rows: list[Any]) -> str:
    """The identity of the database that answered `database_identity`."""
    ((database, table, _),) = rows
    return f"postgres {database} {table}"


async def check_database(connection: Any, expected: str | None) -> None:
    """Like `Foreign.check`."""
    await Foreign(connection).check(expected)


async def put_in_inbox(
    connection: Any, entry: InboxEntry, key: str | None, key_until: Millis
) -> tuple[UUID, str]:
    """Writes a submission to the inbox; returns the id and lane of the run, or of the earlier run
    with that key."""
    foreign = Foreign(connection)
    if foreign.dialect == "sqlite":
        return await _put_in_inbox_sqlite(foreign, entry, key, key_until)
    values = (
        entry.uuid,
        entry.at,
        entry.kind,
        entry.namespace,
        entry.lane,
        key,
        key_until,
        entry.options,
        entry.payload,
    )
    ((id, lane),) = await foreign.run("arrived", _numbered(values))
    return UUID(str(id)), lane


async def complete(connection: Any, ending: TransactionEnding) -> bool:
    """Ends an execution in success if its fence is current; False otherwise."""
    foreign = Foreign(connection)
    if foreign.dialect == "sqlite":
        return await _complete_sqlite(foreign, ending)
    values = (
        ending.uuid,
        ending.epoch,
        ending.lease_id,
        ending.version,
        ending.now,
        ending.result,
        ending.trim_at,
        ending.flow,
        list(ending.awaited_by),
    )
    ((count,),) = await foreign.run("completed_here", _numbered(values))
    return bool(count)


def run_sync(work: Coroutine[Any, Any, T], connection: Any) -> T:
    """Runs `put_in_inbox` or `complete` on a blocking connection, in the caller's thread: the
    coroutine never suspends."""
    try:
        _check_blocking(connection)
        work.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    finally:
        work.close()
    raise Invalid("this connection is asynchronous; await the call instead")


def _check_blocking(connection: Any) -> None:
    asynchronous = inspect.iscoroutinefunction(getattr(connection, "execute", None))
    if asynchronous or _library(connection) == "asyncpg":
        raise Invalid("this connection needs an event loop: await the call in a coroutine instead")


async def _put_in_inbox_sqlite(
    foreign: Foreign, entry: InboxEntry, key: str | None, key_until: Millis
) -> tuple[UUID, str]:
    if key is not None:
        held = {"namespace": entry.namespace, "key": key}
        taken = {**held, "id": entry.uuid.bytes, "until": key_until, "at": entry.at}
        await foreign.run("arrived_key", taken)
        ((id, lane),) = await foreign.run("arrived_holder", held)
        if bytes(id) != entry.uuid.bytes:
            return UUID(bytes=bytes(id)), lane or entry.lane
    values = {
        "id": entry.uuid.bytes,
        "at": entry.at,
        "kind": entry.kind,
        "namespace": entry.namespace,
        "lane": entry.lane,
        "options": entry.options,
        "payload": entry.payload,
    }
    await foreign.run("arrived", values)
    return entry.uuid, entry.lane


async def _complete_sqlite(foreign: Foreign, ending: TransactionEnding) -> bool:
    values = {
        "id": ending.uuid.bytes,
        "epoch": ending.epoch,
        "claim": ending.lease_id.bytes,
        "version": ending.version,
        "now": ending.now,
        "result": ending.result,
        "trim_at": ending.trim_at,
    }
    if not await foreign.run("completed_here", values):
        return False
    await foreign.run("completed_event", {"id": values["id"], "now": ending.now})
    await foreign.run("completed_lease", {"id": values["id"]})
    await foreign.run("completed_deadline", {"id": values["id"]})
    if ending.flow is not None:
        await foreign.run("completed_outbox", {"id": values["id"], "flow": ending.flow.bytes})
    for run in ending.awaited_by:
        await foreign.run("completed_awaited", {"id": values["id"], "run": run.bytes})
    return True


def _numbered(values: tuple[Any, ...]) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(values, 1)}


def _plain_rows() -> Any:
    from psycopg.rows import tuple_row

    return tuple_row  # independent of the application's row factory


def _text(query: str) -> Any:
    from sqlalchemy import text

    return text(_NUMBERED.sub(r":p\1", query))


async def _rows(result: Any) -> list[Any]:
    if getattr(result, "returns_rows", True) is False or getattr(result, "description", ()) is None:
        return []
    rows = result.fetchall()
    rows = await rows if inspect.isawaitable(rows) else rows
    return list(rows)


def _library(connection: Any) -> str:
    for base in type(connection).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("asyncpg", "django", "psycopg", "sqlalchemy", "sqlite3"):
            return root
    raise Invalid(
        f"{type(connection).__name__} is not a connection of asyncpg, psycopg, SQLAlchemy, Django"
        " or sqlite3"
    )


def _inside_django(wrapper: Any) -> Any:
    """The driver's connection in `django.db.connection`, with Django's own checks of its thread and
    of its transaction."""
    vendor = getattr(wrapper, "vendor", None)
    if vendor is None:
        given = type(wrapper).__name__
        raise Invalid(f"connection= got a {given}; give it one of django.db.connections")
    if vendor not in ("postgresql", "sqlite"):
        raise Invalid(f"runs are kept in SQLite or Postgres, not in {vendor}")
    wrapper.ensure_connection()
    wrapper.validate_thread_sharing()
    wrapper.validate_no_broken_transaction()
    if not wrapper.in_atomic_block and wrapper.get_autocommit():
        raise Invalid(
            f"Django's connection {wrapper.alias!r} has no open transaction; begin one first with"
            " transaction.atomic()"
        )
    if type(wrapper.connection).__module__.partition(".")[0] == "psycopg2":
        raise Invalid("Django uses psycopg2 here; FlowFabric needs psycopg 3: pip install psycopg")
    return wrapper.connection


def _one_connection(connection: Any) -> Any:
    """Refuses pools, engines, session makers, cursors and transactions: a transaction belongs to
    one connection."""
    names = {base.__name__ for base in type(connection).__mro__}
    if any(name.endswith(("Cursor", "Transaction")) for name in names):
        raise Invalid(f"connection= got a {type(connection).__name__}: give its connection")
    if names & _MAKERS:
        raise Invalid(
            f"connection= got a {type(connection).__name__}, which hands out connections; take one"
            " from it, begin a transaction there, and give that one"
        )
    return connection


def _dialect(connection: Any, library: str) -> str:
    if library == "sqlite3":
        return "sqlite"
    if library != "sqlalchemy":
        return "postgres"
    bind = getattr(connection, "dialect", None) or connection.get_bind().dialect
    if bind.name not in ("sqlite", "postgresql"):
        raise Invalid(f"runs are kept in SQLite or Postgres, not in {bind.name}")
    return "sqlite" if bind.name == "sqlite" else "postgres"


def _commits_by_itself(connection: Any, library: str) -> bool:
    """Whether a write would be committed at once."""
    match library:
        case "asyncpg":
            return not connection.is_in_transaction()
        case "psycopg":
            return bool(connection.autocommit) and connection.info.transaction_status == 0
        case "sqlite3" if not connection.in_transaction:
            automatic = getattr(connection, "autocommit", -1)  # since Python 3.12
            return automatic is True or (automatic == -1 and connection.isolation_level is None)
        case _:
            return False
