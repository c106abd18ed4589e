"""Concurrent branches of a handler: all of their results, or the first failure."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from flowfabric.worker.errors import Unwind


async def together(tasks: Sequence[asyncio.Task[Any]], parked: Callable[[], bool]) -> None:
    """Returns when all have succeeded. Otherwise cancels the others and raises the first error. A
    parked handler unwinds as a whole: every branch ends by itself then, and what it waits for is
    kept."""
    try:
        left = set(tasks)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            errors = [task.exception() for task in tasks if task in done and _failed(task)]
            if errors and not parked() and not isinstance(errors[0], Unwind):
                break
    finally:
        await stop_all(tasks)
    for error in errors_of(tasks):
        raise error


def errors_of(tasks: Sequence[asyncio.Task[Any]]) -> list[BaseException]:
    """The errors of the branches: those that unwind first, cancelled ones last."""
    raised = [task.exception() for task in tasks if _failed(task)]
    stopped = [asyncio.CancelledError() for task in tasks if task.cancelled()]
    errors = [*(error for error in raised if error is not None), *stopped]
    return sorted(errors, key=lambda each: not isinstance(each, Unwind))


def _failed(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is not None


async def stop_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancels those that have not ended, and waits until they have."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    await all_ended(left)


async def all_ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Returns when all have ended. A caller that is interrupted meanwhile, however often, is
    interrupted only then."""
    interrupted: BaseException | None = None
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left)
        except (asyncio.CancelledError, Unwind) as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
