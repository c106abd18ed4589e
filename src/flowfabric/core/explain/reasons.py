"""Reasons why an execution does not run, as values for people and for programs.

`GATES` is the one table from a closed gate to its reason, for a run and for a lane.
"""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Gate
from flowfabric.core.execution.status import PublicState

FEW = 3
"""How many of many are named in a sentence."""


class ReasonCode(StrEnum):
    """What keeps an execution, in one word. A word never changes its meaning."""

    ENDED = "ended"
    LEASED = "leased"
    ATTEMPT_TIMEOUT = "attempt_timeout"
    DEADLINE = "deadline"
    CLEANING_UP = "cleaning_up"
    LOST = "lost"
    SUSPECT = "suspect"
    SPENT = "spent"
    RECLAIM_GRACE = "reclaim_grace"
    HELD_FOR_GRANT = "held_for_grant"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_FLOW = "waiting_for_flow"
    WAITING_FOR_TIME = "waiting_for_time"
    WAITING_FOR_OPERATOR = "waiting_for_operator"
    INBOX = "arrival"
    HELD_UNSEALED = "held_unsealed"
    BLOCKED_BY_OPERATOR = "blocked_by_operator"
    BLOCKED_BY_CODE = "blocked_by_code"
    WAITS_FOR_UPSTREAMS = "waits_for_upstreams"
    UPSTREAM = "upstream"
    MEMBER = "member"
    MORE = "more"
    DELAYED = "delayed"
    RETRY_BACKOFF = "retry_backoff"
    BUDGET_EXHAUSTED = "budget_exhausted"
    BUDGET_OPEN = "budget_open"
    QUOTA_FULL = "quota_full"
    RATE_USED_UP = "rate_used_up"
    SLOT_HOLDERS = "slot_holders"
    LANE_PAUSED = "lane_paused"
    LANE_DRAINING = "lane_draining"
    LANE_FULL = "lane_full"
    NO_WORKER = "no_worker"
    NO_WORKER_FOR_LANE = "no_worker_for_lane"
    NO_WORKER_FOR_KIND = "no_worker_for_kind"
    NO_WORKER_FOR_VERSION = "no_worker_for_version"
    NO_CAPABLE_WORKER = "no_capable_worker"
    CLOSEST_WORKER = "closest_worker"
    WORKER_BUSY = "worker_busy"
    WAITING_FOR_WORKER = "waiting_for_worker"
    IN_LINE = "in_line"


GATES = {
    Gate.INBOX: ReasonCode.INBOX,
    Gate.UNSEALED: ReasonCode.HELD_UNSEALED,
    Gate.BLOCKED: ReasonCode.BLOCKED_BY_OPERATOR,
    Gate.DEPENDENCIES: ReasonCode.WAITS_FOR_UPSTREAMS,
    Gate.DELAY: ReasonCode.DELAYED,
    Gate.RESUME_DELAY: ReasonCode.DELAYED,
    Gate.WORKER_DELAY: ReasonCode.DELAYED,
    Gate.BACKOFF: ReasonCode.RETRY_BACKOFF,
    Gate.BUDGET: ReasonCode.BUDGET_EXHAUSTED,
    Gate.LIMIT: ReasonCode.QUOTA_FULL,
}
"""What a closed gate means. A quota may turn out to be a rate that is used up, or a line."""


class Reason(Struct, frozen=True, kw_only=True):
    """One reason. `text` is a sentence without moments; those are `since` and `until`."""

    code: ReasonCode
    text: str
    since: Millis | None = None
    until: Millis | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    children: "tuple[Reason, ...]" = ()


class QueuePlace(Struct, frozen=True):
    """How many are before it in a line; not `exact`: at least so many."""

    ahead: int
    exact: bool = True


class Explanation(Struct, frozen=True, kw_only=True):
    """Why an execution does not run: everything that keeps it, what keeps it first comes first."""

    id: ExecutionId
    name: str | None
    kind: str
    namespace: str
    lane: str
    state: PublicState
    at: Millis
    reasons: tuple[Reason, ...]

    @property
    def main(self) -> Reason:
        """What has to change first."""
        return self.reasons[0]

    @property
    def codes(self) -> tuple[ReasonCode, ...]:
        return tuple(reason.code for reason in self.reasons)
