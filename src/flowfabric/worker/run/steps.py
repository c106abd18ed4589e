"""Durable steps: what a handler did once is recorded and never done again.

A handler runs from the top after a crash, a retry or a sleep. Each call of `ctx.step` gets its
place when it is made (so concurrent steps are stable), asks the journal for what is recorded
there, and only otherwise does the work. If the code asks for something else than what is
recorded, the run is blocked by code, which names both; two histories are never mixed.
"""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.time import parse_span
from flowfabric.core.execution.step import Recorded
from flowfabric.core.execution.step_order import check_step_name
from flowfabric.worker.api.backoff import Backoff, Exponential, retry_policy
from flowfabric.worker.api.hooks import Invocation
from flowfabric.worker.api.options import Span
from flowfabric.worker.api.task import Task, check_function, function_of_step, is_async
from flowfabric.worker.codec import Undecodable, decode, encode, hints_of
from flowfabric.worker.errors import Fail, Retry, StepsChanged
from flowfabric.worker.run.branches import StepPlace, inside_step
from flowfabric.worker.run.failure import contained_in_step, mark_step
from flowfabric.worker.run.hooks import StepHooks
from flowfabric.worker.run.journal import Journal
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.threads import Threads
from flowfabric.worker.run.tries import Tries

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

current_context: contextvars.ContextVar[Callable[[], Any] | None] = contextvars.ContextVar(
    "flowfabric_context", default=None
)
"""Makes the context of the run this code belongs to; None inside a step."""


class StepOptions(Struct, frozen=True, kw_only=True):
    """`retries`, `backoff` and `timeout` of the step itself, within one attempt of the run."""

    name: str | None = None
    retries: int = 0
    backoff: Backoff = Exponential(initial="200ms", maximum="10s")
    timeout: Span | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_step_name(self.name)
        retry_policy(self.retries, self.backoff)
        if self.timeout is not None and not parse_span(self.timeout, "timeout"):
            raise Invalid("timeout must be longer than zero")

    @property
    def seconds(self) -> float | None:
        return None if self.timeout is None else parse_span(self.timeout, "timeout") / 1000


class StepFunction(Generic[P, R]):
    """A function with step options. Called inside a run it is a durable step of that run;
    called anywhere else, inside another step included, it is just the function."""

    def __init__(self, function: Callable[P, Any], options: StepOptions) -> None:
        functools.update_wrapper(self, check_function(function))
        self.function = function
        self.options = check_kind_of(options, StepOptions, "options of a step")

    @overload
    def __call__(
        self: "StepFunction[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        make_context = current_context.get()
        if make_context is None:
            return self.function(*args, **kwargs)
        return make_context().step(self, *args, **kwargs)


class StepFacts(Struct, frozen=True):
    """What is worth knowing about a function that is called as a step more than once."""

    name: str
    returns: Any
    is_async: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "StepFacts":
        key = getattr(function, "__func__", function)
        try:
            known = _facts.get(key)
        except TypeError:  # an object that cannot be a key
            return cls._found(function)
        if known is None:
            known = cls._found(function)
            with suppress(TypeError):
                _facts[key] = known
        return known

    @classmethod
    def _found(cls, function: Callable[..., Any]) -> "StepFacts":
        returns = hints_of(function).get("return", Any)
        return cls(_name_of(function), returns, is_async(function))


_facts: WeakKeyDictionary[Callable[..., Any], StepFacts] = WeakKeyDictionary()


class Work(Struct, frozen=True):
    """One call of a step's function."""

    function: Callable[..., Any]
    options: StepOptions
    facts: StepFacts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    hooks: StepHooks | None = None
    try_number: int = 1

    @classmethod
    def of(
        cls, function: Callable[..., Any], args: Any, kwargs: Any, hooks: StepHooks | None = None
    ) -> "Work":
        options = _DEFAULTS
        check_function(function)
        if isinstance(function, StepFunction):
            options, function = function.options, function.function
        elif isinstance(function, Task):
            function = function_of_step(function, args, kwargs)
        return cls(function, options, StepFacts.of(function), args, kwargs, hooks)

    @property
    def name(self) -> str:
        return self.facts.name if self.options.name is None else self.options.name

    @property
    def returns(self) -> Any:
        return self.facts.returns

    @property
    def is_async(self) -> bool:
        return self.facts.is_async

    def tries(self, scope: CallScope, place: StepPlace, *, under_way: bool) -> Tries | None:
        """Its tries, None if it has only one; `under_way` as in `Tries`."""
        if not self.options.retries:
            return None
        policy = retry_policy(self.options.retries, self.options.backoff)
        return Tries(scope, place, policy, under_way=under_way)

    def as_try(self, number: int) -> "Work":
        return msgspec.structs.replace(self, try_number=number)

    def invocation(self, hooks: StepHooks) -> Invocation:
        """This call as a middleware sees it."""
        return hooks.call(self.name, self.args, self.kwargs, self.try_number)

    def given(self, call: Invocation) -> "Work":
        """The same work with the arguments that a middleware has passed on."""
        return msgspec.structs.replace(self, args=call.args, kwargs=call.kwargs)

    def call(self) -> Any:
        inside = _Inside(self.name)
        try:
            return self.function(*self.args, **self.kwargs)
        except BaseException as error:
            if (other := contained_in_step(error)) is not error:
                raise other from error
            raise
        finally:
            inside.leave()

    async def wait(self) -> Any:
        inside = _Inside(self.name)
        try:
            return await self.function(*self.args, **self.kwargs)
        except GeneratorExit:  # the coroutine is closed
            raise
        except BaseException as error:
            if (other := contained_in_step(error)) is not error:
                raise other from error
            raise
        finally:
            inside.leave()


async def perform(
    journal: Journal,
    place: StepPlace,
    work: Callable[[], Awaitable[Any]],
    returns: Any,
    *,
    through: tuple[int, int] | None = None,
) -> Any:
    """The recorded value at a place, or what `work` gives, recorded; for a block with `through` of
    Recorded."""
    branches = journal.branches
    branches.begin()  # until its end, as `under_way`
    try:
        record = await journal.recorded(place)
        if record is not None:
            return read(place, record, returns)
        try:
            result = await work()
        except Exception as error:
            mark_step(error, place.name)
            raise
        value, record = _to_record(place, result, returns, through)
        await journal.record(place, record)
        return value
    finally:
        branches.end()


def read(place: StepPlace, record: Recorded, returns: Any) -> Any:
    try:
        return decode(bytes(record.value), returns)
    except Undecodable as error:
        raise StepsChanged(
            f"what {place} recorded no longer fits: {error}",
            expected=f"the recorded value of step {place.position}: {place}",
            asked=f"a value of another type ({error})",
        ) from error


async def keep(journal: Journal, place: StepPlace, result: Any, returns: Any) -> Any:
    """Records what a step returned, and returns it as every later run will see it."""
    value, record = _to_record(place, result, returns)
    await journal.record(place, record)
    return value


def _to_record(
    place: StepPlace, result: Any, returns: Any, through: tuple[int, int] | None = None
) -> tuple[Any, Recorded]:
    """What a step returned, and its record. The value is read back from what is recorded, so that
    the first run sees exactly what every later one will see."""
    try:
        data = encode(result)
        value = decode(data, returns)
    except (Invalid, Undecodable) as error:
        raise Invalid(f"what step {place} returned cannot be recorded: {error.detail}") from None
    return value, Recorded(value=msgspec.Raw(data), through=through)


def attempt(work: Work, threads: Threads, tries: Tries | None) -> Awaitable[Any]:
    """Calls a step's function with its own timeout and retries; a plain one in a thread."""
    return _once(work, threads) if tries is None else _tried(work, threads, tries)


async def _tried(work: Work, threads: Threads, tries: Tries) -> Any:
    await tries.resume()
    while not tries.is_last:
        try:
            return await _once(work.as_try(tries.number), threads)
        except (Fail, Retry):
            raise
        except Exception as error:
            await tries.failed(error)
    return await _once(work.as_try(tries.number), threads)


def attempt_here(
    work: Work, threads: Threads, tries: Tries | None, block: Callable[..., Any]
) -> Any:
    """The same in a thread that has no event loop; `block` runs a coroutine there."""
    if tries is None:
        return _once_here(work, threads)
    block(tries.resume())
    while not tries.is_last:
        try:
            return _once_here(work.as_try(tries.number), threads)
        except (Fail, Retry):
            raise
        except Exception as error:
            block(tries.failed(error))
    return _once_here(work.as_try(tries.number), threads)


def _once(work: Work, threads: Threads) -> Awaitable[Any]:
    """One call of the function, through the middleware if there is any."""
    if work.hooks is None:
        return _bare(work, threads)
    return _through_middleware(work, threads, work.hooks)


async def _through_middleware(work: Work, threads: Threads, hooks: StepHooks) -> Any:
    """A plain function shares its thread with plain middleware, unless its timeout may leave the
    thread behind."""
    chain = hooks.around(
        lambda call: _bare(work.given(call), threads), is_async=True, start=threads.start
    )
    if not work.is_async and work.options.timeout is None:
        chain = hooks.around(
            lambda call: work.given(call).call(), is_async=False, start=threads.start
        )
    inside = _Inside(work.name)  # a middleware cannot record anything either
    try:
        return await chain.run(work.invocation(hooks))
    finally:
        inside.leave()


def _bare(work: Work, threads: Threads) -> Awaitable[Any]:
    """Not a coroutine of its own: most steps have no timeout."""
    call = work.wait() if work.is_async else _in_thread(work, threads)
    return call if work.options.timeout is None else _timed(call, work.options.seconds)


async def _timed(call: Awaitable[Any], seconds: float | None) -> Any:
    async with asyncio.timeout(seconds):
        return await call


async def _in_thread(work: Work, threads: Threads) -> Any:
    result = await threads.call(work.call)
    return await result if inspect.isawaitable(result) else result


def _once_here(work: Work, threads: Threads) -> Any:
    if work.hooks is None:
        return _bare_here(work, threads)
    chain = work.hooks.around(
        lambda call: _bare_here(work.given(call), threads), is_async=False, start=threads.start
    )
    inside = _Inside(work.name)
    try:
        return chain.run_here(work.invocation(work.hooks))
    finally:
        inside.leave()


def _bare_here(work: Work, threads: Threads) -> Any:
    """A plain function cannot be stopped: with a timeout it gets a thread that is left behind."""
    if work.options.timeout is None:
        return work.call()
    return threads.start(work.call).result(work.options.seconds)


class _Inside:
    """While it is held, the code that runs is inside a step."""

    __slots__ = ("_context", "_step")

    def __init__(self, name: str) -> None:
        self._context = current_context.set(None)
        self._step = inside_step.set(name)

    def leave(self) -> None:
        inside_step.reset(self._step)
        current_context.reset(self._context)


def _name_of(function: Callable[..., Any]) -> str:
    named = function.func if isinstance(function, functools.partial) else function
    name = getattr(named, "__qualname__", None) or type(named).__name__
    return check_step_name(name.replace("<locals>.", ""))


_DEFAULTS = StepOptions()
