"""What a store must do. Rows, not rules: every decision was made by `core` beforehand.

Three methods repeat a core rule because they must be one round trip over many rows: `claim` (as
`core.execution.lease.take`), `renew` (as `core.execution.lease.renew`) and, for limits, `release`
with `serve` (as `core.limit.release.serve`).

`Store` is cut by the five words: execution (with its history and its streams), wait, flow, limit,
worker. Documents with a key and a version have no methods of their own: they are read and written
through `Store.records`.
`store.queries` has what is asked and answered.

Obligations that hold for every method:

* `now` comes from the caller and is the moment of the flush; SQL never asks for the time.
* A change is written whole or not at all, and only while the versions it was decided on stand;
  compared rows are locked (or the whole store is).
* An item that cannot be written never keeps its neighbours from being written.
* A row that cannot be read costs no other row anything: who asks for many gets the others, and the
  log names it; who asks for it by name gets `Corruption` with that name (`store.readable`).
* What a method returned as written is durable.
* Connection trouble is raised as `Unavailable`, never as a refusal.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import RegistryEvent
from flowfabric.core.execution.model import Attempt, Route, Snapshot
from flowfabric.core.execution.registry import FOREVER, HeldLease
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.stream import Stream
from flowfabric.core.execution.submission import Creation
from flowfabric.core.execution.sweep_filter import EVERY_RUN, SweepFilter
from flowfabric.core.flow.graph import NewFlow
from flowfabric.core.flow.join import EdgeState
from flowfabric.core.flow.model import Flow, FlowChange
from flowfabric.core.flow.outbox import OutboxEntry
from flowfabric.core.flow.progress import DownstreamChange
from flowfabric.core.limit.at_submission import Admissions
from flowfabric.core.limit.quota import Uses
from flowfabric.core.limit.release import QuotaView, Release, StartsBack
from flowfabric.core.limit.spend import BudgetLedger
from flowfabric.core.wait.model import Loaded, Needs, ReceivedSignal
from flowfabric.store.clock import StoreClock
from flowfabric.store.hints import Hints
from flowfabric.store.queries import (
    ChangedByEnds,
    ClaimCall,
    Counts,
    Crowd,
    Detail,
    EdgeQuery,
    EventPage,
    EventQuery,
    ExpiredLease,
    FlowQuery,
    FrameQuery,
    FrameRows,
    FrameWrite,
    Glance,
    Holding,
    InboxEntry,
    LaneCounts,
    LedgerNeeds,
    LinesRequest,
    MembersOf,
    MovedByRelease,
    OtherVersion,
    Owing,
    Page,
    Place,
    Query,
    QueueCount,
    QuotaViewRequest,
    Renewal,
    RouteDepth,
    ServedLines,
    SideWrite,
    SnapshotQuery,
    StoreIdentity,
    StreamMarks,
    Taken,
    Unsettled,
)
from flowfabric.store.rows.record import K, RecordKind, V

NO_FILTER: Mapping[str, object] = {}

MAX_BATCH = 500
"""Most items one call of a writing method is given."""


class RecordStore(Protocol):
    """Documents that are read and written by key and version; `store.rows.record` has the kinds.

    A write names the version it was decided on, 0 for a record that is not there. It gives the
    record the next version, or the first one of its kind (`RecordKind.numbered`).
    """

    async def get(self, kind: RecordKind[K, V], keys: Sequence[K]) -> dict[K, V]:
        """The records of these keys, in one statement. Corruption names one that cannot be read."""

    async def page(
        self,
        kind: RecordKind[K, V],
        after: K | None = None,
        limit: int | None = None,
        where: Mapping[str, object] = NO_FILTER,
    ) -> list[V]:
        """Records by key after a cursor (None: from the first), at most `limit` (None: all), only
        those with the values of `where` in its columns. Only kinds whose keys are text have pages.
        A page is shorter than its limit when records on it cannot be read."""

    async def put(
        self,
        kind: RecordKind[K, V],
        value: V,
        expected: int,
        events: Sequence[RegistryEvent] = (),
    ) -> bool:
        """Writes a record if the stored version is the expected one, and then its events."""

    async def drop(
        self,
        kind: RecordKind[K, V],
        key: K,
        expected: int | None = None,
        events: Sequence[RegistryEvent] = (),
    ) -> bool:
        """Deletes a record and what it owns if the stored version is the expected one (None: any),
        and then writes its events; False when there is none."""

    async def due(self, kind: RecordKind[K, V], now: Millis, limit: int) -> list[V]:
        """Records whose moment has come, earliest first."""

    async def next_due(self, kind: RecordKind[K, V]) -> Millis | None:
        """The earliest moment of all records of a kind."""

    async def expire(self, kind: RecordKind[K, V], now: Millis) -> list[K]:
        """Deletes the records whose moment has come, also those that cannot be read, and writes
        the events of `RecordKind.expired`; returns their keys. Only kinds that own nothing
        expire."""


class SubmissionStore(Protocol):
    """How executions come to be: submitted, or through the inbox that applications write into."""

    async def submit(self, creations: Sequence[Creation], now: Millis) -> list[ExecutionId | None]:
        """Creates each execution with its state row, tags, deadline and key. For each, in order:
        None when it was created, else the id of the execution that was there already (found by
        a live key first, then by its own id). Keys and ids are unique within one call. A key
        whose window has passed is taken over."""

    async def submit_and_admit(
        self, creations: Sequence[Creation], admissions: Admissions, now: Millis
    ) -> tuple[list[ExecutionId | None], bool]:
        """As `submit`, for creations with new ids and without keys and steps. Those that are
        admitted become ready (`admissions.admitted`), and each version becomes one more, if every
        quota still has its version and no run waits in their lines (True). Otherwise all are
        created as they are (False). No wait for any other lock than those of the quotas."""

    async def known(
        self, id: UUID | None, namespace: str, key: str | None, now: Millis
    ) -> ExecutionId | None:
        """The execution that a submission with this id or key finds, as `submit` does; None if it
        would create one."""

    async def inbox(self, uuids: Sequence[UUID] | None, limit: int) -> list[InboxEntry]:
        """Submissions in the inbox, oldest first; only those with the given ids, if given."""

    async def admit(self, creations: Sequence[Creation], now: Millis) -> int:
        """Turns inbox entries into executions of the same id, each once, whichever process asks;
        returns how many. Their keys were taken when they reached the inbox."""


class ExecutionStore(Protocol):
    """Executions, and what is due."""

    # -- the hot path, one durable round trip each, at most MAX_BATCH items

    async def claim(self, call: ClaimCall, now: Millis) -> list[Taken]:
        """Takes the best `limit` executions of `ready` (lost ones included) whose route the worker
        satisfies: in the given lanes (empty: every lane) and namespace (None: every one), of the
        given kinds (None: every kind), no live hold for another worker, as far as their lanes
        allow, by (rank, id) over all of them. Each moves to `lease` exactly as
        `core.execution.lease.take` would do it, with its event. Rows locked by another claimer are
        skipped: a short result does not mean an empty queue. With `repeated` the executions this
        call took before and still holds are returned first, all of them, as `Taken.again`; a limit
        of 0 asks for no others. One that cannot be read is set aside; the next best is taken in its
        place.
        `suspects` leaves out suspects or all others. A row that is SPENT is taken without a new
        epoch and without an event, for the caller to give it up. Of what has begun before, the
        recorded steps may come with it (`Taken.steps`), where reading them later is a round trip.

        Of lanes, which are records (`LANES`), it repeats `core.limit.lane.begins` and `is_full`:
        nothing of a paused lane; of a draining one only what has begun (a start other than
        INITIAL); of one with a concurrency only so many that no more than that have a row in
        `lease` (rivals included: the lane's row is locked first)."""

    async def claim_all(self, calls: Sequence[ClaimCall], now: Millis) -> list[list[Taken]]:
        """As `claim` for each call in turn, in one round trip: what the calls take, in their order.
        They differ only in id, worker, limit, ttl and `repeated`; calls with a limit of 0 may
        differ in anything. The executions go to the calls in order, best first, except that one
        that is held for a worker goes to no other."""

    @property
    def suspects_seen(self) -> bool:
        """Whether a suspect waited, of any route, when this process last claimed. Costs nothing;
        True before the first claim."""

    @property
    def lanes_seen(self) -> bool:
        """Whether a recent claim of this process met a lane that is closed or has a concurrency.
        Costs nothing."""

    async def renew(self, renewals: Sequence[Renewal], now: Millis) -> dict[UUID, Millis]:
        """Extends each lease whose id and epoch match and which has not expired; never shortens
        one. Writes the event of those extended whose renewal says `record`. Returns the new expiry
        of those extended."""

    async def end(
        self,
        changes: Sequence[Change[object]],
        now: Millis,
        downstreams: Sequence[DownstreamChange] = (),
    ) -> ChangedByEnds:
        """Writes endings for which `Change.plain_end` holds: the lease row goes if version,
        epoch, lease id stand and it has not expired by `now`; done row and event come. In the same
        commit it writes changes of downstreams for which `Change.plain_release` holds: each if all
        its upstreams were ended by this call, none of them has more open edges than the change
        says, its version stands, and no other session has locked it."""

    async def end_and_claim(
        self,
        changes: Sequence[Change[object]],
        now: Millis,
        downstreams: Sequence[DownstreamChange],
        call: ClaimCall,
    ) -> ChangedByEnds:
        """As `end`, but of downstreams with a `claimed` change it writes that, if `call` may take
        the downstream and would take nothing before it: its lane is open, no lane of the call
        drains or has a concurrency, and no row that the call may take now is better. It may write
        the other change for any other reason. The id of the call is the lease id, so that a claim
        with this id finds what was taken here."""

    async def write_progress(self, writes: Sequence[SideWrite], now: Millis) -> set[UUID]:
        """Writes each side write whose lease stands (the lease row is locked while it is
        written); returns the executions whose lease stood. Several may be for one
        execution. A step that is recorded already stays as it is; progress and state
        value overwrite."""

    async def apply(self, changes: Sequence[Change[object]]) -> set[UUID]:
        """The general way to write: locks every state row a change was decided on, keeps the
        changes whose version stands in the same place (and, for a lease, whose expiry stands: a
        renewal moves only that), moves the rows, writes attempts, events, steps and alarms, new
        waitpoints (an existing one stays), signals, which suspension earlier signals counted for,
        dedup records (the last of a key stays), how edges were settled, and the outbox entries that
        the change owes to its flow. A waitpoint of an attempt whose id another execution uses is
        refused with its whole change. One change per execution. Returns the executions whose change
        was written; the others must be decided again on what is there now."""

    # -- what is due, and what may go

    async def due(
        self,
        now: Millis,
        limit: int,
        *,
        leases: bool = True,
        wanted: SweepFilter = EVERY_RUN,
    ) -> list[UUID]:
        """Executions with something due: parked until a moment that has come, a lease or an
        attempt that ran out, a deadline that passed; only `wanted` ones. Leases that ran out are
        found by reading all of them; without `leases` they are left out."""

    async def next_due(self, now: Millis, *, leases: bool = True) -> Millis | None:
        """The earliest moment after `now` something known today becomes due, with or without the
        ends of leases."""

    async def set_aside(self, uuids: Sequence[UUID], now: Millis, until: Millis) -> None:
        """Leaves executions that cannot be read alone until then: what is ready is not claimed,
        what is due is due again at that moment."""

    async def glance(
        self,
        duty: str,
        holder: str,
        now: Millis,
        until: Millis,
        *,
        ready: bool = True,
        leases: bool = True,
    ) -> Glance:
        """All that a process at rest must know, in one statement; `holder` takes the duty until
        `until` if it had it, or if it is free. Without `ready` it is not known whether anything can
        be claimed, without `leases` whether one ran out."""

    async def drop_duty(self, duty: str, holder: str) -> None:
        """Gives the duty up if `holder` has it."""

    async def trim(
        self,
        ended_before: Millis,
        now: Millis,
        limit: int,
        unread_from: Millis = FOREVER,
        wanted: SweepFilter = EVERY_RUN,
    ) -> int:
        """Deletes up to `limit` of the `wanted` executions that ended at or before `ended_before`
        (one with a retention of its own: when that has passed by `now`, if it ended at or before
        `unread_from`) with everything that belongs to them, wanted flows without members, keys
        whose window has passed, and events of the worker registry as old as that. Returns the
        number of executions deleted."""

    # -- reads

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        """The executions as they stand, in one statement, so that a moving row is seen once.
        Corruption names one that cannot be read; ask for the others without it."""

    async def ended(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        """Those of the executions that have ended, read as by `load`: the cheap query of waiting
        callers."""

    async def detail(self, uuid: UUID) -> Detail | None:
        """One execution with payload, tags, progress and the last moment anything happened."""

    async def tags(self, uuids: Sequence[UUID]) -> list[dict[str, str]]:
        """The tags of each of these executions; none for one that does not exist."""

    async def page(self, query: Query | MembersOf) -> Page:
        """Executions by (created_at, id); examines a bounded number of rows per call. Members of a
        flow as `snapshots` gives them, without a cursor. Names those that cannot be read."""

    async def snapshots(self, query: SnapshotQuery) -> list[Snapshot]:
        """Members of a flow, claimable, suspended or failed executions, as their query says.
        Without those that cannot be read."""

    async def counts(
        self, namespace: str | None = None, lane: str | None = None, *, flow: UUID | None = None
    ) -> Counts:
        """How many executions are in each public state; with a flow, how many of its members."""

    async def set_tags(self, uuid: UUID, tags: Mapping[str, str], now: Millis) -> bool:
        """Adds or replaces tags, all or none; False when there is no such execution."""


class HistoryStore(Protocol):
    """What has happened to executions: attempts, recorded steps, events."""

    async def attempts(self, uuid: UUID) -> list[Attempt]:
        """The attempts in history, by index."""

    async def attempts_at(self, asked: Sequence[tuple[UUID, int]]) -> dict[UUID, Attempt]:
        """Of each execution the attempt in history with this index, if it is there and can be
        read; one index per execution."""

    async def steps(self, asked: Sequence[tuple[UUID, int]]) -> list[list[Step]]:
        """The recorded steps of each execution and generation, by position, in the order asked."""

    async def events(self, query: EventQuery) -> EventPage:
        """Events after a cursor. Skips none, also of transactions that commit late. After NEWEST
        there are none, and the cursor of the page is that of the last event."""

    async def forgotten_event(self) -> int:
        """The highest number of an event that `trim` has deleted, 0 if there is none. A reader with
        a lower cursor may have missed events."""


class StreamStore(Protocol):
    """What attempts write while they run."""

    async def write_frames(
        self, writes: Sequence[FrameWrite], now: Millis
    ) -> set[tuple[UUID, int]]:
        """Writes each append whose lease stands (it is locked as for `write_progress`) and whose
        stream has the expected version, whole or not at all: the header, the frames, the summary if
        the append has changed it; frames of `trims` are deleted, and of each mode the newest one
        deleted is remembered as its gap. One write per stream. Returns the execution and attempt of
        those written."""

    async def streams(self, keys: Sequence[tuple[UUID, int]]) -> dict[tuple[UUID, int], Stream]:
        """The streams of these attempts, with their summaries. Corruption names one that cannot be
        read."""

    async def read_frames(self, queries: Sequence[FrameQuery]) -> list[FrameRows | Corruption]:
        """For each query, in order, the stream, what was trimmed, and its frames, all of one
        moment. The limit counts frames of the modes asked for."""

    async def stream_marks(self, uuids: Sequence[UUID]) -> dict[UUID, StreamMarks]:
        """The cheap query of waiting readers, for each of these executions."""

    async def expire_frames(self, now: Millis, limit: int) -> int:
        """Deletes the frames of up to `limit` streams whose moment to expire has come, which are
        remembered as gaps; returns of how many streams."""


class WaitStore(Protocol):
    """What executions wait for from outside."""

    async def load_needs(self, needs: Sequence[Needs]) -> list[Loaded]:
        """For each of the needs, in order, what exists of it: waitpoints, dedup records (also those
        that ran out), edges, the signals buffered at waitpoints, by number, and which ids another
        execution uses for a waitpoint of an attempt. Called after `load`, so it is never older than
        the snapshot a rule decides on."""

    async def signals(
        self, uuid: UUID, *, suspension: UUID | None = None, after: int = 0, limit: int = 1000
    ) -> list[ReceivedSignal]:
        """Accepted signals of an execution with a number above `after`, by number; with a
        suspension only those that counted for it."""


class FlowStore(Protocol):
    """Graphs of executions, and the outbox of what is owed to them."""

    async def flow_page(self, query: FlowQuery) -> list[Flow]:
        """Flows by (created_at, id)."""

    async def apply_flow(self, change: FlowChange) -> bool:
        """Writes a change of a flow and everything in it, whole or not at all: the flow if its
        version is current (a new one if there is none of that id), the executions of `changes` as
        `apply` does, edges (an existing one stays), and new outbox entries; entries that are done
        are deleted. The edges of `applied` exist and are given this document; if one passes data
        from then on, its downstream is among `changes` or `guards`. `guards` are compared and
        locked like the executions of `changes`. With `done`, every one of those entries must still
        exist, so that each is counted once. False if anything has changed."""

    async def lay_flows(self, flows: Sequence[NewFlow], now: Millis) -> set[UUID]:
        """Creates each flow that does not exist, with its edges (an existing one stays) and its
        members as `submit` does, which have no keys and no steps: whole or not at all. Returns the
        flows that were created."""

    async def count_flows(
        self, changes: Sequence[FlowChange], told: Sequence[OutboxEntry] = ()
    ) -> set[UUID]:
        """Writes changes that only count outbox entries: each flow whose version is current, with
        its entries that are done and those that are owed. The flows were read before the entries,
        so an unchanged version means that no other process has counted them. Returns the flows that
        were written. `told` are entries owed to runs, which have no flow to count them: they are
        deleted, and those that are gone already are left out."""

    async def edges(self, query: EdgeQuery) -> list[EdgeState]:
        """Edges by id."""

    async def unsatisfied(self, flow: UUID, downstream: UUID) -> int:
        """How many edges into a member are not settled, without those that are unapplied."""

    async def unsettled(
        self,
        endings: Sequence[tuple[UUID, UUID]],
        after: UUID | None,
        limit: int,
        each: int | None = None,
    ) -> list[Unsettled]:
        """Edges that leave the given members (flow, execution) and are not settled, by id, at most
        `each` of a member, each with its downstream: an edge that is settled meanwhile moves the
        version of that."""

    async def owing(self, flows: Sequence[UUID], limit: int) -> Owing:
        """Flows, what is owed to each (at most `limit` entries, also where there is no flow), and
        which of the members that have ended still have open edges. Corruption names a flow that
        cannot be read."""

    async def owed_flows(self, limit: int) -> list[UUID]:
        """Flows that something is owed to, and runs that are owed the end of another one."""


class LimitStore(Protocol):
    """Quotas with the queues before them, and budgets.

    A quota is a record (`QUOTAS`). The rows of the queues of one that is dropped stay until
    `trim_limits`, so that executions that wait in them are found.

    The state rows `ready`, `lease` and `parked` carry `queue` (`rows.queue_number`): of an
    execution with quotas the number of its queue while it is ready, lost, running or waits at
    the limits gate; of one that waits for a budget the number of that budget's queue; NULL
    otherwise. A row in `ready` or `lease` with a queue *is* a slot: it is counted, never kept
    in a counter. Only `release` moves rows with a queue into `ready`, so that while a quota's
    version stands its slots can only become fewer.
    """

    async def put_queues(self, queues: Sequence[tuple[int, Uses]]) -> None:
        """Notes for every quota of the uses that this queue is one of its; what is there stays."""

    async def quota_view(self, ask: QuotaViewRequest) -> QuotaView:
        """What a release decides on: the lines asked for; the quota asked for and those the lines
        use (as far as they exist, with versions); `held`: how many rows of `ready` and `lease` each
        queue of those quotas has (only if there are lines, and of quotas that limit concurrency; if
        all their limits are per key, only of queues with a key the lines use); `admitted`: the
        admissions within the longest window of each quota with a rate, for all of it and for the
        keys of the lines, oldest first; `served`: the latest turn of each quota, the one asked for
        also if it does not exist. The versions are never newer than the rest."""

    async def release(self, release: Release) -> MovedByRelease | None:
        """Writes a release, if every quota in `versions` still has that version (0: is not there;
        of the others each becomes one more) and every queue in `turns` has its row, and returns
        what was moved; None, and nothing is written, otherwise. Moves the rows of `moves` from
        `parked` to `ready` (next version, as `core.execution.gate.admit` would with the limits gate
        open; the rank later by as much as the move is after the creation) that still have their
        version there at the limits gate; the others have gone elsewhere meanwhile. Writes the turns
        of queues, adds the admissions, deletes the admissions of quotas in `forget` up to that
        moment. The third statement that may repeat a core rule."""

    async def serve(self, ask: LinesRequest) -> ServedLines | OtherVersion | None:
        """View, decision and release in one, for chosen lines of a quota that limits the
        concurrency of each key and nothing else; None, and nothing is written, if it has other
        limits, is missing or cannot be read. Nothing is written either if the version is not the
        one of the request. Counts the rows of `ready` and `lease` of each key in all its lines,
        where the request does not say how many slots are free, picks as many candidates as there
        are, and moves them as `release` does, in the order and at the moments of
        `core.limit.release.serve`. The version of the quota becomes one more, also if no run was
        admitted, and without any line: what another process knows no longer holds."""

    async def take_starts_back(self, starts: Sequence[StartsBack]) -> None:
        """Takes admissions off the log: of each quota and key `count` of those from `since` on, the
        oldest first, as far as there are so many. A release that was decided before counts them
        still, which is harmless."""

    async def crowds(self, after: int, limit: int) -> list[Crowd]:
        """Queues with waiting executions, by number above `after`. Must not read every waiting row:
        a hundred thousand may wait in one queue."""

    async def queue_counts(self, quota: str, limit: int) -> list[QueueCount]:
        """How many wait and run in each queue of a quota, by number; empty queues are left out."""

    async def ahead_of(self, queue: int, rank: int, uuid: UUID, limit: int) -> int:
        """How many parked rows of a queue are before (rank, id), counted up to `limit`."""

    async def executions_in(self, place: Place, limit: int) -> list[UUID]:
        """Which executions are at that place, at most so many."""

    async def lane_counts(self, lane: str, namespace: str | None) -> LaneCounts:
        """How many executions of a lane wait at which gate and in which queue, and how many are
        ready on which route; each counted up to 100,000."""

    async def depths(self, limit: int) -> list[RouteDepth]:
        """How many wait and run on each route. Reads at most `limit` rows of either."""

    async def routes(self) -> list[Route]:
        """Every route anything was ever submitted to."""

    async def trim_limits(self, now: Millis, forgotten: Millis, limit: int) -> int:
        """Deletes rows of queues in which nothing waits and which have no slots taken (all rows of
        a queue together, `limit` queues at most), admissions that no window which ends at
        `forgotten` reaches, and charges whose time has passed; returns how many rows."""

    # -- budgets and what was spent of them

    async def ledger(self, ask: LedgerNeeds) -> BudgetLedger:
        """What exists of what is asked for; budgets with their versions."""

    async def post(self, ledger: BudgetLedger) -> bool:
        """Writes everything in `ledger` that is new, whole or not at all: each budget in `changed`
        if its stored version is the one noted there (0: there is none; the new one is one more),
        or deletes it with its ledgers and charges if it is in `removed`; ledgers, charges (the last
        of a key stays) and reservations (None: it goes). A reservation that goes must still be
        there, so that it is given back once. False when anything has moved meanwhile."""

    async def attached(self) -> list[tuple[str, str, str]]:
        """The budgets of a namespace, a flow or a run: (scope, its id, name)."""


class WorkerStore(Protocol):
    """The leases workers hold. Their entries in the registry are records (`PRESENCES`)."""

    async def held_leases(
        self,
        instance: str,
        limit: int,
        *,
        worker: str | None = None,
        namespace: str | None = None,
        after: UUID | None = None,
    ) -> list[HeldLease]:
        """The leases of a worker instance by execution, also of executions that cannot be read."""

    async def held_counts(self, instances: Sequence[str]) -> list[Holding]:
        """How many leases these instances hold, those that hold none left out."""

    async def expired_leases(
        self,
        as_of: Millis,
        after: tuple[Millis, UUID] | None,
        limit: int,
        namespace: str | None,
    ) -> list[ExpiredLease]:
        """Leases that ran out or were revoked at or before `as_of`, marked as lost or not, by that
        moment and id."""


class Store(
    SubmissionStore,
    ExecutionStore,
    HistoryStore,
    StreamStore,
    WaitStore,
    FlowStore,
    LimitStore,
    WorkerStore,
    Protocol,
):
    """One database. Opened by `open_store(url)`, closed by `close`."""

    name: str
    is_server: bool
    """Whether the database works in a process of its own, so that this one can go on meanwhile."""
    clock: StoreClock
    hints: Hints

    @property
    def records(self) -> RecordStore:
        """Schedules, quotas and the other kinds of `store.rows.record`."""

    async def migrate(self) -> int:
        """Brings the schema up to date and returns its version. Safe to call from many
        processes at once; raises SchemaTooNew for a database of a newer release."""

    async def identity(self) -> StoreIdentity:
        """What the database is called and the key that signs its handles, the same for every
        process."""

    async def keep_time(self) -> None:
        """Compares the clock with what all processes know of it (`StoreClock`), now and then and
        after it was set back. Called when an engine opens and by the sweep."""

    async def close(self) -> None:
        """Finishes what is under way and lets go of every connection."""
