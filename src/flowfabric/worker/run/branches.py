"""Where the calls of a handler stand in its history, and which of them are under way.

A place does not depend on which of two things that run side by side is faster: it is given when a
call is made, and what runs side by side counts on its own, in a branch.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.execution.step import Recorded, Step, TryName
from flowfabric.core.execution.step_order import CLEANUP, LOOSE, NO_CALL, is_named
from flowfabric.store.hints import Nudge
from flowfabric.worker.errors import StepsChanged, Unwind
from flowfabric.worker.run.callers import Callers
from flowfabric.worker.run.cancelling import CancelPoint

inside_step: ContextVar[str | None] = ContextVar("flowfabric_inside_step", default=None)
"""The name of the step whose function is being called."""

_branch: ContextVar["Branch | None"] = ContextVar("flowfabric_branch", default=None)


class StepPlace(Struct, frozen=True):
    """Where in the history a call stands; given when it is made, not when it finishes. A call that
    an operator has skipped has the position `NOWHERE`: it takes no place in the order."""

    branch: str
    position: int
    name: str
    occurrence: int
    opened: tuple[int, ...] = ()

    def __str__(self) -> str:
        return title(self.name, self.occurrence)

    def step(self, generation: int, record: Recorded) -> Step:
        """The row of what is recorded here."""
        placed = replace(record, branch=self.branch, opened=self.opened) if self.branch else record
        doc = msgspec.json.encode(placed)
        return Step(generation, self.position, self.name, self.occurrence, doc)

    @property
    def timer(self) -> "StepPlace":
        """Where the end of a wait's time is recorded: not in the order of calls, since code may
        give a wait more or less time without changing its history."""
        name = f"{LOOSE}/{self.name}"
        branch = f"{self.branch}{LOOSE}"
        return StepPlace(branch, self.position, name, self.occurrence, self.opened)

    def again(self, number: int, what: str = "") -> "StepPlace":
        """Where it is recorded that something was done once more: not in the order of calls
        either."""
        branch, name = f"{self.branch}{LOOSE}{what}/{number}", f"{LOOSE}/{what}{number}/{self.name}"
        return StepPlace(branch, self.position, name, self.occurrence, self.opened)

    def tried(self, turn: str, number: int) -> "StepPlace":
        """Where it is recorded that a try failed: not in the order of calls either."""
        branch, name = f"{self.branch}{LOOSE}try/{turn}/{number}", TryName(turn, number, self.name)
        return StepPlace(branch, self.position, str(name), self.occurrence, self.opened)


def is_within(path: str, branch: str) -> bool:
    """Whether a path is that of a branch, or of one that was opened in it."""
    return path == branch or path.startswith((f"{branch}.", f"{branch}{LOOSE}"))


def is_no_call(name: str) -> bool:
    """Whether a recorded name is that of no call: the end of a wait's time, a repetition, or a try
    that failed."""
    return name.startswith(NO_CALL)


def title(name: str, occurrence: int) -> str:
    return f"{name!r} (call {occurrence + 1})"


NOWHERE = -1
"""The position of a call that takes no place in the order of calls."""


class BranchSpot(Struct, frozen=True):
    """A point between two calls of a branch: how many calls it has made, and how many branches it
    has opened."""

    path: str
    position: int
    children: int
    opened: tuple[int, ...] = ()


class SkippedCalls(Struct):
    """What operators have skipped: the results of calls by name and occurrence, and the places of
    those among them that were recorded, by branch and position. No call gets such a place."""

    results: dict[tuple[str, int], Recorded] = {}
    places: set[tuple[str, int]] = set()

    def result(self, name: str, occurrence: int) -> Recorded | None:
        """What an operator has supplied for a call, perhaps without the path of its function."""
        found = self.results.get((name, occurrence))
        if found is not None or not self.results:
            return found
        same = (key for key in self.results if key[1] == occurrence and is_named(name, key[0]))
        return next((self.results[key] for key in same), None)


class Halt:
    """Whether a run was stopped, and why; shared by everything that acts for the run."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason = ""

    def is_stopped(self) -> bool:
        return bool(self.reason)

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason


class Branch:
    """Calls that are made one after the other: by the handler itself, or by one of several things
    it does side by side."""

    __slots__ = (
        "_occurrences",
        "children",
        "counted",
        "halt",
        "held",
        "opened",
        "owner",
        "path",
        "position",
    )

    def __init__(
        self, halt: Halt, path: str, owner: object = None, opened: tuple[int, ...] = ()
    ) -> None:
        """`opened` says how many calls each branch around this one had made when it was opened."""
        self.halt = halt
        self.opened = opened
        self.path = path
        self.owner = owner
        self.counted = False
        self.held = False
        self.position = 0
        self._occurrences: dict[str, int] = {}
        self.children = 0

    def place(self, name: str, skipped: SkippedCalls) -> StepPlace:
        full = f"{self.path}/{name}" if self.path else name
        occurrence = self._occurrences.get(full, 0)
        self._occurrences[full] = occurrence + 1
        if skipped.results and skipped.result(full, occurrence) is not None:
            return StepPlace(self.path, NOWHERE, full, occurrence, self.opened)
        while (self.path, self.position) in skipped.places:
            self.position += 1
        position = self.position
        self.position += 1
        return StepPlace(self.path, position, full, occurrence, self.opened)

    def child(self, owner: object = None, prefix: str = "") -> "Branch":
        """A branch inside this one."""
        number = f"{prefix}{self.children}"
        self.children += 1
        path = f"{self.path}.{number}" if self.path else number
        return Branch(self.halt, path, owner, (*self.opened, self.position))


class ReplayingBranches:
    """The branches that have not come to the end of what is recorded."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self._progress = asyncio.Event()

    def add(self, branch: Branch) -> None:
        self.paths.add(branch.path)

    def end(self, branch: Branch) -> None:
        """The branch has ended, waits, or asks for something that is not recorded."""
        if branch.path in self.paths:
            self.paths.discard(branch.path)
            self._progress.set()

    async def ended(self, branches: Iterable[Branch]) -> None:
        """Returns when these are at the end of the record, and what was opened in them."""
        paths = [branch.path for branch in branches]
        while any(is_within(each, path) for path in paths for each in self.paths):
            self._progress.clear()
            await self._progress.wait()


class Branches:
    """The branches of one call of a handler: they give places, and count what is under way.

    `busy` counts what must not be cut off by a sleep or wait beside it; `idle` is set when nothing
    is. A handler that is `parked` unwinds, and one that asked for other steps than the recorded
    ones was `refused`: neither makes further calls.
    """

    def __init__(self, halt: Halt, cancel: CancelPoint, callers: Callers, owner: object) -> None:
        """`owner` is the task or thread that runs the handler."""
        self._halt = halt
        self._cancel = cancel
        self._caller = callers.current
        self._lock = threading.Lock()
        self._root = Branch(halt, "", owner)
        self._branches = {"": self._root}
        self._lost: set[str] = set()
        self.replaying = ReplayingBranches()
        self.busy = 0
        self.idle: Nudge | None = None
        self.parked = False
        self.skipped = SkippedCalls()
        self.refused: StepsChanged | None = None

    # -- places

    def place(self, name: str) -> StepPlace:
        """The place of the next call."""
        self._check_calls(name)
        with self._lock:
            return self._branch_here().place(name, self.skipped)

    def spot(self, name: str) -> BranchSpot:
        """Where the next call would stand, for one that takes no place."""
        self._check_calls(name)
        with self._lock:
            branch = self._branch_here()
            return BranchSpot(branch.path, branch.position, branch.children, branch.opened)

    def come_to(self, path: str) -> tuple[int, int]:
        """How many calls a branch has made, and how many branches it has opened."""
        branch = self._branches[path]
        return branch.position, branch.children

    def adopt(self, owner: object) -> None:
        """The handler is about to run in this task or thread."""
        self._root.owner = owner

    def _check_calls(self, name: str) -> None:
        """The handler may call: it is not in a step, not refused, not parked and not stopped."""
        if (step := inside_step.get()) is not None:
            raise Invalid(
                f"{name!r} was asked for inside step {step!r}: steps do not nest; ask for it in "
                "the handler, before or after that step"
            )
        if self.refused is not None:
            raise self.refused
        if self.parked or self._halt.is_stopped():
            raise Unwind(self._halt.reason)
        self._cancel.check()

    def clean_up(self) -> None:
        """From now on the calls of the handler belong to its clean-up."""
        with self._lock:
            self._root = self._keep(Branch(self._halt, CLEANUP, self._root.owner))

    def branch(self) -> Branch:
        """A branch for one of several things that are waited for together."""
        with self._lock:
            branch = self._keep(self.current().child())
            self.replaying.add(branch)
            return branch

    @property
    def is_beside(self) -> bool:
        """Whether the caller is one of several things that are waited for together."""
        return self.current() is not self._root

    def was_asked(self, path: str, position: int) -> bool:
        """Whether the handler has made the call; it need not make those of a loose branch."""
        branch = self._branches.get(path)
        if self._lost and any(is_within(path, lost) for lost in self._lost):
            return True
        return LOOSE in path or (branch is not None and position < branch.position)

    def lose(self, branches: Iterable[Branch]) -> None:
        """Branches that lost a race: what they have recorded need not be asked for again."""
        for branch in branches:
            self._lost.add(branch.path)
            self.replaying.end(branch)

    # -- where the record ends

    def resume(self, branch: Branch) -> None:
        """A wait of the branch has ended: it goes on as if that had been recorded before."""
        if LOOSE not in branch.path:
            self.replaying.add(branch)

    def go_beyond(self) -> None:
        """The caller asks for something that is not recorded."""
        if self.replaying.paths:
            self.replaying.end(self.current())

    def close(self) -> None:
        """Lets the tasks go that own branches."""
        for branch in self._branches.values():
            branch.owner = None

    def _keep(self, branch: Branch) -> Branch:
        self._branches[branch.path] = branch
        return branch

    def current(self) -> Branch:
        """The branch that the caller belongs to."""
        branch = _branch.get()
        return self._root if branch is None or branch.halt is not self._halt else branch

    def _branch_here(self) -> Branch:
        branch, caller = self.current(), self._caller()
        if branch.owner is None:
            branch.owner = caller
        elif branch.owner != caller:
            branch = self._keep(branch.child(caller, LOOSE))
            _branch.set(branch)
        return branch

    # -- what is under way

    def begin(self) -> None:
        self.busy += 1

    def end(self) -> None:
        self.busy -= 1
        if self.busy == 0 and self.idle is not None:
            self.idle.set()

    def under_way(self) -> "_UnderWay":
        """No sleep or wait beside the block takes the handler off its slot."""
        return _UnderWay(self)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """What is under way around the block only waits, so it does not count meanwhile."""
        self.end()
        try:
            yield
        finally:
            self.begin()

    @contextmanager
    def strand(self, branch: Branch) -> Iterator[None]:
        """What runs in the block is a branch of its own and counts as under way."""
        token = _branch.set(branch)
        branch.owner, branch.counted = self._caller(), True
        self.begin()
        try:
            yield
        finally:
            if branch.counted:
                self.end()
            _branch.reset(token)
            self.replaying.end(branch)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The caller's branch only waits for others, so it does not count as under way."""
        branch = self.current()
        self.replaying.end(branch)
        counted, branch.counted = branch.counted, False
        if counted:
            self.end()
        try:
            yield
        finally:
            if counted:
                branch.counted = True
                self.begin()

    def hold(self, branch: Branch) -> None:
        """The end of a branch is to be seen by what waits for it: it has raised, was the last of
        several, or the first in a race. It counts as under way until then, so that no sleep beside
        it takes the handler off its slot before."""
        branch.held = True
        self.begin()

    def forget(self, branches: Iterable[Branch]) -> None:
        """Branches whose ends have reached the handler."""
        for branch in branches:
            self.replaying.end(branch)
            if branch.held:
                branch.held = False
                self.end()


class _UnderWay:
    """The block of `Branches.under_way`: a class, which costs a third of a generator."""

    __slots__ = ("_branches",)

    def __init__(self, branches: Branches) -> None:
        self._branches = branches

    def __enter__(self) -> None:
        self._branches.begin()

    def __exit__(self, *raised: object) -> None:
        self._branches.end()
