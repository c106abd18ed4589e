"""Operations as values: how each is asked of an engine, and how of the model.

A deed is done by the holder of a lease, an act by anybody else. Strategies draw them, rivals
commit them, races run two of them at once.
"""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Failure, WorkerIdentity
from flowfabric.core.execution.step import Step
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import Owned
from tests.machine.model import Life
from tests.machine.words import Answers, Fence

Call = Coroutine[Any, Any, object]


class Deed(Protocol):
    """What the holder of a lease does."""

    def call(self, engine: Engine, owned: Owned, life: Life) -> Call: ...
    def model(self, life: Life, fence: Fence, now: int) -> Answers: ...


class Act(Protocol):
    """What somebody else does. `lease_id` is for those that take a lease."""

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call: ...
    def model(self, life: Life, lease_id: UUID, now: int) -> Answers: ...


@dataclass(frozen=True)
class Renew:
    ttl: int

    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        return engine.attempts.renew(owned, Millis(self.ttl))

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        return life.renew(fence, now, self.ttl)


@dataclass(frozen=True)
class Complete:
    result: bytes | None

    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        return engine.attempts.complete(owned, self.result)

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        return life.complete(fence, now, self.result)


@dataclass(frozen=True)
class Fail:
    category: str
    after: int | None = None

    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        after = None if self.after is None else Millis(self.after)
        return engine.attempts.fail(owned, Failure("boom", self.category), retry_after=after)

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        return life.fail(fence, now, self.category, self.after)


@dataclass(frozen=True)
class Delay:
    """`span` from now; with a step that is recorded by the same change."""

    span: int
    step: str | None = None

    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        until = Millis(engine.now() + self.span)
        step = None if self.step is None else _step(life, self.step, b"slept")
        return engine.attempts.delay(owned, until, step=step)

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        step = None if self.step is None else (self.step, b"slept")
        return life.delay(fence, now, now + self.span, step)


@dataclass(frozen=True)
class HandBack:
    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        return engine.attempts.hand_back(owned)

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        return life.hand_back(fence, now)


@dataclass(frozen=True)
class CancelOwn:
    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        return engine.attempts.cancel(owned, "the worker says so")

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        return life.owner_cancels(fence, now)


@dataclass(frozen=True)
class Record:
    """A step beside the lease."""

    name: str
    doc: bytes

    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        return engine.attempts.record_step(owned, _step(life, self.name, self.doc))

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        return life.record(fence, now, self.name, self.doc)


@dataclass(frozen=True)
class Report:
    """Progress beside the lease."""

    percent: int

    def call(self, engine: Engine, owned: Owned, life: Life) -> Call:
        return engine.attempts.progress(owned, self.percent)

    def model(self, life: Life, fence: Fence, now: int) -> Answers:
        return life.report(fence, now, self.percent)


@dataclass(frozen=True)
class Cancel:
    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.executions.cancel(life.id, reason="the operator says so")

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.cancel(now)


@dataclass(frozen=True)
class Revoke:
    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.claims.revoke(life.id, reason="too slow")

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.revoke(now)


@dataclass(frozen=True)
class ChangePriority:
    priority: int
    anywhere: bool = False

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.executions.change_priority(life.id, self.priority, anywhere=self.anywhere)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.change_priority(self.priority, anywhere=self.anywhere)


@dataclass(frozen=True)
class Replay:
    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.executions.replay(life.id)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.replay(now)


@dataclass(frozen=True)
class Block:
    reason: str

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.executions.block(life.id, self.reason)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.block(self.reason, now)


@dataclass(frozen=True)
class Unblock:
    expected: str | None = None

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.executions.unblock(life.id, self.expected)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.unblock(self.expected)


@dataclass(frozen=True)
class Expire:
    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.executions.expire(life.id)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.expire(now)


@dataclass(frozen=True)
class MarkExpired:
    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.claims.mark_expired(life.id)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.mark_expired(now)


@dataclass(frozen=True)
class Grant:
    worker: WorkerIdentity
    offers: frozenset[str]
    ttl: int

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.grants.issue(
            life.id, self.worker.id, capabilities=self.offers, ttl=Millis(self.ttl)
        )

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.grant(self.worker.id, self.offers, self.ttl, now)


@dataclass(frozen=True)
class GrantReclaim:
    worker: WorkerIdentity
    offers: frozenset[str]
    ttl: int

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.grants.issue_reclaim(
            life.id, self.worker.id, capabilities=self.offers, ttl=Millis(self.ttl)
        )

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.grant_reclaim(self.worker.id, self.offers, self.ttl, now)


@dataclass(frozen=True)
class ClaimGranted:
    worker: WorkerIdentity
    ttl: int

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.grants.claim(life.id, self.worker, ttl=Millis(self.ttl), lease_id=lease_id)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.claim_granted(self.worker.id, lease_id, self.ttl, now)


@dataclass(frozen=True)
class ClaimResumed:
    worker: WorkerIdentity
    ttl: int

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.grants.claim_resumed(
            life.id, self.worker, ttl=Millis(self.ttl), lease_id=lease_id
        )

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.claim_resumed(self.worker.id, lease_id, self.ttl, now)


@dataclass(frozen=True)
class Reclaim:
    worker: WorkerIdentity
    ttl: int
    most: int | None = None

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.grants.reclaim(
            life.id,
            self.worker,
            ttl=Millis(self.ttl),
            lease_id=lease_id,
            max_reclaims=self.most,
        )

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.reclaim(self.worker.id, lease_id, self.ttl, now, self.most)


@dataclass(frozen=True)
class OperatorTakes:
    ttl: int

    def call(self, engine: Engine, life: Life, lease_id: UUID) -> Call:
        return engine.grants.take(life.id, ttl=Millis(self.ttl), lease_id=lease_id)

    def model(self, life: Life, lease_id: UUID, now: int) -> Answers:
        return life.operator_takes(lease_id, self.ttl, now)


def _step(life: Life, name: str, doc: bytes) -> Step:
    return Step(life.generation, position=0, name=name, occurrence=0, doc=doc)


ACTS = (
    Cancel,
    Revoke,
    ChangePriority,
    Replay,
    Block,
    Unblock,
    Expire,
    MarkExpired,
    Grant,
    GrantReclaim,
    ClaimGranted,
    ClaimResumed,
    Reclaim,
    OperatorTakes,
)
"""What needs no lease; everything else is a deed."""
