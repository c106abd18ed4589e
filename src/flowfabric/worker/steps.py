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
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from flowfabric.core.errors import Invalid
from flowfabric.core.retry import Backoff, Exponential, RetryPolicy, backoff_delay
from flowfabric.core.text import check_text
from flowfabric.core.time import parse_span
from flowfabric.worker.codec import Undecodable, decode, encode, hints_of
from flowfabric.worker.control import Fail, Retry, StepsChanged
from flowfabric.worker.journal import Journal, Place, Recorded, inside_step
from flowfabric.worker.task import Task, is_async
from flowfabric.worker.threads import Threads

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

current_context: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "flowfabric_context", default=None
)
"""The context of the run this code belongs to, None inside a step."""

skip_pauses: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "flowfabric_skip_pauses", default=False
)
"""Whether the next try of a step follows at once, for tests, which wait for nothing."""

_BRANCH_NAME = re.compile(r"~?[0-9]+(\.~?[0-9]+)*/")


class StepOptions(Struct, frozen=True, kw_only=True):
    """`retries` and `timeout` of the step itself, within one attempt of the run."""

    name: str | None = None
    retries: int = 0
    backoff: Backoff = Exponential(initial=200, maximum=10_000)
    timeout: str | float | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.timeout is None else parse_span(self.timeout, "timeout") / 1000


class StepFunction(Generic[P, R]):
    """A function with step options. Called inside a run it is a durable step of that run;
    called anywhere else, inside another step included, it is just the function."""

    def __init__(self, function: Callable[P, Any], options: StepOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        if options.retries < 0:
            raise Invalid("a step is retried 0 times or more")
        step_name(function, options)
        _ = options.seconds  # refused here rather than in the middle of a run

    @overload
    def __call__(
        self: "StepFunction[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        context = current_context.get()
        if context is None:
            return self.function(*args, **kwargs)
        return context.step(self, *args, **kwargs)


class Work(Struct, frozen=True):
    """One call of a step's function."""

    function: Callable[..., Any]
    options: StepOptions
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Any], args: Any, kwargs: Any) -> "Work":
        match function:
            case StepFunction():
                return cls(function.function, function.options, args, kwargs)
            case Task():
                return cls(function.function, _DEFAULTS, args, kwargs)
            case _:
                return cls(function, _DEFAULTS, args, kwargs)

    @property
    def name(self) -> str:
        return step_name(self.function, self.options)

    @property
    def returns(self) -> Any:
        return returns_of(self.function)

    def pause_before(self, retry: int) -> float:
        if skip_pauses.get():
            return 0.0
        policy = RetryPolicy(max_retries=self.options.retries, backoff=self.options.backoff)
        return backoff_delay(policy, retry, 0.0) / 1000

    def call(self) -> Any:
        with _inside(self.name):
            return self.function(*self.args, **self.kwargs)


async def perform(
    journal: Journal, place: Place, work: Callable[[], Awaitable[Any]], returns: Any
) -> Any:
    """The recorded value at a place, or what `work` gives, recorded."""
    journal.begin()
    try:
        record = await journal.recorded(place)
        if record is None:
            return await keep(journal, place, await work(), returns)
        return read(place, record, returns)
    finally:
        journal.end()


def read(place: Place, record: Recorded, returns: Any) -> Any:
    try:
        return decode(bytes(record.value), returns)
    except Undecodable as error:
        raise StepsChanged(f"what {place} recorded no longer fits: {error}") from error


async def keep(journal: Journal, place: Place, result: Any, returns: Any) -> Any:
    """Records what a step returned. The value is read back from what is recorded, so that the
    first run sees exactly what every later one will see."""
    try:
        data = encode(result)
        value = decode(data, returns)
    except (Invalid, Undecodable) as error:
        raise Invalid(f"what step {place} returned cannot be recorded: {error.detail}") from None
    await journal.record(place, Recorded(value=msgspec.Raw(data)))
    return value


async def attempt(work: Work, threads: Threads) -> Any:
    """Calls a step's function with its own timeout and retries; a plain one in a thread."""
    for retry in range(work.options.retries):
        try:
            return await _once(work, threads)
        except (Fail, Retry):
            raise
        except Exception:
            await asyncio.sleep(work.pause_before(retry))
    return await _once(work, threads)


def attempt_here(work: Work, threads: Threads, check: Callable[[], None]) -> Any:
    """The same in a thread that has no event loop. `check` stops it between two tries."""
    for retry in range(work.options.retries):
        try:
            return _once_here(work, threads)
        except (Fail, Retry):
            raise
        except Exception:
            time.sleep(work.pause_before(retry))
            check()
    return _once_here(work, threads)


async def _once(work: Work, threads: Threads) -> Any:
    async with asyncio.timeout(work.options.seconds):
        if is_async(work.function):
            with _inside(work.name):
                return await work.function(*work.args, **work.kwargs)
        result = await threads.call(work.call)
        return await result if inspect.isawaitable(result) else result


def _once_here(work: Work, threads: Threads) -> Any:
    """A plain function cannot be stopped: with a timeout it gets a thread that is left behind."""
    if work.options.timeout is None:
        return work.call()
    return threads.start(work.call).result(work.options.seconds)


@contextmanager
def _inside(name: str) -> Iterator[None]:
    context, step = current_context.set(None), inside_step.set(name)
    try:
        yield
    finally:
        inside_step.reset(step)
        current_context.reset(context)


def step_name(function: Callable[..., Any], options: StepOptions) -> str:
    name = options.name
    if name is None:
        named = function.func if isinstance(function, functools.partial) else function
        name = getattr(named, "__qualname__", None) or type(named).__name__
        name = name.replace("<locals>.", "")
    if not name or _BRANCH_NAME.match(name):
        raise Invalid(f"{name!r} cannot name a step")
    return check_text(name, "step name", limit=200)


_returns: WeakKeyDictionary[Callable[..., Any], Any] = WeakKeyDictionary()


def returns_of(function: Callable[..., Any]) -> Any:
    function = getattr(function, "__func__", function)
    try:
        if function not in _returns:
            _returns[function] = hints_of(function).get("return", Any)
        return _returns[function]
    except TypeError:  # an object that cannot be a key
        return hints_of(function).get("return", Any)


_DEFAULTS = StepOptions()
