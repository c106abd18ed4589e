"""How an execution and its attempts begin and end."""

from enum import IntEnum, StrEnum


class Outcome(IntEnum):
    SUCCESS = 0
    FAILED = 1
    CANCELLED = 2
    EXPIRED = 3
    SKIPPED = 4

    def __bool__(self) -> bool:
        """An ending is something, success included, although its number is zero."""
        return True


class Start(IntEnum):
    """How the next claim begins: a new attempt of some type, or the interrupted one again."""

    INITIAL = 0
    RETRY = 1
    REPLAY = 2
    RECLAIM = 3
    CONTINUE = 4


class AttemptOutcome(StrEnum):
    """How an attempt stands or ended; the last four are final."""

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
