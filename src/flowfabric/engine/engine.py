"""The engine: every operation of the product as a typed method of its noun.

Worker, server and command line use nothing else. The rules are in `core`, the rows in `store`;
what is here is batching, the sweep, and what happens after a commit.
"""

import random
import secrets

from flowfabric.core.base.time import Millis
from flowfabric.engine.commit.decide import Decisions
from flowfabric.engine.commit.ids import Ids
from flowfabric.engine.commit.post_commit import PostCommit
from flowfabric.engine.commit.watcher import Waiting
from flowfabric.engine.context import EngineContext, Options
from flowfabric.engine.execution.attempts import Attempts
from flowfabric.engine.execution.claims import Claims
from flowfabric.engine.execution.events import Events
from flowfabric.engine.execution.executions import Executions
from flowfabric.engine.execution.grants import Grants
from flowfabric.engine.execution.inbox import Inbox
from flowfabric.engine.execution.schedules import Schedules
from flowfabric.engine.execution.views import Views
from flowfabric.engine.explain import Explain
from flowfabric.engine.flow.dispatch import FlowDispatcher
from flowfabric.engine.flow.flows import Flows
from flowfabric.engine.flow.views import FlowViews
from flowfabric.engine.limit.budget_gate import BudgetGate
from flowfabric.engine.limit.budgets import Budgets
from flowfabric.engine.limit.known import KnownLimits
from flowfabric.engine.limit.lanes import Lanes
from flowfabric.engine.limit.quotas import Quotas
from flowfabric.engine.limit.releases import Releases
from flowfabric.engine.limit.sweep import LimitSweep
from flowfabric.engine.sweep import Sweep
from flowfabric.engine.wait.keys import Keys, Ring
from flowfabric.engine.wait.signals import Signals
from flowfabric.engine.wait.suspensions import Suspensions
from flowfabric.engine.workers import Workers
from flowfabric.store.contract import Store


class Engine:
    """One engine per process and store. Open it with `Engine.open`, close it with `close`."""

    def __init__(self, parts: EngineContext) -> None:
        self.store = parts.store
        self.identity = parts.identity
        self._context = parts
        self.arrivals = parts.arrivals
        self.executions = Executions(parts)
        self.lanes = Lanes(parts)
        self._releases = Releases(parts)
        self._budget_gate = BudgetGate(parts, self._releases)
        self.claims = Claims(parts, self.lanes, self._budget_gate)
        self.attempts = Attempts(parts, self.claims)
        self.suspensions = Suspensions(parts, self.attempts)
        self.signals = Signals(parts)
        self.keys = Keys(parts.ring)
        self.grants = Grants(parts, self._budget_gate)
        self.views = Views(parts)
        self.events = Events(parts)
        self.workers = Workers(parts)
        self.schedules = Schedules(parts, self.executions)
        self._dispatcher = FlowDispatcher(parts, self.signals)
        self.flows = Flows(parts, self.executions, self._dispatcher)
        self.flow_views = FlowViews(parts, self._dispatcher.work)
        self.quotas = Quotas(parts, self._releases)
        self.budgets = Budgets(parts, self.attempts, self.flows, self._budget_gate)
        self.explain = Explain(parts, self._budget_gate)
        self._limits = LimitSweep(parts, self._releases, self._budget_gate)
        self.sweep = Sweep(
            parts,
            self.schedules,
            self._dispatcher,
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
        jitter: random.Random | None = None,
        migrate: bool = True,
    ) -> "Engine":
        """An engine on a store, its schema brought up to date."""
        if migrate:
            await store.migrate()
        await store.keep_time()
        chosen = options or Options()
        known_limits = KnownLimits(store)
        arrivals = Inbox(store, known_limits)
        waiting = Waiting(store, arrivals)
        after = PostCommit(store, waiting)
        arrivals.admitted = after.created
        arrivals.rank_step = chosen.rank_step
        parts = EngineContext(
            store=store,
            arrivals=arrivals,
            decisions=Decisions(store, arrivals, after),
            waiting=waiting,
            after=after,
            ids=Ids(),
            options=chosen,
            secret=await store.secret(),
            identity=await store.identity(),
            jitter=jitter or random.SystemRandom(),
            ring=Ring(store, chosen.waitpoint_secret, make=chosen.make_keys),
            known_limits=known_limits,
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
        await self._dispatcher.drain()
        await self._limits.drain()
        await self._context.decisions.drain()
        await self._context.waiting.close()
        await self.flow_views.close()
        await self.store.close()
