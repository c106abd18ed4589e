"""The whole graph in one call: refused as a whole, or there as a whole, however often it is said.

Design §7; invariants I-2, I-3, I-5; flaws F-12, F-18, F-22, F-30.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    CycleDetected,
    FlowConflict,
    FlowFabricError,
    Invalid,
    InvalidGraph,
    NotInFlow,
    SelfEdge,
    Unavailable,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode, member_id
from flowfabric.core.flow.join import AnyOf, On, Quorum, Rest
from flowfabric.core.flow.model import FlowState
from flowfabric.store.queries import Query
from tests.kit.flow_lab import Drawn, declare, draw
from tests.kit.flowing import counters
from tests.kit.lab import Lab
from tests.kit.signalling import fresh
from tests.kit.situations import described

JOB = Submission(kind="job")
ANYTHING: Any = object()
NO_WORD: Any = "sometimes"


def of(*nodes: Any, links: tuple[Any, ...] = ()) -> Graph:
    return Graph(nodes, links)


def with_submission(**members: Any) -> Graph:
    return of(GraphNode("good", JOB), GraphNode("bad", Submission(**{"kind": "job", **members})))


A, B = GraphNode("a", JOB), GraphNode("b", JOB)
REFUSED: dict[str, tuple[Any, type[FlowFabricError], str]] = {
    "empty": (of(), InvalidGraph, "at least one"),
    "cycle": (draw("root>a>b>c>a", "c>after"), CycleDetected, "a → b → c → a|b → c → a|c → a"),
    "two that wait": (draw("a>b>a"), CycleDetected, "→"),
    "self edge": (of(A, links=(GraphEdge("a", "a"),)), SelfEdge, "'a' waits for itself"),
    "unknown upstream": (of(A, links=(GraphEdge("x", "a"),)), NotInFlow, "'x' is not a member"),
    "unknown downstream": (of(A, links=(GraphEdge("a", "x"),)), NotInFlow, "'x' is not a member"),
    "quorum": (draw("a>c", "b>c", joins={"c": Quorum(3)}), InvalidGraph, "'c' needs 3 of 2"),
    "quorum of a root": (draw("a>b", joins={"a": Quorum(1)}), InvalidGraph, "'a' needs 1 of 0"),
    "quorum of none": (draw("a>b", joins={"b": Quorum(0)}), Invalid, "k"),
    "no join": (draw("a>b", joins={"b": NO_WORD}), InvalidGraph, "'b'"),
    "bad rest": (draw("a>b", joins={"b": AnyOf(NO_WORD)}), InvalidGraph, "'b'"),
    "bad kind of edge": (draw("a>b", on={"a>b": NO_WORD}), InvalidGraph, "sometimes"),
    "bad input": (of(A, B, links=(GraphEdge("a", "b", input="\ud800"),)), Invalid, "."),
    "two of one name": (of(A, B, A), InvalidGraph, "two members are called 'a'"),
    "no name": (of(GraphNode("", JOB)), Invalid, "."),
    "a name that is none": (of(GraphNode(ANYTHING, JOB)), Invalid, "."),
    "bad kind": (with_submission(kind=""), InvalidGraph, "'bad'"),
    "bad payload": (with_submission(payload="text"), InvalidGraph, "'bad'"),
    "bad priority": (with_submission(priority="high"), InvalidGraph, "'bad'"),
    "bad policy": (with_submission(policy={"retry_policy": 7}), InvalidGraph, "'bad'"),
    "bad tag": (with_submission(tags={"Bad": "x"}), InvalidGraph, "'bad'"),
    "bad lane": (with_submission(lane="x" * 65), InvalidGraph, "'bad'"),
    "an idempotency key": (with_submission(key="k"), InvalidGraph, "'bad'.*idempotency key"),
    "no submission": (of(GraphNode("a", ANYTHING)), Invalid, "submission"),
    "no node": (of(A, ANYTHING), Invalid, "node"),
    "no link": (of(A, links=(ANYTHING,)), Invalid, "link"),
    "a link of no names": (of(A, B, links=(GraphEdge(ANYTHING, "a"),)), Invalid, "."),
    "links that are none": (Graph((A,), ANYTHING), Invalid, "."),
    "nodes that are none": (Graph(ANYTHING), Invalid, "."),
    "no graph": (ANYTHING, Invalid, "graph"),
}


BY_TYPE = {"bad payload", "bad priority"}
"""What a client refuses by its type, without the name of the member."""


@pytest.mark.rules
@pytest.mark.parametrize(
    ("graph", "error", "says"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.inside] if name in BY_TYPE else [])
        for name, case in REFUSED.items()
    ],
)
async def test_a_graph_that_cannot_run_is_refused_as_a_whole(
    lab: Lab, graph: Any, error: type[FlowFabricError], says: str
) -> None:
    """C-T13, I-3, I-5, F-18, F-22, F-30: with the reason, and nothing is created"""
    with pytest.raises(error, match=says):
        await lab.engine.flows.declare("nightly", graph)
    assert await lab.engine.flow_views.page() == []
    assert (await lab.engine.views.list(Query())).items == ()


@pytest.mark.rules
@pytest.mark.parametrize("bad", [{"kind": ""}, {"id": "x"}, {"namespace": ""}, {"tags": {"B": ""}}])
async def test_a_declaration_of_bad_words_is_refused(lab: Lab, bad: dict[str, Any]) -> None:
    """I-5"""
    with pytest.raises(Invalid):
        await lab.engine.flows.declare(**{"kind": "nightly", "graph": draw("a>b"), **bad})
    assert await lab.engine.flow_views.page() == []
    assert (await lab.engine.views.list(Query())).items == ()


async def test_a_declared_flow_is_there_as_a_whole(lab: Lab) -> None:
    """C-T2, C-T11, I-2: members by name, edges, joins; the roots wait for a worker"""
    graph = draw("a>c", "b>c", joins={"c": AnyOf()}, on={"b>c": On.ANY_END})
    declared = await lab.engine.flows.declare("nightly", graph, namespace="acme")
    assert declared.created
    seen = await lab.engine.flow_views.graph(declared.id)
    flow = seen.flow
    assert (flow.state, flow.nodes, flow.edges, flow.revision) == (FlowState.RUNNING, 3, 2, 5)
    assert (flow.kind, flow.namespace) == ("nightly", "acme")
    assert {member.name: member.id for member in seen.members} == declared.members
    ids = {name: id.uuid for name, id in declared.members.items()}
    edges = {(edge.edge.upstream, edge.edge.downstream, edge.edge.on) for edge in seen.edges}
    assert edges == {(ids["a"], ids["c"], On.SUCCESS), (ids["b"], ids["c"], On.ANY_END)}
    drawn = Drawn(lab, declared.id, declared.members)
    waiting, held = PublicState.WAITING, PublicState.WAITING_CHILDREN
    assert await drawn.states() == {"a": waiting, "b": waiting, "c": held}
    for id in declared.members.values():
        await described(lab, id)


async def test_what_a_member_is_to_be_is_kept(lab: Lab) -> None:
    """C-T2: its own lane, priority, payload, tags and delay"""
    later = Millis(lab.clock.now() + 5000)
    given = {
        "a": {"lane": "gpu", "priority": 7, "payload": b"x", "tags": {"team.name": "ops"}},
        "b": {"delay_until": later},
    }
    flow = await declare(lab, "a", "b", given=given)
    seen = await described(lab, flow["a"])
    assert (seen.lane, seen.priority, seen.tags) == ("gpu", 7, {"team.name": "ops"})
    assert await lab.state(flow["b"]) is PublicState.DELAYED
    claim = await lab.claim_one(lanes=("gpu",))
    assert (claim.id, claim.payload) == (flow["a"], b"x")


# -- again


async def test_the_same_again_changes_nothing(lab: Lab) -> None:
    """While it runs, and after it has ended"""
    id = fresh()
    flow = await declare(lab, "a>b", id=id)
    before = await flow.flow()
    again = await lab.engine.flows.declare("nightly", draw("a>b"), id=id)
    assert (again.created, again.members) == (False, flow.members)
    assert await flow.flow() == before
    assert len((await lab.engine.views.list(Query())).items) == 2
    for name in "ab":
        await flow.complete(name)
    ended = await flow.check()
    again = await lab.engine.flows.declare("nightly", draw("a>b"), id=id)
    assert not again.created
    assert await flow.check() == ended
    assert await lab.claim() == []


OTHERS: dict[str, tuple[Graph, dict[str, str]]] = {
    "another member": (draw("a>b", "c"), {}),
    "a member less": (draw("a"), {}),
    "another edge": (draw("b>a"), {}),
    "no edge": (draw("a", "b"), {}),
    "another kind of edge": (draw("a>b", on={"a>b": On.ANY_END}), {}),
    "another join": (draw("a>b", joins={"b": AnyOf(Rest.LET_RUN)}), {}),
    "another payload": (draw("a>b", given={"a": {"payload": b"x"}}), {}),
    "another task": (draw("a>b", given={"a": {"kind": "other"}}), {}),
    "another lane": (draw("a>b", given={"a": {"lane": "gpu"}}), {}),
    "another input": (replace(draw("a>b"), links=(GraphEdge("a", "b", input="x"),)), {}),
    "another kind": (draw("a>b"), {"kind": "daily"}),
    "another namespace": (draw("a>b"), {"namespace": "acme"}),
}


@pytest.mark.rules
@pytest.mark.parametrize(("graph", "words"), OTHERS.values(), ids=OTHERS)
async def test_another_graph_under_a_known_id_is_a_conflict(
    lab: Lab, graph: Graph, words: dict[str, str]
) -> None:
    """I-4, I-5: and nothing of it is created"""
    id = fresh()
    flow = await declare(lab, "a>b", id=id)
    before = await lab.engine.flow_views.graph(id)
    said: dict[str, Any] = {"kind": "nightly", "graph": graph, "id": id, **words}
    with pytest.raises(FlowConflict):
        await lab.engine.flows.declare(**said)
    assert await lab.engine.flow_views.graph(id) == before
    assert len((await lab.engine.views.list(Query())).items) == 2
    await flow.complete("a")
    await flow.complete("b")


async def test_a_flow_that_grew_piece_by_piece_is_not_declared_again(lab: Lab) -> None:
    """I-5"""
    id = fresh()
    await lab.engine.flows.create("nightly", id=id)
    with pytest.raises(FlowConflict):
        await lab.engine.flows.declare("nightly", draw("a>b"), id=id)
    assert (await lab.engine.views.list(Query())).items == ()


async def test_many_who_declare_the_same_get_one_flow(lab: Lab, second_lab: Lab) -> None:
    """I-2: at once, from two engines"""
    id, graph = fresh(), draw("a>c", "b>c")
    calls = [each.engine.flows.declare("nightly", graph, id=id) for each in [lab, second_lab] * 4]
    answers = await asyncio.gather(*calls)
    assert sum(answer.created for answer in answers) == 1
    assert all(answer.members == answers[0].members for answer in answers)
    assert len((await lab.engine.views.list(Query())).items) == 3
    flow = Drawn(lab, id, answers[0].members)
    await flow.complete("a", "b")
    await flow.complete("c")
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_of_two_graphs_under_one_id_one_is_declared(lab: Lab, second_lab: Lab) -> None:
    """I-5: at once, from two engines"""
    for _ in range(5):
        id = fresh()
        calls = [
            each.engine.flows.declare("nightly", draw(word), id=id)
            for each, word in ((lab, "a>b"), (second_lab, "x>y>z"))
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(answer, FlowConflict) for answer in answers) == 1
        seen = await lab.engine.flow_views.graph(id)
        assert {member.name for member in seen.members} in ({"a", "b"}, {"x", "y", "z"})
        assert seen.flow.nodes == len(seen.members)


async def test_names_are_told_apart_by_their_flow(lab: Lab) -> None:
    """I-1: the same name in two flows is two executions"""
    one, two = await declare(lab, "a>b"), await declare(lab, "a>b")
    assert set(one.members.values()) & set(two.members.values()) == set()
    assert one["a"] == member_id(one.id, "a")


# -- interrupted

WIDE = 620


class Interruption:
    """Breaks the n-th write of a declaration, before or after it was made."""

    def __init__(self, lab: Lab, number: int, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self._when = number, when
        for method in ("submit", "apply_flow"):
            honest = getattr(lab.engine.store, method)
            monkeypatch.setattr(lab.engine.store, method, self._breaking(honest))

    def _breaking(self, honest: Callable[..., Any]) -> Callable[..., Any]:
        async def raced(*args: Any) -> Any:
            self.left -= 1
            if self.left <= 0 and self._when == "before":
                raise Unavailable("the store is gone")
            answer = await honest(*args)
            if self.left <= 0:
                raise Unavailable("the reply is lost")
            return answer

        return raced


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_an_interrupted_declaration_is_finished_by_repeating_it(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, number: int, when: str
) -> None:
    """F-12, I-2: at every write; nothing runs before all it leads to is there"""
    id = fresh()
    graph = draw(*(f"u{each}>z" for each in range(WIDE)))
    with monkeypatch.context() as broken:
        fault = Interruption(lab, number, when, broken)
        with pytest.raises(Unavailable):
            await lab.engine.flows.declare("wide", graph, id=id)
        assert fault.left <= 0
    early = await lab.claim(limit=1)
    if early:
        edges = await lab.engine.flow_views.edges(id)
        assert len(edges) == WIDE
        await lab.complete(early[0])
    declared = await second_lab.engine.flows.declare("wide", graph, id=id)
    flow = Drawn(lab, id, declared.members)
    seen = await lab.engine.flow_views.graph(id)
    assert len(seen.members) == seen.flow.nodes == WIDE + 1
    assert len(seen.edges) == seen.flow.edges == WIDE
    await flow.settled()
    assert await counters(flow, "z") == (WIDE, len(early), 0, 0)
    while claims := await lab.claim(limit=500):
        await asyncio.gather(*(lab.complete(claim) for claim in claims))
        await flow.settled()
    assert (await flow.flow()).state is FlowState.COMPLETED


@pytest.mark.parametrize("heard", [False, True])
async def test_a_small_flow_is_written_in_one_commit(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    """I-2: whichever side of it the process dies, nothing is left half written"""
    id, graph, honest = fresh(), draw("a>b>c", "d"), lab.engine.store.lay_flows

    async def lay_flows(flows: Any, now: Millis) -> Any:
        if heard:
            await honest(flows, now)
        raise Unavailable("the process dies")

    monkeypatch.setattr(lab.engine.store, "lay_flows", lay_flows)
    with pytest.raises(Unavailable):
        await lab.engine.flows.declare("nightly", graph, id=id)
    assert (await second_lab.engine.flow_views.get(id) is not None) is heard
    declared = await second_lab.engine.flows.declare("nightly", graph, id=id)
    assert declared.created is not heard
    drawn = Drawn(second_lab, id, declared.members)
    for name in "abcd":
        await drawn.complete(name)
    assert (await drawn.check()).state is FlowState.COMPLETED


@pytest.mark.inside
async def test_declarations_of_one_moment_share_a_commit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with one among them that is there already; each caller hears of its own"""
    there, honest, calls = await declare(lab, "a>b"), lab.engine.store.lay_flows, list[int]()

    async def lay_flows(flows: Any, now: Millis) -> Any:
        calls.append(len(flows))
        return await honest(flows, now)

    monkeypatch.setattr(lab.engine.store, "lay_flows", lay_flows)
    ids = [there.id, *(fresh() for _ in range(5))]
    answers = await asyncio.gather(
        *(lab.engine.flows.declare("nightly", draw("a>b"), id=id) for id in ids)
    )
    assert calls == [6]
    assert [(answer.id, answer.created) for answer in answers] == [
        (id, id != there.id) for id in ids
    ]
