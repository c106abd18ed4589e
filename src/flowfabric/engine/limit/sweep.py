"""What the sweep does for limits: every line that waits at one is looked at."""

import logging

from flowfabric.core.base.errors import Corruption, FlowFabricError
from flowfabric.core.base.time import Millis, earliest
from flowfabric.core.execution.model import Gate, Snapshot
from flowfabric.core.limit.at_submission import waits_at_limit
from flowfabric.core.limit.release import forgotten_at
from flowfabric.engine.commit.background import Background
from flowfabric.engine.commit.pacer import Pacer
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.limit.budget_gate import BudgetGate, waited_for
from flowfabric.engine.limit.releases import Releases
from flowfabric.store.queries import Crowd, InQueue
from flowfabric.store.readable import load_each, load_readable, log_unreadable

PAGE = 500
BEHIND = 20
"""How many of a queue are looked at when its first cannot be read."""

log = logging.getLogger("flowfabric.limits")


class LimitSweep(Service):
    def __init__(self, context: EngineContext, releases: Releases, budget_gate: BudgetGate) -> None:
        super().__init__(context)
        self._releases = releases
        self._budget_gate = budget_gate
        self._pacer = Pacer()
        self._background = Background("looking at limits", log)

    async def sweep(self, *, all_lines: bool = True) -> None:
        """Resets budgets that are due, then lets in and through all that there is room for.
        Without `all_lines` only now and then, if that takes long: room is given away as soon as
        there is any, and what is due meanwhile must not wait for those that can only wait."""
        try:
            await self._budget_gate.sweep()
            if not all_lines and self.rests:
                self._releases.reopen(self._now())
                return
            with self._pacer.look():
                await self._look_at_all()
        except FlowFabricError as error:
            log.warning("sweeping limits failed; the next round tries again: %s", error)

    @property
    def rests(self) -> bool:
        """Whether the last look at all lines was so long that the next one must wait."""
        return self._pacer.rests

    async def trim(self) -> None:
        """Forgets what no limit asks for any more."""
        now = self._now()
        while await self._context.store.trim_limits(now, forgotten_at(now), PAGE) >= PAGE:
            pass
        self._releases.lines.forget_queues()

    async def drain(self) -> None:
        """Returns when everything that can go now has gone."""
        while self._background or self._budget_gate.busy or self._releases.busy:
            await self._background.drain()
            await self._budget_gate.drain()
            await self._releases.drain()

    async def next_at(self) -> Millis | None:
        """When time alone makes room: a rate, or a reset."""
        moments = [self.opens_at, await self.resets_at()]
        return earliest(moments)

    @property
    def opens_at(self) -> Millis | None:
        """When a rate has room for a run that waits."""
        return self._releases.next_at

    async def resets_at(self) -> Millis | None:
        """When the next budget begins a new period."""
        return await self._budget_gate.next_at()

    def committed(self, commit: Commit) -> None:
        if commit.reopened:
            self._background.start_once("of reopened lanes", self._look_again)

    async def _look_again(self) -> None:
        await self._releases.closed.refresh()
        await self._look_at_all()

    async def _look_at_all(self) -> None:
        after, waited = -1, False
        self._releases.forget_rates()
        while crowds := await self._context.store.crowds(after, PAGE):
            if not waited and any(crowd.gate is Gate.LIMIT for crowd in crowds):
                waited = True
                await self._releases.closed.refresh()
            await self._look_at(crowds)
            after = crowds[-1].queue
            if len(crowds) < PAGE:
                break
        if waited:
            await self._releases.closed.give_slots_back()

    async def _next_in(self, queue: int) -> Snapshot | None:
        """A run of a queue whose first cannot be read."""
        uuids = await self._context.store.executions_in(InQueue(queue), BEHIND)
        found = await load_readable(self._context.store.load, uuids)
        return next(iter(found.values()), None)

    async def _look_at(self, crowds: list[Crowd]) -> None:
        """Only the first of a line whose quotas are not known is loaded: it tells them."""
        lines = {crowd.queue: crowd.uses for crowd in crowds if crowd.gate is Gate.LIMIT}
        firsts = await self._firsts([crowd for crowd in crowds if not lines.get(crowd.queue)])
        for name in {waited_for(snapshot) for _, snapshot in firsts} - {None}:
            try:
                await self._budget_gate.let_in(name or "")
            except Corruption as error:  # keeps no run from the other budgets
                log.warning("budget %s cannot be read; its runs wait on: %s", name, error)
        told = {
            crowd.queue: snapshot.execution.uses
            for crowd, snapshot in firsts
            if crowd.gate is Gate.LIMIT and waits_at_limit(snapshot)
        }
        if told:
            await self._context.store.put_queues(list(told.items()))
        known = {queue: uses for queue, uses in lines.items() if uses}
        await self._releases.look_at({**known, **told})

    async def _firsts(self, crowds: list[Crowd]) -> list[tuple[Crowd, Snapshot]]:
        found = await load_each(self._context.store.load, [crowd.first for crowd in crowds])
        known: list[tuple[Crowd, Snapshot]] = []
        for crowd in crowds:
            first = found.get(crowd.first)
            if isinstance(first, Corruption):
                log_unreadable(first)
                first = await self._next_in(crowd.queue)
            if first is not None:
                known.append((crowd, first))
        return known
