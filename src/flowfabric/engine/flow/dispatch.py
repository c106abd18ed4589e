"""When flows are resolved: right after a commit, many at once, and again by the sweep. What that
means is up to the resolver."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from uuid import UUID

from flowfabric.core.base.errors import FlowFabricError, Unavailable
from flowfabric.core.flow.model import Flow
from flowfabric.core.flow.outbox import MemberEnding, OutboxKind
from flowfabric.engine.commit.background import Background, BackgroundBatches
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.flow.resolver import FlowResolver
from flowfabric.engine.flow.walks import PAGE
from flowfabric.store.readable import load_readable

MAX_FLOWS = 64
MAX_TROUBLE = 3
MAX_PASSES = 5
"""How often a sweep looks again at flows it has looked at."""

log = logging.getLogger("flowfabric.flows")


class FlowDispatcher(Service):
    """Resolves the flows of this process's changes as soon as they are committed.

    Endings are carried along their edges first, so that downstreams go on. Only then are the flows
    looked at: endings are counted when that may end the flow, or when many have come together, and
    the sweep counts the rest. A flow that owes more than endings (cancelling, releasing, telling)
    has a task of its own, so that no flow waits for another.
    """

    def __init__(self, context: EngineContext, resolver: FlowResolver) -> None:
        super().__init__(context)
        self._resolver = resolver
        self._endings: dict[UUID, dict[UUID, MemberEnding]] = {}
        self._cancelling: set[UUID] = set()
        self._carries = BackgroundBatches("carrying endings on", log, self._carry, MAX_FLOWS)
        self._counts = BackgroundBatches("counting endings", log, self._count, MAX_FLOWS)
        self._resolves = Background("resolving flow", log)
        self._cancels = Background("cancelling the members of flow", log)

    def committed(self, commit: Commit) -> None:
        """Endings that were committed just now need not be read again to be carried on. Where the
        commit has settled the edges as well, only the flow is left to count, if it may be over."""
        carried, counted = list[UUID](), list[UUID]()
        for entry in commit.owed:
            if entry.kind is OutboxKind.ENDED and entry.id in commit.settled:
                if entry.flow not in commit.unfinished:
                    counted.append(entry.flow)
                continue
            carried.append(entry.flow)
            known = self._endings.setdefault(entry.flow, {})
            if entry.kind is OutboxKind.ENDED and entry.outcome is not None:
                known[entry.id] = MemberEnding(entry.outcome, entry.number)
            elif entry.kind is OutboxKind.REPLAYED:
                known.pop(entry.id, None)
        self.kick(carried)
        self._counts.add(counted)

    def kick(self, flows: Iterable[UUID]) -> None:
        """Resolves these flows in the background."""
        self._carries.add(flows)

    async def finish(self, flow: Flow) -> None:
        """Cancels the members of a cancelled flow and waits for that, not for what follows from
        it. A caller that stops waiting stops nothing, and a failure is left to the sweep."""
        await asyncio.wait([self._cancels.start(partial(self._cancel, flow), flow.id)])

    async def drain(self) -> None:
        """Returns when everything that follows the commits of this process is done."""
        work = (self._carries, self._counts, self._resolves, self._cancels)
        while any(work):
            for each in work:
                await each.drain()

    async def sweep(self) -> int:
        """Resolves what was left behind, and what comes of it; returns how many flows were looked
        at. Flows that are busy always owe something: it ends after a few passes, and what is owed
        then is resolved as after any other commit, or by the next sweep."""
        looked_at: set[UUID] = set()
        passes = 0
        while passes < MAX_PASSES and (flows := await self._context.store.owed_flows(PAGE)):
            passes += looked_at.issuperset(flows)
            looked_at.update(flows)
            if not await self._together(flows, self._resolve_all):
                break  # only what cannot be done now is left, or what is new since
        watching().resolved_flows(len(looked_at))
        return len(looked_at)

    async def _carry(self, flows: list[UUID]) -> None:
        endings = {flow: self._endings.pop(flow, {}) for flow in flows}

        async def carry(some: Sequence[UUID]) -> int:
            return await self._resolver.carry({flow: endings[flow] for flow in some})

        await self._together([flow for flow in flows if endings[flow]], carry)
        self._counts.add(flows)

    async def _count(self, flows: list[UUID]) -> None:
        # Members that are being cancelled are not cancelled by a second task meanwhile.
        free = [flow for flow in flows if flow not in self._cancelling]
        await self._together(free, self._count_due)

    async def _count_due(self, flows: Sequence[UUID]) -> int:
        """What cannot wait for the sweep."""
        passed = await self._resolver.count(flows, everything=False)
        for flow in passed.slow:
            self._resolves.start_once(flow, partial(self._resolver.resolve, flow))
        self.kick(passed.again)
        return passed.done + len(passed.slow)

    async def _resolve_all(self, flows: Sequence[UUID]) -> int:
        """Leaves nothing for later. Returns whether anything may have come of it, or flows are left
        that were not looked at: endings that were only counted lead to nothing."""
        served = await self._served(flows)
        passed = await self._resolver.count(served, everything=True)
        for flow in passed.slow:
            await self._resolver.resolve(flow)
        self.kick(passed.again)
        return passed.settled + len(passed.slow) + len(passed.again) + (len(flows) >= PAGE)

    async def _served(self, flows: Sequence[UUID]) -> Sequence[UUID]:
        """Those that the sweep of this engine looks after: flows that match its filter, and those
        whose next outbox entry is about a run that does."""
        wanted, store = self._context.options.swept, self._context.store
        if wanted.is_open:
            return flows
        owing = await store.owing(flows, 1)
        served = {id for id, flow in owing.flows.items() if wanted.has(flow.namespace, flow.tags)}
        about = [(uuid, entry.flow) for entry in owing.entries for uuid in (entry.id, entry.flow)]
        found = await load_readable(store.load, list({uuid for uuid, _ in about}))
        tags = dict(zip(found, await store.tags(list(found)), strict=True))
        served |= {
            flow
            for uuid, flow in about
            if uuid in found and wanted.has(found[uuid].execution.route.namespace, tags[uuid])
        }
        return [flow for flow in flows if flow in served]

    async def _cancel(self, flow: Flow) -> None:
        self._cancelling.add(flow.id)
        try:
            await self._resolver.cancel_members(flow)
        finally:
            self._cancelling.discard(flow.id)
            self.kick([flow.id])

    async def _together(
        self, flows: Sequence[UUID], work: Callable[[Sequence[UUID]], Awaitable[int]]
    ) -> int:
        """Work for many flows at once, or for one after the other if that fails: one that cannot
        be resolved hides no other. Returns how much was done."""
        if not flows:
            return 0
        try:
            return await work(flows)
        except FlowFabricError as error:
            if len(flows) == 1:
                _warn(flows[0], error)
                return 0
            log.info("resolving %d flows at once failed; trying one by one: %s", len(flows), error)
        done, in_a_row = 0, 0
        for flow in flows:
            try:
                done += await work([flow])
                in_a_row = 0
            except FlowFabricError as error:
                _warn(flow, error)
                in_a_row = in_a_row + 1 if isinstance(error, Unavailable) else 0
            if in_a_row == MAX_TROUBLE:
                break  # it is the store that is in trouble, not a flow
        return done


def _warn(flow: UUID, error: FlowFabricError) -> None:
    log.warning("resolving flow %s failed; the sweep tries again: %s", flow, error)
