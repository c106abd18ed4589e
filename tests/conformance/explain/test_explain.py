"""Why is it not running? Told from the gates themselves, on every store."""

import pytest

from flowfabric.core.base.errors import Invalid, InvalidId, NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.explain.reasons import Reason
from flowfabric.core.flow.join import AnyOf, Quorum, Rest
from flowfabric.core.limit.budget import Budget, Limit, Scope
from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.core.wait.condition.model import ByName, Single
from flowfabric.engine import explain as limits_of_explain
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from tests.kit import situations
from tests.kit.explaining import GPU, reason, register, settled, using, why
from tests.kit.flow_lab import declare
from tests.kit.flowing import Growing
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.situations import take
from tests.kit.waits import suspend, wait_on

# -- always something to say


@pytest.mark.parametrize("name", situations.ALL)
async def test_everything_has_an_explanation(lab: Lab, name: str) -> None:
    """Nothing is stuck without a reason; what has ended tells how"""
    expected = {
        "delayed": "delayed",
        "depending": "waits_for_upstreams",
        "blocked": "blocked_by_operator",
        "rate_limited": "blocked_by_operator",
        "running": "leased",
        "lost": "lost",
        "revoked": "lost",
        "suspended": "waiting_for_signal",
        "resume_delayed": "delayed",
        "worker_delayed": "delayed",
        "waiting_children": "waits_for_upstreams",
        "backing_off": "retry_backoff",
        **dict.fromkeys(situations.ENDED, "ended"),
    }
    id = await situations.ALL[name](lab)
    found = await why(lab, id)
    assert found.main.code == expected.get(name, "no_worker")
    assert (found.id, found.state, found.at) == (id, await lab.state(id), lab.clock.now())
    assert all(each.text and each.text[-1] != "." for each in found.reasons)


async def test_a_question_about_an_unknown_run_says_so(lab: Lab) -> None:
    for id in await situations.missing_ids(lab):
        with pytest.raises(NotFound):
            await lab.engine.explain(id)
    for wrong in ("", "nonsense", "{fp:300}:x"):
        with pytest.raises(InvalidId):
            await lab.engine.explain(wrong)
    for lane in ("", "ä", "x" * 65):
        with pytest.raises(Invalid):
            await lab.engine.explain.lane(lane)


# -- upstreams


async def test_upstreams_are_named_with_what_keeps_them(lab: Lab) -> None:
    """Waits on 2 of 3 upstreams, and why each of them does not run"""
    await register(lab)
    flow = await declare(lab, "a>d", "b>d", "c0>c>d")
    await flow.complete("a")
    await lab.engine.executions.block(flow["b"], "paused_by_operator", detail="until Monday")
    claim = await flow.take("c0")
    found = (await why(lab, flow["d"])).main
    assert found.code == "waits_for_upstreams"
    assert found.text.startswith("it waits for 2 of its 3 upstreams: ")
    assert (found.detail["upstreams"], found.detail["satisfied"]) == (3, 1)
    named = {child.detail["name"]: child for child in found.children}
    assert set(named) == {"b", "c"}
    assert (named["b"].detail["id"], named["b"].detail["state"]) == (flow["b"], "waiting")
    (held,) = named["b"].children
    assert (held.code, held.text) == (
        "blocked_by_operator",
        "an operator holds it back: until Monday",
    )
    (below,) = named["c"].children
    assert [child.detail["name"] for child in below.children] == ["c0"]
    (runs,) = below.children[0].children
    assert (runs.code, runs.detail["worker"]) == ("leased", "w1")
    assert runs.until == lab.clock.now() + claim.ttl


async def test_joins_that_need_fewer_say_how_many(lab: Lab) -> None:
    flow = await declare(
        lab, "a>x", "b>x", "a>y", "b>y", joins={"x": AnyOf(Rest.LET_RUN), "y": Quorum(2)}
    )
    assert (
        await why(lab, flow["x"])
    ).main.text == "it waits for the first of its 2 upstreams: a and b"
    await flow.complete("a")
    assert (await why(lab, flow["x"])).main.code == "no_worker"
    assert (await why(lab, flow["y"])).main.text == "it waits for 1 more of its 2 upstreams: b"


async def test_what_is_told_of_upstreams_is_bounded(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However wide and deep a flow is"""
    wide = await declare(lab, *(f"m{n}>end" for n in range(25)))
    found = (await why(lab, wide["end"])).main
    assert len(found.children) == limits_of_explain.MAX_UPSTREAMS + 1
    assert (found.children[-1].code, found.children[-1].text) == ("more", "and 15 more upstreams")
    deep = await declare(lab, ">".join(f"s{n}" for n in range(12)))
    assert _depth((await why(lab, deep["s11"])).main) <= 2 * limits_of_explain.MAX_DEPTH + 1
    monkeypatch.setattr(limits_of_explain, "MAX_EXPLAINED", 3)
    assert sum(bool(child.children) for child in (await why(lab, wide["end"])).main.children) == 2


def _depth(reason: Reason) -> int:
    return 1 + max(map(_depth, reason.children), default=0)


async def test_a_diamond_is_explained_once(lab: Lab) -> None:
    flow = await declare(lab, "top>left>end", "top>right>end")
    found = (await why(lab, flow["end"])).main
    tops = [below for side in found.children for each in side.children for below in each.children]
    assert [top.detail["name"] for top in tops] == ["top", "top"]
    assert sorted(len(top.children) for top in tops) == [0, 1]


async def test_a_flow_that_is_still_declared_says_so(lab: Lab) -> None:
    flow = await Growing.begin(lab, "a", "b")
    await flow.link("a>b")
    await register(lab)
    found = await why(lab, flow["b"])
    assert (found.codes[0], found.main.detail) == ("held_unsealed", {"flow": str(flow.id)})
    await flow.seal()
    await flow.settled()
    assert (await why(lab, flow["b"])).codes == ("waits_for_upstreams",)
    assert (await why(lab, flow["a"])).main.code == "waiting_for_worker"


# -- quotas


async def test_a_rate_tells_when_it_has_room(lab: Lab) -> None:
    """Quota refills in 12 s: the very moment, after which it is let through"""
    await lab.engine.quotas.create(Quota(name="openai", rate=Rate(2, Millis(20_000))))
    for _ in range(2):
        await lab.submit(policy=using(("openai", "")))
    await settled(lab)
    await lab.pass_time(8_000)
    id = await lab.submit(policy=using(("openai", "")))
    found = await reason(lab, id, "rate_used_up")
    assert found.until == lab.clock.now() + 12_000
    assert found.text == "quota openai allows 2 starts in 20 seconds, and those are used up"
    assert (await why(lab, id)).state == "rate_limited"
    await lab.pass_time(11_999)
    assert (await why(lab, id)).main.code == "rate_used_up"
    await lab.pass_time(1)
    assert (await why(lab, id)).main.code == "no_worker"


async def test_full_slots_are_told_with_who_holds_them(lab: Lab) -> None:
    """5 of 5 slots of quota X (key Y), by whom, and the place in line"""
    quota = Quota(name="openai", concurrency=7, concurrency_per_key=5)
    await lab.engine.quotas.create(quota)
    first = [await lab.submit(policy=using(("openai", "acme"))) for _ in range(5)]
    others = [await lab.submit(policy=using(("openai", "acme"))) for _ in range(3)]
    await settled(lab)
    found = await reason(lab, others[2], "quota_full")
    assert found.text == "5 of 5 slots of quota openai for key acme are taken"
    assert set(found.detail["holders"]) == set(first)
    assert found.children[0].text.endswith(" and 2 more")
    line = await reason(lab, others[2], "in_line")
    assert (line.detail["ahead"], line.text) == (2, "2 are before it in the line for quota openai")
    assert "next of its line" in (await reason(lab, others[0], "in_line")).text
    for key in ("b", "c"):
        await lab.submit(policy=using(("openai", key)))
    full = [each for each in (await why(lab, others[0])).reasons if each.code == "quota_full"]
    assert [(each.detail["per_key"], each.detail["taken"]) for each in full] == [
        (False, 7),
        (True, 5),
    ]
    await lab.complete(await take(lab, first[0]))
    assert (await why(lab, others[0])).main.code == "no_worker"


async def test_of_two_quotas_only_the_full_one_is_a_reason(lab: Lab) -> None:
    for name in ("roomy", "tight"):
        await lab.engine.quotas.create(Quota(name=name, concurrency=9 if name == "roomy" else 1))
    uses = using(("roomy", "r"), ("tight", ""))
    await lab.submit(policy=uses)
    id = await lab.submit(policy=uses)
    found = await reason(lab, id, "quota_full")
    assert found.detail["quota"] == "tight"
    await lab.engine.quotas.delete("tight")
    await settled(lab)
    await lab.pass_time(0)
    assert (await why(lab, id)).main.code == "no_worker"


async def test_gates_behind_the_first_are_told_as_well(lab: Lab) -> None:
    """Every gate that is closed, in the order they are asked"""
    await lab.engine.quotas.create(Quota(name="q", concurrency=1))
    for _ in range(2):
        await lab.submit(policy=using(("q", "")))
    await settled(lab)
    later = Millis(lab.clock.now() + 5000)
    id = await lab.submit(delay_until=later, policy=using(("q", "")))
    await lab.engine.lanes.pause("default")
    assert (await why(lab, id)).codes == ("delayed", "quota_full", "lane_paused", "no_worker")
    assert (await why(lab, id)).main.until == later


# -- budgets


async def test_a_spent_budget_is_told_before_and_after_the_take(lab: Lab) -> None:
    """Budget exhausted: which, of what, until when; also of a run that is only ready"""
    await register(lab)
    await lab.engine.budgets.create(
        Budget(name="org", limits={"tokens": Limit(hard=100)}, every=Millis(3_600_000))
    )
    await lab.engine.budgets.create(Budget(name="team", parent="org"))
    reset_at = lab.clock.now() + 3_600_000
    id = await lab.submit(policy={"budget_ids": ["team"]})
    assert (await why(lab, id)).codes == ("waiting_for_worker", "in_line")
    await lab.engine.budgets.spend("team", {"tokens": 100})
    found = await why(lab, id)
    assert (found.codes, found.state) == (("budget_exhausted",), "waiting")
    assert found.main.until == reset_at
    assert found.main.detail == {
        "budget": "org",
        "dimension": "tokens",
        "used": 100,
        "reserved": 0,
        "hard": 100,
    }
    assert await lab.claim() == []
    turned_away = await why(lab, id)
    assert (turned_away.codes, turned_away.state) == (("budget_exhausted",), "rate_limited")
    assert turned_away.main == found.main
    await lab.pass_time(3_600_000)
    await register(lab)
    assert (await why(lab, id)).main.code == "waiting_for_worker"


async def test_a_budget_of_the_namespace_holds_without_being_named(lab: Lab) -> None:
    id = await lab.submit(namespace="acme")
    budget = Budget(
        name="cap", scope=Scope.NAMESPACE, scope_id="acme", limits={"calls": Limit(hard=1)}
    )
    await lab.engine.budgets.create(budget)
    await lab.engine.budgets.spend("cap", {"calls": 1})
    found = await reason(lab, id, "budget_exhausted")
    assert (found.detail["budget"], found.until) == ("cap", None)
    assert "never reset by itself" in found.text
    running = await situations.running(lab)
    assert (await why(lab, running)).codes == ("leased",)


# -- lanes


async def test_a_lane_tells_who_stopped_it(lab: Lab) -> None:
    """Lane paused by whom, when and why; draining; full"""
    await register(lab, concurrency=9)
    id = await lab.submit(policy=situations.RETRY_AT_ONCE)
    await lab.engine.lanes.pause("default", by="ada", reason="maintenance")
    paused_at = lab.clock.now()
    lab.clock.advance(5000)
    found = await why(lab, id)
    assert found.codes == ("lane_paused",)
    assert (found.main.text, found.main.since) == (
        "lane default was paused by ada: maintenance",
        paused_at,
    )
    await lab.engine.lanes.drain("default", by="bob")
    assert (await why(lab, id)).main.text.endswith("begins nothing new, as decided by bob")
    await lab.engine.lanes.resume("default")
    await lab.fail(await lab.claim_one())
    await lab.engine.lanes.drain("default")
    # What has begun goes on.
    assert (await why(lab, id)).main.code == "waiting_for_worker"
    await lab.engine.lanes.resume("default")
    await lab.engine.lanes.set("default", concurrency=1)
    claim = await lab.claim_one()
    waits = await lab.submit()
    full = await why(lab, waits)
    assert full.codes == ("lane_full", "in_line")
    assert full.main.text == "lane default is full: 1 of 1 run"
    assert full.main.children[0].text == f"held by {claim.id}"


# -- workers


async def test_no_union_of_workers_is_a_worker(lab: Lab) -> None:
    """F-45: {gpu} and {cuda} together run nothing that needs both; who comes closest"""
    id = await lab.submit(policy=GPU)
    await register(lab, "w7", capabilities=("gpu", "ssd"))
    await register(lab, "w8", capabilities=())
    only_gpu = await reason(lab, id, "no_capable_worker")
    assert only_gpu.text == "no live worker offers cuda"
    await register(lab, "w9", capabilities=("cuda",))
    found = await reason(lab, id, "no_capable_worker")
    assert found.text == "no live worker offers cuda and gpu together"
    (closest,) = found.children
    assert closest.detail["lacks"] in (["cuda"], ["gpu"])
    assert closest.detail["worker"] in ("w7", "w9")
    await register(lab, "w1", capabilities=("gpu", "cuda"))
    assert (await why(lab, id)).main.code == "waiting_for_worker"


async def test_workers_of_another_kind_lane_or_namespace_are_none(lab: Lab) -> None:
    id = await lab.submit()
    assert (await why(lab, id)).main.code == "no_worker"
    await register(lab, "w1", namespace="other")
    assert (await why(lab, id)).main.code == "no_worker"
    await register(lab, "w2", lanes=("fast", "slow"))
    found = (await why(lab, id)).main
    assert found.code == "no_worker_for_lane"
    assert found.text == "no live worker takes lane default; those there are take fast and slow"
    await register(lab, "w3", lanes=("default",), kinds=("mail",))
    found = (await why(lab, id)).main
    assert (found.code, found.text) == (
        "no_worker_for_kind",
        "no live worker of lane default runs job",
    )
    elsewhere = await lab.submit(namespace="acme")
    assert (await why(lab, elsewhere)).main.code == "no_worker"
    await register(lab, "w4", kinds=("job",))
    assert (await why(lab, id)).main.code == "waiting_for_worker"
    assert (await why(lab, elsewhere)).main.code == "no_worker"
    await register(lab, "w5", kinds=("job",), everywhere=True)
    assert (await why(lab, elsewhere)).main.text == "it waits to be taken; w5 can run it"


async def test_busy_workers_and_the_place_in_line(lab: Lab) -> None:
    """Ready, and simply waiting: how busy those are who could run it, and how many come first"""
    ids = [await lab.submit() for _ in range(4)]
    urgent = await lab.submit(priority=5)
    await lab.submit(kind="other")
    await register(lab, concurrency=2)
    await lab.engine.workers.heartbeat("w7-a", running=2)
    found = await why(lab, ids[3])
    assert found.codes == ("worker_busy", "in_line")
    assert (found.main.detail["running"], found.main.detail["slots"]) == (2, 2)
    assert found.main.text == "the only worker that can run it is busy (2 of 2 at once)"
    assert found.reasons[1].detail["ahead"] == 4
    assert (await why(lab, urgent)).reasons[1].text == "it is the next of its kind to be taken"
    lab.clock.advance(3_600_000)
    assert (await why(lab, urgent)).main.code == "no_worker"


# -- owners


async def test_a_lease_is_told_with_its_ends(lab: Lab) -> None:
    deadline = Millis(lab.clock.now() + 90_000)
    policy = situations.timeouts(attempt=60_000)
    claim = await lab.running(W1, policy=policy, deadline_at=deadline)
    found = await why(lab, claim.id)
    started = lab.clock.now()
    assert found.codes == ("leased", "deadline")
    assert (found.main.since, found.main.until) == (started, started + TTL)
    assert found.main.text == "it runs: w1 (w1-a) has a lease for attempt 1"
    assert found.main.children[0].until == started + 60_000
    assert found.reasons[1].until == deadline
    lab.clock.advance(TTL)
    assert (await why(lab, claim.id)).main.code == "lost"


async def test_a_lost_one_waits_out_its_grace(store: Store, clock: ManualClock) -> None:
    lab = await Lab.open(store, clock, reclaim_grace=Millis(5000))
    await register(lab, "w2")
    claim = await lab.running(W1)
    await lab.lose(claim)
    found = await why(lab, claim.id)
    assert found.codes == ("lost", "reclaim_grace")
    assert found.reasons[1].until == lab.clock.now() + 5000
    await lab.pass_time(5000)
    assert (await why(lab, claim.id)).codes == ("lost", "waiting_for_worker", "in_line")
    await lab.engine.close()


async def test_a_grant_keeps_it_for_one_worker(lab: Lab) -> None:
    await register(lab, "w1")
    id = await lab.submit()
    await lab.engine.grants.issue(id, W2.id, ttl=Millis(7000))
    found = await why(lab, id)
    assert found.codes == ("held_for_grant",)
    assert (found.main.until, found.main.detail["worker"]) == (lab.clock.now() + 7000, "w2")
    lab.clock.advance(7000)
    assert (await why(lab, id)).codes == ("waiting_for_worker", "in_line")


async def test_a_retry_tells_what_failed(lab: Lab) -> None:
    claim = await lab.running(policy=situations.RETRY)
    await lab.fail(claim, message="the API answered 503")
    found = (await why(lab, claim.id)).main
    assert (found.code, found.until) == ("retry_backoff", lab.clock.now() + 10_000)
    assert found.text == "attempt 1 failed and is tried again; it failed with: the API answered 503"
    lab.clock.advance(10_000)  # and the sweep has not looked yet
    assert "in a moment" in (await why(lab, claim.id)).main.text


# -- suspended


async def test_a_suspended_run_names_what_it_waits_for(lab: Lab) -> None:
    """Signals by name and never by token; a flow with what keeps its members"""
    claim = await lab.running()
    soon = Millis(lab.clock.now() + 60_000)
    flow = await declare(lab, "a>b", "c>b")
    await flow.complete("c")
    waits = [
        wait_on(lab, Single("paid", ByName("done")), timeout_at=soon),
        wait_on(lab, Single(f"flow:{flow.id}")),
    ]
    answer = await suspend(lab, claim, *waits)
    signal, members = (await why(lab, claim.id)).reasons
    assert (signal.code, signal.until) == ("waiting_for_signal", soon)
    text = "it waits for signal done at paid; if that does not happen in time, it fails"
    assert signal.text == text
    assert signal.detail["signals"] == {"paid": ["done"]}
    assert members.text == f"it waits for flow {flow.id} to end"
    a, b = members.children
    assert (a.code, a.text, a.children[0].code) == ("member", "a is waiting", "no_worker")
    assert b.children[0].code == "waits_for_upstreams"
    tokens = [ticket.token.reveal() for ticket in answer.waitpoints if ticket.token is not None]
    assert len(tokens) == 2
    assert not any(token in str((signal, members)) for token in tokens)
