"""When a member with upstreams runs, and when it never will.

Behaviour: coordination.md 1.6, 1.7, 1.9; invariants I-7 to I-16; flaws F-21, F-23, F-24, F-25,
F-30.
"""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode
from flowfabric.core.flow.grow import AlreadyStaged
from flowfabric.core.flow.join import (
    AllOf,
    AnyOf,
    JoinPolicy,
    JoinState,
    On,
    Quorum,
    Rest,
    satisfies,
)
from flowfabric.core.flow.model import FlowState
from tests.kit.flow_lab import Drawn, declare, draw
from tests.kit.flowing import Growing, counters, die_after_commits, join_of
from tests.kit.lab import Lab
from tests.kit.signalling import fresh
from tests.kit.situations import (
    RETRY_AT_ONCE,
    completions,
    described,
    load,
    running,
    take,
)

ENDINGS = [*Outcome]
LET = Rest.LET_RUN
WAITING, HELD = PublicState.WAITING, PublicState.WAITING_CHILDREN
COMPLETED, SKIPPED = PublicState.COMPLETED, PublicState.SKIPPED


async def fan_in(
    lab: Lab, outcomes: list[Outcome], policy: JoinPolicy, *on: On
) -> tuple[Growing, list[str]]:
    """Upstreams `u0`, `u1`, … that can end in the given ways, and `child` after all of them."""
    names = [f"u{number}" for number in range(len(outcomes))]
    words = [f"{name}>child" for name in names]
    wanted = dict(zip(words, on, strict=True)) if on else {}
    skipped = [name for name, outcome in zip(names, outcomes, strict=True) if outcome is SKIP]
    given = {
        name: {"deadline_at": Millis(lab.clock.now() + 10_000 * (number + 1))}
        for number, name in enumerate(names)
        if outcomes[number] is Outcome.EXPIRED
    }
    roots = [f"{name}0>{name}" for name in skipped]
    drawn = await declare(lab, *words, *roots, joins={"child": policy}, on=wanted, given=given)
    return Growing(lab, drawn.id, dict(drawn.members)), names


SKIP = Outcome.SKIPPED


# -- one upstream: every ending meets every kind of edge


@pytest.mark.rules
@pytest.mark.parametrize("outcome", ENDINGS)
@pytest.mark.parametrize("on", On)
async def test_an_edge_is_satisfied_by_the_ending_it_asks_for(
    lab: Lab, on: On, outcome: Outcome
) -> None:
    """C-T20, F-30, I-10: the child runs, or is skipped, and both are told once"""
    flow, (upstream,) = await fan_in(lab, [outcome], AllOf(), on)
    assert await lab.state(flow["child"]) is HELD
    await flow.end(upstream, outcome)
    met = satisfies(on, outcome)
    assert await lab.state(flow["child"]) is (WAITING if met else SKIPPED)
    join = await join_of(flow, "child")
    assert join.state is (JoinState.SATISFIED if met else JoinState.IMPOSSIBLE)
    assert join.fired_at == lab.clock.now()
    bucket = (1, int(met), int(not met and outcome is not SKIP), int(not met and outcome is SKIP))
    assert await counters(flow, "child") == bucket
    (edge,) = await lab.engine.flow_views.edges(flow.id, downstream=flow["child"])
    assert edge.outcome is outcome
    assert await completions(lab, flow["child"]) == ([] if met else [Outcome.SKIPPED])


def test_the_table_of_edges() -> None:
    """F-30: an upstream that was cancelled or skipped has not failed"""
    table = {
        On.SUCCESS: {Outcome.SUCCESS},
        On.FAILURE: {Outcome.FAILED, Outcome.EXPIRED},
        On.ANY_END: set(Outcome),
    }
    for on, outcome in product(On, Outcome):
        assert satisfies(on, outcome) is (outcome in table[on])


# -- the truth table of three upstreams

GOOD, BAD = Outcome.SUCCESS, Outcome.FAILED
TABLE = [
    (AllOf(), (GOOD, GOOD, GOOD), 3, WAITING),
    (AllOf(), (GOOD, BAD), 2, SKIPPED),
    (AllOf(), (BAD,), 1, SKIPPED),
    (AllOf(), (SKIP,), 1, SKIPPED),
    (AnyOf(LET), (GOOD,), 1, WAITING),
    (AnyOf(LET), (BAD, BAD, GOOD), 3, WAITING),
    (AnyOf(LET), (BAD, SKIP, BAD), 3, SKIPPED),
    (Quorum(2, LET), (GOOD, BAD, GOOD), 3, WAITING),
    (Quorum(2, LET), (GOOD, GOOD), 2, WAITING),
    (Quorum(2, LET), (BAD, GOOD, SKIP), 3, SKIPPED),
    (Quorum(2, LET), (BAD, BAD), 2, SKIPPED),
    (Quorum(3, LET), (SKIP,), 1, SKIPPED),
    (Quorum(3, LET), (GOOD, GOOD, GOOD), 3, WAITING),
    (Quorum(1, LET), (SKIP, GOOD), 2, WAITING),
]


@pytest.mark.rules
@pytest.mark.parametrize(("policy", "endings", "fires_at", "then"), TABLE)
async def test_a_join_of_three_fires_when_it_is_decided_and_not_before(
    lab: Lab,
    policy: JoinPolicy,
    endings: tuple[Outcome, ...],
    fires_at: int,
    then: PublicState,
) -> None:
    """C-T21, C-T32, C-T33, C-T34, I-10, I-11: at the k-th success; or when too few are left"""
    outcomes = [*endings, *[GOOD] * (3 - len(endings))]
    flow, names = await fan_in(lab, outcomes, policy)
    for number, (name, outcome) in enumerate(zip(names, endings, strict=False), 1):
        assert (await join_of(flow, "child")).state is JoinState.PENDING
        assert await lab.state(flow["child"]) is HELD
        await flow.end(name, outcome)
        fired = (await join_of(flow, "child")).state is not JoinState.PENDING
        assert fired is (number >= fires_at)
    assert await lab.state(flow["child"]) is then


@pytest.mark.rules
@pytest.mark.parametrize("policy", [AllOf(), AnyOf(LET), Quorum(2, LET)])
@pytest.mark.parametrize("on", [On.FAILURE, On.ANY_END])
async def test_joins_count_what_their_edges_ask_for(lab: Lab, policy: JoinPolicy, on: On) -> None:
    """F-30: three that fail satisfy a join of failures"""
    flow, names = await fan_in(lab, [BAD] * 3, policy, on, on, on)
    for name in names:
        await flow.end(name, BAD)
    assert await lab.state(flow["child"]) is WAITING
    assert await counters(flow, "child") == (3, 3, 0, 0)


async def test_edges_of_one_join_may_ask_for_different_endings(lab: Lab) -> None:
    """F-30"""
    outcomes = [GOOD, BAD, Outcome.CANCELLED]
    flow, names = await fan_in(lab, outcomes, AllOf(), On.SUCCESS, On.FAILURE, On.ANY_END)
    for name, outcome in zip(names, outcomes, strict=True):
        assert await lab.state(flow["child"]) is HELD
        await flow.end(name, outcome)
    assert await lab.state(flow["child"]) is WAITING


async def test_an_explicit_all_of_is_what_nothing_said_means(lab: Lab) -> None:
    """C-T24: the same counters, the same answers"""
    flow = await Growing.begin(lab, "a", "b", "said", "unsaid")
    await lab.engine.flows.set_join(flow.id, flow["said"], AllOf())
    for word in ("a>said", "b>said", "a>unsaid", "b>unsaid"):
        await flow.link(word)
    await flow.seal()
    for step in ("a", "b"):
        assert await join_of(flow, "said") == await join_of(flow, "unsaid")
        assert await lab.state(flow["said"]) is await lab.state(flow["unsaid"]) is HELD
        await flow.complete(step)
    assert await join_of(flow, "said") == await join_of(flow, "unsaid")
    await flow.complete("said", "unsaid")


# -- shapes


async def test_a_chain_runs_from_one_end_to_the_other(lab: Lab) -> None:
    """C-T20, I-12: each only after the one before, and nobody else can be claimed"""
    flow = await declare(lab, "a>b>c")
    for name in "abc":
        claim = await lab.claim_one()
        assert claim.id == flow[name]
        assert await lab.claim() == []
        await lab.complete(claim, name.encode())
        await flow.settled()
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_a_diamond_fans_out_and_in(lab: Lab) -> None:
    """C-T21: all children after the parent, the last one after all of them"""
    flow = await declare(lab, "a>b>z", "a>c>z", "a>d>z")
    await flow.complete("a")
    await flow.complete("b", "c")
    assert await lab.state(flow["z"]) is HELD
    await flow.complete("d")
    await flow.complete("z")
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_skips_go_on_to_everything_below(lab: Lab) -> None:
    """C-T22, C-T38, I-13, I-14, I-42: each told once, in the family of completions"""
    flow = await declare(lab, "a>b>c>d", "b>e", joins={"d": Quorum(1)})
    await flow.fail("a")
    ends = await flow.endings()
    assert ends == {"a": [Outcome.FAILED], **{name: [Outcome.SKIPPED] for name in "bcde"}}
    for name in "bcde":
        assert await described(lab, flow[name])
        (told,) = await lab.events(flow[name], family=Family.COMPLETION)
        assert (told.detail or {})["reason"] == "dependency_impossible"
    assert (await flow.check()).state is FlowState.FAILED


async def test_a_branch_that_fails_leaves_the_others_alone(lab: Lab) -> None:
    """C-T22, Q-3: the fan-in is skipped, the good branch is kept"""
    flow = await declare(lab, "a>b>z", "a>c>z", "c>other")
    await flow.complete("a")
    await flow.fail("b")
    assert await lab.state(flow["z"]) is SKIPPED
    await flow.complete("c")
    assert await counters(flow, "z") == (2, 1, 1, 0)
    await flow.complete("other")
    assert await lab.engine.views.result(flow["c"]) == b"c"
    assert (await flow.check()).state is FlowState.FAILED


async def test_a_cleanup_runs_however_its_upstream_ends(lab: Lab) -> None:
    """F-30: on_any_end follows a skip as well"""
    flow = await declare(lab, "a>b>cleanup", on={"b>cleanup": On.ANY_END})
    await flow.fail("a")
    assert await lab.state(flow["b"]) is SKIPPED
    await flow.complete("cleanup")
    assert (await flow.check()).state is FlowState.FAILED


# -- after it has fired


@pytest.mark.parametrize("late", [GOOD, BAD])
@pytest.mark.parametrize("policy", [AnyOf(LET), Quorum(1, LET)])
async def test_a_join_fires_once(lab: Lab, policy: JoinPolicy, late: Outcome) -> None:
    """C-T36, F-25, I-7, I-8, I-9: later endings only move the counters"""
    flow, (first, second, third) = await fan_in(lab, [GOOD, late, late], policy)
    await flow.end(first, GOOD)
    fired = await join_of(flow, "child")
    claim = await flow.take("child")
    lab.clock.advance(1000)
    await flow.end(second, late)
    assert await lab.state(flow["child"]) is PublicState.ACTIVE
    await lab.complete(claim)
    await flow.end(third, late)
    join = await join_of(flow, "child")
    assert (join.state, join.fired_at) == (fired.state, fired.fired_at)
    good = 1 + 2 * (late is GOOD)
    assert await counters(flow, "child") == (3, good, 3 - good, 0)
    assert await completions(lab, flow["child"]) == [Outcome.SUCCESS]


@pytest.mark.parametrize("late", [GOOD, BAD])
@pytest.mark.parametrize("early", [GOOD, BAD, Outcome.CANCELLED, Outcome.EXPIRED])
async def test_a_late_ending_leaves_an_ended_member_alone(
    lab: Lab, early: Outcome, late: Outcome
) -> None:
    """C-T28, I-15: counted, nothing else"""
    given = {"child": {"deadline_at": Millis(lab.clock.now() + 10_000)}}
    drawn = await declare(lab, "a>child", "b>child", joins={"child": AnyOf(LET)}, given=given)
    flow = Growing(lab, drawn.id, dict(drawn.members))
    if early in (GOOD, BAD):
        await flow.complete("a")
    await flow.end("child", early)
    before = await described(lab, flow["child"])
    await flow.end("b", late)
    after = await described(lab, flow["child"])
    assert (after.vector, after.ended_at) == (before.vector, before.ended_at)
    assert await completions(lab, flow["child"]) == [early]
    assert sum(await counters(flow, "child")) == 2 + 1 + (early in (GOOD, BAD))


async def test_a_skipped_member_waits_again_for_what_it_lacked(lab: Lab) -> None:
    """C-T29: what had succeeded still counts; then the other one succeeds"""
    flow = await declare(lab, "a>child", "b>child")
    await flow.complete("a")
    await flow.fail("b")
    assert await lab.state(flow["child"]) is SKIPPED
    replayed = await lab.engine.executions.replay(flow["child"])
    await flow.settled()
    assert replayed.state is await lab.state(flow["child"]) is HELD
    assert await counters(flow, "child") == (2, 1, 0, 0)
    await lab.engine.executions.replay(flow["b"])
    await flow.complete("b")
    await flow.complete("child")
    assert (await flow.check()).state is FlowState.COMPLETED


# -- other gates


async def test_a_delayed_member_waits_for_both(lab: Lab) -> None:
    """Q-11: whichever clears first, the other one still holds"""
    later = Millis(lab.clock.now() + 5000)
    shape: dict[str, Any] = {"given": {"child": {"delay_until": later}}}
    early, late = await declare(lab, "a>child", **shape), await declare(lab, "a>child", **shape)
    await early.complete("a")
    assert await lab.state(early["child"]) is PublicState.DELAYED
    await lab.pass_time(5000)
    assert await lab.state(early["child"]) is WAITING
    assert await lab.state(late["child"]) is HELD
    await late.complete("a")
    assert await lab.state(late["child"]) is WAITING


async def test_a_blocked_member_stays_blocked(lab: Lab) -> None:
    """Gates in one order: the operator first, then dependencies"""
    flow = await Growing.begin(lab, "a")
    await flow.seal()
    await flow.add("child")
    await lab.engine.executions.block(flow["child"], "paused_by_operator")
    await flow.link("a>child")
    await flow.complete("a")
    assert (await lab.vector(flow["child"])).blocking == "paused_by_operator"
    await lab.engine.executions.unblock(flow["child"])
    await flow.complete("child")


async def test_a_blocked_member_that_is_unblocked_still_waits(lab: Lab) -> None:
    flow = await Growing.begin(lab, "a")
    await flow.seal()
    await flow.add("child")
    await lab.engine.executions.block(flow["child"], "paused_by_operator")
    await flow.link("a>child")
    await lab.engine.executions.unblock(flow["child"])
    assert await lab.state(flow["child"]) is HELD
    await flow.complete("a")
    await flow.complete("child")


async def test_a_member_that_waits_can_be_moved_in_the_order(lab: Lab) -> None:
    """I-12: the priority it is given while it waits is the one it is claimed by"""
    flow = await declare(lab, "a>low", "a>high")
    await lab.engine.executions.change_priority(flow["high"], 900, anywhere=True)
    await flow.complete("a")
    assert (await lab.claim_one()).id == flow["high"]


# -- data


def passing(*links: tuple[str, str, str | None], **joins: JoinPolicy) -> Graph:
    """A graph of edges (upstream, downstream, input)."""
    plain = draw(*(f"{upstream}>{downstream}" for upstream, downstream, _ in links), joins=joins)
    nodes = tuple(
        GraphNode(node.key, Submission(kind="job", payload=b"own", policy=RETRY_AT_ONCE), node.join)
        for node in plain.nodes
    )
    return Graph(nodes, tuple(GraphEdge(up, down, input=name) for up, down, name in links))


async def inputs(flow: Drawn, name: str) -> dict[str, bytes | None]:
    snapshot = await load(flow.lab, flow[name])
    return await flow.lab.engine.flow_views.inputs(snapshot)


async def begin(lab: Lab, graph: Graph) -> Drawn:
    declared = await lab.engine.flows.declare("nightly", graph)
    return Drawn(lab, declared.id, declared.members)


async def test_results_are_passed_by_name(lab: Lab) -> None:
    """C-T26, F-23, I-16: each under its own name, beside the child's own input"""
    links = [("a", "z", "first"), ("b", "z", "second"), ("c", "z", None)]
    flow = await begin(lab, passing(*links))
    await flow.complete("a", "b", "c")
    claim = await flow.take("z")
    assert claim.payload == b"own"
    assert await inputs(flow, "z") == {"first": b"a", "second": b"b"}


async def test_without_a_name_nothing_is_passed(lab: Lab) -> None:
    """C-T27: the child keeps its own input"""
    flow = await begin(lab, passing(("a", "z", None)))
    await flow.complete("a")
    assert (await flow.take("z")).payload == b"own"
    assert await inputs(flow, "z") == {}
    assert await inputs(flow, "a") == {}


async def test_an_upstream_that_gave_nothing_is_named_all_the_same(lab: Lab) -> None:
    """C-T26, F-23: no result, or an ending without one"""
    graph = passing(("a", "z", "a"), ("b", "z", "b"), ("c", "z", "c"), z=Quorum(2, LET))
    flow = await begin(lab, graph)
    await lab.complete(await flow.take("a"), None)
    await flow.fail("b")
    await flow.complete("c")
    assert await inputs(flow, "z") == {"a": None, "b": None, "c": b"c"}


async def test_an_empty_name_passes_nothing(lab: Lab) -> None:
    """C-T27, coordination.md 1.10: declared, staged or applied, it is as if it were not there"""
    declared = await begin(lab, passing(("a", "z", "")))
    grown = await Growing.begin(lab, "a", "z")
    edge = grown.edge("a>z", input="")
    await lab.engine.flows.stage_only(edge, 2)
    await lab.engine.flows.apply(grown.id, edge.id, input="")
    assert isinstance(await lab.engine.flows.stage(edge), AlreadyStaged)
    await grown.seal()
    for flow in (declared, grown):
        await flow.complete("a")
        assert await inputs(flow, "z") == {}
        assert not (await join_of(flow, "z")).inputs
        (state,) = await lab.engine.flow_views.edges(flow.id)
        assert state.edge.input is None


@pytest.mark.parametrize("winner", ["a", "b"])
async def test_of_rivals_for_one_input_the_winner_gives_it(lab: Lab, winner: str) -> None:
    """F-23: the first of two providers, whichever it is"""
    flow = await begin(lab, passing(("a", "z", "x"), ("b", "z", "x"), z=AnyOf()))
    await flow.complete(winner)
    assert await inputs(flow, "z") == {"x": winner.encode()}


@pytest.mark.parametrize(("winner", "loser"), ["ab", "ba"])
async def test_a_rival_that_ends_at_the_same_moment_gives_nothing(
    lab: Lab, winner: str, loser: str
) -> None:
    """C-T32, coordination.md 1.6: data comes from the upstream whose success fired the join only"""
    names = {"a": "x", "b": "y"}
    flow = await begin(lab, passing(("a", "z", "x"), ("b", "z", "y"), z=AnyOf(LET)))
    await flow.complete(winner)
    await flow.complete(loser)
    assert await inputs(flow, "z") == {names[winner]: winner.encode()}


@pytest.mark.inside
@pytest.mark.parametrize(("winner", "loser"), ["ab", "ba"])
async def test_of_rivals_that_are_counted_at_once_the_first_gives_the_data(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, winner: str, loser: str
) -> None:
    """C-T32, coordination.md 1.6: not the one that has failed before, nor one that came later"""
    names = {"a": "x", "b": "y", "f": "z"}
    links = [(name, "child", input) for name, input in names.items()]
    flow = await begin(lab, passing(*links, child=AnyOf(LET)))
    with monkeypatch.context() as dead:
        die_after_commits(lab, dead)
        await lab.fail(await flow.take("f"), "permanent")
        for name in (winner, loser):
            lab.clock.advance(50)
            await lab.complete(await flow.take(name), name.encode())
    await flow.settled()
    assert (await join_of(flow, "child")).last is None
    assert await inputs(flow, "child") == {names[winner]: winner.encode()}


@pytest.mark.parametrize(("winner", "loser"), ["ab", "ba"])
async def test_the_first_success_of_an_open_flow_gives_the_data(
    lab: Lab, winner: str, loser: str
) -> None:
    """C-T32, F-12: the join had what it needs long before it was judged"""
    flow, names = await Growing.begin(lab, "child"), {"a": "x", "b": "y"}
    await lab.engine.flows.set_join(flow.id, flow["child"], AnyOf(LET))
    for name, input in names.items():
        flow.members[name] = await lab.submit(flow=flow.id)
        await lab.engine.flows.join(flow.id, flow[name])
        await flow.link(f"{name}>child", input=input)
    await flow.complete(winner)
    await flow.complete(loser)
    await flow.seal()
    assert await lab.state(flow["child"]) is WAITING
    assert await inputs(flow, "child") == {names[winner]: winner.encode()}


async def test_after_a_replay_the_new_winner_gives_the_data(lab: Lab) -> None:
    """F-14, F-23: what was known of the first round is forgotten"""
    flow = await begin(lab, passing(("a", "z", "x"), ("b", "z", "y"), z=AnyOf(LET)))
    await flow.fail("a", "b")
    assert await lab.state(flow["z"]) is PublicState.SKIPPED
    await lab.engine.flows.replay(flow.id)
    await flow.complete("b")
    await flow.complete("a")
    assert await inputs(flow, "z") == {"y": b"b"}


@pytest.mark.parametrize("policy", [AllOf(), AnyOf(LET), Quorum(1, LET)], ids=str)
async def test_an_upstream_that_runs_again_has_given_its_result(
    lab: Lab, policy: JoinPolicy
) -> None:
    """Coordination.md 1.16, I-16: a replay takes back neither a satisfied edge nor its data"""
    flow = await begin(lab, passing(("a", "z", "x"), z=policy))
    await flow.complete("a")
    await lab.engine.executions.replay(flow["a"])
    assert await inputs(flow, "z") == {"x": b"a"}
    await flow.fail("a")
    assert await lab.state(flow["z"]) is PublicState.WAITING
    assert await inputs(flow, "z") == {"x": b"a"}


@pytest.mark.parametrize("policy", [AnyOf(LET), Quorum(1, LET)], ids=str)
async def test_an_upstream_that_succeeds_again_has_given_its_result(
    lab: Lab, policy: JoinPolicy
) -> None:
    """Coordination.md 1.6, 1.16, I-16: the data is that of the success which fired the join"""
    flow = await begin(lab, passing(("a", "z", "x"), z=policy))
    await flow.complete("a")
    for result in (b"second", b"third"):
        lab.clock.advance(50)
        await lab.engine.executions.replay(flow["a"])
        await lab.complete(await flow.take("a"), result)
        await flow.settled()
        assert await inputs(flow, "z") == {"x": b"a"}


@pytest.mark.parametrize("again", ["retry", "takeover", "hand back"])
@pytest.mark.parametrize("policy", [AllOf(), AnyOf(LET), Quorum(1, LET)], ids=str)
async def test_a_run_keeps_the_results_it_began_with(
    lab: Lab, policy: JoinPolicy, again: str
) -> None:
    """Coordination.md 1.16, I-16: whoever continues it, until it is replayed itself"""
    flow = await begin(lab, passing(("a", "z", "x"), z=policy))
    await flow.complete("a")
    lab.clock.advance(50)
    begun = await flow.take("z")
    await _succeed_again(flow, "a", b"second")
    match again:
        case "retry":
            await lab.fail(begun)
        case "takeover":
            await lab.lose(begun)
        case _:
            await lab.engine.attempts.hand_back(begun)
    continued = await lab.claim_one()
    assert continued.id == flow["z"]
    assert await lab.engine.flow_views.inputs(continued.snapshot) == {"x": b"a"}


async def test_a_replayed_run_takes_what_its_upstreams_have_given_since(lab: Lab) -> None:
    flow = await begin(lab, passing(("a", "z", "x")))
    await flow.complete("a", "z")
    await _succeed_again(flow, "a", b"second")
    await lab.engine.executions.replay(flow["z"])
    assert await inputs(flow, "z") == {"x": b"second"}
    begun = await flow.take("z")
    assert await lab.engine.flow_views.inputs(begun.snapshot) == {"x": b"second"}
    await _succeed_again(flow, "a", b"third")
    await lab.engine.attempts.hand_back(begun)
    assert await inputs(flow, "z") == {"x": b"second"}


async def test_a_run_that_began_without_a_result_gets_none_later(lab: Lab) -> None:
    """I-16: its upstream had failed when it began"""
    graph = passing(("a", "z", "x"))
    flow = await begin(lab, replace(graph, links=(replace(graph.links[0], on=On.ANY_END),)))
    await flow.fail("a")
    lab.clock.advance(50)
    begun = await flow.take("z")
    assert await lab.engine.flow_views.inputs(begun.snapshot) == {"x": None}
    await _succeed_again(flow, "a", b"late")
    assert await inputs(flow, "z") == {"x": None}


async def test_a_run_keeps_a_result_that_came_after_its_edge_was_settled(lab: Lab) -> None:
    """Its upstream had failed, and had succeeded again when it began."""
    graph = passing(("a", "z", "x"), ("b", "z", "y"))
    on = (replace(graph.links[0], on=On.ANY_END), graph.links[1])
    flow = await begin(lab, replace(graph, links=on))
    await flow.fail("a")
    await _succeed_again(flow, "a", b"late")
    await flow.complete("b")
    lab.clock.advance(50)
    begun = await flow.take("z")
    assert await lab.engine.flow_views.inputs(begun.snapshot) == {"x": b"late", "y": b"b"}
    lab.clock.advance(50)
    await lab.engine.executions.replay(flow["a"])
    assert await inputs(flow, "z") == {"x": b"late", "y": b"b"}
    await lab.complete(await flow.take("a"), b"later")
    await lab.engine.attempts.hand_back(begun)
    assert await inputs(flow, "z") == {"x": b"late", "y": b"b"}


async def _succeed_again(flow: Drawn, name: str, result: bytes) -> None:
    flow.lab.clock.advance(50)
    await flow.lab.engine.executions.replay(flow[name])
    await flow.lab.complete(await flow.take(name), result)
    await flow.settled()


async def test_a_terminal_child_is_given_nothing_new(lab: Lab) -> None:
    """C-T28, I-16: a late success does not touch what it was given"""
    flow = await begin(lab, passing(("a", "z", "x"), z=AllOf()))
    await lab.engine.executions.cancel(flow["z"], reason="enough")
    await flow.complete("a")
    assert await lab.state(flow["z"]) is PublicState.CANCELLED
    assert (await lab.engine.views.context(flow["z"])).payload == b"own"


# -- eligibility in one word


async def test_eligibility_is_told_in_one_word(lab: Lab) -> None:
    """C-T64, F-24: from the join as it stands, whatever its policy"""
    word = lab.engine.flow_views.eligibility
    flow = await declare(lab, "a>z", "b>z", joins={"z": Quorum(1, LET)})
    assert await word(await lab.submit()) == "eligible"
    assert await word(flow["a"]) == "eligible"
    assert await word(flow["z"]) == "blocked_by_dependencies"
    assert await word(await running(lab)) == "not_runnable"
    assert await word(str(flow["a"])[:-12] + "0" * 12) == "not_found"
    await flow.complete("a")
    assert await word(flow["a"]) == "not_runnable"
    assert await word(flow["z"]) == "eligible"
    await flow.fail("b")
    assert await word(flow["z"]) == "eligible"
    claim = await take(lab, flow["z"])
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 1000))
    assert await word(flow["z"]) == "eligible"


async def test_what_became_impossible_is_told_so(lab: Lab) -> None:
    """C-T64: also when it was skipped by the very change that decides it"""
    flow = await declare(lab, "a>z")
    await flow.fail("a")
    assert await lab.engine.flow_views.eligibility(flow["z"]) == "impossible"


async def test_a_member_that_ended_before_its_join_is_not_runnable(lab: Lab) -> None:
    """C-T64, execution.md 3.48: the phase is asked first"""
    flow = await declare(lab, "a>z")
    await lab.engine.executions.cancel(flow["z"], reason="enough")
    await flow.fail("a")
    assert (await join_of(flow, "z")).state is JoinState.IMPOSSIBLE
    assert await lab.engine.flow_views.eligibility(flow["z"]) == "not_runnable"


async def test_a_held_member_is_blocked_by_dependencies(lab: Lab) -> None:
    """C-T64"""
    flow = await Growing.begin(lab, "a", id=fresh())
    assert await lab.engine.flow_views.eligibility(flow["a"]) == "blocked_by_dependencies"
