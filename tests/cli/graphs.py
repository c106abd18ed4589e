"""Graphs of flows made by hand, for drawings."""

from uuid import uuid5
from xml.etree import ElementTree

from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.graph import member_id
from flowfabric.core.flow.join import Edge, EdgeState, Join, JoinPolicy, On
from flowfabric.core.flow.model import Flow
from flowfabric.engine.flow.views import FlowGraph, Member
from flowfabric.worker.api.flow import NAMES

LETTERS = {
    "c": PublicState.COMPLETED,
    "f": PublicState.FAILED,
    "a": PublicState.ACTIVE,
    "w": PublicState.WAITING_CHILDREN,
    "s": PublicState.SKIPPED,
    "x": PublicState.CANCELLED,
}


def graph(
    states: dict[str, str],
    *arrows: tuple[str, str] | tuple[str, str, On],
    joins: dict[str, JoinPolicy] | None = None,
) -> FlowGraph:
    """`graph({"a": "c", "b": "w"}, ("a", "b"))`; a state is its letter."""
    edges = tuple(_edge(number, *arrow) for number, arrow in enumerate(arrows))
    members = []
    for name, letter in states.items():
        id = member_id(NAMES, name)
        policy = (joins or {}).get(name)
        n = sum(state.edge.downstream == id.uuid for state in edges)
        join = Join(policy=policy, n=n) if policy is not None else None
        members.append(Member(id, name, name.partition(" ")[0], LETTERS[letter], join))
    return FlowGraph(Flow(id=NAMES, kind="nightly"), tuple(members), edges)


def parsed(svg: str) -> ElementTree.Element:
    """A picture as a browser would read it: any mistake in it is an error."""
    return ElementTree.fromstring(svg)  # noqa: S314 - our own


def _edge(number: int, upstream: str, downstream: str, on: On = On.SUCCESS) -> EdgeState:
    above, below = member_id(NAMES, upstream).uuid, member_id(NAMES, downstream).uuid
    return EdgeState(Edge(uuid5(NAMES, str(number)), NAMES, above, below, on))
