"""The worker that ends a member claims its downstream in the same commit, if its next claim would.

Behaviour: coordination.md 1.8, execution.md 3.3; invariants I-9, I-12.
"""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import NotActive, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import Snapshot, WorkerIdentity
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import Edge, On
from flowfabric.core.flow.model import FlowState
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import ChangedByEnds
from tests.kit.flow_lab import declare
from tests.kit.flowing import after_commit
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.race import Race, kinds
from tests.kit.signalling import fresh
from tests.kit.situations import load

pytestmark = pytest.mark.inside

ACTIVE, WAITING = PublicState.ACTIVE, PublicState.WAITING
CANCELLED, COMPLETED = PublicState.CANCELLED, PublicState.COMPLETED
LANE = ("default",)


class Following:
    """A worker that takes what follows, as long as it is `free`, and keeps its claims."""

    def __init__(self) -> None:
        self.begun: list[Claim] = []
        self.free = self.stays = True

    def accepts(self, upstream: UUID, kind: str) -> Callable[[Claim, Millis], bool] | None:
        return self._begin if self.free else None

    def _begin(self, claim: Claim, now: Millis) -> bool:
        if self.stays:
            self.begun.append(claim)
        return self.stays

    def __call__(self, engine: Engine, worker: WorkerIdentity = W1, **options: Any) -> Any:
        asked = {
            "lanes": LANE,
            "capabilities": (),
            "kinds": frozenset({"job"}),
            "ttl": TTL,
            "namespace": None,
        }
        return engine.followed_by(self, worker, **{**asked, **options})


@pytest.fixture
def following() -> Following:
    return Following()


@pytest.fixture
async def knowing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """An engine that has claimed a moment ago, however slow the machine is: it knows that there are
    no suspects, no weights and no budgets."""
    monkeypatch.setattr("flowfabric.engine.limit.known_budgets.REFRESH", float("inf"))
    monkeypatch.setattr("flowfabric.engine.limit.lanes.REFRESH", float("inf"))
    await lab.complete(await lab.running())
    return lab


async def shown(lab: Lab, id: Any) -> dict[str, Any]:
    """What can be seen of a run that was claimed, but for what no two runs share."""
    found: Snapshot = await load(lab, id)
    events = await lab.events(id)
    return {
        "head": (found.head.version, found.head.epoch, found.head.flags, found.head.rank),
        "state": found.state.lease.worker,  # type: ignore[union-attr]
        "times": (found.state.lease.started_at, found.state.lease.expires_at),  # type: ignore[union-attr]
        "start": (found.state.lease.attempt, found.state.lease.start),  # type: ignore[union-attr]
        "events": [(each.kind, each.at, each.epoch, each.attempt, each.worker) for each in events],
        "vector": await lab.vector(id),
        "join": found.life.join and found.life.join.fired_at,
    }


async def test_a_follow_on_claim_is_like_a_claim(knowing: Lab, following: Following) -> None:
    """The rows and events are those of a release and a claim, and so is what the worker gets"""
    lab = knowing
    given = {"b": {"payload": b"given", "policy": {"timeout_policy": {"attempt_timeout_ms": 50}}}}
    claimed = await declare(lab, "a>b", given=given)
    await lab.complete(await lab.claim_one())
    taken = await lab.claim_one(lanes=LANE)
    followed = await declare(lab, "a>b", given=given)
    with following(lab.engine):
        await lab.complete(await lab.claim_one())
    (claim,) = following.begun
    assert (claim.id, claim.payload, claim.ttl) == (followed["b"], taken.payload, taken.ttl)
    assert claim.snapshot == await load(lab, followed["b"])
    assert await shown(lab, followed["b"]) == await shown(lab, claimed["b"])
    assert await kinds(lab, followed["b"]) == [EventKind.CLAIMED]
    assert await lab.claim() == []
    await lab.complete(claim, b"done")
    await lab.complete(taken)
    assert (await followed.check()).state is FlowState.COMPLETED
    assert (await claimed.check()).state is FlowState.COMPLETED


async def test_an_engine_that_will_stop_makes_no_follow_on_claims(
    knowing: Lab, following: Following
) -> None:
    """execution.md 3.67: the ending is written, and its downstream waits for another engine"""
    lab = knowing
    flow = await declare(lab, "a>b")
    claim = await lab.claim_one()
    with following(lab.engine):
        await lab.engine.shutdown_prepare()
        await lab.complete(claim)
    await flow.settled()
    assert (following.begun, await lab.state(flow["b"])) == ([], WAITING)


async def test_a_chain_is_claimed_once(
    knowing: Lab, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = knowing
    flow = await declare(lab, "a>b>c>d")
    claim = await lab.claim_one()
    asked: list[str] = []
    for method in ("claim", "claim_all", "end", "end_and_claim", "unsettled"):
        honest = getattr(lab.engine.store, method)

        async def counted(*args: Any, method: str = method, honest: Any = honest) -> Any:
            asked.append(method)
            return await honest(*args)

        monkeypatch.setattr(lab.engine.store, method, counted)
    with following(lab.engine):
        for name in "bcd":
            await lab.complete(claim)
            claim = following.begun[-1]
            assert claim.id == flow[name]
        await lab.complete(claim)
    assert [each for each in asked if each != "unsettled"] == ["end_and_claim"] * 3 + ["end"]
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_a_failure_is_followed_as_well(knowing: Lab, following: Following) -> None:
    lab = knowing
    flow = await declare(lab, "a>b", on={"a>b": On.FAILURE})
    with following(lab.engine):
        await lab.fail(await lab.claim_one(), "permanent")
    assert [claim.id for claim in following.begun] == [flow["b"]]


async def pause(lab: Lab) -> object:
    return await lab.engine.lanes.pause("default")


async def drain(lab: Lab) -> object:
    return await lab.engine.lanes.drain("default")


async def limit(lab: Lab) -> object:
    return await lab.engine.lanes.set("default", concurrency=5)


async def urgent(lab: Lab) -> object:
    return await lab.submit(priority=9)


async def on_a_new_route(lab: Lab) -> object:
    """Of which the process that ends the upstream has never heard."""
    return await lab.submit(namespace="new", priority=9)


@pytest.mark.parametrize("rival", [pause, drain, limit, urgent, on_a_new_route])
@pytest.mark.parametrize("late", [False, True])
async def test_what_a_claim_would_not_take_first_becomes_ready(
    knowing: Lab,
    second_lab: Lab,
    following: Following,
    monkeypatch: pytest.MonkeyPatch,
    rival: Callable[[Lab], Any],
    late: bool,
) -> None:
    """I-12: also if it becomes so in another process between the decision and the commit"""
    lab = knowing
    flow = await declare(lab, "a>b")
    claim = await lab.claim_one()
    with following(lab.engine):
        if late:
            Race(lab, monkeypatch).before("end_and_claim", partial(rival, second_lab))
        else:
            await rival(second_lab)
        await lab.complete(claim)
    assert following.begun == []
    assert await lab.state(flow["a"]) is COMPLETED
    assert await lab.state(flow["b"]) is WAITING
    await lab.engine.lanes.resume("default")
    found = await lab.claim(limit=9)
    assert found[-1].id == flow["b"]
    assert len(found) == len(await lab.engine.claims.held_by(W1.instance))


async def test_less_urgent_work_is_not_waited_for(knowing: Lab, following: Following) -> None:
    """Newer work, and urgent work that this worker does not claim or that waits in a paused lane"""
    lab = knowing
    await lab.engine.lanes.pause("paused")
    flow = await declare(lab, "a>b")
    claim = await lab.claim_one()
    lab.clock.advance(1)
    await lab.submit()
    for elsewhere in ({"lane": "elsewhere"}, {"lane": "paused"}, {"kind": "other"}):
        await lab.submit(**elsewhere, priority=9)
    with following(lab.engine, lanes=("default", "paused")):
        await lab.complete(claim)
    assert [claim.id for claim in following.begun] == [flow["b"]]


GPU = {"routing_requirements": {"required_capabilities": ["gpu"]}}


@pytest.mark.parametrize("other", [{"lane": "elsewhere"}, {"kind": "other"}, {"policy": GPU}])
async def test_what_the_worker_does_not_claim_is_left_to_others(
    knowing: Lab, following: Following, other: dict[str, Any]
) -> None:
    lab = knowing
    flow = await declare(lab, "a>b", given={"b": other})
    claim = await lab.claim_one(lanes=LANE)
    with following(lab.engine):
        await lab.complete(claim)
    assert following.begun == []
    assert await lab.state(flow["b"]) is WAITING
    assert (await lab.claim_one(W2, capabilities=["gpu"])).id == flow["b"]


async def test_of_several_downstreams_none_is_claimed(knowing: Lab, following: Following) -> None:
    """There is one slot, and other workers may have more"""
    lab = knowing
    flow = await declare(lab, "a>b", "a>c")
    with following(lab.engine):
        await lab.complete(await lab.claim_one())
    assert following.begun == []
    assert {each.id for each in await lab.claim(limit=9)} == {flow["b"], flow["c"]}


async def test_the_last_upstream_of_a_join_is_followed(knowing: Lab, following: Following) -> None:
    lab = knowing
    flow = await declare(lab, "a>z", "x>z")
    first, last = await lab.claim(limit=2)
    with following(lab.engine):
        await lab.complete(first)
        assert following.begun == []
        await lab.complete(last)
    assert [claim.id for claim in following.begun] == [flow["z"]]


@pytest.mark.parametrize("beside", ["a run of no flow", "x", "x>y;x>z", "x>y>z"])
async def test_links_of_chains_are_followed_beside_other_endings(
    knowing: Lab, following: Following, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    """One commit ends two links, and a run of no flow, a last member, or one that starts two"""
    lab = knowing
    chains = [await declare(lab, "a>b>c") for _ in range(2)]
    lab.clock.advance(1)
    other = None if " " in beside else await declare(lab, *beside.split(";"))
    claims = await lab.claim(limit=3) if other else [*await lab.claim(limit=2), await lab.running()]
    honest, commits = lab.engine.store.end_and_claim, list[int]()

    async def counted(endings: Any, *rest: Any) -> Any:
        commits.append(len(endings))
        return await honest(endings, *rest)

    monkeypatch.setattr(lab.engine.store, "end_and_claim", counted)
    with following(lab.engine):
        await asyncio.gather(*map(lab.complete, claims))
    expected = {chain["b"] for chain in chains}
    expected |= {other["y"]} if other and beside == "x>y>z" else set()
    assert {claim.id for claim in following.begun} == expected
    assert commits == [3]
    for claim in following.begun:
        assert claim.snapshot == await load(lab, claim.id)
    await after_commit(lab)
    flows = [*chains, other] if other else chains
    assert [(await flow.check()).ended for flow in flows] == [{"success": 1}] * len(flows)
    if other and beside == "x>y;x>z":
        assert {each.id for each in await lab.claim(limit=9)} == {other["y"], other["z"]}


async def test_an_edge_that_another_process_stages_before_the_commit_is_settled(
    knowing: Lab, second_lab: Lab, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-9: also if this process knows the edges of the member, and has not read them"""
    lab = knowing
    await lab.complete(await (await declare(lab, "only")).take("only"))
    flow = await declare(lab, "a>b", "x")
    claim = await flow.take("a")
    edge = Edge(fresh(), flow.id, flow["a"].uuid, flow["x"].uuid)
    Race(lab, monkeypatch).before("end_and_claim", partial(second_lab.engine.flows.stage, edge))
    with following(lab.engine):
        await lab.complete(claim)
    await after_commit(lab)
    edges = await lab.engine.flow_views.edges(flow.id)
    assert [each.outcome for each in edges] == [Outcome.SUCCESS] * 2
    assert await lab.state(flow["x"]) is WAITING
    await flow.check()


async def test_a_downstream_that_is_changed_before_the_commit_is_decided_again(
    knowing: Lab, second_lab: Lab, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = knowing
    flow = await declare(lab, "a>b")
    claim = await lab.claim_one()
    urgent = partial(second_lab.engine.executions.change_priority, flow["b"], 7, anywhere=True)
    Race(lab, monkeypatch).before("end_and_claim", urgent)
    with following(lab.engine):
        await lab.complete(claim)
    assert following.begun == []
    await after_commit(lab)
    assert await lab.state(flow["b"]) is WAITING
    assert (await load(lab, flow["b"])).priority == 7


async def test_upstreams_that_end_together_make_their_downstream_ready(
    knowing: Lab, following: Following
) -> None:
    lab = knowing
    flow = await declare(lab, "a>z", "x>z")
    claims = await lab.claim(limit=2)
    with following(lab.engine):
        await asyncio.gather(*map(lab.complete, claims))
    assert following.begun == []
    await after_commit(lab)
    assert (await lab.claim_one(W2)).id == flow["z"]


async def test_a_worker_without_a_slot_claims_nothing(knowing: Lab, following: Following) -> None:
    lab = knowing
    flow = await declare(lab, "a>b")
    following.free = False
    with following(lab.engine):
        await lab.complete(await lab.claim_one())
    assert following.begun == []
    assert (await lab.claim_one(W2)).id == flow["b"]


async def test_only_the_worker_that_ends_the_upstream_follows(
    knowing: Lab, following: Following
) -> None:
    lab = knowing
    flow = await declare(lab, "a>b")
    with following(lab.engine, W2):
        await lab.complete(await lab.claim_one(W1))
    assert following.begun == []
    assert await lab.state(flow["b"]) is WAITING


async def test_a_worker_that_is_restarted_under_its_name_follows(
    knowing: Lab, following: Following
) -> None:
    """The first one leaves while the second is there"""
    lab, restarted = knowing, Following()
    flow = await declare(lab, "a>b")
    first = following(lab.engine)
    first.__enter__()
    with restarted(lab.engine):
        first.__exit__(None, None, None)
        await lab.complete(await lab.claim_one())
    assert [claim.id for claim in restarted.begun] == [flow["b"]]


async def test_lanes_with_weights_are_left_to_claims(
    knowing: Lab, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = knowing
    flows = [await declare(lab, "a>b") for _ in range(2)]
    claims = await lab.claim(limit=2)
    with following(lab.engine, lanes={"default": 1, "other": 2}):
        await lab.complete(claims[0])
    with following(lab.engine, lanes=()):
        monkeypatch.setattr(lab.engine.lanes, "_weights", {"default": 3})
        await lab.complete(claims[1])
    assert following.begun == []
    assert [await lab.state(flow["b"]) for flow in flows] == [WAITING, WAITING]


async def test_a_budget_is_asked_first(knowing: Lab, following: Following) -> None:
    lab = knowing
    await lab.engine.budgets.create(Budget(name="team", limits={"tokens": Limit(hard=1)}))
    flow = await declare(lab, "a>b", given={"b": {"policy": {"budget_ids": ["team"]}}})
    with following(lab.engine):
        await lab.complete(await lab.claim_one())
    assert following.begun == []
    assert await lab.state(flow["b"]) is WAITING


# -- rivals and crashes


@pytest.mark.parametrize("whole", [False, True])
async def test_a_cancel_between_the_decision_and_the_commit_wins(
    knowing: Lab,
    second_lab: Lab,
    following: Following,
    monkeypatch: pytest.MonkeyPatch,
    whole: bool,
) -> None:
    lab = knowing
    flow = await declare(lab, "a>b")
    claim = await lab.claim_one()
    other = second_lab.engine
    rival = (
        partial(other.flows.cancel, flow.id, reason="stop")
        if whole
        else partial(other.executions.cancel, flow["b"], reason="stop")
    )
    Race(lab, monkeypatch).before("end_and_claim", rival)
    with following(lab.engine), pytest.raises(NotActive) if whole else nullcontext():
        await lab.complete(claim)
    assert following.begun == []
    assert await lab.state(flow["b"]) is CANCELLED
    await after_commit(lab)
    await second_lab.engine.sweep.once()
    await flow.check()


async def test_a_process_that_dies_after_the_commit_loses_a_lease(
    knowing: Lab, second_lab: Lab, following: Following
) -> None:
    """The downstream is taken over, as any run whose worker is gone"""
    lab = knowing
    flow = await declare(lab, "a>b")
    with following(lab.engine):
        await lab.complete(await lab.claim_one())
    (lost,) = following.begun
    await second_lab.pass_time(TTL)
    again = await second_lab.claim_one(W2)
    assert (again.id, again.epoch) == (flow["b"], lost.epoch + 1)
    assert await kinds(second_lab, flow["b"]) == [
        EventKind.CLAIMED,
        EventKind.LEASE_EXPIRED,
        EventKind.RECLAIMED,
    ]


async def test_a_lost_reply_is_handed_back_by_the_next_claim(
    knowing: Lab, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = knowing
    flow = await declare(lab, "a>b")
    claim, honest = await lab.claim_one(), lab.engine.store.end_and_claim

    async def unheard(*args: Any) -> Any:
        assert (await honest(*args)).claimed
        raise Unavailable("the reply is lost")

    with following(lab.engine):
        with monkeypatch.context() as cut:
            cut.setattr(lab.engine.store, "end_and_claim", unheard)
            with pytest.raises(Unavailable):
                await lab.complete(claim)
        await lab.complete(claim)
    assert following.begun == []
    assert await lab.state(flow["b"]) is ACTIVE
    again = await lab.claim_one()
    assert (again.id, again.attempt) == (flow["b"], 0)


async def test_a_lost_reply_whose_repeat_is_refused_is_handed_back_by_the_next_claim(
    knowing: Lab, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endings are sent alone then, and found written: nothing names the downstream"""
    lab = knowing
    flow = await declare(lab, "a>b")
    claim, honest = await lab.claim_one(), lab.engine.store.end_and_claim

    async def refused(*args: Any) -> ChangedByEnds:
        assert (await honest(*args)).claimed
        return ChangedByEnds(())

    monkeypatch.setattr(lab.engine.store, "end_and_claim", refused)
    with following(lab.engine):
        await lab.complete(claim)
    assert (following.begun, await lab.state(flow["b"])) == ([], ACTIVE)
    again = await lab.claim_one()
    assert (again.id, again.attempt) == (flow["b"], 0)


async def test_what_was_begun_beside_a_refused_ending_is_kept(
    knowing: Lab, second_lab: Lab, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit ends two members, one of which was cancelled meanwhile: the next claim must not
    take the downstream of the other away from its worker"""
    lab = knowing
    kept, lost = [await declare(lab, "a>b") for _ in range(2)]
    claims = await lab.claim(limit=2)
    cancel = partial(second_lab.engine.executions.cancel, lost["a"], reason="stop")
    Race(lab, monkeypatch).before("end_and_claim", cancel)
    with following(lab.engine):
        await asyncio.gather(*map(lab.complete, claims), return_exceptions=True)
        await lab.claim()
    (begun,) = following.begun
    assert begun.id == kept["b"]
    assert begun.snapshot == await load(lab, kept["b"])
    await lab.complete(begun)
    assert (await kept.check()).state is FlowState.COMPLETED


async def test_a_worker_that_is_gone_hands_back(knowing: Lab, following: Following) -> None:
    """It accepted the downstream, and stopped before the commit was answered"""
    lab = knowing
    flow = await declare(lab, "a>b")
    following.stays = False
    with following(lab.engine):
        await lab.complete(await lab.claim_one())
    await lab.engine.claims.drain()
    again = await lab.claim_one(W2)
    assert (again.id, again.attempt, again.epoch) == (flow["b"], 0, 2)


async def test_everything_that_a_lost_reply_took_is_handed_back(
    knowing: Lab, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit that ends several members makes several claims with one id"""
    lab = knowing
    flows = [await declare(lab, "a>b") for _ in range(3)]
    claims = await lab.engine.claims.claim(W1, lanes=LANE, limit=3, ttl=TTL)
    honest, taken = lab.engine.store.end_and_claim, list[int]()

    async def unheard(*args: Any) -> Any:
        taken.append(len((await honest(*args)).claimed))
        raise Unavailable("the reply is lost")

    with following(lab.engine):
        with monkeypatch.context() as cut:
            cut.setattr(lab.engine.store, "end_and_claim", unheard)
            await asyncio.gather(*map(lab.complete, claims), return_exceptions=True)
        await asyncio.gather(*map(lab.complete, claims))
    assert (max(taken), following.begun) == (3, [])
    again = await lab.engine.claims.claim(W2, lanes=LANE, limit=5, ttl=TTL)
    assert {each.id for each in again} == {flow["b"] for flow in flows}
    assert [each.attempt for each in again] == [0] * 3
