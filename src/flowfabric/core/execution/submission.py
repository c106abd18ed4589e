"""Submitting: a checked request and the execution it becomes."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, InvalidId
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.text import (
    MAX_PAYLOAD,
    MAX_REASON,
    check_bytes,
    check_key,
    check_kind,
    check_lane,
    check_namespace,
    check_tags,
    check_text,
)
from flowfabric.core.base.time import Millis, check_moment
from flowfabric.core.base.trace import check_trace
from flowfabric.core.execution.gate import admit
from flowfabric.core.execution.model import (
    EMPTY_LIFE,
    NO_FACTS,
    RANK_STEP,
    Execution,
    Facts,
    Failure,
    Flags,
    Gate,
    Head,
    Next,
    Route,
    Snapshot,
    Start,
    Waiting,
    clamp_priority,
    rank_of,
)
from flowfabric.core.execution.policy import DEFAULT_POLICY, Policy, parse_policy
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step

T = TypeVar("T")

_NOTHING = (None,) * 7
_TEXT = (str, type(None))


class Submission(Struct, frozen=True, kw_only=True):
    """A request to run a task. Only `kind` is required."""

    kind: str
    payload: bytes = b""
    id: ExecutionId | None = None
    namespace: str = "default"
    lane: str = "default"
    priority: int | None = None
    key: str | None = None
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    policy: Policy | Mapping[str, object] | bytes | None = None
    delay_until: Millis | None = None
    deadline_at: Millis | None = None
    creator: str | None = None
    encoding: str | None = None
    flow: UUID | None = None
    trace: str | None = None


class Submitted(Struct, frozen=True, gc=False):
    id: ExecutionId
    state: PublicState


class Duplicate(Struct, frozen=True, gc=False):
    """Nothing was created: the key or the id already exists."""

    id: ExecutionId


class Creation(Struct, frozen=True, gc=False):
    """A checked submission, ready to be written."""

    snapshot: Snapshot
    payload: bytes
    tags: Mapping[str, str]
    key: str | None = None
    key_until: Millis = Millis(0)
    minted: bool = True
    """Whether we created the id, so that no other caller can have used it."""
    steps: tuple[Step, ...] = ()
    """What a fork has recorded already."""


def create(
    submission: Submission, fresh: UUID, now: Millis, *, key_taken: bool = False
) -> Creation:
    """The execution that a submission becomes; raises before anything is written. `key_taken`: its
    key already existed when it reached the inbox."""
    if submission.priority is not None:
        check_priority(submission.priority)  # its error comes before that of the policy
    policy = None if submission.policy is None else parse_policy(submission.policy)
    rules = policy or DEFAULT_POLICY
    execution = _execution(submission, policy, fresh, now)
    window = rules.dedup_window_ms
    key = None if submission.key is None else check_key(submission.key)
    return Creation(
        snapshot=_first_state(execution, now),
        payload=_check_payload(submission.payload),
        tags={} if submission.tags is None else check_tags(submission.tags),
        key=key if window > 0 and not key_taken else None,
        key_until=Millis(now + window),
        minted=submission.id is None,
    )


def ranked(creation: Creation, step: int) -> Creation:
    """The creation, ranked with another step of priority."""
    if step == RANK_STEP:
        return creation
    snapshot = creation.snapshot
    rank = rank_of(snapshot.execution.created_at, snapshot.execution.facts.priority, step)
    head = replace(snapshot.head, rank=rank)
    if head.flags & Flags.LIMITS:
        head = replace(head, life=replace(head.life, place=rank))
    return replace(creation, snapshot=replace(snapshot, head=head))


def refuse(submission: Submission, fresh: UUID, now: Millis, reason: str) -> Creation:
    """The execution of an inbox submission that the rules refuse: due at once, to end as failed.
    Its members are kept as far as possible; the key always, so that it is deleted with the run."""
    plain = Submission(
        kind=_or_else(check_kind, submission.kind, "refused"),
        payload=_or_else(_check_payload, submission.payload, b""),
        namespace=_or_else(check_namespace, submission.namespace, "default"),
        lane=_or_else(check_lane, submission.lane, "default"),
        key=_or_else(check_key, submission.key, None),
    )
    creation = create(plain, fresh, now, key_taken=True)
    failure = Failure(message=f"refused: {reason}"[:MAX_REASON], category="permanent")
    head = replace(creation.snapshot.head, life=replace(EMPTY_LIFE, failure=failure))
    state = Waiting(gate=Gate.INBOX, next=Next(Start.INITIAL, 0), due_at=now)
    return replace(creation, snapshot=replace(creation.snapshot, head=head, state=state))


def _execution(
    submission: Submission, policy: Policy | None, fresh: UUID, now: Millis
) -> Execution:
    rules = policy or DEFAULT_POLICY
    given = None if submission.id is None else ExecutionId(submission.id)
    place = submission.namespace, submission.lane, submission.kind, rules.capabilities
    try:
        route = _known_route(*place)
    except TypeError:  # a member of a wrong type has no hash
        route = _route(*place)
    execution = Execution(
        uuid=fresh if given is None else given.uuid,
        created_at=now,
        route=route,
        policy=policy,
        facts=_facts(submission, rules, now),
        flow=None if submission.flow is None else parse_uuid(submission.flow, "flow"),
    )
    if given is not None and not given.names(execution.id):
        raise InvalidId("wrong_partition", given)
    return execution


def _route(namespace: str, lane: str, kind: str, capabilities: tuple[str, ...]) -> Route:
    return Route(check_namespace(namespace), check_lane(lane), check_kind(kind), capabilities)


_known_route = lru_cache(maxsize=4096)(_route)
"""Runs share their route, so that it is compared by identity first."""


def _facts(submission: Submission, rules: Policy, now: Millis) -> Facts:
    priority = rules.priority if submission.priority is None else submission.priority
    encoding = submission.encoding
    if _says_little(submission, rules) and type(priority) is int and type(encoding) in _TEXT:
        return _usual_facts(priority, encoding)
    deadline_at = _moment(submission.deadline_at, "deadline")
    if deadline_at is None and rules.execution_deadline is not None:
        deadline_at = Millis(now + rules.execution_deadline)
    delay_until = _moment(submission.delay_until, "delay") or rules.delay_until
    facts = Facts(
        priority=check_priority(priority),
        key=submission.key or None,
        creator=_optional(submission.creator, "creator"),
        encoding=_optional(encoding, "encoding"),
        delay_until=_moment(delay_until, "delay"),
        deadline_at=_moment(deadline_at, "deadline"),
        trace=None if submission.trace is None else check_trace(submission.trace),
    )
    return NO_FACTS if facts == NO_FACTS else facts


def _says_little(submission: Submission, rules: Policy) -> bool:
    """Most submissions: they and their policy say nothing but a priority and an encoding."""
    given = (
        submission.deadline_at,
        submission.delay_until,
        submission.key,
        submission.creator,
        submission.trace,
        rules.delay_until,
        rules.timeout_policy,
    )
    return given == _NOTHING


@lru_cache(maxsize=1024)
def _usual_facts(priority: int, encoding: str | None) -> Facts:
    facts = Facts(priority=check_priority(priority), encoding=_optional(encoding, "encoding"))
    return NO_FACTS if facts == NO_FACTS else facts


def _first_state(execution: Execution, now: Millis) -> Snapshot:
    facts, rules = execution.facts, execution.rules
    flags = _first_flags(
        facts.deadline_at is not None,
        rules.retention is not None,
        bool(rules.quotas),
        bool(rules.budget_ids),
    )
    life = EMPTY_LIFE
    if facts.delay_until is not None and facts.delay_until > now:
        life = replace(life, not_before=facts.delay_until, delay=Gate.DELAY)
    rank = rank_of(execution.created_at, facts.priority)
    head = Head(rank=rank, flags=flags, life=life)
    first = Next(Start.INITIAL, 0, rules.attempt_timeout)
    return Snapshot(execution, head, admit(life, first, now, flags))


@cache
def _first_flags(deadline: bool, retention: bool, limits: bool, budgets: bool) -> Flags:
    """Kept, because putting flags together is slow."""
    return (
        (Flags.DEADLINE if deadline else Flags.NONE)
        | (Flags.RETENTION if retention else Flags.NONE)
        | (Flags.LIMITS if limits else Flags.NONE)
        | (Flags.BUDGETS if budgets else Flags.NONE)
    )


def _check_payload(value: object) -> bytes:
    return check_bytes(value, "payload", MAX_PAYLOAD)


def _or_else(check: Callable[[object], T], value: object, instead: T) -> T:
    """`value` if it passes the check, otherwise `instead`."""
    try:
        return check(value)
    except Invalid:
        return instead


def check_priority(value: object) -> int:
    """`value`, clamped to the range of priorities."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Invalid(f"priority must be a whole number, not {type(value).__name__}")
    return clamp_priority(value)


def _optional(value: str | None, what: str) -> str | None:
    return None if value is None else check_text(value, what, limit=256)


def _moment(value: int | None, what: str) -> Millis | None:
    """The moment; None also for zero, which is not set."""
    return None if value is None else check_moment(value, what) or None
