"""Budgets at the door: who is not started, where it waits, and what lets it in again."""

import asyncio
from typing import Any

import pytest

from flowfabric.core.base.errors import NotEligible, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import Gate, Start, Waiting
from flowfabric.core.execution.status import Blocking, Eligibility, PublicState
from flowfabric.core.limit.budget import OnHard, Scope
from flowfabric.core.limit.quota import Quota, budget_queue
from flowfabric.core.limit.spend import HardBreach, Reserved
from flowfabric.engine.limit import rounds
from flowfabric.store.queries import InQueue
from tests.kit.flow_lab import declare, settle
from tests.kit.lab import W1, W2, Lab
from tests.kit.race import kinds
from tests.kit.situations import RETRY, described, load, take
from tests.kit.spending import (
    TEAM,
    claimed,
    make,
    report,
    settled,
    spend,
    spent_out,
    tokens,
    used,
)
from tests.kit.waits import signal, suspend

LIMITED = PublicState.RATE_LIMITED


async def test_what_has_no_budget_left_is_not_started(lab: Lab) -> None:
    """F-07, C-T85, E-T073: taken and turned away, as if nothing had happened but for the epoch"""
    await make(lab)
    await spend(lab, 10)
    id = await lab.submit(policy={**TEAM, "timeout_policy": {"attempt_timeout_ms": 5000}})
    before = await described(lab, id)
    lab.clock.advance(5)
    assert await claimed(lab) == []
    after = await described(lab, id)
    assert (after.state, after.blocking) == (LIMITED, Blocking.BUDGET)
    assert after.vector.eligibility is Eligibility.BUDGET
    assert after.blocking_detail == "budget team: 10 of 10 tokens"
    assert (after.started_at, after.attempts_made, after.retries) == (None, 0, 0)
    assert (after.attempt, after.epoch) == (before.attempt, before.epoch + 1)
    assert await kinds(lab, id) == [EventKind.CLAIMED, EventKind.TURNED_AWAY]
    assert await lab.engine.store.executions_in(InQueue(budget_queue("team")), 9) == [id.uuid]
    assert await claimed(lab) == []
    assert len(await lab.events(id)) == 2
    await lab.engine.budgets.reset("team")
    (claim,) = await claimed(lab)
    assert (claim.id, claim.attempt, claim.lease.start) == (id, 0, Start.INITIAL)
    assert claim.lease.times_out_at == lab.clock.now() + 5000
    assert (await described(lab, id)).started_at == lab.clock.now()


async def raise_limit(lab: Lab) -> None:
    await lab.engine.budgets.define(tokens(11))


async def make_advice(lab: Lab) -> None:
    await lab.engine.budgets.define(tokens(10, on_hard=OnHard.WARN))


async def reset(lab: Lab) -> None:
    await lab.engine.budgets.reset("team")


async def delete(lab: Lab) -> None:
    await lab.engine.budgets.delete("team")


async def scheduled(lab: Lab) -> None:
    await lab.pass_time(10_000)


async def claims(lab: Lab, id: str) -> bool:
    return [claim.id for claim in await lab.claim(W1)] == [id]


async def searches(lab: Lab, id: str) -> bool:
    granted = await lab.engine.grants.find_and_issue(W1, lane="default")
    return granted is not None and granted.id == id


async def reads(lab: Lab, id: str) -> bool:
    return await lab.state(id) == "waiting"


@pytest.mark.parametrize("look", [claims, searches, reads])
@pytest.mark.parametrize("way", [raise_limit, reset, delete])
async def test_a_run_whose_budget_has_room_again_is_found_at_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, way: Any, look: Any
) -> None:
    """C-T85, C-T93: a caller that makes the room and then looks need not wait for a sweep"""
    monkeypatch.setattr(rounds, "SETTLE", 30)
    await make(lab)
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    await spend(lab, 10)
    id = await lab.submit(policy={**TEAM, "quotas": [{"quota": "q"}]})
    assert not await claims(lab, id)
    assert not await reads(lab, id)
    await way(lab)
    assert await look(lab, id)


@pytest.mark.parametrize("way", [raise_limit, make_advice, reset, delete, scheduled])
async def test_it_is_let_in_when_the_budget_has_room_again(lab: Lab, way: Any) -> None:
    """F-39, C-T93: at once in the same process"""
    id = await spent_out(lab, every=Millis(10_000))
    await lab.engine.sweep.once()
    assert await claimed(lab) == []
    await way(lab)
    (claim,) = await claimed(lab)
    assert claim.id == id


async def test_a_release_lets_in(lab: Lab) -> None:
    await make(lab)
    first = await lab.running(policy=TEAM)
    await report(lab, first, 10)
    id = await lab.submit(policy=TEAM)
    assert await claimed(lab) == []
    await lab.engine.budgets.release("team", first.id)
    (claim,) = await claimed(lab)
    assert claim.id == id


async def test_another_process_lets_in_by_its_sweep(lab: Lab, second_lab: Lab) -> None:
    """A process that died after the commit that made room"""
    id = await spent_out(lab)
    lab.engine._budget_gate._admit_soon = lambda names: None  # type: ignore[method-assign]
    lab.engine._budget_gate.ledger._opened = lambda names: None
    await lab.engine.budgets.reset("team")
    assert await claimed(lab) == []
    await second_lab.engine.sweep.once()
    assert [claim.id for claim in await claimed(second_lab)] == [id]


async def test_what_runs_already_is_never_turned_away(lab: Lab) -> None:
    """§2.7: it goes on after a wait and after a crash; a retry is new work"""
    await make(lab)
    going = await lab.running(policy=TEAM)
    lost = await lab.running(W2, policy=TEAM)
    waiting = await lab.running(policy=TEAM)
    retried = await lab.running(policy={**TEAM, **RETRY})
    answer = await suspend(lab, waiting)
    await lab.engine.attempts.hand_back(going)
    await lab.fail(retried)
    await spend(lab, 10)
    await lab.pass_time(lost.ttl)
    await signal(lab, waiting.id, answer.primary)
    assert {claim.id for claim in await claimed(lab)} == {going.id, lost.id, waiting.id}
    assert await lab.state(retried.id) is LIMITED
    found = await load(lab, retried.id)
    assert isinstance(found.state, Waiting)
    assert (found.state.gate, found.state.next.start) == (Gate.BUDGET, Start.RETRY)
    await lab.engine.budgets.reset("team")
    (again,) = await claimed(lab)
    assert (again.id, again.attempt, again.snapshot.life.retries) == (retried.id, 1, 1)


@pytest.mark.parametrize("refused", [False, True], ids=["in its backoff", "for its budget"])
@pytest.mark.parametrize("search", [False, True], ids=["claimed", "granted"])
async def test_a_clean_up_needs_no_budget(lab: Lab, refused: bool, search: bool) -> None:
    """§2.7: cancelled while it waits for a retry, a run that has started undoes what it did"""
    clean = {"cleanup_policy": {"cleanup_timeout_ms": 60_000}}
    await make(lab)
    claim = await lab.running(policy={**TEAM, **RETRY, **clean})
    await report(lab, claim, 10)
    await lab.fail(claim)
    if refused:
        await lab.pass_time(60_000)
        assert await claimed(lab) == []
        assert await lab.state(claim.id) is LIMITED
    await lab.engine.executions.cancel(claim.id, reason="enough")
    if search:
        granted = await lab.engine.grants.find_and_issue(W2, lane="default")
        assert granted is not None
        again = await lab.engine.grants.claim(granted.id, W2)
    else:
        (again,) = await claimed(lab)
    assert again.id == claim.id
    await lab.engine.attempts.finish_cleanup(again)
    assert await lab.state(claim.id) is PublicState.CANCELLED


async def test_slots_of_quotas_go_back(lab: Lab) -> None:
    """Whoever waits for a budget keeps nobody from a quota"""
    await lab.engine.quotas.create(Quota(name="q", concurrency=1))
    await make(lab)
    await spend(lab, 10)
    quota = {"quotas": [{"quota": "q", "key": ""}]}
    poor = await lab.submit(policy={**TEAM, **quota})
    await settled(lab)  # it has the slot
    rich = await lab.submit(policy=quota)
    # A claim goes past whom a budget refuses; the slot may be free again in time for it, or not.
    (claim,) = await claimed(lab) or await claimed(lab)
    assert (claim.id, await lab.state(poor)) == (rich, LIMITED)
    await lab.engine.budgets.reset("team")
    assert await claimed(lab) == []  # the slot is taken now
    await lab.complete(claim)
    assert [claim.id for claim in await claimed(lab)] == [poor]


async def test_a_whole_that_is_spent_keeps_out_all_its_parts(lab: Lab) -> None:
    """And whoever waits for it is let in when it has room, whatever the part says"""
    await make(lab, 10, name="org")
    await make(lab, 5, parent="org")
    await spend(lab, 10, "org")
    one = await lab.submit(policy=TEAM)
    assert await claimed(lab) == []
    assert (await load(lab, one)).life.budget == "org"
    await lab.engine.budgets.reset("org")
    await spend(lab, 5)
    assert await claimed(lab) == []
    assert (await load(lab, one)).life.budget == "team"
    await spend(lab, 5, "org")
    await lab.engine.budgets.reset("team")  # its whole is spent meanwhile
    await lab.engine.sweep.once()
    assert await claimed(lab) == []
    await lab.engine.budgets.reset("org")
    await lab.engine.sweep.once()
    assert [claim.id for claim in await claimed(lab)] == [one]


async def test_one_that_waits_can_be_cancelled_and_steered(lab: Lab) -> None:
    id = await spent_out(lab)
    other = await lab.submit(policy=TEAM)
    assert await claimed(lab) == []
    await lab.engine.executions.change_priority(other, 9, anywhere=True)
    await lab.engine.executions.cancel(id, reason="enough")
    assert await lab.state(id) is PublicState.CANCELLED
    await lab.engine.budgets.reset("team")
    assert [claim.id for claim in await claimed(lab)] == [other]


async def test_budgets_of_a_namespace_hold_at_the_door(lab: Lab, second_lab: Lab) -> None:
    """F-07: also one made by another process, seen within a second"""
    id = await lab.submit()
    await make(second_lab, scope=Scope.NAMESPACE, scope_id="default")
    await spend(second_lab, 10)
    lab.engine._budget_gate.known.forget_attached()  # as if a second had passed
    assert await claimed(lab) == []
    assert await lab.state(id) is LIMITED


async def test_a_redeemed_grant_is_asked_too(lab: Lab) -> None:
    await make(lab)
    await spend(lab, 10)
    id = await lab.submit(policy=TEAM)
    with pytest.raises(NotEligible, match="budget"):
        await take(lab, id)
    assert await lab.state(id) is LIMITED


# -- when the books cannot be read


@pytest.mark.parametrize("method", ["ledger", "attached"])
@pytest.mark.parametrize("granted", [False, True])
async def test_budgets_that_cannot_be_read_admit_no_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, method: str, granted: bool
) -> None:
    """I-29, C-T92, C-T91, E-T078: what was taken goes back as it was and is asked again"""
    await make(lab, scope=Scope.NAMESPACE, scope_id="default")
    await spend(lab, 10)
    id = await lab.submit()
    running = await lab.submit(namespace="elsewhere")
    first = await take(lab, running)
    await lab.engine.attempts.hand_back(first)
    lab.engine._budget_gate.known.forget_attached()

    async def unreadable(*args: object) -> None:
        raise Unavailable("gone")

    with monkeypatch.context() as cut:
        cut.setattr(lab.engine.store, method, unreadable)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await (take(lab, id) if granted else lab.claim(limit=10))
            await settled(lab)
    assert await lab.state(id) is PublicState.WAITING
    seen = await described(lab, id)
    assert (seen.started_at, seen.attempts_made) == (None, 0)
    (again,) = await claimed(lab)
    assert (again.id, again.attempt) == (running, first.attempt)
    assert await lab.state(id) is LIMITED
    await lab.engine.budgets.reset("team")
    assert [claim.attempt for claim in await claimed(lab)] == [0]


# -- crowds


async def work(lab: Lab, at_once: int) -> int:
    """Works until nothing is ready, each for a token; how many could spend it."""
    paid = 0
    while await lab.engine.grants.eligible("default", limit=1):
        claims = await claimed(lab, at_once)
        answers = await asyncio.gather(*(report(lab, claim, 1) for claim in claims))
        paid += sum(not isinstance(answer, HardBreach) for answer in answers)
        await asyncio.gather(*(lab.complete(claim) for claim in claims))
        await settled(lab)
    return paid


@pytest.mark.rules
async def test_a_thousand_wait_and_ten_may_go(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """No storm: a page is let in, and who of it finds nothing waits again; nobody is stuck"""
    total, page = 1000, 200
    await make(lab)
    await spend(lab, 10)
    await asyncio.gather(*(lab.submit(policy=TEAM) for _ in range(total)))
    assert await work(lab, 500) == 0
    changed = 0
    honest = lab.engine.store.apply

    async def counting(changes: Any) -> Any:
        nonlocal changed
        changed += len(changes)
        return await honest(changes)

    with monkeypatch.context() as counted:
        counted.setattr(lab.engine.store, "apply", counting)
        await lab.engine.budgets.reset("team")
        await settled(lab)
        assert await work(lab, 5) == 10
    assert changed <= 2 * page
    waiting = await lab.engine.store.executions_in(InQueue(budget_queue("team")), total)
    assert len(waiting) == total - 10
    await lab.engine.budgets.define(tokens(100_000))
    await settled(lab)
    left = total - 10 - await work(lab, 500)
    while left:
        await lab.engine.sweep.once()
        done = await work(lab, 500)
        assert done
        left -= done
    assert await used(lab, "team") == [total]


async def test_reservations_keep_others_out_and_let_them_in(lab: Lab) -> None:
    """F-42: what is set aside is taken"""
    await make(lab)
    first = await lab.running(policy=TEAM)
    held = await lab.engine.budgets.reserve(first, {"tokens": 10})
    assert isinstance(held, Reserved)
    id = await lab.submit(policy=TEAM)
    assert await claimed(lab) == []
    assert (await described(lab, id)).blocking_detail == "budget team: 10 of 10 tokens"
    await lab.engine.budgets.settle(first, held.reservation.id, {"tokens": 9})
    assert [claim.id for claim in await claimed(lab)] == [id]


# -- what a budget does


async def test_a_spent_budget_cancels_what_its_flow_has_not_started(lab: Lab) -> None:
    """Q-1, Q-9: on_hard=cancel_pending, by the budget the flow has"""
    drawn = await declare(lab, "a>c", "b>c")
    await make(lab, scope=Scope.FLOW, scope_id=str(drawn.id), on_hard=OnHard.CANCEL_PENDING)
    claim = await drawn.take("a")
    assert await report(lab, claim, 11) == HardBreach(
        "team", "tokens", 0, 10, OnHard.CANCEL_PENDING
    )
    await settle(lab.engine)
    states = await drawn.states()
    assert (states["a"], states["b"], states["c"]) == (
        PublicState.ACTIVE,
        PublicState.CANCELLED,
        PublicState.CANCELLED,
    )
    described_b = await described(lab, drawn["b"])
    assert described_b.cancel_reason == "budget_exhausted: team tokens"
    await lab.complete(claim)
    assert await used(lab, "team") == [0]
    await settle(lab.engine)
    assert isinstance(await spend(lab, 11), HardBreach)  # the flow is over: nothing to cancel


@pytest.mark.parametrize("reserving", [False, True])
async def test_who_names_the_budget_has_its_own_flow_cancelled(lab: Lab, reserving: bool) -> None:
    await make(lab, on_hard=OnHard.CANCEL_PENDING)
    drawn = await declare(lab, "a>b")
    other = await declare(lab, "x")
    claim = await drawn.take("a")
    if reserving:
        answer: Any = await lab.engine.budgets.reserve(claim, {"tokens": 11}, budgets=["team"])
    else:
        answer = await report(lab, claim, 11, budgets=["team"])
    assert isinstance(answer, HardBreach)
    await settle(lab.engine)
    assert (await drawn.states())["b"] is PublicState.CANCELLED
    assert (await other.states())["x"] is PublicState.WAITING


async def test_a_budget_of_an_unknown_flow_refuses_all_the_same(lab: Lab) -> None:
    id = "00000000-0000-0000-0000-000000000001"
    await make(lab, scope=Scope.FLOW, scope_id=id, on_hard=OnHard.CANCEL_PENDING)
    assert isinstance(await spend(lab, 11), HardBreach)
    claim = await lab.running(W1)
    assert isinstance(await report(lab, claim, 11, budgets=["team"]), HardBreach)
