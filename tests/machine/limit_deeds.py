"""What can be done with limits: each deed takes two numbers that say to what, and how.

A deed that finds nothing to act on does nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.core.base.errors import FlowFabricError, Invalid, NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import (
    Ended,
    Failure,
    Lost,
    Ready,
    Snapshot,
    Start,
    Suspended,
    Waiting,
    WorkerIdentity,
)
from flowfabric.core.execution.submission import Submission
from flowfabric.core.limit.budget import Budget, Limit, OnHard, Scope, chain, exhausted
from flowfabric.core.limit.budget_gate import STARTS
from flowfabric.core.limit.lane import LaneState
from flowfabric.core.limit.quota import Quota, Rate, Use
from flowfabric.core.limit.spend import Reserved
from flowfabric.core.wait.condition.model import Single
from flowfabric.core.wait.request import Binding, Suspend, Wait
from flowfabric.core.wait.signal import Delivery
from flowfabric.core.wait.suspend import NowSuspended
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.rows.record import BUDGETS
from tests.machine.driver import pick_from
from tests.machine.limit_play import Holding, LimitPlay

T = TypeVar("T")
Deed = Callable[[LimitPlay, int, int, bool], Awaitable[None]]

MOST_EXECUTIONS = 14
WORKER = WorkerIdentity("w", "w-1")
LANES = ("a", "b")
QUOTAS = ("q", "r")
TREE = (("top", None), ("mid", "top"), ("low", "mid"))
LOOSE = "loose"
USES: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("q", ""),),
    (("q", "x"),),
    (("q", "y"),),
    (("r", "x"),),
    (("q", "x"), ("r", "")),
    (("q", ""), ("r", "x")),
)
NAMED = ((), ("low",), ("mid",), ("low", "top"), ("low",))
CAPS = ((1, None), (2, None), (None, 1), (3, 1), (None, None), (None, None))
RATES = (None, None, Rate(1, Millis(700)), Rate(2, Millis(1000)), Rate(3, Millis(1000)))
HARDS = (4, 2, 9, 1, None)
ACTIONS = (OnHard.REFUSE, OnHard.REFUSE, OnHard.SUSPEND, OnHard.WARN)
SPANS = (50, 350, 700, 1000, 3100, 31_000)


# -- definitions


async def define_quota(play: LimitPlay, a: int, b: int, other: bool) -> None:
    cap, per_key = pick_from(CAPS, a)
    quota = Quota(
        name=pick_from(QUOTAS, b),
        concurrency=cap,
        concurrency_per_key=per_key,
        rate=pick_from(RATES, a // 3),
        rate_per_key=pick_from(RATES, b // 3),
    )
    if any(quota.limits):
        await play.ask(lambda engine: engine.quotas.define(quota), other=other)


async def delete_quota(play: LimitPlay, a: int, b: int, other: bool) -> None:
    await play.ask(lambda engine: engine.quotas.delete(pick_from(QUOTAS, a)), other=other)


async def define_budget(play: LimitPlay, a: int, b: int, other: bool) -> None:
    """A new budget, or other limits for one that is there."""
    name, parent = pick_from((*TREE, (LOOSE, None)), a)
    wide = name == "top" and b % 5 == 4
    budget = Budget(
        name=name,
        parent=parent,
        limits={"tokens": Limit(hard=pick_from(HARDS, b)), "cents": Limit(hard=20, soft=4)},
        on_hard=pick_from(ACTIONS, a + b),
        every=Millis(3000) if name == "low" and b % 2 else None,
        scope=Scope.NAMESPACE if wide else None,
        scope_id="default" if wide else "",
    )
    answer = await play.ask(lambda engine: engine.budgets.define(budget), other=other)
    assert not isinstance(answer, FlowFabricError) or isinstance(answer, NotFound), answer


async def reset_budget(play: LimitPlay, a: int, b: int, other: bool) -> None:
    name = pick_from((*TREE, (LOOSE, None)), a)[0]
    await play.ask(lambda engine: engine.budgets.reset(name), other=other)


async def delete_budget(play: LimitPlay, a: int, b: int, other: bool) -> None:
    """One that others are part of stays. Now and then it is made anew at once."""
    if b % 3:
        return
    play.clock.advance(1)
    name = pick_from(TREE[::-1], a)[0]
    answer = await play.ask(lambda engine: engine.budgets.delete(name), other=other)
    assert not isinstance(answer, FlowFabricError) or isinstance(answer, Invalid), answer
    play.clock.advance(1)
    if b % 2:
        await define_budget(play, 2 - a % 3, b, other)


async def steer_lane(play: LimitPlay, a: int, b: int, other: bool) -> None:
    lane, word = pick_from(LANES, a), b % 6
    if word < 3:
        state = ("pause", "drain", "resume")[word]
        await play.ask(lambda engine: getattr(engine.lanes, state)(lane), other=other)
    else:
        await play.ask(lambda engine: engine.lanes.set(lane, concurrency=word - 3), other=other)


# -- submitting and claiming


async def submit(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if len(play.seen) >= MOST_EXECUTIONS:
        return
    uses, budgets = pick_from(USES, a), pick_from(NAMED, b)
    lane = pick_from(LANES, a + b)
    policy = {
        "quotas": [{"quota": quota, "key": key} for quota, key in uses],
        "budget_ids": list(budgets),
        "retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 600}},
        "max_replay_count": 1000,
        "max_reclaim_count": 1000,
    }
    given = Submission(
        kind="job",
        lane=lane,
        policy=policy,
        priority=b % 3,
        delay_until=Millis(play.clock.now() + 400) if a % 7 == 6 else None,
    )
    missing, fresh = _missing(play, uses, budgets), play.fresh()
    answer = await play.ask(
        lambda engine: engine.executions.submit(given, fresh=fresh), other=other
    )
    if isinstance(answer, FlowFabricError):
        assert isinstance(answer, NotFound), answer
        assert missing or not play.calm, f"{answer}: it is there"


async def claim(play: LimitPlay, a: int, b: int, other: bool) -> None:
    lanes = pick_from(((), (), ("a",), ("a", "b")), b)
    ttl = Millis(pick_from((30_000, 30_000, 600), a))
    limit = 1 + a % 4
    settings = dict(play.book.lanes)
    budgets = {one.name: one for one in await play.plain.records.page(BUDGETS, "", 100)}
    found = await play.ask(
        lambda engine: engine.claims.claim(WORKER, lanes=lanes, limit=limit, ttl=ttl), other=other
    )
    assert isinstance(found, list), found
    for one in found:
        play.holdings.append(Holding(one))
        if play.calm:
            await _may_run(play, one, settings, budgets)


async def _may_run(
    play: LimitPlay, claim: Claim, lanes: dict[str, Any], budgets: dict[str, Budget]
) -> None:
    """Nobody interfered: lanes and budgets are as they were before the claim."""
    start, lane = claim.lease.start, lanes.get(claim.snapshot.execution.route.lane)
    if lane is not None:
        assert lane.state is not LaneState.PAUSED, f"{claim.id} of a paused lane was taken"
        draining = lane.state is LaneState.DRAINING
        assert not draining or start is not Start.INITIAL, f"{claim.id} begins in a draining lane"
    if start in STARTS:
        names = await play.other.budgets.attached_to(claim.id)
        for budget in chain(budgets, [name for name in names if name in budgets]):
            assert exhausted(budget) is None, f"{claim.id} begins without {budget.name}"


# -- working


async def complete(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if held := _held(play, a):
        await play.ask(lambda engine: engine.attempts.complete(held.claim), other=other)


async def fail(play: LimitPlay, a: int, b: int, other: bool) -> None:
    failure = Failure("boom", "permanent") if b % 3 == 0 else Failure("boom")
    if held := _held(play, a):
        await play.ask(lambda engine: engine.attempts.fail(held.claim, failure), other=other)


async def delay(play: LimitPlay, a: int, b: int, other: bool) -> None:
    until = Millis(play.clock.now() + pick_from((0, 500), b))
    if held := _held(play, a):
        await play.ask(lambda engine: engine.attempts.delay(held.claim, until), other=other)


async def hand_back(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if held := _held(play, a):
        await play.ask(lambda engine: engine.attempts.hand_back(held.claim), other=other)


async def suspend(play: LimitPlay, a: int, b: int, other: bool) -> None:
    held = _held(play, a)
    if held is None:
        return
    until = Millis(play.clock.now() + 800) if b % 3 == 0 else None
    wait = Wait(condition=Single("go"), bindings=(Binding(id=play.fresh(), key="go"),))
    asked = Suspend(id=play.fresh(), waits=(wait,), until=until)
    answer = await play.ask(
        lambda engine: engine.suspensions.suspend(held.claim, asked), other=other
    )
    if isinstance(answer, NowSuspended):
        [play.tokens[held.claim.uuid]] = await play.other.suspensions.tickets(answer.waitpoints)


# -- spending


async def report(play: LimitPlay, a: int, b: int, other: bool) -> None:
    held = _held(play, a, keep=True)
    if held is None:
        return
    names = await play.other.budgets.attached_to(held.claim.id)
    amounts, key = _amounts(b), str(play.fresh())
    play.book.want(key, names, amounts)
    await play.ask(lambda engine: engine.budgets.report(held.claim, amounts, key=key), other=other)


async def spend(play: LimitPlay, a: int, b: int, other: bool) -> None:
    """Of a budget of its own for nobody, or for an execution; now and then with a key again."""
    names: tuple[str, ...] = ("low",) if a % 2 else (LOOSE,)
    amounts, key = _amounts(b), str(play.fresh())
    if b % 4 == 0 and play.book.wanted:
        key = pick_from(list(play.book.wanted), a)
        names, amounts = play.book.wanted[key][0]
    execution = None
    if names != (LOOSE,):
        if not names or not play.seen:
            return
        execution = pick_from(list(play.seen.values()), a).execution.id
    play.book.want(key, names, amounts)
    await play.ask(
        lambda engine: engine.budgets.spend(names, amounts, execution=execution, key=key),
        other=other,
    )


async def reserve(play: LimitPlay, a: int, b: int, other: bool) -> None:
    held = _held(play, a, keep=True)
    if held is None:
        return
    id, amounts = play.fresh(), _amounts(b)
    named = ("low",) if b % 3 == 0 else None
    answer = await play.ask(
        lambda engine: engine.budgets.reserve(held.claim, amounts, budgets=named, id=id),
        other=other,
    )
    if isinstance(answer, Reserved):
        held.reservations[id] = named


async def settle(play: LimitPlay, a: int, b: int, other: bool) -> None:
    """Now and then once more, and when it is gone."""
    found = _reserving(play, a)
    if found is None:
        return
    held, id = found
    named = held.reservations[id]
    stored = play.book.aside.get(id)
    names = named or await play.other.budgets.attached_to(held.claim.id)
    amounts, key = _amounts(b), f"settle:{id}"
    play.book.want(key, names if stored is None else stored.names, amounts)
    await play.ask(
        lambda engine: engine.budgets.settle(held.claim, id, amounts, budgets=named), other=other
    )
    if b % 2:
        del held.reservations[id]


async def cancel_reservation(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if found := _reserving(play, a):
        held, id = found
        await play.ask(
            lambda engine: engine.budgets.cancel_reservation(held.claim, id), other=other
        )


async def release(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if not play.seen:
        return
    id, name = pick_from(list(play.seen.values()), b).execution.id, pick_from(TREE, a)[0]
    play.book.releasing += 1
    await play.ask(lambda engine: engine.budgets.release(name, id), other=other)
    play.book.releasing -= 1


# -- steering


async def cancel(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if id := _one(play, a, Waiting, Ready, Lost, Suspended):
        await play.ask(lambda engine: engine.executions.cancel(id, reason="no"), other=other)


async def revoke(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if held := _held(play, a, keep=True):
        id = held.claim.id
        await play.ask(lambda engine: engine.claims.revoke(id, reason="slow"), other=other)


async def block(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if id := _one(play, a, Waiting, Ready):
        reason = pick_from(("paused_by_operator", "waiting_for_quota", "waiting_for_budget"), b)
        await play.ask(lambda engine: engine.executions.block(id, reason), other=other)


async def unblock(play: LimitPlay, a: int, b: int, other: bool) -> None:
    blocked = [one for one in play.seen.values() if one.life.blocked is not None]
    if blocked:
        id = pick_from(blocked, a).execution.id
        await play.ask(lambda engine: engine.executions.unblock(id), other=other)


async def replay(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if id := _one(play, a, Ended):
        await play.ask(lambda engine: engine.executions.replay(id), other=other)


async def hurry(play: LimitPlay, a: int, b: int, other: bool) -> None:
    if id := _one(play, a, Waiting, Ready):
        await play.ask(
            lambda engine: engine.executions.change_priority(id, b % 5, anywhere=True), other=other
        )


async def wake(play: LimitPlay, a: int, b: int, other: bool) -> None:
    """A signal, or an operator."""
    id = _one(play, a, Suspended)
    if id is None:
        return
    door = play.tokens.get(id.uuid)
    if door is None or b % 3 == 0:
        await play.ask(lambda engine: engine.executions.resume(id), other=other)
        return
    delivery = Delivery(id=play.fresh(), waitpoint=door.id, name="go")
    await play.ask(lambda engine: engine.signals.deliver(id, delivery, door.token), other=other)


# -- time


async def wait(play: LimitPlay, a: int, b: int, other: bool) -> None:
    play.clock.advance(pick_from(SPANS, a))


async def sweep(play: LimitPlay, a: int, b: int, other: bool) -> None:
    await play.ask(lambda engine: engine.sweep.once(), other=other)


async def trim(play: LimitPlay, a: int, b: int, other: bool) -> None:
    """Forgets queues nobody stands in, and what no window reaches."""
    await play.ask(lambda engine: engine.sweep._swept.limits.trim(), other=other)


# -- whom


def _held(play: LimitPlay, pick: int, *, keep: bool = False) -> Holding | None:
    if not play.holdings:
        return None
    number = pick % len(play.holdings)
    return play.holdings[number] if keep else play.holdings.pop(number)


def _reserving(play: LimitPlay, pick: int) -> tuple[Holding, UUID] | None:
    found = [(held, id) for held in play.holdings for id in held.reservations]
    return pick_from(found, pick) if found else None


def _one(play: LimitPlay, pick: int, *states: type) -> ExecutionId | None:
    fit: list[Snapshot] = [one for one in play.seen.values() if isinstance(one.state, states)]
    return pick_from(fit, pick).execution.id if fit else None


def _missing(play: LimitPlay, uses: Sequence[tuple[str, str]], budgets: Sequence[str]) -> bool:
    known = all(Use(quota=quota).quota in play.book.quotas for quota, _ in uses)
    return not known or not all(name in play.book.accounts for name in budgets)


def _amounts(number: int) -> dict[str, int]:
    return {"tokens": (1, 2, 1, 3, 1)[number % 5], "cents": number % 3}


DEFINING: list[Deed] = [define_quota, define_quota, delete_quota, define_budget, define_budget]
DEFINING += [reset_budget, delete_budget, steer_lane, steer_lane]
WORKING: list[Deed] = [complete, complete, fail, fail, delay, hand_back, suspend]
SPENDING: list[Deed] = [report, spend, spend, reserve, reserve, reserve, settle, settle]
SPENDING += [cancel_reservation, release, delete_budget, define_budget]
STEERING: list[Deed] = [cancel, revoke, block, unblock, replay, hurry, wake, wake]
TIMELY: list[Deed] = [wait, wait, sweep, trim]
EVERY: list[Deed] = [
    submit,
    submit,
    claim,
    claim,
    claim,
    claim,
    claim,
    *DEFINING,
    *WORKING,
    *SPENDING,
    *STEERING,
    *TIMELY,
]
