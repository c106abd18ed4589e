"""Edges, staged one by one: what is checked, in which order, and what they do at once.

Behaviour: coordination.md 1.3, 1.5; invariants I-2 to I-5, I-9; flaws F-01, F-12, F-13, F-18,
F-19, F-30.
"""

import asyncio
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    Corruption,
    CycleDetected,
    EdgeExists,
    FlowConflict,
    Invalid,
    InvalidGraph,
    NotActive,
    NotFound,
    NotInFlow,
    SelfEdge,
    StaleRevision,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.gate import DELAYS
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.execution.model import Ready, Waiting
from flowfabric.core.execution.outcome import AttemptOutcome, Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode
from flowfabric.core.flow.grow import AlreadyStaged, Applied, Staged
from flowfabric.core.flow.join import AnyOf, Edge, JoinState, On, Quorum
from flowfabric.core.flow.model import FlowState
from flowfabric.store.queries import EdgeQuery
from flowfabric.store.rows.flow import read_edge
from tests.kit.flow_lab import declare
from tests.kit.flowing import Growing, counters, join_of, kept, neighbours, replay, unknown
from tests.kit.lab import Lab
from tests.kit.race import Race
from tests.kit.signalling import fresh
from tests.kit.situations import LIVING, Situation, completions, described, load

BAD: Any = "sometimes"


async def refused(flow: Growing, call: Awaitable[object], error: type[Exception]) -> None:
    """I-5: a refusal writes nothing."""
    before = await kept(flow)
    with pytest.raises(error):
        await call
    assert await kept(flow) == before


# -- staging


async def test_an_edge_is_counted_and_its_child_waits(lab: Lab) -> None:
    """C-T11, I-2: revision and count move by one each"""
    flow = await Growing.begin(lab, "a", "b")
    staged = await flow.link("a>b")
    seen = await flow.flow()
    assert isinstance(staged, Staged)
    assert (staged.revision, seen.revision, seen.edges, seen.nodes) == (3, 3, 1, 2)
    await flow.seal()
    assert await flow.states() == {"a": PublicState.WAITING, "b": PublicState.WAITING_CHILDREN}
    assert (await flow.flow()).revision == 3
    assert await counters(flow, "b") == (1, 0, 0, 0)


async def test_applying_an_edge_that_was_staged_changes_nothing(lab: Lab) -> None:
    """C-T15: staging applied it"""
    flow = await Growing.begin(lab, "a", "b")
    staged = await flow.link("a>b")
    before = await kept(flow)
    for _ in range(2):
        answer = await lab.engine.flows.apply(flow.id, staged.edge)
        assert answer == AlreadySatisfied("already_applied")
    for unknown_one, edge, entity in [(flow.id, fresh(), "edge"), (fresh(), staged.edge, "flow")]:
        with pytest.raises(NotFound) as refused:
            await lab.engine.flows.apply(unknown_one, edge)
        assert refused.value.entity == entity
    assert await kept(flow) == before
    assert await counters(flow, "b") == (1, 0, 0, 0)


async def test_applying_an_edge_says_that_it_passes_the_result(lab: Lab) -> None:
    """server-sdk.md 1.7, coordination.md 1.6: staged without a name, applied with one"""
    flow = await Growing.begin(lab, "a", "b", "c")
    first, second = flow.edge("a>c"), flow.edge("b>c")
    await lab.engine.flows.stage_only(first, 3)
    await lab.engine.flows.stage_only(second, 4)
    apply = lab.engine.flows.apply
    for number, edge in enumerate((first, second), 1):
        assert await apply(flow.id, edge.id, input=f"draft-{number}") == Applied(number)
        assert await apply(flow.id, edge.id, input="late") == AlreadySatisfied("already_applied")
        expected = replace(edge, created_at=lab.clock.now(), input=f"draft-{number}", late=True)
        assert await lab.engine.flow_views.edge(flow.id, edge.id) == expected
    assert (await flow.flow()).revision == 5
    assert await counters(flow, "c") == (2, 0, 0, 0)
    await flow.seal()
    await flow.complete("a", "b")
    claim = await lab.claim_one()
    inputs = await lab.engine.flow_views.inputs(claim.snapshot)
    assert inputs == {"draft-1": b"a", "draft-2": b"b"}


async def test_any_number_of_edges_may_wait_to_be_applied(lab: Lab) -> None:
    """C-T15, coordination.md 1.5: each is applied once, however many were staged since"""
    flow = await Growing.begin(lab, "a", "b")
    edges = [flow.edge("a>b") for _ in range(300)]
    for revision, edge in enumerate(edges, 2):
        await lab.engine.flows.stage_only(edge, revision)
    apply = lab.engine.flows.apply
    assert await apply(flow.id, edges[0].id) == Applied(1)
    assert await apply(flow.id, edges[-1].id) == Applied(2)
    for edge in (edges[0], edges[-1]):
        assert await apply(flow.id, edge.id) == AlreadySatisfied("already_applied")
    assert (await flow.flow()).revision == 302


@pytest.mark.inside
async def test_an_edge_is_applied_without_reading_the_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T15: or the edges of a wide join would take longer and longer"""
    flow = await Growing.begin(lab, "a", "b")
    wanted = [flow.edge("a>b") for _ in range(9)]
    for revision, edge in enumerate(wanted, 2):
        await lab.engine.flows.stage_only(edge, revision)
    read, edges = 0, lab.engine.store.edges

    async def counted(query: EdgeQuery) -> Any:
        nonlocal read
        found = await edges(query)
        read += len(found)
        return found

    monkeypatch.setattr(lab.engine.store, "edges", counted)
    answers = [await lab.engine.flows.apply(flow.id, edge.id) for edge in wanted]
    assert answers == [Applied(number) for number in range(1, 10)]
    assert read == len(wanted), "each edge itself"


async def test_a_name_that_an_edge_was_staged_with_is_not_changed(lab: Lab) -> None:
    flow = await Growing.begin(lab, "a", "b")
    wanted = flow.edge("a>b", input="draft")
    await lab.engine.flows.stage_only(wanted, 2)
    before = await kept(flow)
    with pytest.raises(InvalidGraph, match="draft"):
        await lab.engine.flows.apply(flow.id, wanted.id, input="other")
    assert await kept(flow) == before
    assert await lab.engine.flows.apply(flow.id, wanted.id, input="draft") == Applied(1)


async def test_an_edge_is_remembered_as_it_was_staged(lab: Lab) -> None:
    """C-T16, I-4: every field, also the name under which data is passed"""
    flow = await Growing.begin(lab, "a", "b")
    wanted = flow.edge("a>b", on=On.ANY_END, input="draft")
    await lab.engine.flows.stage(wanted)
    expected = replace(wanted, created_at=lab.clock.now())
    assert await lab.engine.flow_views.edge(flow.id, wanted.id) == expected
    assert await lab.engine.flow_views.edge(flow.id, fresh()) is None
    assert await lab.engine.flow_views.edge(fresh(), wanted.id) is None
    await flow.seal()
    await flow.complete("a")
    await flow.complete("b")
    assert await lab.engine.flow_views.edge(flow.id, wanted.id) == expected


async def test_edges_are_listed_in_both_directions(lab: Lab) -> None:
    """C-T17, C-T18: none for the lonely, the solitary and the unknown"""
    flow = await Growing.begin(lab, "a", "b", "c", "lonely")
    for word in ("a>b", "b>c", "a>c"):
        await flow.link(word)
    edges = lab.engine.flow_views.edges
    leaving = await edges(flow.id, upstream=flow["a"])
    entering = await edges(flow.id, downstream=flow["c"])
    assert {state.edge.downstream for state in leaving} == {flow["b"].uuid, flow["c"].uuid}
    assert {state.edge.upstream for state in entering} == {flow["a"].uuid, flow["b"].uuid}
    elsewhere = ExecutionId.of((flow["a"].partition_index + 1) % 256, flow["a"].uuid)
    for nobody in (flow["lonely"], await lab.submit(), await unknown(flow), elsewhere):
        assert await edges(flow.id, upstream=nobody) == []
        assert await edges(flow.id, downstream=nobody) == []
    assert await edges(fresh()) == []


@pytest.mark.parametrize("doc", [b"", b"{", b"[]", b"{}", b"\xff", b'{"id":"x"}'])
def test_a_stored_edge_that_was_never_written_is_corruption(doc: bytes) -> None:
    """C-T16, C-T18"""
    with pytest.raises(Corruption):
        read_edge(doc, None)


def test_an_ending_of_an_edge_that_was_never_written_is_corruption() -> None:
    """C-T16, C-T18"""
    id = fresh()
    edge = Edge(id=id, flow=id, upstream=id, downstream=id)
    assert read_edge(msgspec.json.encode(edge), 1).outcome is Outcome.FAILED
    with pytest.raises(Corruption):
        read_edge(msgspec.json.encode(edge), 99)


async def test_a_stale_revision_is_refused(lab: Lab) -> None:
    """C-T12: in both directions; nothing is written"""
    flow = await Growing.begin(lab, "a", "b", "c")
    for wrong in (2, 4):
        edge = flow.edge("a>b")
        await refused(flow, lab.engine.flows.stage(edge, expected_revision=wrong), StaleRevision)
    await lab.engine.flows.stage(flow.edge("a>b"), expected_revision=3)
    await lab.engine.flows.stage(flow.edge("b>c"), expected_revision=4)


async def test_a_repeated_staging_is_recognised_whatever_the_revision(lab: Lab) -> None:
    """C-T14, F-19: the answer was lost, the caller asks again as before"""
    flow = await Growing.begin(lab, "a", "b")
    edge = flow.edge("a>b")
    await lab.engine.flows.stage(edge, expected_revision=2)
    lab.clock.advance(1000)
    again = await lab.engine.flows.stage(edge, expected_revision=2)
    assert again == AlreadyStaged(edge.id, 3)
    assert await counters(flow, "b") == (1, 0, 0, 0)


@pytest.mark.parametrize("end", [UUID(int=0), UUID(int=2**128 - 1)])
async def test_the_first_and_the_last_of_all_ids_are_ids_as_any_other(lab: Lab, end: UUID) -> None:
    """C-T14, C-T20, I-2, I-9: of a flow, of a member and of an edge, which clients name"""
    flow = await Growing.begin(lab, "other", id=end)
    await flow.add("a", id=ExecutionId.member(end, end))
    await flow.add("child")
    edge = flow.edge("a>child", id=end)
    staged = await lab.engine.flows.stage(edge)
    assert isinstance(staged, Staged)
    assert await lab.engine.flows.stage(edge) == AlreadyStaged(end, staged.revision)
    await flow.link("other>child")
    await flow.seal()
    views = lab.engine.flow_views
    assert {member.id for member in await views.members(end)} == set(flow.members.values())
    assert end in {state.edge.id for state in await views.edges(end)}
    assert [state.edge.id for state in await views.edges(end, upstream=flow["a"])] == [end]
    last = UUID(int=2**128 - 1)
    assert await views.edges(end, after=last, limit=1) == []
    assert await views.members(end, after=ExecutionId.member(end, last)) == []
    await flow.complete("a", "other", "child")
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_another_edge_under_a_known_id_is_a_conflict(lab: Lab) -> None:
    """C-T14, I-4: whatever differs; the refusal carries the stored edge"""
    flow = await Growing.begin(lab, "a", "b", "c")
    edge = flow.edge("a>b")
    await lab.engine.flows.stage(edge)
    changes: list[dict[str, Any]] = [
        {"upstream": flow["c"].uuid},
        {"downstream": flow["c"].uuid},
        {"on": On.FAILURE},
        {"input": "x"},
    ]
    for change in changes:
        await refused(flow, lab.engine.flows.stage(replace(edge, **change)), FlowConflict)
    lab.clock.advance(1000)
    with pytest.raises(EdgeExists, match=f"dependency_already_exists.*{flow['a'].uuid}") as refusal:
        await lab.engine.flows.stage(replace(edge, input="x"))
    shown = refusal.value
    assert (shown.edge, shown.flow, shown.on, shown.input) == (edge.id, flow.id, On.SUCCESS, None)
    assert (shown.upstream, shown.downstream) == (edge.upstream, edge.downstream)
    stored = await lab.engine.flow_views.edge(flow.id, edge.id)
    assert stored is not None
    assert shown.created_at == stored.created_at


async def test_an_edge_staged_with_a_name_is_another_one_without(lab: Lab) -> None:
    """F-19, C-T14, I-4: also when it was applied, and by either call"""
    flow = await Growing.begin(lab, "a", "b", "c")
    flows = lab.engine.flows
    whole, halved = flow.edge("a>b", input="x"), flow.edge("a>c", input="x")
    await flows.stage(whole)
    await flows.stage_only(halved, 4)
    await flows.apply(flow.id, halved.id)
    for edge in (whole, halved):
        bare = replace(edge, input=None)
        await refused(flow, flows.stage(bare), EdgeExists)
        await refused(flow, flows.stage_only(bare, 5), EdgeExists)
        assert isinstance(await flows.stage(edge), AlreadyStaged)
        assert isinstance(await flows.stage_only(edge, 5), AlreadyStaged)


async def test_an_edge_that_was_named_when_it_was_applied_is_recognised(lab: Lab) -> None:
    """F-19: as it was staged and as it is now, and by either call"""
    flow = await Growing.begin(lab, "a", "b")
    flows = lab.engine.flows
    edge = flow.edge("a>b")
    await flows.stage_only(edge, 2)
    await flows.apply(flow.id, edge.id, input="x")
    for again in (edge, replace(edge, input="x")):
        assert isinstance(await flows.stage(again), AlreadyStaged)
        assert isinstance(await flows.stage_only(again, 2), AlreadyStaged)
    await refused(flow, flows.stage(replace(edge, input="y")), EdgeExists)


@pytest.mark.parametrize("wrong", [2.0, "2"])
async def test_a_revision_is_a_whole_number(lab: Lab, wrong: Any) -> None:
    """Coordination.md 1.3"""
    flow = await Growing.begin(lab, "a", "b")
    edge = flow.edge("a>b")
    await refused(flow, lab.engine.flows.stage(edge, expected_revision=wrong), Invalid)
    await refused(flow, lab.engine.flows.stage_only(edge, wrong), Invalid)


async def test_a_cycle_is_told_before_the_state_of_its_members(lab: Lab) -> None:
    """C-T13, coordination.md 1.3, check 6: the downstream has ended, or its join has fired"""
    flow = await Growing.begin(lab, "a", "b", "c")
    await flow.link("a>b")
    await flow.link("b>c")
    await flow.seal()
    await flow.complete("a")
    await refused(flow, flow.link("b>a"), CycleDetected)
    await refused(flow, flow.link("c>b"), CycleDetected)


async def test_two_edges_between_the_same_two_count_twice(lab: Lab) -> None:
    """Coordination.md 1.3, I-9"""
    flow = await Growing.begin(lab, "a", "b")
    await flow.link("a>b")
    await flow.link("a>b", on=On.ANY_END)
    await flow.seal()
    assert await counters(flow, "b") == (2, 0, 0, 0)
    await flow.complete("a")
    assert await counters(flow, "b") == (2, 2, 0, 0)
    await flow.complete("b")


@pytest.mark.inside
async def test_edges_that_cannot_be_are_refused_each_for_its_own_reason(lab: Lab) -> None:
    """C-T13, F-30, I-3, I-5"""
    flow = await Growing.begin(lab, "a", "b", "c")
    for word in ("a>b", "b>c"):
        await flow.link(word)
    stage = lab.engine.flows.stage
    stranger, guest = await unknown(flow), await lab.submit(flow=flow.id)
    bad: list[tuple[Edge, type[Exception]]] = [
        (flow.edge("a>a"), SelfEdge),
        (replace(flow.edge("a>a"), flow=fresh()), SelfEdge),
        (replace(flow.edge("a>b"), flow=fresh()), NotFound),
        (replace(flow.edge("a>b"), upstream=stranger.uuid), NotInFlow),
        (replace(flow.edge("a>b"), downstream=stranger.uuid), NotInFlow),
        (replace(flow.edge("a>b"), upstream=guest.uuid), NotInFlow),
        (flow.edge("b>a"), CycleDetected),
        (flow.edge("c>a"), CycleDetected),
        (flow.edge("a>c", on=BAD), InvalidGraph),
        (flow.edge("a>c", input="\ud800"), Invalid),
        (flow.edge("a>c", id="x"), Invalid),
        (flow.edge("a>c", upstream=str(flow["a"])), Invalid),
        (flow.edge("a>c", flow=str(flow.id)), Invalid),
    ]
    for edge, error in bad:
        await refused(flow, stage(edge), error)
    await refused(flow, stage(BAD), Invalid)


async def test_members_of_two_flows_are_not_linked(lab: Lab) -> None:
    """C-T13, I-3: also when they share a partition"""
    here, there = neighbours()
    flow = await Growing.begin(lab, "a", id=here)
    other = await Growing.begin(lab, "b", id=there)
    foreign = replace(flow.edge("a>a"), downstream=other["b"].uuid)
    await refused(flow, lab.engine.flows.stage(foreign), NotInFlow)


@pytest.mark.rules
async def test_a_cycle_is_found_through_thousands_of_members(lab: Lab) -> None:
    """C-T13, F-18: no cap, and what is no cycle is staged"""
    names = [f"n{number}" for number in range(2200)]
    nodes = tuple(GraphNode(name, Submission(kind="job")) for name in names)
    links = tuple(GraphEdge(*pair) for pair in pairwise(names))
    declared = await lab.engine.flows.declare("nightly", Graph(nodes, links))
    flow = Growing(lab, declared.id, dict(declared.members))
    await refused(flow, flow.link("n2199>n0"), CycleDetected)
    await flow.add("extra")
    assert isinstance(await flow.link("extra>n0"), Staged)
    await refused(flow, flow.link("n2199>extra"), CycleDetected)


@pytest.mark.inside
@pytest.mark.parametrize("word", ["extra>hub", "hub>extra"])
async def test_an_edge_that_closes_no_circle_is_staged_without_reading_what_is_behind_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """F-18: a new member leads nowhere, whatever the other end leads to"""
    leaves = [f"n{number}" for number in range(2000)]
    nodes = tuple(GraphNode(name, Submission(kind="job")) for name in ["hub", *leaves])
    ends = [("hub", leaf) if word == "extra>hub" else (leaf, "hub") for leaf in leaves]
    graph = Graph(nodes, tuple(GraphEdge(*pair) for pair in ends))
    declared = await lab.engine.flows.declare("nightly", graph)
    flow = Growing(lab, declared.id, dict(declared.members))
    await flow.add("extra")
    read, edges = [], lab.engine.store.edges

    async def counted(query: EdgeQuery) -> Any:
        read.append(query)
        return await edges(query)

    monkeypatch.setattr(lab.engine.store, "edges", counted)
    assert isinstance(await flow.link(word), Staged)
    assert len(read) <= 3, "the edge itself, and a page at each end"


async def test_of_two_edges_that_would_close_a_circle_one_is_staged(
    lab: Lab, second_lab: Lab
) -> None:
    """C-T13, I-3: at once, from two engines"""
    for _ in range(5):
        flow = await Growing.begin(lab, "a", "b")
        words = ["a>b", "b>a"]
        calls = [
            each.engine.flows.stage(flow.edge(word))
            for each, word in zip([lab, second_lab], words, strict=True)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(type(answer).__name__ for answer in answers) == ["CycleDetected", "Staged"]
        assert (await flow.flow()).edges == 1


async def test_many_edges_are_staged_at_once(lab: Lab, second_lab: Lab) -> None:
    """I-2, I-7: from two engines, each one counted"""
    names = [f"u{number}" for number in range(16)]
    flow = await Growing.begin(lab, *names, "child")
    labs = [lab, second_lab] * 8
    calls = [
        each.engine.flows.stage(flow.edge(f"{name}>child"))
        for each, name in zip(labs, names, strict=True)
    ]
    await asyncio.gather(*calls)
    seen = await flow.flow()
    assert (seen.nodes, seen.edges, seen.revision) == (17, 16, 33)
    assert await counters(flow, "child") == (16, 0, 0, 0)


# -- an upstream that has ended


@pytest.mark.parametrize("on", On)
@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.FAILED, Outcome.CANCELLED])
async def test_an_edge_from_an_upstream_that_has_ended_is_settled_at_once(
    lab: Lab, outcome: Outcome, on: On
) -> None:
    """F-01, F-30, I-9: in a flow that runs"""
    flow = await Growing.begin(lab, "a", "keep")
    await flow.seal()
    await flow.end("a", outcome)
    await flow.add("child")
    await flow.link("a>child", on=on)
    met = {On.SUCCESS: Outcome.SUCCESS, On.FAILURE: Outcome.FAILED}.get(on, outcome) is outcome
    expected = PublicState.WAITING if met else PublicState.SKIPPED
    assert await lab.state(flow["child"]) is expected
    assert await counters(flow, "child") == (1, int(met), int(not met), 0)
    (edge,) = await lab.engine.flow_views.edges(flow.id)
    assert edge.outcome is outcome
    assert await completions(lab, flow["child"]) == ([] if met else [Outcome.SKIPPED])


async def test_an_edge_meets_an_upstream_that_ends_meanwhile(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-01, I-9: before the edge is written, after its ends were looked at"""
    flow = await Growing.begin(lab, "a", "keep")
    await flow.seal()
    await flow.add("child")
    claim = await flow.take("a")
    race = Race(lab, monkeypatch)
    race.before("apply_flow", lambda: second_lab.complete(claim))
    await flow.link("a>child")
    assert race.left == 0
    await second_lab.engine._dispatcher.drain()
    await flow.settled()
    assert await counters(flow, "child") == (1, 1, 0, 0)
    assert await lab.state(flow["child"]) is PublicState.WAITING


async def test_edges_added_while_parents_finish_fire_nothing_early(lab: Lab) -> None:
    """F-12: parents that run already; the child waits for the seal and for all of them"""
    flow = await Growing.begin(lab)
    for name in ("a", "b", "child"):
        flow.members[name] = await lab.submit(flow=flow.id)
        await lab.engine.flows.join(flow.id, flow[name])
    await flow.complete("a")
    await flow.link("a>child")
    assert await lab.state(flow["child"]) is PublicState.WAITING_CHILDREN
    await flow.link("b>child")
    await flow.settled()
    assert (await join_of(flow, "child")).state is JoinState.PENDING
    await flow.complete("b")
    assert await lab.state(flow["child"]) is PublicState.WAITING_CHILDREN
    await flow.seal()
    assert await lab.state(flow["child"]) is PublicState.WAITING


async def test_a_quorum_is_not_lost_before_its_edges_are_there(lab: Lab) -> None:
    """F-12: in a flow that runs there is no seal to wait for"""
    flow = await Growing.begin(lab, "a", "b")
    await flow.seal()
    await flow.add("child")
    await lab.engine.flows.set_join(flow.id, flow["child"], Quorum(2))
    await flow.link("a>child")
    await flow.complete("a")
    assert await lab.state(flow["child"]) is PublicState.WAITING_CHILDREN
    await flow.link("b>child")
    await flow.complete("b")
    await flow.complete("child")


async def test_an_edge_between_the_seal_and_the_release_loses_no_quorum(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-12, I-11: the flow is sealed and its members are still held; the other edge comes later"""
    flow = await Growing.begin(lab, "a", "b", "child")
    await lab.engine.flows.set_join(flow.id, flow["child"], Quorum(2))
    race = Race(lab, monkeypatch)
    race.before("owing", lambda: flow.link("a>child"))
    await flow.seal()
    assert (race.left, await lab.state(flow["child"])) == (0, PublicState.WAITING_CHILDREN)
    await flow.link("b>child")
    await flow.complete("a", "b")
    await flow.complete("child")
    assert await flow.state() is FlowState.COMPLETED


async def test_the_seal_skips_what_has_become_impossible(lab: Lab) -> None:
    """F-12, I-13, I-14: an upstream failed while the flow was open"""
    flow = await Growing.begin(lab, "b", "c")
    flow.members["a"] = await lab.submit(flow=flow.id)
    await lab.engine.flows.join(flow.id, flow["a"])
    await flow.link("a>b")
    await flow.link("b>c")
    await flow.fail("a")
    assert await lab.state(flow["b"]) is PublicState.WAITING_CHILDREN
    await flow.seal()
    await flow.settled()
    assert await flow.states() == {
        "a": PublicState.FAILED,
        "b": PublicState.SKIPPED,
        "c": PublicState.SKIPPED,
    }


# -- a downstream that goes on


async def test_an_edge_into_a_join_that_has_fired_is_refused(lab: Lab) -> None:
    """F-13, I-8: it would be waited for by nobody, or for ever"""
    flow = await Growing.begin(lab, "a", "b", "child")
    await lab.engine.flows.set_join(flow.id, flow["child"], AnyOf())
    await flow.link("a>child")
    await flow.seal()
    await flow.complete("a")
    await refused(flow, flow.link("b>child"), InvalidGraph)
    assert await lab.state(flow["child"]) is PublicState.WAITING
    await flow.complete("child")
    await refused(flow, flow.link("b>child"), InvalidGraph)


GATED = {name: way for name, way in LIVING.items() if name not in ("depending", "waiting_children")}


@pytest.mark.rules
@pytest.mark.parametrize("situation", GATED.values(), ids=GATED)
async def test_an_edge_gates_a_child_whatever_it_is_doing(lab: Lab, situation: Situation) -> None:
    """C-T11, I-12, Q-11: what would run waits for its upstream, the rest goes on; then all is as it
    was, what it waited for besides included"""
    flow = await Growing.begin(lab, "a")
    await flow.seal()
    flow.members["child"] = await situation(lab, flow=flow.id)
    await lab.engine.flows.join(flow.id, flow["child"])
    before, state = await lab.vector(flow["child"]), (await load(lab, flow["child"])).state
    await flow.link("a>child")
    seen = await described(lab, flow["child"])
    if isinstance(state, Ready) or (isinstance(state, Waiting) and state.gate in DELAYS):
        assert seen.vector.public is PublicState.WAITING_CHILDREN
    else:
        assert seen.vector == before
    await flow.complete("a")
    assert await lab.vector(flow["child"]) == before


@pytest.mark.parametrize("situation", GATED.values(), ids=GATED)
async def test_a_failed_upstream_skips_a_child_whatever_it_is_doing(
    lab: Lab, situation: Situation
) -> None:
    """I-13, I-42, F-15: told once, its attempt ended, and nothing of it comes back"""
    flow = await Growing.begin(lab, "a")
    await flow.seal()
    flow.members["child"] = await situation(lab, flow=flow.id)
    await lab.engine.flows.join(flow.id, flow["child"])
    told = len(await completions(lab, flow["child"]))
    await flow.link("a>child")
    await flow.fail("a")
    seen = await described(lab, flow["child"])
    assert (seen.state, seen.lease, seen.waitpoint) == (PublicState.SKIPPED, None, None)
    assert (await completions(lab, flow["child"]))[told:] == [Outcome.SKIPPED]
    attempts = await lab.engine.views.attempts(flow["child"])
    assert all(attempt.outcome.final for attempt in attempts)
    await lab.pass_time(1_000_000)
    assert await lab.claim(limit=10) == []
    assert await lab.state(flow["child"]) is PublicState.SKIPPED


async def test_a_failed_upstream_skips_a_running_child(lab: Lab) -> None:
    """F-15, I-13: in any state that has not ended; its lease and its attempt go with it"""
    flow = await Growing.begin(lab, "a", "child")
    await flow.seal()
    claim = await flow.take("child")
    await flow.link("a>child")
    await flow.fail("a")
    assert await lab.state(flow["child"]) is PublicState.SKIPPED
    assert await completions(lab, flow["child"]) == [Outcome.SKIPPED]
    *_, told = await lab.events(flow["child"], family=Family.LEASE)
    assert (told.lease, told.reason) == ("released", "dependency_impossible")
    seen = await described(lab, flow["child"])
    assert (seen.lease, seen.vector.attempt) == (None, "attempt_terminal")
    [attempt] = await lab.engine.views.attempts(flow["child"])
    assert attempt.outcome is AttemptOutcome.CANCELLED
    closed = (await lab.engine.streams.read(flow["child"], 0)).closed
    assert closed is not None
    assert closed.reason == "dependency_impossible"
    with pytest.raises(NotActive) as refusal:
        await lab.complete(claim)
    assert refusal.value.outcome == "skipped"
    assert (await flow.check()).ended == {"failed": 1, "skipped": 1}


@pytest.mark.parametrize("ending", [Outcome.SUCCESS, Outcome.FAILED])
@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.FAILED, Outcome.CANCELLED])
async def test_an_edge_into_an_ended_member_leaves_its_outcome_alone(
    lab: Lab, outcome: Outcome, ending: Outcome
) -> None:
    """C-T28, I-15, coordination.md 1.3: staging looks at no state of the downstream; it waits for
    the upstream if it is replayed"""
    flow = await Growing.begin(lab, "a", "child")
    await flow.seal()
    await flow.end("child", outcome)
    before = await described(lab, flow["child"])
    revision = (await flow.flow()).revision
    answer = await flow.link("a>child")
    assert isinstance(answer, Staged)
    assert (answer.revision, (await flow.flow()).edges) == (revision + 1, 1)
    assert (await described(lab, flow["child"])).vector == before.vector
    await flow.end("a", ending)
    after = await described(lab, flow["child"])
    assert (after.vector, after.ended_at) == (before.vector, before.ended_at)
    assert await completions(lab, flow["child"]) == [outcome]
    won = ending is Outcome.SUCCESS
    assert await counters(flow, "child") == (1, int(won), int(not won), 0)
    await flow.check()


async def test_an_ended_member_waits_for_a_later_edge_when_it_is_replayed(lab: Lab) -> None:
    """C-T29, I-12"""
    flow = await Growing.begin(lab, "a", "child")
    await flow.seal()
    await flow.complete("child")
    edge = flow.edge("a>child")
    await lab.engine.flows.stage(edge)
    assert await replay(flow, "child") == [PublicState.WAITING_CHILDREN]
    assert (await described(lab, flow["child"])).blocking_detail == (
        f"waits for 1 of 1 upstreams (newest edge {edge.id})"
    )
    await flow.complete("a")
    await flow.complete("child")
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_an_edge_that_is_there_is_told_so_after_the_end_of_its_downstream(lab: Lab) -> None:
    flow = await Growing.begin(lab, "a", "child", "rest")
    edge = flow.edge("a>child")
    await lab.engine.flows.stage(edge)
    await flow.seal()
    await flow.complete("a")
    await flow.complete("child")
    assert isinstance(await lab.engine.flows.stage(edge), AlreadyStaged)


async def test_the_graph_shows_members_and_edges(lab: Lab) -> None:
    """C-T19: and what belongs to no flow is of none"""
    drawn = await declare(lab, "a>b")
    graph = await lab.engine.flow_views.graph(drawn.id)
    assert {member.name for member in graph.members} == {"a", "b"}
    assert len(graph.edges) == 1
    flow_of = lab.engine.flow_views.flow_of
    assert await flow_of(drawn["a"]) == drawn.id
    assert await flow_of(await lab.submit()) is None
    assert await flow_of(ExecutionId.member(drawn.id, fresh())) is None
