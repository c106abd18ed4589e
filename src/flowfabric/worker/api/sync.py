"""The context of a task that is a plain function: the methods of `Context`, blocking.

A plain function runs in a thread; the work it asks for is done in the event loop of its worker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from flowfabric.core.base.errors import Invalid
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.limit.spend import Counted
from flowfabric.store.foreign import run_sync
from flowfabric.worker.api.blocking import (
    Block,
    BlockingManager,
    BlockingProxy,
    blocking,
    blocking_as,
    deferred,
    do_now,
    runs_here,
    unstarted,
)
from flowfabric.worker.api.children import FlowsApi, SubFlow
from flowfabric.worker.api.context import Context, RunInfo
from flowfabric.worker.api.emit import OutputApi
from flowfabric.worker.api.race import Winner, drop
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.spend import Reserve, SpendApi
from flowfabric.worker.api.waits import Approval, Callback, WaitsApi
from flowfabric.worker.errors import Unwind
from flowfabric.worker.run.failure import mark_step
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.shield import SyncShield
from flowfabric.worker.run.steps import Work, attempt_here, keep, read

P = ParamSpec("P")
R = TypeVar("R")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")


class SyncCallback(BlockingProxy[Callback[Any]]):
    """`Callback` for a plain function."""

    result = blocking(Callback.result)

    def __init__(self, callback: Callback[Any], block: Block) -> None:
        super().__init__(callback, block)
        self.id = callback.id
        self.token = callback.token


class SyncApproval(BlockingProxy[Approval]):
    """`Approval` for a plain function."""

    token = blocking(Approval.token)
    verdict = blocking(Approval.verdict)

    def __init__(self, approval: Approval, block: Block) -> None:
        super().__init__(approval, block)
        self.id = approval.id


class SyncFlow(BlockingManager[SubFlow]):
    """`SubFlow` for a plain function: `with ctx.flow("parts") as flow: flow.add(...)`, then
    `flow.result()`."""

    result = blocking(SubFlow.result)

    def __init__(self, flow: SubFlow, block: Block) -> None:
        super().__init__(flow, block)
        self.flow = flow
        self.add = flow.add


class SyncReserve(BlockingManager[Reserve]):
    """`Reserve` for a plain function: `with ctx.reserve(tokens=2000) as r: ...`."""

    def __init__(self, reserve: Reserve, block: Block) -> None:
        super().__init__(reserve, block)
        self.settle = reserve.settle

    @property
    def outcome(self) -> Counted | None:
        """What was counted, once the block has ended."""
        return self._wrapped.outcome


class SyncContext(BlockingProxy[Context]):
    """The context of a plain function. Every method does what the method of `Context` with the
    same name does, and returns when it is done."""

    sleep = blocking(Context.sleep)
    now = blocking(Context.now)
    random = blocking(Context.random)
    submit = blocking(Context.submit)
    progress = blocking(Context.progress)
    set_state = blocking(Context.set_state)
    wait_for_signal = blocking(WaitsApi.wait_for_signal)
    wait_for_any = blocking(WaitsApi.wait_for_any)
    wait_for_all = blocking(WaitsApi.wait_for_all)
    approval = blocking(WaitsApi.approval)
    request_approval = blocking_as(SyncApproval, WaitsApi.request_approval)
    callback = blocking_as(SyncCallback, WaitsApi.callback)
    map = blocking(FlowsApi.map)
    flow = blocking_as(SyncFlow, FlowsApi.flow)
    spend = blocking(SpendApi.spend)
    reserve = blocking_as(SyncReserve, SpendApi.reserve)
    emit = blocking(OutputApi.emit)

    def __init__(self, context: Context) -> None:
        super().__init__(context, _block_in(context._scope))
        self._context = context
        self.heartbeat = context.heartbeat

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    @property
    def info(self) -> RunInfo:
        """Which run this is."""
        return self._context.info

    @property
    def lifespan(self) -> Any:
        """What the lifespan of the worker has yielded; None without a lifespan."""
        return self._context.lifespan

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry the run: `run`, `task` and `attempt`."""
        return self._context.log

    @overload
    def step(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def step(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As `Context.step`, except that a plain function without a timeout runs in the thread of
        the handler."""
        work = Work.of(function, args, kwargs, self._context._step_hooks)
        if work.is_async or deferred.get() is not None:
            return do_now(self._block, self._context.step(function, *args, **kwargs))
        return self._step_here(work)

    def compensate(self, undo: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """As `Context.compensate`."""
        self._block(self._context.compensate(undo, *args, **kwargs).record())

    @overload
    def shield(self) -> SyncShield: ...
    @overload
    def shield(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def shield(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def shield(self, work: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keeps a cancel of the run away: `with ctx.shield(): ...`, or `ctx.shield(charge, order)`,
        which calls the function as a step. `Cancelled` is raised after it."""
        shield = SyncShield(self._context._scope.cancel)
        if work is None:
            return shield
        return shield.around(partial(self.step, work, *args, **kwargs))

    @overload
    def race(self, branch: "Callable[[], T1] | Run[T1]", /) -> Winner[T1]: ...
    @overload
    def race(
        self, branch1: "Callable[[], T1] | Run[T1]", branch2: "Callable[[], T2] | Run[T2]", /
    ) -> Winner[T1 | T2]: ...
    @overload
    def race(
        self,
        branch1: "Callable[[], T1] | Run[T1]",
        branch2: "Callable[[], T2] | Run[T2]",
        branch3: "Callable[[], T3] | Run[T3]",
        /,
    ) -> Winner[T1 | T2 | T3]: ...
    @overload
    def race(
        self, *branches: "Callable[[], R] | Run[R]", **named: "Callable[[], R] | Run[R]"
    ) -> Winner[R]: ...
    def race(self, *branches: Any, **named: Any) -> Winner[Any]:
        """As `Context.race`. A branch is a function that makes one call of the context, which it
        returns, or a child run: `ctx.race(go=lambda: ctx.wait_for_signal("go"), child=run)`."""
        given = [*((str(at), each) for at, each in enumerate(branches)), *named.items()]
        works: list[Any] = []
        try:
            works += (_unstarted(name, each) for name, each in given)
        except BaseException:
            for work in works:
                drop(work)
            raise
        names = dict(zip(named, works[len(branches) :], strict=True))
        race = self._context.race(*works[: len(branches)], **names)
        winner: Winner[Any] = self._block(race)
        return winner

    first_of = race

    def patched(self, name: str) -> bool:
        """As `Context.patched`."""
        return bool(self._context.patched(name))

    def complete_in(self, connection: Any, result: object = None) -> None:
        """As `Context.complete_in`, on a connection that blocks, in the thread of the handler."""
        completion = self._context._completion()

        async def current() -> Snapshot:
            snapshot: Snapshot = self._block(completion.current())
            return snapshot

        run_sync(completion.write(connection, result, current), connection)

    def _step_here(self, work: Work) -> Any:
        """Only the journal is used in the event loop."""
        scope = self._context._scope
        place = scope.branches.place(work.name)
        record = self._block(scope.journal.recorded(place))
        if record is not None:
            return read(place, record, work.returns)
        scope.check_running()
        try:
            tries = work.tries(scope, place, under_way=False)
            result = attempt_here(work, scope.threads, tries, self._block)
        except Exception as error:
            mark_step(error, place.name)
            raise
        return self._block(keep(scope.journal, place, result, work.returns))


def _unstarted(name: str, branch: Any) -> Any:
    if isinstance(branch, Run):
        return branch
    if not callable(branch):
        kind = type(branch).__name__
        raise Invalid(
            f"branch {name!r} of a race in a plain function is of type {kind}, not a function such "
            "as `lambda: ctx.sleep('1h')`"
        )
    return unstarted(branch, name)


def _block_in(scope: CallScope) -> Block:
    def block(work: Coroutine[Any, Any, Any]) -> Any:
        if scope.loop.is_closed():
            work.close()
            raise Unwind("the worker is gone")
        if runs_here(scope.loop):  # to wait here would stop the worker and all of its runs
            work.close()
            raise Invalid(
                "a plain function was called, and its ctx cannot be used in the coroutine that it "
                "returned: make the task a coroutine function; a decorator needs functools.wraps"
            )
        return scope.cancel.block(asyncio.run_coroutine_threadsafe(work, scope.loop))

    return block
