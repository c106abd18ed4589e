"""What tests of limits share: limited executions made by the core's own rules, on any store."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import complete
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import (
    Gate,
    Ready,
    Snapshot,
    Source,
    Waiting,
    WorkerIdentity,
)
from flowfabric.core.execution.operator import cancel
from flowfabric.core.execution.submission import Creation, Submission, create
from flowfabric.core.limit.quota import Quota, Uses, name_uses, queue_of
from flowfabric.core.limit.release import Candidate, Move, QuotaView, Release
from flowfabric.store.queries import (
    ClaimCall,
    LinesRequest,
    OtherVersion,
    QuotaViewRequest,
    ServedLines,
)
from flowfabric.store.rows.record import QUOTAS
from tests.kit.lab import TTL, W1
from tests.kit.snapshots import owner_of
from tests.kit.store_bench import StoreBench

FAR = Millis(9_000_000_000_000)


class Bench(StoreBench):
    """A store, and executions that need room in quotas."""

    async def quota(self, name: str, **limits: Any) -> Quota:
        assert await self.store.records.put(QUOTAS, Quota(name=name, **limits), 0)
        return (await self.store.records.get(QUOTAS, [name]))[name]

    def creation(self, uses: Mapping[str, str] | None = None, **members: Any) -> Creation:
        quotas = [{"quota": quota, "key": key} for quota, key in (uses or {}).items()]
        policy = {**members.pop("policy", {}), **({"quotas": quotas} if quotas else {})}
        given = {"kind": "job", **({"policy": policy} if policy else {}), **members}
        return create(Submission(**given), self.fresh(), self.now)

    async def submit(
        self, count: int, uses: Mapping[str, str] | None = None, **members: Any
    ) -> list[Snapshot]:
        """Fresh executions in the order of claims; their queue is known."""
        made = [self.creation(uses, **members) for _ in range(count)]
        assert not any(await self.store.submit(made, self.now))
        if uses:
            await self.store.put_queues([(queue(**uses), uses_of(**uses))])
        return [creation.snapshot for creation in made]

    async def one(self, uses: Mapping[str, str] | None = None, **members: Any) -> Snapshot:
        (snapshot,) = await self.submit(1, uses, **members)
        return snapshot

    async def claim(
        self, limit: int = 9, worker: WorkerIdentity = W1, **members: Any
    ) -> list[Snapshot]:
        given = {"capabilities": frozenset(), "lanes": (), "namespace": None, **members}
        call = ClaimCall(id=self.fresh(), worker=worker, limit=limit, ttl=TTL, **given)
        return [taken.snapshot for taken in await self.store.claim(call, self.now)]

    async def through(self, *snapshots: Snapshot, **members: Any) -> set[UUID] | None:
        """Lets these through their limits."""
        moves = [move(snapshot) for snapshot in snapshots]
        noted = {(*key, self.now): n for key, n in members.pop("admissions", {}).items()}
        return await self.store.release(Release(moves=moves, admissions=noted, **members))

    async def running(self, uses: Mapping[str, str] | None = None, **members: Any) -> Snapshot:
        """A fresh execution, let through and claimed; nothing else may be ready."""
        snapshot = await self.one(uses, **members)
        if uses:
            await self.through(snapshot)
        (claimed,) = await self.claim()
        assert uuid_of(claimed) == uuid_of(snapshot)
        return claimed

    async def write(self, *changes: Change[Any]) -> list[Snapshot]:
        found = [change.after for change in changes if change.after is not None]
        assert await self.store.apply(changes) == {uuid_of(snapshot) for snapshot in found}
        return found

    async def load(self, snapshot: Snapshot) -> Snapshot:
        return (await self.store.load([uuid_of(snapshot)]))[uuid_of(snapshot)]

    async def standing(
        self,
        quota: str,
        queues: tuple[int, ...] | None = None,
        *,
        lines: int = 99,
        depth: int = 99,
    ) -> QuotaView:
        ask = QuotaViewRequest(quota, queues, lines, depth, self.now)
        return await self.store.quota_view(ask)

    async def serve(self, quota: str, *queues: int, most: int = 99) -> ServedLines | None:
        """Looks at lines of which nothing is known."""
        lines = dict.fromkeys(sorted(queues))
        served = await self.store.serve(LinesRequest(quota, lines, None, self.now, most))
        assert not isinstance(served, OtherVersion)
        return served

    async def ready(self, *snapshots: Snapshot) -> list[Snapshot]:
        """Those of these that are ready, as they are stored."""
        found = [await self.load(snapshot) for snapshot in snapshots]
        return [snapshot for snapshot in found if isinstance(snapshot.state, Ready)]

    async def version(self, quota: str) -> int:
        return (await self.store.records.get(QUOTAS, [quota]))[quota].version

    async def slots(self, **uses: str) -> int:
        """How many slots a queue holds."""
        for found in await self.store.queue_counts(next(iter(uses)), 99):
            if found.uses == uses_of(**uses):
                return found.held
        return 0

    def cancelling(self, snapshot: Snapshot) -> Change[Any]:
        return cancel(snapshot, self.now, Owner(source=Source.OPERATOR), "over")

    def completing(self, snapshot: Snapshot) -> Change[Any]:
        return complete(snapshot, self.now, owner_of(snapshot), b"done")


def uses_of(**uses: str) -> Uses:
    return name_uses(uses)


def queue(**uses: str) -> int:
    return queue_of(uses_of(**uses))


def candidate(snapshot: Snapshot) -> Candidate:
    return Candidate(uuid_of(snapshot), snapshot.head.version, snapshot.head.rank)


def move(snapshot: Snapshot) -> Move:
    """Let through at the very moment it was created: its rank stays."""
    return Move(uuid_of(snapshot), snapshot.head.version, snapshot.execution.created_at)


def freed(snapshot: Snapshot) -> Snapshot:
    """As the core would have it with the limits gate open."""
    assert isinstance(snapshot.state, Waiting)
    assert snapshot.state.gate is Gate.LIMIT
    return snapshot.to(Ready(snapshot.state.next))


def uuid_of(snapshot: Snapshot) -> UUID:
    return snapshot.execution.uuid


def uuids(snapshots: list[Snapshot]) -> list[UUID]:
    return [uuid_of(snapshot) for snapshot in snapshots]
