"""Reads what a doctor wants to know of a Postgres server."""

from typing import Any

from msgspec.structs import replace

from flowfabric.core.base.errors import Locked, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.store.clock import SystemClock
from flowfabric.store.copy import read_promotion
from flowfabric.store.health import NOT_SWEPT, Examination, Upkeep, judge
from flowfabric.store.layout import schema_snapshot
from flowfabric.store.postgres.checks import (
    CHECKS,
    LockWait,
    PostgresFacts,
    SnapshotHolder,
    TableHealth,
)
from flowfabric.store.postgres.schema import schema_text
from flowfabric.store.postgres.session import PostgresSession
from flowfabric.store.postgres.store import PostgresStore, open_postgres
from flowfabric.store.sql import load_migrations

SAMPLES = 3


async def examine(url: str) -> Examination:
    store = await open_postgres(url)
    try:
        facts = await read_facts(store.session)
    finally:
        await store.close()
    found = judge(store.session.dialer.address.shown, "postgres", facts, CHECKS)
    return replace(found, settings=facts.settings)


async def read_facts(session: PostgresSession) -> PostgresFacts:
    """Everything but the first answer may be of any release."""
    if not (await _rows(session, "has_version"))[0][0]:
        raise Unavailable(
            f"{session.dialer.address.shown} has no FlowFabric tables; run `flowfabric migrate`"
        )
    ((standby, queue_usage, frozen_age, database, role),) = await _rows(session, "server_state")
    settings = await _rows(session, "server_settings")
    address = session.dialer.address
    found = await _rows(session, "table_health")
    expected = schema_snapshot().replace("flowfabric.", f"{session.schema}.")
    upkeep, described = await _upkeep(session), await _described(session)
    return PostgresFacts(
        schema=session.schema,
        upkeep=upkeep or _unknown(session),
        expected=tuple(expected.splitlines()),
        lines=tuple((described or expected).splitlines()),
        locked=upkeep is None or described is None,
        invalid=tuple(name for (name,) in await _rows(session, "invalid_indexes")),
        settings={name: value for name, value, _ in settings},
        sources={name: source for name, _, source in settings},
        database=database,
        role=role,
        tables=tuple(TableHealth(*row) for row in found),
        holders=tuple(SnapshotHolder(*row) for row in await _rows(session, "snapshot_holders")),
        waits=tuple(LockWait(*row) for row in await _rows(session, "lock_waits")),
        clients=tuple((name, count) for name, count in await _rows(session, "server_clients")),
        standby=standby,
        queue_usage=queue_usage,
        frozen_age=frozen_age,
        pooled=session.dialer.pooled,
        pooler_named=address.pooler is not None,
        listens=address.listen is not None,
        clock_offset=await _clock_offset(session),
    )


async def _upkeep(session: PostgresSession) -> Upkeep | None:
    """None if the tables are locked. A doctor who waits for a lock is of no use."""
    known = _unknown(session)
    link = session.load  # its statements wait for locks, but not for long
    try:
        ((version,),) = await session.fetch(link, "schema_version") or ((0,),)
        ((expired, overdue, duty),) = await session.fetch(link, "upkeep", known.now - NOT_SWEPT)
        promotion = await session.fetch(link, "promotion")
    except Locked:
        return None
    return replace(
        known,
        version=version,
        promotion=read_promotion(bytes(promotion[0][0])) if promotion else None,
        duty_until=None if duty is None else Millis(duty),
        expired_leases=expired,
        overdue=overdue,
    )


def _unknown(session: PostgresSession) -> Upkeep:
    known = len(load_migrations("postgres"))
    return Upkeep(now=session.clock.now(), version=known, known_version=known)


async def _described(session: PostgresSession) -> str | None:
    """The schema; None if it is locked, which keeps the server from describing its indexes."""
    try:
        return await schema_text(session, session.load)
    except Locked:
        return None


async def _clock_offset(session: PostgresSession) -> float:
    """How far the clocks are apart at least: half a round trip is not known."""
    machine, apart = SystemClock(), list[float]()
    for _ in range(SAMPLES):
        sent = machine.now() / 1000
        ((theirs,),) = await _rows(session, "moment")
        received = (machine.now() + 1) / 1000
        apart.append(theirs - received if theirs > received else min(0.0, theirs - sent))
    return min(apart, key=abs)


async def _rows(session: PostgresSession, name: str, *values: object) -> list[Any]:
    return await session.fetch(session.report, name, *values)


async def cut_connections(store: PostgresStore, url: str) -> int:
    """Ends the sessions of this store on the server, as a restart of it would; returns how many.
    Behind a pooler they are not its own, and none is ended."""
    wires = store.session.wires.standing
    served = [wire.served for wire in wires if wire.served is not None]
    if store.session.dialer.pooled or not served:
        return 0
    other = await open_postgres(url, connections=1)
    try:
        session = other.session
        pids, since = [each.pid for each in served], [each.since for each in served]
        ended = await session.fetch(session.report, "ended_sessions", pids, since)
    finally:
        await other.close()
    return sum(bool(row[1]) for row in ended)
