"""Patches: which of two versions of a piece of code a run takes, decided once and recorded.

A patch takes no place in the order of calls, so histories that older code recorded still fit.

    recorded     the code now               answer
    a, b         a; patched("tax"); b       False: `b` is recorded beyond this point
    a            a; patched("tax"); b       True: nothing is, and the patch is recorded with `b`
"""

from collections.abc import Generator, Iterable
from typing import Any

from msgspec import Struct

from flowfabric.core.execution.step import Recorded, Step
from flowfabric.core.execution.step_order import (
    CLEANUP,
    LOOSE,
    NO_CALL,
    PATCHED,
    UNDO,
    call_branch,
)
from flowfabric.worker.run.branches import BranchSpot, StepPlace

_NAME = f"{NO_CALL}patched/"


class PatchAnswer(int):
    """True or False. It may be awaited as the other calls of a context, but need not be: a
    forgotten `await` cannot make it true."""

    def __await__(self) -> Generator[Any, None, bool]:
        yield from ()
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


class Patches:
    """The patches of one call of a handler. An answer holds for the branch it was given in and for
    the branches inside it."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], bool] = {}
        self._unrecorded: list[StepPlace] = []

    def learn(self, branch: str) -> None:
        """Called with the branch of every recorded step; those of patches are remembered."""
        path, mark, name = branch.partition(PATCHED)
        if mark:
            self._answers[path, name] = True

    def answer(self, name: str, spot: BranchSpot, recorded: Iterable[tuple[str, int]]) -> bool:
        """Whether the run takes the patch that is asked for at this spot."""
        for path in _and_around(spot.path):
            if (path, name) in self._answers:
                return self._answers[path, name]
        taken = not any(is_beyond(spot, path, position) for path, position in recorded)
        self._answers[spot.path, name] = taken
        if taken:
            full = f"{_NAME}{spot.path}/{name}" if spot.path else f"{_NAME}{name}"
            branch = f"{spot.path}{PATCHED}{name}"
            self._unrecorded.append(StepPlace(branch, spot.position, full, 0, spot.opened))
        return taken

    def take_unrecorded(self, generation: int) -> "Unrecorded":
        """The steps of patches that are to be recorded with what follows them."""
        if not self._unrecorded:
            return _NONE
        places = tuple(self._unrecorded)
        return Unrecorded(places, tuple(place.step(generation, Recorded()) for place in places))

    def recorded(self, unrecorded: "Unrecorded") -> None:
        """Those are recorded by now."""
        if unrecorded.places:
            gone = set(unrecorded.places)
            self._unrecorded = [place for place in self._unrecorded if place not in gone]


class Unrecorded(Struct, frozen=True):
    """Patches that a run has taken, and the steps that record them."""

    places: tuple[StepPlace, ...] = ()
    steps: tuple[Step, ...] = ()


_NONE = Unrecorded()


def _and_around(path: str) -> Iterable[str]:
    """A branch, and those it is in."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def is_beyond(spot: BranchSpot, path: str, position: int) -> bool:
    """Whether a recorded step comes after a spot: in its branch, or in one opened after it."""
    if path.startswith(CLEANUP) != spot.path.startswith(CLEANUP):
        return False  # a clean-up is recorded on its own
    branch = call_branch(path)
    if branch == UNDO:
        return True  # compensations come after all calls
    if branch == spot.path:
        return position >= spot.position
    inside = branch if not spot.path else branch.removeprefix(f"{spot.path}.")
    if spot.path and inside == branch:
        return False  # of another branch
    return int(inside.partition(".")[0].removeprefix(LOOSE)) >= spot.children
