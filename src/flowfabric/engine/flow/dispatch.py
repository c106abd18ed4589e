"""When flows are settled: right after a commit, many at once, and again by the sweep."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from uuid import UUID

from flowfabric.core.base.errors import FlowFabricError, Unavailable
from flowfabric.core.flow.model import Flow, FlowChange, count_outbox
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.flow.resolver import PAGE, FlowResolver, MemberEnding, endings_of
from flowfabric.engine.wait.signals import Signals
from flowfabric.store.rows.record import FLOWS

MAX_FLOWS = 64
COUNT_AT = 50
MAX_TROUBLE = 3
MAX_PASSES = 5
"""How often a sweep looks again at flows it has looked at."""

log = logging.getLogger("flowfabric.flows")


class _Runner:
    """Does work for all flows that have come together meanwhile, one batch after the other."""

    def __init__(self, name: str, work: Callable[[list[UUID]], Awaitable[object]]) -> None:
        self._name = name
        self._work = work
        self._pending: dict[UUID, None] = {}
        self.task: asyncio.Task[None] | None = None

    def add(self, flows: Iterable[UUID]) -> None:
        self._pending.update(dict.fromkeys(flows))
        if self.task is None and self._pending:
            self.task = asyncio.create_task(self._run(), name=self._name)

    async def _run(self) -> None:
        try:
            while self._pending:
                flows = list(islice(self._pending, MAX_FLOWS))
                for flow in flows:
                    del self._pending[flow]
                await self._work(flows)
        finally:
            self.task = None
            self.add(())


class FlowDispatcher(Service):
    """Settles flows of this process's changes as soon as they are committed, many flows at once.

    Endings are settled at once, so that what waits for them goes on. Only then are the flows looked
    at: endings are counted when that may end the flow, or when many have come together, and the
    sweep counts the rest. What takes long (cancelling, releasing, telling) has a task of its own,
    so that no flow waits for another.
    """

    def __init__(self, context: EngineContext, signals: Signals) -> None:
        super().__init__(context)
        self.work = FlowResolver(context, signals)
        self._endings: dict[UUID, dict[UUID, MemberEnding]] = {}
        self._settling = _Runner("flowfabric-settle", self._settle_fresh)
        self._looking = _Runner("flowfabric-count", self._look)
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._again: set[UUID] = set()
        self._cancels: set[asyncio.Task[None]] = set()
        self._finishing: set[UUID] = set()
        context.post_commit.owed, context.post_commit.settle = self.owe, self.work.settle

    def owe(self, entries: Iterable[OutboxEntry]) -> None:
        """Told what was committed just now. Endings need not be read again to be settled."""
        flows = dict[UUID, None]()
        for entry in entries:
            flows[entry.flow] = None
            queued = self._endings.setdefault(entry.flow, {})
            if entry.kind is OutboxKind.ENDED and entry.outcome is not None:
                queued[entry.id] = MemberEnding(entry.outcome, entry.number)
            elif entry.kind is OutboxKind.REPLAYED:
                queued.pop(entry.id, None)
        self.kick(flows)

    def kick(self, flows: Iterable[UUID]) -> None:
        """Settles these flows in the background."""
        self._settling.add(flows)

    async def _settle_fresh(self, flows: list[UUID]) -> None:
        told = {flow: self._endings.pop(flow, {}) for flow in flows}
        ended = [flow for flow in flows if told[flow] and flow not in self.work.cancelling]

        async def settle(some: Sequence[UUID]) -> int:
            return await self.work.settle_edges(
                {(flow, id): ending for flow in some for id, ending in told[flow].items()}
            )

        await self._together(ended, settle)
        self._looking.add(flows)

    async def _look(self, flows: list[UUID]) -> None:
        # Members that are being cancelled are not cancelled by a second task meanwhile.
        free = [flow for flow in flows if flow not in self._finishing]
        await self._together(free, partial(self._settle_many, counting=False))

    async def finish(self, flow: Flow) -> None:
        """Cancels the members of a cancelled flow and waits for that, not for what follows from
        it; whoever stops waiting stops nothing, and trouble is left to the sweep."""
        task = asyncio.create_task(self._finish(flow), name="flowfabric-cancel")
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)
        await asyncio.wait([task])

    async def _finish(self, flow: Flow) -> None:
        self._finishing.add(flow.id)
        try:
            await self._tried(self.work.cancel_members(flow))
        finally:
            self._finishing.discard(flow.id)
            self.kick([flow.id])

    async def drain(self) -> None:
        while tasks := self._under_way():
            await asyncio.wait(tasks)

    def _under_way(self) -> list[asyncio.Task[None]]:
        runners = [runner.task for runner in (self._settling, self._looking)]
        return [
            *(task for task in runners if task is not None),
            *self._tasks.values(),
            *self._cancels,
        ]

    async def sweep(self) -> int:
        """Settles and counts whatever was left behind, and what comes of it; returns how many
        flows were looked at. Flows that are busy always owe something: it ends after a few passes,
        and what is owed then is settled as after any other commit, or by the next sweep."""
        looked_at: set[UUID] = set()
        passes = 0
        while passes < MAX_PASSES and (flows := await self._context.store.owing(PAGE)):
            passes += looked_at.issuperset(flows)
            looked_at.update(flows)
            if not await self._together(flows, partial(self._settle_many, counting=True)):
                break  # only what cannot be done now is left
        return len(looked_at)

    async def _together(
        self, flows: Sequence[UUID], work: Callable[[Sequence[UUID]], Awaitable[int]]
    ) -> int:
        """Work for many flows at once, or for one after the other if that fails: one that cannot
        be settled hides no other. Returns how much was done."""
        if not flows:
            return 0
        try:
            return await work(flows)
        except FlowFabricError as error:
            if len(flows) == 1:
                log.warning("flow %s is left to the sweep: %s", flows[0], error)
                return 0
            log.info("flows are settled one by one: %s", error)
        return await self._one_by_one(flows, work)

    async def _one_by_one(
        self, flows: Sequence[UUID], work: Callable[[Sequence[UUID]], Awaitable[int]]
    ) -> int:
        done, in_a_row = 0, 0
        for flow in flows:
            try:
                done += await work([flow])
                in_a_row = 0
            except FlowFabricError as error:
                log.warning("flow %s is left to the sweep: %s", flow, error)
                in_a_row = in_a_row + 1 if isinstance(error, Unavailable) else 0
            if in_a_row == MAX_TROUBLE:
                break  # it is the store that is in trouble, not a flow
        return done

    async def _tried(self, work: Awaitable[None]) -> None:
        """Trouble is left to the sweep."""
        try:
            await work
        except FlowFabricError as error:
            log.warning("a flow is left to the sweep: %s", error)

    def _spawn(self, flow: UUID) -> None:
        if flow in self._tasks:
            self._again.add(flow)
        else:
            task = asyncio.create_task(self._settle_alone(flow), name="flowfabric-settle-one")
            self._tasks[flow] = task

    async def _settle_alone(self, flow: UUID) -> None:
        try:
            await self._tried(self.work.settle(flow))
        finally:
            del self._tasks[flow]
            if flow in self._again:
                self._again.discard(flow)
                self._spawn(flow)

    async def _settle_many(self, flows: Sequence[UUID], *, counting: bool) -> int:
        """One pass over many flows; with `counting` (the sweep) nothing is left for later. Returns
        how many flows have nothing owed any more that was owed to them before."""
        # Before the outbox: counting entries meanwhile moves the version that is compared.
        found = await self._context.store.records.get(FLOWS, flows)
        owed: dict[UUID, list[OutboxEntry]] = {}
        for entry in await self._context.store.chores(flows, PAGE):
            owed.setdefault(entry.flow, []).append(entry)
        light = {flow: entries for flow, entries in owed.items() if _is_light(entries)}
        heavy = owed.keys() - light.keys()
        for flow in heavy:
            if counting:
                await self.work.settle(flow)
            else:
                self._spawn(flow)
        now = self._now()
        counts = [
            count_outbox(found[flow], tuple(entries), now)
            for flow, entries in light.items()
            if flow in found
        ]
        # What is not counted now was settled by whoever committed it, or will be by the sweep.
        due = [change for change in counts if counting or _is_due(change)]
        if not due:
            return len(heavy)
        await self._settle_light({change.after.id: light[change.after.id] for change in due})
        return len(heavy) + await self._count(due)

    async def _settle_light(self, owed: dict[UUID, list[OutboxEntry]]) -> None:
        await self.work.settle_edges(
            {
                (flow, id): ending
                for flow, entries in owed.items()
                for id, ending in endings_of(entries).items()
            }
        )

    async def _count(self, due: Sequence[FlowChange]) -> int:
        written = await self._context.store.count_flows(due)
        for change in due:
            id = change.after.id
            if id not in written or change.owed:
                self.kick([id])
            else:
                self.work.counted(change.after)
        return len(written)


def _is_light(entries: Sequence[OutboxEntry]) -> bool:
    return len(entries) < PAGE and all(entry.kind is OutboxKind.ENDED for entry in entries)


def _is_due(change: FlowChange) -> bool:
    """Whether a count cannot wait for the sweep: it ends the flow, or revives it, or is large."""
    before, after = change.before, change.after
    ended = after.ended_at is not None or (before is not None and before.ended_at is not None)
    return ended or len(change.done) >= COUNT_AT
