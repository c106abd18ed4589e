"""Runs and the application's own transaction: those that begin with it, those that end with it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, LeaseExpired, StaleLease
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.text import MAX_RESULT, check_bytes
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import enter, present
from flowfabric.core.execution.model import Ended, Flags, Lease, Outcome, Snapshot
from flowfabric.core.execution.submission import Creation, Submission, create
from flowfabric.engine.commit.ids import Ids
from flowfabric.engine.commit.trace import Traces
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.inbox import write_options
from flowfabric.store import foreign
from flowfabric.store.clock import Clock
from flowfabric.store.queries import InboxEntry
from flowfabric.store.rows.execution import trim_at
from flowfabric.worker.codec import encode

UNCOMMITTED = "the transaction that was to complete the run did not commit"

_SIMPLE = (
    Flags.DEADLINE | Flags.RETENTION | Flags.SUSPECT | Flags.LIMITS | Flags.BUDGETS | Flags.FLOW
)
"""What a run may own that ends in a transaction. Its slot ends with its row, its reservations with
its lease, and the flow outbox carries its ending to its flow."""


class TransactionalClient:
    """Submits on a connection of the application, without an engine: the inbox entry becomes a run
    when the transaction commits. `identity` names the database of the engine while it is open; a
    connection to another one is refused."""

    def __init__(self, clock: Clock, identity: Callable[[], str | None]) -> None:
        self._clock = clock
        self._identity = identity
        self.traces = Traces()
        """Shared with the engine: both submit."""
        self._ids = Ids()

    def fresh(self) -> UUID:
        """A new id."""
        return self._ids.fresh(self.now())

    def now(self) -> Millis:
        return self._clock.now()

    async def submit(
        self, connection: Any, submissions: Sequence[Submission]
    ) -> list[tuple[ExecutionId, bool]]:
        """The id of each run, and whether it is an earlier run with the same key. All submissions
        are checked before the first one is written."""
        checked = [(submission, self._create(submission)) for submission in submissions]
        await foreign.check_database(connection, self._identity())
        return [await _put_in_inbox(connection, *pair) for pair in checked]

    def _create(self, submission: Submission) -> Creation:
        if submission.id is not None:
            raise Invalid("in a transaction a run is named by a key, not by an id")
        now = self.now()
        return self.traces.traced(create(submission, self._ids.fresh(now), now))


async def _put_in_inbox(
    connection: Any, submission: Submission, creation: Creation
) -> tuple[ExecutionId, bool]:
    execution = creation.snapshot.execution
    submission = replace(submission, trace=execution.facts.trace)
    entry = InboxEntry(
        execution.uuid,
        execution.created_at,
        execution.kind,
        execution.route.namespace,
        execution.route.lane,
        write_options(submission),
        creation.payload,
    )
    uuid, lane = await foreign.put_in_inbox(connection, entry, creation.key, creation.key_until)
    return ExecutionId.solo(lane, uuid), uuid != execution.uuid


class Completion:
    """Ends a run in a transaction of the application, under the fence of its claim."""

    def __init__(self, engine: Engine, claim: Claim, on_written: Callable[[], None]) -> None:
        self._engine = engine
        self._claim = claim
        self._on_written = on_written

    async def write(
        self,
        connection: Any,
        result: object,
        current: Callable[[], Awaitable[Snapshot]] | None = None,
    ) -> None:
        """Writes the ending. Raises LeaseLost, with the reason, if the fence no longer holds."""
        body = check_bytes(encode(result), "result", MAX_RESULT)
        await foreign.check_database(connection, self._engine.identity)
        if not await foreign.complete(connection, self._ending(self._claim.snapshot, body)):
            snapshot = await (current or self.current)()
            if not await foreign.complete(connection, self._ending(snapshot, body)):
                raise StaleLease(f"{snapshot.run} was completed in this transaction already")
        self._on_written()

    async def current(self) -> Snapshot:
        """The stored run, if this claim still owns it: a renewal may have raised its version."""
        uuid = self._claim.uuid
        snapshot = present((await self._engine.views.load([uuid])).get(uuid), self._claim.id)
        if isinstance(enter(snapshot, self._engine.now(), self._claim.owner), Change):
            raise LeaseExpired(f"the lease of {snapshot.run} has expired")
        return snapshot

    def _ending(self, snapshot: Snapshot, body: bytes) -> foreign.TransactionEnding:
        if snapshot.head.flags & ~_SIMPLE:
            raise Invalid(f"{snapshot.run} has waitpoints and cannot end in a transaction")
        now, claim = self._engine.now(), self._claim
        return foreign.TransactionEnding(
            uuid=claim.uuid,
            lease_id=claim.lease.id,
            epoch=claim.epoch,
            version=snapshot.head.version,
            now=now,
            result=body,
            trim_at=trim_at(snapshot, now),
            flow=snapshot.execution.flow if snapshot.head.flags & Flags.FLOW else None,
            awaited_by=snapshot.life.awaited_by,
        )


def completed_by(claim: Claim, snapshot: Snapshot | None) -> bool:
    """Whether the run ended in success under this claim."""
    match snapshot:
        case Snapshot(state=Ended(outcome=Outcome.SUCCESS, lease=Lease(id=lease)), head=head):
            return (lease, head.epoch) == (claim.lease.id, claim.epoch)
        case _:
            return False
