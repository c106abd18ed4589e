"""What is stored about a flow, compared with the reference.

`Checks.quiet` is for moments when nothing is owed: then every edge, join, count and state is
exactly what the endings say, nothing that can go on is kept, and whatever waits has something to
wait for.
"""

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from flowfabric.core.execution.model import (
    Active,
    Ended,
    Gate,
    Lost,
    Outcome,
    Snapshot,
    Suspended,
    Waiting,
)
from flowfabric.core.flow.join import EdgeState, Join
from flowfabric.core.flow.model import Flow
from flowfabric.store.contract import Store
from flowfabric.store.queries import EdgeQuery, EventQuery, MembersOf
from flowfabric.store.rows.record import FLOWS
from tests.machine.flow_model import REOPENED, REPLAYED, Book, Member, Wire

MANY = 500


@dataclass
class Checks:
    store: Store
    flow: UUID
    book: Book
    cursor: int = 0
    stuck: list[UUID] = field(default_factory=list)
    """Members that wait for an upstream which must be replayed by hand."""

    async def hear(self) -> None:
        """Every ending and every replay, once and in order."""
        page = await self.store.events(EventQuery(after=self.cursor))
        self.cursor = page.cursor
        for event in page.events:
            if event.id is None or event.id.uuid not in self.book.members:
                continue
            if event.completion is not None:
                self.book.hear(event.id.uuid, event.completion.name.lower())
            elif event.operator == "replayed":
                counted_again = (event.detail or {}).get("groups_reset")
                self.book.hear(event.id.uuid, REOPENED if counted_again else REPLAYED)

    async def quiet(self) -> None:
        """Everything, when nothing is owed."""
        assert (await self.store.owing([self.flow], MANY)).entries == [], "something is still owed"
        assert self.flow not in await self.store.owed_flows(MANY), "the flow is still in debt"
        await self.hear()
        flow = (await self.store.records.get(FLOWS, [self.flow]))[self.flow]
        found = await self._members()
        states = await self._edges()
        self.stuck = []
        for uuid, member in self.book.members.items():
            self._member(member, found[uuid], states)
        self._siblings(found, states)
        self._flow(flow, found)
        await self._children(found)

    async def _members(self) -> dict[UUID, Snapshot]:
        page = await self.store.snapshots(MembersOf(self.flow, limit=MANY))
        found = {snapshot.execution.uuid: snapshot for snapshot in page}
        assert found.keys() == self.book.members.keys(), "the members"
        living = await self.store.snapshots(MembersOf(self.flow, limit=MANY, living=True))
        alive = {uuid for uuid, member in self.book.members.items() if member.ended is None}
        assert {snapshot.execution.uuid for snapshot in living} == alive, "the living"
        return found

    async def _edges(self) -> dict[UUID, EdgeState]:
        """Each edge as it was settled, which the reference takes over: only one ending counts."""
        states = {one.edge.id: one for one in await self.store.edges(EdgeQuery(flow=self.flow))}
        assert states.keys() == self.book.wires.keys(), "the edges"
        for id, wire in self.book.wires.items():
            outcome = _word(states[id])
            assert outcome in wire.wanted, f"{_name(wire)} settled {outcome}, not {wire.wanted}"
            wire.may, wire.told = {outcome}, False
        return states

    def _member(self, member: Member, found: Snapshot, states: dict[UUID, EdgeState]) -> None:
        wires = [(wire, states[id]) for id, wire in self.book.wires.items() if _into(wire, member)]
        tally = Counter(wire.word(_word(state)) for wire, state in wires)
        join = found.life.join
        _counted(member, join, tally, len(wires))
        growing = self.book.cancel is None
        verdict = member.rule.verdict(len(wires), tally, growing=growing)
        if found.life.unsealed and member.ended is None:
            assert not self.book.sealed, f"{member.uuid} is held for ever"
            return
        # A member that has ended waits for nobody: an edge it is given later decides nothing.
        idle = isinstance(found.state, Ended) and join is not None and not join.fired_at
        if join is not None and not found.life.unsealed and not idle:
            assert join.state == verdict, f"{member.uuid}: {join} is to be {verdict}"
        self._place(member, found, verdict)

    def _place(self, member: Member, found: Snapshot, verdict: str) -> None:
        """Where a member is that may run, may not yet, or never will."""
        state = found.state
        assert isinstance(state, Ended) == (member.ended is not None), f"{member} {state}"
        if isinstance(state, Ended):
            self._ending(member, found, state, verdict)
            return
        assert verdict != "impossible", f"{member.uuid} lives without hope: {found}"
        waits = isinstance(state, Waiting) and state.gate is Gate.DEPENDENCIES
        if verdict == "satisfied":
            assert not waits, f"{member.uuid} waits for what has happened: {found}"
            return
        in_hand = isinstance(state, Active | Lost | Suspended)
        assert waits or (in_hand and member.overtaken), f"{member.uuid} runs too early: {found}"
        self._is_waited_for(member)

    def _is_waited_for(self, member: Member) -> None:
        """Something will settle the join: an upstream lives, or somebody must replay one."""
        ups = [wire.up for wire in self.book.into(member.uuid) if None in wire.may]
        assert ups, f"{member.uuid} waits for nothing"
        if all(self.book.members[up].ended for up in ups):
            assert REOPENED in member.tale, f"{member.uuid} waits for what has ended"
            self.stuck.append(member.uuid)

    def _ending(self, member: Member, found: Snapshot, state: Ended, verdict: str) -> None:
        assert state.outcome.name.lower() == member.ended, f"{member} {state}"
        match state.outcome:
            case Outcome.SKIPPED:
                assert verdict == "impossible", f"{member.uuid} was skipped with hope"
                assert state.attempt is None or member.was_replayed or member.overtaken
            case Outcome.CANCELLED:
                self._cancelled(member, found, verdict)
            case Outcome.SUCCESS | Outcome.FAILED:
                assert state.attempt is not None, f"{member.uuid} ended without an attempt"
                assert verdict == "satisfied" or member.overtaken, f"{member.uuid} ran too early"
            case Outcome.EXPIRED:
                pass

    def _cancelled(self, member: Member, found: Snapshot, verdict: str) -> None:
        """Nobody is cancelled without a reason."""
        reason = found.life.cancel_reason or ""
        if reason == "by hand":
            assert member.asked, f"nobody cancelled {member.uuid}"
        elif reason == "the flow":
            assert self.book.cancel in ("cancel_all", "cancel_pending"), "the flow lets them run"
            assert self.book.cancel == "cancel_all" or not found.attempts_made, "it had begun"
        elif reason == "flow_terminal":
            assert not found.attempts_made, "it came too late and ran"
        elif reason == "dependency_impossible":
            assert verdict == "impossible"
            assert member.overtaken
        else:
            assert reason in ("sibling_quorum_satisfied", "sibling_quorum_impossible"), reason
            downs = [wire.down for wire in self.book.out_of(member.uuid)]
            assert any(self.book.members[down].rule.cancels for down in downs), "let_run cancels"

    def _siblings(self, found: dict[UUID, Snapshot], states: dict[UUID, EdgeState]) -> None:
        """A join that has fired, and cancels the rest, has no upstream that runs on."""
        for id, wire in self.book.wires.items():
            up, down = self.book.members[wire.up], self.book.members[wire.down]
            join = found[wire.down].life.join
            if up.ended or states[id].outcome is not None or not down.rule.cancels:
                continue
            if up.was_replayed:
                continue  # an operator wants it to run
            fired = join is not None and join.state != "pending"
            assert not fired, f"{up} runs on although {down} has enough: {join}"

    def _flow(self, flow: Flow, found: dict[UUID, Snapshot]) -> None:
        spared = [uuid for uuid, snapshot in found.items() if _lost_a_race(snapshot)]
        counts = self.book.counts(spared)
        size, edges = len(self.book.members), len(self.book.wires)
        assert flow.ended == dict(counts), f"the counts: {flow.ended}, not {dict(counts)}"
        assert (flow.nodes, flow.edges, flow.revision) == (size, edges, size + edges), "the size"
        assert flow.state == self.book.state(counts), f"{flow.state}: {dict(counts)}"
        over = flow.state != "open" and counts.total() >= size
        assert (flow.ended_at is not None) == over, "when it ended"
        self._cancels(found)

    async def _children(self, found: dict[UUID, Snapshot]) -> None:
        """A flow that a member started lives unless the member ended without success."""
        flows = await self.store.records.get(FLOWS, list(self.book.children))
        for id, child in self.book.children.items():
            parts = await self.store.snapshots(MembersOf(id, limit=MANY))
            living = [one for one in parts if not isinstance(one.state, Ended)]
            word, orphan = child.left_by, child.left_by not in (None, "success")
            assert flows[id].state == ("cancelled" if orphan else "running"), f"{word}: {flows[id]}"
            assert bool(living) != orphan, f"left by a member that {word}: {parts}"
            assert not orphan or flows[id].ended_at is not None, "nobody is left of it"
            if child.parent.ended is None:
                life = found[child.parent.uuid].life
                assert (id in life.flows) == (word is None), f"{word}: {life.flows}"

    def _cancels(self, found: dict[UUID, Snapshot]) -> None:
        """A cancelled flow has taken along whom it takes along."""
        living = [one for one in found.values() if not isinstance(one.state, Ended)]
        if self.book.cancel == "cancel_all":
            assert not living, f"they survive their flow: {living}"
        if self.book.cancel == "cancel_pending":
            assert all(one.attempts_made for one in living), "they start in a cancelled flow"
        if self.book.cancel is not None:
            assert not any(one.life.unsealed for one in living), "nobody will let them go"


def _counted(member: Member, join: Join | None, tally: Counter[str], n: int) -> None:
    """Every edge that was settled is counted once."""
    if join is None:
        assert n == 0, f"{member.uuid} has edges and no join"
        return
    found = {"n": join.n, "good": join.succeeded, "bad": join.failed, "skipped": join.skipped}
    wanted = {"n": n, "good": tally["good"], "bad": tally["bad"], "skipped": tally["skipped"]}
    assert found == wanted, f"{member.uuid} counts {found}, not {wanted}"


def _lost_a_race(snapshot: Snapshot) -> bool:
    state = snapshot.state
    cancelled = isinstance(state, Ended) and state.outcome is Outcome.CANCELLED
    return cancelled and (snapshot.life.cancel_reason or "").startswith("sibling_quorum_")


def _word(state: EdgeState) -> str | None:
    return None if state.outcome is None else state.outcome.name.lower()


def _into(wire: Wire, member: Member) -> bool:
    return wire.down == member.uuid


def _name(wire: Wire) -> str:
    return f"{wire.up} → {wire.down} ({wire.on})"
