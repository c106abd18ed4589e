"""Things that a handler does side by side."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar, overload

from flowfabric.worker.errors import Unwind
from flowfabric.worker.run.branches import Branch
from flowfabric.worker.run.failure import contained
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.together import together

R = TypeVar("R")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
T6 = TypeVar("T6")


class Concurrency:
    """The part of a context that does several things at a time."""

    def __init__(self, scope: CallScope) -> None:
        self._scope = scope

    @overload
    def gather(self, step1: Awaitable[T1], /) -> Coroutine[Any, Any, tuple[T1]]: ...
    @overload
    def gather(
        self, step1: Awaitable[T1], step2: Awaitable[T2], /
    ) -> Coroutine[Any, Any, tuple[T1, T2]]: ...
    @overload
    def gather(
        self, step1: Awaitable[T1], step2: Awaitable[T2], step3: Awaitable[T3], /
    ) -> Coroutine[Any, Any, tuple[T1, T2, T3]]: ...
    @overload
    def gather(
        self,
        step1: Awaitable[T1],
        step2: Awaitable[T2],
        step3: Awaitable[T3],
        step4: Awaitable[T4],
        /,
    ) -> Coroutine[Any, Any, tuple[T1, T2, T3, T4]]: ...
    @overload
    def gather(
        self,
        step1: Awaitable[T1],
        step2: Awaitable[T2],
        step3: Awaitable[T3],
        step4: Awaitable[T4],
        step5: Awaitable[T5],
        /,
    ) -> Coroutine[Any, Any, tuple[T1, T2, T3, T4, T5]]: ...
    @overload
    def gather(
        self,
        step1: Awaitable[T1],
        step2: Awaitable[T2],
        step3: Awaitable[T3],
        step4: Awaitable[T4],
        step5: Awaitable[T5],
        step6: Awaitable[T6],
        /,
    ) -> Coroutine[Any, Any, tuple[T1, T2, T3, T4, T5, T6]]: ...
    @overload
    def gather(
        self,
        step1: Awaitable[R],
        step2: Awaitable[R],
        step3: Awaitable[R],
        step4: Awaitable[R],
        step5: Awaitable[R],
        step6: Awaitable[R],
        step7: Awaitable[R],
        /,
        *more: Awaitable[R],
    ) -> Coroutine[Any, Any, list[R]]: ...
    @overload
    def gather(self) -> Coroutine[Any, Any, list[Any]]: ...
    def gather(self, *steps: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
        """Awaits several steps concurrently and returns their results in order, as a list; the type
        checker knows the type of each, as with `asyncio.gather`. If one fails, the others are
        cancelled and its error is raised."""
        return self._gather(steps)

    async def _gather(self, steps: tuple[Awaitable[Any], ...]) -> list[Any]:
        all_branches = self._scope.branches
        branches = [all_branches.branch() for _ in steps]
        left = set(branches)

        async def one(step: Awaitable[Any], branch: Branch) -> Any:
            value = await beside(self._scope, step, branch)
            left.discard(branch)
            if not left:
                all_branches.hold(branch)
            return value

        pairs = zip(steps, branches, strict=True)
        tasks = [asyncio.ensure_future(one(*pair)) for pair in pairs]
        try:
            with all_branches.waiting():
                await together(tasks, lambda: self._scope.parked)
        finally:
            all_branches.forget(branches)
        return [task.result() for task in tasks]


async def beside(scope: CallScope, step: Awaitable[R], branch: Branch) -> R:
    """Awaits a step in a branch of its own."""
    with scope.branches.strand(branch):
        try:
            return await step
        except GeneratorExit:  # the branch is closed
            raise
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError | Unwind):
                scope.branches.hold(branch)
            if (other := contained(error)) is not error:
                raise other from error
            raise
