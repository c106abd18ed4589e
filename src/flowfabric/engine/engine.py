"""The engine: every operation of the product as a typed method of a service, one per noun.

Worker, server and command line use nothing else. The rules are in `core`, the rows in `store`;
the engine batches, sweeps, and does what follows a commit.
"""

import asyncio
import random
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from flowfabric.core.base.numbers import Seconds, check_seconds
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.engine.access.audit import Audit
from flowfabric.engine.access.tokens import Tokens
from flowfabric.engine.commit.decide import Decisions
from flowfabric.engine.commit.ids import Ids
from flowfabric.engine.commit.post_commit import PostCommit, Subscriber
from flowfabric.engine.commit.trace import Traces
from flowfabric.engine.commit.watcher import AwaitedFlows, AwaitedRuns, CreatedRuns, Watcher
from flowfabric.engine.context import EngineContext, EngineOptions
from flowfabric.engine.execution.attempts import Attempts
from flowfabric.engine.execution.claims import Claims, hinted_by
from flowfabric.engine.execution.code_gate import CodeGate
from flowfabric.engine.execution.events import Events
from flowfabric.engine.execution.executions import Executions
from flowfabric.engine.execution.follow_ons import FollowOns, FollowOnWorker
from flowfabric.engine.execution.grants import Grants
from flowfabric.engine.execution.inbox import Inbox
from flowfabric.engine.execution.recorded import RecordedSteps, StepCuts
from flowfabric.engine.execution.schedules import Schedules
from flowfabric.engine.execution.streams import Streams
from flowfabric.engine.execution.subscriptions import Subscriptions
from flowfabric.engine.execution.views import Views
from flowfabric.engine.execution.webhooks import Webhooks
from flowfabric.engine.explain import Explain
from flowfabric.engine.flow.dispatch import FlowDispatcher
from flowfabric.engine.flow.flows import Flows
from flowfabric.engine.flow.resolver import FlowResolver
from flowfabric.engine.flow.views import FlowViews
from flowfabric.engine.limit.blocks import Blocks
from flowfabric.engine.limit.budget_gate import BudgetGate
from flowfabric.engine.limit.budgets import Budgets
from flowfabric.engine.limit.known import KnownLimits
from flowfabric.engine.limit.lanes import Lanes
from flowfabric.engine.limit.quotas import Quotas
from flowfabric.engine.limit.releases import Releases
from flowfabric.engine.limit.rounds import Rounds
from flowfabric.engine.limit.sweep import LimitSweep
from flowfabric.engine.service_calls import (
    Capabilities,
    PrepareApplied,
    PrepareNoOp,
    capabilities_of,
)
from flowfabric.engine.sweep import Sweep, Swept
from flowfabric.engine.wait.keys import Keys, Ring
from flowfabric.engine.wait.signals import Signals
from flowfabric.engine.wait.suspensions import Suspensions
from flowfabric.engine.workers import Workers
from flowfabric.store.clock import Clock
from flowfabric.store.contract import Store
from flowfabric.store.hints import Hints, Topics


class Engine:
    """One engine per process and store. Open it with `Engine.open`, close it with `close`."""

    def __init__(self, context: EngineContext, schema_version: int | None = None) -> None:
        self._context, self.schema_version = context, schema_version
        self.store, self.identity = context.store, context.identity
        self.inbox, self.audit = context.inbox, context.audit
        self._releases = Releases(context)
        self._budget_gate = BudgetGate(context, self._releases)
        self._make_executions(context)
        self._make_waits(context)
        self._make_flows_and_limits(context)
        self._make_sweep(context)
        self._subscribe()

    def _make_executions(self, context: EngineContext) -> None:
        self.signals = Signals(context)
        self._resolver = FlowResolver(context, self.signals)
        self.executions = Executions(
            context, self._resolver, StepCuts(context), self._releases.lines
        )
        self.steps = RecordedSteps(context)
        self.lanes = Lanes(context)
        self.claims = Claims(context, self.lanes, self._budget_gate)
        self._follow_ons = FollowOns(context, self.claims.calls, self.lanes)
        lines = self._releases.lines
        self.attempts = Attempts(context, self.claims, lines, self._follow_ons)
        self.streams = Streams(context, self.attempts)
        self.grants = Grants(context, self._budget_gate)
        self.views = Views(context)
        self.events = Events(context)
        self.subscriptions = Subscriptions(context, self.events)
        self.webhooks = Webhooks(context, self.events, self.executions)
        self.schedules = Schedules(context, self.executions)
        self.code_gate = CodeGate(context)
        self.workers = Workers(context, self.code_gate)

    def _make_waits(self, context: EngineContext) -> None:
        self.suspensions = Suspensions(context, self.attempts)
        self.keys = Keys(context.ring, context.audit)
        self.tokens = Tokens(context)

    def _make_flows_and_limits(self, context: EngineContext) -> None:
        self._dispatcher = FlowDispatcher(context, self._resolver)
        self.flows = Flows(context, self.executions, self._dispatcher, self._resolver)
        self.flow_views = FlowViews(context, self._resolver)
        self.quotas = Quotas(context, self._releases)
        self.budgets = Budgets(context, self.attempts, self.flows, self._budget_gate)
        self.explain = Explain(context, self._budget_gate)

    def _make_sweep(self, context: EngineContext) -> None:
        self._limits = LimitSweep(context, self._releases, self._budget_gate)
        swept = Swept(
            self.schedules,
            self._dispatcher,
            self._limits,
            Blocks(context, self._budget_gate),
            self.workers,
            self.code_gate,
            self.streams,
            self.webhooks,
        )
        self.sweep = Sweep(context, swept, holder=secrets.token_hex(8))

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
        schema_version = await store.migrate() if migrate else None
        identity = await store.identity()  # before anything is written: see `store.copy.secret_in`
        await store.keep_time()
        chosen = options or EngineOptions()
        known_limits = KnownLimits(store)
        post_commit = PostCommit(store)
        inbox = Inbox(store, known_limits, post_commit, chosen.rank_step)
        created = CreatedRuns()
        post_commit.subscribe(created)
        ids = Ids()
        context = EngineContext(
            store=store,
            inbox=inbox,
            decisions=Decisions(store, inbox, post_commit),
            watcher=Watcher(store, AwaitedRuns(store, inbox, created)),
            flow_watcher=Watcher(store, AwaitedFlows(store)),
            post_commit=post_commit,
            ids=ids,
            audit=Audit(store, ids),
            options=chosen,
            secret=identity.secret,
            identity=identity.name,
            jitter=jitter or random.SystemRandom(),
            ring=Ring(store, chosen.waitpoint_secret, make=chosen.make_keys),
            known_limits=known_limits,
            rounds=Rounds(store.hints),
        )
        return cls(context, schema_version)

    def _subscribe(self) -> None:
        """What follows every commit of this process, in this order. `CreatedRuns`, which `open`
        subscribes, hears of it first."""
        self._context.post_commit.subscribe(
            self.sweep,  # is there in time for what becomes due
            self._context.watcher,  # answers callers that wait for a run
            self._context.flow_watcher,  # and for a flow
            self.streams.watcher,  # and for news of output streams
            self._dispatcher,  # resolves flows
            self._releases,  # lets runs through their quotas
            self._budget_gate,  # gives reservations back
            self._limits,  # looks again when other work can be claimed
        )

    @contextmanager
    def watched_by(self, subscriber: Subscriber) -> Iterator[None]:
        """The subscriber hears of every commit of this process while the block runs."""
        self._context.post_commit.subscribe(subscriber)
        try:
            yield
        finally:
            self._context.post_commit.unsubscribe(subscriber)

    def followed_by(
        self, follower: FollowOnWorker, worker: WorkerIdentity, **options: Any
    ) -> AbstractContextManager[None]:
        """The worker makes follow-on claims while the block runs. `options` are those of its
        claims; one whose lanes have weights makes none."""
        call = self.claims.call(worker, **options)
        return nullcontext() if call is None else self._follow_ons.by(follower, call)

    def use_traces(self, traces: Traces) -> None:
        """Submissions get their trace from here."""
        self._context.traces = traces

    def now(self) -> Millis:
        """The store's clock: the only time that decides anything."""
        return self.store.clock.now()

    @property
    def clock(self) -> Clock:
        """The clock that `now` reads."""
        return self.store.clock

    @property
    def hints(self) -> Hints:
        """What wakes those that wait for something to happen."""
        return self.store.hints

    @property
    def leases(self) -> Store:
        """What a heartbeat renews with, and looks at runs with."""
        return self.store

    @property
    def suspects_seen(self) -> bool:
        """Whether a run that may have ended its worker may be waiting."""
        return self.store.suspects_seen

    def hinted_by(self) -> Topics:
        """What may make a claim find more than the last one did."""
        return hinted_by(self.store)

    async def ping(self) -> None:
        """Raises `Unavailable` if the store does not answer."""
        await self.lanes.get("default")  # the cheapest read

    async def capabilities(self) -> Capabilities:
        """Who answers, and which operations exist."""
        return capabilities_of(self.store.name)

    async def prepare(self) -> PrepareApplied | PrepareNoOp:
        """Gives the database the schema it needs. Any process may repeat it. It makes no key: the
        caller may still `keys.seed` one of its own, and without one the first wait makes it."""
        if self.schema_version is not None:
            return PrepareNoOp()
        self.schema_version = await self.store.migrate()
        return PrepareApplied(f"schema version {self.schema_version}")

    async def settle(self) -> None:
        """Waits until everything that can become ready now is ready."""
        await self.inbox.admit()
        await self.flows.drain()
        await self._limits.drain()

    def jitter(self) -> float:
        """A random number in [0, 1), from the source that spreads retries."""
        return self._context.jitter.random()

    async def shutdown_prepare(self, grace: Seconds | None = None) -> bool:
        """Takes no new work, stops the sweep and the readers of events and output, and finishes
        what was asked for. From then on new runs, claims and grants are refused with `Unavailable`;
        what is running may still be renewed, recorded and ended, and everything be read. False if
        finishing takes longer than `grace` seconds: then the rest is left to `close`."""
        seconds = None if grace is None else check_seconds(grace, "grace")
        self._context.stopping = True
        self.store.hints.wake()  # claims that wait for work end without any
        try:
            async with asyncio.timeout(seconds):
                await self._finish()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stops the sweep, finishes what was asked for, closes the store."""
        await self._finish()
        await self.store.close()

    async def _finish(self) -> None:
        await self.sweep.stop()
        await self.streams.close()
        await self.events.close()
        await self.executions.drain()
        await self.attempts.drain()
        await self.streams.drain()
        await self.claims.drain()
        await self.flows.drain()
        await self._limits.drain()
        await self.tokens.drain()
        await self._context.decisions.drain()
        await self._context.inbox.drain()
        await self._context.watcher.close()
        await self._context.flow_watcher.close()
