"""The `policy` of a new execution as clients of the original send it.

The wire is wider than the engine's document: null stands for an optional member that is absent, a
count has 32 bits and a duration 64. Clients write the largest number where they mean no limit, so
a number that the engine cannot hold becomes the largest one that it can.
"""

from typing import Any

from flowfabric.core.base.numbers import MAX_COUNT
from flowfabric.core.base.time import MAX_SPAN
from flowfabric.server.wire import MAX_U64

MAX_U32 = (1 << 32) - 1

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
_NESTED = frozenset(
    {"retry_policy", "backoff", "timeout_policy", "suspension_policy", "stream_policy"}
)
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


def read_policy(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """The policy as the engine takes it, which checks everything else."""
    if given is None:
        return None
    return {
        name: _member(name, value)
        for name, value in given.items()
        if value is not None or name not in _OPTIONAL
    }


def _member(name: str, value: Any) -> Any:
    if name in _NESTED and isinstance(value, dict):
        return {each: _member(each, inner) for each, inner in value.items()}
    if type(value) is not int:
        return value
    if name in _COUNTS and MAX_COUNT < value <= MAX_U32:
        return MAX_COUNT
    if name in _SPANS and MAX_SPAN < value <= MAX_U64:
        return MAX_SPAN
    return value
