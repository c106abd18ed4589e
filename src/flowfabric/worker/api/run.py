"""A run, as its submitter sees it."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any, Generic, TypeVar, overload

from msgspec.structs import replace

from flowfabric.core.base.errors import AlreadyEnded, FlowFabricError, Invalid, NotActive, NotFound
from flowfabric.core.base.ids import RunId, without_tags
from flowfabric.core.base.numbers import Seconds
from flowfabric.core.base.time import optional_datetime
from flowfabric.core.execution.fork import ForkChanges
from flowfabric.core.execution.model import Outcome
from flowfabric.core.execution.operator import Replayed
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Duplicate
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.described import Ending
from flowfabric.worker.api.blocking import Block, blocking
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.described import RunCancel, RunDescription, describe_run
from flowfabric.worker.api.explained import RunExplanation, explain_run
from flowfabric.worker.api.history import RunAttempt, RunEvent, run_attempt, run_event
from flowfabric.worker.api.output import RunFrame, follow_output, summary_of
from flowfabric.worker.codec import decode, encode
from flowfabric.worker.errors import (
    ResultTimeout,
    RunCancelled,
    RunExpired,
    RunFailed,
    RunSkipped,
)
from flowfabric.worker.run.branches import inside_step
from flowfabric.worker.run.race import racing

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

EXPLAIN_WITHIN = 5.0
"""Seconds that the reason of a timeout may take to find out."""


class Run(Generic[R_co]):
    """A submitted run of a task. `result()` has the type that the task returns.

    `id` is a UUID as text. `duplicate` is True if a run with the same key existed; this is that
    run then.
    """

    def __init__(
        self, client: Client, id: str, returns: Any = Any, *, duplicate: bool = False
    ) -> None:
        self.id = RunId(id)
        self.duplicate = duplicate
        self._client = client
        self._returns = returns

    def __repr__(self) -> str:
        return f"Run({self.id!s})"

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """Waits for the end of the run and returns the result of the task. Raises RunFailed,
        RunCancelled, RunExpired or RunSkipped if it ended otherwise, and ResultTimeout, which is a
        TimeoutError and says what the run waits for, after `timeout`. In a branch of `ctx.race` it
        holds no worker meanwhile, and raises WaitTimeout."""
        branch = None if inside_step.get() else racing.get()
        if branch is not None:
            return self._value(await branch.ending_of(self.id, timeout))
        engine = await self._client.engine()
        try:
            ending = await engine.views.wait(self.id, timeout)
        except TimeoutError as error:
            raise await _timeout(engine, self.id, str(error)) from None
        return self._value(ending)

    async def state(self) -> PublicState:
        """The state of the run now. Raises NotFound once the run was deleted."""
        engine = await self._client.engine()
        state = await engine.views.state(self.id)
        if state is None:
            raise NotFound("run", self.id)
        return state

    @overload
    async def state_value(self) -> Any: ...
    @overload
    async def state_value(self, as_type: type[T]) -> T | None: ...
    async def state_value(self, as_type: Any = Any) -> Any:
        """The last value that the handler has given to `ctx.set_state`; None if it has set none. It
        stays after the end of the run. Raises NotFound once the run was deleted."""
        engine = await self._client.engine()
        try:
            value = await engine.views.state_value(self.id)
        except NotFound:
            raise NotFound("run", self.id) from None
        return (
            None if value is None else decode(value, as_type, f"the state value of run {self.id}")
        )

    async def describe(self) -> RunDescription:
        """Everything known about the run."""
        engine = await self._client.engine()
        description = await engine.views.describe(self.id)
        if description is None:
            raise NotFound("run", self.id)
        return describe_run(description)

    async def explain(self) -> RunExplanation:
        """Why the run is not running now. `main` is the reason that must change first. Each reason
        has a text for people, and a code and details for programs."""
        engine = await self._client.engine()
        return explain_run(await engine.explain(self.id))

    async def cancel(
        self, reason: str = "cancelled by its submitter", *, force: bool = False
    ) -> RunCancel:
        """Ends the run and stops its handler. If its task cleans up, the run ends after that, or at
        `until` of the answer; with `force` it ends at once. Cancelling again changes nothing.
        Raises AlreadyEnded if the run ended otherwise before."""
        engine = await self._client.engine()
        try:
            answer = await engine.executions.cancel(self.id, reason=reason, force=force)
        except NotActive as error:
            raise AlreadyEnded(self.id, error.outcome) from None
        return RunCancel(id=self.id, until=optional_datetime(answer.until))

    async def replay(self, from_step: str | int | None = None) -> Replayed:
        """Runs an ended run again. Recorded steps are kept, unless it had succeeded. With
        `from_step`, the steps before that one are kept, and the later ones are forgotten: they run
        again. `charge#2` is the second call of `charge`, a number is the position of a step."""
        engine = await self._client.engine()
        return replace(await engine.executions.replay(self.id, from_step=from_step), id=self.id)

    async def fork(
        self,
        from_step: str | int | None = None,
        *,
        arguments: Mapping[str, object] | None = None,
        version: str | None = None,
        lane: str | None = None,
        priority: int | None = None,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> "Run[R_co]":
        """Submits a new run of the same task that has recorded what this one has before a step
        (named as for `replay`), and runs the rest itself. This run may be in any state and stays
        as it is.

        The fork has the arguments, the options and the tags of this run. `arguments` by name
        replace all of them, `version` pins the fork to another version of the task, `tags` are
        added. The fork has a tag `flowfabric.forked_from` with the id of this run."""
        changes = ForkChanges(
            payload=None if arguments is None else _payload(arguments),
            version=version,
            lane=lane,
            priority=priority,
            key=key,
            tags=tags,
        )
        engine = await self._client.engine()
        made = await engine.executions.fork(self.id, from_step=from_step, changes=changes)
        duplicate = isinstance(made, Duplicate)
        return Run(self._client, made.id, self._returns, duplicate=duplicate)

    async def attempts(self) -> list[RunAttempt]:
        """Every attempt so far, the current one included. The first is number 1."""
        engine = await self._client.engine()
        try:
            return [run_attempt(attempt) for attempt in await engine.views.attempts(self.id)]
        except NotFound:
            raise NotFound("run", self.id) from None

    async def events(self) -> list[RunEvent]:
        """The events of the run so far, in order."""
        engine = await self._client.engine()
        found: list[RunEvent] = []
        cursor = 0
        while True:
            page = await engine.events.read(after=cursor, execution=self.id)
            found += [run_event(event) for event in page.events]
            if page.cursor == cursor or not page.events:
                return found
            cursor = page.cursor

    async def follow(self) -> AsyncGenerator[RunEvent, None]:
        """The events of the run as they happen, until it has ended. Raises NotFound once it was
        deleted."""
        await self.state()  # or it would wait for the end of a run that is gone
        engine = await self._client.engine()
        async for event in engine.events.subscribe(after=0, execution=self.id):
            yield run_event(event)
            if event.completion is not None:
                later = await engine.events.read(after=event.seq, limit=1, execution=self.id)
                if not later.events:
                    return

    def follow_sync(self) -> Generator[RunEvent, None, None]:
        """The events of the run as they happen, for a plain `for`; it waits between them."""
        return self._each(self.follow())

    async def stream(
        self,
        *,
        after: str | None = None,
        attempt: int | None = None,
        follow: bool = True,
        best_effort: bool = True,
    ) -> AsyncGenerator[RunFrame, None]:
        """What the run emits (`ctx.emit`), in order: of all attempts one after the other, or of
        one, which are counted from 1. It goes on until the run has ended, or until the one attempt
        has; without `follow` it stops at what there is now.

        Continue with the `cursor` of the last frame as `after`. Without `best_effort`, frames of
        that mode are left out."""
        engine = await self._client.engine()
        frames = follow_output(
            engine, self.id, after=after, attempt=attempt, follow=follow, best_effort=best_effort
        )
        async for frame in frames:
            yield frame

    def stream_sync(
        self,
        *,
        after: str | None = None,
        attempt: int | None = None,
        follow: bool = True,
        best_effort: bool = True,
    ) -> Generator[RunFrame, None, None]:
        """As `stream`, for a plain `for`; it waits between the frames."""
        return self._each(
            self.stream(after=after, attempt=attempt, follow=follow, best_effort=best_effort)
        )

    async def summary(self, attempt: int | None = None) -> Any:
        """What the summary frames of an attempt (counted from 1; by default the last that has any)
        add up to; None if there are none."""
        return await summary_of(await self._client.engine(), self.id, attempt)

    result_sync = blocking(result)
    summary_sync = blocking(summary)
    state_sync = blocking(state)
    state_value_sync = blocking(state_value)
    describe_sync = blocking(describe)
    explain_sync = blocking(explain)
    attempts_sync = blocking(attempts)
    events_sync = blocking(events)
    cancel_sync = blocking(cancel)
    replay_sync = blocking(replay)
    fork_sync = blocking(fork)

    def _each(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        block = self._client.block_on
        try:
            while (item := block(_next(items))) is not None:
                yield item
        finally:
            block(items.aclose())

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on

    def _value(self, ending: Ending) -> R_co:
        match ending.outcome:
            case Outcome.SUCCESS:
                value: R_co = decode(
                    ending.result or b"null", self._returns, f"the result of run {self.id}"
                )
                return value
            case Outcome.FAILED:
                raise _failed(self.id, ending)
            case Outcome.CANCELLED:
                raise RunCancelled(self.id, ending.reason or "")
            case Outcome.EXPIRED:
                raise RunExpired(self.id, ending.failure.message if ending.failure else "")
            case Outcome.SKIPPED:
                raise RunSkipped(self.id, "")


async def _next(items: AsyncGenerator[T, None]) -> T | None:
    return await anext(items, None)


def _payload(arguments: Mapping[str, object]) -> bytes:
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise Invalid("give the arguments of a fork by name: {'order': 7}")
    return encode(dict(arguments))


async def _timeout(engine: Engine, id: RunId, report: str) -> ResultTimeout:
    """The error that says what the run waits for, as far as that can be found out."""
    try:
        async with asyncio.timeout(EXPLAIN_WITHIN):
            found = await engine.explain(id)
    except (FlowFabricError, TimeoutError):
        return ResultTimeout("run", id, state="in an unknown state", why="", report=report)
    return ResultTimeout(
        "run", id, state=found.state, why=without_tags(found.main.text), report=report
    )


def _failed(id: RunId, ending: Ending) -> RunFailed:
    failure = ending.failure
    if failure is None:
        return RunFailed(id, "unknown", "", None)
    traceback = None if failure.detail is None else failure.detail.decode("utf-8", "replace")
    return RunFailed(id, failure.message, failure.category, traceback)
