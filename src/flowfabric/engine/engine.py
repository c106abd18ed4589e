"""The engine: every operation of the product as a typed method of a service, one per noun.

Worker, server and command line use nothing else. The rules are in `core`, the rows in `store`;
the engine batches, sweeps, and does what follows a commit.
"""

import random
import secrets

from flowfabric.core.base.time import Millis
from flowfabric.engine.commit.decide import Decisions
from flowfabric.engine.commit.ids import Ids
from flowfabric.engine.commit.post_commit import PostCommit
from flowfabric.engine.commit.watcher import AwaitedFlows, AwaitedRuns, Watcher
from flowfabric.engine.context import EngineContext, EngineOptions
from flowfabric.engine.execution.attempts import Attempts
from flowfabric.engine.execution.claims import Claims
from flowfabric.engine.execution.code_gate import CodeGate
from flowfabric.engine.execution.events import Events
from flowfabric.engine.execution.executions import Executions
from flowfabric.engine.execution.grants import Grants
from flowfabric.engine.execution.inbox import Inbox
from flowfabric.engine.execution.recorded import RecordedSteps, StepCuts
from flowfabric.engine.execution.schedules import Schedules
from flowfabric.engine.execution.views import Views
from flowfabric.engine.explain import Explain
from flowfabric.engine.flow.dispatch import FlowDispatcher
from flowfabric.engine.flow.flows import Flows
from flowfabric.engine.flow.resolver import FlowResolver
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

    def __init__(self, context: EngineContext) -> None:
        self.store = context.store
        self.identity = context.identity
        self._context = context
        self.inbox = context.inbox
        self.signals = Signals(context)
        self._resolver = FlowResolver(context, self.signals)
        self.executions = Executions(context, self._resolver, StepCuts(context))
        self.steps = RecordedSteps(context)
        self.lanes = Lanes(context)
        self._releases = Releases(context)
        self._budget_gate = BudgetGate(context, self._releases)
        self.claims = Claims(context, self.lanes, self._budget_gate)
        self.attempts = Attempts(context, self.claims)
        self.suspensions = Suspensions(context, self.attempts)
        self.keys = Keys(context.ring)
        self.grants = Grants(context, self._budget_gate)
        self.views = Views(context)
        self.events = Events(context)
        self.code_gate = CodeGate(context)
        self.workers = Workers(context, self.code_gate)
        self.schedules = Schedules(context, self.executions)
        self._dispatcher = FlowDispatcher(context, self._resolver)
        self.flows = Flows(context, self.executions, self._dispatcher, self._resolver)
        self.flow_views = FlowViews(context, self._resolver)
        self.quotas = Quotas(context, self._releases)
        self.budgets = Budgets(context, self.attempts, self.flows, self._budget_gate)
        self.explain = Explain(context, self._budget_gate)
        self._limits = LimitSweep(context, self._releases, self._budget_gate)
        self.sweep = Sweep(
            context,
            self.schedules,
            self._dispatcher,
            self._limits,
            self.workers,
            self.code_gate,
            holder=secrets.token_hex(8),
        )
        self._subscribe()

    @classmethod
    async def open(
        cls,
        store: Store,
        *,
        options: EngineOptions | None = None,
        jitter: random.Random | None = None,
        migrate: bool = True,
    ) -> "Engine":
        """An engine on a store, its schema brought up to date."""
        if migrate:
            await store.migrate()
        await store.keep_time()
        chosen = options or EngineOptions()
        known_limits = KnownLimits(store)
        post_commit = PostCommit(store)
        inbox = Inbox(store, known_limits, post_commit, chosen.rank_step)
        identity = await store.identity()
        context = EngineContext(
            store=store,
            inbox=inbox,
            decisions=Decisions(store, inbox, post_commit),
            watcher=Watcher(store, AwaitedRuns(store, inbox)),
            flow_watcher=Watcher(store, AwaitedFlows(store)),
            post_commit=post_commit,
            ids=Ids(),
            options=chosen,
            secret=identity.secret,
            identity=identity.name,
            jitter=jitter or random.SystemRandom(),
            ring=Ring(store, chosen.waitpoint_secret, make=chosen.make_keys),
            known_limits=known_limits,
        )
        return cls(context)

    def _subscribe(self) -> None:
        """What follows every commit of this process, in this order."""
        self._context.post_commit.subscribe(
            self.sweep,  # is there in time for what becomes due
            self._context.watcher,  # answers callers that wait for a run
            self._context.flow_watcher,  # and for a flow
            self._dispatcher,  # resolves flows
            self._releases,  # lets runs through their quotas
            self._budget_gate,  # gives reservations back
            self._limits,  # looks again when other work can be claimed
        )

    def now(self) -> Millis:
        """The store's clock: the only time that decides anything."""
        return self.store.clock.now()

    def jitter(self) -> float:
        """A random number in [0, 1), from the source that spreads retries."""
        return self._context.jitter.random()

    async def close(self) -> None:
        """Stops the sweep, finishes what was asked for, closes the store."""
        await self.sweep.stop()
        await self.executions.drain()
        await self.attempts.drain()
        await self.claims.drain()
        await self._dispatcher.drain()
        await self._limits.drain()
        await self._context.decisions.drain()
        await self._context.watcher.close()
        await self._context.flow_watcher.close()
        await self.store.close()
