"""Durable steps: what a handler did once is recorded and never done again.

A handler runs from the top after a crash, a retry or a sleep. Each call of `ctx.step` gets its
place when it is made (so concurrent steps are stable), asks the journal for what is recorded
there, and only otherwise does the work. If the code asks for something else than what is
recorded, the run fails with a message that names both; two histories are never mixed.
"""

import asyncio
import contextvars
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from flowfabric.core.errors import Invalid
from flowfabric.core.execution import Start
from flowfabric.core.retry import Backoff, Exponential, RetryPolicy, backoff_delay
from flowfabric.core.step import Step
from flowfabric.core.text import check_text
from flowfabric.core.time import Millis, parse_span
from flowfabric.engine.claims import Claim
from flowfabric.engine.engine import Engine
from flowfabric.worker.codec import Undecodable, decode, encode
from flowfabric.worker.control import Fail, StepsChanged, Unwind

P = ParamSpec("P")
R = TypeVar("R")


class StepOptions(Struct, frozen=True, kw_only=True):
    """`retries` and `timeout` of the step itself, within one attempt of the run."""

    name: str | None = None
    retries: int = 0
    backoff: Backoff = Exponential(initial=200, maximum=10_000)
    timeout: str | float | None = None


class StepFunction(Generic[P, R]):
    """A function with step options. Called inside a run it is a durable step of that run;
    called anywhere else it is just the function."""

    def __init__(self, function: Callable[P, Any], options: StepOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        context = current_context.get()
        if context is None:
            return self.function(*args, **kwargs)
        return context.step(self, *args, **kwargs)


class Place(Struct, frozen=True):
    """Where in the history a call stands; given when it is made, not when it finishes."""

    position: int
    name: str
    occurrence: int


class Recorded(Struct, frozen=True, omit_defaults=True):
    """What a step row holds: the value a step returned, or the moment a sleep ends."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    until: Millis | None = None


class Journal:
    """The recorded steps of one run: loaded once, appended after."""

    def __init__(self, engine: Engine, claim: Claim) -> None:
        self._engine = engine
        self._claim = claim
        self._generation = claim.snapshot.life.generation
        self._records: dict[int, Step] = {}
        self._loaded = claim.lease.start is Start.INITIAL
        self._loading: asyncio.Lock | None = None
        self._position = 0
        self._occurrences: dict[str, int] = {}
        self._busy = 0
        self._idle: asyncio.Event | None = None
        self._sleepers: list[tuple[Place, Millis, bool]] = []
        self.parked = False

    def place(self, name: str) -> Place:
        """The place of the next call. A run that was parked makes no further calls."""
        if self.parked:
            raise Unwind
        occurrence = self._occurrences.get(name, 0)
        self._occurrences[name] = occurrence + 1
        place = Place(self._position, name, occurrence)
        self._position += 1
        return place

    async def recorded(self, place: Place) -> Recorded | None:
        """What is recorded at a place; StepsChanged if something else is."""
        if not self._loaded:
            await self._load()
        step = self._records.get(place.position)
        if step is None:
            return None
        if (step.name, step.occurrence) != (place.name, place.occurrence):
            raise StepsChanged(
                f"step {place.position} was recorded as {_title(step)} "
                f"but the code now asks for {_title(place)}"
            )
        return msgspec.json.decode(step.doc, type=Recorded)

    async def record(self, place: Place, value: Recorded) -> None:
        """Writes under the fence; raises a LeaseLost when somebody else owns the run."""
        await self._engine.attempts.record_step(self._claim, self._step(place, value))

    def begin(self) -> None:
        self._busy += 1

    def finish(self) -> None:
        self._busy -= 1
        if self._busy == 0 and self._idle is not None:
            self._idle.set()

    async def park(self, place: Place, until: Millis, *, known: bool) -> None:
        """Gives the slot back until the earliest of all sleeps; never returns."""
        self._sleepers.append((place, until, known))
        while self._busy:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()
        if not self.parked:
            self.parked = True
            await self._release()
        raise Unwind

    def check_finished(self) -> None:
        """The handler returned: everything recorded must have been asked for."""
        extra = [step for position, step in self._records.items() if position >= self._position]
        if extra:
            first = min(extra, key=lambda step: step.position)
            raise StepsChanged(
                f"step {first.position}, {_title(first)}, is recorded "
                f"but the code no longer asks for it"
            )

    async def _release(self) -> None:
        fresh = [(place, until) for place, until, known in self._sleepers if not known]
        for place, until in fresh[1:]:
            await self.record(place, Recorded(until=until))
        step = self._step(fresh[0][0], Recorded(until=fresh[0][1])) if fresh else None
        until = min(until for _, until, _ in self._sleepers)
        await self._engine.attempts.delay(self._claim, until, step=step)

    async def _load(self) -> None:
        self._loading = self._loading or asyncio.Lock()
        async with self._loading:
            if self._loaded:
                return
            steps = await self._engine.attempts.steps(self._claim.uuid, self._generation)
            self._records = {step.position: step for step in steps}
            self._loaded = True

    def _step(self, place: Place, value: Recorded) -> Step:
        doc = msgspec.json.encode(value)
        return Step(self._generation, place.position, place.name, place.occurrence, doc)


async def perform(
    journal: Journal, place: Place, work: Callable[[], Awaitable[Any]], returns: Any
) -> Any:
    """The recorded value at a place, or what `work` gives, recorded.

    The value is read back from what was recorded, so that the first run sees exactly what every
    later one will see.
    """
    record = await journal.recorded(place)
    if record is None:
        journal.begin()
        try:
            record = Recorded(value=_encode(place.name, await work()))
            await journal.record(place, record)
        finally:
            journal.finish()
    try:
        return decode(bytes(record.value), returns)
    except Undecodable as error:
        raise StepsChanged(f"what {_title(place)} recorded no longer fits: {error}") from error


async def attempt(
    function: Callable[..., Any],
    options: StepOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls a step's function with its own timeout and retries."""
    policy = RetryPolicy(max_retries=options.retries, backoff=options.backoff)
    limit = None if options.timeout is None else parse_span(options.timeout, "timeout") / 1000
    tries = 0
    while True:
        try:
            async with asyncio.timeout(limit):
                return await _call(function, args, kwargs)
        except Fail:
            raise
        except Exception:
            if tries >= options.retries:
                raise
            await asyncio.sleep(backoff_delay(policy, tries, 0.0) / 1000)
            tries += 1


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await asyncio.to_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def unwrap(function: Callable[..., Any]) -> tuple[Callable[..., Any], StepOptions]:
    if isinstance(function, StepFunction):
        return function.function, function.options
    return getattr(function, "function", function), _DEFAULTS


def step_name(function: Callable[..., Any], options: StepOptions) -> str:
    if options.name is not None:
        return check_text(options.name, "step name", limit=256)
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return check_text(name.replace("<locals>.", ""), "step name", limit=256)


@functools.lru_cache(maxsize=4096)
def returns_of(function: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        return Any


def _encode(name: str, value: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(f"what step {name!r} returned cannot be recorded: {error}") from None


def _title(step: Step | Place) -> str:
    return f"{step.name!r} (call {step.occurrence + 1})"


_DEFAULTS = StepOptions()

current_context: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "flowfabric_context", default=None
)
