"""Reads: one execution in any depth, many by filter, and waiting for an end."""

from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.ids import (
    PARTITIONS,
    ExecutionId,
    derive_attempt_id,
    lane_partition,
    parse_uuid,
)
from flowfabric.core.base.numbers import (
    Seconds,
    check_flag,
    check_items,
    check_kind_of,
    check_limit,
    check_names,
    check_seconds,
    check_whole,
    check_word,
)
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import check_tag, check_text
from flowfabric.core.base.time import Millis, check_moment
from flowfabric.core.execution.attempts import inline_attempts
from flowfabric.core.execution.failures import FailureGroups
from flowfabric.core.execution.history import StepView, describe_steps
from flowfabric.core.execution.model import (
    Attempt,
    Ended,
    Outcome,
    Snapshot,
)
from flowfabric.core.execution.status import (
    PublicState,
    Vector,
    public_state,
    vector,
)
from flowfabric.core.execution.step import Step
from flowfabric.engine.context import Service, exactly
from flowfabric.engine.execution.described import (
    CleanupRequest,
    Description,
    Ending,
    ExecutionContext,
    Failures,
    Info,
    Infos,
    PartitionPage,
    describe,
    ended_at_of,
    ending_of,
    info_of,
    without_traceback,
)
from flowfabric.store.queries import (
    ByPartition,
    Counts,
    Detail,
    FailedSince,
    Query,
)
from flowfabric.store.readable import named, readable

FAILURES_READ = 20_000
"""Most failed executions that are read to be grouped."""


PARTITION_READ = 100_000
"""Most executions that are read for one page of a partition."""


class Views(Service):
    """`engine.views`"""

    async def describe(self, id: str) -> Description | None:
        seen = self._context.store.hints.count
        detail = await self._detail(id)
        if detail is not None and await self._context.rounds.settle_run(detail.snapshot, seen):
            detail = await self._detail(id)
        return None if detail is None else describe(detail, self._now())

    async def info(self, id: str) -> Info | None:
        snapshot = await self._load_settled(id)
        if snapshot is None:
            return None
        (info,) = await self._with_failures([snapshot], [info_of(snapshot)])
        return info

    async def state(self, id: str) -> PublicState | None:
        """Only the public state: the cheap poll."""
        snapshot = await self._load_settled(id)
        return None if snapshot is None else public_state(snapshot)

    async def vector(self, id: str) -> Vector | None:
        snapshot = await self._load_settled(id)
        return None if snapshot is None else vector(snapshot)

    async def result(self, id: str) -> bytes | None:
        """The exact result bytes of a completed execution; None if it is missing, unfinished or has
        no result."""
        snapshot = await self._load(id)
        if snapshot is None or not isinstance(snapshot.state, Ended):
            return None
        return snapshot.state.result if snapshot.state.outcome is Outcome.SUCCESS else None

    async def state_value(self, id: str) -> bytes | None:
        """What the execution shows of itself: the last value an owner has set, None before."""
        return (await self._known_detail(id)).state_value

    async def context(self, id: str) -> ExecutionContext:
        detail = await self._known_detail(id)
        execution = detail.snapshot.execution
        return ExecutionContext(
            execution.kind, detail.payload, execution.facts.encoding, detail.tags
        )

    async def attempts(self, id: str) -> list[Attempt]:
        """Every attempt by index, including the current one."""
        detail = await self._known_detail(id)
        uuid, said = detail.snapshot.execution.uuid, detail.progress
        stored = await self._context.store.attempts(uuid)
        history = {attempt.index: attempt for attempt in stored}
        for attempt in inline_attempts(detail.snapshot):
            history.setdefault(attempt.index, attempt)
        return [
            replace(
                history[index],
                id=history[index].id or derive_attempt_id(uuid, index),
                progress=said.get(index),
            )
            for index in sorted(history)
        ]

    async def steps(self, id: str) -> list[StepView]:
        """What the handler has called and recorded since it was last started over, and which steps
        raised."""
        snapshot, attempts = await self._present(id), await self.attempts(id)
        asked = (snapshot.execution.uuid, snapshot.life.generation)
        (steps,) = await self._context.store.steps([asked])
        return named("the steps of", asked[0], lambda: describe_steps(steps, attempts))

    async def recorded(self, id: str) -> tuple[int, Sequence[Step]]:
        """The generation that an execution is in, and the steps it has recorded in it."""
        snapshot = await self._present(id)
        generation = snapshot.life.generation
        (steps,) = await self._context.store.steps([(snapshot.execution.uuid, generation)])
        return generation, steps

    async def cleanups(self, uuids: Sequence[UUID]) -> dict[UUID, CleanupRequest]:
        """Of these executions those that are to be cleaned up, so that their owners stop."""
        asked = _uuids(uuids)
        found = await self._context.store.load(asked) if asked else {}
        wanted = {uuid: CleanupRequest.of(snapshot) for uuid, snapshot in found.items()}
        return {uuid: request for uuid, request in wanted.items() if request is not None}

    async def current_attempt(self, id: str) -> int:
        """The index of the last attempt; 0 before the first."""
        snapshot = await self._present(id)
        return max(0, snapshot.attempts_made - 1)

    async def attempts_made(self, id: str) -> int:
        return (await self._present(id)).attempts_made

    async def tags(self, uuids: Sequence[UUID]) -> list[dict[str, str]]:
        """The tags of each of these executions, in order."""
        asked = _uuids(uuids)
        return await self._context.store.tags(asked) if asked else []

    async def namespace(self, id: str) -> str | None:
        snapshot = await self._load(id)
        return None if snapshot is None else snapshot.execution.route.namespace

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        """Executions as they stand, for a worker that asks what became of what it holds; one that
        does not exist is left out."""
        return await self._context.store.load(_uuids(uuids))

    async def locate(self, uuids: Sequence[UUID]) -> list[ExecutionId]:
        """The ids of executions of which only the uuid is known. The id of one that does not exist
        names nothing."""
        asked = _uuids(uuids)
        found = await self._context.inbox.load(asked)
        return [
            found[uuid].execution.id if uuid in found else ExecutionId.of(0, uuid) for uuid in asked
        ]

    async def wait(self, id: str, timeout: Seconds | None = None) -> Ending:
        """Waits for the end of the execution and returns it. Raises `TimeoutError` after `timeout`
        seconds."""
        key = ExecutionId(id)
        seconds = None if timeout is None else check_seconds(timeout, "timeout")
        return ending_of(key, await self._context.watcher.wait(key, key.uuid, seconds))

    async def list(self, query: Query, cursor: str | None = None) -> Infos:
        """Executions by creation time; the cursor of one page starts the next."""
        bounded = _bounded(check_kind_of(query, Query, "query"), cursor)
        if not bounded.limit:
            return Infos((), None)
        await self._settle()
        page = await self._context.store.page(bounded)
        damaged = list(page.unreadable)
        items = readable(
            page.items,
            info_of,
            "execution",
            lambda snapshot: snapshot.execution.uuid,
            lambda snapshot: damaged.append(snapshot.execution.uuid),
        )
        shown = await self._with_failures(page.items, items)
        cursor = None if page.cursor is None else _write_cursor(page.cursor)
        return Infos(tuple(shown), cursor, tuple(damaged))

    async def partition(
        self,
        index: int,
        *,
        after: UUID | None = None,
        limit: int = 50,
        sees: Callable[[str], bool] | None = None,
    ) -> PartitionPage:
        """The ids of one partition, by uuid, of the namespaces that `sees` is True for. For clients
        that walk through partitions: `list` finds what is looked for."""
        check_whole(index, "partition", 0, PARTITIONS - 1)
        wanted = check_limit(limit, MAX_PAGE)
        last = None if after is None else parse_uuid(after, "cursor")
        if not wanted:
            return PartitionPage((), None)
        await self._settle()
        routes = await self._context.store.routes()
        lanes = {route.lane for route in routes if lane_partition(route.lane) == index}
        found: list[ExecutionId] = []
        for _ in range(PARTITION_READ // MAX_PAGE):
            asked = ByPartition(tuple(sorted(lanes)), last, MAX_PAGE)
            page = await self._context.store.snapshots(asked)
            if not page:
                return PartitionPage(tuple(found), None)
            last = page[-1].execution.uuid
            found += [
                snapshot.execution.id
                for snapshot in page
                if snapshot.execution.id.partition_index == index
                and (sees is None or sees(snapshot.execution.route.namespace))
            ]
            if len(found) > wanted:
                return PartitionPage(tuple(found[:wanted]), found[wanted - 1])
        return PartitionPage(tuple(found), ExecutionId.of(index, last or UUID(int=0)))

    async def _with_failures(
        self, found: Sequence[Snapshot], infos: Sequence[Info]
    ) -> Iterator[Info]:
        """Adds the last failure to those that are tried again."""
        asked = [(item.execution.uuid, index) for item in found if (index := _retried(item)) >= 0]
        known = await self._context.store.attempts_at(asked) if asked else {}
        failures = {uuid: without_traceback(attempt.failure) for uuid, attempt in known.items()}
        return (replace(info, failure=info.failure or failures.get(info.id.uuid)) for info in infos)

    async def failures(
        self,
        *,
        kind: str | None = None,
        namespace: str | None = None,
        since: Millis | None = None,
        most: int = FAILURES_READ,
    ) -> Failures:
        """The executions that failed since then (and were not replayed), grouped by kind and
        error. Reads the latest `most`, a page at a time."""
        kind, namespace = _text(kind, "kind"), _text(namespace, "namespace")
        earliest = _moment(since) or Millis(0)
        groups, last = FailureGroups(), None
        left = check_limit(most, FAILURES_READ)
        while left > 0:
            size = min(left, MAX_PAGE)
            page = await self._context.store.snapshots(FailedSince(earliest, last, size))
            groups.add(item for item in page if _is_of(item, kind, namespace))
            if not page:
                return Failures(groups.groups(), complete=True)
            left -= len(page)
            last = (ended_at_of(page[-1]) or earliest, page[-1].execution.uuid)
        return Failures(groups.groups(), complete=False, read_since=last and last[0])

    async def counts(self, *, namespace: str | None = None, lane: str | None = None) -> Counts:
        """How many executions are in each public state, exact up to 100,000. Of a lane or namespace
        in a store with more than 200,000 finished ones, those of it among the newest are counted,
        and `capped` says so."""
        place, name = _text(namespace, "namespace"), _text(lane, "lane")
        await self._settle()
        return await self._context.store.counts(place, name)

    async def _detail(self, id: str) -> Detail | None:
        key = ExecutionId(id)
        detail = await self._context.store.detail(key.uuid)
        if detail is None and await self._context.inbox.admit([key.uuid]):
            detail = await self._context.store.detail(key.uuid)
        if detail is None or exactly(detail.snapshot, key) is None:
            return None
        return detail

    async def _known_detail(self, id: str) -> Detail:
        detail = await self._detail(id)
        if detail is None:
            raise NotFound("execution", id)
        return detail


def _uuids(given: Sequence[UUID]) -> list[UUID]:
    return [parse_uuid(uuid, "run") for uuid in check_items(given, "uuids")]


def _bounded(query: Query, cursor: str | None) -> Query:
    return Query(
        namespace=_text(query.namespace, "namespace"),
        lane=_text(query.lane, "lane"),
        kind=_text(query.kind, "kind"),
        states=tuple(
            check_word(each, PublicState, "state") for each in check_names(query.states, "states")
        ),
        tag=None if query.tag is None else check_tag(query.tag),
        flow=None if query.flow is None else parse_uuid(query.flow, "flow"),
        created_from=_moment(query.created_from),
        created_until=_moment(query.created_until),
        after=_after(query.after) if cursor is None else _read_cursor(cursor),
        limit=check_limit(query.limit, MAX_PAGE),
        newest_first=check_flag(query.newest_first, "newest_first"),
    )


def _text(value: str | None, what: str) -> str | None:
    return None if value is None else check_text(value, what)


def _after(cursor: object) -> tuple[Millis, UUID] | None:
    match cursor:
        case None:
            return None
        case (moment, UUID() as key):
            return check_moment(moment, "cursor"), key
        case _:
            raise Invalid("a cursor of runs must be a pair of moment and uuid")


def _moment(value: Millis | None) -> Millis | None:
    return None if value is None else check_moment(value, "moment")


def _write_cursor(cursor: tuple[Millis, UUID]) -> str:
    return f"{cursor[0]}.{cursor[1].hex}"


def _read_cursor(text: str) -> tuple[Millis, UUID]:
    moment, _, key = str(text).partition(".")
    try:
        return check_moment(int(moment), "cursor"), UUID(hex=key)
    except (ValueError, Invalid):
        raise Invalid(f"not a cursor: {str(text)[:80]!r}") from None


def _retried(snapshot: Snapshot) -> int:
    """The index of the attempt before, if the execution is tried again; otherwise -1."""
    if isinstance(snapshot.state, Ended) or not snapshot.life.retries:
        return -1
    current = snapshot.current_attempt
    return (snapshot.attempts_made if current is None else current) - 1


def _is_of(snapshot: Snapshot, kind: str | None, namespace: str | None) -> bool:
    route = snapshot.execution.route
    return kind in (None, route.kind) and namespace in (None, route.namespace)
