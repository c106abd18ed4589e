"""Reads: one execution in any depth, many by filter, and waiting for an end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import UUID

from msgspec import Struct
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
from flowfabric.core.base.time import NO_TIME, Millis, check_moment
from flowfabric.core.execution.attempts import inline_attempts
from flowfabric.core.execution.failures import FailureGroup, FailureGroups
from flowfabric.core.execution.grant import grant_at
from flowfabric.core.execution.grant_record import Grant
from flowfabric.core.execution.history import StepView, describe_steps
from flowfabric.core.execution.model import (
    Active,
    Attempt,
    Ended,
    Failure,
    Flags,
    Lost,
    Outcome,
    Progress,
    Ready,
    Snapshot,
)
from flowfabric.core.execution.outcome import Cleanup
from flowfabric.core.execution.status import (
    Blocking,
    PublicState,
    Vector,
    blocking_detail,
    public_state,
    vector,
)
from flowfabric.core.execution.step import Step
from flowfabric.core.execution.versions import version_of, without_versions
from flowfabric.core.explain.summary import summarise_wait
from flowfabric.core.wait.resume import suspension_of
from flowfabric.engine.context import Service, exactly
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


class LeaseView(Struct, frozen=True):
    lease_id: UUID
    epoch: int
    worker: str
    instance: str
    attempt: int
    expires_at: Millis
    renewed_at: Millis | None


class Description(Struct, frozen=True, kw_only=True):
    """Everything about one execution except its payload and result. `waitpoint` is the first one
    that it waits at while it is suspended."""

    id: ExecutionId
    kind: str
    namespace: str
    lane: str
    flow: UUID | None
    priority: int
    vector: Vector
    state: PublicState
    blocking: Blocking
    blocking_detail: str | None
    attempt: int | None
    attempt_id: UUID | None
    attempts_made: int
    lease: LeaseView | None
    grant: Grant | None = None
    waitpoint: UUID | None = None
    retries: int
    reclaims: int
    replays: int
    epoch: int
    created_at: Millis
    started_at: Millis | None
    ended_at: Millis | None
    deadline_at: Millis | None
    touched_at: Millis
    failure: Failure | None
    cancel_reason: str | None
    cancelled_by: str | None
    cleanup: Cleanup | None = None
    progress: Progress | None
    capabilities: tuple[str, ...]
    version: str | None = None
    forked_from: ExecutionId | None = None
    forked_at: str | None = None
    creator: str | None
    encoding: str | None
    result_encoding: str | None = None
    key: str | None
    tags: Mapping[str, str]


class Info(Struct, frozen=True, kw_only=True):
    """What a list shows of an execution. `waits_for` says in a few words what it waits for, until
    `due_at` if the wait ends by itself; `failure` has no traceback (`describe` has)."""

    id: ExecutionId
    kind: str
    namespace: str
    lane: str
    priority: int
    state: PublicState
    vector: Vector
    created_at: Millis
    started_at: Millis | None
    ended_at: Millis | None
    attempt: int | None
    attempts_made: int
    flow: UUID | None
    blocking_detail: str | None
    version: str | None = None
    waits_for: str | None = None
    due_at: Millis | None = None
    failure: Failure | None = None
    cancel_reason: str | None = None


class ExecutionContext(Struct, frozen=True):
    """What a handler needs to run."""

    kind: str
    payload: bytes
    encoding: str | None
    tags: Mapping[str, str]


class Ending(Struct, frozen=True):
    id: ExecutionId
    outcome: Outcome
    result: bytes | None
    failure: Failure | None
    ended_at: Millis
    reason: str | None = None


class Infos(Struct, frozen=True):
    """A page. There are more, even after a short page, unless `cursor` is None. `unreadable` are
    the uuids of executions on this page that cannot be read; the log says why."""

    items: tuple[Info, ...]
    cursor: str | None
    unreadable: tuple[UUID, ...] = ()


class PartitionPage(Struct, frozen=True):
    """Ids of one partition. There are more, even after a short page, unless `cursor` is None."""

    ids: tuple[ExecutionId, ...]
    cursor: ExecutionId | None


class Failures(Struct, frozen=True):
    """Failed executions by error. Unless `complete`, there are earlier ones that were not read:
    only those that failed after `read_since` were."""

    groups: tuple[FailureGroup, ...]
    complete: bool
    read_since: Millis | None = None


class CleanupRequest(Struct, frozen=True):
    """The owner of an execution must stop and clean up, until `until` at the latest; the execution
    then ends with `outcome`."""

    until: Millis
    outcome: Outcome
    reason: str

    @classmethod
    def of(cls, snapshot: Snapshot) -> "CleanupRequest | None":
        cleanup, life = snapshot.life.cleanup, snapshot.life
        if cleanup is None:
            return None
        return cls(cleanup.until, cleanup.outcome, life.cancel_reason or "")


class Views(Service):
    """`engine.views`"""

    async def describe(self, id: str) -> Description | None:
        seen = self._context.store.hints.count
        detail = await self._detail(id)
        if detail is not None and await self._context.rounds.settle_run(detail.snapshot, seen):
            detail = await self._detail(id)
        return None if detail is None else _description_at(detail, detail.snapshot, self._now())

    async def info(self, id: str) -> Info | None:
        snapshot = await self._load_settled(id)
        if snapshot is None:
            return None
        (info,) = await self._with_failures([snapshot], [_info(snapshot)])
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
        return _ending(key, await self._context.watcher.wait(key, key.uuid, seconds))

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
            _info,
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
        failures = {uuid: _short(attempt.failure) for uuid, attempt in known.items()}
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
            last = (_ended_at(page[-1]) or earliest, page[-1].execution.uuid)
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


def _short(failure: Failure | None) -> Failure | None:
    """The failure without its traceback."""
    return None if failure is None else replace(failure, detail=None)


def _is_of(snapshot: Snapshot, kind: str | None, namespace: str | None) -> bool:
    route = snapshot.execution.route
    return kind in (None, route.kind) and namespace in (None, route.namespace)


def _ended_at(snapshot: Snapshot) -> Millis | None:
    return snapshot.state.ended_at if isinstance(snapshot.state, Ended) else None


def _info(snapshot: Snapshot) -> Info:
    execution, life, shape = snapshot.execution, snapshot.life, vector(snapshot)
    wait = summarise_wait(snapshot)
    return Info(
        id=execution.id,
        kind=execution.kind,
        namespace=execution.route.namespace,
        lane=execution.route.lane,
        priority=snapshot.priority,
        state=shape.public,
        vector=shape,
        created_at=execution.created_at,
        started_at=snapshot.started_at,
        ended_at=_ended_at(snapshot),
        attempt=snapshot.current_attempt,
        attempts_made=snapshot.attempts_made,
        flow=execution.flow_joined,
        blocking_detail=blocking_detail(snapshot),
        version=version_of(execution.route),
        waits_for=None if wait is None else wait.text,
        due_at=None if wait is None else wait.due_at,
        failure=_short(life.failure),
        cancel_reason=life.cancel_reason,
    )


def _description_at(detail: Detail, snapshot: Snapshot, now: Millis) -> Description:
    """As it is seen at this moment."""
    seen = _description(detail, snapshot)
    return replace(
        seen,
        grant=grant_at(snapshot, now),
        waitpoint=_current_waitpoint(snapshot),
        touched_at=max(seen.touched_at, min(_admitted_at(snapshot), now)),
    )


def _description(detail: Detail, snapshot: Snapshot) -> Description:
    execution, life, shape = snapshot.execution, snapshot.life, vector(snapshot)
    return Description(
        id=execution.id,
        kind=execution.kind,
        namespace=execution.route.namespace,
        lane=execution.route.lane,
        flow=execution.flow_joined,
        priority=snapshot.priority,
        vector=shape,
        state=shape.public,
        blocking=shape.blocking,
        blocking_detail=blocking_detail(snapshot),
        attempt=snapshot.current_attempt,
        attempt_id=snapshot.attempt_id,
        attempts_made=snapshot.attempts_made,
        lease=_lease_view(snapshot),
        retries=life.retries,
        reclaims=max(0, snapshot.reclaims),
        replays=life.replays,
        epoch=snapshot.head.epoch,
        created_at=execution.created_at,
        started_at=snapshot.started_at,
        ended_at=_ended_at(snapshot),
        deadline_at=snapshot.deadline_at,
        touched_at=max(detail.touched_at, life.touched_at or NO_TIME),
        failure=life.failure,
        cancel_reason=life.cancel_reason,
        cancelled_by=life.cancelled_by,
        cleanup=None if isinstance(snapshot.state, Ended) else life.cleanup,
        progress=_progress(detail, snapshot.current_attempt),
        capabilities=without_versions(execution.route.capabilities),
        version=version_of(execution.route),
        forked_from=_source_of(execution.facts.forked_from),
        forked_at=execution.facts.forked_at,
        creator=execution.facts.creator,
        encoding=execution.facts.encoding,
        result_encoding=life.result_encoding,
        key=execution.facts.key,
        tags=dict(sorted(detail.tags.items())),
    )


def _progress(detail: Detail, attempt: int | None) -> Progress | None:
    return None if attempt is None else detail.progress.get(attempt)


def _current_waitpoint(snapshot: Snapshot) -> UUID | None:
    suspension = suspension_of(snapshot)
    bound = () if suspension is None else suspension.arms[0].bound
    return bound[0].id if bound else None


def _admitted_at(snapshot: Snapshot) -> Millis:
    """When its limits let it in, which no event shows. The moments of many that come at once run a
    little ahead of the clock, so that each has its own."""
    limited = snapshot.head.flags & Flags.LIMITS and isinstance(snapshot.state, Ready)
    return snapshot.admitted_at if limited else NO_TIME


def _source_of(id: str | None) -> ExecutionId | None:
    return None if id is None else ExecutionId(id)


def _lease_view(snapshot: Snapshot) -> LeaseView | None:
    match snapshot.state:
        case Active(lease=lease):
            return LeaseView(
                lease_id=lease.id,
                epoch=snapshot.head.epoch,
                worker=lease.worker.id,
                instance=lease.worker.instance,
                attempt=lease.attempt,
                expires_at=lease.expires_at,
                renewed_at=lease.renewed_at,
            )
        case Lost() | _:
            return None


def _ending(id: ExecutionId, snapshot: Snapshot) -> Ending:
    ended = snapshot.state
    if not isinstance(ended, Ended):
        raise Invalid(f"{snapshot.run} has not ended")
    return Ending(
        id=id,
        outcome=ended.outcome,
        result=ended.result,
        failure=snapshot.life.failure,
        ended_at=ended.ended_at,
        reason=snapshot.life.cancel_reason,
    )
