"""Flows: declaring them, growing them piece by piece, cancelling and replaying them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    Corruption,
    CycleDetected,
    EdgeExists,
    FlowConflict,
    FlowFabricError,
    FlowTerminal,
    Invalid,
    InvalidGraph,
    NotFound,
    StaleRevision,
)
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.numbers import (
    Seconds,
    check_flag,
    check_kind_of,
    check_seconds,
    check_word,
)
from flowfabric.core.base.pages import in_pages
from flowfabric.core.base.text import (
    MAX_NAME,
    MAX_REASON,
    check_kind,
    check_namespace,
    check_tags,
    check_text,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.operator import Replayed, check_replay
from flowfabric.core.execution.submission import Submission, Submitted, create
from flowfabric.core.flow import children, grow
from flowfabric.core.flow.cancel import (
    announce,
    cancel_entries,
    takes_members_along,
)
from flowfabric.core.flow.graph import Graph, Plan, check_graph, plan
from flowfabric.core.flow.grow import (
    Added,
    AlreadyMember,
    AlreadyStaged,
    Applied,
    Staged,
)
from flowfabric.core.flow.join import Edge, EdgeState, JoinPolicy
from flowfabric.core.flow.model import (
    Cancellation,
    CancelPolicy,
    Flow,
    FlowChange,
    FlowState,
    Parent,
    changed,
    check_parent,
    known,
    open_flow,
)
from flowfabric.core.flow.replay import (
    ReplayPlan,
    needed_to_replay_planned,
    plan_replay,
    replay_planned,
)
from flowfabric.engine.access.actor import current_actor
from flowfabric.engine.commit.decide import Decision
from flowfabric.engine.commit.records import find
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.executions import Executions
from flowfabric.engine.flow.declarations import FlowDeclarations
from flowfabric.engine.flow.dispatch import FlowDispatcher
from flowfabric.engine.flow.resolver import FlowResolver
from flowfabric.engine.flow.walks import PAGE, member_pages, reaches, whole
from flowfabric.store.contract import Store
from flowfabric.store.queries import EdgeQuery, MembersOf
from flowfabric.store.rows.record import FLOWS

MAX_ROUNDS = 100
"""How often a change of a flow is tried: a rival that adds members without a pause wins most."""
MAX_REMAINING = 1000
"""Most members that the answer to a cancel names."""

T = TypeVar("T")
FlowRule = Callable[[Flow | None, Millis], Awaitable[tuple[FlowChange | None, T]]]
"""Decides on a flow: what to write (None: nothing), and what to answer."""


class FlowCreated(Struct, frozen=True):
    id: UUID


class Declared(Struct, frozen=True):
    """`created` is False when the very same graph was declared before."""

    id: UUID
    members: dict[str, ExecutionId]
    created: bool


class FlowCancelled(Struct, frozen=True):
    """`policy` and `reason` are the first call's. `scheduled`: members are being cancelled in the
    background. `remaining` are those that have not ended, at most 1,000 of them."""

    id: UUID
    policy: CancelPolicy
    reason: str
    scheduled: bool = False
    remaining: tuple[ExecutionId, ...] = ()
    named: str | None = None


class Flows(Service):
    """`engine.flows`"""

    def __init__(
        self,
        context: EngineContext,
        executions: Executions,
        dispatcher: FlowDispatcher,
        resolver: FlowResolver,
    ) -> None:
        super().__init__(context)
        self._executions = executions
        self._dispatcher = dispatcher
        self._resolver = resolver
        self._locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()
        self._declarations = FlowDeclarations(context)

    # -- building

    async def create(
        self,
        kind: str,
        *,
        id: UUID | None = None,
        namespace: str = "default",
        tags: Mapping[str, str] | None = None,
        eager: bool = False,
    ) -> FlowCreated | AlreadySatisfied:
        """An open flow without members; seal it when the graph is complete. One that is `eager` is
        not sealed: its members run as soon as their own edges allow."""
        self._accept()
        new = replace(self._new(kind, id, namespace, tags), eager=check_flag(eager, "eager"))

        async def decide(
            flow: Flow | None, now: Millis
        ) -> tuple[FlowChange | None, FlowCreated | AlreadySatisfied]:
            if flow is None:
                made = replace(new, created_at=now, mutated_at=now)
                return FlowChange(None, made), FlowCreated(new.id)
            if (flow.kind, flow.namespace) != (new.kind, new.namespace):
                raise FlowConflict(f"flow {flow.id} is known as {flow.kind!r}")
            return None, AlreadySatisfied("flow_exists")

        return await self._change(new.id, decide)

    async def declare(
        self,
        kind: str,
        graph: Graph,
        *,
        id: UUID | None = None,
        namespace: str = "default",
        tags: Mapping[str, str] | None = None,
        parent: Parent | None = None,
    ) -> Declared:
        """The whole graph in one call. It is checked before anything is written; what cannot run
        is refused as a whole. Declaring the same graph under the same id again is harmless, and
        finishes what an interrupted call began."""
        self._accept()
        wanted = check_graph(graph)
        new = self._new(kind, id, namespace, tags)
        now = self._now()
        laid = plan(new.id, wanted, now)
        flow = replace(
            new,
            state=FlowState.RUNNING,
            nodes=len(wanted.nodes),
            edges=len(laid.edges),
            revision=len(wanted.nodes) + len(laid.edges),
            graph=laid.digest,
            parent=None if parent is None else check_parent(parent),
            created_at=now,
            mutated_at=now,
        )
        if await self._declarations.lay(flow, laid):
            return Declared(new.id, laid.ids, created=True)
        created = await self._lay(flow, laid)
        if not created and await self._is_over(new.id):
            return Declared(new.id, laid.ids, created)  # retention may have taken some members
        await self._executions.put_all(laid.rest)
        await self._executions.put_all(laid.roots)
        await self._cancel_late(new.id)
        return Declared(new.id, laid.ids, created)

    async def add(self, flow: UUID, submission: Submission) -> Added | AlreadyMember:
        """A new execution as a member; it does not run before it is one, and in an open flow not
        before the seal. With a known key it is the one that was added before."""
        self._accept()
        key = parse_uuid(flow, "flow")
        wanted = check_kind_of(submission, Submission, "submission")
        open_flow(await _exact(self._context.store, self._resolver, key), key)
        creation = grow.held(create(replace(wanted, flow=key), self._fresh(), self._now()))
        # Two writes. A process that dies in between leaves one that is held; the sweep ends it.
        made = await self._executions.put_new(creation)
        try:
            return await self.join(key, made.id)
        except FlowTerminal:
            if isinstance(made, Submitted):  # nothing else will ever let it go
                await self._executions.cancel(made.id, reason="flow_terminal")
            raise

    async def join(self, flow: UUID, id: str) -> Added | AlreadyMember:
        """An execution that was made for this flow becomes a member, in any state."""
        key, execution = parse_uuid(flow, "flow"), ExecutionId(id)
        grow.check_home(key, execution)

        async def decide(
            found: Flow | None, now: Millis
        ) -> tuple[FlowChange | None, Added | AlreadyMember]:
            open = open_flow(found, key)
            return grow.join(open, now, await self._load(execution), execution)

        return await self._change(key, decide, grows=True)

    async def stage(
        self, edge: Edge, *, expected_revision: int | None = None
    ) -> Staged | AlreadyStaged:
        """Adds an edge and gates its downstream, in one change. `expected_revision` refuses it if
        the graph has changed since. Repeating it is harmless, whatever the revision; another edge
        under the same id is refused (`EdgeExists`)."""
        if expected_revision is not None:
            check_kind_of(expected_revision, int, "expected_revision")
        return await self._stage(edge, expected_revision, unapplied=False)

    async def stage_only(self, edge: Edge, expected_revision: int) -> Staged | AlreadyStaged:
        """As `stage`, for a client that applies the edge by a second call."""
        check_kind_of(expected_revision, int, "expected_revision")
        return await self._stage(edge, expected_revision, unapplied=True)

    async def _stage(
        self, edge: Edge, expected_revision: int | None, *, unapplied: bool
    ) -> Staged | AlreadyStaged:
        wanted = replace(grow.check_edge(edge), created_at=self._now(), late=False, unapplied=False)

        async def decide(
            found: Flow | None, now: Millis
        ) -> tuple[FlowChange | None, Staged | AlreadyStaged]:
            flow = open_flow(found, wanted.flow)
            if await _is_staged(self._context.store, wanted):
                return None, AlreadyStaged(wanted.id, flow.revision)
            if expected_revision not in (None, flow.revision):
                raise StaleRevision(f"the graph is at revision {flow.revision}")
            new = replace(wanted, unapplied=unapplied)
            return grow.stage(flow, now, new, *await _ends(self._context.store, flow, new))

        return await self._change(wanted.flow, decide, grows=True)

    async def apply(
        self, flow: UUID, edge: UUID, *, input: str | None = None
    ) -> Applied | AlreadySatisfied:
        """Staging an edge gates its downstream already: this only says whether it is there, and
        `Applied` for one that `stage_only` has staged, once. That first call may also say under
        which name the edge passes the result, if staging it did not."""
        key, wanted = parse_uuid(flow, "flow"), parse_uuid(edge, "edge")
        name = check_text(input, "input", limit=MAX_REASON) or None if input is not None else None

        async def decide(
            found: Flow | None, now: Millis
        ) -> tuple[FlowChange | None, Applied | AlreadySatisfied]:
            present = known(found, key)
            if (staged := await _find_edge(self._context.store, key, wanted)) is None:
                raise NotFound("edge", edge)
            if not staged.edge.unapplied:
                return None, AlreadySatisfied("already_applied")
            others = await self._context.store.unsatisfied(key, staged.edge.downstream)
            change = await _applied(self._context.store, present, now, staged.edge, name)
            answer = Applied(others + (staged.outcome is None))
            return replace(change, after=changed(present, now)), answer

        return await self._change(key, decide)

    async def set_join(self, flow: UUID, downstream: str, policy: JoinPolicy) -> bool:
        """When the downstream runs: after all, any or so many of its upstreams. Said before its
        first edge; False when the same was said before."""
        key, execution = parse_uuid(flow, "flow"), ExecutionId(downstream)
        grow.check_k(policy)

        async def decide(found: Flow | None, now: Millis) -> tuple[FlowChange | None, bool]:
            open = open_flow(found, key)
            member = await self._load(execution)
            change = grow.set_policy(open, now, member, execution.uuid, policy)
            return change, change is not None

        return await self._change(key, decide, grows=True)

    async def seal(self, flow: UUID) -> bool:
        """The graph is complete: members are let go as their joins allow. False when it was sealed
        before, also if it has ended since."""
        key = parse_uuid(flow, "flow")

        async def decide(found: Flow | None, now: Millis) -> tuple[FlowChange | None, bool]:
            if grow.is_sealed(known(found, key)):
                return None, False
            open = open_flow(found, key)
            async for page in member_pages(self._context.store, key):
                for member in page:
                    grow.check_seal(member)
            return grow.seal(open, now), True

        sealed = await self._change(key, decide)
        await self._resolver.resolve(key)
        return sealed

    # -- cancelling, replaying

    async def cancel(
        self,
        flow: UUID,
        *,
        reason: str = "flow_cancelled",
        policy: CancelPolicy | str = CancelPolicy.ALL,
        wait: bool = True,
        timeout: Seconds | None = None,
        named: str | None = None,
    ) -> FlowCancelled:
        """Cancels a flow and, by its policy, its members. The flow takes no members from then on,
        whatever becomes of those it has. Without `wait` members are cancelled in the background;
        with a `timeout` TimeoutError is raised when they are not after so many seconds, and the
        background finishes it. Cancelling again gives the first call's policy and reason; `named`
        is kept as the caller's own word for the policy."""
        span = None if timeout is None else check_seconds(timeout, "timeout")
        marked, header = await self._mark_cancelled(flow, reason, policy, named)
        if header.policy is CancelPolicy.FLOW_ONLY or not wait:
            self._dispatcher.kick([header.id])
            left = await _owed(self._context.store, header)
            return replace(header, scheduled=bool(left), remaining=left)
        async with asyncio.timeout(span):
            await self._dispatcher.finish(marked)
        return replace(header, remaining=await _owed(self._context.store, header))

    async def cancel_header(
        self,
        flow: UUID,
        *,
        reason: str = "flow_cancelled",
        policy: CancelPolicy | str = CancelPolicy.ALL,
    ) -> FlowCancelled:
        """Marks a flow as cancelled and writes down what is owed to its members, in one change."""
        _, header = await self._mark_cancelled(flow, reason, policy)
        return replace(header, remaining=await _owed(self._context.store, header))

    async def _mark_cancelled(
        self, flow: UUID, reason: str, policy: CancelPolicy | str, named: str | None = None
    ) -> tuple[Flow, FlowCancelled]:
        key = parse_uuid(flow, "flow")
        word = None if named is None else check_text(named, "policy", limit=MAX_NAME)
        text = check_text(reason, "reason", limit=MAX_REASON)
        chosen = check_word(policy, CancelPolicy, "the policy of a cancel")
        seen = None
        with suppress(Corruption):  # of a member: cancelling the others does not need it
            seen = await self._resolver.resolve(key)  # what is over already cannot be cancelled

        async def decide(found: Flow | None, now: Millis) -> tuple[FlowChange | None, Flow]:
            if known(found, key).cancel is not None:
                return None, known(found, key)
            open = open_flow(found, key)
            cancel = Cancellation(now, text, chosen, current_actor(), word)
            after = changed(replace(open, state=FlowState.CANCELLED), now, cancel=cancel)
            owed = cancel_entries(after, held=open.state is FlowState.OPEN)
            announcers = await _first_member(self._context.store, key)
            changes = tuple(announce(member, now, after) for member in announcers)
            return FlowChange(open, after, changes=changes, owed=owed), after

        marked = await self._change(key, decide, kick=False, seen=seen)
        first = marked.cancel or Cancellation(self._now(), text, chosen)
        return marked, FlowCancelled(key, first.policy, first.reason, named=first.named)

    async def acknowledge(self, flow: UUID, id: str) -> None:
        """A member is acknowledged by its own ending; saying so is harmless."""
        parse_uuid(flow, "flow"), ExecutionId(id)

    async def replay(self, flow: UUID) -> list[Replayed]:
        """Runs again every member that failed, expired or was cancelled, and those that were
        skipped because of it. What succeeded stays as it is, and so do branches for failures that
        did not happen and the losers of a race that was won. Refused as a whole when one of them
        may not be replayed; one that another caller replays is left to them."""
        key = parse_uuid(flow, "flow")
        found = known(await find(self._context.store, FLOWS, key), key)
        if found.state is FlowState.CANCELLED:
            raise FlowTerminal(f"flow {key} was cancelled, so it cannot be replayed")
        await self._resolver.resolve(key)  # or a late ending skips again what waits again
        plan = plan_replay(*await whole(self._context.store, key))
        for member in plan.members:
            check_replay(member)
        replayed: list[Replayed] = []
        for page in in_pages(plan.members, PAGE):
            replayed += await self._replay_page(plan, page)
        await self._resolver.resolve(key)  # the flow is open again before a caller waits for it
        return replayed

    async def set_tags(self, flow: UUID, tags: Mapping[str, str]) -> int:
        """Adds or replaces tags, all or none, in any state; returns how many."""
        key, checked = parse_uuid(flow, "flow"), check_tags(tags)
        if not checked:
            raise Invalid("give at least one tag")

        async def decide(found: Flow | None, now: Millis) -> tuple[FlowChange, int]:
            present = known(found, key)
            after = changed(present, now, tags={**present.tags, **checked})
            return FlowChange(present, after), len(checked)

        return await self._change(key, decide)

    async def drain(self) -> None:
        """What this process does by itself for flows after its commits is done."""
        await self._declarations.drain()
        await self._dispatcher.drain()

    # -- how

    def _new(
        self, kind: str, id: UUID | None, namespace: str, tags: Mapping[str, str] | None
    ) -> Flow:
        return Flow(
            id=self._fresh() if id is None else parse_uuid(id, "flow"),
            kind=check_kind(kind),
            namespace=check_namespace(namespace),
            tags=check_tags(tags) if tags else {},
        )

    async def _is_over(self, flow: UUID) -> bool:
        """Whether nothing of a flow is to be written any more."""
        found = await find(self._context.store, FLOWS, flow)
        return found is not None and (found.ended_at is not None or takes_members_along(found))

    async def _cancel_late(self, flow: UUID) -> None:
        """Members that were written while their flow was cancelled are owed it as well."""
        cancelled = await find(self._context.store, FLOWS, flow)
        if cancelled is None or not takes_members_along(cancelled):
            return

        async def decide(found: Flow | None, now: Millis) -> tuple[FlowChange, None]:
            after = changed(known(found, flow), now)
            return FlowChange(found, after, owed=cancel_entries(after, held=False)), None

        await self._change(flow, decide, kick=False)
        await self._dispatcher.finish(cancelled)

    async def _lay(self, flow: Flow, laid: Plan) -> bool:
        """Writes the flow and its edges; False when the same was declared before."""
        pages = list(in_pages(laid.edges, PAGE)) or [()]

        async def decide(found: Flow | None, now: Millis) -> tuple[FlowChange | None, bool]:
            if found is None:
                for creation in (*laid.roots, *laid.rest):
                    await self._context.known_limits.check(creation.snapshot.execution.rules)
                return FlowChange(None, flow, pages[0], await self._started_by(flow, now)), True
            same = (flow.graph, flow.kind, flow.namespace)
            if (found.graph, found.kind, found.namespace) != same:
                raise FlowConflict(f"flow {flow.id} was declared with another graph")
            return None, False

        # One that a run starts is declared again when the run goes on.
        created = await self._change(flow.id, decide, new=flow.parent is None)
        for page in pages[1:]:

            async def more(
                found: Flow | None, now: Millis, page: tuple[Edge, ...] = page
            ) -> tuple[FlowChange, None]:
                present = known(found, flow.id)
                return FlowChange(present, changed(present, now), edges=page), None

            await self._change(flow.id, more)
        return created

    async def _started_by(self, flow: Flow, now: Millis) -> tuple[Change[object], ...]:
        """The run that starts the flow remembers it, by the very change that creates it."""
        if flow.parent is None:
            return ()
        return (children.start(await self._load(flow.parent.execution), now, flow.id),)

    async def _change(
        self,
        id: UUID,
        rule: FlowRule[T],
        *,
        kick: bool = True,
        new: bool = False,
        grows: bool = False,
        seen: Flow | None = None,
    ) -> T:
        """Load, decide, apply; calls of this process for one flow one after the other. One that is
        `new` most likely is looked for only if it turns out to be there; one that `grows` may have
        ended without being counted; one that the caller has `seen` just now is loaded only if it
        has changed since."""

        async def round(
            number: int,
        ) -> tuple[FlowChange | None, T] | Literal[RaceLost.RACE_LOST]:
            now = self._now()
            unseen = new and not number
            found = None if unseen or number else seen
            if found is None and not unseen:
                store = self._context.store
                look = _exact(store, self._resolver, id) if grows else find(store, FLOWS, id)
                found = await look
            try:
                change, answer = await rule(found, now)
            except FlowFabricError:
                if unseen:
                    return RACE_LOST  # what would be refused today may be there since yesterday
                raise
            written = change is None or await self._context.store.apply_flow(change)
            return (change, answer) if written else RACE_LOST

        async with self._locks.setdefault(id, asyncio.Lock()):
            change, answer = await retry(round, f"flow {id}", MAX_ROUNDS)
        if change is not None:
            self._context.post_commit.applied(change.changes)
            if change.owed and kick:
                self._dispatcher.kick([id])
        return answer

    async def _replay_page(self, plan: ReplayPlan, page: Sequence[Snapshot]) -> list[Replayed]:
        """Those of the page that this call has replayed."""
        rule = partial(replay_planned, plan=plan)
        answers = await self._context.decisions.decide_all(
            [Decision(each.execution.uuid, rule, needs=needed_to_replay_planned) for each in page]
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if answer is not None]


async def _exact(store: Store, resolver: FlowResolver, id: UUID) -> Flow | None:
    """The flow; of a sealed one the endings are counted, since one that is over takes nothing, also
    if the process that ended its last member has died right after that."""
    found = await find(store, FLOWS, id)
    if found is None or found.state is not FlowState.RUNNING:
        return found
    with suppress(Corruption):  # of a member: then the flow is not over
        return await resolver.resolve(id) or found
    return found


async def _owed(store: Store, header: FlowCancelled) -> tuple[ExecutionId, ...]:
    """Members that still owe an ending to the cancel, also those that cannot be read."""
    if header.policy is CancelPolicy.FLOW_ONLY:
        return ()
    found = await store.page(MembersOf(header.id, limit=MAX_REMAINING, living=True))
    pending = header.policy is CancelPolicy.PENDING
    left = [each.execution.id for each in found.items if not (pending and each.attempts_made)]
    left += [ExecutionId.member(header.id, uuid) for uuid in found.unreadable]
    return tuple(sorted(left, key=lambda id: id.uuid))


async def _first_member(store: Store, flow: UUID) -> list[Snapshot]:
    """The first member that can be read, if there is any."""
    first = await store.snapshots(MembersOf(flow, limit=1))
    return first or (await store.snapshots(MembersOf(flow, limit=PAGE)))[:1]


async def _applied(
    store: Store, flow: Flow, now: Millis, edge: Edge, input: str | None
) -> FlowChange:
    """The flow with the edge applied and passing the result as `input`, if it does not yet."""
    applied = replace(edge, unapplied=False)
    if input in (None, edge.input):
        return FlowChange(flow, flow, applied=(applied,))
    if edge.input is not None:
        raise InvalidGraph(f"the edge was staged to pass the result as {edge.input!r}")
    ends = await store.load([edge.downstream])
    named = replace(applied, input=input, late=True)
    return grow.pass_result(flow, now, named, ends.get(edge.downstream))


async def _find_edge(store: Store, flow: UUID, id: UUID) -> EdgeState | None:
    found = await store.edges(EdgeQuery(flow=flow, ids=(id,)))
    return found[0] if found else None


async def _ends(store: Store, flow: Flow, edge: Edge) -> tuple[Snapshot, Snapshot]:
    """Both ends of a new edge; `CycleDetected` if it would close a circle."""
    found = await store.load([edge.upstream, edge.downstream])
    upstream, downstream = [
        grow.member_of(flow, found.get(id), id) for id in (edge.upstream, edge.downstream)
    ]
    if await reaches(store, edge.flow, edge.downstream, edge.upstream):
        raise CycleDetected(f"{upstream.run} depends on {downstream.run} already")
    return upstream, downstream


async def _is_staged(store: Store, edge: Edge) -> bool:
    """Whether this very edge is there; another one of the same id is a conflict. One that got its
    input late was staged without."""
    if (found := await _find_edge(store, edge.flow, edge.id)) is None:
        return False
    there = replace(found.edge, created_at=edge.created_at, late=False, unapplied=False)
    if edge == there or (found.edge.late and edge == replace(there, input=None)):
        return True
    raise _taken_by(found.edge)


def _taken_by(edge: Edge) -> EdgeExists:
    return EdgeExists(
        edge.id,
        edge.upstream,
        edge.downstream,
        flow=edge.flow,
        on=str(edge.on),
        input=edge.input,
        created_at=edge.created_at,
    )
