"""What is kept of flows: the flow itself, its edges and members; written whole or not at all."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base import document
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.flow.graph import NewFlow
from flowfabric.core.flow.join import EdgeState, On
from flowfabric.core.flow.model import (
    Cancellation,
    CancelPolicy,
    Flow,
    FlowChange,
    FlowState,
    Parent,
    changed,
)
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind
from flowfabric.store.open import open_store
from flowfabric.store.queries import FlowQuery, MembersOf, Renewal
from flowfabric.store.rows.record import FLOWS
from tests.kit.lab import TTL
from tests.kit.snapshots import after, lease_of
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

# -- round trips


async def test_new_flows_are_written_with_edges_tags_and_members(bench: Bench) -> None:
    flows = [Flow(id=bench.fresh(), kind="graph", tags={"a.b": str(n)}) for n in range(3)]
    members = {flow.id: bench.creation(flow, tags={"c.d": "1"}) for flow in flows}
    new = [NewFlow(flow, (edge(flow, 1, A, B),), (members[flow.id],)) for flow in flows]
    assert await bench.store.lay_flows(new, bench.now) == {flow.id for flow in flows}
    for flow in flows:
        assert await bench.load(flow) == flow
        assert await bench.store.flow_page(FlowQuery(tag=("a.b", flow.tags["a.b"]))) == [flow]
        assert [each.edge for each in await bench.edges(flow)] == [edge(flow, 1, A, B)]
        (found,) = await bench.store.snapshots(MembersOf(flow.id))
        assert found == members[flow.id].snapshot
        detail = await bench.store.detail(uuid_of(found))
        assert detail is not None
        assert detail.tags == {"c.d": "1"}


async def test_of_new_flows_one_that_is_there_is_left_out_as_a_whole(bench: Bench) -> None:
    there = await bench.flow()
    flow = Flow(id=bench.fresh(), kind="graph")
    new = [NewFlow(each, (edge(each, 1, A, B),), (bench.creation(each),)) for each in (there, flow)]
    assert await bench.store.lay_flows(new, bench.now) == {flow.id}
    assert await bench.edges(there) == []
    assert await bench.store.snapshots(MembersOf(there.id)) == []
    assert len(await bench.edges(flow)) == 1
    assert len(await bench.store.snapshots(MembersOf(flow.id))) == 1
    assert await bench.store.lay_flows(new, bench.now) == set()
    assert await bench.store.lay_flows([], bench.now) == set()


async def test_a_flow_is_remembered_whole(bench: Bench) -> None:
    full = await bench.flow(
        version=3,
        kind="naïve 鍵",
        namespace="Ω",
        state=FlowState.CANCELLED,
        revision=7,
        nodes=4,
        edges=3,
        ended={"success": 2, "spared": 1},
        mutated_at=Millis(8),
        ended_at=Millis(9),
        cancel=Cancellation(Millis(3), "weil\x00", CancelPolicy.PENDING),
        parent=Parent("run", "signal"),
        graph="blake2b:1",
        tags={"team": "ü", "": ""},
    )
    bare = await bench.flow()
    assert await bench.store.records.get(FLOWS, [full.id, bare.id, A]) == {
        full.id: full,
        bare.id: bare,
    }
    assert await bench.store.records.get(FLOWS, []) == {}


async def test_what_a_newer_release_wrote_into_a_flow_survives(bench: Bench) -> None:
    flow = await bench.flow()
    novel = {"novel": {"deep": [1]}, "other": None}
    newer = document.from_members(Flow, {**document.to_members(flow), **novel})
    assert await bench.store.apply_flow(FlowChange(flow, replace(newer, version=2)))
    read = await bench.load(flow)
    assert read.unknown == novel
    assert await bench.apply(read)
    assert (await bench.load(flow)).unknown == novel


async def test_an_edge_is_remembered_whole(bench: Bench) -> None:
    flow = await bench.flow()
    full = edge(flow, 1, A, B, on=On.ANY_END, input="naïve.鍵")
    bare = edge(flow, 2, A, C, created_at=Millis(0))
    assert await bench.apply(flow, edges=(bare, full))
    assert await bench.edges(flow) == [EdgeState(full), EdgeState(bare)]


async def test_a_chore_is_remembered_whole(bench: Bench) -> None:
    flow = await bench.flow()
    pairs: list[tuple[Outcome | None, bool]] = [(None, False), *((one, True) for one in Outcome)]
    owed = [
        OutboxEntry(flow.id, A, number, kind, outcome, spared)
        for number, (outcome, spared) in enumerate(pairs)
        for kind in OutboxKind
    ]
    assert await bench.apply(flow, owed=tuple(reversed(owed)))
    assert await bench.outbox(flow) == owed
    assert (await bench.store.owing([flow.id], 3)).entries == owed[:3]
    assert (await bench.store.owing([A], 3)).entries == []


# -- a change of a flow, whole or not at all


async def test_a_flow_is_written_on_the_version_it_was_decided_on(bench: Bench) -> None:
    flow = await bench.flow()
    assert not await bench.store.apply_flow(FlowChange(None, replace(flow, kind="rival")))
    second = changed(flow, bench.now, revision=1)
    assert await bench.store.apply_flow(FlowChange(flow, second))
    assert not await bench.apply(flow, edges=(edge(flow, 1, A, B),))
    assert await bench.load(flow) == second
    assert await bench.edges(flow) == []
    missing = replace(flow, id=bench.fresh())
    assert not await bench.apply(missing)
    assert await bench.store.records.get(FLOWS, [missing.id]) == {}


async def test_everything_of_a_change_is_written_together(bench: Bench) -> None:
    flow = await bench.flow()
    one, two, guard = await bench.members(flow, 3)
    done, owed = outbox_entry(flow, 1), outbox_entry(flow, 2)
    assert await bench.apply(flow, owed=(done,))
    flow = await bench.load(flow)
    edges = (edge(flow, 1, uuid_of(one), uuid_of(two)),)
    changes = (touch(one), cancelled(two, bench.now))
    assert await bench.apply(
        flow, edges=edges, changes=changes, guards=(guard,), owed=(owed,), done=(done,)
    )
    assert await bench.load(flow) == changed(flow, bench.now)
    assert await bench.edges(flow) == [EdgeState(edges[0])]
    ended = after(changes[1])
    ending = OutboxEntry(
        flow.id, uuid_of(two), ended.head.version, OutboxKind.ENDED, Outcome.CANCELLED
    )
    assert sorted(await bench.outbox(flow), key=lambda c: c.kind) == [ending, owed]
    expected = [after(changes[0]), ended, guard]
    assert await bench.store.snapshots(MembersOf(flow.id)) == expected


Spoil = Callable[[Bench, Flow, dict[str, Any]], Any]


async def _moved_guard(bench: Bench, flow: Flow, change: dict[str, Any]) -> None:
    await bench.write(touch(change["guards"][0]))


async def _moved_member(bench: Bench, flow: Flow, change: dict[str, Any]) -> None:
    await bench.write(touch(change["changes"][1].before))


async def _renewed_guard(bench: Bench, flow: Flow, change: dict[str, Any]) -> None:
    held = change["guards"][1]
    renewal = Renewal(uuid_of(held), lease_of(held).id, held.head.epoch, Millis(TTL + 5))
    assert await bench.store.renew([renewal], bench.now)


async def _missing_chore(bench: Bench, flow: Flow, change: dict[str, Any]) -> None:
    change["done"] = (*change["done"], outbox_entry(flow, 9))


async def _another_number(bench: Bench, flow: Flow, change: dict[str, Any]) -> None:
    change["done"] = tuple(replace(item, number=8) for item in change["done"])


async def _missing_member(bench: Bench, flow: Flow, change: dict[str, Any]) -> None:
    absent = bench.creation(flow).snapshot
    change["guards"] = (*change["guards"], absent)


SPOILS: list[Spoil] = [
    _moved_guard,
    _moved_member,
    _renewed_guard,
    _missing_chore,
    _another_number,
    _missing_member,
]


@pytest.mark.parametrize("spoil", SPOILS)
async def test_when_anything_has_moved_nothing_is_written(bench: Bench, spoil: Spoil) -> None:
    flow = await bench.flow(tags={"a": "1"})
    held = await bench.running(flow)
    one, two, guard = await bench.members(flow, 3)
    assert await bench.apply(flow, owed=(outbox_entry(flow, 1),))
    flow = await bench.load(flow)
    change: dict[str, Any] = {
        "edges": (edge(flow, 1, uuid_of(one), uuid_of(two)),),
        "changes": (cancelled(one, bench.now), touch(two)),
        "guards": (guard, held),
        "owed": (outbox_entry(flow, 2),),
        "done": (outbox_entry(flow, 1),),
    }
    await spoil(bench, flow, change)
    uuids = [uuid_of(s) for s in (one, two, guard, held)]
    before = await bench.store.load(uuids)
    assert not await bench.store.apply_flow(
        FlowChange(flow, changed(flow, bench.now, tags={"b": "2"}), **change)
    )
    assert await bench.load(flow) == flow
    assert await bench.store.flow_page(FlowQuery(tag=("a", "1"))) == [flow]
    assert await bench.edges(flow) == []
    assert await bench.outbox(flow) == [outbox_entry(flow, 1)]
    assert await bench.store.load(uuids) == before


async def test_a_change_that_cannot_be_made_new_leaves_nothing(bench: Bench) -> None:
    """A flow that is new comes with its guards too."""
    flow = await bench.flow()
    (guard,) = await bench.members(flow, 1)
    await bench.write(touch(guard))
    fresh = replace(flow, id=bench.fresh(), tags={"a": "1"})
    assert not await bench.store.apply_flow(FlowChange(None, fresh, guards=(guard,)))
    assert await bench.store.records.get(FLOWS, [fresh.id]) == {}
    assert await bench.store.flow_page(FlowQuery(tag=("a", "1"))) == []


async def test_an_edge_that_is_there_stays(bench: Bench) -> None:
    flow = await bench.flow()
    first, rival = edge(flow, 1, A, B), edge(flow, 1, A, B, on=On.FAILURE)
    assert await bench.apply(flow, edges=(first, rival))
    assert await bench.apply(await bench.load(flow), edges=(rival, edge(flow, 2, B, C)))
    found = await bench.edges(flow)
    assert found == [EdgeState(first), EdgeState(edge(flow, 2, B, C))]


async def test_a_chore_is_done_once(bench: Bench) -> None:
    flow = await bench.flow()
    owed = tuple(outbox_entry(flow, number) for number in range(1, 4))
    assert await bench.apply(flow, owed=owed)
    assert await bench.apply(await bench.load(flow), done=(*owed[:2], owed[0]))
    assert await bench.outbox(flow) == [owed[2]]
    assert not await bench.apply(await bench.load(flow), done=owed[1:])
    assert await bench.outbox(flow) == [owed[2]]


async def test_a_change_may_be_large(bench: Bench) -> None:
    flow = await bench.flow()
    members = await bench.members(flow, 500)
    edges = tuple(edge(flow, n + 1, A, uuid_of(m)) for n, m in enumerate(members))
    owed = tuple(outbox_entry(flow, number) for number in range(500))
    assert await bench.apply(flow, edges=edges, changes=tuple(map(touch, members)), owed=owed)
    flow = await bench.load(flow)
    assert await bench.outbox(flow) == list(owed)
    assert await bench.edges(flow) == list(map(EdgeState, edges))
    versions = [m.head.version for m in await bench.store.snapshots(MembersOf(flow.id))]
    assert versions == [members[0].head.version + 1] * 500
    assert await bench.apply(
        flow, guards=tuple(await bench.store.snapshots(MembersOf(flow.id))), done=owed
    )
    assert await bench.outbox(flow) == []


async def test_of_two_processes_one_changes_the_flow(bench: Bench, store_url: str) -> None:
    other = await open_store(store_url, clock=bench.clock)
    flow = await bench.flow()
    (member,) = await bench.members(flow, 1)
    for round in range(10):
        edges = [edge(flow, 2 * round + side, A, B) for side in (1, 2)]
        rivals = [
            FlowChange(flow, changed(flow, bench.now), edges=(mine,), changes=(touch(member),))
            for mine in edges
        ]
        answers = await asyncio.gather(
            bench.store.apply_flow(rivals[0]), other.apply_flow(rivals[1])
        )
        assert sorted(answers) == [False, True]
        flow, (member,) = await bench.load(flow), await bench.store.snapshots(MembersOf(flow.id))
        assert flow.version == round + 2
        won = [found.edge for found in await bench.edges(flow)][round:]
        assert won == [edges[answers.index(True)]]
    await other.close()


async def test_a_member_that_ends_meanwhile_wins_or_is_seen(bench: Bench, store_url: str) -> None:
    """The compare locks what it only looks at (write skew)."""
    other = await open_store(store_url, clock=bench.clock)
    for _ in range(10):
        flow = await bench.flow()
        held = await bench.running(flow)
        wrote, ended = await asyncio.gather(
            bench.apply(flow, guards=(held,)), other.apply([completion(held, bench.now)])
        )
        assert ended == {uuid_of(held)}
        assert (await bench.load(flow)).version == (2 if wrote else 1)
    await other.close()
