"""Graphs as pure functions: what can run, what cannot, and what a declaration becomes."""

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.errors import CycleDetected, InvalidGraph, NotInFlow, SelfEdge
from flowfabric.core.base.ids import flow_partition
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Flags, Gate, Ready, Waiting
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import (
    Graph,
    GraphEdge,
    GraphNode,
    check_graph,
    digest_of,
    member_id,
    plan,
)
from flowfabric.core.flow.join import AnyOf, On

FLOW, OTHER = UUID(int=7), UUID(int=8)
NOW, LATER = Millis(1_700_000_000_000), Millis(1_700_000_005_000)

pairs = st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] != pair[1])
shapes = st.tuples(st.integers(8, 10), st.lists(pairs, max_size=14))


def graph_of(number: int, links: list[tuple[int, int]]) -> Graph:
    nodes = tuple(GraphNode(f"n{each}", Submission(kind="job")) for each in range(number))
    return Graph(nodes, tuple(GraphEdge(f"n{up}", f"n{down}") for up, down in links))


def has_cycle(links: list[tuple[int, int]]) -> bool:
    """The slow way: somebody can be reached from itself."""
    reached = {start: {down for up, down in links if up == start} for start, _ in links}
    for _ in range(len(links)):
        for found in reached.values():
            found |= {down for up, down in links if up in found}
    return any(start in found for start, found in reached.items())


@given(shapes)
def test_a_cycle_is_found_exactly_when_there_is_one(
    shape: tuple[int, list[tuple[int, int]]],
) -> None:
    """C-T13, I-3, F-18: and the refusal names one, member by member"""
    graph = graph_of(*shape)
    if not has_cycle(shape[1]):
        assert check_graph(graph) == graph
        return
    with pytest.raises(CycleDetected) as refusal:
        check_graph(graph)
    named = str(refusal.value).split(": ", 1)[1].split(" → ")
    links = {(link.upstream, link.downstream) for link in graph.links}
    assert named[0] == named[-1]
    assert len(named) > 2
    assert all(pair in links for pair in pairwise(named))


def test_a_large_cycle_is_found_in_no_time() -> None:
    """F-18: no cap on size or depth"""
    number = 50_000
    chain = list(pairwise(range(number)))
    assert check_graph(graph_of(number, chain))
    with pytest.raises(CycleDetected):
        check_graph(graph_of(number, [*chain, (number - 1, 0)]))


@given(shapes)
def test_the_same_declaration_becomes_the_same(shape: tuple[int, list[tuple[int, int]]]) -> None:
    """I-4: now and later; in another flow it is another one"""
    graph = graph_of(*shape)
    first, again, other = plan(FLOW, graph, NOW), plan(FLOW, graph, LATER), plan(OTHER, graph, NOW)
    assert (first.digest, first.ids) == (again.digest, again.ids)
    assert [edge.id for edge in first.edges] == [edge.id for edge in again.edges]
    assert plan(FLOW, graph, NOW) == first
    assert other.digest == first.digest
    assert set(other.ids.values()).isdisjoint(first.ids.values())


@given(shapes)
def test_a_plan_has_every_member_once_and_the_roots_apart(
    shape: tuple[int, list[tuple[int, int]]],
) -> None:
    """F-12, I-2, I-12: whoever has an upstream waits for it from the beginning"""
    number, links = shape
    laid = plan(FLOW, graph_of(number, links), NOW)
    assert len({edge.id for edge in laid.edges}) == len(links)
    made = {creation.snapshot.execution.id: creation for creation in (*laid.rest, *laid.roots)}
    assert len(made) == number == len(laid.rest) + len(laid.roots)
    for key, id in laid.ids.items():
        snapshot = made[id].snapshot
        assert snapshot.head.flags & Flags.FLOW
        assert (snapshot.execution.flow, snapshot.execution.facts.member) == (FLOW, key)
        assert id.partition_index == flow_partition(FLOW)
        incoming = sum(f"n{down}" == key for _, down in links)
        join = snapshot.life.join
        assert (0 if join is None else join.n) == incoming
        assert (made[id] in laid.rest) is bool(incoming)
        match snapshot.state:
            case Waiting(gate=gate):
                assert gate is Gate.DEPENDENCIES
                assert incoming
            case state:
                assert isinstance(state, Ready)


def test_two_edges_between_the_same_two_are_two() -> None:
    """I-9: in a declaration as well"""
    laid = plan(FLOW, graph_of(2, [(0, 1), (0, 1)]), NOW)
    assert len({edge.id for edge in laid.edges}) == 2
    (child,) = laid.rest
    assert child.snapshot.life.join is not None
    assert child.snapshot.life.join.n == 2


def test_whatever_is_declared_otherwise_has_another_digest() -> None:
    """I-4"""
    graph = graph_of(2, [(0, 1)])
    first, second = graph.nodes
    others = [
        replace(graph, links=()),
        replace(graph, links=(GraphEdge("n0", "n1", On.ANY_END),)),
        replace(graph, links=(GraphEdge("n0", "n1", input="x"),)),
        replace(graph, nodes=(first, replace(second, join=AnyOf()))),
        replace(graph, nodes=(first, replace(second, key="n2"))),
        replace(graph, nodes=(first, replace(second, submission=Submission(kind="other")))),
        replace(
            graph, nodes=(first, replace(second, submission=Submission(kind="job", priority=1)))
        ),
    ]
    assert len({digest_of(each) for each in (graph, *others)}) == len(others) + 1


def test_a_member_keeps_its_id() -> None:
    """I-1: it is made of the flow and the name"""
    assert member_id(FLOW, "a") == member_id(FLOW, "a")
    assert len({member_id(FLOW, "a"), member_id(FLOW, "b"), member_id(OTHER, "a")}) == 3


@pytest.mark.parametrize(
    ("links", "error"),
    [([(0, 0)], SelfEdge), ([(0, 99)], NotInFlow), ([(99, 0)], NotInFlow)],
)
def test_links_to_nowhere_are_refused(
    links: list[tuple[int, int]], error: type[InvalidGraph]
) -> None:
    """C-T13"""
    with pytest.raises(error):
        check_graph(graph_of(3, links))
