"""Durable steps: a recorded step of a handler never runs again."""

from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.wait.model import Signal


class Step(Struct, frozen=True):
    """One recorded step. Steps belong to the execution, not to the attempt.

    `generation` grows when a successful execution is replayed; `occurrence` counts the calls of the
    same name in order; `position` counts the calls of all names.
    """

    generation: int
    position: int
    name: str
    occurrence: int
    doc: bytes


class Recorded(Struct, frozen=True, omit_defaults=True):
    """The content of a step row: the value a step returned, the moment a sleep ends, or how a wait
    ended (`waited` is a word of `core.wait.model.Waited`, `value` is the reason, if one was given).
    The signals that a wait received are named by `signal` if it was one, otherwise by `suspension`,
    and by `waitpoint` if it waited at one. `started_at` and `ended_at` are for people; steps that
    an earlier release recorded have none."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    until: Millis | None = None
    branch: str = ""
    waited: str = ""
    suspension: UUID | None = None
    signal: Signal | None = None
    waitpoint: UUID | None = None
    started_at: Millis | None = None
    ended_at: Millis | None = None
