"""An execution: facts that never change, a head that every state row carries, and one state of a
closed union.

The state is a union, so that an impossible combination cannot be written; `status.py` projects it
to the seven public dimensions.

Values never form cycles, so the garbage collector need not track them (`gc=False`): a busy engine
creates a hundred thousand of them a second.
"""

from enum import IntEnum, IntFlag, StrEnum
from typing import Any
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.ids import (
    ExecutionId,
    derive_attempt_id,
    flow_partition,
    is_home,
    lane_partition,
)
from flowfabric.core.base.time import Millis, earliest
from flowfabric.core.execution.grant_record import Grant, GrantKind
from flowfabric.core.execution.mismatch import CodeBlock
from flowfabric.core.execution.new_attempt import GivenAttempt
from flowfabric.core.execution.outcome import AttemptOutcome as AttemptOutcome
from flowfabric.core.execution.outcome import Cleanup, CloseReason
from flowfabric.core.execution.outcome import Outcome as Outcome
from flowfabric.core.execution.outcome import Start as Start
from flowfabric.core.execution.policy import DEFAULT_POLICY, DEFAULT_RECLAIM_CAP, Policy
from flowfabric.core.execution.rank import MAX_PRIORITY as MAX_PRIORITY
from flowfabric.core.execution.rank import RANK_STEP as RANK_STEP
from flowfabric.core.execution.rank import clamp_priority as clamp_priority
from flowfabric.core.execution.rank import rank_of as rank_of
from flowfabric.core.flow.join import Join
from flowfabric.core.limit.quota import Uses
from flowfabric.core.wait.model import NO_WAITS, Waits

HANDED_BACK = "handed_back"
"""The reason of an interrupted attempt whose worker stops."""


class Gate(IntEnum):
    """Why an execution waits. `gate.admit` fixes the order of the gates."""

    INBOX = 0
    UNSEALED = 1
    BLOCKED = 2
    DEPENDENCIES = 3
    DELAY = 4
    BACKOFF = 5
    RESUME_DELAY = 6
    WORKER_DELAY = 7
    LIMIT = 8
    BUDGET = 9


class Flags(IntFlag):
    """What else an execution owns. Only an execution without flags may end without a load.

    SUSPECT and SPENT mark a lost execution for the claim (`takeover.py`). SUSPECT: it may have
    killed its worker. SPENT: the next claim gives it up instead of taking it over. CLEANUP: it has
    `life.cleanup`, so it has an alarm.
    """

    NONE = 0
    DEADLINE = 1
    RETENTION = 2
    FLOW = 4
    LIMITS = 8
    WAITPOINTS = 16
    BUDGETS = 32
    SUSPECT = 64
    SPENT = 128
    CLEANUP = 256


# A plain number, because flags are slow and every change is tested.
_DEADLINE = int(Flags.DEADLINE)
_SUSPECT = int(Flags.SUSPECT)
_LIMITS = int(Flags.LIMITS)


class Source(StrEnum):
    """The source of an owner operation. Any other text is allowed as a custom source."""

    LEASE_HOLDER = "lease_holder"
    OPERATOR = "operator_override"
    FLOW_CASCADE = "flow_cascade"
    SYSTEM_TIMEOUT = "system_timeout"


class Route(Struct, frozen=True, gc=False):
    """Where an execution can run; interned by the store so that a claim compares a number."""

    namespace: str
    lane: str
    kind: str
    capabilities: tuple[str, ...] = ()


class WorkerIdentity(Struct, frozen=True, gc=False):
    """`id` authorises (grants name it); `instance` is one process, recorded for audit."""

    id: str
    instance: str


class Failure(Struct, frozen=True, omit_defaults=True):
    """`detail` is the traceback. `step` is the step that raised it, if one did."""

    message: str
    category: str = "transient"
    detail: bytes | None = None
    step: str | None = None


class Fence(Struct, frozen=True, gc=False):
    """Proof of ownership. All three members must be the execution's current ones."""

    lease_id: UUID
    epoch: int
    attempt_id: UUID


class InterruptedAttempt(Struct, frozen=True, omit_defaults=True):
    """An interrupted attempt: it gave up its lease and will be continued."""

    index: int
    type: Start
    worker: WorkerIdentity
    epoch: int
    started_at: Millis
    paused_at: Millis
    reason: str
    timeout: Millis | None = None


class LostLease(Struct, frozen=True, omit_defaults=True):
    """The lease that was lost, kept until the attempt that replaces it is recorded. The timer of an
    attempt survives a revocation: `times_out_at` ends an attempt that no worker takes over. A lease
    that continued an attempt says when that was `suspended_at` and `resumed_at`."""

    index: int
    type: Start
    lease_id: UUID
    epoch: int
    worker: WorkerIdentity
    started_at: Millis
    expires_at: Millis
    at: Millis
    reason: str = ""
    revoked: bool = False
    times_out_at: Millis | None = None
    suspended_at: Millis | None = None
    resumed_at: Millis | None = None


class Released(Struct, frozen=True, omit_defaults=True):
    """What the last owner operation did, and under which fence, so that a repeat gets the same
    answer. `state` is the public state in that answer, if it had one."""

    operation: str
    lease_id: UUID
    epoch: int
    attempt: int
    until: Millis | None = None
    state: str | None = None


class Probation(StrEnum):
    """How a worker runs a suspect: alone in its process, or beside older runs that did not end in
    time."""

    ALONE = "alone"
    BESIDE = "beside"


class Life(Document, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What has happened to the execution so far. Empty for one that runs just once.

    `flows` are those it has started and not yet heard from. They are cancelled when it ends without
    success, and a replay remembers them as `orphans`. `awaited_by` are runs that are signalled when
    it ends. `place` is its rank by creation, stored if
    aging makes it differ from `rank_of`.

    `losses` are all leases it has lost. `excused` of them are not its fault, and `revokes` were
    revoked by an operator since it was last excused. `max_reclaims` is the cap given by its grant.
    `code` says which code does not fit its recorded steps, if any was found. `channels` is the
    generation whose channels it still uses, if it was replayed from a chosen step since. One that
    is `seeded` was given steps before its first attempt. `undo_time` is how long its recorded
    compensations may take, None if it has none; `cleanup` is the clean-up that is going on, or that
    it ended with. `lost_race` says that a join cancelled it, because it had its answer.
    `newest_edge` is the last that was staged into it, in a flow that grows.
    `result_encoding` is what its owner said of the result, if anything. `touched_at` is the moment
    of the last change that no event and no lease shows.
    """

    priority: int | None = None
    place: int | None = None
    started_at: Millis | None = None
    deadline_at: Millis | None = None
    retries: int = 0
    losses: int = 0
    excused: int = 0
    revokes: int = 0
    max_reclaims: int | None = None
    probation: Probation | None = None
    replays: int = 0
    generation: int = 0
    channels: int | None = None
    seeded: bool = False
    not_before: Millis | None = None
    delay: Gate | None = None
    blocked: str | None = None
    detail: str | None = None
    code: CodeBlock | None = None
    paused: InterruptedAttempt | None = None
    lapsed: LostLease | None = None
    released: Released | None = None
    failure: Failure | None = None
    cancel_reason: str | None = None
    cancelled_by: str | None = None
    lost_race: bool = False
    undo_time: Millis | None = None
    cleanup: Cleanup | None = None
    waits: Waits | None = None
    join: Join | None = None
    unsealed: bool = False
    newest_edge: UUID | None = None
    budget: str | None = None
    flows: tuple[UUID, ...] = ()
    orphans: tuple[UUID, ...] = ()
    awaited_by: tuple[UUID, ...] = ()
    grant: Grant | None = None
    given: tuple[GivenAttempt, ...] = ()
    result_encoding: str | None = None
    touched_at: Millis | None = None


EMPTY_LIFE = Life()


class Facts(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The rarer facts of a submission, stored as one document. `member` is its name in a flow. A
    fork names the run that it was `forked_from`, and the step at which, if there was one. `trace`
    is the W3C trace context of the submission."""

    priority: int = 0
    key: str | None = None
    creator: str | None = None
    encoding: str | None = None
    delay_until: Millis | None = None
    deadline_at: Millis | None = None
    member: str | None = None
    forked_from: str | None = None
    forked_at: str | None = None
    trace: str | None = None


NO_FACTS = Facts()


class Execution(Struct, frozen=True, gc=False):
    """Written once at submit, never updated. The payload is loaded only where it is needed."""

    uuid: UUID
    created_at: Millis
    route: Route
    policy: Policy | None = None
    facts: Facts = NO_FACTS
    flow: UUID | None = None

    @property
    def id(self) -> ExecutionId:
        return ExecutionId.of(self.partition, self.uuid)

    @property
    def partition(self) -> int:
        """That of its id."""
        if self.flow is not None:
            return flow_partition(self.flow)
        return lane_partition(self.route.lane)

    @property
    def flow_joined(self) -> UUID | None:
        """The flow; None also for one that waits in its partition to join a flow."""
        return None if self.flow is None or is_home(self.flow) else self.flow

    @property
    def kind(self) -> str:
        return self.route.kind

    @property
    def rules(self) -> Policy:
        return self.policy or DEFAULT_POLICY

    @property
    def uses(self) -> Uses:
        """The quotas in which it needs room while it is ready or running."""
        return self.policy.quotas if self.policy else ()

    @property
    def reclaim_cap(self) -> int:
        """How often it may be taken over after a loss."""
        cap = self.rules.reclaim_cap
        return DEFAULT_RECLAIM_CAP if cap is None else cap


class Head(Struct, frozen=True, gc=False):
    """The part that every state row carries. `version` moves with every change that an owner's
    decision depends on; `epoch` grows with every lease and never falls."""

    version: int = 1
    epoch: int = 0
    rank: int = 0
    flags: Flags = Flags.NONE
    life: Life = EMPTY_LIFE


class Next(Struct, frozen=True, gc=False):
    """What the next claim will run: attempt `attempt`, started as `start`."""

    start: Start
    attempt: int
    timeout: Millis | None = None

    @property
    def attempts_made(self) -> int:
        return self.attempt + (self.start is Start.CONTINUE)


class Hold(Struct, frozen=True, gc=False):
    """Reserves a ready execution for one worker (a grant), or keeps it from all workers (a grace
    period)."""

    until: Millis
    worker: str | None = None

    def alive(self, now: Millis) -> bool:
        return self.until > now


class Lease(Struct, frozen=True, gc=False):
    id: UUID
    attempt: int
    start: Start
    worker: WorkerIdentity
    started_at: Millis
    expires_at: Millis
    times_out_at: Millis | None = None
    renewed_at: Millis | None = None


class Waiting(Struct, frozen=True, gc=False, tag=True):
    gate: Gate
    next: Next
    due_at: Millis | None = None


class Ready(Struct, frozen=True, gc=False, tag=True):
    next: Next
    hold: Hold | None = None


class Active(Struct, frozen=True, gc=False, tag=True):
    lease: Lease


class Lost(Struct, frozen=True, gc=False, tag=True):
    """It has not ended, but no worker runs it; `life.lapsed` is its former lease."""

    revoked: bool
    next: Next
    hold: Hold | None = None


class Suspended(Struct, frozen=True, gc=False, tag=True):
    next: Next
    suspension: UUID
    reason: str
    since: Millis
    due_at: Millis | None = None


class Ended(Struct, frozen=True, gc=False, tag=True):
    """`attempt` is the last attempt (None: it never ran); `pending` is the start that did not
    happen."""

    outcome: Outcome
    ended_at: Millis
    attempt: int | None = None
    pending: Start | None = None
    lease: Lease | None = None
    result: bytes | None = None


State = Waiting | Ready | Active | Lost | Suspended | Ended
WITH_SLOT = (Ready, Lost, Active)
"""States in which an execution holds the slots of its quotas. A tuple: a union would be built by
every test."""

_WITHOUT_SLOT = (Waiting, Suspended)


class Snapshot(Struct, frozen=True, gc=False):
    """One execution at one version: what a rule decides on."""

    execution: Execution
    head: Head
    state: State

    def to(self, state: State, **head: Any) -> "Snapshot":
        """The snapshot after a change: next version, given state, given head members."""
        new = replace(self.head, version=self.head.version + 1, **head)
        if int(new.flags) & _SUSPECT and _survived(self.state, state, new.life):
            new = replace(new, flags=new.flags & ~Flags.SUSPECT, life=excused(new.life))
        if (waits := new.life.waits) is not None:
            left = _still_open(waits, state)
            if left is not waits:
                new = replace(new, life=replace(new.life, waits=left))
        if new.life.grant is not None and isinstance(state, Ready) and state.hold is None:
            state = replace(state, hold=granted_hold(new))
        after = Snapshot(self.execution, new, state)
        if int(new.flags) & _LIMITS and isinstance(state, _WITHOUT_SLOT):
            return replace(after, head=replace(new, rank=after.place))  # no slot, no admission
        return after

    @property
    def run(self) -> str:
        """How errors name it to users."""
        return f"run {self.execution.uuid}"

    @property
    def life(self) -> Life:
        return self.head.life

    @property
    def waits(self) -> Waits:
        """What it waits for from outside; empty if it has never waited."""
        return self.head.life.waits or NO_WAITS

    @property
    def priority(self) -> int:
        changed = self.head.life.priority
        return self.execution.facts.priority if changed is None else changed

    @property
    def place(self) -> int:
        """Its rank by creation, which is its place in a line. An admitted execution is ranked by
        its admission instead."""
        kept = self.head.life.place
        return rank_of(self.execution.created_at, self.priority) if kept is None else kept

    @property
    def admitted_at(self) -> Millis:
        """The moment of admission if it has limits, otherwise of creation."""
        return Millis(self.execution.created_at + self.head.rank - self.place)

    @property
    def deadline_at(self) -> Millis | None:
        if not int(self.head.flags) & _DEADLINE:
            return None
        return self.head.life.deadline_at or self.execution.facts.deadline_at

    @property
    def alarm_at(self) -> Millis | None:
        """When the sweep must look at the execution, in any state: its deadline or the end of its
        clean-up, the timer of an attempt whose lease was revoked, or the expiry of a pending
        waitpoint. None if it has ended."""
        if isinstance(self.state, Ended):
            return None
        life = self.head.life
        if life.cleanup is not None:
            end: Millis | None = life.cleanup.until
        else:
            end = self.deadline_at if int(self.head.flags) & _DEADLINE else None
            if life.lapsed is not None:
                end = earliest((end, life.lapsed.times_out_at))
        if life.waits is None or not life.waits.pending:
            return end
        return earliest((end, life.waits.next_expiry))

    @property
    def attempts_made(self) -> int:
        match self.state:
            case Active(lease=lease):
                return lease.attempt + 1
            case Ended(attempt=attempt):
                return 0 if attempt is None else attempt + 1
            case Waiting() | Ready() | Lost() | Suspended():
                return self.state.next.attempts_made

    @property
    def current_attempt(self) -> int | None:
        """The current attempt: running, interrupted or the last; None between two attempts."""
        match self.state:
            case Active(lease=lease):
                return lease.attempt
            case Lost():
                return self.state.next.attempt - 1
            case Ended(pending=None, attempt=attempt):
                return attempt
            case Ended():
                return None
            case Waiting() | Ready() | Suspended():
                next = self.state.next
                return next.attempt if next.start is Start.CONTINUE else None

    @property
    def attempt_id(self) -> UUID | None:
        index = self.current_attempt
        return None if index is None else self.attempt_id_of(index)

    def attempt_id_of(self, index: int) -> UUID:
        """The id of an attempt: derived from its index, unless its claim gave it one."""
        given = self.given_to(index)
        if given is not None and given.id is not None:
            return given.id
        return derive_attempt_id(self.execution.uuid, index)

    def given_to(self, index: int | None) -> GivenAttempt | None:
        """What the claim of an attempt gave it."""
        return next((given for given in self.head.life.given if given.index == index), None)

    @property
    def reclaims(self) -> int:
        """How many losses were followed by a new attempt."""
        return self.head.life.losses - isinstance(self.state, Lost)

    @property
    def started_at(self) -> Millis | None:
        if self.head.life.started_at is not None:
            return self.head.life.started_at
        match self.state:
            case Active(lease=lease) | Ended(lease=Lease() as lease):
                return lease.started_at
            case _:
                return None


def granted_hold(head: Head) -> Hold | None:
    """The hold of the last claim or resume grant if it was not redeemed: a block, a delay or an
    upstream in between does not end a grant. An expired one holds nothing."""
    grant = head.life.grant
    if grant is None or grant.kind is GrantKind.RECLAIM or grant.epoch != head.epoch:
        return None
    return Hold(grant.expires_at, grant.worker)


def excused(life: Life) -> Life:
    """The life of an execution that a worker has survived. Without a probation, others may have run
    beside it: then it is no longer a suspect, but its losses still count."""
    if life.probation is None:
        return life
    return replace(life, excused=life.losses, revokes=0, probation=None)


def _survived(before: State, after: State, life: Life) -> bool:
    """Whether an attempt has reached a suspension, a delay or its own failure. A hand-back proves
    nothing, because a stopping worker does it at any point."""
    match after:
        case Suspended():
            return isinstance(before, Active)
        case Waiting(next=next) | Ready(next=next) if isinstance(before, Active):
            paused = life.paused is not None and life.paused.reason != HANDED_BACK
            return next.start is Start.RETRY or (next.start is Start.CONTINUE and paused)
        case _:
            return False


def _still_open(waits: Waits, state: State) -> Waits:
    """What an execution still waits for in a new state: no suspension unless it is suspended, and
    no waitpoint of an attempt that does not continue. Waitpoints of the execution itself survive
    its end: they accept no signals, but a replay finds them again. A suspension that ends with the
    execution was not resumed, whatever ended the one before it."""
    if isinstance(state, Ended):
        known = {p.id: p for p in (*waits.pending, *waits.active) if p.attempt is None}
        lasting = tuple(replace(p, counted=0) for p in known.values())
        last = waits.last if waits.suspension is None else None
        return Waits(signals=waits.signals, internal=waits.internal, pending=lasting, last=last)
    suspension = waits.suspension if isinstance(state, Suspended) else None
    pending = waits.pending
    if pending:
        attempt = _attempt_going_on(state)
        pending = tuple([p for p in pending if p.attempt is None or p.attempt == attempt])
    if suspension is waits.suspension and len(pending) == len(waits.pending):
        return waits
    return replace(waits, pending=pending, suspension=suspension)


def _attempt_going_on(state: State) -> int | None:
    match state:
        case Active(lease=lease):
            return lease.attempt
        case Waiting(next=next) | Ready(next=next) | Suspended(next=next):
            return next.attempt if next.start is Start.CONTINUE else None
        case Lost() | Ended():
            return None


class Progress(Struct, frozen=True):
    """What the owner of an attempt last said about how far it is. None leaves the earlier
    value."""

    percent: int | None = None
    message: str | None = None


class Attempt(Document, frozen=True, kw_only=True, omit_defaults=True):
    """One numbered try. It gets its own row when another attempt replaces it. `suspended_at` and
    `resumed_at` are when it last gave up its lease (to wait, or because its worker stopped), and
    when a worker continued it after that. `closed` and `closed_at` say why and when its output
    stream was closed, if that differs from what the outcome and the end of the attempt say.
    `progress` is stored beside the lease, and filled in where attempts are shown."""

    index: int
    type: Start
    outcome: AttemptOutcome
    worker: WorkerIdentity | None = None
    lease_id: UUID | None = None
    epoch: int = 0
    started_at: Millis | None = None
    ended_at: Millis | None = None
    suspended_at: Millis | None = None
    resumed_at: Millis | None = None
    previous: int | None = None
    failure: Failure | None = None
    result: bytes | None = None
    result_encoding: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    id: UUID | None = None
    policy: Policy | None = None
    closed: CloseReason | None = None
    closed_at: Millis | None = None
    progress: Progress | None = None

    @property
    def number(self) -> int:
        """As people count: the first attempt is number 1."""
        return self.index + 1
