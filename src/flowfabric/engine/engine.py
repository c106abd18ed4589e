"""The engine: every operation of the product as a typed method of its noun.

Worker, server and command line use nothing else. The rules are in `core`, the rows in `store`;
what is here is batching, the sweep, and what happens after a commit.
"""

import random
import secrets

from flowfabric.core.time import Millis
from flowfabric.engine.after import After
from flowfabric.engine.arrivals import Arrivals
from flowfabric.engine.attempts import Attempts
from flowfabric.engine.base import Options, Parts
from flowfabric.engine.budgets import Budgets
from flowfabric.engine.catalogue import Catalogue
from flowfabric.engine.claims import Claims
from flowfabric.engine.decisions import Decisions
from flowfabric.engine.doorkeeper import Doorkeeper
from flowfabric.engine.events import Events
from flowfabric.engine.executions import Executions
from flowfabric.engine.explain import Explain
from flowfabric.engine.flow_views import FlowViews
from flowfabric.engine.flows import Flows
from flowfabric.engine.grants import Grants
from flowfabric.engine.ids import Ids
from flowfabric.engine.keys import Keys, Ring
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.limits import LimitSweep
from flowfabric.engine.quotas import Quotas
from flowfabric.engine.releases import Releases
from flowfabric.engine.schedules import Schedules
from flowfabric.engine.settler import Settler
from flowfabric.engine.signals import Signals
from flowfabric.engine.suspensions import Suspensions
from flowfabric.engine.sweep import Sweep
from flowfabric.engine.views import Views
from flowfabric.engine.waiting import Waiting
from flowfabric.engine.workers import Workers
from flowfabric.store.contract import Store


class Engine:
    """One engine per process and store. Open it with `Engine.open`, close it with `close`."""

    def __init__(self, parts: Parts) -> None:
        self.store = parts.store
        self.identity = parts.identity
        self._parts = parts
        self.arrivals = parts.arrivals
        self.executions = Executions(parts)
        self.lanes = Lanes(parts)
        self._releases = Releases(parts)
        self._door = Doorkeeper(parts, self._releases)
        self.claims = Claims(parts, self.lanes, self._door)
        self.attempts = Attempts(parts, self.claims)
        self.suspensions = Suspensions(parts, self.attempts)
        self.signals = Signals(parts)
        self.keys = Keys(parts.ring)
        self.grants = Grants(parts, self._door)
        self.views = Views(parts)
        self.events = Events(parts)
        self.workers = Workers(parts)
        self.schedules = Schedules(parts, self.executions)
        self._settler = Settler(parts, self.signals)
        self.flows = Flows(parts, self.executions, self._settler)
        self.flow_views = FlowViews(parts, self._settler.work)
        self.quotas = Quotas(parts, self._releases)
        self.budgets = Budgets(parts, self.attempts, self.flows, self._door)
        self.explain = Explain(parts, self._door)
        self._limits = LimitSweep(parts, self._releases, self._door)
        self.sweep = Sweep(
            parts,
            self.schedules,
            self._settler,
            self._limits,
            self.workers,
            holder=secrets.token_hex(8),
        )

    @classmethod
    async def open(
        cls,
        store: Store,
        *,
        options: Options | None = None,
        chance: random.Random | None = None,
        migrate: bool = True,
    ) -> "Engine":
        """An engine on a store, its schema brought up to date."""
        if migrate:
            await store.migrate()
        await store.keep_time()
        chosen = options or Options()
        catalogue = Catalogue(store)
        arrivals = Arrivals(store, catalogue)
        waiting = Waiting(store, arrivals)
        after = After(store, waiting)
        arrivals.admitted = after.created
        arrivals.rank_step = chosen.rank_step
        parts = Parts(
            store=store,
            arrivals=arrivals,
            decisions=Decisions(store, arrivals, after),
            waiting=waiting,
            after=after,
            ids=Ids(),
            options=chosen,
            secret=await store.secret(),
            identity=await store.identity(),
            chance=chance or random.SystemRandom(),
            ring=Ring(store, chosen.waitpoint_secret, make=chosen.make_keys),
            catalogue=catalogue,
        )
        return cls(parts)

    def now(self) -> Millis:
        """The store's clock: the only time that decides anything."""
        return self.store.clock.now()

    async def close(self) -> None:
        """Stops the sweep, finishes what was asked for, lets the store go."""
        await self.sweep.stop()
        await self.executions.drain()
        await self.attempts.drain()
        await self.claims.drain()
        await self._settler.drain()
        await self._limits.drain()
        await self._parts.decisions.drain()
        await self._parts.waiting.close()
        await self.flow_views.close()
        await self.store.close()
