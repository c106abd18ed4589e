"""What `run.explain()` returns. Moments are `datetime`, attempts count from 1, ids are UUIDs."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from flowfabric.core.base.ids import RunId, without_tags
from flowfabric.core.base.time import Millis, optional_datetime, to_datetime
from flowfabric.core.execution.status import PublicState
from flowfabric.core.explain.reasons import Explanation, Reason, ReasonCode


class RunReason(Struct, frozen=True, kw_only=True):
    """One reason. `text` is a sentence without moments; those are `since` and `until`. `code` and
    `detail` are for programs."""

    code: ReasonCode
    text: str
    since: datetime | None
    until: datetime | None
    detail: dict[str, Any]
    children: "tuple[RunReason, ...]"


class RunExplanation(Struct, frozen=True, kw_only=True):
    """Why a run does not run: every reason, the one that must change first in front."""

    id: RunId
    name: str | None
    kind: str
    namespace: str
    lane: str
    state: PublicState
    at: datetime
    reasons: tuple[RunReason, ...]

    @property
    def main(self) -> RunReason:
        """What has to change first."""
        return self.reasons[0]

    @property
    def codes(self) -> tuple[ReasonCode, ...]:
        """The codes of all reasons."""
        return tuple(reason.code for reason in self.reasons)


def explain_run(found: Explanation) -> RunExplanation:
    return RunExplanation(
        id=RunId(found.id),
        name=found.name,
        kind=found.kind,
        namespace=found.namespace,
        lane=found.lane,
        state=found.state,
        at=to_datetime(found.at),
        reasons=tuple(_reason(reason) for reason in found.reasons),
    )


def _reason(reason: Reason) -> RunReason:
    return RunReason(
        code=reason.code,
        text=without_tags(reason.text),
        since=optional_datetime(reason.since),
        until=optional_datetime(reason.until),
        detail={name: _detail(name, value) for name, value in reason.detail.items()},
        children=tuple(_reason(child) for child in reason.children),
    )


def _detail(name: str, value: Any) -> Any:
    match value:
        case str():
            return without_tags(value)
        case int() if name == "attempt":
            return value + 1
        case int() if name.endswith("_at"):
            return to_datetime(Millis(value))
        case _:
            return value
