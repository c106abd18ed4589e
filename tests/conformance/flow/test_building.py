"""Growing a flow member by member: what is counted, what is refused, and when members may run.

Behaviour: coordination.md 1.1, 1.2; invariants I-1, I-2, I-5, I-6; flaws F-12, F-22.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    FlowConflict,
    FlowTerminal,
    Invalid,
    InvalidGraph,
    NotFound,
    NotInFlow,
    RetryExhausted,
    Unavailable,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.lease import AlreadySatisfied
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow import grow
from flowfabric.core.flow.grow import Added, AlreadyMember
from flowfabric.core.flow.join import AllOf, AnyOf, JoinPolicy, JoinState, Quorum, Rest
from flowfabric.core.flow.model import FlowState
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.commit import retry
from flowfabric.engine.flow.flows import FlowCreated
from flowfabric.store.queries import Query
from tests.kit.flow_lab import failing
from tests.kit.flowing import (
    Growing,
    counters,
    die_after_commits,
    join_of,
    kept,
    neighbours,
    unknown,
)
from tests.kit.lab import Lab
from tests.kit.race import Race
from tests.kit.signalling import fresh
from tests.kit.situations import ALL, ENDED, RETRY_AT_ONCE, Situation, described, load, take

# -- creating


async def test_a_new_flow_is_open_and_empty(lab: Lab) -> None:
    """C-T1: state open, revision 0, counts 0; a second create changes nothing"""
    id = fresh()
    tags = {"team.name": "ops"}
    made = await lab.engine.flows.create("nightly", id=id, namespace="acme", tags=tags)
    assert made == FlowCreated(id)
    flow = await lab.engine.flow_views.get(id)
    assert flow is not None
    assert (flow.state, flow.revision, flow.nodes, flow.edges) == (FlowState.OPEN, 0, 0, 0)
    assert (flow.kind, flow.namespace, flow.tags) == ("nightly", "acme", tags)
    assert flow.created_at == flow.mutated_at == lab.clock.now()
    lab.clock.advance(1000)
    again = await lab.engine.flows.create("nightly", id=id, namespace="acme")
    assert isinstance(again, AlreadySatisfied)
    assert await lab.engine.flow_views.get(id) == flow


@pytest.mark.parametrize("other", [{"kind": "daily"}, {"namespace": "globex"}])
async def test_another_flow_under_a_known_id_is_a_conflict(lab: Lab, other: dict[str, str]) -> None:
    """C-T1, coordination.md 1.1: not silently the first one"""
    id = fresh()
    given: dict[str, Any] = {"kind": "nightly", "namespace": "acme", "id": id}
    await lab.engine.flows.create(**given)
    with pytest.raises(FlowConflict):
        await lab.engine.flows.create(**{**given, **other})


@pytest.mark.rules
@pytest.mark.parametrize(
    "bad", [{"kind": ""}, {"kind": 7}, {"id": "x"}, {"namespace": ""}, {"tags": {"Bad": "x"}}]
)
async def test_a_flow_of_bad_words_is_refused(lab: Lab, bad: dict[str, Any]) -> None:
    """C-T1: nothing is created"""
    with pytest.raises(Invalid):
        await lab.engine.flows.create(**{"kind": "nightly", **bad})
    assert await lab.engine.flow_views.page() == []


async def test_of_many_who_create_the_same_flow_one_does(lab: Lab, second_lab: Lab) -> None:
    """C-T1: at once, from two engines"""
    id = fresh()
    calls = [each.engine.flows.create("nightly", id=id) for each in [lab, second_lab] * 5]
    answers = await asyncio.gather(*calls)
    assert answers.count(FlowCreated(id)) == 1


# -- members


async def test_a_member_is_counted_and_knows_its_flow(lab: Lab) -> None:
    """C-T2, I-1, I-2: one node, one revision, both directions agree"""
    flow = await Growing.begin(lab)
    answer = await flow.add("a", payload=b"x", tags={"team.name": "ops"})
    assert answer == Added(flow["a"], 1)
    seen = await flow.flow()
    assert (seen.nodes, seen.edges, seen.revision) == (1, 0, 1)
    assert await lab.engine.flow_views.flow_of(flow["a"]) == flow.id
    graph = await lab.engine.flow_views.graph(flow.id)
    assert [member.id for member in graph.members] == [flow["a"]]
    assert (await described(lab, flow["a"])).tags == {"team.name": "ops"}


async def test_a_repeated_add_gets_the_first_answer_without_its_quota(lab: Lab) -> None:
    """C-T2, INV-23: what was not there before is still refused"""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    limited: dict[str, Any] = {"policy": {"quotas": [{"quota": "q", "key": ""}]}}
    flow = await Growing.begin(lab)
    await flow.add("a", key="k", **limited)
    await lab.engine.quotas.delete("q")
    assert await flow.add("a", key="k", **limited) == AlreadyMember(flow["a"], 1)
    with pytest.raises(NotFound):
        await flow.add("b", **limited)


async def test_adding_to_an_unknown_flow_creates_nothing(lab: Lab) -> None:
    """C-T3: neither a flow nor an execution, and one that waits is left alone"""
    nowhere = fresh()
    with pytest.raises(NotFound):
        await lab.engine.flows.add(nowhere, Submission(kind="job"))
    id = await lab.submit(flow=nowhere)
    before = await load(lab, id)
    with pytest.raises(NotFound):
        await lab.engine.flows.join(nowhere, id)
    assert await load(lab, id) == before
    assert len(await lab.claim()) == 1
    assert await lab.engine.flow_views.get(nowhere) is None


async def test_joining_an_unknown_execution_creates_nothing(lab: Lab) -> None:
    """C-T4, I-5: no ghost"""
    flow = await Growing.begin(lab)
    before = await kept(flow)
    ghost = await unknown(flow)
    with pytest.raises(NotFound):
        await lab.engine.flows.join(flow.id, ghost)
    assert await kept(flow) == before
    assert await lab.engine.views.state(ghost) is None


async def test_joining_twice_counts_once(lab: Lab) -> None:
    """C-T5: the same count, the revision unchanged"""
    flow = await Growing.begin(lab, "a", "b")
    before = await kept(flow)
    assert await lab.engine.flows.join(flow.id, flow["a"]) == AlreadyMember(flow["a"], 2)
    assert await kept(flow) == before


async def test_adding_again_with_the_same_key_is_the_same_member(lab: Lab) -> None:
    """C-T5: an answer that was lost is asked for again"""
    flow = await Growing.begin(lab)
    first = await flow.add("a", key="load")
    assert await flow.add("again", key="load") == AlreadyMember(first.id, 1)
    assert (await flow.flow()).nodes == 1


async def test_many_members_are_added_at_once(lab: Lab, second_lab: Lab) -> None:
    """C-T6, I-2: from two engines, each one counted"""
    flow = await Growing.begin(lab)
    calls = [
        each.engine.flows.add(flow.id, Submission(kind="job")) for each in [lab, second_lab] * 30
    ]
    answers = await asyncio.gather(*calls)
    assert sorted(answer.nodes for answer in answers) == list(range(1, 61))
    seen = await flow.flow()
    assert (seen.nodes, seen.revision) == (60, 60)
    graph = await lab.engine.flow_views.graph(flow.id)
    assert {member.id for member in graph.members} == {answer.id for answer in answers}


async def test_one_joined_by_many_at_once_is_counted_once(lab: Lab, second_lab: Lab) -> None:
    """C-T6, I-2"""
    flow = await Growing.begin(lab)
    id = await lab.submit(flow=flow.id)
    calls = [each.engine.flows.join(flow.id, id) for each in [lab, second_lab] * 5]
    answers = await asyncio.gather(*calls)
    assert sorted(map(str, map(type, answers))).count(str(Added)) == 1
    assert (await flow.flow()).nodes == 1


async def test_an_execution_of_another_partition_is_refused_unseen(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T7, C-T41: before the store is asked; members share the partition of their flow"""
    flow = await Growing.begin(lab, "a")
    assert flow["a"] == ExecutionId.member(flow.id, flow["a"].uuid)
    foreign = ExecutionId.of((flow["a"].partition_index + 1) % 256, flow["a"].uuid)

    async def asked(*_: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(lab.engine.store.records, "get", asked)
    with pytest.raises(Invalid, match="partition mismatch"):
        await lab.engine.flows.join(flow.id, foreign)


async def test_a_member_of_one_flow_cannot_join_another(lab: Lab) -> None:
    """C-T8, I-1: the refusal names the flow it is in"""
    here, there = neighbours()
    flow = await Growing.begin(lab, "a", id=here)
    other = await Growing.begin(lab, id=there)
    with pytest.raises(FlowConflict, match=f"already_member_of_different_flow:{here}"):
        await lab.engine.flows.join(there, flow["a"])
    assert (await other.flow()).nodes == 0
    assert await lab.engine.flow_views.flow_of(flow["a"]) == here


async def test_an_execution_made_for_another_flow_cannot_join(lab: Lab) -> None:
    """I-1: also before it is a member there"""
    here, there = neighbours()
    await Growing.begin(lab, id=here)
    other = await Growing.begin(lab, id=there)
    id = await lab.submit(flow=here)
    with pytest.raises(Invalid, match="not created for this flow"):
        await lab.engine.flows.join(there, id)
    assert (await other.flow()).nodes == 0
    assert await lab.engine.flow_views.flow_of(id) is None


@pytest.mark.rules
@pytest.mark.parametrize("situation", ALL.values(), ids=ALL)
async def test_an_execution_joins_whatever_it_is_doing(lab: Lab, situation: Situation) -> None:
    """C-T2, coordination.md 1.2: joining changes nothing else; what has ended is counted"""
    flow = await Growing.begin(lab)
    id = await situation(lab, flow=flow.id)
    before = await lab.vector(id)
    assert await lab.engine.flows.join(flow.id, id) == Added(id, 1)
    assert await lab.vector(id) == before
    seen = await flow.flow()
    assert (seen.nodes, seen.over) == (1, int(situation in ENDED.values()))
    assert seen.state is FlowState.OPEN


# -- a flow that takes nothing any more


async def cancelled(flow: Growing) -> None:
    await flow.lab.engine.flows.cancel(flow.id)
    await flow.settled()  # members are cancelled by then, and counted soon after


async def completed(flow: Growing) -> None:
    await flow.seal()
    await flow.complete(*flow.members)


async def failed(flow: Growing) -> None:
    await flow.seal()
    await flow.fail(*flow.members)


@pytest.mark.parametrize("way", [cancelled, completed, failed])
async def test_a_flow_that_is_over_takes_nothing(
    lab: Lab, way: Callable[[Growing], Awaitable[None]]
) -> None:
    """C-T10, I-6, I-5: no member, edge or join, and it cannot be sealed if it was not; nothing is
    written"""
    flow = await Growing.begin(lab, "a", "b")
    await way(flow)
    outsider = await lab.submit(flow=flow.id)
    before = await kept(flow)
    grow = lab.engine.flows
    calls: list[Awaitable[object]] = [
        grow.add(flow.id, Submission(kind="job")),
        grow.join(flow.id, outsider),
        flow.link("a>b"),
        grow.set_join(flow.id, flow["b"], AnyOf()),
    ]
    for call in calls:
        with pytest.raises(FlowTerminal):
            await call
    if way is cancelled:
        with pytest.raises(FlowTerminal):
            await grow.seal(flow.id)
    else:
        assert await grow.seal(flow.id) is False  # the answer to the first one was lost
    assert await kept(flow) == before
    assert [claim.id for claim in await lab.claim(limit=10)] == [outsider]


@pytest.mark.inside
async def test_a_flow_whose_last_ending_was_not_counted_takes_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-6, I-22: the process died right after the commit that ended the last member"""
    flow = await Growing.begin(lab, "a", "b")
    await flow.seal()
    die_after_commits(lab, monkeypatch)
    for name in ("a", "b"):
        await lab.complete(await flow.take(name))
    outsider = await lab.submit(flow=flow.id)
    assert (await flow.flow()).state is FlowState.COMPLETED
    grow = lab.engine.flows
    calls: list[Awaitable[object]] = [
        grow.add(flow.id, Submission(kind="job")),
        grow.join(flow.id, outsider),
        flow.link("a>b"),
        grow.stage_only(flow.edge("a>b"), 2),
        grow.set_join(flow.id, flow["b"], AnyOf()),
    ]
    for call in calls:
        with pytest.raises(FlowTerminal):
            await call
    assert [claim.id for claim in await lab.claim(limit=10)] == [outsider]


async def test_an_empty_flow_that_was_cancelled_takes_no_member(lab: Lab) -> None:
    """C-T10"""
    flow = await Growing.begin(lab)
    await cancelled(flow)
    with pytest.raises(FlowTerminal):
        await flow.add("a")


async def test_a_member_added_while_the_flow_is_cancelled_never_runs(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-6: it was created and then refused"""
    flow = await Growing.begin(lab, "a")
    race = Race(lab, monkeypatch)
    race.before("submit", lambda: second_lab.engine.flows.cancel(flow.id))
    with pytest.raises(FlowTerminal):
        await flow.add("b")
    assert race.left == 0
    assert await lab.claim() == []
    seen = await lab.engine.views.list(Query())
    assert [each.vector.public for each in seen.items] == [PublicState.CANCELLED] * 2


async def test_one_whose_adding_broke_off_is_not_held_for_ever(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-5: it was created and never became a member; added again in time it is the same one"""
    flow = await Growing.begin(lab, "a")
    before = await kept(flow)
    for key in ("again", "lost"):
        with monkeypatch.context() as cut:
            cut.setattr(lab.engine.store, "apply_flow", failing(lab.engine.store.apply_flow, [0]))
            with pytest.raises(Unavailable):
                await flow.add(key, key=key)
    assert await kept(flow) == before
    lab.clock.advance(grow.MAX_STRAY - 1)
    await flow.add("again", key="again")
    await lab.pass_time(1)
    seen = {each.id: each for each in (await lab.engine.views.list(Query())).items}
    stray = next(id for id in seen if id not in flow.members.values())
    assert seen[stray].vector.public is PublicState.CANCELLED
    assert (await described(lab, stray)).cancel_reason == "never_became_a_member"
    await flow.seal()
    await flow.complete("a", "again")
    assert (await flow.check()).state is FlowState.COMPLETED


@pytest.mark.parametrize("eager", [False, True])
async def test_one_whose_adding_to_a_flow_that_runs_broke_off_never_runs(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, eager: bool
) -> None:
    """I-1, I-5: no worker gets it before it is a member"""
    made = await lab.engine.flows.create("nightly", eager=eager)
    assert isinstance(made, FlowCreated)
    flow = Growing(lab, made.id, {})
    await flow.add("a")
    if not eager:
        await flow.seal()
    before = await kept(flow)
    with monkeypatch.context() as cut:
        cut.setattr(lab.engine.store, "apply_flow", failing(lab.engine.store.apply_flow, [0]))
        with pytest.raises(Unavailable):
            await flow.add("lost")
    assert await kept(flow) == before
    assert [claim.id for claim in await lab.claim(limit=10)] == [flow["a"]]
    await lab.pass_time(grow.MAX_STRAY)
    seen = {each.id: each.vector.public for each in (await lab.engine.views.list(Query())).items}
    assert seen.pop(flow["a"]) is PublicState.ACTIVE
    assert list(seen.values()) == [PublicState.CANCELLED]


# -- sealing


async def test_members_are_held_until_the_flow_is_sealed(lab: Lab) -> None:
    """F-12: whatever else is true of them"""
    flow = await Growing.begin(lab, "a")
    await flow.add("later", delay_until=Millis(lab.clock.now() + 5000))
    assert set((await flow.states()).values()) == {PublicState.WAITING_CHILDREN}
    for id in flow.members.values():
        await described(lab, id)
    await lab.pass_time(4000)
    assert await lab.claim() == []
    assert await lab.engine.flows.seal(flow.id)
    assert await flow.states() == {"a": PublicState.WAITING, "later": PublicState.DELAYED}
    await lab.pass_time(1000)
    assert len(await lab.claim(limit=5)) == 2
    assert await lab.engine.flows.seal(flow.id) is False


async def test_a_held_member_says_what_it_waits_for(lab: Lab) -> None:
    """C-T11, coordination.md 1.5: the detail names the number of edges and the edge, before the
    seal as well"""
    flow = await Growing.begin(lab, "a", "b")
    edge = flow.edge("a>b")
    await lab.engine.flows.stage(edge)
    details = [(await described(lab, flow[name])).blocking_detail for name in "ab"]
    assert details == [
        "waits for the seal of its flow",
        f"waits for 1 of 1 upstreams (newest edge {edge.id}) and the seal of its flow",
    ]
    await flow.seal()
    assert (await described(lab, flow["b"])).blocking_detail == (
        f"waits for 1 of 1 upstreams (newest edge {edge.id})"
    )


async def test_a_member_of_a_sealed_flow_runs_at_once(lab: Lab) -> None:
    """Also one that waits in the line of a quota first"""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    flow = await Growing.begin(lab, "a")
    await flow.seal()
    await flow.add("b")
    await flow.add("c", policy={"quotas": [{"quota": "q", "key": ""}]})
    await flow.complete("a", "b", "c")
    assert await flow.state() is FlowState.COMPLETED


async def test_a_member_added_while_the_flow_is_sealed_is_let_go(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-12: it was made to be held, and the seal came first"""
    flow = await Growing.begin(lab, "a")
    race = Race(lab, monkeypatch)
    race.before("submit", lambda: second_lab.engine.flows.seal(flow.id))
    await flow.add("b", delay_until=Millis(lab.clock.now() + 5000))
    assert race.left == 0
    assert await flow.states() == {"a": PublicState.WAITING, "b": PublicState.DELAYED}


async def test_sealing_an_empty_flow_completes_it(lab: Lab) -> None:
    """I-22"""
    flow = await Growing.begin(lab)
    await flow.seal()
    assert await flow.state() is FlowState.COMPLETED


@pytest.mark.parametrize("bad", [fresh(), "x"])
async def test_an_unknown_flow_cannot_be_sealed(lab: Lab, bad: UUID) -> None:
    with pytest.raises(NotFound if isinstance(bad, UUID) else Invalid):
        await lab.engine.flows.seal(bad)


async def test_a_flow_with_many_members_is_sealed(lab: Lab) -> None:
    """More than a page of them"""
    flow = await Growing.begin(lab)
    calls = [lab.engine.flows.add(flow.id, Submission(kind="job")) for _ in range(620)]
    await asyncio.gather(*calls)
    await flow.seal()
    assert len(await lab.claim(limit=500)) + len(await lab.claim(limit=500)) == 620


async def test_a_quorum_that_can_never_be_reached_is_refused_by_the_seal(lab: Lab) -> None:
    """F-22, I-5: the flow stays open, and can be completed"""
    flow = await Growing.begin(lab, "a", "b", "c")
    await lab.engine.flows.set_join(flow.id, flow["c"], Quorum(2))
    await flow.link("a>c")
    before = await kept(flow)
    with pytest.raises(InvalidGraph, match="2 of 1"):
        await lab.engine.flows.seal(flow.id)
    assert await kept(flow) == before
    assert await lab.claim() == []
    await flow.link("b>c")
    await flow.seal()
    await flow.complete("a", "b")
    await flow.complete("c")


@pytest.mark.parametrize("policy", [AllOf(), AnyOf(), Quorum(2)])
async def test_a_join_without_edges_lets_its_member_go_with_the_seal(
    lab: Lab, policy: JoinPolicy
) -> None:
    """Q-8: there is nothing that it could wait for"""
    flow = await Growing.begin(lab, "a", "b")
    await lab.engine.flows.set_join(flow.id, flow["b"], policy)
    await flow.seal()
    assert await flow.states() == dict.fromkeys("ab", PublicState.WAITING)
    await flow.complete("a", "b")
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_a_caller_that_always_loses_gives_up(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T52, I-5: with an error that says so, and nothing is written"""
    flow = await Growing.begin(lab, "a", "b")
    before = await kept(flow)

    async def lost(change: object) -> bool:
        return False

    with monkeypatch.context() as unlucky:
        unlucky.setattr(retry, "LONGEST_PAUSE", 0.0)
        unlucky.setattr(lab.engine.store, "apply_flow", lost)
        with pytest.raises(RetryExhausted):
            await flow.link("a>b")
    assert await kept(flow) == before


# -- joins


async def test_a_join_is_said_before_the_first_edge(lab: Lab) -> None:
    """C-T35, C-T42, F-20: the same is nothing new, another one replaces it, then it is fixed"""
    flow = await Growing.begin(lab, "a", "b")
    revision = (await flow.flow()).revision
    set_join = lab.engine.flows.set_join
    assert await set_join(flow.id, flow["b"], Quorum(1)) is True
    assert await set_join(flow.id, flow["b"], Quorum(1)) is False
    assert await set_join(flow.id, flow["b"], Quorum(1, Rest.LET_RUN)) is True
    assert (await join_of(flow, "b")).policy == Quorum(1, Rest.LET_RUN)
    assert (await flow.flow()).revision == revision
    await flow.link("a>b")
    before = await kept(flow)
    for late in (Quorum(1), Quorum(1, Rest.LET_RUN)):  # also the very same: 1.4, check 6 before 7
        with pytest.raises(Invalid, match="edge_group_policy_already_fixed") as refused:
            await set_join(flow.id, flow["b"], late)
        assert refused.value.code == "invalid_input"
    assert await kept(flow) == before


async def test_a_join_is_fixed_by_the_first_edge_though_none_was_said(lab: Lab) -> None:
    """C-T35: a child without a policy waits for all, and its first edge fixes that"""
    flow = await Growing.begin(lab, "a", "b")
    await flow.link("a>b")
    with pytest.raises(Invalid, match="edge_group_policy_already_fixed"):
        await lab.engine.flows.set_join(flow.id, flow["b"], AllOf())


NO_WORD: Any = "x"


@pytest.mark.rules
@pytest.mark.parametrize("k", [0, -1, 2**31, 2**32, True, 1.5, "2"])
async def test_a_quorum_of_an_impossible_number_is_refused(lab: Lab, k: Any) -> None:
    """C-T35, coordination.md 1.4, check 1: before the flow is looked for; nothing is written"""
    flow = await Growing.begin(lab, "a")
    before = await kept(flow)
    for id in (flow.id, fresh()):
        with pytest.raises(Invalid) as refusal:
            await lab.engine.flows.set_join(id, flow["a"], Quorum(k))
        assert refusal.value.code == "invalid_input"
    assert await kept(flow) == before
    assert await lab.engine.flows.set_join(flow.id, flow["a"], Quorum(2**31 - 1))


@pytest.mark.rules
@pytest.mark.inside  # through HTTP an argument of the wrong type is refused before it is sent
@pytest.mark.parametrize("bad", [Quorum(1, NO_WORD), AnyOf(NO_WORD), "AllOf", None])
async def test_a_join_that_says_nothing_is_refused(lab: Lab, bad: Any) -> None:
    """C-T35, coordination.md 1.4, checks 2 to 5: unknown words are invalid input, in a flow that
    is there; nothing is written"""
    flow = await Growing.begin(lab, "a")
    before = await kept(flow)
    with pytest.raises(Invalid) as refusal:
        await lab.engine.flows.set_join(flow.id, flow["a"], bad)
    assert refusal.value.code == "invalid_input"
    with pytest.raises(NotFound):
        await lab.engine.flows.set_join(fresh(), flow["a"], bad)
    assert await kept(flow) == before


async def test_a_join_belongs_to_a_member(lab: Lab) -> None:
    """Coordination.md 1.4: the flow and the membership are looked at"""
    flow = await Growing.begin(lab)
    with pytest.raises(NotFound):
        await lab.engine.flows.set_join(fresh(), await unknown(flow), AllOf())
    for stranger in [await unknown(flow), await lab.submit(flow=flow.id), await lab.submit()]:
        with pytest.raises(NotInFlow):
            await lab.engine.flows.set_join(flow.id, stranger, AllOf())


@pytest.mark.parametrize("policy", [AllOf(), AnyOf()])
async def test_a_join_without_edges_is_satisfied_by_the_seal(lab: Lab, policy: AllOf) -> None:
    """Coordination.md Q-8"""
    flow = await Growing.begin(lab, "a")
    await lab.engine.flows.set_join(flow.id, flow["a"], policy)
    assert await lab.state(flow["a"]) is PublicState.WAITING_CHILDREN
    await flow.seal()
    assert (await join_of(flow, "a")).state is JoinState.SATISFIED
    await flow.complete("a")


async def test_a_join_without_edges_keeps_no_member_waiting(lab: Lab) -> None:
    """Coordination.md Q-8: said of a member that runs already, and that is tried again"""
    flow = await Growing.begin(lab)
    await flow.add("keep")
    await flow.seal()
    await flow.add("a", policy=RETRY_AT_ONCE)
    await lab.engine.flows.set_join(flow.id, flow["a"], AnyOf())
    assert await lab.state(flow["a"]) is PublicState.WAITING
    await lab.fail(await take(lab, flow["a"]))
    assert await lab.state(flow["a"]) is PublicState.WAITING
    assert await counters(flow, "a") == (0, 0, 0, 0)
