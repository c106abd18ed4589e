"""The SQLite store: one file, many processes, every operation a function of a session."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast
from uuid import UUID

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import FOREVER
from flowfabric.core.execution.sweep_filter import EVERY_RUN, SweepFilter
from flowfabric.store.clock import Clock, StoreClock, SystemClock, keep_time
from flowfabric.store.foreign import sqlite_identity
from flowfabric.store.queries import StoreIdentity
from flowfabric.store.rows.flow import Turn
from flowfabric.store.sqlite import apply as changes
from flowfabric.store.sqlite import budgets, explain, limits, lists, reads, schema
from flowfabric.store.sqlite import claim as claims
from flowfabric.store.sqlite import due as upkeep
from flowfabric.store.sqlite import events as event_reads
from flowfabric.store.sqlite import flows as flow_reads
from flowfabric.store.sqlite import records as record_rows
from flowfabric.store.sqlite import streams as stream_rows
from flowfabric.store.sqlite import submit as submissions
from flowfabric.store.sqlite import waits as wait_rows
from flowfabric.store.sqlite import workers as worker_rows
from flowfabric.store.sqlite.connection import MEMORY, check_library, check_path
from flowfabric.store.sqlite.runner import Runner
from flowfabric.store.sqlite.runners import Runners, open_runners
from flowfabric.store.sqlite.session import SqliteSession

P = ParamSpec("P")
T = TypeVar("T")

_Operation = Callable[Concatenate[SqliteSession, P], T]
_Method = Callable[Concatenate["_Working", P], Coroutine[Any, Any, T]]


class _Working(Protocol):
    """What has operations: a writer and a reader."""

    writer: Runner
    reader: Runner


def _writing(operation: "_Operation[P, T]", *, urgent: bool = False) -> "_Method[P, T]":
    """The method that has the writer run an operation and waits until it is durable."""

    async def method(self: _Working, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.writer.run(_bound(operation, *args, **kwargs), urgent=urgent)

    return method


def _batched(operation: "_Operation[P, T]", *, urgent: bool = False) -> "_Method[P, T]":
    """As `_writing` for an operation on many items, its first argument: when one of them cannot
    be stored, the others are, and the error is raised afterwards."""
    together = _writing(operation, urgent=urgent)

    async def method(self: _Working, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await together(self, *args, **kwargs)
        except Invalid:
            for half in _halves(args):
                with suppress(Invalid):
                    await cast(Callable[..., Coroutine[Any, Any, T]], method)(self, *half, **kwargs)
            raise

    return method


def _halves(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The arguments with the first half of the items, and with the second; none for one item."""
    items, *rest = args
    middle = len(items) // 2
    return [(half, *rest) for half in (items[:middle], items[middle:])] if middle else []


def _reading(operation: "_Operation[P, T]") -> "_Method[P, T]":
    async def method(self: _Working, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.reader.run(_bound(operation, *args, **kwargs))

    return method


def _bound(
    operation: "_Operation[P, T]", *args: P.args, **kwargs: P.kwargs
) -> Callable[[SqliteSession], T]:
    return lambda session: operation(session, *args, **kwargs)


class SqliteRecords:
    """Implements `store.contract.RecordStore`."""

    def __init__(self, runners: Runners) -> None:
        self.writer = runners.writer
        self.reader = runners.reader

    get = _reading(record_rows.get)
    page = _reading(record_rows.page)
    put = _writing(record_rows.put)
    drop = _writing(record_rows.drop)
    due = _reading(record_rows.due)
    next_due = _reading(record_rows.next_due)
    expire = _writing(record_rows.expire)


class SqliteStore:
    """A store in one file, or in memory. Made by `open_sqlite`; see the contract for methods."""

    def __init__(self, path: str, clock: StoreClock, runners: Runners) -> None:
        self.name = "sqlite"
        self.is_server = False
        self.path = path
        self.clock = clock
        self.writer = runners.writer
        self.reader = runners.reader
        self.records = SqliteRecords(runners)
        self.hints = runners.hints
        self._runners = runners
        self._turn = Turn()

    migrate = _writing(schema.migrate)
    _secret = _writing(upkeep.secret)
    _correction = _reading(upkeep.correction)
    _put_correction = _writing(upkeep.put_correction)

    submit = _batched(submissions.submit)
    submit_and_admit = _batched(submissions.submit_and_admit)
    known = _reading(submissions.known)
    inbox = _reading(submissions.inbox)
    admit = _batched(submissions.admit)
    claim = _writing(claims.claim)
    claim_all = _writing(claims.claim_all)
    renew = _batched(claims.renew, urgent=True)
    end = _batched(changes.end)
    end_and_claim = _batched(changes.end)
    write_progress = _batched(claims.write_progress)
    apply = _batched(changes.apply)

    held_leases = _reading(worker_rows.held_leases)
    held_counts = _reading(worker_rows.held_counts)

    due = _reading(upkeep.due)
    set_aside = _batched(upkeep.set_aside)
    next_due = _reading(upkeep.next_due)
    _trim = _writing(upkeep.trim)
    glance = _writing(upkeep.glance)
    drop_duty = _writing(upkeep.drop_duty)

    write_frames = _batched(stream_rows.write_frames)
    streams = _reading(stream_rows.streams)
    read_frames = _reading(stream_rows.read_frames)
    stream_marks = _reading(stream_rows.stream_marks)
    expire_frames = _writing(stream_rows.expire_frames)

    load_needs = _reading(wait_rows.load_needs)
    signals = _reading(wait_rows.signals)

    flow_page = _reading(flow_reads.flow_page)
    apply_flow = _writing(flow_reads.apply_flow)
    lay_flows = _writing(flow_reads.lay_flows)
    edges = _reading(flow_reads.edges)
    owing = _reading(flow_reads.owing)
    unsatisfied = _reading(flow_reads.unsatisfied)
    unsettled = _reading(flow_reads.unsettled)
    count_flows = _writing(flow_reads.count_flows)
    _owed_flows_after = _reading(flow_reads.owed_flows)

    take_starts_back = _writing(limits.take_starts_back)
    put_queues = _writing(limits.put_queues)
    quota_view = _reading(limits.quota_view)
    release = _writing(limits.release)
    serve = _writing(limits.serve)
    crowds = _reading(limits.crowds)
    queue_counts = _reading(limits.queue_counts)
    ahead_of = _reading(limits.ahead_of)
    _idle_queues = _reading(limits.idle_queues)
    _trim_limits = _writing(limits.trim_limits)

    ledger = _reading(budgets.ledger)
    post = _writing(budgets.post)
    attached = _reading(budgets.attached)

    executions_in = _reading(explain.executions_in)
    lane_counts = _reading(explain.lane_counts)
    depths = _reading(explain.depths)
    routes = _reading(explain.routes)

    load = _reading(reads.load)
    ended = _reading(reads.ended)
    detail = _reading(reads.detail)
    tags = _reading(reads.tags)
    attempts = _reading(reads.attempts)
    attempts_at = _reading(reads.attempts_at)
    steps = _reading(reads.steps)
    page = _reading(lists.page)
    snapshots = _reading(lists.snapshots)
    expired_leases = _reading(reads.expired_leases)
    counts = _reading(lists.counts)
    set_tags = _writing(reads.set_tags)
    events = _reading(event_reads.events)
    forgotten_event = _reading(event_reads.forgotten_event)

    async def keep_time(self) -> None:
        if self.clock.wants_keeping:
            await keep_time(self.clock, self._correction, self._put_correction)

    async def identity(self) -> StoreIdentity:
        name = f"sqlite {MEMORY} {id(self)}" if self.path == MEMORY else sqlite_identity(self.path)
        return StoreIdentity(name, await self._secret())

    async def owed_flows(self, limit: int) -> list[UUID]:
        return await self._turn.take(self._owed_flows_after, limit)

    async def trim(
        self,
        ended_before: Millis,
        now: Millis,
        limit: int,
        unread_from: Millis = FOREVER,
        wanted: SweepFilter = EVERY_RUN,
    ) -> int:
        trimmed = await self._trim(ended_before, now, limit, unread_from, wanted)
        if trimmed < limit:
            self.writer.post(upkeep.shrink)  # the last page: what is empty need not stay large
        return trimmed

    async def trim_limits(self, now: Millis, forgotten: Millis, limit: int) -> int:
        return await self._trim_limits(await self._idle_queues(limit), now, forgotten, limit)

    @property
    def suspects_seen(self) -> bool:
        return self.writer.session.registry.suspects_seen

    @property
    def lanes_seen(self) -> bool:
        return self.writer.session.registry.lanes_seen

    async def close(self) -> None:
        await self._runners.close()


async def open_sqlite(
    path: str, *, clock: Clock | None = None, inline: bool = False, synchronous: str = "FULL"
) -> SqliteStore:
    """Opens a database file, or makes it; `:memory:` is one that ends with the store.

    Call `migrate` before anything else. With `inline` there are no threads: every call does its
    work at once in its caller. `synchronous="NORMAL"` may lose the last commits when the machine
    loses power. Raises `Unavailable` (or one of its kinds) when no database can be used there.
    """
    check_library()
    path = check_path(path)
    if inline:
        runners = open_runners(path, synchronous)
    else:
        runners = await asyncio.to_thread(open_runners, path, synchronous)
        runners.start()
    return SqliteStore(path, StoreClock(clock or SystemClock()), runners)
