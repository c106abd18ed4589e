"""What hooks receive: a call as a middleware sees it, and the end of an attempt."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from flowfabric.worker.api.context import RunInfo

EndOutcome = Literal["completed", "retrying", "failed", "expired", "cancelled", "handed_back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call of a handler or of a step's function, as a middleware sees it.

    `kind` is "attempt" or "step", `name` that of the task or of the step. `run` has the facts about
    the run, `args` and `kwargs` are the arguments without the context. `lifespan` is what the
    lifespan of the worker has yielded. `try_number` counts the tries of a step with `retries`, from
    1. A middleware may pass on a copy with other arguments.
    """

    kind: Literal["attempt", "step"]
    name: str
    run: "RunInfo"
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    lifespan: Any = None
    try_number: int = 1


class NextCall(Protocol):
    """What an async middleware awaits to go on: the next middleware, or the function itself."""

    async def __call__(self, call: Invocation, /) -> Any: ...


class SyncNextCall(Protocol):
    """What a plain middleware calls to go on: the next middleware, or the function itself."""

    def __call__(self, call: Invocation, /) -> Any: ...


AsyncMiddleware = Callable[[Invocation, NextCall], Awaitable[Any]]
SyncMiddleware = Callable[[Invocation, SyncNextCall], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended. It is recorded: nothing that a hook does changes it.

    `outcome` is "completed", "retrying" (at `retry_at`), "failed", "expired", "cancelled" or
    "handed_back". `attempt` counts from 1. `error` is the exception of the handler, if it raised
    one; `message` says what went wrong, also without an exception. `result` is what a completed
    handler returned. `lifespan` is what the lifespan of the worker has yielded.
    """

    run: "RunInfo"
    attempt: int
    outcome: EndOutcome
    error: BaseException | None = None
    error_type: str = ""
    message: str = ""
    category: str = ""
    retry_at: datetime | None = None
    result: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    lifespan: Any = None

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.run.task


EndHook = Callable[[AttemptEnd], Any]
"""A function or coroutine function that is told how an attempt ended."""
