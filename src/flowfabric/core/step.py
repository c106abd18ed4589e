"""Durable steps: what a handler did once is recorded and never done again."""

from msgspec import Struct


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
