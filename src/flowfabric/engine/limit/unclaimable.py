"""The routes from which no worker can claim now, and the slots that their executions give back."""

import asyncio
from collections.abc import Iterable

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Route, Snapshot
from flowfabric.core.execution.registry import Presence
from flowfabric.core.limit.budget_gate import give_slot_back
from flowfabric.core.limit.lane import Lane
from flowfabric.core.limit.unclaimable import (
    NeededSlot,
    Unclaimable,
    in_the_way,
    needed_slots,
    unclaimable,
    yields_slot,
)
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.context import EngineContext, Service
from flowfabric.store.contract import Store
from flowfabric.store.queries import FIRST_PLACE, QuotaViewRequest, ReadySlots
from flowfabric.store.readable import load_readable
from flowfabric.store.rows.record import LANES, PRESENCES

REFRESH = 1.0
"""Seconds until a lane that another process closed, or a worker that came or went, is seen."""
PAGE = 500
LINES = 64
MAX_WORKERS = 5000


class ClosedRoutes(Service):
    """Reads lanes and workers, and makes executions give back slots that they cannot use. `known`
    is the result of the last read."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self.known = Unclaimable()
        self._routes: set[Route] = set()
        self._lanes: dict[str, Lane] = {}
        self._workers: list[Presence] = []
        self._refreshed_at: float | None = None
        self._looked_through = FIRST_PLACE

    async def refresh(self, *, now_and_then: bool = False) -> None:
        """Reads lanes and workers; with `now_and_then`, only if the last read is older than a
        second."""
        at = asyncio.get_running_loop().time()
        last = self._refreshed_at
        if now_and_then and last is not None and at - last < REFRESH:
            return
        self._refreshed_at = at
        store, now = self._context.store, self._now()
        self._lanes = {lane.name: lane for lane in await store.records.page(LANES)}
        self._workers = await live_workers(store, now)
        self._routes = set(await store.routes())
        self.known = unclaimable(self._routes, self._lanes, self._workers, now)

    def meet(self, routes: Iterable[Route]) -> None:
        """Notes the routes of executions, which may be newer than the last read."""
        met: Route | None = None
        for route in routes:
            if route is met:  # most runs share theirs, and to compare two takes a look at all parts
                continue
            met = route
            if route not in self._routes and self._refreshed_at is not None:
                self._routes.add(route)
                self.known += unclaimable((route,), self._lanes, self._workers, self._now())

    async def give_slots_back(self) -> None:
        """Executions that no worker can take give their slots to waiting ones that can be taken; a
        page of them is looked at each time."""
        closed = self.known
        if not closed.routes:
            return
        store, now = self._context.store, self._now()
        page = ReadySlots(closed.routes, self._looked_through)
        holding = await store.executions_in(page, PAGE)
        found = await load_readable(store.load, holding)
        self._looked_through = FIRST_PLACE
        if len(holding) == PAGE:
            places = [(each.head.rank, each.execution.uuid) for each in found.values()]
            self._looked_through = max(places, default=FIRST_PLACE)
        idle = [
            snapshot
            for snapshot in found.values()
            if yields_slot(snapshot, now, self._lane(snapshot), closed)
        ]
        wanted = await self._wanted(idle, closed, now)
        await self._context.decisions.decide_all(
            [Decision(each.execution.uuid, give_slot_back, each) for each in wanted]
        )

    async def _wanted(
        self, idle: list[Snapshot], closed: Unclaimable, now: Millis
    ) -> list[Snapshot]:
        """The executions whose slots others wait for."""
        needed: set[NeededSlot] = set()
        lines: dict[str, set[int]] = {}
        for snapshot in idle:
            for use in snapshot.execution.uses:
                lines.setdefault(use.quota, set()).add(snapshot.execution.rules.queue)
        for quota, own in lines.items():
            # The first lines, and their own ones: those may be behind many that wait for others.
            for among in (None, tuple(own)):
                most = LINES if among is None else len(among)
                ask = QuotaViewRequest(quota, among, most, 1, now, closed.closed, closed.draining)
                needed |= needed_slots(await self._context.store.quota_view(ask), now)
        return [snapshot for snapshot in idle if in_the_way(snapshot.execution.uses, needed)]

    def _lane(self, snapshot: Snapshot) -> Lane:
        name = snapshot.execution.route.lane
        return self._lanes.get(name) or Lane(name=name)


async def live_workers(store: Store, now: Millis) -> list[Presence]:
    """The live workers of every namespace, because a worker may serve all of them."""
    found: list[Presence] = []
    after = ("", "")
    while len(found) < MAX_WORKERS:
        page = await store.records.page(PRESENCES, after, PAGE)
        found += [presence for presence in page if presence.alive(now)]
        if len(page) < PAGE:
            break
        after = page[-1].key
    return found
