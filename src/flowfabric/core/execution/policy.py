"""The policy document of an execution: what its submitter decides about retries, timeouts, limits,
…

Attribute names are the member names of the JSON document. A document from outside goes through
`parse_policy`, which fails closed: a document that cannot be read refuses the submission; it never
creates an execution with fewer restrictions. A document from the store goes through `read_policy`.
"""

import json
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from flowfabric.core.base.document import Document, from_members, read, to_members, write
from flowfabric.core.base.errors import Invalid, InvalidPolicy
from flowfabric.core.base.numbers import check_whole
from flowfabric.core.base.text import check_size
from flowfabric.core.base.time import MAX_MILLIS, MAX_SPAN, Millis
from flowfabric.core.execution.outcome import CLEANUP_TIME
from flowfabric.core.execution.retry import (
    Count,
    ExponentialBackoff,
    FixedBackoff,
    RetryPolicy,
    Span,
)
from flowfabric.core.execution.routing import check_capabilities
from flowfabric.core.limit.budget import check_budget_names
from flowfabric.core.limit.quota import Use, check_uses, queue_of
from flowfabric.core.wait.model import MAX_SIGNALS, Behaviour

MAX_POLICY = 1 << 16
DEFAULT_RECLAIM_CAP = 3
"""How often a lost execution is taken over by default."""

_BACKOFFS = frozenset({"fixed", "exponential"})

# Longer documents are not cached, so that the caches stay within a few megabytes.
_CACHED_SIZE = 2048
_CACHED = 4096

Timeout = Annotated[int, msgspec.Meta(ge=1, le=MAX_SPAN)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=MAX_MILLIS)]
# Whatever the number, the run gets a priority in the range; this is what a document can hold.
Priority = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Window = Annotated[int, msgspec.Meta(ge=-MAX_SPAN, le=MAX_SPAN)]


class TimeoutPolicy(Document, frozen=True, kw_only=True):
    """Time limits; the deadline counts from the creation."""

    attempt_timeout_ms: Timeout | None = None
    execution_deadline_ms: Timeout | None = None
    max_reclaim_count: Count | None = None


class SuspensionPolicy(Document, frozen=True, kw_only=True):
    """Defaults of a suspension."""

    default_timeout_ms: Timeout | None = None
    timeout_behavior: Behaviour = Behaviour.FAIL


class RoutingRequirements(Document, frozen=True, kw_only=True):
    """Which workers may run the execution. Only the capabilities are enforced."""

    required_capabilities: tuple[str, ...] = ()
    preferred_locality: str | None = None
    isolation_level: str | None = None


class StreamPolicy(Document, frozen=True, kw_only=True):
    """How much of the execution's stream is kept, and for how long."""

    durability_mode: str = "buffered"
    retention_maxlen: Count = 10_000
    retention_ttl_ms: Span | None = None


class CleanupPolicy(Document, frozen=True, kw_only=True):
    """A run with it is not cancelled at once: its handler has this long to clean up."""

    cleanup_timeout_ms: Timeout = CLEANUP_TIME


class Policy(Document, frozen=True, kw_only=True, dict=True):
    """The whole document. `fallback_policy` is stored as given and has no effect."""

    priority: Priority = 0
    delay_until: Moment | None = None
    retry_policy: RetryPolicy | None = None
    timeout_policy: TimeoutPolicy | None = None
    max_reclaim_count: Count | None = None
    suspension_policy: SuspensionPolicy | None = None
    fallback_policy: dict[str, Any] | None = None
    max_replay_count: Count = 10
    budget_ids: tuple[str, ...] = ()
    quotas: tuple[Use, ...] = ()
    routing_requirements: RoutingRequirements | None = None
    dedup_window_ms: Window = 86_400_000  # at most zero: no key is remembered
    stream_policy: StreamPolicy | None = None
    max_signals_per_execution: Count = MAX_SIGNALS
    cleanup_policy: CleanupPolicy | None = None

    @property
    def attempt_timeout(self) -> Millis | None:
        limits = self.timeout_policy
        return _span(limits.attempt_timeout_ms) if limits else None

    @property
    def execution_deadline(self) -> Millis | None:
        limits = self.timeout_policy
        return _span(limits.execution_deadline_ms) if limits else None

    @property
    def reclaim_cap(self) -> int | None:
        """How often the execution may be reclaimed, if that was set; the timeout policy takes
        precedence."""
        limits = self.timeout_policy
        if limits is None or limits.max_reclaim_count is None:
            return self.max_reclaim_count
        return limits.max_reclaim_count

    @property
    def retention(self) -> Millis | None:
        """How long the ended execution is kept, if it has its own retention."""
        return None if self.stream_policy is None else _span(self.stream_policy.retention_ttl_ms)

    @property
    def cleanup_time(self) -> Millis | None:
        """How long the handler may clean up after a cancel; None if it does not."""
        return (
            None if self.cleanup_policy is None else _span(self.cleanup_policy.cleanup_timeout_ms)
        )

    @cached_property
    def queue(self) -> int:
        """The number of the line before its quotas. Runs share their policy, so it is kept."""
        return queue_of(self.quotas)

    @property
    def capabilities(self) -> tuple[str, ...]:
        routing = self.routing_requirements
        return routing.required_capabilities if routing else ()


DEFAULT_POLICY = Policy()


def parse_policy(data: bytes | str | Mapping[str, Any] | Policy | None) -> Policy:
    """The policy in a document from outside, with sorted capabilities; the default policy for None.

    Raises `InvalidPolicy` with the detail `malformed`, `malformed: …` naming the member, or
    `routing_requirements:not_object`; `InvalidCapabilities`; `PayloadTooLarge` above 64 KiB.

    >>> parse_policy({"retry_policy": {}}).retry_policy.max_retries
    3
    """
    if data is None or data is DEFAULT_POLICY:
        return DEFAULT_POLICY
    if isinstance(data, Policy) and id(data) in _parsed:
        return data
    text = _as_json(data)
    check_size(len(text), "policy", MAX_POLICY)
    if len(text) > _CACHED_SIZE:
        return _parse(text)
    policy = _parse_cached(text)
    if id(policy) not in _parsed:
        if len(_parsed) >= _CACHED:
            _parsed.clear()
        _parsed[id(policy)] = policy, write(policy)
    return policy


def check_retries(retries: object, backoff: object) -> RetryPolicy:
    """How often and how fast to retry, as an option of a task or a step."""
    count = check_whole(retries, "retries")
    if not isinstance(backoff, FixedBackoff | ExponentialBackoff):
        raise Invalid(f"backoff must be Fixed or Exponential, not {type(backoff).__name__}")
    checked = parse_policy(Policy(retry_policy=RetryPolicy(max_retries=count, backoff=backoff)))
    return checked.retry_policy or RetryPolicy()


def write_policy(policy: Policy) -> bytes:
    """The policy as JSON, members at their default left out."""
    known = _parsed.get(id(policy))
    return write(policy) if known is None else known[1]


def read_policy(data: bytes) -> Policy:
    """The policy `write_policy` wrote; `Corruption` for anything else."""
    return _read_cached(data) if len(data) <= _CACHED_SIZE else read(Policy, data)


# Policies that were checked, by their ids, and how each is written: equal documents share one
# policy. It is kept here, so no other object can have its id.
_parsed: dict[int, tuple[Policy, bytes]] = {}


@lru_cache(maxsize=_CACHED)
def _read_cached(data: bytes) -> Policy:
    return read(Policy, data)


@lru_cache(maxsize=_CACHED)
def _parse_cached(data: bytes) -> Policy:
    return _parse(data)


def _parse(data: bytes) -> Policy:
    members = _members(data)
    if "routing_requirements" in members:
        members["routing_requirements"] = _routing(members["routing_requirements"])
    if "retry_policy" in members:
        members["retry_policy"] = _retry(members["retry_policy"])
    try:
        return _limited(from_members(Policy, members))
    except msgspec.ValidationError as error:
        raise InvalidPolicy(f"malformed: {error}") from None


def _limited(policy: Policy) -> Policy:
    """The policy with its limits checked and sorted."""
    if not policy.quotas and not policy.budget_ids:
        return policy
    try:
        uses = check_uses(policy.quotas)
        budgets = check_budget_names(policy.budget_ids)
    except Invalid as error:
        raise InvalidPolicy(f"malformed: {error.detail}") from None
    return replace(policy, quotas=uses, budget_ids=budgets)


def _as_json(data: object) -> bytes:
    """The JSON of a policy in any accepted form, so that all forms pass the same checks."""
    try:
        match data:
            case bytes():
                return data
            case str():
                return data.encode()
            case Policy():
                text = write(data)
                return text if b"null" not in text else _strict_json(to_members(data))
            case Mapping():
                return _strict_json(dict(data))
            case _:
                pass
    except (TypeError, ValueError, RecursionError):
        pass
    raise InvalidPolicy("malformed")


def _strict_json(members: dict[str, Any]) -> bytes:
    # msgspec would write NaN as null, and a null limit is no limit.
    text = json.dumps(members, allow_nan=False, ensure_ascii=False, default=_plain)
    return text.encode()


def _plain(value: object) -> object:
    return to_members(value) if isinstance(value, Document) else msgspec.to_builtins(value)


def _members(data: bytes) -> dict[str, Any]:
    try:
        members = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidPolicy("malformed") from None
    if not isinstance(members, dict):
        raise InvalidPolicy("malformed")
    return members


def _routing(members: object) -> dict[str, Any]:
    if not isinstance(members, dict):
        raise InvalidPolicy("routing_requirements:not_object")
    if "required_capabilities" not in members:
        return members
    tokens = check_capabilities(members["required_capabilities"], "required")
    return {**members, "required_capabilities": tokens}


def _retry(members: object) -> object:
    """A backoff of a kind that this release does not know waits for the default of a fixed one. It
    restricts nothing, so it is no reason to refuse the policy; what was given is kept."""
    if not isinstance(members, dict) or not isinstance(given := members.get("backoff"), dict):
        return members
    kind = given.get("type", "")
    if not isinstance(kind, str) or kind in _BACKOFFS:
        return members
    return {**members, "backoff": {"type": "fixed", "as_given": given}}


def _span(value: int | None) -> Millis | None:
    return None if value is None else Millis(value)
