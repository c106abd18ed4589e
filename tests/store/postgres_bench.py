"""What tests of the Postgres store share: a fresh store, a clock that stands still, short words.

Executions are made by the rules of the core, never by hand.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg

from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt as attempts
from flowfabric.core.execution import operator
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Snapshot, WorkerIdentity
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.submission import Creation, Submission, create
from flowfabric.store.clock import ManualClock
from flowfabric.store.postgres import PostgresStore, open_postgres
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.link import Link
from flowfabric.store.postgres.session import _certain
from flowfabric.store.queries import ClaimCall, EventQuery, Progress, Renewal, SideWrite
from flowfabric.store.sql import load_queries
from tests.kit.snapshots import after, lease_of, owner_of

W1 = WorkerIdentity("w1", "w1-a")
W2 = WorkerIdentity("w2", "w2-a")
TTL = Millis(30_000)
OPERATOR = Owner(source="operator_override")
KEPT_AN_HOUR = {"stream_policy": {"retention_ttl_ms": 3_600_000}}

_numbers = itertools.count(1)


class Bench:
    """One store and what a test does with it."""

    def __init__(self, store: PostgresStore, clock: ManualClock, url: str) -> None:
        self.store = store
        self.clock = clock
        self.url = url
        self._raw: list[Connection] = []
        self._stores = [store]

    @property
    def now(self) -> Millis:
        return self.clock.now()

    def fresh(self) -> UUID:
        return new_uuid7(self.now, next(_numbers) << 30)

    def creation(self, kind: str = "job", **members: Any) -> Creation:
        return create(Submission(kind=kind, **members), self.fresh(), self.now)

    async def submit(self, **members: Any) -> Snapshot:
        """A fresh execution as it was written."""
        (snapshot,) = await self.submit_many(1, **members)
        return snapshot

    async def submit_many(self, count: int, **members: Any) -> list[Snapshot]:
        creations = [self.creation(**members) for _ in range(count)]
        assert await self.store.submit(creations, self.now) == [None] * count
        return [creation.snapshot for creation in creations]

    def call(self, limit: int = 1, worker: WorkerIdentity = W1, **members: Any) -> ClaimCall:
        given = {
            "id": self.fresh(),
            "capabilities": frozenset(),
            "lanes": (),
            "namespace": None,
            "ttl": TTL,
            **members,
        }
        return ClaimCall(worker=worker, limit=limit, **given)

    async def claim(
        self, limit: int = 1, worker: WorkerIdentity = W1, **members: Any
    ) -> list[Snapshot]:
        taken = await self.store.claim(self.call(limit, worker, **members), self.now)
        return [item.snapshot for item in taken]

    async def running(self, **members: Any) -> Snapshot:
        """A fresh execution, claimed; nothing else may be waiting."""
        submitted = await self.submit(**members)
        (claimed,) = await self.claim(
            capabilities=frozenset(submitted.execution.route.capabilities)
        )
        assert claimed.execution.uuid == submitted.execution.uuid
        return claimed

    async def ended(self, **members: Any) -> Snapshot:
        change = self.completion(await self.running(**members))
        assert await self.store.end([change], self.now) == {uuid_of(change)}
        return after(change)

    def completion(self, held: Snapshot, result: bytes | None = b"done") -> Change[object]:
        return attempts.complete(held, self.now, owner_of(held), result)

    async def load(self, snapshot: Snapshot) -> Snapshot:
        uuid = snapshot.execution.uuid
        return (await self.store.load([uuid]))[uuid]

    async def apply(self, change: Change[object]) -> Snapshot:
        """Writes a change, which must succeed; gives what it made."""
        assert await self.store.apply([change]) == {uuid_of(change)}
        return after(change)

    async def raw(self) -> Connection:
        """A connection beside the store's, closed with the test."""
        connection: Connection = await asyncpg.connect(self.url)
        self._raw.append(connection)
        return connection

    async def other_store(self) -> PostgresStore:
        """A store of another process on the same database."""
        store = await open_postgres(self.url, clock=self.clock)
        self._stores.append(store)
        return store

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        for connection in self._raw:
            await connection.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bench]:
    clock = ManualClock()
    bench = Bench(await open_postgres(url, clock=clock), clock, url)
    try:
        yield bench
    finally:
        await bench.close()


async def listen(bench: Bench, sent: list[str], *, certainly: bool = False) -> None:
    """From now on, `sent` gets the names of the queries that changes send; `certainly`: of those
    that expect no conflict."""
    queries = load_queries("postgres").items()
    names = {_certain(query) if certainly else query: name for name, query in queries}

    async def add(connection: Connection) -> None:
        link.seam = None
        connection.add_query_logger(lambda record: sent.append(names.get(record.query, "")))

    link = bench.store.session.apply
    link.seam = add
    await bench.apply(operator.cancel(await bench.submit(), bench.now, OPERATOR, "over"))
    await asyncio.sleep(0)  # the driver tells of a query a little later
    sent.clear()


async def statements(bench: Bench, work: Awaitable[object]) -> list[str]:
    """The names of the queries that a piece of work sends."""
    sent: list[str] = []
    await listen(bench, sent)
    await work
    await asyncio.sleep(0)  # the driver tells of a query a little later
    return [name for name in sent if name]


def id_of(snapshot: Snapshot) -> ExecutionId:
    return snapshot.execution.id


def uuid_of(change: Change[object]) -> UUID:
    assert change.before is not None
    return change.before.execution.uuid


def uuids(snapshots: Iterable[Snapshot]) -> list[UUID]:
    return [snapshot.execution.uuid for snapshot in snapshots]


def renewal(held: Snapshot, ttl: int = TTL) -> Renewal:
    return Renewal(held.execution.uuid, lease_of(held).id, held.head.epoch, Millis(ttl))


def progress(held: Snapshot, percent: int | None = None, message: str | None = None) -> SideWrite:
    lease = lease_of(held)
    return SideWrite(held.execution.uuid, lease.id, held.head.epoch, Progress(percent, message))


def step(position: int, name: str = "fetch", doc: bytes = b"1") -> Step:
    return Step(generation=0, position=position, name=name, occurrence=0, doc=doc)


async def its_connection(connection: Connection, repeated: bool) -> Connection:
    """The connection a link is lent now: for `link.run`."""
    return connection


async def wait_for_locks(connection: Connection, repeated: bool) -> None:
    """For `link.run`: statements on its connection wait for locks as long as it takes."""
    await connection.execute("set lock_timeout = 0")


def lose_reply(link: Link) -> None:
    """The next thing done on the link is done, and nobody hears of it."""

    async def cut(connection: Connection) -> None:
        link.seam = None
        connection.terminate()
        raise ConnectionResetError("the reply was lost")

    link.seam = cut


async def until_waiting(watcher: Connection, count: int = 1) -> None:
    """Returns when so many sessions of the database wait for a lock."""
    while await _waiting(watcher) < count:
        pass


async def until_none_waits(watcher: Connection) -> None:
    """Returns when the server has given up what it was told to cancel."""
    while await _waiting(watcher):
        pass


async def _waiting(watcher: Connection) -> int:
    query = """select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'"""
    return int(await watcher.fetchval(query))


async def kinds(bench: Bench, uuid: UUID) -> list[EventKind]:
    page = await bench.store.events(EventQuery(uuid=uuid))
    return [event.kind for event in page.events]


async def plan(store: PostgresStore, settings: dict[str, str], name: str, *values: Any) -> str:
    """How the server runs a query on a connection of the given kind."""
    connection = await store.session.dialer.dial(settings)
    query = load_queries("postgres")[name]
    transaction = connection.transaction()
    await transaction.start()
    rows = await connection.fetch(f"explain (analyze, costs off, timing off) {query}", *values)
    await transaction.rollback()
    await connection.close()
    return "\n".join(line for (line,) in rows)
