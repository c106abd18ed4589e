"""The store as a whole: its sides put together, opened and closed."""

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.store.clock import Clock, OffsetClock, StoreClock
from flowfabric.store.postgres.address import read_address
from flowfabric.store.postgres.apply import Applying
from flowfabric.store.postgres.budgets import Budgeting
from flowfabric.store.postgres.claim import Claiming
from flowfabric.store.postgres.clock import SAMPLES, ClockKeeper
from flowfabric.store.postgres.dialer import Dialer
from flowfabric.store.postgres.due import Sweeping
from flowfabric.store.postgres.events import Telling
from flowfabric.store.postgres.explain import ExplainReads
from flowfabric.store.postgres.faults import translate
from flowfabric.store.postgres.flows import Flowing
from flowfabric.store.postgres.lanes import LaneRows
from flowfabric.store.postgres.lease import Owning
from flowfabric.store.postgres.limits import Limiting
from flowfabric.store.postgres.lists import Listing
from flowfabric.store.postgres.reads import Reading
from flowfabric.store.postgres.records import PostgresRecords
from flowfabric.store.postgres.schema import Keeping, check_schema
from flowfabric.store.postgres.session import Session
from flowfabric.store.postgres.submit import Submitting
from flowfabric.store.postgres.waits import Remembering
from flowfabric.store.postgres.wires import SIZE, Wires
from flowfabric.store.postgres.workers import WorkerRows
from flowfabric.store.sql import load_queries


class PostgresStore:
    """Implements `store.contract.Store`. Each side of it is a class of its own; this one lends
    them its name."""

    name = "postgres"

    def __init__(self, session: Session, keeper: ClockKeeper | None) -> None:
        self.session = session
        self.clock = session.clock
        self.records = PostgresRecords(session)
        self._keeper = keeper

        keeping = Keeping(session)
        self.migrate = keeping.migrate
        self.secret = keeping.secret
        self.identity = keeping.identity
        self.keep_time = keeping.keep_time
        self.schema_text = keeping.schema_text

        submitting = Submitting(session)
        self.submit = submitting.submit
        self.arrivals, self.admit = submitting.arrivals, submitting.admit
        claiming = Claiming(session)
        self.claim, self.suspects_seen = claiming.claim, claiming.suspects_seen
        owning = Owning(session)
        self.renew, self.end, self.note = owning.renew, owning.end, owning.note
        self.apply = Applying(session).apply

        sweeping = Sweeping(session)
        self.due, self.next_due, self.trim = sweeping.due, sweeping.next_due, sweeping.trim
        self.set_aside = sweeping.set_aside
        self.glance, self.drop_duty = sweeping.glance, sweeping.drop_duty
        self._look(session)
        self._limit(session)

    def _look(self, session: Session) -> None:
        registry = WorkerRows(session)
        self.presence, self.presences = registry.presence, registry.presences
        self.put_presence, self.drop_presence = registry.put_presence, registry.drop_presence
        self.marked_presences, self.drop_lapsed_presences = (
            registry.marked_presences,
            registry.drop_lapsed_presences,
        )
        self.held_leases, self.held_counts = registry.held_leases, registry.held_counts

        reading = Reading(session)
        self.load, self.detail = reading.load, reading.detail
        self.ended = reading.ended
        self.attempts, self.steps = reading.attempts, reading.steps
        self.set_tags = reading.set_tags

        remembering = Remembering(session)
        self.load_needs, self.signals = remembering.load_needs, remembering.signals
        self.suspended = remembering.suspended
        self.keyring, self.put_keyring = remembering.keyring, remembering.put_keyring

        flowing = Flowing(session)
        self.flows, self.flow_page = flowing.flows, flowing.flow_page
        self.apply_flow, self.edges = flowing.apply_flow, flowing.edges
        self.members, self.member_counts = flowing.members, flowing.member_counts
        self.chores, self.owing = flowing.chores, flowing.owing
        self.count_flows, self.unsettled = flowing.count_flows, flowing.unsettled

        listing = Listing(session)
        self.page, self.counts, self.candidates = listing.page, listing.counts, listing.candidates
        self.expired_leases, self.leases_of = listing.expired_leases, listing.leases_of

        telling = Telling(session)
        self.events, self.last_event = telling.events, telling.last_event

    def _limit(self, session: Session) -> None:
        limiting = Limiting(session)
        self.quotas, self.quota_page = limiting.quotas, limiting.quota_page
        self.put_quota, self.drop_quota = limiting.put_quota, limiting.drop_quota
        self.put_queues, self.standing = limiting.put_queues, limiting.standing
        self.release, self.crowds = limiting.release, limiting.crowds
        self.waiting_in, self.queue_counts = limiting.waiting_in, limiting.queue_counts
        self.ahead_of, self.trim_queues = limiting.ahead_of, limiting.trim_queues
        self.wait_counts, self.take_starts_back = limiting.wait_counts, limiting.take_starts_back

        budgeting = Budgeting(session)
        self.books, self.post = budgeting.books, budgeting.post
        self.budget_page, self.attached = budgeting.budget_page, budgeting.attached
        self.due_budgets = budgeting.due_budgets
        self.next_reset, self.trim_charges = budgeting.next_reset, budgeting.trim_charges
        self.stale_reservations = budgeting.stale_reservations

        lanes = LaneRows(session)
        self.lanes, self.lane_settings = lanes.lanes, lanes.lane_settings
        self.put_lane = lanes.put_lane

        whereabouts = ExplainReads(session)
        self.holding, self.running_in = whereabouts.holding, whereabouts.running_in
        self.ready_routes, self.routes = whereabouts.ready_routes, whereabouts.routes
        self.slots_in = whereabouts.slots_in

    async def close(self) -> None:
        if self._keeper is not None:
            await self._keeper.close()
        await self.session.wakes.close()
        await self.session.wires.close()

    def hint(self, lanes: frozenset[str]) -> None:
        self.session.wakes.hint()

    def wake(self) -> None:
        self.session.wakes.wake()

    def hints(self) -> int:
        return self.session.wakes.count

    async def wait_hint(self, timeout: float, since: int | None = None) -> bool:
        return await self.session.wakes.wait(timeout, since)


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
    session = Session(wires, queries, StoreClock(clock), schema)
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
