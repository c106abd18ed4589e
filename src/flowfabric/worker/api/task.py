"""Tasks: ordinary functions that the engine can run, and how runs of them are submitted."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId, parse_run_id
from flowfabric.core.base.numbers import check_iterable, check_kind_of
from flowfabric.core.base.text import (
    check_kind,
)
from flowfabric.core.base.time import Millis, from_datetime, parse_span
from flowfabric.core.execution.outcome import CLEANUP_TIME
from flowfabric.core.execution.policy import (
    CleanupPolicy,
    Policy,
    RoutingRequirements,
    StreamPolicy,
    TimeoutPolicy,
    parse_policy,
)
from flowfabric.core.execution.routing import check_capabilities
from flowfabric.core.execution.submission import Duplicate, Submission, Submitted
from flowfabric.core.execution.versions import age_of, version_token
from flowfabric.engine.engine import Engine
from flowfabric.store.foreign import run_sync
from flowfabric.worker.api.backoff import retry_policy
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.limits import (
    Arguments,
    Limits,
    Names,
    budgets_of,
    check_limits,
    declare,
    uses_of,
)
from flowfabric.worker.api.options import CallOptions, Span, TaskOptions, deadline_at, span_of
from flowfabric.worker.api.run import Run
from flowfabric.worker.codec import Signature, hints_of
from flowfabric.worker.run.cancelling import catches_cancelled
from flowfabric.worker.run.fingerprint import fingerprint

if TYPE_CHECKING:
    from flowfabric.worker.api.context import Context
    from flowfabric.worker.api.sync import SyncContext

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Mode(StrEnum):
    """Where a handler runs."""

    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


_CALL_OPTIONS = frozenset(CallOptions.__struct_fields__)
_NO_OPTIONS = CallOptions()
_NO_LIMITS = Limits()
_CONTEXTS = ("Context", "SyncContext")
_CONTEXT_MODULES = ("flowfabric.worker.api.context", "flowfabric.worker.api.sync")


class Task(Generic[P, R]):
    """A registered function. Calling it calls the function; `submit` makes a durable run of it."""

    def __init__(self, function: Callable[..., Any], options: TaskOptions, client: Client) -> None:
        self.function = check_function(function)
        self.options = check_kind_of(options, TaskOptions, "options of a task")
        name = _name(function) if options.name is None else options.name
        self.name = check_kind(name, "the name of a task")
        self.takes_context = _takes_context(function)
        self.mode = _mode(function, options)
        self.signature = Signature(function, skip_first=self.takes_context)
        self.version = options.version
        self.pinned = options.pinned
        self.versions: dict[str | None, Task[Any, Any]] = {self.version: self}
        self.policy = _policy(options, self.pin, cleans_up=_cleans_up(function, options))
        self._client = client
        self._check_context()
        if self.mode is Mode.PROCESS:
            self._check_process()
        self.quotas = check_limits(self.name, options.limits, self.signature.parameters)
        self._declared_on: Engine | None = None

    def _check_context(self) -> None:
        parameters, hints = _parameters(self.function), hints_of(self.function)
        if any(_context_class(hints.get(each.name)) for each in parameters[1:]):
            raise Invalid(f"{self.name}: only the first parameter can be the context")
        wanted = _context_name(parameters[0]) if self.takes_context else None
        if wanted == "SyncContext" and self.mode is Mode.ASYNC:
            raise Invalid(f"{self.name}: a coroutine is given a Context, not a SyncContext")
        if wanted == "Context" and self.mode is Mode.THREAD:
            raise Invalid(f"{self.name}: a plain function is given a SyncContext, not a Context")

    def _check_process(self) -> None:
        if self.takes_context:
            raise Invalid(f"{self.name}: a task that runs in a process cannot take a context")
        if self.options.on_cancel == "cleanup" or self.options.cleanup_timeout is not None:
            raise Invalid(
                f"{self.name}: a task that runs in a process cannot clean up; remove on_cancel and "
                "cleanup_timeout, or process=True"
            )
        address = getattr(self.function, "__qualname__", "<")
        if "<" in address or inspect.ismethod(self.function):
            raise Invalid(f"{self.name}: a task that runs in a process must be a module's function")

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the code of the handler; see `fingerprint`."""
        return fingerprint(self.function, self.version)

    @property
    def pin(self) -> str | None:
        """The capability that its runs require, if they are pinned to its version."""
        return version_token(self.name, self.version) if self.version and self.pinned else None

    def __repr__(self) -> str:
        version = "" if self.version is None else f", version={self.version!r}"
        return f"Task({self.name!r}{version})"

    @overload  # the first, since it is the one that a step is checked against
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(
        self, ctx: "Context | SyncContext", /, *args: P.args, **kwargs: P.kwargs
    ) -> Any: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself. Nothing is recorded."""
        return self.function(*args, **kwargs)

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Submits a run with these arguments. It is durable when this returns."""
        return await self._submit(_NO_OPTIONS, args, kwargs)

    async def submit_many(self, calls: Iterable[Any]) -> list[Run[R]]:
        """Submits one run per item, in batches. An item is the only argument, a tuple of positional
        ones, or a dict of named ones, which may contain a `key` and other options."""
        return await Call(self, _NO_OPTIONS).submit_many(calls)

    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """As `submit`, for code without an event loop."""
        return self._submit_sync(_NO_OPTIONS, args, kwargs)

    def with_options(  # noqa: PLR0913 - the options are the interface
        self,
        *,
        key: str | None = None,
        delay: Span | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        tags: Mapping[str, str] | None = None,
        lane: str | None = None,
        namespace: str | None = None,
        deadline: Span | datetime | None = None,
        quotas: Names | None = None,
        budgets: Iterable[str] | None = None,
        id: str | UUID | None = None,
        connection: Any = None,
    ) -> "Call[P, R]":
        """The task with options for one submission:
        `charge.with_options(key="order-7").submit(7)`. Submitting a known `key` again returns the
        earlier run.

        With a `connection` of the application (asyncpg, psycopg, SQLAlchemy, Django, sqlite3) to
        the database of the store, the run is submitted in its open transaction: it exists if and
        only if that commits."""
        options = CallOptions(
            key=key,
            delay=delay,
            at=at,
            priority=priority,
            tags=tags,
            lane=lane,
            namespace=namespace,
            deadline=deadline,
            quotas=quotas,
            budgets=budgets,
            id=id,
            connection=connection,
        )
        return Call(self, options)

    async def declare(self, engine: Engine) -> None:
        """Defines the quotas of this task in the store, and what the application declares."""
        await self._client.declarations.ensure(engine)
        if self._declared_on is not engine:
            await declare(engine, self.quotas)
            self._declared_on = engine

    def submission(
        self,
        options: CallOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        now: Millis,
        payload: bytes | None = None,
    ) -> Submission:
        """The submission of a call. A `payload` replaces that of the arguments."""
        own = self.options
        lane = options.lane or own.lane
        return Submission(
            kind=self.name,
            payload=self.signature.encode(args, kwargs) if payload is None else payload,
            id=None if options.id is None else _given_id(options.id),
            namespace=options.namespace or own.namespace,
            lane=lane,
            priority=own.priority if options.priority is None else options.priority,
            key=options.key,
            tags={**own.tags, **(options.tags or {})},
            policy=self.policy_of(options, args, kwargs, payload),
            delay_until=_delay_until(options, now),
            deadline_at=deadline_at(options.deadline, now),
            encoding="json",
        )

    def policy_of(
        self,
        options: CallOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        payload: bytes | None = None,
    ) -> Policy:
        """The policy of the task, with the limits of this call."""
        limits = self.options.limits
        if limits == _NO_LIMITS and options.quotas is None and options.budgets is None:
            return self.policy
        signature = self.signature
        arguments = Arguments(args, kwargs, signature.bind, signature.defaults, payload)
        uses = uses_of(self.name, limits, options.quotas, arguments)
        budgets = budgets_of(limits.budgets, options.budgets)
        return replace(self.policy, quotas=uses, budget_ids=budgets)

    def run_of(self, id: ExecutionId, *, duplicate: bool = False) -> Run[R]:
        """The run of this task with this id, which is not looked up."""
        return Run(self._client, id, self.signature.returns, duplicate=duplicate)

    async def _submit(
        self, options: CallOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Run[R]:
        options, kwargs = self._split(options, kwargs)
        if options.connection is not None:
            submission = self.submission(options, args, kwargs, self._client.transactions.now())
            (run,) = await self._submit_on(options.connection, [submission])
            return run
        engine = await self._client.engine()
        await self.declare(engine)
        submission = self.submission(options, args, kwargs, engine.now())
        return self._run(await engine.executions.submit(submission))

    def _submit_sync(
        self, options: CallOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Run[R]:
        options, kwargs = self._split(options, kwargs)
        work = self._submit(options, args, kwargs)
        if options.connection is None:
            run: Run[R] = self._client.block_on(work)
            return run
        return run_sync(work, options.connection)  # in this thread, to which it may be bound

    async def _submit_on(self, connection: Any, submissions: list[Submission]) -> list[Run[R]]:
        found = await self._client.transactions.submit(connection, submissions)
        return [self.run_of(id, duplicate=duplicate) for id, duplicate in found]

    async def _submit_many(self, options: CallOptions, calls: Iterable[Any]) -> list[Run[R]]:
        check_iterable(calls, "calls")
        if options.connection is not None:
            now = self._client.transactions.now()
            submissions = [self._one_of_many(options, *each, now) for each in enumerate(calls)]
            return await self._submit_on(options.connection, submissions)
        engine = await self._client.engine()
        await self.declare(engine)
        now = engine.now()
        # The engine keeps only what it makes of them.
        one_by_one = (self._one_of_many(options, *each, now) for each in enumerate(calls))
        outcomes = await engine.executions.submit_many(one_by_one)
        return [self._run(outcome) for outcome in outcomes]

    def _run(self, outcome: Submitted | Duplicate) -> Run[R]:
        return self.run_of(outcome.id, duplicate=isinstance(outcome, Duplicate))

    def _one_of_many(self, options: CallOptions, index: int, call: Any, now: Millis) -> Submission:
        args, kwargs = arguments_of(call)
        try:
            own, kwargs = self._split(options, kwargs)
            if own.connection is not options.connection:
                raise Invalid("all runs need the same connection: give it to with_options")
            return self.submission(own, args, kwargs, now)
        except Invalid as error:
            error.add_note(f"in calls[{index}] of submit_many; no run was submitted")
            raise

    def _split(
        self, options: CallOptions, kwargs: Mapping[str, Any]
    ) -> tuple[CallOptions, Mapping[str, Any]]:
        """Separates options from arguments. An option may be given as an argument if the function
        has no parameter of that name and no `**kwargs`."""
        given = (kwargs.keys() & _CALL_OPTIONS) - self.signature.parameters
        if not given or self.signature.takes_any_keyword:
            return options, kwargs
        rest = {name: value for name, value in kwargs.items() if name not in given}
        return replace(options, **{name: kwargs[name] for name in given}), rest


Tasks = Mapping[str, Task[Any, Any]]
"""The newest version of each task by name."""


def beside(task: Task[Any, Any], known: Task[Any, Any]) -> Task[Any, Any]:
    """Registers a version beside those of the same name; returns the newest."""
    if task.version in known.versions:
        raise Invalid(
            f"a task named {task.name!r} is already registered; "
            "give this one a name or a version of its own"
        )
    known.versions[task.version] = task
    task.versions = known.versions
    return oldest_first(task)[-1]


def oldest_first(task: Task[Any, Any]) -> list[Task[Any, Any]]:
    """All registered versions of a task."""
    return sorted(task.versions.values(), key=lambda each: age_of(each.version))


def handler_at(task: Task[Any, Any], version: str | None) -> Task[Any, Any] | None:
    """What runs a run that is pinned to this version. One that is pinned to none, because it is
    older than the versions, gets the newest task that pins nothing, or the oldest version."""
    if version is not None:
        return task.versions.get(version)
    if len(task.versions) == 1:  # nearly always, and this is asked for every claim
        return task
    found = oldest_first(task)
    return next((each for each in reversed(found) if not each.pinned), found[0])


def pins_of(tasks: Tasks) -> list[str]:
    """The capabilities that a worker with these tasks offers for their versions."""
    every = (task for newest in tasks.values() for task in newest.versions.values())
    return [task.pin for task in every if task.pin is not None]


def fingerprints_of(tasks: Tasks) -> dict[str, str]:
    """The fingerprints of the code that runs what is pinned, and what is not pinned, to versions of
    these tasks."""
    found = {}
    for name, newest in tasks.items():
        if (unpinned := handler_at(newest, None)) is not None:
            found[name] = unpinned.fingerprint
        pinned = (task for task in newest.versions.values() if task.pin is not None)
        found |= {str(task.pin): task.fingerprint for task in pinned}
    return found


class Call(Generic[P, R]):
    """A task with the options of its next submission."""

    def __init__(self, task: Task[P, R], options: CallOptions) -> None:
        self.task = task
        self.options = options

    def or_key(self, key: str) -> "Call[P, R]":
        """The same call with this key, unless it has one."""
        return self if self.options.key else Call(self.task, replace(self.options, key=key))

    def also_spending(self, budgets: Iterable[str]) -> "Call[P, R]":
        """The same call, spending from these budgets as well."""
        names = budgets_of(tuple(budgets), self.options.budgets)
        return Call(self.task, replace(self.options, budgets=names)) if names else self

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Submits a run with these options and arguments."""
        return await self.task._submit(self.options, args, kwargs)

    async def submit_many(self, calls: Iterable[Any]) -> list[Run[R]]:
        """As `Task.submit_many`, with these options for every run. A key would name only one."""
        if self.options.key is not None or self.options.id is not None:
            raise Invalid("one key or id cannot name many runs")
        return await self.task._submit_many(self.options, calls)

    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """As `submit`, for code without an event loop."""
        return self.task._submit_sync(self.options, args, kwargs)

    def check(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Raises Invalid if these arguments do not fit the task; submits nothing."""
        options, rest = self.task._split(self.options, kwargs)
        self.task.submission(options, args, rest, self.task._client.transactions.now())


def check_task(task: object) -> "Task[Any, Any] | Call[Any, Any]":
    """The argument if it is a task, with or without options; Invalid otherwise."""
    if not isinstance(task, Task | Call):
        raise Invalid(f"a task is needed, not {type(task).__name__}")
    return task


def arguments_of(call: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, tuple):
        return call, {}
    if isinstance(call, dict):
        return (), call
    return (call,), {}


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "")


def _takes_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is named `ctx` or annotated with a context."""
    first = next(iter(_parameters(function)), None)
    return first is not None and (first.name == "ctx" or _context_name(first) is not None)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _context_name(parameter: inspect.Parameter) -> str | None:
    """The class of context that the parameter is annotated with, also as a string."""
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return _context_class(annotation)
    name = annotation.strip("'\"").rpartition(".")[2]
    return name if name in _CONTEXTS else None


def _is_context(value: object) -> bool:
    return any(_context_class(each) for each in type(value).__mro__)


def _context_class(annotation: Any) -> str | None:
    name = getattr(annotation, "__name__", "")
    ours = getattr(annotation, "__module__", "") in _CONTEXT_MODULES
    return name if ours and name in _CONTEXTS else None


def _mode(function: Callable[..., Any], options: TaskOptions) -> Mode:
    inner = inspect.unwrap(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise Invalid("a generator cannot be a task: it does not return one result")
    if is_async(function):
        if options.process:
            raise Invalid("a task that runs in a process must be a plain function")
        return Mode.ASYNC
    return Mode.PROCESS if options.process else Mode.THREAD


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine, also behind a decorator that uses `functools.wraps`."""
    inner = inspect.unwrap(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - an object whose call is a coroutine
    )


def _cleans_up(function: Callable[..., Any], options: TaskOptions) -> bool:
    """Whether runs are cleaned up after a cancel: their task says so, or its handler catches
    Cancelled."""
    if options.process:
        return False
    if options.on_cancel is not None or options.cleanup_timeout is not None:
        return options.on_cancel != "stop"
    return catches_cancelled(inspect.unwrap(function))


def _policy(options: TaskOptions, pin: str | None, *, cleans_up: bool) -> Policy:
    retry = retry_policy(options.retries, options.backoff)
    timeout = span_of(options.timeout, "timeout")
    deadline = span_of(options.deadline, "deadline")
    retention = span_of(options.retention, "retention")
    cleanup = span_of(options.cleanup_timeout, "cleanup_timeout") or CLEANUP_TIME
    pins = () if pin is None else (pin,)
    capabilities = check_capabilities((*options.capabilities, *pins))
    policy = Policy(
        retry_policy=retry if options.retries else None,
        timeout_policy=TimeoutPolicy(attempt_timeout_ms=timeout, execution_deadline_ms=deadline)
        if timeout or deadline
        else None,
        routing_requirements=RoutingRequirements(required_capabilities=capabilities)
        if capabilities
        else None,
        stream_policy=StreamPolicy(retention_ttl_ms=retention) if retention is not None else None,
        cleanup_policy=CleanupPolicy(cleanup_timeout_ms=cleanup) if cleans_up else None,
    )
    return parse_policy(policy)


def check_function(function: object) -> Callable[..., Any]:
    """The argument if it is callable; Invalid otherwise."""
    if not callable(function):
        hint = ": give the function and its arguments, do not call it"
        called = hint if inspect.iscoroutine(function) else ""
        raise Invalid(f"a function is needed, not {type(function).__name__}{called}")
    return function


def function_of_step(
    task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """The function of a task that is called as a step, which adds no context to the arguments."""
    if task.takes_context and not any(map(_is_context, (*args[:1], *kwargs.values()))):
        raise Invalid(
            f"task {task.name!r} takes a context, so it cannot be a step: submit it as a run of "
            "its own with ctx.submit, or give the step a function without a context"
        )
    return task.function


def _delay_until(options: CallOptions, now: Millis) -> Millis | None:
    if options.at is not None:
        return from_datetime(options.at, "at")
    return None if options.delay is None else Millis(now + parse_span(options.delay, "delay"))


def _given_id(given: str | UUID) -> ExecutionId:
    """The id that a call gives to its run. A uuid names it in every partition: a repeat finds the
    run although its task has another lane by now."""
    parsed = parse_run_id(given)
    return ExecutionId.anywhere(parsed) if isinstance(parsed, UUID) else parsed
