"""Flows looked at: lists of flows, edges in pages, members and how many are in which state."""

from typing import Any
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.execution import operator
from flowfabric.core.execution.lease import mark_expired
from flowfabric.core.execution.model import Flags, Gate, Outcome, Ready, Snapshot, Waiting
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import EdgeState
from flowfabric.core.flow.model import Flow, FlowChange, FlowState, changed
from flowfabric.store.queries import EdgeQuery, FlowQuery, MembersOf
from tests.kit.lab import TTL
from tests.kit.situations import suspension
from tests.store.flow_bench import (
    A,
    B,
    Bench,
    C,
    cancelled,
    completion,
    edge,
    outbox_entry,
    touch,
    uuid_of,
)

MANY = 2_000


# -- flows


async def test_flows_are_listed_by_when_they_were_created(bench: Bench) -> None:
    early = [await bench.flow() for _ in range(3)]
    bench.clock.advance(1)
    late = [await bench.flow() for _ in range(2)]
    expected = [*early, *late]
    for newest_first in (False, True):
        listed: list[Flow] = []
        after = None
        while page := await bench.store.flow_page(
            FlowQuery(after=after, limit=2, newest_first=newest_first)
        ):
            assert len(page) <= 2
            listed += page
            after = (page[-1].created_at, page[-1].id)
        assert listed == (expected[::-1] if newest_first else expected)


async def test_flows_are_found_by_what_they_are(bench: Bench) -> None:
    plain = await bench.flow()
    other = await bench.flow(namespace="other", kind="etl", tags={"team": "a", "x": "1"})
    done = await bench.flow(state=FlowState.COMPLETED, ended_at=bench.now, tags={"team": "b"})
    failed = await bench.flow(state=FlowState.FAILED)

    async def found(**filters: Any) -> list[Flow]:
        newest = await bench.store.flow_page(FlowQuery(newest_first=True, **filters))
        listed = await bench.store.flow_page(FlowQuery(**filters))
        assert newest == listed[::-1]
        return listed

    assert await found() == [plain, other, done, failed]
    assert await found(namespace="other") == [other]
    assert await found(kind="graph") == [plain, done, failed]
    assert await found(states=(FlowState.FAILED, FlowState.COMPLETED)) == [done, failed]
    assert await found(states=(FlowState.CANCELLED,)) == []
    assert await found(tag=("team", "a")) == [other]
    assert await found(tag=("team", "c")) == []
    assert await found(tag=("team", "b"), states=(FlowState.COMPLETED,), kind="graph") == [done]


async def test_a_flow_is_found_by_what_it_has_become(bench: Bench) -> None:
    flow = await bench.flow(tags={"a": "1", "b": "2"})
    after = changed(flow, bench.now, state=FlowState.RUNNING, nodes=1, tags={"a": "3"})
    assert await bench.store.apply_flow(FlowChange(flow, after))
    for query, expected in {
        FlowQuery(states=(FlowState.OPEN,)): [],
        FlowQuery(states=(FlowState.RUNNING,)): [after],
        FlowQuery(tag=("a", "1")): [],
        FlowQuery(tag=("b", "2")): [],
        FlowQuery(tag=("a", "3")): [after],
    }.items():
        assert await bench.store.flow_page(query) == expected


# -- edges


async def test_edges_are_found_from_either_end(bench: Bench) -> None:
    flow, other = await bench.flow(), await bench.flow()
    edges = [edge(flow, 1, A, B), edge(flow, 2, A, C), edge(flow, 3, B, C)]
    assert await bench.apply(flow, edges=tuple(edges))
    assert await bench.apply(other, edges=(edge(other, 1, A, B),))
    one, two, three = map(EdgeState, edges)
    assert await bench.edges(flow) == [one, two, three]
    assert await bench.edges(flow, upstreams=(A,)) == [one, two]
    assert await bench.edges(flow, upstreams=(B, A, B)) == [one, two, three]
    assert await bench.edges(flow, downstreams=(C,)) == [two, three]
    assert await bench.edges(flow, ids=(UUID(int=3), UUID(int=1), A)) == [one, three]
    assert await bench.edges(flow, upstreams=(A,), downstreams=(C,)) == [two]
    assert await bench.edges(flow, ids=(UUID(int=1),), downstreams=(C,)) == []
    assert await bench.edges(flow, upstreams=(A,), after=UUID(int=1)) == [two]
    assert await bench.edges(flow, ids=(UUID(int=1), UUID(int=2)), after=UUID(int=1)) == [two]
    for nothing in ("upstreams", "downstreams", "ids"):
        assert await bench.edges(flow, **{nothing: ()}) == []
    assert await bench.edges(replace(flow, id=A)) == []


async def test_edges_that_are_not_settled_are_found_alone(bench: Bench) -> None:
    flow = await bench.flow()
    (member,) = await bench.members(flow, 1)
    child = uuid_of(member)
    edges = [edge(flow, n, (A, B)[n % 2], child) for n in range(1, 7)]
    assert await bench.apply(flow, edges=tuple(edges))
    settled = tuple((edges[n].id, Outcome.SUCCESS) for n in (0, 1, 2))
    await bench.write(touch(member, settled=settled))
    open_ones = [EdgeState(item) for item in edges[3:]]
    assert await bench.edges(flow, unsettled=True) == open_ones
    assert await bench.edges(flow, upstreams=(A, B), unsettled=True) == open_ones
    assert await bench.edges(flow, upstreams=(A,), unsettled=True) == [open_ones[0], open_ones[2]]
    assert await bench.edges(flow, downstreams=(child,), unsettled=True) == open_ones
    ids = (edges[0].id, edges[4].id)
    assert await bench.edges(flow, ids=ids, unsettled=True) == [open_ones[1]]


async def test_unsettled_edges_come_with_their_downstream(bench: Bench) -> None:
    """Of several flows, by id, in pages; a downstream that is not there yet is None."""
    flow, other = await bench.flow(), await bench.flow()
    one, two = await bench.members(flow, 2)
    (third,) = await bench.members(other, 1)
    missing = bench.fresh()
    edges = [
        edge(flow, 1, A, uuid_of(one)),
        edge(flow, 2, B, uuid_of(one)),
        edge(flow, 3, A, uuid_of(two)),
        edge(flow, 4, A, missing),
        edge(flow, 5, C, uuid_of(two)),
        edge(flow, 6, A, uuid_of(one)),
    ]
    assert await bench.apply(flow, edges=tuple(edges))
    assert await bench.apply(other, edges=(edge(other, 7, A, uuid_of(third)),))
    moved = touch(two, settled=((UUID(int=3), Outcome.SUCCESS),))
    await bench.write(moved, cancelled(third, bench.now))
    ends = (await bench.store.load([uuid_of(third)]))[uuid_of(third)]
    asked = [(flow.id, A), (flow.id, B), (flow.id, A), (other.id, A), (other.id, B), (A, A)]
    found = await bench.store.unsettled(list(dict.fromkeys(asked)), None, 9)
    expected = [(1, one), (2, one), (4, None), (6, one), (7, ends)]
    assert [(each.state.edge.id.int, each.downstream) for each in found] == expected
    assert {each.state.outcome for each in found} == {None}
    assert [each.state.edge for each in found[:2]] == edges[:2]
    page = await bench.store.unsettled([(flow.id, A), (flow.id, B)], UUID(int=1), 2)
    assert [(each.state.edge.id.int, each.downstream) for each in page] == [(2, one), (4, None)]
    assert await bench.store.unsettled([], None, 9) == []


async def test_edges_that_a_member_still_waits_for_are_counted(bench: Bench) -> None:
    """C-T15: not those that are settled or unapplied, whatever the name of an input says"""
    flow, other = await bench.flow(), await bench.flow()
    (one,) = await bench.members(flow, 1)
    into = uuid_of(one)
    tricky = '"unapplied":true'
    edges = [
        edge(flow, 0, A, into),
        edge(flow, 1, A, into, input=tricky),
        edge(flow, 2, B, into, unapplied=True),
        edge(flow, 3, B, into, input=tricky, unapplied=True),
        edge(flow, 4, C, into),
        edge(flow, 5, C, A),
    ]
    assert await bench.apply(flow, edges=tuple(edges))
    assert await bench.apply(other, edges=(edge(other, 7, A, into),))
    await bench.write(touch(one, settled=((UUID(int=4), Outcome.SUCCESS),)))
    assert await bench.store.unsatisfied(flow.id, into) == 2
    applied = edge(flow, 2, B, into)
    assert await bench.apply(await bench.load(flow), applied=(applied,))
    counts = [await bench.store.unsatisfied(flow.id, id) for id in (into, A, B)]
    assert counts == [3, 1, 0]


async def test_very_many_edges_are_read_in_pages(bench: Bench) -> None:
    flow = await bench.flow()
    hubs = (A, B, C)
    edges = [edge(flow, n + 1, hubs[n % 3], UUID(int=10_000 + n)) for n in range(MANY)]
    for start in range(0, MANY, 500):
        assert await bench.apply(await bench.load(flow), edges=tuple(edges[start : start + 500]))
    targets = tuple(item.downstream for item in edges[::4])
    assert await _all(bench, EdgeQuery(flow=flow.id)) == edges
    assert await _all(bench, EdgeQuery(flow=flow.id, upstreams=(A,))) == edges[::3]
    assert await _all(bench, EdgeQuery(flow=flow.id, upstreams=hubs, unsettled=True)) == edges
    assert await _all(bench, EdgeQuery(flow=flow.id, downstreams=targets)) == edges[::4]
    both = EdgeQuery(flow=flow.id, upstreams=(A,), downstreams=targets, limit=7)
    assert await _all(bench, both) == edges[::12]


async def _all(bench: Bench, query: EdgeQuery) -> list[Any]:
    found: list[Any] = []
    while page := await bench.store.edges(query):
        assert len(page) <= query.limit
        found += [item.edge for item in page]
        query = replace(query, after=page[-1].edge.id)
    return found


# -- members


async def test_members_are_read_in_pages_by_id(bench: Bench) -> None:
    flow, other = await bench.flow(), await bench.flow()
    members = await bench.members(flow, MANY)
    await bench.members(other, 3)
    stranger = bench.creation(flow, flagged=False)
    assert await bench.store.submit([stranger], bench.now) == [None]
    changes = [cancelled(member, bench.now) for member in members[::2]]
    for start in range(0, len(changes), 500):
        await bench.write(*changes[start : start + 500])
    found = await _members(bench, flow)
    assert [uuid_of(member) for member in found] == [uuid_of(member) for member in members]
    assert found[1::2] == members[1::2]
    assert found[::2] == [change.after for change in changes]
    assert await _members(bench, flow, living=True) == members[1::2]
    counts = (await bench.store.counts(flow=flow.id)).by_state
    assert counts == {
        **dict.fromkeys(PublicState, 0),
        PublicState.WAITING: MANY // 2,
        PublicState.CANCELLED: MANY // 2,
    }


async def _members(bench: Bench, flow: Flow, *, living: bool = False) -> list[Snapshot]:
    found: list[Snapshot] = []
    after = None
    while page := await bench.store.snapshots(MembersOf(flow.id, after=after, living=living)):
        assert len(page) <= 500
        found += page
        after = uuid_of(page[-1])
    return found


async def test_members_are_counted_in_every_state(bench: Bench) -> None:
    flow = await bench.flow()
    lost = await bench.running(flow)
    bench.clock.advance(TTL)
    await bench.write(mark_expired(lost, bench.now))
    for outcome in ("done", "suspended", "active"):
        held = await bench.running(flow, priority=9)
        if outcome == "done":
            await bench.write(completion(held, bench.now))
        if outcome == "suspended":
            await bench.write(suspension(held, bench.now))
    (
        _,
        delayed,
        depending,
        blocked,
        limited,
        expired,
        skipped,
        failed,
        over,
    ) = await bench.members(flow, 9)
    for snapshot, gate in ((delayed, Gate.DELAY), (depending, Gate.DEPENDENCIES)):
        assert isinstance(snapshot.state, Ready)
        await bench.write(touch(snapshot, Waiting(gate, snapshot.state.next)))
    await bench.write(
        operator.block(blocked, bench.now, "paused_by_operator"),
        operator.block(limited, bench.now, "waiting_for_quota"),
        operator.expire_now(expired, bench.now, "late"),
        cancelled(over, bench.now),
        bench.ending(skipped, Outcome.SKIPPED),
        bench.ending(failed, Outcome.FAILED),
    )
    await bench.store.submit([bench.creation(flow, flagged=False)], bench.now)
    counts = (await bench.store.counts(flow=flow.id)).by_state
    twice = {PublicState.WAITING: 2, PublicState.ACTIVE: 2}
    assert counts == {**dict.fromkeys(PublicState, 1), **twice}
    living = await bench.store.snapshots(MembersOf(flow.id, living=True))
    everyone = await bench.store.snapshots(MembersOf(flow.id))
    assert len(everyone) == sum(counts.values())
    assert len(living) == len(everyone) - 5
    empty = (await bench.store.counts(flow=A)).by_state
    assert empty == dict.fromkeys(PublicState, 0)


async def test_an_execution_without_the_flag_is_no_member(bench: Bench) -> None:
    flow = await bench.flow()
    creation = bench.creation(flow, flagged=False)
    await bench.store.submit([creation], bench.now)
    assert await bench.store.snapshots(MembersOf(flow.id)) == []
    joined = replace(creation.snapshot.head, flags=Flags.FLOW)
    change = touch(creation.snapshot)
    change = replace(change, after=replace(creation.snapshot, head=replace(joined, version=2)))
    await bench.write(change)
    assert await bench.store.snapshots(MembersOf(flow.id)) == [change.after]


# -- what is owed


async def test_flows_that_something_is_owed_to_are_found_once_each(bench: Bench) -> None:
    assert await bench.store.owed_flows(10) == []
    flows = [await bench.flow() for _ in range(5)]
    for flow in flows[1:4]:
        assert await bench.apply(flow, owed=tuple(outbox_entry(flow, n) for n in range(4)))
    assert sorted(await bench.store.owed_flows(10)) == [flow.id for flow in flows[1:4]]
    flow = await bench.load(flows[2])
    assert await bench.apply(flow, done=tuple(outbox_entry(flow, n) for n in range(4)))
    assert sorted(await bench.store.owed_flows(10)) == [flows[1].id, flows[3].id]


async def test_a_flow_that_is_stuck_does_not_hide_the_others(bench: Bench) -> None:
    flows = [await bench.flow() for _ in range(7)]
    for flow in flows:
        assert await bench.apply(flow, owed=(outbox_entry(flow, 1),))
    seen: list[UUID] = []
    for _ in range(7):
        turn = await bench.store.owed_flows(3)
        assert len(set(turn)) == 3
        seen += turn
    assert sorted(seen) == sorted([flow.id for flow in flows] * 3)
    assert len(await bench.store.owed_flows(100)) == 7
