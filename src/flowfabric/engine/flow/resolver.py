"""What resolving a flow means: doing what its outbox asks for.

The way of an ending, in one direction: the commit that ends a member writes an outbox entry with
it; `carry` finds the open edges that leave the member and brings the ending to each downstream,
whose join decides (`core.flow.progress.settle`) in a change of its own; `count` adds the ending to
the flow and deletes the entry. Edges are settled in pages, never in one big transaction, and an
entry goes last: a crash repeats work and never loses any, and an edge that was settled before is
left alone. Two processes may resolve the same flow.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import LeaseLost, NotFound, NotSignalable, RetryExhausted
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Ended, Snapshot, Source
from flowfabric.core.flow import children, grow
from flowfabric.core.flow import progress as rules
from flowfabric.core.flow.cancel import is_orphan, orphaned
from flowfabric.core.flow.join import JoinState
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowChange, Parent, count_outbox, known
from flowfabric.core.flow.outbox import MemberEnding, OutboxEntry, OutboxKind, endings_of
from flowfabric.core.flow.progress import Settlement
from flowfabric.core.wait.model import Loaded
from flowfabric.core.wait.signal import Delivery
from flowfabric.engine.access.actor import acting_as
from flowfabric.engine.collector import rare_collections
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.commit.observer import followed, watching
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.flow.walks import PAGE, edge_pages, member_pages, overlapping
from flowfabric.engine.wait.signals import Signals
from flowfabric.store.queries import EdgeQuery, Unsettled

COUNT_AT = 50
MAX_ROUNDS = 20
CASCADE = Owner(source=Source.FLOW_CASCADE)
OPERATOR = Owner(source=Source.OPERATOR)

log = logging.getLogger("flowfabric.flows")


class Pass(Struct, frozen=True):
    """What came of one look at many flows: `done` were counted, after so many edges were `settled`.
    `slow` owe more than endings, and each is to be resolved by itself; `again` has moved meanwhile,
    or owes something new."""

    done: int
    slow: tuple[UUID, ...]
    again: tuple[UUID, ...] = ()
    settled: int = 0


class FlowResolver(Service):
    def __init__(self, context: EngineContext, signals: Signals) -> None:
        super().__init__(context)
        self._signals = signals
        self.cancelling: set[UUID] = set()
        """Flows whose members are being cancelled: an edge that is settled now would skip them."""

    # -- many flows at once

    async def carry(self, endings: Mapping[UUID, Mapping[UUID, MemberEnding]]) -> int:
        """Brings endings of members, by flow, to their downstreams; returns how many edges were
        open. Members that are to be cancelled are left alone: they must not be skipped."""
        return await self._settle_edges(
            {
                flow: members
                for flow, members in endings.items()
                if members and flow not in self.cancelling
            }
        )

    async def count(self, flows: Sequence[UUID], *, everything: bool) -> Pass:
        """Counts the endings of flows that owe nothing else, once their edges are settled. Unless
        `everything` is asked for the sweep may do it later: then only what ends a flow is counted,
        or revives one, or many endings."""
        seen = await self._context.store.owing(flows, PAGE)
        owed = seen.by_flow()
        slow = tuple(flow for flow, entries in owed.items() if not _owes_endings(entries))
        now = self._now()
        counts = [
            count_outbox(seen.flows[flow], now, tuple(entries))
            for flow, entries in owed.items()
            if flow in seen.flows and flow not in slow
        ]
        due = [change for change in counts if everything or _cannot_wait(change)]
        if not due:
            return Pass(0, slow)
        open = {each.after.id: _among(seen.open, endings_of(each.done)) for each in due}
        settled = await self._settle_edges(open)
        written = await self._context.store.count_flows(due)
        again = {each.after.id for each in due if each.after.id not in written or each.owed}
        self._publish(change.after for change in due if change.after.id not in again)
        return Pass(len(written), slow, tuple(again), settled)

    # -- one flow

    async def resolve(self, flow: UUID) -> Flow | None:
        """Does everything that is owed to a flow (or to a run that waits for others), also what
        comes of doing it. Returns the flow as it was seen when nothing was owed any more, or only
        the cancel of members that cannot be read."""

        async def round(number: int) -> Flow | Literal[RaceLost.RACE_LOST] | None:
            while (seen := await self._context.store.owing([flow], PAGE)).entries:
                entries = seen.entries
                if told := _of(OutboxKind.AWAITED, entries):  # to a run; a flow may have its id
                    await self._tell_run(flow, told)
                    continue
                found = known(seen.flows.get(flow), flow)
                if not (entries := await self._without_cancelled(found, entries)):
                    break  # only members that cannot be read are left
                if not await self._do(found, entries, seen.open):
                    return RACE_LOST
            return seen.flows.get(flow)

        try:
            return await retry(round, f"flow {flow}", MAX_ROUNDS)
        except RetryExhausted:
            log.info("other processes resolve flow %s; the sweep does what they leave", flow)
            return None

    async def _do(self, found: Flow, entries: Sequence[OutboxEntry], open: Set[UUID]) -> bool:
        """Does what these entries ask for and counts them; False when another process did. Of the
        members that have ended, those in `open` have edges to settle."""
        flow = found.id
        kinds = {entry.kind for entry in entries}
        if len(entries) >= PAGE:
            # There may be more endings: a flow that is over already cannot be cancelled.
            entries = [each for each in entries if each.kind is not OutboxKind.ORPHANED] or entries
        if OutboxKind.RELEASE in kinds:
            await self._release(found)
        await self._settle_edges({flow: _among(open, endings_of(entries))})
        await self._catch_up(flow, entries)
        await self._cancel_siblings(flow, entries)
        if OutboxKind.TELL in kinds:
            await self._tell(found, max(each.number for each in _of(OutboxKind.TELL, entries)))
        missing = await self._missing(found) if OutboxKind.CANCEL in kinds else None
        now = self._now()
        change = count_outbox(found, now, tuple(entries), missing)
        if _of(OutboxKind.ORPHANED, entries):
            change = orphaned(change, now)
        counted = await self._context.store.apply_flow(change)
        if counted:
            self._publish([change.after])
        return counted

    async def _without_cancelled(
        self, found: Flow, entries: Sequence[OutboxEntry]
    ) -> Sequence[OutboxEntry]:
        """Cancels the members of a cancelled flow before anything is settled: they are to be
        cancelled, not skipped. The cancel may be on a later page of entries, and a replay may not
        have seen it. Returns what is left to do and to count: not the cancel, as long as a member
        cannot be read, so that the sweep cancels it once it is repaired."""
        if found.cancel is None or not await self.cancel_members(found):
            return entries
        return [each for each in entries if each.kind is not OutboxKind.CANCEL]

    def _publish(self, flows: Iterable[Flow]) -> None:
        ended = tuple(flow for flow in flows if flow.ended_at is not None)
        if ended:
            self._context.post_commit.publish(Commit(ended_flows=ended))

    async def _missing(self, flow: Flow) -> int | None:
        """How many members were declared and never written, when the declaration died half way.
        One that is still under way finds the cancel, and then they are counted again."""
        if flow.graph is None:
            return None
        present = await self._context.store.counts(flow=flow.id)
        return max(0, flow.nodes - sum(present.by_state.values()))

    async def _catch_up(self, flow: UUID, entries: Sequence[OutboxEntry]) -> None:
        """A member that waits again after a replay counts upstreams that have ended since they
        were looked at, and could not settle what was not open then."""
        replayed = tuple(entry.id for entry in _of(OutboxKind.REPLAYED, entries))
        if not replayed:
            return
        query = EdgeQuery(flow=flow, downstreams=replayed, unsettled=True)
        async for page in edge_pages(self._context.store, query):
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
        children = tuple(entry.id for entry in _of(OutboxKind.SIBLINGS, entries))
        if not children:
            return
        joins = await self._context.store.load(children)
        query = EdgeQuery(flow=flow, downstreams=children, unsettled=True)
        async for page in edge_pages(self._context.store, query):
            reasons = {}
            for state in page:
                child = joins.get(state.edge.downstream)
                join = None if child is None else child.life.join
                if join is not None and join.state is not JoinState.PENDING:  # by a replay
                    reasons[state.edge.upstream] = rules.sibling_reason(join)
            cancel = partial(operator.cancel, owner=OPERATOR, lost_race=True)
            answers = await self._all(
                [Decision(id, partial(cancel, reason=why), by=None) for id, why in reasons.items()]
            )
            _measure_cancelled(list(reasons.values()), answers)

    async def cancel_members(self, flow: Flow) -> list[UUID]:
        """Cancels the members a cancelled flow takes along: in the name of an operator, unless the
        flow ended with its run. Returns those that cannot be read, and so were not cancelled."""
        unreadable: list[UUID] = []
        if flow.cancel is None or flow.cancel.policy is CancelPolicy.FLOW_ONLY:
            return unreadable
        pending = flow.cancel.policy is CancelPolicy.PENDING
        rule = partial(
            _cancel_pending if pending else operator.cancel,
            owner=CASCADE if is_orphan(flow) else OPERATOR,
            reason=flow.cancel.reason,
        )
        by = flow.cancel.by

        async def cancel(page: list[Snapshot]) -> None:
            decisions = [Decision(each.execution.uuid, rule, each, by=by) for each in page]
            _check(await self._context.decisions.decide_page(decisions))

        self.cancelling.add(flow.id)
        try:
            with followed("cancel"), rare_collections():
                store = self._context.store
                living = member_pages(store, flow.id, living=True, unreadable=unreadable)
                await overlapping(living, cancel)
        finally:
            self.cancelling.discard(flow.id)
        return unreadable

    async def _release(self, flow: Flow) -> None:
        """Also those that have ended: a replay must not find them held."""
        closed = flow.cancel is not None
        rule = partial(grow.unseal, closed=closed)
        async for page in member_pages(self._context.store, flow.id):
            owed = [each.execution.uuid for each in page if grow.is_released(each, closed=closed)]
            await self._all([Decision(uuid, rule, by=None) for uuid in owed])

    async def _tell(self, flow: Flow, ending: int) -> None:
        """Wakes the run that waits for the flow, which need not cancel it any more; telling the
        same ending (by its version) twice is harmless."""
        if flow.parent is None or flow.ended_at is None:
            return
        rule = partial(children.forget, flow=flow.id, orphan=is_orphan(flow))
        run = ExecutionId(flow.parent.execution).uuid
        # At the same time: the run hears of it and forgets it by one write, if it can hear.
        await asyncio.gather(
            self._wake(flow, flow.parent, ending), self._all([Decision(run, rule, by=None)])
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
        await self._signal(parent.execution, delivery)

    async def _tell_run(self, run: UUID, entries: Sequence[OutboxEntry]) -> None:
        """Wakes a run that waits for the ends of others."""
        waiting = (await self._context.store.load([run])).get(run)
        if waiting is not None:
            for entry in entries:
                await self._signal(waiting.execution.id, self._end_of(entry))
        await self._context.store.count_flows((), told=entries)

    def _end_of(self, entry: OutboxEntry) -> Delivery:
        return self._signals.delivery()(
            name=children.end_signal(entry.id),
            source_type="run",
            source=str(entry.id),
            idempotency_key=f"run:{entry.id}:{entry.number}",
            internal=True,
        )

    async def _signal(self, id: str, delivery: Delivery) -> None:
        try:
            with acting_as(None):  # it follows from the graph, whichever request noticed
                await self._signals.send(id, delivery.name, delivery)
        except (NotFound, NotSignalable) as error:
            log.info("no run waits for the end of %s any more: %s", delivery.source, error)

    async def _all(self, decisions: list[Decision]) -> list[object]:
        """All of them, or the first real trouble."""
        answers = await self._context.decisions.decide_all(decisions) if decisions else []
        _check(answers)
        return answers

    async def _settle_edges(self, flows: Mapping[UUID, Mapping[UUID, MemberEnding]]) -> int:
        """Settles the open edges that leave members, by flow, with how these ended."""
        members = [(flow, id) for flow, ended in flows.items() for id in ended]
        endings = {id: ending for ended in flows.values() for id, ending in ended.items()}
        after, settled = None, 0
        while members and (page := await self._context.store.unsettled(members, after, PAGE)):
            by_child: dict[UUID, list[Unsettled]] = {}
            for found in page:
                by_child.setdefault(found.state.edge.downstream, []).append(found)
            await self._all([_bringing(found, endings) for found in by_child.values()])
            settled += len(page)
            if len(page) < PAGE:
                break
            after = page[-1].state.edge.id
        return settled


def _measure_cancelled(reasons: Sequence[str], answers: Sequence[object]) -> None:
    """Which siblings were cancelled, and why."""
    for reason in sorted(set(reasons)):
        of_this = [a for why, a in zip(reasons, answers, strict=True) if why == reason]
        watching().cancelled_siblings(reason, [_disposition(answer) for answer in of_this])


def _check(answers: Iterable[object]) -> None:
    """Raises the first real trouble; what has ended meanwhile is no trouble."""
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, LeaseLost | NotFound):
            raise answer


def _disposition(answer: object) -> str:
    if isinstance(answer, NotFound):
        return "not_found"
    return "already_terminal" if isinstance(answer, LeaseLost) else "cancelled"


def _owes_endings(entries: Sequence[OutboxEntry]) -> bool:
    """Whether a flow owes endings, not too many, and nothing else."""
    return len(entries) < PAGE and all(entry.kind is OutboxKind.ENDED for entry in entries)


def _among(members: Set[UUID], endings: Mapping[UUID, MemberEnding]) -> Mapping[UUID, MemberEnding]:
    """The endings of these members."""
    return {id: ending for id, ending in endings.items() if id in members}


def _cannot_wait(change: FlowChange) -> bool:
    """Whether a count ends the flow, or revives it, or is large."""
    before, after = change.before, change.after
    ended = after.ended_at is not None or (before is not None and before.ended_at is not None)
    return ended or len(change.done) >= COUNT_AT


def _of(kind: OutboxKind, entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
    return [entry for entry in entries if entry.kind is kind]


def _bringing(open: Sequence[Unsettled], endings: Mapping[UUID, MemberEnding]) -> Decision:
    """Brings the endings of upstreams to a downstream, which need not be read again: it and its
    edges were seen at one moment, and settling one of these moves its version."""
    edges = {found.state.edge.id: found.state for found in open}
    brought = rules.settlements_of(edges.values(), endings)
    child, seen = open[0].state.edge.downstream, Loaded({}, {}, [], edges)
    return _settling(child, brought, open[0].downstream, seen)


def _settling(
    child: UUID,
    settlements: Iterable[Settlement],
    held: Snapshot | None = None,
    loaded: Loaded | None = None,
) -> Decision:
    brought = tuple(settlements)
    needs = partial(rules.needed_to_settle, settlements=brought)
    rule = partial(rules.settle, settlements=brought)
    return Decision(child, rule, held, needs, loaded, by=None)


def _cancel_pending(
    snapshot: Snapshot | None, now: Millis, owner: Owner, reason: str
) -> Change[operator.CancelAnswer]:
    """Only a member that never started, looked at when it is decided."""
    if snapshot is not None and snapshot.attempts_made:
        return unchanged(operator.CancelAnswer(snapshot.execution.id))
    return operator.cancel(snapshot, now, owner, reason)
