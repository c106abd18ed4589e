"""Failed runs, grouped by their error."""

import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Ended, Failure, Snapshot

ELLIPSIS = "…"
"""Stands for the part in which the messages of one group differ."""

UNKNOWN = "no error was recorded"

_VARYING = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"  # a UUID
    r"|\b0x[0-9a-f]+\b"  # an address
    r"|\b(?=[0-9a-f]*[0-9])[0-9a-f]{12,}\b"  # a hash
    r"|\d+(?:[.,:]\d+)*",
    re.IGNORECASE,
)


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Runs of one task that failed with the same error. Messages that differ only in numbers and
    ids are the same error: `error` has an ellipsis in their place. `example` is the run that failed
    last, `message` is what it said."""

    kind: str
    error: str
    category: str
    count: int
    first_at: Millis
    last_at: Millis
    example: ExecutionId
    message: str


class FailureGroups:
    """Groups failed executions as they are read."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], FailureGroup] = {}

    def add(self, failed: Iterable[Snapshot]) -> None:
        for snapshot in failed:
            if isinstance(snapshot.state, Ended):
                self._count(snapshot, snapshot.state.ended_at)

    def groups(self) -> tuple[FailureGroup, ...]:
        """The most frequent first, of equally frequent ones the latest."""
        by_weight = sorted(self._found.values(), key=lambda group: (-group.count, -group.last_at))
        return tuple(by_weight)

    def _count(self, snapshot: Snapshot, at: Millis) -> None:
        failure = snapshot.life.failure or Failure(UNKNOWN, category="")
        pattern = error_pattern(failure.message)
        key = (snapshot.execution.kind, pattern, failure.category)
        one = FailureGroup(
            kind=snapshot.execution.kind,
            error=failure.message,
            category=failure.category,
            count=1,
            first_at=at,
            last_at=at,
            example=snapshot.execution.id,
            message=failure.message,
        )
        known = self._found.get(key)
        self._found[key] = one if known is None else _joined(known, one, pattern)


def error_pattern(message: str) -> str:
    """The message without what differs from run to run: numbers and ids."""
    return _VARYING.sub(ELLIPSIS, message)


def _joined(one: FailureGroup, other: FailureGroup, pattern: str) -> FailureGroup:
    latest = max(one, other, key=lambda group: group.last_at)
    return replace(
        latest,
        error=one.error if one.error == other.error else pattern,
        count=one.count + other.count,
        first_at=min(one.first_at, other.first_at),
    )
