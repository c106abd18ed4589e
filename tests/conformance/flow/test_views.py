"""Looking at flows. §1.9 to §1.11, C-T61, C-T62, C-T64, F-32, E-T202, E-T334."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import Invalid, InvalidId, NotFound
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode
from flowfabric.core.flow.join import AllOf, AnyOf, Join, JoinState, On, Quorum, Rest
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState
from tests.kit import situations
from tests.kit.flow_lab import Drawn, declare, fresh
from tests.kit.flowing import die_after_commits
from tests.kit.lab import Lab
from tests.kit.situations import missing_ids, suspend

TAGS = {"app.team": "ü", "app.run": "7"}


# -- one flow


async def test_a_fresh_flow_is_open_and_empty(lab: Lab) -> None:
    """C-T61"""
    id, now = fresh(lab), lab.clock.now()
    await lab.engine.flows.create("nightly", id=id, namespace="acme", tags=TAGS)
    flow = await lab.engine.flow_views.get(id)
    assert flow == Flow(
        id=id, kind="nightly", namespace="acme", tags=TAGS, created_at=now, mutated_at=now
    )
    described = await lab.engine.flow_views.describe(id)
    assert described is not None
    assert (described.flow, set(described.states.values())) == (flow, {0})


async def test_an_unknown_flow_is_nothing(lab: Lab) -> None:
    """C-T61"""
    views, id = lab.engine.flow_views, fresh(lab)
    assert await views.get(id) is None
    assert await views.describe(id) is None
    assert await views.members(id) == []
    assert await views.edges(id) == []
    assert await views.groups(id) == {}
    assert await views.edge(id, id) is None
    for call in (views.graph, views.wait):
        with pytest.raises(NotFound):
            await call(id)
    with pytest.raises(Invalid):
        await views.get("flow")


async def test_a_declared_flow_tells_its_size_and_its_tags(lab: Lab) -> None:
    drawn = await declare(lab, "a>b>c", "a>c", tags=TAGS, namespace="acme")
    flow = await drawn.flow()
    assert (flow.state, flow.nodes, flow.edges, flow.revision) == (FlowState.RUNNING, 3, 3, 6)
    assert (flow.kind, flow.namespace, flow.tags, flow.ended) == ("nightly", "acme", TAGS, {})


async def test_a_cancelled_flow_tells_when_why_and_how(lab: Lab) -> None:
    """C-T61"""
    drawn = await declare(lab, "a")
    lab.clock.advance(9)
    await lab.engine.flows.cancel(drawn.id, reason="why", policy=CancelPolicy.PENDING)
    cancel = (await drawn.flow()).cancel
    assert cancel is not None
    assert (cancel.at, cancel.reason, cancel.policy) == (
        lab.clock.now(),
        "why",
        CancelPolicy.PENDING,
    )


async def test_members_are_counted_exactly_by_state(lab: Lab) -> None:
    """F-32"""
    later = Millis(lab.clock.now() + 1_000)
    drawn = await declare(
        lab, "a", "b", "c>d", "e>f", "g", "h", given={"h": {"delay_until": later}}
    )
    await drawn.complete("a")
    await drawn.fail("e")
    await drawn.take("b")
    await suspend(lab, await drawn.take("g"))
    seen = await lab.engine.flow_views.describe(drawn.id)
    assert seen is not None
    assert {state.value: number for state, number in seen.states.items() if number} == {
        "completed": 1,
        "failed": 1,
        "skipped": 1,
        "active": 1,
        "suspended": 1,
        "delayed": 1,
        "waiting": 1,
        "waiting_children": 1,
    }
    await drawn.check()


async def test_joins_are_told_by_the_execution_that_waits(lab: Lab) -> None:
    """§1.10: edge groups; running is what has not ended"""
    drawn = await declare(
        lab,
        *("a>y", "b>y", "c>y", "a>z", "b>z"),
        joins={"y": Quorum(2, Rest.LET_RUN), "z": AnyOf(Rest.LET_RUN)},
    )
    await drawn.fail("a")
    now = lab.clock.now()
    lab.clock.advance(1)
    await drawn.complete("b")
    groups = await lab.engine.flow_views.groups(drawn.id)
    assert groups == {
        drawn["y"]: Join(policy=Quorum(2, Rest.LET_RUN), n=3, succeeded=1, failed=1),
        drawn["z"]: Join(
            policy=AnyOf(Rest.LET_RUN),
            n=2,
            succeeded=1,
            failed=1,
            state=JoinState.SATISFIED,
            fired_at=Millis(now + 1),
        ),
    }
    assert (groups[drawn["y"]].running, groups[drawn["z"]].running) == (1, 0)


# -- members and edges


async def test_members_are_paged_by_id(lab: Lab) -> None:
    drawn = await declare(lab, *(f"m{n}" for n in range(7)))
    views = lab.engine.flow_views
    everybody = await views.members(drawn.id)
    assert {(member.name, member.id) for member in everybody} == set(drawn.members.items())
    paged: list[Any] = []
    while page := await views.members(drawn.id, after=paged[-1].id if paged else None, limit=3):
        assert len(page) <= 3
        paged += page
    assert paged == everybody
    assert await views.members(drawn.id, limit=0) == []
    assert await views.members(drawn.id, limit=1_000_000) == everybody
    with pytest.raises(Invalid):
        await views.members(drawn.id, limit="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidId):
        await views.members(drawn.id, after="m1")  # type: ignore[arg-type]


async def test_edges_leave_and_enter(lab: Lab) -> None:
    drawn = await declare(lab, "a>b", "a>c", "b>d", "c>d", on={"a>c": On.ANY_END})
    views = lab.engine.flow_views
    every = await views.edges(drawn.id)
    assert [state.edge.id for state in every] == sorted(state.edge.id for state in every)
    assert len(every) == 4
    outgoing = await views.edges(drawn.id, upstream=drawn["a"])
    assert {state.edge.downstream for state in outgoing} == {drawn["b"].uuid, drawn["c"].uuid}
    incoming = await views.edges(drawn.id, downstream=drawn["d"])
    assert {state.edge.upstream for state in incoming} == {drawn["b"].uuid, drawn["c"].uuid}
    assert await views.edges(drawn.id, upstream=drawn["d"]) == []
    assert await views.edges(drawn.id, downstream=drawn["a"]) == []
    assert await views.edges(drawn.id, upstream=await lab.submit()) == []
    (state,) = [state for state in outgoing if state.edge.downstream == drawn["c"].uuid]
    assert (state.edge.on, state.outcome, state.satisfied) == (On.ANY_END, None, False)
    await drawn.fail("a")
    outcomes = [state.outcome for state in await views.edges(drawn.id, upstream=drawn["a"])]
    assert outcomes == [Outcome.FAILED, Outcome.FAILED]


async def test_an_edge_belongs_to_one_flow(lab: Lab) -> None:
    """§1.10: describe_edge"""
    graph = Graph(
        (GraphNode("a", Submission(kind="job")), GraphNode("b", Submission(kind="job"))),
        (GraphEdge("a", "b", On.ANY_END, "rows"),),
    )
    declared = await lab.engine.flows.declare("nightly", graph)
    views = lab.engine.flow_views
    (state,) = await views.edges(declared.id)
    edge = await views.edge(declared.id, state.edge.id)
    assert edge == state.edge
    assert edge is not None
    assert (edge.flow, edge.upstream, edge.downstream) == (
        declared.id,
        declared.members["a"].uuid,
        declared.members["b"].uuid,
    )
    assert (edge.on, edge.input, edge.created_at) == (On.ANY_END, "rows", lab.clock.now())
    other = await declare(lab, "a>b")
    assert await views.edge(other.id, edge.id) is None
    assert await views.edge(declared.id, fresh(lab)) is None


async def test_the_graph_is_the_whole_flow(lab: Lab) -> None:
    drawn = await declare(lab, "a>b", "a>c", given={"c": {"kind": "other"}})
    await drawn.fail("a")
    graph = await lab.engine.flow_views.graph(drawn.id)
    assert graph.flow == await drawn.flow()
    assert {(each.name, each.kind, each.state.value) for each in graph.members} == {
        ("a", "job", "failed"),
        ("b", "job", "skipped"),
        ("c", "other", "skipped"),
    }
    joins = {each.name: each.join for each in graph.members}
    assert joins["a"] is None
    assert joins["b"] is not None
    assert joins["b"].policy == AllOf()
    assert [state.outcome for state in graph.edges] == [Outcome.FAILED] * 2


async def test_a_flow_larger_than_a_page_is_seen_whole(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.engine.flow.walks.PAGE", 3)
    drawn = await declare(lab, *(f"a>m{n}" for n in range(10)))
    graph = await lab.engine.flow_views.graph(drawn.id)
    assert (len(graph.members), len(graph.edges)) == (11, 10)
    assert len(await lab.engine.flow_views.groups(drawn.id)) == 10


async def test_whose_member_an_execution_is(lab: Lab) -> None:
    """E-T334: none for one on its own, one that is gone, and one that was only made for a flow"""
    drawn = await declare(lab, "a")
    views = lab.engine.flow_views
    assert await views.flow_of(drawn["a"]) == drawn.id
    assert await views.flow_of(await lab.submit()) is None
    assert await views.flow_of(await lab.submit(flow=drawn.id)) is None
    for missing in await missing_ids(lab):
        assert await views.flow_of(missing) is None
    with pytest.raises(InvalidId):
        await views.flow_of("a")


# -- lists


async def create(lab: Lab, number: int, **options: Any) -> list[Flow]:
    """So many flows, one a millisecond, oldest first."""
    found = []
    for _ in range(number):
        lab.clock.advance(1)
        id = fresh(lab)
        await lab.engine.flows.create(**{"kind": "nightly", **options}, id=id)
        flow = await lab.engine.flow_views.get(id)
        assert flow is not None
        found.append(flow)
    return found


@pytest.mark.parametrize("newest_first", [False, True])
async def test_flows_are_paged_in_order(lab: Lab, newest_first: bool) -> None:
    """C-T62: the cursor is exclusive"""
    flows = await create(lab, 5)
    expected = flows[::-1] if newest_first else flows
    found: list[Flow] = []
    while page := await lab.engine.flow_views.page(
        after=(found[-1].created_at, found[-1].id) if found else None,
        limit=2,
        newest_first=newest_first,
    ):
        assert len(page) <= 2
        found += page
    assert found == expected


async def test_flows_of_one_moment_are_paged_by_id(lab: Lab) -> None:
    ids = sorted([fresh(lab) for _ in range(4)])
    for id in reversed(ids):
        await lab.engine.flows.create("nightly", id=id)
    views = lab.engine.flow_views
    first = await views.page(limit=3)
    rest = await views.page(after=(first[-1].created_at, first[-1].id))
    assert [flow.id for flow in [*first, *rest]] == ids


async def test_flows_are_found_by_what_they_are(lab: Lab) -> None:
    """C-T62"""
    (plain,) = await create(lab, 1)
    (other,) = await create(lab, 1, kind="hourly", namespace="acme", tags=TAGS)
    (gone,) = await create(lab, 1)
    await lab.engine.flows.cancel(gone.id)
    drawn = await declare(lab, "a")
    await drawn.complete("a")

    async def ids(**filters: Any) -> list[Any]:
        return [flow.id for flow in await lab.engine.flow_views.page(**filters)]

    assert await ids() == [plain.id, other.id, gone.id, drawn.id]
    assert await ids(kind="hourly") == await ids(namespace="acme") == [other.id]
    assert await ids(tag=("app.team", "ü")) == [other.id]
    assert await ids(tag=("app.team", "u")) == []
    assert await ids(states=(FlowState.CANCELLED,)) == [gone.id]
    assert await ids(states=(FlowState.OPEN, FlowState.COMPLETED)) == [
        plain.id,
        other.id,
        drawn.id,
    ]
    assert await ids(states=(FlowState.OPEN,), namespace="default") == [plain.id]
    assert await ids(limit=0) == []


@pytest.mark.inside
async def test_flows_are_listed_as_they_are_right_after_an_ending(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T62, I-22, F-32: also if the process that ended a member died right after the commit"""
    over, half = await declare(lab, "a"), await declare(lab, "a", "b")
    die_after_commits(lab, monkeypatch)
    for drawn in (over, half):
        await lab.complete(await drawn.take("a"))
    page = lab.engine.flow_views.page
    assert [flow.id for flow in await page(states=(FlowState.COMPLETED,))] == [over.id]
    (running,) = await page(states=(FlowState.RUNNING,))
    assert (running.id, running.ended) == (half.id, {"success": 1})
    assert await page() == [await over.flow(), await half.flow()]


@pytest.mark.rules
@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": "x"},
        {"after": 3},
        {"after": (1, "x")},
        {"states": "open"},
        {"states": ("blocked",)},
        {"namespace": ""},
        {"tag": ("a",)},
        {"tag": "a=b"},
    ],
)
async def test_a_question_without_an_answer_is_refused(lab: Lab, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await lab.engine.flow_views.page(**wrong)


# -- who may run


async def test_eligibility_in_one_word(lab: Lab) -> None:
    """E-T202, C-T64: the words are tested in the order of 3.48, so that what runs, has ended or is
    lost is not runnable before it is anything else"""
    drawn = await declare(lab, "a>b", "c>d", "e>g", "f>g", joins={"g": AnyOf(Rest.LET_RUN)})
    say = lab.engine.flow_views.eligibility
    assert await say(drawn["a"]) == "eligible"
    assert await say(drawn["b"]) == "blocked_by_dependencies"
    assert await say(drawn["g"]) == "blocked_by_dependencies"
    await drawn.take("a")
    assert await say(drawn["a"]) == "not_runnable"
    await drawn.fail("c")
    assert await say(drawn["c"]) == "not_runnable"
    assert await say(drawn["d"]) == "impossible"
    await drawn.complete("e")
    assert await say(drawn["g"]) == "eligible"
    assert await say(await lab.submit()) == "eligible"
    assert await say(await situations.lost(lab)) == "not_runnable"
    assert await say(await situations.suspended(lab)) == "not_runnable"
    for missing in await missing_ids(lab):
        assert await say(missing) == "not_found"


async def test_a_member_of_an_open_flow_waits_for_the_seal(lab: Lab) -> None:
    flow = fresh(lab)
    await lab.engine.flows.create("growing", id=flow)
    added = await lab.engine.flows.add(flow, Submission(kind="job"))
    say = lab.engine.flow_views.eligibility
    assert await say(added.id) == "blocked_by_dependencies"
    await lab.engine.flows.seal(flow)
    assert await say(added.id) == "eligible"


# -- waiting for a flow


async def test_a_caller_that_waits_for_a_flow_learns_its_end(lab: Lab) -> None:
    drawn = await declare(lab, "a>b")
    waiting = asyncio.create_task(lab.engine.flow_views.wait(drawn.id, 20))
    await drawn.complete("a")
    await drawn.complete("b")
    assert (await waiting).state is FlowState.COMPLETED


async def test_a_caller_that_waits_in_another_process_learns_it_too(
    lab: Lab, second_lab: Lab
) -> None:
    drawn = await declare(lab, "a")
    waiting = asyncio.create_task(second_lab.engine.flow_views.wait(drawn.id, 20))
    await asyncio.sleep(0)
    await drawn.fail("a")
    assert (await waiting).state is FlowState.FAILED


async def test_a_caller_waits_no_longer_than_it_wants(lab: Lab) -> None:
    drawn = await declare(lab, "a")
    with pytest.raises(TimeoutError):
        await lab.engine.flow_views.wait(drawn.id, 0.001)
    with pytest.raises(Invalid):
        await lab.engine.flow_views.wait(drawn.id, -1)


# -- what members are given


async def test_inputs_are_the_results_of_upstreams(lab: Lab) -> None:
    nodes = tuple(GraphNode(key, Submission(kind="job")) for key in "abc")
    z = GraphNode("z", Submission(kind="job"), Quorum(1, Rest.LET_RUN))
    links = tuple(GraphEdge(key, "z", On.ANY_END, f"in_{key}") for key in "ab")
    graph = Graph((*nodes, z), (*links, GraphEdge("c", "z", On.ANY_END)))
    declared = await lab.engine.flows.declare("nightly", graph)
    drawn = Drawn(lab, declared.id, declared.members)
    await drawn.complete("a")
    await drawn.fail("b")
    snapshot = await situations.load(lab, drawn["z"])
    assert await lab.engine.flow_views.inputs(snapshot) == {"in_a": b"a", "in_b": None}
    root = await situations.load(lab, drawn["c"])
    assert await lab.engine.flow_views.inputs(root) == {}


async def test_results_are_those_of_members_that_succeeded(lab: Lab) -> None:
    drawn = await declare(lab, "a", "b", "c")
    await drawn.complete("a")
    await drawn.fail("b")
    uuids = [drawn[name].uuid for name in "abc"]
    nobody = new_uuid7(lab.clock.now(), 1)
    found = await lab.engine.flow_views.results([*uuids, nobody])
    assert found == {uuids[0]: b"a", uuids[1]: None, uuids[2]: None}
