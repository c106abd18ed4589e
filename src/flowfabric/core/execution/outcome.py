"""How an execution and its attempts begin and end."""

from enum import IntEnum, StrEnum


class Outcome(IntEnum):
    SUCCESS = 0
    FAILED = 1
    CANCELLED = 2
    EXPIRED = 3
    SKIPPED = 4

    def __bool__(self) -> bool:
        """True for every ending, including success, whose number is zero."""
        return True


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
