"""The Postgres store: one schema of a database, every operation a function of a session."""

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.store.clock import Clock, OffsetClock, StoreClock
from flowfabric.store.postgres import apply as changes
from flowfabric.store.postgres import budgets, explain, limits, lists, reads, schema
from flowfabric.store.postgres import claim as claims
from flowfabric.store.postgres import due as upkeep
from flowfabric.store.postgres import events as event_reads
from flowfabric.store.postgres import flows as flow_reads
from flowfabric.store.postgres import lease as leases
from flowfabric.store.postgres import records as record_rows
from flowfabric.store.postgres import streams as stream_rows
from flowfabric.store.postgres import submit as submissions
from flowfabric.store.postgres import waits as wait_rows
from flowfabric.store.postgres import workers as worker_rows
from flowfabric.store.postgres.address import read_address
from flowfabric.store.postgres.clock import SAMPLES, ClockKeeper
from flowfabric.store.postgres.dialer import Dialer
from flowfabric.store.postgres.faults import translate
from flowfabric.store.postgres.schema import check_schema
from flowfabric.store.postgres.session import PostgresSession
from flowfabric.store.postgres.wires import SIZE, Wires
from flowfabric.store.sql import load_queries

P = ParamSpec("P")
T = TypeVar("T")

_Operation = Callable[Concatenate[PostgresSession, P], Coroutine[Any, Any, T]]
_Method = Callable[Concatenate["_Working", P], Coroutine[Any, Any, T]]


class _Working(Protocol):
    """What has operations: it has a session for them."""

    session: PostgresSession


def _method(operation: "_Operation[P, T]") -> "_Method[P, T]":
    """The method that gives an operation the session of its store."""

    async def method(self: _Working, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await operation(self.session, *args, **kwargs)

    return method


class PostgresRecords:
    """Implements `store.contract.RecordStore`."""

    def __init__(self, session: PostgresSession) -> None:
        self.session = session

    get = _method(record_rows.get)
    page = _method(record_rows.page)
    put = _method(record_rows.put)
    drop = _method(record_rows.drop)
    due = _method(record_rows.due)
    next_due = _method(record_rows.next_due)
    expire = _method(record_rows.expire)


class PostgresStore:
    """A store in one schema of a database. Made by `open_postgres`; methods: the contract."""

    name = "postgres"
    is_server = True

    def __init__(self, session: PostgresSession, keeper: ClockKeeper | None) -> None:
        self.session = session
        self.clock = session.clock
        self.hints = session.hints
        self.records = PostgresRecords(session)
        self._keeper = keeper

    migrate = _method(schema.migrate)
    identity = _method(schema.identity)
    keep_time = _method(schema.keep_time)
    schema_text = _method(schema.schema_text)

    submit = _method(submissions.submit)
    submit_and_admit = _method(submissions.submit_and_admit)
    known = _method(submissions.known)
    inbox = _method(submissions.inbox)
    admit = _method(submissions.admit)
    claim = _method(claims.claim)
    claim_all = _method(claims.claim_all)
    renew = _method(leases.renew)
    end = _method(leases.end)
    end_and_claim = _method(leases.end)
    write_progress = _method(leases.write_progress)
    apply = _method(changes.apply)

    held_leases = _method(worker_rows.held_leases)
    held_counts = _method(worker_rows.held_counts)

    due = _method(upkeep.due)
    set_aside = _method(upkeep.set_aside)
    next_due = _method(upkeep.next_due)
    trim = _method(upkeep.trim)
    glance = _method(upkeep.glance)
    drop_duty = _method(upkeep.drop_duty)

    write_frames = _method(stream_rows.write_frames)
    streams = _method(stream_rows.streams)
    read_frames = _method(stream_rows.read_frames)
    stream_marks = _method(stream_rows.stream_marks)
    expire_frames = _method(stream_rows.expire_frames)

    load_needs = _method(wait_rows.load_needs)
    signals = _method(wait_rows.signals)

    flow_page = _method(flow_reads.flow_page)
    apply_flow = _method(flow_reads.apply_flow)
    lay_flows = _method(flow_reads.lay_flows)
    edges = _method(flow_reads.edges)
    owing = _method(flow_reads.owing)
    unsatisfied = _method(flow_reads.unsatisfied)
    unsettled = _method(flow_reads.unsettled)
    count_flows = _method(flow_reads.count_flows)
    owed_flows = _method(flow_reads.owed_flows)

    take_starts_back = _method(limits.take_starts_back)
    put_queues = _method(limits.put_queues)
    quota_view = _method(limits.quota_view)
    release = _method(limits.release)
    serve = _method(limits.serve)
    crowds = _method(limits.crowds)
    queue_counts = _method(limits.queue_counts)
    ahead_of = _method(limits.ahead_of)
    trim_limits = _method(limits.trim_limits)

    ledger = _method(budgets.ledger)
    post = _method(budgets.post)
    attached = _method(budgets.attached)

    executions_in = _method(explain.executions_in)
    lane_counts = _method(explain.lane_counts)
    depths = _method(explain.depths)
    routes = _method(explain.routes)

    load = _method(reads.load)
    ended = _method(reads.ended)
    detail = _method(reads.detail)
    tags = _method(reads.tags)
    attempts = _method(reads.attempts)
    attempts_at = _method(reads.attempts_at)
    steps = _method(reads.steps)
    page = _method(lists.page)
    snapshots = _method(lists.snapshots)
    expired_leases = _method(lists.expired_leases)
    counts = _method(lists.counts)
    set_tags = _method(reads.set_tags)
    events = _method(event_reads.events)
    forgotten_event = _method(event_reads.forgotten_event)

    async def close(self) -> None:
        if self._keeper is not None:
            await self._keeper.close()
        await self.session.notices.close()
        await self.session.wires.close()

    @property
    def suspects_seen(self) -> bool:
        return self.session.learned.suspects

    @property
    def lanes_seen(self) -> bool:
        return bool(self.session.learned.special)


async def open_postgres(
    url: str,
    *,
    clock: Clock | None = None,
    schema: str = "flowfabric",
    connections: int = SIZE,
) -> PostgresStore:
    """The store in the database at `url`. Its clock is the database's unless one is given. It has
    at most so many `connections`.

    Raises Unavailable, naming host and database, when there is no such database to talk to.
    """
    address = read_address(url)
    queries = load_queries("postgres", check_schema(schema))
    wires = Wires(Dialer(address, queries), connections)
    keeper = None
    if clock is None:
        clock = OffsetClock()
        keeper = ClockKeeper(clock, queries["moment"])
    try:
        await _greet(wires, keeper)
    except FlowFabricError:
        raise
    except Exception as error:
        raise translate(error, address) from None
    session = PostgresSession(wires, queries, StoreClock(clock), schema)
    if keeper is not None:
        keeper.start(session.load)
    return PostgresStore(session, keeper)


async def _greet(wires: Wires, keeper: ClockKeeper | None) -> None:
    """Says hello once: the database is there, and its clock is known."""
    connection = await wires.dialer.look()
    try:
        if keeper is not None:
            for _ in range(SAMPLES):
                await keeper.sample(connection)
        await wires.adopt(connection)
    except BaseException:
        connection.terminate()
        raise
