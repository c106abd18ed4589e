"""A small bench for tests: one engine, a clock that stands still, and short words for the usual.

A test never learns which store it got. Nothing here sleeps: `pass_time` moves the clock and does
what became due.
"""

from collections.abc import Sequence
from typing import Any

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import StoredEvent
from flowfabric.core.execution.model import Failure, WorkerIdentity
from flowfabric.core.execution.status import PublicState, Vector
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.engine.context import EngineOptions
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store

TTL = Millis(30_000)
W1 = WorkerIdentity("w1", "w1-a")
W2 = WorkerIdentity("w2", "w2-a")


class Lab:
    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock

    @classmethod
    async def open(cls, store: Store, clock: ManualClock, **options: Any) -> "Lab":
        return cls(await Engine.open(store, options=EngineOptions(**options)), clock)

    async def submit(self, kind: str = "job", **members: Any) -> ExecutionId:
        """A fresh execution; fails if it is a duplicate."""
        outcome = await self.engine.executions.submit(Submission(kind=kind, **members))
        assert isinstance(outcome, Submitted)
        return outcome.id

    async def claim(self, worker: WorkerIdentity = W1, **options: Any) -> list[Claim]:
        return await self.engine.claims.claim(worker, **{"ttl": TTL, **options})

    async def claim_one(self, worker: WorkerIdentity = W1, **options: Any) -> Claim:
        """The next claim; fails if there is none."""
        claims = await self.claim(worker, limit=1, **options)
        assert len(claims) == 1, "nothing to claim"
        return claims[0]

    async def running(self, worker: WorkerIdentity = W1, **members: Any) -> Claim:
        """A fresh execution, claimed by `worker` (nothing else may be waiting)."""
        id = await self.submit(**members)
        claim = await self.claim_one(worker)
        assert claim.id == id
        return claim

    async def complete(self, claim: Claim, result: bytes | None = None) -> None:
        await self.engine.attempts.complete(claim, result)

    async def fail(self, claim: Claim, category: str = "transient", message: str = "boom") -> Any:
        return await self.engine.attempts.fail(claim, Failure(message, category))

    async def pass_time(self, millis: int) -> None:
        """Moves the clock and does everything that became due."""
        self.clock.advance(millis)
        await self.engine.sweep.once()

    async def lose(self, claim: Claim) -> None:
        """Lets the lease run out and marks it."""
        await self.pass_time(claim.ttl)

    async def state(self, id: str) -> PublicState:
        state = await self.engine.views.state(id)
        assert state is not None
        return state

    async def vector(self, id: str) -> Vector:
        vector = await self.engine.views.vector(id)
        assert vector is not None
        return vector

    async def events(self, id: str, **filters: Any) -> Sequence[StoredEvent]:
        return (await self.engine.events.read(execution=id, **filters)).events
