"""The schema: brought up to date, described, and what is kept once per database."""

import re
import secrets
from functools import partial

from flowfabric.core.base.errors import Corruption, Invalid, SchemaTooNew
from flowfabric.store.clock import keep_time
from flowfabric.store.foreign import postgres_identity
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import Part
from flowfabric.store.sql import load_migrations

MIGRATION_SECONDS = 3600.0
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,55}")


def check_schema(schema: str) -> str:
    """The name goes into every statement, so it must be a plain one."""
    if _NAME.fullmatch(schema) is None:
        raise Invalid(f"{schema[:80]!r} is not the name of a schema: a-z, 0-9 and _")
    return schema


class Keeping(Part):
    async def migrate(self) -> int:
        version = 0
        migrations = load_migrations("postgres", self._session.schema)
        while version < len(migrations):
            step = partial(self._step, migrations)
            version = await self._session.sweep.run(step, limit=MIGRATION_SECONDS)
        return version

    async def secret(self) -> bytes:
        session = self._session
        fresh = secrets.token_bytes(32)
        await session.fetch(session.sweep, "new_secret", fresh)
        rows = await session.fetch(session.sweep, "secret")
        if not rows:
            raise Corruption("the key that signs handles was deleted")
        return bytes(rows[0][0])

    async def keep_time(self) -> None:
        clock = self._session.clock
        if clock.wants_keeping:
            await keep_time(clock, self._correction, self._put_correction)

    async def _correction(self) -> bytes | None:
        rows = await self._session.fetch(self._session.sweep, "clock_correction")
        return bytes(rows[0][0]) if rows else None

    async def _put_correction(self, value: bytes, expected: bytes | None) -> bool:
        session = self._session
        return bool(await session.fetch(session.sweep, "new_clock_correction", value, expected))

    async def identity(self) -> str:
        rows = await self._session.fetch(self._session.sweep, "database_identity")
        return postgres_identity(rows)

    async def schema_text(self) -> str:
        """Every table, constraint, index and view, one line each."""
        rows = await self._session.fetch(self._session.report, "schema_lines")
        return "".join(f"{line}\n" for (line,) in rows)

    async def _step(
        self, migrations: tuple[str, ...], connection: Connection, repeated: bool
    ) -> int:
        """Applies the next migration, if any; returns the version after it."""
        queries = self._session.queries
        async with connection.transaction():
            await connection.execute(queries["unbounded"])
            await connection.execute(queries["schema_lock"])
            version = await self._version(connection)
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

    async def _version(self, connection: Connection) -> int:
        queries = self._session.queries
        if not await connection.fetchval(queries["has_version"]):
            return 0
        return int(await connection.fetchval(queries["schema_version"]) or 0)
