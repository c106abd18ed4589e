"""Calls a handler where its mode says, in the event loop, a thread or a process, through the
middleware if there is any, and within its timeout."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from msgspec import Raw

from flowfabric.core.base.time import Millis
from flowfabric.worker.api.context import Context, run_info
from flowfabric.worker.api.hooks import Invocation
from flowfabric.worker.api.sync import SyncContext
from flowfabric.worker.api.task import Mode, Task
from flowfabric.worker.codec import Undecodable, decode
from flowfabric.worker.errors import TIMED_OUT
from flowfabric.worker.run.active import ActiveRun
from flowfabric.worker.run.hooks import WorkerHooks
from flowfabric.worker.run.processes import Processes
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.steps import current_context
from flowfabric.worker.run.threads import Threads

_FIRST_ASKED = threading.Lock()
"""Threads that a coroutine has started may ask for its scope at the same moment."""


class LateContext:
    """Makes the context of one call of a handler that began without a scope, and the scope when it
    is first asked for. Later calls of the handler have their own."""

    __slots__ = ("_active", "_make_scope", "_scope")

    def __init__(self, active: ActiveRun, make_scope: Callable[[ActiveRun], CallScope]) -> None:
        self._active = active
        self._make_scope = make_scope
        self._scope: CallScope | None = None

    def __call__(self) -> Context:
        with _FIRST_ASKED:
            scope = self._scope = self._scope or self._make_scope(self._active)
        return Context(scope)


HandlerFunction = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""A handler as a function of its positional and named arguments."""


class AttemptTimedOut(TimeoutError):
    """The attempt took longer than the timeout of its task."""


class HandlerCalls:
    """The only place where handlers are called."""

    def __init__(
        self,
        now: Callable[[], Millis],
        *,
        handlers: Threads,
        processes: Processes,
        hooks: WorkerHooks,
        late_scope: Callable[[ActiveRun], CallScope],
    ) -> None:
        self.processes = processes
        self._late_scope = late_scope
        self._now = now
        self._handlers = handlers
        self._hooks = hooks

    def call(self, active: ActiveRun, handler: Task[Any, Any]) -> Awaitable[Any]:
        """What the handler returns. Raises AttemptTimedOut after its timeout."""
        times_out_at = active.claim.lease.times_out_at
        if times_out_at is None:
            return self._call(active, handler)
        return self._timed(active, handler, times_out_at)

    async def _timed(self, active: ActiveRun, handler: Task[Any, Any], times_out_at: Millis) -> Any:
        timer = asyncio.timeout(max(0.0, (times_out_at - self._now()) / 1000))
        active.timer = timer
        try:
            async with timer:
                result = await self._call(active, handler)
        except BaseException:
            if not timer.expired():
                raise
        if not timer.expired():
            return result
        # Also if the handler swallowed the cancellation: the sweep would report the same.
        if active.scope is not None:
            active.scope.stop(TIMED_OUT)
        raise AttemptTimedOut(f"{handler.name} took longer than its timeout")

    def needs_scope(self, active: ActiveRun, handler: Task[Any, Any]) -> bool:
        """Whether the handler is called in a scope. One that takes no context and begins its first
        attempt gets one when it first asks: most handlers of short tasks never do."""
        return (
            handler.mode is not Mode.ASYNC
            or active.again
            or active.told
            or _is_driven(active, handler)
            or active.claim.may_have_steps
            or self._hooks.has_middleware
        )

    async def _call(self, active: ActiveRun, handler: Task[Any, Any]) -> Any:
        if active.scope is None and handler.mode is Mode.ASYNC:
            current_context.set(LateContext(active, self._late_scope))
            result = handler.function(*active.args, **active.kwargs)
            return await result if inspect.isawaitable(result) else result
        function = self._function_of(active, handler)
        if self._hooks.has_middleware:
            return await self._through_middleware(active, handler, function)
        if handler.mode is Mode.THREAD:
            started = self._start(active, partial(function, active.args, active.kwargs))
            result = await asyncio.wrap_future(started)
        else:
            result = function(active.args, active.kwargs)
        return await result if inspect.isawaitable(result) else result

    async def _through_middleware(
        self, active: ActiveRun, handler: Task[Any, Any], function: HandlerFunction
    ) -> Any:
        plain = handler.mode is Mode.THREAD
        chain = self._hooks.around(
            _innermost(function, plain=plain),
            is_async=not plain,
            loop=asyncio.get_running_loop(),
            start=partial(self._start, active),
        )
        return await chain.run(self._invocation(active, handler))

    def _invocation(self, active: ActiveRun, handler: Task[Any, Any]) -> Invocation:
        active.args, active.kwargs = handler.signature.place(active.args, active.kwargs)
        return Invocation(
            kind="attempt",
            name=handler.name,
            run=run_info(active.claim.snapshot),
            args=active.args,
            kwargs=active.kwargs,
            lifespan=self._hooks.lifespan.value,
        )

    def _start(self, active: ActiveRun, work: Callable[[], Any]) -> "Future[Any]":
        active.thread = self._handlers.start(work)
        return active.thread

    def _function_of(self, active: ActiveRun, handler: Task[Any, Any]) -> HandlerFunction:
        """The handler as a function of its arguments, which is called where its mode says."""
        scope = active.scope
        if scope is None:
            return partial(self._in_process, active, handler)
        return _ScopedCall(scope, handler, driven=_is_driven(active, handler))

    async def _in_process(
        self,
        active: ActiveRun,
        handler: Task[Any, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        payload = active.payload
        if args is not active.args or kwargs is not active.kwargs:  # changed by a middleware
            payload = handler.signature.encode(args, kwargs)
        body = await self.processes.call(handler, payload)
        return decode_result(handler, body) if self._hooks.has_middleware else Raw(body)


class _ScopedCall:
    """A handler as a function of its arguments, called in its scope: in the event loop, where this
    is made, or in a thread."""

    def __init__(self, scope: CallScope, handler: Task[Any, Any], *, driven: bool) -> None:
        self._scope = scope
        self._handler = handler
        self._driven = driven
        # Not made before it is asked for: most handlers of short tasks take no context.
        make = Context if handler.mode is Mode.ASYNC else _sync_context
        self._make_context = partial(make, scope)
        self._before = (self._make_context(),) if handler.takes_context else ()
        self._cancel = scope.cancel if driven or handler.mode is Mode.THREAD else None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._scope.adopt(self._scope.callers.current())
        current_context.set(self._make_context)
        if self._cancel is not None and self._handler.mode is Mode.THREAD:
            self._cancel.begin()
        result = self._handler.function(*self._before, *args, **kwargs)
        if self._driven and self._cancel is not None and inspect.iscoroutine(result):
            return self._cancel.drive(result)
        return result


def _is_driven(active: ActiveRun, handler: Task[Any, Any]) -> bool:
    """Whether the handler may be interrupted by a cancel, to clean up."""
    policy = active.claim.snapshot.execution.policy
    return handler.takes_context or (policy is not None and policy.cleanup_policy is not None)


def decode_result(handler: Task[Any, Any], body: bytes) -> Any:
    """What a handler in a process returned, as far as possible in the type that it declares."""
    try:
        return decode(body, handler.signature.returns)
    except Undecodable:
        return decode(body, Any)


def _sync_context(scope: CallScope) -> SyncContext:
    return SyncContext(Context(scope))


def _innermost(function: HandlerFunction, *, plain: bool) -> Callable[[Invocation], Any]:
    """The handler as the last layer of a chain. A middleware that goes on after it in the same
    thread or task is outside of the run: it records nothing."""

    def in_thread(call: Invocation) -> Any:
        try:
            return function(call.args, call.kwargs)
        finally:
            current_context.set(None)

    async def in_loop(call: Invocation) -> Any:
        try:
            result = function(call.args, call.kwargs)
            return await result if inspect.isawaitable(result) else result
        finally:
            current_context.set(None)

    return in_thread if plain else in_loop
