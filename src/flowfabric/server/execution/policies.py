"""The `policy` of a new execution as clients of the original send it.

The wire is wider than the engine's document: null stands for an optional member that is absent, a
count has 32 bits, a duration and a moment 64. Clients write the largest number where they mean no
limit, so a number that the engine cannot hold becomes the largest one that it can.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from flowfabric.core.base.errors import InvalidPolicy
from flowfabric.core.base.numbers import MAX_COUNT
from flowfabric.core.base.time import MAX_SPAN
from flowfabric.core.execution.policy import Policy, parse_policy
from flowfabric.server.http.unknown_fields import MEMBERS_OF
from flowfabric.server.http.wire import MAX_U64, MAX_WHOLE, U64, canonical_uuid, read_moment

MAX_U32 = (1 << 32) - 1


class FallbackTier(Struct):
    """Kept and shown, without effect."""

    provider: str
    model: str
    timeout_ms: U64 | None = None


class FallbackPolicy(Struct):
    tiers: list[FallbackTier]


class KnownPolicy(Policy, frozen=True, kw_only=True):
    """The members that a policy may have on the wire."""

    fallback_policy: FallbackPolicy | None = None  # type: ignore[assignment]


GivenPolicy = Annotated[dict[str, Any], Meta(extra={MEMBERS_OF: KnownPolicy})]

_OPTIONAL = frozenset(
    {
        "delay_until",
        "retry_policy",
        "timeout_policy",
        "suspension_policy",
        "fallback_policy",
        "routing_requirements",
        "dedup_window_ms",
        "stream_policy",
    }
)
_NESTED: Mapping[str, Any] = {
    "retry_policy": {"backoff": {}},
    "timeout_policy": {},
    "suspension_policy": {},
    "stream_policy": {},
}
"""The members that have members, and so on: what a caller nests further is left as it is."""
_COUNTS = frozenset(
    {
        "max_retries",
        "max_reclaim_count",
        "max_replay_count",
        "max_signals_per_execution",
        "retention_maxlen",
    }
)
_SPANS = frozenset(
    {
        "delay_ms",
        "initial_delay_ms",
        "max_delay_ms",
        "attempt_timeout_ms",
        "execution_deadline_ms",
        "default_timeout_ms",
        "dedup_window_ms",
        "retention_ttl_ms",
    }
)


def read_policy(given: dict[str, Any] | None) -> Policy | None:
    """The policy as the engine takes it."""
    if given is None:
        return None
    return parse_policy(
        {
            name: _member(name, value)
            for name, value in given.items()
            if value is not None or name not in _OPTIONAL
        }
    )


def _member(name: str, value: Any, nested: Mapping[str, Any] = _NESTED) -> Any:
    if name == "fallback_policy":
        _check_fallback(value)
    if name in nested and isinstance(value, dict):
        return {each: _member(each, inner, nested[name]) for each, inner in value.items()}
    if type(value) is not int:
        return value
    if name in _COUNTS and MAX_COUNT < value <= MAX_U32:
        return MAX_COUNT
    if name in _SPANS and MAX_SPAN < value <= MAX_U64:
        return MAX_SPAN
    if name == "delay_until" and -MAX_WHOLE - 1 <= value <= MAX_WHOLE:
        return read_moment(value)
    return value


def _check_fallback(value: Any) -> None:
    try:
        convert({"fallback_policy": value}, KnownPolicy)
    except ValidationError as error:
        raise InvalidPolicy(f"malformed: {error}") from None


def with_canonical_names(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """The policy with the names that budgets and quotas of these routes have, where it names them
    by a uuid in another form."""
    if given is None:
        return None
    named = dict(given)
    if isinstance(budgets := given.get("budget_ids"), list):
        named["budget_ids"] = [canonical_uuid(each) for each in budgets]
    if isinstance(uses := given.get("quotas"), list):
        named["quotas"] = [_use(each) for each in uses]
    return named


def _use(value: Any) -> Any:
    if not isinstance(value, dict) or "quota" not in value:
        return value
    return {**value, "quota": canonical_uuid(value["quota"])}
