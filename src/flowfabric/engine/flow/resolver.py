"""Doing what is owed to flows: right after the commit that owes it, or when the sweep finds it.

An ending is settled edge by edge as independent changes of the downstreams, in pages, never in one
big transaction. Only then is it counted and the entry deleted, so a crash repeats work and never
loses any; an edge that was settled before is left alone. Two processes may settle the same flow.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from flowfabric.core.base.errors import LeaseLost, NotFound, NotSignalable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Ended, Outcome, Snapshot, Source
from flowfabric.core.flow import children, grow
from flowfabric.core.flow import progress as rules
from flowfabric.core.flow.cancel import is_orphan, orphaned
from flowfabric.core.flow.join import EdgeState, JoinState
from flowfabric.core.flow.model import CancelPolicy, Flow, Parent, count_outbox
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind
from flowfabric.core.flow.progress import Settlement
from flowfabric.core.wait.model import Loaded
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.commit.records import find
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.wait.signals import Signals
from flowfabric.store.queries import EdgeQuery, Unsettled
from flowfabric.store.rows.record import FLOWS

PAGE = 500
MAX_FLOWS = 64
MAX_ROUNDS = 20
COUNT_AT = 50
CASCADE = Owner(source=Source.FLOW_CASCADE)

log = logging.getLogger("flowfabric.flows")


class MemberEnding(NamedTuple):
    """How a member ended, and the version it has since."""

    outcome: Outcome
    number: int


class FlowResolver(Service):
    """Does what is owed to one flow, or settles endings of many."""

    def __init__(self, context: EngineContext, signals: Signals) -> None:
        super().__init__(context)
        self._signals = signals
        self.cancelling: set[UUID] = set()
        """Flows whose members are being cancelled: nothing may be settled, or they are skipped."""

        self.ended: Callable[[Flow], None] = lambda flow: None
        """Told which flow has ended, as it was written."""

    def counted(self, flow: Flow) -> None:
        """Tells whoever waits for the flow if it has ended with what was counted."""
        if flow.ended_at is not None:
            self.ended(flow)
            self._context.store.hints.send()

    async def settle(self, flow: UUID) -> None:
        """Does everything that is owed to a flow, also what comes of doing it."""
        for _ in range(MAX_ROUNDS):
            while entries := await self._context.store.chores([flow], PAGE):
                if not await self._round(flow, entries):
                    break  # somebody else was faster: look again
            else:
                return
            await asyncio.sleep(0)

    async def _round(self, flow: UUID, entries: Sequence[OutboxEntry]) -> bool:
        """Does what these entries ask for and counts them; False when another process did."""
        found = await find(self._context.store, FLOWS, flow)
        if found is None:
            raise NotFound("flow", flow)
        kinds = {entry.kind for entry in entries}
        if len(entries) >= PAGE:
            # There may be more endings: a flow that is over already cannot be cancelled.
            entries = [each for each in entries if each.kind is not OutboxKind.ORPHANED] or entries
        if found.cancel is not None:
            # Before anything is settled: members are to be cancelled, not skipped. The cancel
            # may be on a later page of entries, and a replay may not have seen it.
            await self.cancel_members(found)
        if OutboxKind.RELEASE in kinds:
            await self._release(found)
        await self._settle_endings(flow, entries)
        await self._catch_up(flow, entries)
        await self._cancel_siblings(flow, entries)
        if OutboxKind.TELL in kinds:
            await self._tell(found, max(each.number for each in entries if _is_telling(each)))
        missing = await self._missing(found) if OutboxKind.CANCEL in kinds else None
        now = self._now()
        change = count_outbox(found, tuple(entries), now, missing)
        if any(entry.kind is OutboxKind.ORPHANED for entry in entries):
            change = orphaned(change, now)
        counted = await self._context.store.apply_flow(change)
        if counted:
            self.counted(change.after)
        return counted

    async def _missing(self, flow: Flow) -> int | None:
        """How many members were declared and never written, when the declaration died half way.
        One that is still under way finds the cancel, and then they are counted again."""
        if flow.graph is None:
            return None
        present = await self._context.store.member_counts(flow.id)
        return max(0, flow.nodes - sum(present.values()))

    async def _settle_endings(self, flow: UUID, entries: Sequence[OutboxEntry]) -> None:
        endings = endings_of(entries)
        if not endings:
            return
        query = EdgeQuery(flow=flow, upstreams=tuple(endings), unsettled=True)
        async for page in self._pages(query):
            told = {state.edge.id: endings[state.edge.upstream] for state in page}
            await self._settle_page([Unsettled(state, None) for state in page], told)

    async def _catch_up(self, flow: UUID, entries: Sequence[OutboxEntry]) -> None:
        """A member that waits again after a replay counts upstreams that have ended since they
        were looked at, and could not settle what was not open then."""
        replayed = tuple(entry.id for entry in entries if _is_second_chance(entry))
        if not replayed:
            return
        query = EdgeQuery(flow=flow, downstreams=replayed, unsettled=True)
        async for page in self._pages(query):
            ends = await self._context.store.load([state.edge.upstream for state in page])
            by_child: dict[UUID, list[Settlement]] = {}
            for edge in (state.edge for state in page):
                upstream = ends.get(edge.upstream)
                if upstream is None or not isinstance(upstream.state, Ended):
                    continue
                ending = Settlement(edge.id, upstream.state.outcome, round=upstream.life.replays)
                by_child.setdefault(edge.downstream, []).append(ending)
            await self._all([_settling(child, found) for child, found in by_child.items()])

    async def _cancel_siblings(self, flow: UUID, entries: Sequence[OutboxEntry]) -> None:
        children = tuple(entry.id for entry in entries if entry.kind is OutboxKind.SIBLINGS)
        if not children:
            return
        joins = await self._context.store.load(children)
        query = EdgeQuery(flow=flow, downstreams=children, unsettled=True)
        async for page in self._pages(query):
            reasons = {}
            for state in page:
                child = joins.get(state.edge.downstream)
                join = None if child is None else child.life.join
                if join is not None and join.state is not JoinState.PENDING:  # by a replay
                    reasons[state.edge.upstream] = rules.sibling_reason(join)
            await self._all([_cancelling(id, reason) for id, reason in reasons.items()])

    async def cancel_members(self, flow: Flow) -> None:
        """Cancels the members a cancelled flow takes along."""
        if flow.cancel is None or flow.cancel.policy is CancelPolicy.FLOW_ONLY:
            return
        pending = flow.cancel.policy is CancelPolicy.PENDING
        rule = partial(_cancel_pending if pending else _cancel, flow.cancel.reason)
        self.cancelling.add(flow.id)
        try:
            async for page in self._members(flow, living=True):
                await self._all([Decision(each.execution.uuid, rule, each) for each in page])
        finally:
            self.cancelling.discard(flow.id)

    async def _release(self, flow: Flow) -> None:
        """Also those that have ended: a replay must not find them held."""
        async for page in self._members(flow, living=False):
            held = [each.execution.uuid for each in page if each.life.unsealed]
            await self._all([Decision(uuid, grow.unseal) for uuid in held])

    async def _members(self, flow: Flow, *, living: bool) -> AsyncIterator[list[Snapshot]]:
        """Members, or those that have not ended, page by page."""
        after: UUID | None = None
        members = self._context.store.members
        while page := await members(flow.id, after=after, limit=PAGE, living=living):
            yield page
            after = page[-1].execution.uuid  # a page may be short without those it cannot read

    async def _tell(self, flow: Flow, ending: int) -> None:
        """Wakes the run that waits for the flow, which need not cancel it any more; telling the
        same ending (by its version) twice is harmless."""
        if flow.parent is None or flow.ended_at is None:
            return
        rule = partial(_forget, flow.id, is_orphan(flow))
        run = ExecutionId(flow.parent.execution).uuid
        # At the same time: the run hears of it and forgets it by one write, if it can hear.
        await asyncio.gather(
            self._wake(flow, flow.parent, ending), self._all([Decision(run, rule)])
        )

    async def _wake(self, flow: Flow, parent: Parent, ending: int) -> None:
        delivery = self._signals.delivery()(
            name=parent.signal,
            payload=msgspec.json.encode({"flow": str(flow.id), "state": str(flow.state)}),
            source_type="flow",
            source=str(flow.id),
            idempotency_key=f"flow:{flow.id}:{ending}",
            internal=True,
        )
        try:
            await self._signals.send(parent.execution, parent.signal, delivery)
        except (NotFound, NotSignalable) as error:
            log.info("nobody waits for flow %s any more: %s", flow.id, error)

    async def _pages(self, query: EdgeQuery) -> AsyncIterator[list[EdgeState]]:
        """Edges page by page, by id: one that could not be settled is not met again."""
        while page := await self._context.store.edges(query):
            yield page
            if len(page) < query.limit:
                return
            query = replace(query, after=page[-1].edge.id)

    async def _all(self, decisions: list[Decision]) -> None:
        """All of them, or the first real trouble; what has ended meanwhile is no trouble."""
        answers = await self._context.decisions.decide_all(decisions) if decisions else []
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, LeaseLost | NotFound):
                raise answer

    async def settle_edges(self, endings: dict[tuple[UUID, UUID], MemberEnding]) -> int:
        """Settles the edges that leave members (flow, execution) with how these have ended."""
        after, settled = None, 0
        while page := await self._context.store.unsettled(list(endings), after, PAGE):
            edges = [found.state.edge for found in page]
            told = {edge.id: endings[edge.flow, edge.upstream] for edge in edges}
            await self._settle_page(page, told)
            settled += len(page)
            if len(page) < PAGE:
                break
            after = edges[-1].id
        return settled

    async def _settle_page(self, page: Sequence[Unsettled], told: dict[UUID, MemberEnding]) -> None:
        by_child: dict[UUID, list[Unsettled]] = {}
        for found in page:
            by_child.setdefault(found.state.edge.downstream, []).append(found)
        await self._all([_bringing(child, found, told) for child, found in by_child.items()])


def _is_telling(entry: OutboxEntry) -> bool:
    return entry.kind is OutboxKind.TELL


def _is_second_chance(entry: OutboxEntry) -> bool:
    return entry.kind is OutboxKind.REPLAYED


def endings_of(entries: Iterable[OutboxEntry]) -> dict[UUID, MemberEnding]:
    """How members ended. One that was replayed meanwhile has not: it will end again."""
    found: dict[UUID, MemberEnding] = {}
    for entry in sorted(entries, key=lambda entry: entry.number):
        if entry.kind is OutboxKind.ENDED and entry.outcome is not None:
            found[entry.id] = MemberEnding(entry.outcome, entry.number)
        elif entry.kind is OutboxKind.REPLAYED:
            found.pop(entry.id, None)
    return found


def _bringing(child: UUID, edges: Sequence[Unsettled], told: dict[UUID, MemberEnding]) -> Decision:
    """The endings of upstreams are brought to a downstream, which need not be read again: what it
    and its edges are was seen at one moment, and whoever settles one of these moves its version."""
    states = {found.state.edge.id: found.state for found in edges}
    settling = _settling(child, [Settlement(id, *told[id]) for id in states])
    settling.held, settling.memory = edges[0].downstream, Loaded({}, {}, [], states)
    return settling


def _settling(child: UUID, settlements: list[Settlement]) -> Decision:
    found = tuple(settlements)

    def rule(snapshot: Snapshot | None, now: Millis, memory: Loaded) -> Change[rules.Settled]:
        return rules.settle(snapshot, now, found, memory)

    return Decision(child, rule, ask=lambda snapshot: rules.ask_to_settle(snapshot, found))


def _forget(flow: UUID, orphan: bool, run: Snapshot | None, now: Millis) -> Change[None]:
    return children.forget(run, flow, orphan=orphan)


def _cancelling(uuid: UUID, reason: str) -> Decision:
    return Decision(uuid, partial(_cancel, reason))


def _cancel(reason: str, snapshot: Snapshot | None, now: Millis) -> Change[operator.Cancelled]:
    return operator.cancel(snapshot, now, CASCADE, reason)


def _cancel_pending(
    reason: str, snapshot: Snapshot | None, now: Millis
) -> Change[operator.Cancelled]:
    """Only one that never started, looked at when it is decided."""
    if snapshot is not None and snapshot.attempts_made:
        return unchanged(operator.Cancelled(snapshot.execution.id))
    return _cancel(reason, snapshot, now)
