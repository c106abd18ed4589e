"""The schema: brought up to date, described, and what is kept once per database."""

import re
import secrets
from functools import partial

from flowfabric.core.base.errors import Corruption, Invalid, SchemaTooNew
from flowfabric.store import clock as clocks
from flowfabric.store.copy import secret_in
from flowfabric.store.foreign import postgres_identity
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.link import Link
from flowfabric.store.postgres.session import PostgresSession
from flowfabric.store.queries import StoreIdentity
from flowfabric.store.sql import load_migrations

MIGRATION_SECONDS = 3600.0
SEEN_SECONDS = 2.0
"""How old what a glance has seen of the clock's correction may be."""
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,55}")


def check_schema(schema: str) -> str:
    """The name goes into every statement, so it must be a plain one."""
    if _NAME.fullmatch(schema) is None:
        raise Invalid(f"{schema[:80]!r} is not the name of a schema: a-z, 0-9 and _")
    return schema


async def migrate(session: PostgresSession) -> int:
    version = 0
    migrations = load_migrations("postgres", session.schema)
    while version < len(migrations):
        step = partial(_step, session, migrations)
        version = await session.sweep.run(step, limit=MIGRATION_SECONDS)
    return version


async def identity(session: PostgresSession) -> StoreIdentity:
    name = postgres_identity(await session.fetch(session.sweep, "database_identity"))
    return StoreIdentity(name, await _secret(session))


async def _secret(session: PostgresSession) -> bytes:
    known = secret_in(await session.fetch(session.sweep, "secret"))
    if known is not None:
        return known
    await session.fetch(session.sweep, "new_secret", secrets.token_bytes(32))
    made = secret_in(await session.fetch(session.sweep, "secret"))
    if made is None:
        raise Corruption("the key that signs handles was deleted")
    return made


async def keep_time(session: PostgresSession) -> None:
    clock = session.clock
    if clock.wants_keeping:
        await clocks.keep_time(
            clock, partial(_correction, session), partial(_put_correction, session)
        )


async def _correction(session: PostgresSession) -> bytes | None:
    """The one that the last glance has seen, if that was just now; once."""
    seen, at = session.learned.correction
    session.learned.correction = (None, float("-inf"))
    if clocks.OffsetClock.steady() - at < SEEN_SECONDS:
        return seen
    rows = await session.fetch(session.sweep, "clock_correction")
    return bytes(rows[0][0]) if rows else None


async def _put_correction(session: PostgresSession, value: bytes, expected: bytes | None) -> bool:
    return bool(await session.fetch(session.sweep, "new_clock_correction", value, expected))


async def schema_text(session: PostgresSession, link: Link | None = None) -> str:
    """Every table, constraint, index and view, one line each."""
    rows = await session.fetch(link or session.report, "schema_lines")
    return "".join(f"{line}\n" for (line,) in rows)


async def _step(
    session: PostgresSession, migrations: tuple[str, ...], connection: Connection, repeated: bool
) -> int:
    """Applies the next migration, if any; returns the version after it."""
    queries = session.queries
    async with connection.transaction():
        await connection.execute(queries["unbounded"])
        await connection.execute(queries["schema_lock"])
        version = await _version(session, connection)
        if version > len(migrations):
            raise SchemaTooNew(
                f"the database has version {version}, this release knows {len(migrations)}"
            )
        if version == len(migrations):
            return version
        if version == 0 and not await connection.fetchval(queries["has_schema"]):
            await connection.execute(queries["new_schema"])
        await connection.execute(migrations[version])
        await connection.execute(queries["new_version"], str(version + 1).encode())
    return version + 1


async def _version(session: PostgresSession, connection: Connection) -> int:
    queries = session.queries
    if not await connection.fetchval(queries["has_version"]):
        return 0
    return int(await connection.fetchval(queries["schema_version"]) or 0)
