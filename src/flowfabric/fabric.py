"""Fabric: the one object an application creates. It connects tasks, workers, engine and store."""

import asyncio
import os
import re
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload
from uuid import UUID
from weakref import WeakSet

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound, Unavailable
from flowfabric.core.base.text import MAX_KEY, check_kind, check_namespace, check_text
from flowfabric.core.execution.versions import check_version
from flowfabric.core.execution.webhook import KIND
from flowfabric.engine.context import EngineOptions
from flowfabric.engine.engine import Engine
from flowfabric.remote.connection import is_server
from flowfabric.remote.engine import NO_TRANSACTIONS, RemoteEngine, RemoteLeases
from flowfabric.store.clock import Clock, SystemClock
from flowfabric.store.open import open_store
from flowfabric.worker.api.backoff import Backoff, Exponential
from flowfabric.worker.api.blocking import has_loop
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.context import Context
from flowfabric.worker.api.deployment import (
    Options,
    WorkerOptions,
    check_options,
    check_worker_options,
)
from flowfabric.worker.api.events import EventsApi, SubscriptionsApi
from flowfabric.worker.api.flow import FlowBuilder, flow_id
from flowfabric.worker.api.hooks import AsyncMiddleware, EndHook, SyncMiddleware
from flowfabric.worker.api.ids import find_id
from flowfabric.worker.api.limits import LIMIT_NAMES, KeyOf, Limits, LimitsApi, Names
from flowfabric.worker.api.listing import RunsApi
from flowfabric.worker.api.options import TaskOptions
from flowfabric.worker.api.registries import (
    BudgetsApi,
    LanesApi,
    QuotasApi,
    StoredFlowsApi,
    WorkersApi,
)
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.schedules import SchedulesApi, schedule_of
from flowfabric.worker.api.signals import SignalsApi
from flowfabric.worker.api.span import Span
from flowfabric.worker.api.sync import SyncContext
from flowfabric.worker.api.task import Task, beside, check_function, handler_at, oldest_first
from flowfabric.worker.api.transactions import TransactionalClient
from flowfabric.worker.api.webhooks import WebhooksApi
from flowfabric.worker.run.heartbeat import LeaseKeeper
from flowfabric.worker.run.hooks import Hooks
from flowfabric.worker.run.lifespan import check_lifespan
from flowfabric.worker.run.loop import Worker
from flowfabric.worker.run.options import WorkerSettings
from flowfabric.worker.run.steps import StepFunction, StepOptions
from flowfabric.worker.webhooks import webhook_task, with_webhooks

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=AsyncMiddleware | SyncMiddleware)
E = TypeVar("E", bound=EndHook)
LifespanFunction = Callable[["Fabric"], AbstractAsyncContextManager[Any] | AsyncIterator[Any]]
L = TypeVar("L", bound=LifespanFunction)

URL_VARIABLE = "FLOWFABRIC_URL"
TOKEN_VARIABLE = "FLOWFABRIC_TOKEN"  # noqa: S105 - its name, not its value
SECRET_VARIABLE = "FLOWFABRIC_WAITPOINT_SECRET"  # noqa: S105 - its name, not its value
_HEADER_TOKEN = re.compile("[!-~]+")


class TaskDecorator:
    """The decorator that `fabric.task(...)` returns: it makes a Task with the same signature."""

    def __init__(self, fabric: "Fabric", options: TaskOptions) -> None:
        self._fabric = fabric
        self._options = options

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]]) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R]) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Task[Any, Any]:
        return self._fabric._register(function, self._options)


class Fabric:
    """The tasks of an application and the store that keeps their runs.

    The URL names the store: `sqlite:///work.db`, `sqlite://:memory:` or `postgresql://…`; or a
    server in front of it: `https://host:9090`, with a `token` (or FLOWFABRIC_TOKEN). Without a URL,
    the environment variable FLOWFABRIC_URL is used. Nothing else depends on the store.

    `schedules`, `lanes`, `workers`, `quotas`, `budgets`, `flows`, `subscriptions` and `webhooks`
    list, get and change what there is; `runs` lists runs, `events` follows what happens. The
    methods about signals, approvals and waitpoints are those of `SignalsApi`, those about quotas
    and budgets of `LimitsApi`. A method with `_sync` does the same for code without an event loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        options: EngineOptions | None = None,
        clock: Clock | None = None,
        lifespan: LifespanFunction | None = None,
        token: str | None = None,
    ) -> None:
        self.url, self._token = _url(url), _token(token, _url(url))
        self.tasks: dict[str, Task[Any, Any]] = {}
        self._hooks = Hooks(None if lifespan is None else partial(check_lifespan(lifespan), self))
        self._options, self._clock = _with_secret(options), clock
        self._engine: Engine | None = None
        self._lender: Callable[[], Awaitable[Engine]] | None = None
        self._opening: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._portal: _Portal | None = None
        self._users, self._starting = _Users(), threading.Lock()
        self._process = _Process()
        client = self._client = Client(
            self.engine, self.block_on, TransactionalClient(clock or SystemClock(), self._identity)
        )
        self.schedules = SchedulesApi(client, self.tasks)
        self.lanes, self.workers = LanesApi(client), WorkersApi(client)
        self.flows, limits = StoredFlowsApi(client), LimitsApi(client)
        self.subscriptions, self.webhooks = SubscriptionsApi(client), WebhooksApi(client)
        self._take_methods(SignalsApi(client), limits)
        self.quotas, self.budgets = QuotasApi(client, limits), BudgetsApi(client, limits)
        listing = RunsApi(client, self.tasks)
        self.runs, self.runs_sync = listing.runs, listing.runs_sync
        self.events = EventsApi(client).events

    def _take_methods(self, signals: SignalsApi, limits: LimitsApi) -> None:
        """Makes the methods of these two parts those of the Fabric."""
        self.signal, self.signal_sync = signals.signal, signals.signal_sync
        self.approve, self.approve_sync = signals.approve, signals.approve_sync
        self.reject, self.reject_sync = signals.reject, signals.reject_sync
        self.waitpoints, self.waitpoints_sync = signals.waitpoints, signals.waitpoints_sync
        self.waitpoint_token = signals.waitpoint_token
        self.waitpoint_token_sync = signals.waitpoint_token_sync
        self.revoke_tokens = signals.revoke_tokens
        self.revoke_tokens_sync = signals.revoke_tokens_sync
        self.quota, self.quota_sync = limits.quota, limits.quota_sync
        self.budget, self.budget_sync = limits.budget, limits.budget_sync
        self.quota_status, self.quota_status_sync = limits.quota_status, limits.quota_status_sync
        self.budget_status = limits.budget_status
        self.budget_status_sync = limits.budget_status_sync
        self.spend, self.spend_sync = limits.spend, limits.spend_sync
        self.reset_budget, self.reset_budget_sync = limits.reset_budget, limits.reset_budget_sync

    # -- tasks

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[SyncContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        version: str | None = None,
        pin: bool | None = None,
        lane: str = "default",
        namespace: str = "default",
        retries: int = 0,
        backoff: Backoff = Exponential(),  # noqa: B008 - frozen
        timeout: Span | None = None,
        deadline: Span | None = None,
        priority: int = 0,
        capabilities: Sequence[str] = (),
        tags: Mapping[str, str] | None = None,
        process: bool = False,
        rate: str | tuple[int, Span] | None = None,
        rate_key: KeyOf | None = None,
        smooth: bool = False,
        concurrency: int | None = None,
        concurrency_key: KeyOf | None = None,
        worker_concurrency: int | None = None,
        quotas: Names = (),
        budgets: Sequence[str] = (),
        retention: Span | None = None,
        schedule: str | None = None,
        every: Span | None = None,
        timezone: str = "UTC",
        catch_up: str = "latest",
        on_success: EndHook | None = None,
        on_failure: EndHook | None = None,
        on_cancel: Literal["cleanup", "stop"] | None = None,
        cleanup_timeout: Span | None = None,
    ) -> TaskDecorator: ...
    def task(  # type: ignore[misc]  # mypy does not see that `given` takes every option
        self, function: Callable[..., Any] | None = None, /, **given: Any
    ) -> Any:
        """Registers a function as a task: `@fabric.task`, or `@fabric.task(retries=3, …)`.

        Coroutines run in the event loop, plain functions in threads, and with `process=True` in a
        process of their own. A first parameter named `ctx` receives the context of the run.

        `timeout` limits one attempt, `deadline` the whole run. `rate` ("100/m") and `concurrency`
        limit all workers together; with a key (the name of a parameter, or a function of the
        arguments) they limit each value of the key separately. `smooth` spreads the starts of a
        rate evenly. `worker_concurrency` limits one worker. With a `schedule` (a cron expression)
        or `every` (an interval), the task is run periodically once a worker has started.
        `on_success` and `on_failure` are called with an `AttemptEnd` when a run has ended in that
        way, by the worker that ended it.

        With `on_cancel="cleanup"`, or if the function catches `Cancelled`, a cancelled run has
        `cleanup_timeout` (30 seconds by default) to clean up before it ends; with "stop" it ends at
        once.

        Runs of a task with a `version` are run only by workers that have this version, unless `pin`
        is False. Several versions of one `name` may be registered.
        """
        tags = given.pop("tags", None)
        limits = {name: given.pop(name) for name in LIMIT_NAMES & given.keys()}
        options = TaskOptions(tags={} if tags is None else tags, limits=Limits(**limits), **given)
        decorator = TaskDecorator(self, options)
        return decorator if function is None else decorator(check_function(function))

    @overload
    def step(self, function: Callable[P, R], /) -> StepFunction[P, R]: ...
    @overload
    def step(
        self,
        *,
        name: str | None = None,
        retries: int = 0,
        backoff: Backoff | None = None,
        timeout: Span | None = None,
    ) -> Callable[[Callable[P, R]], StepFunction[P, R]]: ...
    def step(  # type: ignore[misc]  # mypy does not see that `function` may be left out
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retries: int = 0,
        backoff: Backoff | None = None,
        timeout: Span | None = None,
    ) -> Any:
        """Makes a function a durable step: recorded when a run calls it, an ordinary call
        elsewhere. `@fabric.step`, or `@fabric.step(retries=3, …)`."""
        options = StepOptions(name=name, retries=retries, timeout=timeout)
        if backoff is not None:
            options = replace(options, backoff=backoff)
        if function is not None:
            return StepFunction(function, options)
        return lambda function: StepFunction(function, options)

    def get_task(self, name: str, version: str | None = None) -> Task[Any, Any]:
        """The task with this name, its newest version unless one is given. Raises NotFound, which
        lists the registered ones."""
        newest = self.tasks.get(check_text(name, "the name of a task"))
        if newest is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise NotFound("task", f"{name!r} (registered: {known})")
        if version is None:
            return newest
        task = newest.versions.get(check_version(version))
        if task is None:
            known = ", ".join(each.version or "none" for each in oldest_first(newest))
            raise NotFound("task", f"{name!r} version {version!r} (registered: {known})")
        return task

    def _register(self, function: Callable[..., Any], options: TaskOptions) -> Task[Any, Any]:
        task: Task[Any, Any] = Task(function, options, self._client)
        schedule_of(task)  # refuses an impossible schedule here, not when a worker starts
        known = self.tasks.get(task.name)
        self.tasks[task.name] = task if known is None else beside(task, known)
        return task

    # -- hooks

    def middleware(self, function: M) -> M:
        """Registers a function around every call of a handler and of a step: `async def f(call,
        next)`, or a plain one. What it returns is the result, what it raises fails the call. The
        function registered first is the outermost. Also a decorator."""
        self._hooks.add_middleware(function)
        return function

    def on_attempt_end(self, function: E) -> E:
        """Registers a function that is called with an `AttemptEnd` when an attempt has ended here
        and that is recorded. Also a decorator."""
        self._hooks.add_listener(function)
        return function

    def lifespan(self, function: L) -> L:
        """Registers what happens before a worker starts and after it has stopped, as web
        frameworks do: an async generator or async context manager that takes the fabric. What it
        yields is `ctx.lifespan`. Also a decorator."""
        enter = check_lifespan(function)
        if self._hooks.lifespan is not None:
            raise Invalid("this fabric has a lifespan already; enter both in one function")
        self._hooks.lifespan = partial(enter, self)
        return function

    # -- runs

    async def run(self, id: str | UUID) -> Run[Any]:
        """The run with this id, a UUID. Raises NotFound if there is none. Its result has the type
        that the task declares, if the task is registered here."""
        engine = await self._client.engine()
        found = await find_id(engine, id)
        info = await engine.views.info(found)
        if info is None:
            raise NotFound("run", found)
        task = self.tasks.get(info.kind)
        task = None if task is None else handler_at(task, info.version)
        return Run(self._client, found, task.signature.returns if task else Any)

    def run_sync(self, id: str | UUID) -> Run[Any]:
        """As `run`, for code without an event loop."""
        return self.block_on(self.run(id))

    # -- flows

    def flow(
        self,
        name: str,
        *,
        key: str | None = None,
        namespace: str = "default",
        tags: Mapping[str, str] | None = None,
        budgets: Sequence[str] = (),
    ) -> FlowBuilder:
        """Builds a flow: `async with fabric.flow("nightly") as flow: flow.add(...)`, or `with`
        where no event loop runs. It is created when the block ends. A `key` makes that idempotent:
        declaring the same nodes again changes nothing, declaring others is refused. Its nodes spend
        from `budgets` as well."""
        if key is None:
            id = self._client.transactions.fresh()
        else:
            text = check_text(key, "the key of a flow", limit=MAX_KEY)
            id = flow_id(check_namespace(namespace), check_kind(name), text)
        return FlowBuilder(
            self._client, name, id=id, namespace=namespace, tags=tags, budgets=budgets
        )

    # -- workers

    async def worker(self, options: WorkerSettings | None = None) -> Worker:
        """A worker of this process for the tasks registered here: `await worker.run()`."""
        engine = await self.engine()
        await self._client.declarations.make(engine)
        await self.schedules.declare()
        for newest in list(self.tasks.values()):
            for task in oldest_first(newest):  # the newest decides about the limits they share
                await task.declare(engine)
        chosen = WorkerOptions() if options is None else check_worker_options(options)
        tasks: Mapping[str, Task[Any, Any]] = self.tasks
        if chosen.webhooks:
            if is_server(self.url):
                raise Invalid(
                    "webhooks are delivered by the server, or by a worker on the database"
                )
            tasks, chosen = {**tasks, KIND: webhook_task(self._client)}, with_webhooks(chosen)
        worker = Worker(engine, tasks, chosen, self._heartbeat_leases, self._hooks)
        self._users.workers.add(worker)
        return worker

    async def run_worker(self, options: WorkerSettings | None = None) -> None:
        """Runs a worker until SIGTERM or SIGINT."""
        worker = await self.worker(options)
        worker.handle_signals()
        await worker.run()

    # -- life

    async def engine(self) -> Engine:
        """The engine, opened on first use in the running event loop."""
        loop = asyncio.get_running_loop()
        if self._engine is not None and self._loop is loop:
            return self._engine
        self._process.check(self._portal, self._loop)
        if self._loop is not None and self._loop is not loop and not self._loop.is_closed():
            raise Invalid("this Fabric is in use in another event loop; create one Fabric per loop")
        if self._loop is not loop or self._opening is None:
            self._loop, self._opening, self._engine = loop, asyncio.Lock(), None
            self._users = _Users()
        async with self._opening:
            if self._engine is None:
                self._engine = await self._open()
                self._engine.use_traces(self._client.transactions.traces)
        return self._engine

    async def _open(self) -> Engine:
        if self._lender is not None:
            return await self._lender()
        if is_server(self.url):
            remote = await RemoteEngine.open(self.url, self._token, self._clock)
            return remote.as_engine()
        store = await open_store(self.url, clock=self._clock)
        try:
            return await Engine.open(store, options=self._options)
        except BaseException:
            await store.close()
            raise

    def _identity(self) -> str | None:
        """The name of the database that keeps the runs, if the engine is open. Through a server
        there is none that a transaction could be in (Invalid)."""
        if is_server(self.url) and self._lender is None:
            raise Invalid(NO_TRANSACTIONS)
        return None if self._engine is None else self._engine.identity

    async def close(self) -> None:
        """Hands back what its workers run, and closes the store. The next call opens it again."""
        if self._lender is not None:
            return  # the lender closes it
        self._process.check(self._portal, self._loop)  # or it would end connections of the parent
        if self._loop is asyncio.get_running_loop():
            await asyncio.gather(*(worker.hand_back() for worker in self._users.workers))
        engine, self._engine, self._loop, self._users = self._engine, None, None, _Users()
        if engine is not None:
            await engine.close()

    @contextmanager
    def _lend(self, lender: Callable[[], Awaitable[Engine]]) -> Iterator[None]:
        """Uses the engine of `lender` inside the block, whatever the URL says; for tests."""
        kept = self._engine, self._loop, self._opening, self._lender, self._users
        self._engine, self._loop, self._opening, self._lender = None, None, None, lender
        try:
            yield
        finally:
            self._engine, self._loop, self._opening, self._lender, self._users = kept

    async def __aenter__(self) -> "Fabric":
        await self.engine()
        self._users.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._users.leave():
            await self.close()

    # -- without an event loop

    def block_on(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine for code without an event loop and returns its result. A script gets a
        thread with an event loop for this; a task in a thread uses the loop of its worker."""
        if has_loop():
            work.close()
            raise Invalid("an event loop is running here: await the method without _sync instead")
        return self._start(work).result()

    def _start(self, work: Coroutine[Any, Any, R]) -> "Future[R]":
        """Starts a coroutine in the event loop of the engine, or of a thread made for it."""
        try:
            self._process.check(self._portal, self._loop)
        except Unavailable:
            work.close()
            raise
        if self._engine is not None and self._loop is not None and self._loop.is_running():
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        with self._starting:  # threads of a web server may come at once
            if self._portal is None:
                self._portal = _Portal()
        return self._portal.start(work)

    def close_sync(self) -> None:
        """As `close`, for code without an event loop."""
        if self._portal is not None:
            self._process.check(self._portal, self._loop)  # its thread is not here after a fork
            self._portal.start(self.close()).result()
            self._portal.stop()
            self._portal = None

    async def _heartbeat_leases(self) -> LeaseKeeper:
        engine = self._engine
        if is_server(self.url) and self._lender is None:
            clock = self._clock if engine is None else engine.clock  # followed already
            return await RemoteLeases.open(self.url, self._token, clock)
        if engine is not None and engine.store.name == "sqlite":
            return engine.store  # its writer thread serves every loop
        clock = self._clock if engine is None else engine.store.clock  # followed already
        return await open_store(self.url, clock=clock, connections=1)


def _url(given: str | None) -> str:
    """The URL of the store, given or from the environment."""
    if given is not None:
        check_text(given, "the URL of a store")
    url = given or os.environ.get(URL_VARIABLE) or ""
    if not url:
        raise Invalid(f"no store: give Fabric a URL or set {URL_VARIABLE}")
    return url


def _token(given: str | None, url: str) -> str | None:
    """The token for a server, given or from the environment. One that is blank, or that no header
    can carry, is refused here, not by every request."""
    if given is None:
        what, found = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE) or None
    else:
        what, found = "the token", check_text(given, "the token")
    del given
    if found is not None and is_server(url) and _HEADER_TOKEN.fullmatch(found) is None:
        del found
        raise Invalid(f"{what} is not printable ASCII without spaces, as access tokens are")
    return found or None


def _with_secret(options: EngineOptions | None) -> EngineOptions:
    """The options, with the secret from the environment unless they have one. A variable that is
    there but empty is a secret that went missing on its way here: the engine refuses it."""
    chosen = Options() if options is None else check_options(options)
    secret = os.environ.get(SECRET_VARIABLE)
    if secret is None or chosen.waitpoint_secret is not None:
        return chosen
    return replace(chosen, waitpoint_secret=secret)


class _Process:
    """The process that has opened a Fabric."""

    _id = 0

    def check(self, portal: "_Portal | None", loop: asyncio.AbstractEventLoop | None) -> None:
        """Neither the threads nor the connections of a Fabric survive a fork."""
        if portal is None and (loop is None or not loop.is_running()):
            self._id = os.getpid()
        elif self._id != os.getpid():
            raise Unavailable(
                "this Fabric was open when the process was forked, and cannot be used in the new "
                "process: close it before the fork (fabric.close_sync())"
            )


class _Users:
    """Of the event loop in use: the workers made there, and the blocks that are open."""

    def __init__(self) -> None:
        self.workers = WeakSet[Worker]()
        self._blocks = 0
        self._began_under_worker = False

    def enter(self) -> None:
        if not self._blocks:
            self._began_under_worker = any(worker.is_running for worker in self.workers)
        self._blocks += 1

    def leave(self) -> bool:
        """Whether the end of this block closes the fabric: not that of a block inside another one,
        or in a handler."""
        self._blocks -= 1
        return self._blocks <= 0 and not self._began_under_worker


class _Portal:
    """An event loop in a thread, for callers without one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="flowfabric-portal", daemon=True
        )
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, R]) -> "Future[R]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
