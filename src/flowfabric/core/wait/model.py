"""What an execution waits for from outside, as values: suspensions, waitpoints, signals.

Everything that changes is part of the execution's life, so that the version of its state row
guards it: a signal and a suspend, or two signals, can never miss each other. What never changes
(a waitpoint, a signal once accepted) is a row of its own.

A waitpoint is *active* while the open suspension binds it, *pending* while `Waits.pending` names
it, and closed otherwise; closed is final.
"""

from enum import StrEnum
from hashlib import blake2b
from typing import Any
from uuid import UUID

from msgspec import Struct, field

from flowfabric.core.base.document import Document
from flowfabric.core.base.time import Millis, earliest
from flowfabric.core.flow.join import EdgeState

MAX_SIGNALS = 10_000
"""Signals one execution accepts, unless its policy or the caller says otherwise."""
MAX_VALUE = 65_536
"""Longest JSON text of a thing to be approved that is stored for approvers."""
FEW_SIGNALS = 32
"""How many buffered signals of a waitpoint are read before all of them are."""


class Behaviour(StrEnum):
    """What happens when a suspension times out. `Cancel` is read as `cancel`, `auto_resume` as the
    long word. A word that this release does not know fails the run: a timeout must end the wait in
    any case."""

    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    AUTO_RESUME = "auto_resume_with_timeout_signal"
    ESCALATE = "escalate"

    @classmethod
    def _missing_(cls, value: object) -> "Behaviour | None":
        if not isinstance(value, str):
            return None
        spelt = value.replace("_", "").lower()
        if spelt == "autoresume":
            return cls.AUTO_RESUME
        return next((each for each in cls if each.replace("_", "") == spelt), cls.FAIL)


class Waited(StrEnum):
    """How a wait that is a step ended."""

    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    RESUMED = "resumed"
    CLOSED = "closed"


class Effect(StrEnum):
    """What an accepted signal did."""

    APPENDED = "appended_to_waitpoint"
    SATISFIED = "resume_condition_satisfied"
    NO_OP = "no_op"
    NOT_IN_CONDITION = "signal_ignored_not_in_condition"
    MATCHER_FAILED = "signal_ignored_matcher_failed"
    REPEATED = "appended_to_waitpoint_duplicate"
    BUFFERED = "buffered_for_pending_waitpoint"


class Terms(Struct, frozen=True, omit_defaults=True):
    """What a waitpoint of an approval accepts; every token of it is bound to this.

    `about` is the digest of the exact thing to be approved, `decisions` are the signal names that
    count as one, `approvers` may decide (if none is named, anyone may). `value` is the thing
    itself as JSON, for approvers to read; None if it is too large (`MAX_VALUE`), or if an earlier
    release asked.
    """

    about: str | None = None
    decisions: tuple[str, ...] = ()
    approvers: tuple[str, ...] = ()
    value: str | None = None


class Waitpoint(Struct, frozen=True, omit_defaults=True):
    """Where an execution receives signals. Written once, never updated.

    `kid` names the key that signs its tokens. `attempt` is None for one that belongs to the
    execution: it outlives the attempt that made it.
    """

    id: UUID
    execution: UUID
    key: str
    created_at: Millis
    kid: str
    attempt: int | None = None
    terms: Terms | None = None


class Signal(Struct, frozen=True, omit_defaults=True):
    """One accepted signal. `number` counts those of the execution, so it is their order."""

    number: int
    id: UUID
    waitpoint: UUID
    key: str
    name: str
    accepted_at: Millis
    category: str = ""
    source_type: str = ""
    source: str = ""
    payload: bytes | None = None
    encoding: str | None = None
    correlation: str | None = None
    idempotency_key: str | None = None
    scope: str = "waitpoint"
    created_at: Millis | None = None
    effect: str = ""


class ReceivedSignal(Struct, frozen=True):
    """A signal row and the suspension it counted for (None: for none so far)."""

    signal: Signal
    suspension: UUID | None = None


class DedupRecord(Struct, frozen=True):
    """Remembers one fact for ever or until a moment: an idempotency key or signal id was seen, a
    token was used or revoked, an approver has decided, a source has counted.

    `key` is the digest of the fact (`dedup_key`), `doc` what is to be known about it.
    """

    key: bytes
    until: Millis | None = None
    doc: bytes = b""

    def stands(self, now: Millis) -> bool:
        return self.until is None or self.until > now


def dedup_key(what: str, *parts: str | bytes) -> bytes:
    """The key of a dedup record. Lengths are part of it, so no two facts share one."""
    whole = what.encode()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        whole += len(data).to_bytes(4) + data
    return blake2b(whole, digest_size=16).digest()


class Needs(Struct, frozen=True):
    """What a rule needs to read of one execution, beside the execution itself.

    `dedup` are keys of dedup records. `buffered` are waitpoints with the number of the last signal
    that is not wanted any more; with `few` the first FEW_SIGNALS after it are enough.
    `edges` are edges of its flow, `incoming` means all edges into it. `unique` are ids that no
    waitpoint of another execution may have.
    """

    execution: UUID
    waitpoints: tuple[UUID, ...] = ()
    dedup: tuple[bytes, ...] = ()
    buffered: tuple[tuple[UUID, int], ...] = ()
    few: bool = False
    edges: tuple[UUID, ...] = ()
    incoming: bool = False
    unique: tuple[UUID, ...] = ()


class Loaded(Struct):
    """What was found of what a rule `Needs`. `taken` are those of the `unique` ids that another
    execution uses."""

    waitpoints: dict[UUID, Waitpoint]
    dedup: dict[bytes, DedupRecord]
    signals: list[ReceivedSignal]
    edges: dict[UUID, EdgeState] = field(default_factory=dict)
    taken: set[UUID] = field(default_factory=set)


class Tally(Struct, frozen=True, array_like=True):
    """How far one leaf of a condition is: distinct satisfiers so far, and the waitpoint keys among
    them where those are what is counted."""

    count: int = 0
    keys: tuple[str, ...] = ()


class Pending(Struct, frozen=True, omit_defaults=True):
    """An open waitpoint: pending, or bound by the open suspension.

    `attempt` is None for one that outlives attempts. `taken` is the number of the last signal that
    an earlier wait used up, `counted` of the last that counted for the present one; `kept` are
    those up to `taken` that counted for another wait, which has not used them up. Of waitpoints
    with the same `slot` only one is open: a later one takes the place of those before.
    """

    id: UUID
    key: str
    expires_at: Millis | None = None
    attempt: int | None = None
    taken: int = 0
    counted: int = field(default=0, name="heard")
    kept: tuple[int, ...] = ()
    slot: UUID | None = None

    @property
    def unwanted(self) -> int:
        """The number of the last signal before the first that may still count."""
        return min(self.kept) - 1 if self.kept else self.taken

    def wants(self, number: int) -> bool:
        return number > self.taken or number in self.kept

    def has_expired(self, now: Millis) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class StepRef(Struct, frozen=True, omit_defaults=True):
    """The step that a wait becomes when it is over."""

    generation: int
    position: int
    name: str
    occurrence: int
    branch: str = ""
    opened: tuple[int, ...] = ()


class ResumePolicy(Struct, frozen=True, omit_defaults=True):
    """How a satisfied suspension resumes. `target` has one value."""

    target: str = "runnable"
    consume_matched_signals: bool = True
    retain_signal_buffer_until_closed: bool = False
    resume_delay: Millis | None = None
    close_waitpoint_on_resume: bool = True


class Arm(Struct, frozen=True, omit_defaults=True):
    """One of the things a suspended execution waits for; any of them resumes it.

    `condition` is the condition as JSON members: one that a newer release wrote is kept, and
    never satisfied here.
    """

    condition: dict[str, Any]
    bound: tuple[Pending, ...] = ()
    tallies: tuple[Tally, ...] = ()
    timeout_at: Millis | None = None
    behaviour: Behaviour = Behaviour.FAIL
    policy: ResumePolicy = ResumePolicy()
    step: StepRef | None = None


class Suspension(Document, frozen=True, kw_only=True, omit_defaults=True):
    """What a suspended execution waits for."""

    id: UUID = UUID(int=0)
    attempt: int = 0
    created_at: Millis = Millis(0)
    arms: tuple[Arm, ...] = ()
    requested_by: str = "worker"
    continuation: str | None = None
    until: Millis | None = None

    @property
    def due_at(self) -> Millis | None:
        """When it must be looked at: the first of its timeouts, or `until`."""
        return earliest([self.until, *[arm.timeout_at for arm in self.arms]])


class Closed(Struct, frozen=True, omit_defaults=True):
    """How the last suspension of the execution ended. `epoch` is that of the lease which was kept
    because the suspension was satisfied at once, 0 if the lease was given up."""

    id: UUID
    attempt: int
    at: Millis
    reason: str
    closer: UUID | None = None
    epoch: int = 0


class Waits(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The part of an execution's life that waiting writes. `signals` numbers the accepted ones;
    `internal` of them are the engine's own."""

    suspension: Suspension | None = None
    pending: tuple[Pending, ...] = ()
    signals: int = 0
    internal: int = 0
    last: Closed | None = None

    @property
    def sent(self) -> int:
        """How many signals were accepted, the engine's own aside."""
        return self.signals - self.internal

    @property
    def active(self) -> tuple[Pending, ...]:
        arms = self.suspension.arms if self.suspension is not None else ()
        if len(arms) == 1:
            return arms[0].bound
        return tuple([bound for arm in arms for bound in arm.bound])

    @property
    def open(self) -> tuple[Pending, ...]:
        """Everything that accepts signals: what is waited at first, then what is pending."""
        return (*self.active, *self.pending)

    @property
    def next_expiry(self) -> Millis | None:
        """When the first pending waitpoint runs out."""
        return earliest([each.expires_at for each in self.pending])


NO_WAITS = Waits()
