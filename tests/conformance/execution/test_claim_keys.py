"""Claims with a key: a caller that lost the reply asks again and gets what was taken for it."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Invalid, StaleLease, Unavailable
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.queries import ClaimCall, Taken
from tests.kit.lab import W1, W2, Lab
from tests.worker.bench import until

SAME_POOL = WorkerIdentity(W1.id, "w1-b")


def leases(claims: list[Claim]) -> set[tuple[object, int]]:
    return {(claim.uuid, claim.epoch) for claim in claims}


async def test_a_repeat_gets_what_it_holds_at_any_process(lab: Lab, second_lab: Lab) -> None:
    for _ in range(5):
        await lab.submit()
    first = await lab.claim(limit=3, key="k")
    again = await second_lab.claim(limit=3, key="k")
    assert len(first) == 3
    assert leases(again) == leases(first)
    assert [claim.payload for claim in again] == [claim.payload for claim in first]
    assert leases(await lab.claim(limit=9, key="other")).isdisjoint(leases(first))


async def test_what_has_ended_is_not_given_again(lab: Lab) -> None:
    for _ in range(2):
        await lab.submit()
    one, two = await lab.claim(limit=2, key="k")
    await lab.complete(one)
    assert leases(await lab.claim(limit=2, key="k")) == leases([two])
    await lab.complete(two)
    assert await lab.claim(limit=2, key="k") == []
    await lab.submit()
    assert len(await lab.claim(limit=2, key="k")) == 1


@pytest.mark.parametrize("other", [{"worker": W2}, {"worker": SAME_POOL}, {"namespace": "default"}])
async def test_a_key_belongs_to_a_worker_and_its_namespace(lab: Lab, other: dict[str, Any]) -> None:
    await lab.submit()
    assert len(await lab.claim(key="k")) == 1
    assert await lab.claim(key="k", **other) == []


async def test_repeats_at_the_same_time_take_no_more(lab: Lab, second_lab: Lab) -> None:
    for _ in range(20):
        await lab.submit()
    labs = [lab, second_lab] * 4
    answers = await asyncio.gather(*(each.claim(limit=3, key="k") for each in labs))
    held = await lab.claim(limit=3, key="k")
    for answer in answers:
        assert leases(answer) <= leases(held)


async def test_lanes_with_weights(lab: Lab, second_lab: Lab) -> None:
    for lane in ["a", "b", "c"] * 4:
        await lab.submit(lane=lane)
    weights = {"a": 3, "b": 2, "c": 1}
    first = await lab.claim(lanes=weights, limit=6, key="k")
    assert len(first) == 6
    again = await second_lab.claim(lanes=weights, limit=6, key="k")
    assert leases(again) == leases(first)


async def test_a_lost_reply_is_left_to_the_caller(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller repeats at another process; this one must not take the work away again."""
    await lab.submit()
    real = lab.engine.store.claim

    async def lost(call: ClaimCall, now: Millis) -> list[Taken]:
        taken = await real(call, now)
        if taken:
            raise Unavailable("the reply was lost")
        return taken

    monkeypatch.setattr(lab.engine.store, "claim", lost)
    with pytest.raises(Unavailable):
        await lab.claim(key="k", lanes=["default"])
    monkeypatch.undo()
    (claim,) = await second_lab.claim(key="k", lanes=["default"])
    assert await lab.claim(key="other") == []
    await second_lab.complete(claim)


@pytest.mark.inside
async def test_what_a_repeat_got_is_not_handed_back_for_the_first_try(
    lab: Lab, second_lab: Lab
) -> None:
    """The client of one server went away and asks another one, while the first hands back."""
    await lab.submit()
    first = await lab.claim(key="k")
    (again,) = await second_lab.claim(key="k")
    await lab.engine.claims.hand_back(first)
    await second_lab.complete(again)


@pytest.mark.inside
async def test_a_first_try_that_comes_late_does_not_hand_back_what_its_repeat_took(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1: the client of one server went away before its claim was written, and asked another
    one. The first claim then finds the lease of the second: it is not its own to give back."""
    await lab.submit()
    asked, go_on = asyncio.Event(), asyncio.Event()
    real = lab.engine.store.claim

    async def late(call: ClaimCall, now: Millis) -> list[Taken]:
        if call.limit:
            asked.set()
            await go_on.wait()
        return await real(call, now)

    monkeypatch.setattr(lab.engine.store, "claim", late)
    first = asyncio.ensure_future(lab.claim(key="k", lanes=["default"]))
    await asked.wait()
    first.cancel()
    await asyncio.wait({first})
    (claim,) = await second_lab.claim(key="k", lanes=["default"])
    go_on.set()
    await lab.engine.claims.drain()
    await second_lab.complete(claim)


@pytest.mark.inside
async def test_what_a_repeat_finds_while_it_claims_is_not_handed_back_for_the_first_try(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1: the first try is written after its repeat has looked what it holds."""
    await lab.submit()
    first: list[Claim] = []
    real = second_lab.engine.store.claim

    async def beaten(call: ClaimCall, now: Millis) -> list[Taken]:
        if call.limit and not first:
            first.extend(await lab.claim(key="k", lanes=["default"]))
        return await real(call, now)

    monkeypatch.setattr(second_lab.engine.store, "claim", beaten)
    (again,) = await second_lab.claim(key="k", lanes=["default"])
    await lab.engine.claims.hand_back(first)
    await second_lab.complete(again)


@pytest.mark.inside
async def test_a_repeat_that_has_to_ask_again_loses_nothing_of_other_callers(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their claims share a statement with it, and the store is gone right after that: what they
    took reaches them, and waits for no lease to expire."""
    store, asked, go_on = lab.engine.store, asyncio.Event(), asyncio.Event()
    take, take_all = store.claim, store.claim_all

    async def busy(call: ClaimCall, now: Millis) -> list[Taken]:
        if not call.limit:
            return await take(call, now)
        asked.set()
        await go_on.wait()
        return []

    async def gone(*_: object) -> None:
        raise Unavailable("the store is gone")

    async def beaten(calls: list[ClaimCall], now: Millis) -> list[list[Taken]]:
        await second_lab.claim(key="k", lanes=["default"])
        taken = await take_all(calls, now)
        monkeypatch.setattr(store, "apply", gone)
        return taken

    monkeypatch.setattr(store, "claim", busy)
    monkeypatch.setattr(store, "claim_all", beaten)
    under_way = asyncio.ensure_future(lab.claim(W2, lanes=["default"]))
    await asked.wait()
    ids = [await lab.submit() for _ in range(2)]
    repeat = asyncio.ensure_future(lab.claim(key="k", lanes=["default"]))
    other = asyncio.ensure_future(lab.claim(W2, lanes=["default"]))
    (fold,) = lab.engine.claims.calls._folds.values()
    await until(lambda: fold.waiting == 2)
    go_on.set()
    assert await under_way == []
    assert [claim.id for claim in await other] == ids[1:]
    with pytest.raises(Unavailable):
        await repeat
    monkeypatch.undo()
    assert [claim.id for claim in await lab.claim(key="k", lanes=["default"])] == ids[:1]


@pytest.mark.inside
async def test_a_repeat_does_not_get_what_was_handed_back(lab: Lab, second_lab: Lab) -> None:
    await lab.submit()
    (first,) = await lab.claim(key="k")
    await lab.engine.claims.hand_back([first])
    (again,) = await second_lab.claim(key="k")
    assert (again.uuid, again.epoch, again.attempt) == (first.uuid, first.epoch + 1, first.attempt)


@pytest.mark.inside
async def test_what_was_taken_by_id_is_not_handed_back(lab: Lab, second_lab: Lab) -> None:
    await lab.submit()
    id = UUID(int=7)
    first = await lab.claim(id=id)
    (again,) = await second_lab.engine.claims.taken(W1, id)
    await lab.engine.claims.hand_back(first)
    await second_lab.complete(again)


async def test_a_cancelled_claim_is_handed_back(lab: Lab) -> None:
    waiting = asyncio.ensure_future(lab.claim(key="k", max_wait=30))
    while not lab.engine.store.hints.waiting:  # noqa: ASYNC110 - hints are no event
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    await lab.submit()
    assert len(await lab.claim(W2)) == 1


async def test_what_a_budget_refuses_is_not_held(lab: Lab) -> None:
    await lab.engine.budgets.create(Budget(name="team", limits={"calls": Limit(hard=1)}))
    await lab.engine.budgets.spend("team", {"calls": 1})
    await lab.submit(policy={"budget_ids": ["team"]})
    free = await lab.submit()
    (claim,) = await lab.claim(limit=2, key="k")
    assert claim.id == free
    assert leases(await lab.claim(limit=2, key="k")) == leases([claim])


@pytest.mark.rules
@pytest.mark.parametrize("key", [7, b"k", "x" * 1025, "\0", "\ud800"])
async def test_keys_that_are_none(lab: Lab, key: Any) -> None:
    await lab.submit()
    with pytest.raises(Invalid):
        await lab.claim(key=key)
    assert len(await lab.claim(key="")) == 1


# -- what servers ask of the engine beside


async def test_a_handle_renews_without_a_load(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = await lab.running()
    handle = lab.engine.attempts.seal(claim)
    await lab.pass_time(1_000)

    async def load(*args: Any) -> Any:
        raise AssertionError("nothing needs to be loaded")

    monkeypatch.setattr(lab.engine.store, "load", load)
    renewed = await lab.engine.attempts.renew(handle)
    assert renewed.expires_at == lab.clock.now() + claim.ttl
    monkeypatch.undo()
    await lab.engine.claims.revoke(claim.id, reason="x")
    await lab.claim_one(W2)
    with pytest.raises(StaleLease):
        await lab.engine.attempts.renew(handle)


async def test_a_bare_fence_is_compared_as_a_whole(lab: Lab) -> None:
    claim = await lab.running()
    wrong = Owner(claim.lease.id, claim.epoch, new_uuid7(Millis(1), 1))
    with pytest.raises(StaleLease):
        await lab.engine.claims.renew_as(claim.id, wrong, Millis(1_000))


async def test_tags_of_many(lab: Lab) -> None:
    one = await lab.submit(tags={"b.x": "2", "a.x": "1"})
    two = await lab.submit()
    three = await lab.submit(tags={"a.x": "3"})
    missing = new_uuid7(Millis(1), 7)
    found = await lab.engine.views.tags([three.uuid, missing, two.uuid, one.uuid])
    assert found == [{"a.x": "3"}, {}, {}, {"a.x": "1", "b.x": "2"}]
    assert await lab.engine.views.tags([]) == []
    with pytest.raises(Invalid):
        await lab.engine.views.tags(["x"])  # type: ignore[list-item]


async def test_which_runs_are_being_cancelled(lab: Lab) -> None:
    policy = {"cleanup_policy": {"cleanup_timeout_ms": 5_000}}
    one, two = await lab.running(policy=policy), await lab.running()
    await lab.engine.executions.cancel(one.id, reason="withdrawn")
    found = await lab.engine.views.cleanups([one.uuid, two.uuid])
    assert list(found) == [one.uuid]
    assert found[one.uuid].until == lab.clock.now() + 5_000
    assert found[one.uuid].reason == "withdrawn"
    assert await lab.engine.views.cleanups([]) == {}
