"""Work of a handler that a cancel of its run does not cut off."""

from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from flowfabric.worker.run.cancelling import CancelPoint

R = TypeVar("R")


class Shield:
    """While the block runs, the cancel of the run is kept away from the handler."""

    def __init__(self, cancel: CancelPoint) -> None:
        self._cancel = cancel

    async def around(self, work: Awaitable[R]) -> R:
        async with self:
            return await work

    async def __aenter__(self) -> Self:
        self._cancel.enter_shield()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._cancel.leave_shield(failed=kind is not None)


class SyncShield:
    """The same for a plain function: `with ctx.shield(): ...`."""

    def __init__(self, cancel: CancelPoint) -> None:
        self._cancel = cancel

    def around(self, work: Callable[[], R]) -> R:
        with self:
            return work()

    def __enter__(self) -> Self:
        self._cancel.enter_shield()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._cancel.leave_shield(failed=kind is not None)
