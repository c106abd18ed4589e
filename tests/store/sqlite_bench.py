"""Short words for the tests of the SQLite store. Everything is made by the core's own rules."""

import random
import sqlite3
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import complete
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Snapshot, WorkerIdentity
from flowfabric.core.execution.submission import Creation, Submission, create
from flowfabric.store.clock import ManualClock
from flowfabric.store.queries import ClaimCall, Taken
from flowfabric.store.sql import load_queries
from flowfabric.store.sqlite import SqliteStore
from tests.kit.snapshots import owner_of

TTL = Millis(30_000)
W1 = WorkerIdentity("w1", "w1-a")
W2 = WorkerIdentity("w2", "w2-a")


class Bench:
    """A store, a clock that stands still, and ids from one seed."""

    def __init__(self, store: SqliteStore, clock: ManualClock, seed: int = 0) -> None:
        self.store = store
        self.clock = clock
        self._jitter = random.Random(seed)

    @property
    def now(self) -> Millis:
        return self.clock.now()

    def uuid(self) -> UUID:
        return new_uuid7(self.now, self._jitter.getrandbits(74))

    def creation(self, kind: str = "job", **members: Any) -> Creation:
        return create(Submission(kind=kind, **members), self.uuid(), self.now)

    async def submit(self, kind: str = "job", **members: Any) -> UUID:
        """A fresh execution; fails if it is a duplicate."""
        creation = self.creation(kind, **members)
        assert await self.store.submit([creation], self.now) == [None]
        return creation.snapshot.execution.uuid

    async def submit_many(self, count: int, kind: str = "job", **members: Any) -> list[UUID]:
        uuids = []
        for start in range(0, count, 500):
            batch = [self.creation(kind, **members) for _ in range(min(500, count - start))]
            assert not any(await self.store.submit(batch, self.now))
            uuids += [creation.snapshot.execution.uuid for creation in batch]
        return uuids

    def call(self, worker: WorkerIdentity = W1, limit: int = 1, **members: Any) -> ClaimCall:
        given = {"capabilities": frozenset(), "lanes": (), "namespace": None, "ttl": TTL, **members}
        return ClaimCall(id=self.uuid(), worker=worker, limit=limit, **given)

    async def claim(
        self, worker: WorkerIdentity = W1, limit: int = 1, **members: Any
    ) -> list[Taken]:
        return await self.store.claim(self.call(worker, limit, **members), self.now)

    async def claim_one(self, worker: WorkerIdentity = W1, **members: Any) -> Snapshot:
        (taken,) = await self.claim(worker, **members)
        return taken.snapshot

    async def running(self, kind: str = "job", **members: Any) -> Snapshot:
        """A fresh execution, claimed; nothing else may be waiting."""
        uuid = await self.submit(kind, **members)
        snapshot = await self.claim_one(capabilities=frozenset({"gpu"}))
        assert snapshot.execution.uuid == uuid
        return snapshot

    async def load(self, uuid: UUID) -> Snapshot | None:
        return (await self.store.load([uuid])).get(uuid)

    async def loaded(self, uuid: UUID) -> Snapshot:
        snapshot = await self.load(uuid)
        assert snapshot is not None
        return snapshot

    async def end(self, *changes: Change[Any]) -> set[UUID]:
        return await self.store.end(changes, self.now)

    async def apply(self, *changes: Change[Any]) -> set[UUID]:
        return await self.store.apply(changes)

    def completing(self, snapshot: Snapshot, result: bytes | None = b"ok") -> Change[Any]:
        return complete(snapshot, self.now, owner_of(snapshot), result)


def text_of(snapshot: Snapshot | Creation) -> ExecutionId:
    value = snapshot.snapshot if isinstance(snapshot, Creation) else snapshot
    return value.execution.id


def uuids(taken: Sequence[Taken]) -> list[UUID]:
    return [item.snapshot.execution.uuid for item in taken]


def plan(path: str, query_name: str, /, *values: object, **named: object) -> str:
    """How SQLite answers a query, a line for each table."""
    connection = sqlite3.connect(path)
    query = "explain query plan " + load_queries("sqlite")[query_name]
    text = "\n".join(row[3] for row in connection.execute(query, named or values))
    connection.close()
    return text
