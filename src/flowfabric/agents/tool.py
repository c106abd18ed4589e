"""A tool: a function that an agent may call, and the conditions of a call."""

import contextvars
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

from msgspec import Struct

from flowfabric.agents.errors import ToolRefused
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.text import check_text
from flowfabric.core.base.time import parse_span
from flowfabric.worker.api.approval import Verdict, about_digest
from flowfabric.worker.api.context import Context
from flowfabric.worker.api.limits import amounts_of
from flowfabric.worker.api.options import Span
from flowfabric.worker.api.sync import SyncContext
from flowfabric.worker.api.task import check_function, is_async
from flowfabric.worker.api.waits import approval_terms
from flowfabric.worker.codec import Signature, plain
from flowfabric.worker.run.steps import StepFunction, StepOptions

P = ParamSpec("P")
R = TypeVar("R")


Amounts = Mapping[str, int]

_key: contextvars.ContextVar[str | None] = contextvars.ContextVar("flowfabric_tool", default=None)
_counts: "WeakKeyDictionary[Context, Counter[str]]" = WeakKeyDictionary()


class ToolCall(Struct, frozen=True):
    """A call of a tool, with every argument, defaults included. This is what a person approves."""

    tool: str
    arguments: dict[str, Any]


class ToolOptions(Struct, frozen=True, kw_only=True):
    """The conditions of a call; see `tool`."""

    name: str | None = None
    approval: bool | Callable[..., bool] = False
    of: int = 1
    approvers: Sequence[str] = ()
    approval_timeout: Span | None = None
    reserve: Amounts | Callable[..., Amounts] | None = None
    settle: Callable[[Any], Amounts] | None = None
    budget: str | None = None
    retries: int = 0
    timeout: Span | None = None

    def __post_init__(self) -> None:
        approval_terms("tool", self.of, self.approvers)
        if self.approval_timeout is not None:
            parse_span(self.approval_timeout, "approval_timeout")
        if not isinstance(self.approval, bool) and not callable(self.approval):
            raise Invalid("approval must be True, False or a function of the arguments")
        if isinstance(self.reserve, Mapping):
            amounts_of(self.reserve, {})
        elif self.reserve is not None and not callable(self.reserve):
            raise Invalid("reserve must be amounts by dimension, or a function of the arguments")
        if self.reserve is None and (self.settle is not None or self.budget is not None):
            raise Invalid("a tool that settles, or names a budget, needs reserve")


class Tool(Generic[P, R]):
    """A function that an agent may call. Calling the tool calls the function; `call` makes the call
    a durable step of a run."""

    def __init__(self, function: Callable[..., Any], options: ToolOptions) -> None:
        functools.update_wrapper(self, check_function(function))
        self.function = function
        self.options = options
        name = options.name or getattr(function, "__name__", None)
        if name is None:
            raise Invalid(f"{type(function).__name__} has no name: give the tool one with name=…")
        self.name = check_text(name, "the name of a tool", limit=100)
        self.description = inspect.getdoc(function) or ""
        self._signature = Signature(function, skip_first=False)
        _check_parameters(self.name, function)
        named = StepOptions(
            name=f"tool:{self.name}", retries=options.retries, timeout=options.timeout
        )
        self._step: StepFunction[..., Any] = StepFunction(
            _keyed(function, self._signature.returns), named
        )

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Calls the function itself. Nothing is recorded, approved or spent."""
        return self.function(*args, **kwargs)

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments, as models want it."""
        return self._signature.json_schema()

    async def call(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the tool as a durable step of the run.

        First the arguments are checked (Invalid). If the call needs an approval, the run waits
        without a worker until it is decided; ToolRefused if it is not a yes, ApprovalOutdated if
        it was a yes to other arguments. Then the amounts are reserved (BudgetExceeded if they do
        not fit), the function is called, and what it cost is settled.
        """
        if not isinstance(ctx, Context):
            raise Invalid(f"tool {self.name}: call needs the Context of a coroutine; see call_sync")
        typed = self._signature.decode(self._signature.encode(args, kwargs))
        call = ToolCall(self.name, self._arguments(typed))
        if self._asks(typed):
            (await self._verdict(ctx, call)).check(call)
        result: R = await self._spend(ctx, typed, _key_of(ctx, call))
        return result

    def call_sync(self, ctx: SyncContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """As `call`, in a task that is a plain function."""
        if not isinstance(ctx, SyncContext):
            raise Invalid(f"tool {self.name}: call_sync needs the SyncContext of a plain function")
        result: R = ctx._block(self.call(ctx._context, *args, **kwargs))
        return result

    def _arguments(self, typed: "_Typed") -> dict[str, Any]:
        bound = self._signature.bind(tuple(typed[0]), typed[1])
        arguments: dict[str, Any] = plain({**self._signature.defaults, **bound})
        return arguments

    def _asks(self, typed: "_Typed") -> bool:
        wanted = self.options.approval
        return wanted if isinstance(wanted, bool) else bool(wanted(*typed[0], **typed[1]))

    async def _verdict(self, ctx: Context, call: ToolCall) -> Verdict:
        options = self.options
        verdict = await ctx.approval(
            f"tool:{self.name}",
            of=options.of,
            approvers=options.approvers,
            about=call,
            timeout=options.approval_timeout,
        )
        if not verdict.approved:
            raise ToolRefused(self.name, verdict)
        return verdict

    def _step_of(self, ctx: Context, key: str, typed: "_Typed") -> Coroutine[Any, Any, Any]:
        step: Callable[..., Any] = self._step
        return ctx.step(step, key, *typed)

    async def _spend(self, ctx: Context, typed: "_Typed", key: str) -> Any:
        reserve = self.options.reserve
        if reserve is None:
            return await self._step_of(ctx, key, typed)
        wanted = reserve(*typed[0], **typed[1]) if callable(reserve) else reserve
        async with ctx.reserve(wanted, budget=self.options.budget) as reserved:
            result = await self._step_of(ctx, key, typed)
            settle = self.options.settle
            reserved.settle(wanted if settle is None else settle(result))
        return result


_Typed = tuple[list[Any], dict[str, Any]]


class ToolDecorator:
    """The decorator that `tool(...)` returns: it makes a Tool with the same signature."""

    def __init__(self, options: ToolOptions) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Tool[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Tool[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Tool[Any, Any]:
        return Tool(function, self._options)


@overload
def tool(function: Callable[P, Coroutine[Any, Any, R]], /) -> Tool[P, R]: ...
@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    approval: bool | Callable[..., bool] = False,
    of: int = 1,
    approvers: Sequence[str] = (),
    approval_timeout: Span | None = None,
    reserve: Amounts | Callable[..., Amounts] | None = None,
    settle: Callable[[Any], Amounts] | None = None,
    budget: str | None = None,
    retries: int = 0,
    timeout: Span | None = None,
) -> ToolDecorator: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Makes a function a tool of agents: `@tool` or `@tool(approval=True, …)`.

    `approval` asks a person before each call, or before those for which a function of the
    arguments says so; `of`, `approvers` and `approval_timeout` are those of `ctx.approval`.
    `reserve` sets amounts aside in the budgets of the run, or in the one named by `budget`, before
    the call; `settle` says from the result what was used (without it, what was reserved).
    `retries` and `timeout` are those of the step.
    """
    decorate = ToolDecorator(ToolOptions(**options))
    return decorate if function is None else decorate(function)


def call_key() -> str:
    """The idempotency key of the tool call under way: the same if a worker died in the middle and
    the call is made again. Give it to the service that the tool calls."""
    key = _key.get()
    if key is None:
        raise Invalid("call_key is for the function of a tool while an agent calls it in a run")
    return key


def _keyed(function: Callable[..., Any], returns: Any) -> Callable[..., Any]:
    """The function, called with its key in place."""

    async def run(key: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        token = _key.set(key)
        try:
            return await function(*args, **kwargs)
        finally:
            _key.reset(token)

    def run_here(key: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        token = _key.set(key)
        try:
            return function(*args, **kwargs)
        finally:
            _key.reset(token)

    chosen: Callable[..., Any] = run if is_async(function) else run_here
    chosen.__annotations__ = {"return": returns}
    return chosen


def _key_of(ctx: Context, call: ToolCall) -> str:
    """Equal calls of one run are counted, so that each has a key of its own."""
    digest = about_digest(call)
    count = _counts.setdefault(ctx, Counter())
    count[digest] += 1
    return f"{ctx.info.id}:{call.tool}:{digest[:24]}:{count[digest]}"


def _check_parameters(name: str, function: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise Invalid(f"tool {name}: a model needs named parameters, not *{parameter.name}")
        if parameter.name == "ctx":
            raise Invalid(f"tool {name}: a tool is a step of the run and cannot take its context")
