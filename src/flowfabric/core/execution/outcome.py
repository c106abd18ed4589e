"""How an execution and its attempts begin and end."""

from enum import IntEnum, StrEnum

from flowfabric.core.base.document import Document
from flowfabric.core.base.time import Millis

CLEANUP_TIME = Millis(30_000)
"""How long a clean-up may take unless the task says otherwise."""


class Outcome(IntEnum):
    SUCCESS = 0
    FAILED = 1
    CANCELLED = 2
    EXPIRED = 3
    SKIPPED = 4

    def __bool__(self) -> bool:
        """True for every ending, including success, whose number is zero."""
        return True


class Cleanup(Document, frozen=True, kw_only=True, omit_defaults=True):
    """A clean-up that is going on: the run ends with `outcome` when its handler has cleaned up, at
    `until` at the latest. It began at `since`, while the lease with this `epoch` was the last."""

    since: Millis
    until: Millis
    epoch: int
    outcome: Outcome = Outcome.CANCELLED


class Start(IntEnum):
    """How the next claim starts: a new attempt of some type, or the interrupted one again."""

    INITIAL = 0
    RETRY = 1
    REPLAY = 2
    RECLAIM = 3
    CONTINUE = 4


class AttemptOutcome(StrEnum):
    """The state or ending of an attempt; the last four are final."""

    CREATED = "created"
    STARTED = "started"
    SUSPENDED = "suspended"
    SUCCESS = "ended_success"
    FAILURE = "ended_failure"
    CANCELLED = "ended_cancelled"
    RECLAIMED = "interrupted_reclaimed"

    @property
    def final(self) -> bool:
        return self not in (self.CREATED, self.STARTED, self.SUSPENDED)


class CloseReason(StrEnum):
    """Why the output stream of an attempt was closed."""

    SUCCESS = "attempt_success"
    FAILURE = "attempt_failure"
    CANCELLED = "attempt_cancelled"
    LEASE_EXPIRED = "lease_expired"
    LEASE_REVOKED = "lease_revoked"
    RECLAIMED = "reclaimed"
    EXPIRED = "expired"
    SUSPENSION_TIMEOUT = "suspension_timeout"
    DEPENDENCY_IMPOSSIBLE = "dependency_impossible"
