"""The words of the model: what is asked for, what is answered, which combinations are legal."""

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

Answer = tuple[object, ...]
Answers = frozenset[Answer]
Row = tuple[str, str, str, str, str, str]

HIGHEST_PRIORITY = 9000
NO_POLICY_RECLAIMS = 3


class Refused(Exception):
    """The operation is refused with this answer."""

    def __init__(self, *answers: str) -> None:
        super().__init__(*answers)
        self.answers: Answers = frozenset((answer,) for answer in answers)


class Unauthorized(Refused):
    """The token is refused, before anybody looks what exists."""


class Stage(Enum):
    WAITING = "for a worker"
    DELAYED = "until a moment"
    BLOCKED = "until somebody unblocks it"
    RUNNING = "somebody owns it"
    LOST = "its owner lost it"
    SUSPENDED = "until the outside world has answered"
    ENDED = "for good, or until a replay"
    GONE = "deleted"


@dataclass(frozen=True, kw_only=True)
class Retries:
    """Retry `most` times, after `first`, `first * factor`, … but never more than `longest`."""

    most: int
    first: int = 1000
    factor: float = 1.0
    longest: int = 60_000
    only: frozenset[str] = frozenset()

    def allow(self, done: int, category: str) -> bool:
        if category in ("permanent", "cancelled"):
            return False
        return done < self.most and (not self.only or category in self.only)

    def pause(self, done: int) -> int:
        return int(min(self.first * self.factor**done, self.longest))


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a submitter asks for."""

    lane: str = "a"
    namespace: str = "default"
    kind: str = "job"
    needs: frozenset[str] = frozenset()
    priority: int = 0
    key: str | None = None
    window: int = 86_400_000
    delay_until: int | None = None
    deadline_at: int | None = None
    deadline_in: int | None = None
    timeout: int | None = None
    retries: Retries | None = None
    reclaims: int = NO_POLICY_RECLAIMS
    replays: int = 10
    keep: int | None = None
    grace: int = 0


@dataclass(frozen=True)
class Fence:
    """Proof of ownership: lease, epoch and attempt."""

    lease_id: UUID
    epoch: int
    attempt: int


@dataclass
class Try:
    """One attempt: how it began and how it stands."""

    type: str
    outcome: str = "started"


PENDING = {
    "initial": "pending_first_attempt",
    "retry": "pending_retry_attempt",
    "replay": "pending_replay_attempt",
    "continue": "attempt_interrupted",
}
BLOCKS = {
    "waiting_for_budget": ("blocked_by_budget", "rate_limited"),
    "waiting_for_quota": ("blocked_by_quota", "rate_limited"),
    "waiting_for_capable_worker": ("blocked_by_route", "waiting"),
    "paused_by_operator": ("blocked_by_operator", "waiting"),
    "paused_by_policy": ("blocked_by_lane_state", "waiting"),
}
BLOCK_REASONS = tuple(BLOCKS)
ENDS = {
    "success": ("completed", "ended_success"),
    "failed": ("failed", "ended_failure"),
    "cancelled": ("cancelled", "ended_cancelled"),
    "expired": ("expired", "ended_failure"),
}


def one(*answer: object) -> Answers:
    return frozenset({answer})


def _runnable(eligibility: str, blocking: str, *attempts: str) -> set[Row]:
    return {("runnable", "unowned", eligibility, blocking, "none", it) for it in attempts}


def _active(ownership: str, blocking: str, attempt: str) -> Row:
    return ("active", ownership, "not_applicable", blocking, "none", attempt)


def _terminal(outcome: str, *attempts: str) -> set[Row]:
    return {("terminal", "unowned", "not_applicable", "none", outcome, it) for it in attempts}


_FIRST, _RETRY, _REPLAY, _INTERRUPTED = PENDING.values()

LEGAL: set[Row] = {
    # S1, S9, S14, S15: claimable
    *_runnable("eligible_now", "waiting_for_worker", *PENDING.values()),
    # S2, S11: delayed by the submitter or by the worker
    *_runnable("not_eligible_until_time", "waiting_for_delay", _FIRST, _INTERRUPTED),
    # S8: suspended, or left to an operator; S10: resumed after a delay
    *(
        ("suspended", "unowned", "not_applicable", wait, "none", _INTERRUPTED)
        for wait in ("waiting_for_signal", "paused_by_operator")
    ),
    *_runnable("not_eligible_until_time", "waiting_for_resume_delay", _INTERRUPTED),
    # S13: retry backoff
    *_runnable("not_eligible_until_time", "waiting_for_retry_backoff", _RETRY),
    # S4: admission blocks
    *(
        row
        for reason, (eligibility, _) in BLOCKS.items()
        for row in _runnable(eligibility, reason, *PENDING.values())
    ),
    # S5 to S7: owned, expired, revoked
    _active("leased", "none", "running_attempt"),
    _active("lease_expired_reclaimable", "waiting_for_worker", _INTERRUPTED),
    _active("lease_revoked", "waiting_for_worker", _INTERRUPTED),
    # S16: ended with an attempt; S17: ended between attempts or before the first
    *(row for outcome in ENDS for row in _terminal(outcome, "attempt_terminal")),
    *_terminal("cancelled", _FIRST, _RETRY, _REPLAY),
    *_terminal("expired", _FIRST, _RETRY, _REPLAY),
}
"""The combinations of §2.3 an execution without flows can be in."""
