"""The recorded steps of one run: where a call stands, what is recorded there, what is added.

A place does not depend on which of two things that happen side by side is faster: it is given when
a call is made, and whatever runs side by side counts on its own, in a branch.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Invalid, LeaseLost
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Start
from flowfabric.core.execution.step import Recorded, Step
from flowfabric.engine.engine import Engine
from flowfabric.worker.errors import LOST, StepsChanged, Unwind
from flowfabric.worker.run.lease import WorkerLease
from flowfabric.worker.run.until_available import until_available

_LOOSE = "~"
"""Marks a branch that the handler made itself and that may be left unfinished."""

inside_step: ContextVar[str | None] = ContextVar("flowfabric_inside_step", default=None)
"""The name of the step whose function is being called."""

_branch: ContextVar["Branch | None"] = ContextVar("flowfabric_branch", default=None)


class StepPlace(Struct, frozen=True):
    """Where in the history a call stands; given when it is made, not when it finishes."""

    branch: str
    position: int
    name: str
    occurrence: int

    def __str__(self) -> str:
        return _title(self.name, self.occurrence)


class Halt:
    """Whether a run was stopped, and why; shared by all who must know."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason = ""

    def __bool__(self) -> bool:
        return bool(self.reason)

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason


class Branch:
    """Calls that are made one after the other: by the handler itself, or by one of several things
    it does side by side."""

    __slots__ = (
        "_children",
        "_occurrences",
        "counted",
        "failed",
        "halt",
        "owner",
        "path",
        "position",
    )

    def __init__(self, halt: Halt, path: str, owner: object = None) -> None:
        self.halt = halt
        self.path = path
        self.owner = owner
        self.counted = False
        self.failed = False
        self.position = 0
        self._occurrences: dict[str, int] = {}
        self._children = 0

    def place(self, name: str) -> StepPlace:
        full = f"{self.path}/{name}" if self.path else name
        occurrence = self._occurrences.get(full, 0)
        self._occurrences[full] = occurrence + 1
        position = self.position
        self.position += 1
        return StepPlace(self.path, position, full, occurrence)

    def child(self, mark: str = "") -> str:
        number = f"{mark}{self._children}"
        self._children += 1
        return f"{self.path}.{number}" if self.path else number


class Journal:
    """Loaded once, appended after. Once it is stopped or has seen that the code changed, every
    further call is refused."""

    def __init__(
        self,
        engine: Engine,
        lease: WorkerLease,
        halt: Halt,
        owner: object,
        *,
        again: bool = False,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`owner` is the task or thread that runs the handler, `again` whether it did so before
        under the same lease; `on_step` is called after a step was recorded."""
        claim = lease.claim
        self._on_step = on_step
        self._engine = engine
        self._lease = lease
        self._claim = claim
        self._halt = halt
        self.generation = claim.snapshot.life.generation
        self._steps: dict[tuple[str, int], tuple[Step, Recorded]] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._loaded = claim.lease.start is Start.INITIAL and not again
        self._loading: asyncio.Lock | None = None
        self._lock = threading.Lock()
        self._root = Branch(halt, "", owner)
        self._branches = {"": self._root}
        self.busy = 0
        self.idle: asyncio.Event | None = None
        self._changed: StepsChanged | None = None
        self.parked = False

    # -- places

    def place(self, name: str) -> StepPlace:
        """The place of the next call. A run that was parked or stopped makes no further calls."""
        if (step := inside_step.get()) is not None:
            raise Invalid(f"{name!r} was asked for inside step {step!r}, which is recorded whole")
        if self._changed is not None:
            raise self._changed
        if self.parked or self._halt:
            raise Unwind(self._halt.reason)
        with self._lock:
            return self._branch_here().place(name)

    def close(self) -> None:
        """No further place is given; the tasks that had any are let go."""
        for branch in self._branches.values():
            branch.owner = None

    def branch(self) -> Branch:
        """A branch for one of several things that are waited for together."""
        with self._lock:
            parent = self._strand()
            return self._open(parent.child())

    def _open(self, path: str, owner: object = None) -> Branch:
        branch = self._branches[path] = Branch(self._halt, path, owner)
        return branch

    def _strand(self) -> Branch:
        branch = _branch.get()
        return self._root if branch is None or branch.halt is not self._halt else branch

    def _branch_here(self) -> Branch:
        branch, caller = self._strand(), current_caller()
        if branch.owner is None:
            branch.owner = caller
        elif branch.owner != caller:
            branch = self._open(branch.child(_LOOSE), caller)
            _branch.set(branch)
        return branch

    # -- records

    async def recorded(self, place: StepPlace) -> Recorded | None:
        """What is recorded at a place; StepsChanged if something else is. None means that the
        caller may do it now."""
        if not self._loaded:
            self.begin()  # whoever still looks may find that it has to go on
            try:
                await self._load()
            finally:
                self.end()
        found = self._steps.get((place.branch, place.position))
        if found is None:
            position = self._positions.get((place.name, place.occurrence))
            if position is not None:
                self.refuse(
                    f"{place} was recorded as step {position} "
                    f"but the code now asks for it as step {place.position}"
                )
            await self.confirm()
            return None
        step, record = found
        if (step.name, step.occurrence) != (place.name, place.occurrence):
            self.refuse(
                f"step {place.position} was recorded as {_title(step.name, step.occurrence)} "
                f"but the code now asks for {place}"
            )
        return record

    async def confirm(self) -> None:
        """Nothing begins in a run that was stopped, or that another worker has taken over."""
        try:
            await self._lease.confirm(self._engine, give_up=self._halt.__bool__)
        except LeaseLost:
            self._halt.stop(LOST)
        if self._halt:
            raise Unwind(self._halt.reason)

    async def record(self, place: StepPlace, value: Recorded) -> None:
        """Writes under the fence, however long the store is away; raises a LeaseLost when
        somebody else owns the run."""
        step = self.step(place, value)
        try:
            await until_available(
                lambda: self._engine.attempts.record_step(self._claim, step),
                give_up=self._halt.__bool__,
            )
        except LeaseLost:
            self._halt.stop(LOST)
            raise
        self._on_step()

    async def finish(self) -> None:
        """The handler returned: everything recorded must have been asked for."""
        if self._changed is not None:
            raise self._changed
        if not self._loaded:
            await self._load()
        extra = [place for place in self._steps if self._unasked(*place)]
        if extra:
            step, _ = self._steps[min(extra)]
            self.refuse(
                f"step {step.position}, {_title(step.name, step.occurrence)}, is recorded "
                f"but the code no longer asks for it"
            )

    def limit(self, place: StepPlace) -> Millis | None:
        """The moment at which the time of a wait is over, if it is recorded."""
        at = beside(place)
        step, record = self._steps.get((at.branch, at.position), (None, None))
        return record.until if step and record and step.name == at.name else None

    def went_on(self, place: StepPlace) -> bool:
        """Whether the handler had something recorded after this call when it was loaded."""
        return any(at == place.branch and place.position < n for at, n in self._steps)

    def _unasked(self, path: str, position: int) -> bool:
        branch = self._branches.get(path)
        return _LOOSE not in path and (branch is None or position >= branch.position)

    def refuse(self, message: str) -> NoReturn:
        """The code asks for something else than what is recorded."""
        self._changed = StepsChanged(message)
        raise self._changed

    async def _load(self) -> None:
        self._loading = self._loading or asyncio.Lock()
        async with self._loading:
            if self._loaded:
                return
            steps = await until_available(
                lambda: self._engine.attempts.steps(self._claim.uuid, self.generation),
                give_up=self._halt.__bool__,
            )
            for step in steps:
                record = msgspec.json.decode(step.doc, type=Recorded)
                self._steps[record.branch, step.position] = (step, record)
                self._positions[step.name, step.occurrence] = step.position
            self._loaded = True

    def step(self, place: StepPlace, value: Recorded) -> Step:
        if place.branch:
            value = msgspec.structs.replace(value, branch=place.branch)
        doc = msgspec.json.encode(value)
        return Step(self.generation, place.position, place.name, place.occurrence, doc)

    # -- what is under way

    def begin(self) -> None:
        """Something is under way that must not be cut off by a sleep beside it."""
        self.busy += 1

    def end(self) -> None:
        self.busy -= 1
        if self.busy == 0 and self.idle is not None:
            self.idle.set()

    @contextmanager
    def strand(self, branch: Branch) -> Iterator[None]:
        """What runs in the block is a branch of its own and counts as under way."""
        token = _branch.set(branch)
        branch.owner, branch.counted = current_caller(), True
        self.begin()
        try:
            yield
        finally:
            if branch.counted:
                self.end()
            _branch.reset(token)

    def failed(self, branch: Branch) -> None:
        """A branch has raised: it counts as under way until its error has reached the handler, so
        that no sleep beside it takes the handler off its slot before that."""
        branch.failed = True
        self.begin()

    def forget(self, branches: Iterable[Branch]) -> None:
        """Branches whose errors have reached the handler."""
        for branch in branches:
            if branch.failed:
                branch.failed = False
                self.end()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The caller's branch only waits for others, so it does not count as under way."""
        branch = self._strand()
        counted, branch.counted = branch.counted, False
        if counted:
            self.end()
        try:
            yield
        finally:
            if counted:
                branch.counted = True
                self.begin()

    def stopped(self) -> bool:
        return bool(self._halt)


def current_caller() -> object:
    """The task this is called in, or the thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without an event loop
        return threading.get_ident()


def beside(place: StepPlace) -> StepPlace:
    """Where the end of a wait's time is recorded: not in the order of calls, since code may give
    a wait more or less time without changing its history."""
    name = f"{_LOOSE}/{place.name}"
    return StepPlace(f"{place.branch}{_LOOSE}", place.position, name, place.occurrence)


def anew(place: StepPlace, number: int, what: str = "") -> StepPlace:
    """Where it is recorded that something was done once more: beside the order of calls as well."""
    branch, name = f"{place.branch}{_LOOSE}{what}/{number}", f"{_LOOSE}/{what}{number}/{place.name}"
    return StepPlace(branch, place.position, name, place.occurrence)


def is_beside(name: str) -> bool:
    """Whether a recorded name is that of no call: the end of a wait's time, or something anew."""
    return name.startswith(f"{_LOOSE}/")


def _title(name: str, occurrence: int) -> str:
    return f"{name!r} (call {occurrence + 1})"
