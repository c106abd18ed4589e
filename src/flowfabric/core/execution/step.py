"""Durable steps: what a handler did once is recorded and never done again."""

from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.wait.model import Signal


class Step(Struct, frozen=True):
    """One recorded step. Steps belong to the execution, not to the attempt.

    `generation` grows when a successful execution is replayed; `occurrence` counts calls of the
    same name in the order they were made; `position` is the place in that order over all names.
    """

    generation: int
    position: int
    name: str
    occurrence: int
    doc: bytes


class Recorded(Struct, frozen=True, omit_defaults=True):
    """What a step row holds: the value a step returned, the moment a sleep ends, or how a wait
    ended (`waited` is a word of `core.wait.model.Waited`, `value` why, if somebody said so). Which
    signals it heard is told by `signal` where it was one, and by `suspension` otherwise, then of
    one `waitpoint` if it waited at one."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    until: Millis | None = None
    branch: str = ""
    waited: str = ""
    suspension: UUID | None = None
    signal: Signal | None = None
    waitpoint: UUID | None = None
