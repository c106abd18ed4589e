"""What the endings of members leave behind: outbox entries and settled edges; and when
they are forgotten."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, operator
from flowfabric.core.execution.change import Change, fold
from flowfabric.core.execution.lease import mark_expired, revoke
from flowfabric.core.execution.model import Failure, Outcome, Snapshot, Source
from flowfabric.core.execution.takeover import end_lost
from flowfabric.core.flow import progress
from flowfabric.core.flow.join import Edge, EdgeState, Join, JoinState
from flowfabric.core.flow.model import Flow, FlowChange, FlowState
from flowfabric.core.flow.outbox import SIBLING, OutboxEntry, OutboxKind
from flowfabric.core.wait.model import DedupRecord, Loaded, Needs
from flowfabric.store.queries import FlowQuery, MembersOf
from flowfabric.store.rows.record import FLOWS
from tests.kit.lab import TTL
from tests.kit.situations import RETRY, suspension, timeouts
from tests.kit.snapshots import after, owner_of
from tests.store.flow_bench import (
    A,
    B,
    Bench,
    cancelled,
    completion,
    edge,
    outbox_entry,
    touch,
    uuid_of,
)

DAY = 86_400_000


# -- outbox entries come with endings

Make = Callable[[Bench, Flow], Awaitable[Change[Any]]]


async def _completed(bench: Bench, flow: Flow) -> Change[Any]:
    return completion(await bench.running(flow), bench.now)


async def _failed(bench: Bench, flow: Flow) -> Change[Any]:
    held = await bench.running(flow)
    return attempt.fail(held, bench.now, owner_of(held), Failure("boom"))


async def _cancelled(bench: Bench, flow: Flow) -> Change[Any]:
    return cancelled(await bench.running(flow), bench.now)


async def _cancelled_suspended(bench: Bench, flow: Flow) -> Change[Any]:
    waits = suspension(await bench.running(flow), bench.now)
    await bench.write(waits)
    return cancelled(after(waits), bench.now)


async def _expired(bench: Bench, flow: Flow) -> Change[Any]:
    member = await bench.member(flow, policy=timeouts(deadline=1000))
    bench.clock.advance(1000)
    return operator.expire(member, bench.now)


async def _timed_out(bench: Bench, flow: Flow) -> Change[Any]:
    held = await bench.running(flow, policy=timeouts(attempt=1000))
    bench.clock.advance(1000)
    return operator.expire(held, bench.now)


async def _skipped(bench: Bench, flow: Flow) -> Change[Any]:
    member = await bench.member(flow)
    return bench.ending(member, Outcome.SKIPPED)


async def _lost_over_cap(bench: Bench, flow: Flow) -> Change[Any]:
    held = await bench.running(flow, policy={"max_reclaim_count": 0})
    bench.clock.advance(TTL)
    loss = mark_expired(held, bench.now)
    await bench.write(loss)
    return end_lost(after(loss), attempt=0, now=bench.now)


ENDINGS: dict[Make, Outcome] = {
    _completed: Outcome.SUCCESS,
    _failed: Outcome.FAILED,
    _cancelled: Outcome.CANCELLED,
    _cancelled_suspended: Outcome.CANCELLED,
    _expired: Outcome.EXPIRED,
    _timed_out: Outcome.EXPIRED,
    _skipped: Outcome.SKIPPED,
    _lost_over_cap: Outcome.FAILED,
}


@pytest.mark.parametrize("make", ENDINGS)
async def test_every_ending_of_a_member_is_owed_to_its_flow(bench: Bench, make: Make) -> None:
    flow = await bench.flow()
    change = await make(bench, flow)
    ended = after(change)
    if change.plain_end:
        assert await bench.store.end([change], bench.now) == {uuid_of(ended)}
    else:
        await bench.write(change)
    owed = OutboxEntry(flow.id, uuid_of(ended), ended.head.version, OutboxKind.ENDED, ENDINGS[make])
    assert await bench.outbox(flow) == [owed]
    assert await bench.store.owed_flows(9) == [flow.id]


async def _retried(bench: Bench, flow: Flow) -> Change[Any]:
    held = await bench.running(flow, policy=RETRY)
    return attempt.fail(held, bench.now, owner_of(held), Failure("boom"))


async def _suspended(bench: Bench, flow: Flow) -> Change[Any]:
    return suspension(await bench.running(flow), bench.now)


async def _revoked(bench: Bench, flow: Flow) -> Change[Any]:
    return revoke(await bench.running(flow), bench.now, reason="maintenance")


async def _moved_up(bench: Bench, flow: Flow) -> Change[Any]:
    return operator.change_priority(await bench.member(flow), bench.now, 5)


async def _ended_stranger(bench: Bench, flow: Flow) -> Change[Any]:
    """One that has the flow's name, but is no member."""
    creation = bench.creation(flow, flagged=False)
    assert await bench.store.submit([creation], bench.now) == [None]
    return cancelled(creation.snapshot, bench.now)


@pytest.mark.parametrize("make", [_retried, _suspended, _revoked, _moved_up, _ended_stranger])
async def test_nothing_else_is_owed(bench: Bench, make: Make) -> None:
    flow = await bench.flow()
    await bench.write(await make(bench, flow))
    assert await bench.outbox(flow) == []
    assert await bench.store.owed_flows(9) == []


async def test_a_replay_takes_the_ending_back(bench: Bench) -> None:
    flow = await bench.flow()
    ending = await _failed(bench, flow)
    await bench.write(ending)
    change = operator.replay(after(ending), bench.now)
    await bench.write(change)
    id, number = uuid_of(after(change)), after(change).head.version
    assert await bench.outbox(flow) == [
        OutboxEntry(flow.id, id, number - 1, OutboxKind.ENDED, Outcome.FAILED),
        OutboxEntry(flow.id, id, number, OutboxKind.REPLAYED, Outcome.FAILED),
    ]


async def test_an_ending_and_its_replay_in_one_write_owe_both(bench: Bench) -> None:
    flow = await bench.flow()
    ending = await _failed(bench, flow)
    await bench.write(fold(ending, operator.replay(after(ending), bench.now)))
    assert [c.kind for c in await bench.outbox(flow)] == [OutboxKind.ENDED, OutboxKind.REPLAYED]


@pytest.mark.parametrize(
    ("source", "lost_race"), [(Source.OPERATOR, True), (Source.FLOW_CASCADE, False)]
)
async def test_a_loser_that_was_cancelled_is_spared(
    bench: Bench, source: Source, lost_race: bool
) -> None:
    """Also one that was cancelled before there was the flag"""
    flow = await bench.flow()
    member = await bench.member(flow)
    reason = f"{SIBLING}satisfied"
    await bench.write(cancelled(member, bench.now, reason, source, lost_race=lost_race))
    (owed,) = await bench.outbox(flow)
    assert owed.spared


async def test_a_refused_ending_owes_nothing(bench: Bench) -> None:
    flow = await bench.flow()
    one, two = await bench.members(flow, 2)
    await bench.write(touch(one))
    changes = [cancelled(one, bench.now), cancelled(two, bench.now)]
    assert await bench.store.apply(changes) == {uuid_of(two)}
    assert [c.id for c in await bench.outbox(flow)] == [uuid_of(two)]


async def test_what_a_change_owes_besides_is_written_with_it(bench: Bench) -> None:
    flow = await bench.flow()
    member = await bench.member(flow)
    siblings = OutboxEntry(flow.id, uuid_of(member), 2, OutboxKind.SIBLINGS)
    await bench.write(touch(member, owed=(siblings, siblings)))
    assert await bench.outbox(flow) == [siblings]


# -- edges are settled with the downstream


async def _joined(bench: Bench, flow: Flow, upstreams: int) -> tuple[Snapshot, list[Edge]]:
    """A member that waits for others, and the edges into it."""
    creation = bench.creation(flow)
    member, child = creation.snapshot, uuid_of(creation.snapshot)
    life = replace(member.life, join=Join(n=upstreams))
    member = replace(member, head=replace(member.head, life=life))
    assert await bench.store.submit([replace(creation, snapshot=member)], bench.now) == [None]
    edges = [edge(flow, n + 1, UUID(int=500 + n), child) for n in range(upstreams)]
    assert await bench.apply(flow, edges=tuple(edges))
    return member, edges


async def _settle(bench: Bench, member: Snapshot, *edges: Edge) -> Change[Any]:
    settlements = tuple(progress.Settlement(item.id, Outcome.SUCCESS) for item in edges)
    ask = progress.needed_to_settle(member, settlements)
    assert ask is not None
    (memory,) = await bench.store.load_needs([ask])
    return progress.settle(member, bench.now, memory, settlements)


async def test_an_edge_is_settled_once(bench: Bench) -> None:
    flow = await bench.flow()
    member, (one, two, three) = await _joined(bench, flow, 3)
    first = await _settle(bench, member, one, two)
    await bench.write(first)
    again = await _settle(bench, after(first), two, three)
    await bench.write(again)
    fired = Join(n=3, succeeded=3, state=JoinState.SATISFIED, fired_at=bench.now)
    assert after(again).life.join == fired
    outcomes = [found.outcome for found in await bench.edges(flow)]
    assert outcomes == [Outcome.SUCCESS] * 3
    assert (await _settle(bench, after(again), one)).after is None


async def test_what_was_settled_on_an_old_version_is_not_written(bench: Bench) -> None:
    flow = await bench.flow()
    member, (one, two) = await _joined(bench, flow, 2)
    stale, fresh = await _settle(bench, member, one), await _settle(bench, member, two)
    await bench.write(fresh)
    assert await bench.store.apply([stale]) == set()
    assert [found.outcome for found in await bench.edges(flow)] == [None, Outcome.SUCCESS]


@pytest.mark.parametrize("outcome", [*Outcome, None])
async def test_however_the_upstream_ended(bench: Bench, outcome: Outcome | None) -> None:
    flow = await bench.flow()
    member, edges = await _joined(bench, flow, 2)
    first = touch(member, settled=tuple((item.id, Outcome.FAILED) for item in edges))
    await bench.write(first)
    settled = ((edges[0].id, Outcome.SKIPPED), (edges[0].id, outcome), (A, Outcome.SUCCESS))
    await bench.write(touch(after(first), settled=settled))
    assert [found.outcome for found in await bench.edges(flow)] == [outcome, Outcome.FAILED]


async def test_the_same_id_in_another_flow_is_another_edge(bench: Bench) -> None:
    flow, other = await bench.flow(), await bench.flow()
    member, (mine,) = await _joined(bench, flow, 1)
    _, (theirs,) = await _joined(bench, other, 1)
    assert mine.id == theirs.id
    await bench.write(await _settle(bench, member, mine))
    assert await bench.edges(other) == [EdgeState(theirs)]


# -- recall


async def test_edges_are_recalled_by_id_and_all_into_one(bench: Bench) -> None:
    flow, other = await bench.flow(), await bench.flow()
    member, edges = await _joined(bench, flow, 3)
    beside = edge(flow, 9, A, B)
    assert await bench.apply(await bench.load(flow), edges=(beside,))
    stranger, _ = await _joined(bench, other, 1)
    change = touch(member, settled=((edges[1].id, Outcome.EXPIRED),), dedup=(DedupRecord(b"k"),))
    await bench.write(change)
    one, two, three = EdgeState(edges[0]), EdgeState(edges[1], Outcome.EXPIRED), EdgeState(edges[2])
    child = uuid_of(member)
    asks = [
        Needs(child, edges=(edges[1].id, beside.id, B), dedup=(b"k",)),
        Needs(child, incoming=True),
        Needs(child, edges=(beside.id,), incoming=True),
        Needs(uuid_of(stranger), edges=(edges[1].id,)),
        Needs(bench.fresh(), edges=(edges[0].id,), incoming=True),
        Needs(child),
    ]
    found = await bench.store.load_needs(asks)
    all_in = {item.edge.id: item for item in (one, two, three)}
    aside = {beside.id: EdgeState(beside)}
    assert found == [
        Loaded({}, {b"k": DedupRecord(b"k")}, [], {two.edge.id: two, **aside}),
        Loaded({}, {}, [], all_in),
        Loaded({}, {}, [], {**all_in, **aside}),
        *[Loaded({}, {}, [])] * 3,
    ]


async def test_an_execution_outside_flows_has_no_edges(bench: Bench) -> None:
    flow = await bench.flow()
    creation = bench.creation(flow)
    execution = replace(creation.snapshot.execution, flow=None)
    creation = replace(creation, snapshot=replace(creation.snapshot, execution=execution))
    assert await bench.store.submit([creation], bench.now) == [None]
    assert await bench.apply(flow, edges=(edge(flow, 1, A, execution.uuid),))
    assert await bench.load_needs(execution.uuid, edges=(UUID(int=1),), incoming=True) == {}


async def test_very_many_edges_into_one_are_recalled(bench: Bench) -> None:
    flow = await bench.flow()
    member, edges = await _joined(bench, flow, 400)
    more = [edge(flow, n, A, uuid_of(member)) for n in range(1000, 2600)]
    for start in range(0, len(more), 500):
        assert await bench.apply(await bench.load(flow), edges=tuple(more[start : start + 500]))
    found = await bench.load_needs(uuid_of(member), incoming=True)
    assert [item.edge for item in found.values()] == [*edges, *more]
    named = tuple(item.id for item in more)
    assert list(await bench.load_needs(uuid_of(member), edges=named)) == list(named)


# -- retention


async def _ended_flow(bench: Bench, flow: Flow, at: int) -> None:
    before = await bench.load(flow)
    members: dict[str, Any] = {"state": FlowState.COMPLETED, "ended_at": Millis(at)}
    after = replace(before, version=before.version + 1, **members)
    assert await bench.store.apply_flow(FlowChange(before, after))


async def test_members_are_forgotten_with_their_flow(bench: Bench) -> None:
    flow, living = await bench.flow(tags={"a": "1"}), await bench.flow()
    ended = [await bench.ended(owner) for owner in (flow, flow, living)]
    one, two, kept = map(uuid_of, ended)
    links = (edge(flow, 1, one, two), edge(flow, 2, A, B))
    assert await bench.apply(await bench.load(flow), edges=links, owed=(outbox_entry(flow, 1),))
    assert await bench.apply(await bench.load(living), edges=(edge(living, 1, A, kept),))
    cut, end = Millis(bench.now + 5), Millis(bench.now + DAY)
    assert await bench.store.trim(cut, end, 9) == 0
    await _ended_flow(bench, flow, cut + 1)
    assert await bench.store.trim(cut, end, 9) == 0
    assert await bench.store.trim(Millis(cut + 1), end, 1) == 1
    assert await bench.store.trim(Millis(cut + 1), end, 9) == 1
    assert await bench.store.records.get(FLOWS, [flow.id, living.id]) == {
        living.id: await bench.load(living)
    }
    assert await bench.edges(flow) == []
    assert await bench.outbox(flow) == []
    assert await bench.store.flow_page(FlowQuery(tag=("a", "1"))) == []
    assert list(await bench.store.load([one, two, kept])) == [kept]
    assert len(await bench.edges(living)) == len(await bench.outbox(living)) == 1


async def test_edges_go_with_the_members_they_lead_to(bench: Bench) -> None:
    flow = await bench.flow()
    one, two = [await bench.ended(flow) for _ in range(2)]
    links = (edge(flow, 1, A, uuid_of(one)), edge(flow, 2, A, uuid_of(two)))
    assert await bench.apply(flow, edges=links)
    await _ended_flow(bench, flow, bench.now)
    assert await bench.store.trim(bench.now, bench.now, 1) == 1
    (left,) = await bench.store.snapshots(MembersOf(flow.id))
    (found,) = await bench.edges(flow)
    assert found.edge.downstream == uuid_of(left)


async def test_a_flow_stays_while_a_member_does(bench: Bench) -> None:
    flow = await bench.flow()
    await bench.ended(flow)
    keeper = await bench.ended(flow, policy={"stream_policy": {"retention_ttl_ms": DAY}})
    await _ended_flow(bench, flow, bench.now)
    assert await bench.store.trim(bench.now, bench.now, 9) == 1
    assert [uuid_of(left) for left in await bench.store.snapshots(MembersOf(flow.id))] == [
        uuid_of(keeper)
    ]
    assert await bench.store.trim(bench.now, Millis(bench.now + DAY), 9) == 1
    assert await bench.store.records.get(FLOWS, [flow.id]) == {}


async def test_a_replay_that_was_not_counted_yet_keeps_the_members(bench: Bench) -> None:
    flow = await bench.flow()
    await bench.ended(flow)
    ending = await _failed(bench, flow)
    await bench.write(ending)
    replayed = operator.replay(after(ending), bench.now)
    await bench.write(replayed)
    await _ended_flow(bench, flow, bench.now)
    assert await bench.store.trim(bench.now, bench.now, 9) == 0
    assert len(await bench.store.snapshots(MembersOf(flow.id))) == 2
    counted = tuple(c for c in await bench.outbox(flow) if c.kind is OutboxKind.REPLAYED)
    assert await bench.store.apply_flow(
        FlowChange(await bench.load(flow), replace(await bench.load(flow), version=3), done=counted)
    )
    assert await bench.store.trim(bench.now, bench.now, 9) == 1
    assert await bench.store.snapshots(MembersOf(flow.id)) == [after(replayed)]
    assert len(await bench.store.records.get(FLOWS, [flow.id])) == 1


async def test_members_of_a_living_flow_do_not_hide_others(bench: Bench) -> None:
    flow = await bench.flow()
    members = await bench.members(flow, 20)
    await bench.write(*(cancelled(member, bench.now) for member in members))
    stranger = bench.creation(flow, flagged=False)
    assert await bench.store.submit([stranger], bench.now) == [None]
    await bench.write(cancelled(stranger.snapshot, bench.now))
    assert await bench.store.trim(bench.now, bench.now, 3) == 1
    assert len(await bench.store.snapshots(MembersOf(flow.id))) == 20


async def test_a_flow_without_members_is_forgotten(bench: Bench) -> None:
    flows = [await bench.flow() for _ in range(3)]
    for flow in flows[:2]:
        await _ended_flow(bench, flow, bench.now)
    assert await bench.store.trim(bench.now, bench.now, 9) == 0
    assert list(await bench.store.records.get(FLOWS, [flow.id for flow in flows])) == [flows[2].id]
