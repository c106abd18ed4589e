"""`fabric.runs(...)`: runs by state, task, tag and time, page by page."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import RunId
from flowfabric.core.base.numbers import check_flag, check_whole, check_word
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.time import (
    Millis,
    from_datetime,
    optional_datetime,
    parse_span,
    to_datetime,
)
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.status import PublicState
from flowfabric.engine.execution.described import Info
from flowfabric.store.queries import Query
from flowfabric.worker.api.blocking import Block, blocking
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.described import detail_of
from flowfabric.worker.api.ids import find_tag
from flowfabric.worker.api.options import Span
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.task import Task

P = ParamSpec("P")
R = TypeVar("R")
Moment = datetime | Span
"""A moment, or how long ago it was."""
States = PublicState | str | Iterable[PublicState | str]
Tag = str | tuple[str, str] | Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a list shows of a run. `because` says what it waits for, `failure` is the last one.
    `run` cancels, replays or explains it."""

    id: RunId
    task: str
    state: PublicState
    lane: str
    namespace: str
    priority: int
    attempts: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    failure: Failure | None
    because: str | None
    flow: UUID | None
    run: Run[Any] = field(repr=False, compare=False)


def _collected(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, list[R]]]:
    """The method as one that gives a list: `list_runs`."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> list[R]:
        return [item async for item in method(self, *args, **kwargs)]

    call.__name__ = "list_runs"
    return call


class RunsApi:
    """The list of runs of a Fabric."""

    def __init__(self, client: Client, tasks: Mapping[str, Task[Any, Any]]) -> None:
        self._client = client
        self._tasks = tasks

    def runs(  # noqa: PLR0913 - the filters are the interface
        self,
        *,
        state: States | None = None,
        task: str | Task[Any, Any] | None = None,
        tag: Tag | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        lane: str | None = None,
        namespace: str | None = None,
        limit: int | None = None,
        newest_first: bool = True,
    ) -> AsyncIterator[RunSummary]:
        """Runs, the newest first: `async for run in fabric.runs(state="failed", since="1h")`.
        `since` and `until` limit when they were submitted, as a moment or as how long ago. A run
        that cannot be read is left out; the log says why."""
        query = Query(
            namespace=namespace,
            lane=lane,
            kind=task.name if isinstance(task, Task) else task,
            states=_states(state),
            tag=None if tag is None else one_tag(tag),
            newest_first=check_flag(newest_first, "newest_first"),
        )
        wanted = None if limit is None else check_whole(limit, "limit")
        for moment, what in ((since, "since"), (until, "until")):
            _moment(moment, Millis(0), what)
        return self._pages(query, (since, until), wanted)

    list_runs = _collected(runs)
    runs_sync = blocking(list_runs)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on

    async def _pages(
        self, query: Query, period: tuple[Moment | None, Moment | None], wanted: int | None
    ) -> AsyncIterator[RunSummary]:
        engine = await self._client.engine()
        now, (since, until) = engine.now(), period
        query = replace(
            query,
            tag=await find_tag(engine, query.tag),
            created_from=_moment(since, now, "since"),
            created_until=_moment(until, now, "until"),
        )
        cursor, left = None, wanted
        while left is None or left > 0:
            size = MAX_PAGE if left is None else min(MAX_PAGE, left)
            page = await engine.views.list(replace(query, limit=size), cursor)
            for info in page.items:
                yield self._summary(info)
            left = None if left is None else left - len(page.items)
            if (cursor := page.cursor) is None:
                return

    def _summary(self, info: Info) -> RunSummary:
        task = self._tasks.get(info.kind)
        return RunSummary(
            id=RunId(info.id),
            task=info.kind,
            state=info.state,
            lane=info.lane,
            namespace=info.namespace,
            priority=info.priority,
            attempts=info.attempts_made,
            created_at=to_datetime(info.created_at),
            started_at=optional_datetime(info.started_at),
            ended_at=optional_datetime(info.ended_at),
            failure=info.failure,
            because=detail_of(info),
            flow=info.flow,
            run=Run(self._client, info.id, task.signature.returns if task else Any),
        )


def _states(given: States | None) -> tuple[PublicState, ...]:
    if given is None:
        return ()
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, Iterable):
        raise Invalid(f"state must be one of {', '.join(PublicState)}, or several of them")
    return tuple(check_word(word, PublicState, "state") for word in words)


def one_tag(given: object) -> tuple[str, str]:
    """The key and value of a tag, however it is written."""
    match given:
        case str() if "=" in given:
            key, _, value = given.partition("=")
            return key, value
        case (str() as key, str() as value):
            return key, value
        case Mapping() if len(given) == 1:
            return one_tag(next(iter(given.items())))
        case _:
            raise Invalid('tag is one tag, such as "app.team=growth" or {"app.team": "growth"}')


def _moment(given: Moment | None, now: Millis, what: str) -> Millis | None:
    if given is None:
        return None
    if isinstance(given, datetime):
        return from_datetime(given, what)
    return Millis(max(0, now - parse_span(given, what)))
