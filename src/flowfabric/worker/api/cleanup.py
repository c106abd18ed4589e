"""The part of a context that cleans up: compensations, and work that is not cut off."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.shield import Shield
from flowfabric.worker.run.steps import Work
from flowfabric.worker.run.undo import Compensation, register

if TYPE_CHECKING:
    from flowfabric.worker.api.context import Context

P = ParamSpec("P")
R = TypeVar("R")


class CleanupApi:
    """What a handler asks for so that nothing is left behind when its run is cancelled or fails."""

    def __init__(self, scope: CallScope, context: "Callable[[CallScope], Context]") -> None:
        """`context` makes a context of the same call. Holding the one that holds this would keep
        both in memory until the garbage collector comes."""
        self._scope = scope
        self._context = context

    def compensate(
        self, undo: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Compensation:
        """Registers what undoes the work of this run: `await ctx.compensate(refund, order)`. Before
        the run fails for good, expires or is cancelled, everything registered is called in reverse
        order, each as a durable step. Register it before the work it undoes, and make it harmless
        where nothing was done."""
        return register(self._scope, Work.of(undo, args, kwargs, self._steps()._step_hooks))

    @overload
    def shield(self) -> Shield: ...
    @overload
    def shield(self, work: Awaitable[R]) -> Coroutine[Any, Any, R]: ...
    @overload
    def shield(
        self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def shield(
        self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    def shield(self, work: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keeps a cancel of the run away from work that must not be cut off:
        `await ctx.shield(ctx.step(charge, order))`, or `async with ctx.shield(): ...` for several
        calls. `Cancelled` is raised after it. A function is called as a step."""
        shield = Shield(self._scope.cancel)
        if work is None:
            return shield
        if not inspect.isawaitable(work):
            work = self._steps().step(work, *args, **kwargs)
        return shield.around(work)

    def _steps(self) -> "Context":
        return self._context(self._scope)
