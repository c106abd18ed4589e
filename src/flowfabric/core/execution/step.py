"""Durable steps: a recorded step of a handler never runs again."""

from collections.abc import Container, Iterable
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.wait.model import Signal

TRY = "~/try/"
"""Begins the name of a row for a try of a step that failed and is followed by another."""


class Step(Struct, frozen=True):
    """One recorded step. Steps belong to the execution, not to the attempt.

    `generation` grows when a successful execution is replayed, and when one is replayed from a
    chosen step; `occurrence` counts the calls of the same name in order; `position` counts the
    calls of all names.
    """

    generation: int
    position: int
    name: str
    occurrence: int
    doc: bytes


class CarriedWait(Struct, frozen=True, omit_defaults=True):
    """What a wait needs that was recorded by another run, or by an earlier generation: the signals
    themselves, and the digest of what was to be approved."""

    signals: tuple[Signal, ...] = ()
    about: str | None = None

    def received_for(self, keys: Container[str]) -> list[Signal]:
        """The signals of waitpoints with these keys, in the order they came."""
        return [signal for signal in self.signals if signal.key in keys]


class Recorded(Struct, frozen=True, omit_defaults=True):
    """The content of a step row: the value a step returned, the moment a sleep ends, or how a wait
    ended (`waited` is a word of `core.wait.model.Waited`, `value` is the reason, if one was given).
    The signals that a wait received are named by `signal` if it was one, otherwise by `suspension`,
    and by `waitpoint` if it waited at one, or by `numbers` if it received one at each of several:
    other waits of the suspension may have received others there. `started_at` and `ended_at` are
    for people; steps that an earlier release recorded have none. `tries` is how many it took, if
    more than one.

    `opened` says for each branch on the way to this one how many calls the branch around it had
    made when it was opened. `through` is there for a block, which is recorded at its end but has
    the place of its beginning: how many calls its branch had made at the end, and how many branches
    it had opened. `skipped` marks a result that an operator has supplied, see
    `core.execution.rewrite`."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    until: Millis | None = None
    branch: str = ""
    waited: str = ""
    suspension: UUID | None = None
    signal: Signal | None = None
    waitpoint: UUID | None = None
    numbers: tuple[int, ...] = ()
    started_at: Millis | None = None
    ended_at: Millis | None = None
    tries: int = 1
    opened: tuple[int, ...] = ()
    through: tuple[int, int] | None = None
    carried: CarriedWait | None = None
    skipped: bool = False

    def received_of(self, signals: Iterable[Signal]) -> list[Signal]:
        """The signals of the suspension that this wait has received."""
        return [each for each in signals if not self.numbers or each.number in self.numbers]


class FailedTry(Struct, frozen=True):
    """The value of a row for a failed try: its number, how many tries the step had (`of`), the
    index of the attempt it was made in, and its error. The row's `until` is when the next try is
    due."""

    number: int
    of: int
    attempt: int
    error: str


class TryName(Struct, frozen=True):
    """The name of a row for a failed try of a call. A `turn` ends when the run itself is retried
    or replayed: the next one starts counting from zero."""

    turn: str
    number: int
    call: str

    def __str__(self) -> str:
        return f"{TRY}{self.turn}/{self.number}/{self.call}"

    @classmethod
    def parse(cls, name: str) -> "TryName | None":
        """None for the name of any other row."""
        if not name.startswith(TRY):
            return None
        turn, number, call = name.removeprefix(TRY).split("/", 2)
        return cls(turn, int(number), call)
