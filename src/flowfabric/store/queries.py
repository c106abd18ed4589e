"""What is asked of a store, and what it answers (`store.contract`)."""

from collections.abc import Iterable, Mapping, Sequence, Set
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, StoredEvent
from flowfabric.core.execution.frame import Frame, FrameId, StreamMode
from flowfabric.core.execution.model import Gate, Route, Snapshot, WorkerIdentity
from flowfabric.core.execution.model import Progress as Progress
from flowfabric.core.execution.recent import minted_at
from flowfabric.core.execution.routing import Capabilities
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.stream import Appending, Stream
from flowfabric.core.flow.join import EdgeState
from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.core.flow.outbox import OutboxEntry
from flowfabric.core.limit.quota import Uses


class StoreIdentity(Struct, frozen=True):
    """`name` is the same however the database is reached; `store.foreign` compares a connection of
    the application with it. `secret` signs handles and is made once per database."""

    name: str
    secret: bytes

    def __repr__(self) -> str:
        return f"StoreIdentity({self.name!r})"


class Suspects(StrEnum):
    """Which executions a claim takes: as they come, only those that are no suspects, or only
    suspects (`core/execution/takeover.py`)."""

    ANY = "any"
    NONE = "none"
    ONLY = "only"


class ClaimCall(Struct, frozen=True, gc=False):
    """One request for work. `id` becomes the lease id of everything it takes, so repeating a
    call whose reply was lost returns what it already took."""

    id: UUID
    worker: WorkerIdentity
    capabilities: Capabilities
    lanes: tuple[str, ...]
    namespace: str | None
    limit: int
    ttl: Millis
    kinds: frozenset[str] | None = None
    repeated: bool = False
    suspects: Suspects = Suspects.ANY


class Taken(Struct, frozen=True, gc=False):
    """One claimed execution; `snapshot.state` is Active. `steps` is all that its generation has
    recorded, in order; None leaves that to be read, as for a first attempt or many steps. `again`:
    another try of the same call has taken it."""

    snapshot: Snapshot
    payload: bytes
    steps: tuple[Step, ...] | None = None
    again: bool = False


class Renewal(Struct, frozen=True, gc=False):
    """With `record` the renewal is an event."""

    uuid: UUID
    lease_id: UUID
    epoch: int
    ttl: Millis
    record: bool = False


def reported(rows: Iterable[Sequence[Any]]) -> dict[int, Progress]:
    """What attempts have said, of rows of index, percent and message. One that has only set a state
    value is left out."""
    return {row[0]: Progress(row[1], row[2]) for row in rows if (row[1], row[2]) != (None, None)}


class SideWrite(Struct, frozen=True, gc=False):
    """A side write under a fence: written only while that very lease stands and has not expired.

    It never bumps the version of the state row.
    """

    uuid: UUID
    lease_id: UUID
    epoch: int
    progress: Progress | None = None
    step: Step | None = None
    state_value: bytes | None = None


class FrameWrite(Struct, frozen=True):
    """An append to a stream, under a fence as a side write; only if its version was `expected`."""

    lease_id: UUID
    epoch: int
    expected: int
    appending: Appending

    @property
    def uuid(self) -> UUID:
        return self.appending.stream.uuid

    @property
    def key(self) -> tuple[UUID, int]:
        return self.appending.stream.uuid, self.appending.stream.attempt


class FrameQuery(Struct, frozen=True):
    """Frames of an attempt from `first` to `last`, both included, of these modes."""

    uuid: UUID
    attempt: int
    first: FrameId
    last: FrameId
    limit: int
    modes: tuple[StreamMode, ...]


class FrameRows(Struct, frozen=True):
    """Frames in order. The stream is without its summary; None if it has no frame yet. `gaps` are
    the newest frames of each mode that were trimmed."""

    stream: Stream | None
    gaps: Mapping[StreamMode, FrameId]
    frames: tuple[Frame, ...]


class StreamMarks(Struct, frozen=True):
    """What changes when there is news for readers of an execution's streams: the version of its
    state (None: it has none), and of each of its streams, by attempt."""

    state: int | None
    streams: Mapping[int, int]


class InboxEntry(Struct, frozen=True):
    """A submission made in the application's transaction; `options` is a document with the members
    of a Submission that are not columns here."""

    uuid: UUID
    at: Millis
    kind: str
    namespace: str
    lane: str
    options: bytes
    payload: bytes


class Detail(Struct, frozen=True):
    """Everything a person may want to see of one execution. `progress` is what each attempt has
    reported last, by its index. `state_value` is the last one that any attempt has set."""

    snapshot: Snapshot
    payload: bytes
    tags: Mapping[str, str]
    progress: Mapping[int, Progress]
    touched_at: Millis
    state_value: bytes | None = None


class Query(Struct, frozen=True, kw_only=True):
    """A filter over executions; members that are None do not filter."""

    namespace: str | None = None
    lane: str | None = None
    kind: str | None = None
    states: tuple[PublicState, ...] = ()
    tag: tuple[str, str] | None = None
    flow: UUID | None = None
    created_from: Millis | None = None
    created_until: Millis | None = None
    after: tuple[Millis, UUID] | None = None
    limit: int = 100
    newest_first: bool = False


class Page(Struct, frozen=True):
    """`cursor` is None when there is nothing more. A short page may still have a cursor.
    `unreadable` are executions of this page that cannot be read."""

    items: tuple[Snapshot, ...]
    cursor: tuple[Millis, UUID] | None
    unreadable: tuple[UUID, ...] = ()


class Counts(Struct, frozen=True):
    """How many executions are in each public state; `capped` names those that are at least that
    many: counting stops at 100,000, and of one lane or namespace at 200,000 rows looked at."""

    by_state: Mapping[str, int]
    capped: frozenset[str]


MAX_EXAMINED = 10_000
"""Most executions that one page of a list looks at."""

NEWEST = -1
"""The cursor from which only events of the future are seen."""


class EventQuery(Struct, frozen=True, kw_only=True):
    """Events with `seq` above `after`, oldest first."""

    after: int = 0
    limit: int = 1000
    uuid: UUID | None = None
    namespace: str | None = None
    kinds: frozenset[EventKind] | None = None
    tag: tuple[str, str] | None = None


class EventPage(Struct, frozen=True):
    """`cursor` is the `seq` up to which everything was seen, also what the filter left out. If it
    is not `settled`, writers that are still at work kept the store from looking any further."""

    events: tuple[StoredEvent, ...]
    cursor: int
    settled: bool = True


class ExpiredLease(Struct, frozen=True):
    """A lease that ran out or was revoked and was not reclaimed yet. A revoked one expired at the
    moment it was revoked."""

    id: ExecutionId
    lease_id: UUID
    epoch: int
    instance: str
    expires_at: Millis
    attempt: int


class Glance(Struct, frozen=True):
    """What there is to do: entries of the `inbox` to admit, executions to claim (`ready`), and
    executions that are `blocked` by code. Only the holder of the duty gets the rest: whether there
    is anything to sweep now (`busy`), whether executions wait in `lines` at limits, the next moment
    at which something becomes due, and when the first lease or its attempt ends or has ended, if it
    asked for leases."""

    has_duty: bool
    inbox: bool
    ready: bool
    blocked: bool = False
    busy: bool = False
    lines: bool = False
    next_at: Millis | None = None
    leases_end_at: Millis | None = None


class Claimable(Struct, frozen=True):
    """Ready (not lost) executions of a lane in claim order that no live hold keeps. With
    capabilities only those such a worker could claim now: none while the lane is paused or runs as
    many as it may."""

    lane: str
    namespace: str | None
    now: Millis
    limit: int
    capabilities: Capabilities | None = None


class SuspendedIn(Struct, frozen=True):
    """Suspended executions by (since when, id)."""

    namespace: str | None
    after: tuple[Millis, UUID] | None
    limit: int


class FailedSince(Struct, frozen=True):
    """Executions that failed at or after a moment, the latest first by (ended_at, id)."""

    since: Millis
    before: tuple[Millis, UUID] | None
    limit: int


class MembersOf(Struct, frozen=True):
    """Executions of a flow (with the flag that makes them members) by id; `living`: those that have
    not ended."""

    flow: UUID
    after: UUID | None = None
    limit: int = 500
    living: bool = False


class ByPartition(Struct, frozen=True):
    """Executions by id: those of the lanes, and all that a flow or a client has put into another
    partition than that of their lane. The caller looks at the partition."""

    lanes: tuple[str, ...]
    after: UUID | None
    limit: int


SnapshotQuery = Claimable | SuspendedIn | FailedSince | MembersOf | ByPartition


class EdgeQuery(Struct, frozen=True, kw_only=True):
    """Edges of a flow by id, with an id above `after`; of the given executions only, if given."""

    flow: UUID
    upstreams: tuple[UUID, ...] | None = None
    downstreams: tuple[UUID, ...] | None = None
    ids: tuple[UUID, ...] | None = None
    unsettled: bool = False
    after: UUID | None = None
    limit: int = 500


class Unsettled(Struct, frozen=True):
    """An edge that is not settled, and its downstream as the same moment saw it; None when that is
    not there or cannot be read."""

    state: EdgeState
    downstream: Snapshot | None


class Owing(Struct, frozen=True):
    """Flows that something is owed to and their outbox entries, as one moment saw them. Edges of
    the members in `open` are not settled."""

    flows: Mapping[UUID, Flow]
    entries: Sequence[OutboxEntry]
    open: Set[UUID]

    def by_flow(self) -> dict[UUID, list[OutboxEntry]]:
        found: dict[UUID, list[OutboxEntry]] = {}
        for entry in self.entries:
            found.setdefault(entry.flow, []).append(entry)
        return found


class FlowQuery(Struct, frozen=True, kw_only=True):
    """Flows by (created_at, id)."""

    namespace: str | None = None
    kind: str | None = None
    states: tuple[FlowState, ...] = ()
    tag: tuple[str, str] | None = None
    after: tuple[Millis, UUID] | None = None
    limit: int = 100
    newest_first: bool = False


class InQueue(Struct, frozen=True):
    """Executions that wait in a queue (parked rows), best first by (rank, id)."""

    queue: int


class HoldingSlots(Struct, frozen=True):
    """Executions that hold a slot of one of these queues, running ones first."""

    queues: tuple[int, ...]


FIRST_PLACE = -(1 << 63), UUID(int=0)
"""Before every execution, in the order of claims."""


class ReadySlots(Struct, frozen=True):
    """Executions of these routes that hold a slot of a quota while they are ready (not lost), in
    the order of claims (rank, id), after a cursor."""

    routes: tuple[Route, ...]
    after: tuple[int, UUID] = FIRST_PLACE


class RunningIn(Struct, frozen=True):
    """Executions of a lane that have a row in `lease`."""

    lane: str


Place = InQueue | HoldingSlots | ReadySlots | RunningIn


class Crowd(Struct, frozen=True):
    """A queue with waiting executions: at which gate, and which is first. `uses` are those of its
    row; only queues of quotas have one."""

    queue: int
    gate: Gate
    first: UUID
    uses: Uses | None


class QuotaViewRequest(Struct, frozen=True):
    """Which lines of a quota a release looks at: those of `queues` (None: of all its queues) in
    which executions wait at the limits gate, at most `lines` by (turn, queue), of each the best
    `depth` by (rank, id). Executions with a route of `closed` are passed over, and those with a
    route of `draining` if they have not started."""

    quota: str
    queues: tuple[int, ...] | None
    lines: int
    depth: int
    now: Millis
    closed: tuple[Route, ...] = ()
    draining: tuple[Route, ...] = ()


class ChangedByEnds(set[UUID]):
    """The executions that a call of `end` has changed. `claimed` are the payloads of downstreams
    that it has leased. `repeated`: a reply was lost and the statement was sent again, so that the
    answer of another call may have named some of them."""

    def __init__(
        self,
        uuids: Iterable[UUID],
        *,
        claimed: Mapping[UUID, bytes] = MappingProxyType({}),
        repeated: bool = False,
    ) -> None:
        super().__init__(uuids)
        self.claimed = claimed
        self.repeated = repeated


class MovedByRelease(set[UUID]):
    """The executions that a release has admitted. `repeated`: a reply was lost, and the quotas have
    the next versions; a release of another process may have moved them, and not this one."""

    def __init__(self, uuids: Iterable[UUID], *, repeated: bool = False) -> None:
        super().__init__(uuids)
        self.repeated = repeated


class LinesRequest(Struct, frozen=True):
    """Lines of a quota, each of which uses no other quota: how many slots each has to give away,
    None if they are to be counted. Nothing is done if the quota has another `version` than this.
    `most` are admitted at most; `closed` and `draining` as in `QuotaViewRequest`."""

    quota: str
    lines: Mapping[int, int | None]
    version: int | None
    now: Millis
    most: int
    closed: tuple[Route, ...] = ()
    draining: tuple[Route, ...] = ()


class ServedLines(Struct, frozen=True):
    """`moved` were admitted. `room` is how many more of each line there is room for, which no run
    waits for that could be claimed, but in the lines of `left`: there more wait, or have gone
    elsewhere meanwhile. It is negative where more slots are held than the limit is now. It holds
    while the quota has this `version`. `turn` is the latest turn of the quota."""

    version: int
    turn: int
    moved: int
    room: Mapping[int, int]
    left: Sequence[int]


class OtherVersion(Struct, frozen=True):
    """The quota has another version than the one that was asked for."""


class QueueCount(Struct, frozen=True):
    """How many wait in a queue and how many hold a slot of it; of those `running` have a lease, the
    others wait for a worker."""

    uses: Uses
    waiting: int
    held: int
    running: int = 0


class RouteDepth(Struct, frozen=True):
    """How many executions of a route wait for nothing but a worker, and how many run. `oldest` has
    waited longest, since `oldest_at`; where clients mint ids without a time, it is the first in
    line."""

    route: Route
    waiting: int
    running: int
    oldest: UUID | None = None
    oldest_at: Millis | None = None

    @classmethod
    def of(
        cls,
        route: Route,
        waiting: int,
        running: int,
        lowest: UUID | None,
        first: tuple[UUID, Millis] | None,
    ) -> "RouteDepth":
        """From the lowest id of those that wait and the first in line, which are two reads of an
        index: the oldest of all would need a look at each of them."""
        minted = None if lowest is None else minted_at(lowest)
        if minted is not None:
            return cls(route, waiting, running, lowest, minted)
        oldest, oldest_at = first or (None, None)
        return cls(route, waiting, running, oldest, oldest_at)


class WaitCount(Struct, frozen=True):
    """How many executions of a lane wait at a gate, in which queue (if in any). Without a gate
    they are ready: nothing but a worker is missing."""

    gate: Gate | None
    queue: int | None
    count: int


class LaneCounts(Struct, frozen=True):
    """What waits in a lane, and how many executions of it are ready (not lost), by route."""

    waiting: tuple[WaitCount, ...]
    ready: Mapping[Route, int]


class LedgerNeeds(Struct, frozen=True):
    """Which budgets, and what was noted of them. Budgets come with all they are part of, ledgers
    and reservations are those of the executions (and of the given ids). `stale` asks for so many
    reservations whose lease is gone (there is no row in `lease` of that execution with that epoch),
    and for nothing else."""

    budgets: tuple[str, ...] = ()
    charges: tuple[tuple[str, str], ...] = ()
    executions: tuple[UUID, ...] = ()
    reservations: tuple[UUID, ...] = ()
    stale: int = 0


class Holding(NamedTuple):
    """How many leases a worker holds in a namespace."""

    worker: WorkerIdentity
    namespace: str
    leases: int
