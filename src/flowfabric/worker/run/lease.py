"""A lease, as the worker that holds it knows it."""

import time
from collections.abc import Callable
from enum import StrEnum
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import Renewal
from flowfabric.worker.run.until_available import until_available

Key = tuple[UUID, int]
"""Identifies a lease: the execution and the epoch. A worker may hold an execution again while it
still stops the handler of the lease it lost."""


class Loss(StrEnum):
    """How a lease was lost: the store no longer knows it, the run has ended, or no renewal came
    through in time."""

    GONE = "gone"
    ENDED = "ended"
    UNRENEWED = "unrenewed"


class WorkerLease:
    """Moved by the heartbeat in its own thread, read by everything that is about to begin.

    `expires_at` is a moment of the store's clock, `renewed_at` and `seen_at` of the steady one.
    """

    __slots__ = ("claim", "expires_at", "key", "renewal", "renewed_at", "resting", "seen_at")

    def __init__(self, claim: Claim, age: float = 0.0, *, record: bool = False) -> None:
        """`age` is how many seconds ago the lease began. With `record` its renewals are events."""
        lease, uuid, epoch = claim.lease, claim.uuid, claim.epoch
        self.claim = claim
        self.renewal = Renewal(uuid, lease.id, epoch, claim.ttl, record)
        self.key: Key = (uuid, epoch)
        self.expires_at = lease.expires_at
        self.renewed_at = self.seen_at = time.monotonic() - max(0.0, age)
        self.resting = False

    def moved(self, claim: Claim) -> None:
        """Notes the claim as it stands after a change that its owner has made."""
        self.claim = claim

    def renewed(self, expires_at: Millis, asked_at: float) -> None:
        """Notes a renewal that was asked for at this moment."""
        self.expires_at = expires_at
        self.renewed_at = asked_at

    def lasts_until(self, moment: int) -> bool:
        """Whether the lease, by its last successful renewal, expires later than `moment`."""
        return moment < self.expires_at

    async def confirm(self, engine: Engine, give_up: Callable[[], bool], *, ahead: int = 0) -> None:
        """Makes sure of the lease before work begins: a worker that was paused must not begin what
        another one has taken over. If the lease has expired by the last successful renewal, or will
        within `ahead` milliseconds, it is renewed. Raises LeaseLost."""
        if self.lasts_until(engine.now() + ahead):
            return
        asked_at = time.monotonic()
        record = self.renewal.record
        answer = await until_available(
            lambda: engine.claims.renew(self.claim, record=record), give_up
        )
        self.renewed(answer.expires_at, asked_at)
