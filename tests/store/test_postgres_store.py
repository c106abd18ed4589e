"""What is submitted, and who gets it."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, grant, lease, operator
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Taking
from flowfabric.core.execution.model import (
    Failure,
    Lost,
    Ready,
    Snapshot,
    Start,
    Waiting,
)
from flowfabric.core.execution.step import Step
from flowfabric.core.limit.lane import Lane, LaneState
from flowfabric.store.hints import Topic, Topics
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.wake import FIRST_LOOK, LAST_LOOK, SecondLook
from flowfabric.store.queries import NEWEST, EventQuery, SideWrite
from flowfabric.store.rows.record import LANES
from tests.kit.snapshots import lease_of, owner_of
from tests.store.postgres_bench import KEPT_AN_HOUR, OPERATOR, W1, W2, Bench, id_of, step, uuids

# -- submit


async def test_what_was_submitted_can_be_loaded(bench: Bench) -> None:
    creations = [
        bench.creation(),
        bench.creation("other", payload=b"\0\xff", priority=7, creator="me", lane="b"),
        bench.creation(delay_until=bench.now + 5),
        bench.creation(deadline_at=bench.now + 9, policy=KEPT_AN_HOUR),
        bench.creation(policy={"routing_requirements": {"required_capabilities": ["gpu"]}}),
    ]
    assert await bench.store.submit(creations, bench.now) == [None] * 5
    loaded = await bench.store.load([c.snapshot.execution.uuid for c in creations])
    assert loaded == {c.snapshot.execution.uuid: c.snapshot for c in creations}


@pytest.mark.parametrize(
    "members",
    [
        [{}, {}, {}],
        [{"priority": 3}, {"priority": 3}],
        [{"priority": 3}, {"priority": 3}, {"priority": 2}],
        [{}, {"delay_until": 2_000_000_000_000}, {}],
        [{"delay_until": 2_000_000_000_000}] * 2,
        [{"deadline_at": 2_000_000_000_000}, {}],
        [{"lane": "a"}, {"lane": "a"}, {"lane": "b"}],
    ],
)
async def test_what_all_of_a_batch_share_is_written_for_each(
    bench: Bench, members: list[dict[str, Any]]
) -> None:
    creations = [bench.creation(**each) for each in members]
    assert await bench.store.submit(creations, bench.now) == [None] * len(members)
    loaded = await bench.store.load([c.snapshot.execution.uuid for c in creations])
    assert loaded == {c.snapshot.execution.uuid: c.snapshot for c in creations}


async def test_an_id_is_created_once(bench: Bench) -> None:
    first = await bench.submit(payload=b"1")
    again = bench.creation(id=id_of(first), payload=b"2")
    fresh = bench.creation()
    assert await bench.store.submit([fresh, again], bench.now) == [None, id_of(first)]
    detail = await bench.store.detail(first.execution.uuid)
    assert detail is not None
    assert detail.payload == b"1"


async def test_a_minted_id_that_exists_all_the_same_is_found(bench: Bench) -> None:
    """No look for conflicts is taken at minted ids, so the statement fails and is sent with one."""
    old, new = bench.creation(), bench.creation()
    assert old.minted
    assert new.minted
    assert await bench.store.submit([old], bench.now) == [None]
    answers = await bench.store.submit([old, new], bench.now)
    assert answers == [old.snapshot.execution.id, None]
    both = uuids([old.snapshot, new.snapshot])
    assert set(await bench.store.load(both)) == set(both)


async def test_a_live_key_finds_the_execution_it_was_given_to(bench: Bench) -> None:
    first = await bench.submit(key="k", lane="a")
    again = bench.creation(key="k", lane="b")
    elsewhere = bench.creation(key="k", namespace="another")
    found = await bench.store.submit([again, elsewhere], bench.now)
    assert found == [id_of(first), None]
    assert again.snapshot.execution.uuid not in await bench.store.load(
        [again.snapshot.execution.uuid]
    )


async def test_a_member_of_a_flow_is_found_by_the_id_it_has_there(bench: Bench) -> None:
    creation = bench.creation()
    execution = replace(creation.snapshot.execution, flow=bench.fresh())
    member = replace(creation, snapshot=replace(creation.snapshot, execution=execution))
    assert await bench.store.submit([member], bench.now) == [None]
    assert await bench.store.submit([member], bench.now) == [execution.id]


async def test_the_key_is_asked_before_the_id(bench: Bench) -> None:
    keyed, other = await bench.submit(key="k"), await bench.submit()
    both = bench.creation(key="k", id=id_of(other))
    assert await bench.store.submit([both], bench.now) == [id_of(keyed)]


async def test_a_submission_refused_for_its_id_takes_no_key(bench: Bench) -> None:
    first = await bench.submit()
    assert await bench.store.submit([bench.creation(key="k", id=id_of(first))], bench.now) == [
        id_of(first)
    ]
    assert await bench.store.submit([bench.creation(key="k")], bench.now) == [None]


async def test_a_key_whose_window_has_passed_is_taken_over(bench: Bench) -> None:
    first = bench.creation(key="k")
    await bench.store.submit([first], bench.now)
    bench.clock.advance(first.key_until - bench.now - 1)
    assert await bench.store.submit([bench.creation(key="k")], bench.now) == [id_of(first.snapshot)]
    bench.clock.advance(1)
    second = await bench.submit(key="k")
    assert await bench.store.submit([bench.creation(key="k")], bench.now) == [id_of(second)]
    assert len(await bench.claim(9)) == 2


async def test_of_many_rivals_for_a_key_one_creates_and_all_learn_its_id(bench: Bench) -> None:
    others = [await bench.other_store() for _ in range(3)]
    creations = [bench.creation(key="k") for _ in range(4)]
    stores = [bench.store, *others]
    answers = await asyncio.gather(
        *(s.submit([c], bench.now) for s, c in zip(stores, creations, strict=True))
    )
    winners = [c for c, (a,) in zip(creations, answers, strict=True) if a is None]
    assert len(winners) == 1
    losers = [a for (a,) in answers if a is not None]
    assert losers == [id_of(winners[0].snapshot)] * 3
    assert len(await bench.claim(9)) == 1


async def test_of_many_rivals_for_an_id_one_creates(bench: Bench) -> None:
    others = [await bench.other_store() for _ in range(3)]
    id = ExecutionId.solo("default", bench.fresh())
    answers = await asyncio.gather(
        *(s.submit([bench.creation(id=id)], bench.now) for s in (bench.store, *others))
    )
    assert sorted(map(repr, answers)) == sorted(map(repr, [[None]] + [[id]] * 3))


# -- claim


@pytest.mark.parametrize("policy", [None, {"timeout_policy": {"attempt_timeout_ms": 500}}])
async def test_a_claim_does_what_the_rule_says(bench: Bench, policy: object) -> None:
    """Every way an execution comes to a claim, compared with `core.execution.lease.take`."""
    retry = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 0}}}
    fresh = await bench.submit(policy=policy)
    assert await taken_by_rule(bench, fresh) is EventKind.CLAIMED
    held = await bench.load(fresh)
    paused = await bench.apply(attempt.hand_back(held, bench.now, owner_of(held)))
    assert await taken_by_rule(bench, paused) is EventKind.RESUMED
    held = await bench.load(fresh)
    lost = await bench.apply(lease.revoke(held, bench.now, reason="test"))
    assert await taken_by_rule(bench, lost) is EventKind.RECLAIMED
    held = await bench.load(fresh)
    ended = await bench.apply(operator.cancel(held, bench.now, OPERATOR, "test"))
    replayed = await bench.apply(operator.replay(ended, bench.now))
    assert await taken_by_rule(bench, replayed) is EventKind.CLAIMED
    held = await bench.load(fresh)
    await bench.apply(operator.cancel(held, bench.now, OPERATOR, "make room"))
    failing = await bench.running(policy=retry)
    change = attempt.fail(failing, bench.now, owner_of(failing), Failure("boom"))
    retried = await bench.apply(change)
    if isinstance(retried.state, Waiting):
        bench.clock.advance(1_000_000)
        retried = await bench.apply(operator.due(retried, bench.now, 0.0, Millis(0), UUID(int=7)))
    assert isinstance(retried.state, Ready)
    assert retried.state.next.start is Start.RETRY
    assert await taken_by_rule(bench, retried) is EventKind.CLAIMED


async def taken_by_rule(bench: Bench, before: object) -> EventKind:
    """Claims the only ready execution and compares everything with the rule."""
    snapshot = before
    assert hasattr(snapshot, "state")
    assert isinstance(snapshot.state, Ready | Lost)
    bench.clock.advance(10)
    call = bench.call()
    cursor = (await bench.store.events(EventQuery(after=NEWEST))).cursor
    (taken,) = await bench.store.claim(call, bench.now)
    taking = Taking(call.id, call.worker, call.ttl)
    rule = lease.take(snapshot, bench.now, snapshot.state.next, taking)  # type: ignore[arg-type]
    assert taken.snapshot == rule.after == await bench.load(taken.snapshot)
    (event,) = (await bench.store.events(EventQuery(after=cursor))).events
    (expected,) = rule.events
    assert (event.at, event.kind, event.epoch, event.attempt, event.worker, event.detail) == (
        expected.at, expected.kind, expected.epoch,
        expected.attempt, expected.worker, expected.detail,
    )  # fmt: skip
    return event.kind


async def test_the_best_come_first_over_all_routes(bench: Bench) -> None:
    low = await bench.submit(lane="a", priority=1)
    high = await bench.submit(lane="b", priority=2)
    bench.clock.advance(1)
    late = await bench.submit(lane="a", priority=2)
    assert uuids(await bench.claim(2)) == uuids([high, late])
    assert uuids(await bench.claim(2)) == uuids([low])


async def test_a_claim_takes_only_what_it_asks_for(bench: Bench) -> None:
    gpu = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    mine = await bench.submit(lane="a", namespace="n")
    await bench.submit(lane="b", namespace="n")
    await bench.submit(lane="a", namespace="m")
    needy = await bench.submit(lane="a", namespace="n", policy=gpu)
    other_kind = await bench.submit(kind="other", lane="a", namespace="n")
    asked: dict[str, Any] = {"lanes": ("a",), "namespace": "n"}
    assert await bench.claim(9, **asked, kinds=frozenset({"unheard of"})) == []
    assert uuids(await bench.claim(9, **asked, kinds=frozenset({"other"}))) == uuids([other_kind])
    assert uuids(await bench.claim(9, **asked)) == uuids([mine])
    offered = frozenset({"gpu", "more"})
    assert uuids(await bench.claim(9, **asked, capabilities=offered)) == uuids([needy])
    assert len(await bench.claim(9)) == 2


async def test_a_paused_lane_gives_nothing_until_it_is_opened(bench: Bench) -> None:
    await bench.store.records.put(LANES, Lane(name="a", state=LaneState.PAUSED), 0)
    await bench.submit(lane="a")
    open_lane = await bench.submit(lane="b")
    assert uuids(await bench.claim(9)) == uuids([open_lane])
    await bench.store.records.put(LANES, Lane(name="a"), 1)
    assert len(await bench.claim(9)) == 1


async def test_a_hold_keeps_an_execution_for_one_worker_until_it_runs_out(bench: Bench) -> None:
    submitted = await bench.submit()
    grantee = grant.Grantee("w2", frozenset(), Millis(100))
    held = await bench.apply(grant.issue_grant(submitted, bench.now, grantee))
    assert await bench.load(held) == held
    assert await bench.claim(worker=W1) == []
    assert uuids(await bench.claim(worker=W2)) == uuids([held])
    submitted = await bench.submit()
    await bench.apply(grant.issue_grant(submitted, bench.now, grantee))
    bench.clock.advance(100)
    assert uuids(await bench.claim(worker=W1)) == uuids([submitted])


async def test_a_claim_learns_routes_that_other_processes_made(bench: Bench) -> None:
    other = await bench.other_store()
    assert await bench.claim() == []
    creation = bench.creation(lane="new")
    assert await other.submit([creation], bench.now) == [None]
    assert uuids(await bench.claim(5)) == uuids([creation.snapshot])


async def test_two_claimers_share_and_take_nothing_twice(bench: Bench) -> None:
    other = await bench.other_store()
    submitted = await bench.submit_many(60)
    halves = await asyncio.gather(
        *(store.claim(bench.call(20), bench.now) for store in (bench.store, other, bench.store))
    )
    taken = [item.snapshot.execution.uuid for half in halves for item in half]
    taken += uuids(await bench.claim(60))
    assert sorted(taken) == sorted(uuids(submitted))


async def test_rows_another_claimer_has_locked_are_skipped(bench: Bench) -> None:
    first, second = await bench.submit_many(2)
    rival = await bench.raw()
    async with rival.transaction():
        await rival.execute(
            "select 1 from flowfabric.ready where id = $1 for update", first.execution.uuid
        )
        assert uuids(await bench.claim(2)) == uuids([second])
    assert uuids(await bench.claim(2)) == uuids([first])


async def lock_first(rival: Connection, count: int) -> None:
    """As a claim of that many that is under way."""
    await rival.execute(
        "select 1 from flowfabric.ready order by rank, id limit $1 for update", count
    )


async def test_a_claim_takes_what_is_behind_the_rows_of_another_one(bench: Bench) -> None:
    """Two workers with hundreds of slots each: the second finds as many as it asks for."""
    submitted = await bench.submit_many(400)
    rival = await bench.raw()
    async with rival.transaction():
        await lock_first(rival, 250)
        assert uuids(await bench.claim(150)) == uuids(submitted[250:])


async def test_a_claim_of_one_run_gets_past_all_that_another_one_takes(bench: Bench) -> None:
    """A worker with one slot beside one with hundreds."""
    submitted = await bench.submit_many(250)
    rival = await bench.raw()
    async with rival.transaction():
        await lock_first(rival, 249)
        assert uuids(await bench.claim()) == uuids(submitted[249:])


async def test_callers_look_again_where_a_claim_left_rows_to_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hint tells that there are more, and the next poll is a second away. Claims that end
    meanwhile share the next look. Looks become rare while claims take nothing."""
    await bench.submit_many(500)
    rival, woken, looks = await bench.raw(), list[Topics](), list[Callable[[], object]]()
    loop, delays, expected = asyncio.get_running_loop(), list[float](), list[float]()
    call_later = loop.call_later

    def hold(delay: float, callback: Any, *args: Any, **more: Any) -> asyncio.TimerHandle:
        timer = call_later(delay, callback, *args, **more)
        if getattr(callback, "__func__", None) is SecondLook._look:
            timer.cancel()
            delays.append(delay)
            looks.append(partial(callback, *args))
        return timer

    async def claim_nothing() -> None:
        async with rival.transaction():
            await lock_first(rival, 500)
            assert await bench.claim() == await bench.claim(2) == []
            (look,) = looks
            looks.clear()
            look()
            assert woken == [Topic.WORK] * len(delays)

    with monkeypatch.context() as patch:
        patch.setattr(bench.store.hints, "wake", woken.append)
        patch.setattr(loop, "call_later", hold)
        for number in range(8):
            await claim_nothing()
            expected.append(min(LAST_LOOK, FIRST_LOOK * 2**number))
        assert delays == expected
        assert len(await bench.claim()) == 1
        await claim_nothing()
        assert delays[-1] == FIRST_LOOK


async def test_a_repeated_call_returns_what_it_took_and_fills_up(bench: Bench) -> None:
    first, second, third = await bench.submit_many(3)
    call = bench.call(2)
    taken = await bench.store.claim(call, bench.now)
    again = await bench.store.claim(replace(call, repeated=True), bench.now)
    assert again == [replace(item, again=True) for item in taken]
    assert uuids(item.snapshot for item in taken) == uuids([first, second])
    more = await bench.store.claim(replace(call, repeated=True, limit=3), bench.now)
    assert uuids(item.snapshot for item in more) == uuids([first, second, third])


async def test_a_worker_of_very_many_routes_gets_everything_in_turn(bench: Bench) -> None:
    creations = [bench.creation(lane=f"lane-{n}") for n in range(150)]
    await bench.store.submit(creations, bench.now)
    taken: list[UUID] = []
    while claimed := await bench.claim(50):
        taken += uuids(claimed)
    assert sorted(taken) == sorted(uuids(c.snapshot for c in creations))


async def test_a_claim_brings_the_payload(bench: Bench) -> None:
    creation = bench.creation(payload=bytes(range(256)) * 100)
    await bench.store.submit([creation], bench.now)
    (taken,) = await bench.store.claim(bench.call(), bench.now)
    assert taken.payload == creation.payload


async def handed_back(bench: Bench, *steps: Step) -> Snapshot:
    """A run that has recorded steps and waits to be taken again."""
    held = await bench.running()
    lease = lease_of(held)
    writes = [
        SideWrite(held.execution.uuid, lease.id, held.head.epoch, step=each) for each in steps
    ]
    await bench.store.write_progress(writes, bench.now)
    return await bench.apply(attempt.hand_back(held, bench.now, owner_of(held)))


async def test_a_claim_brings_the_steps_of_the_generation_that_goes_on(bench: Bench) -> None:
    """In order, however they were written; a first attempt has none."""
    await handed_back(
        bench, step(1, "mail"), step(0, "charge"), replace(step(0, "charge"), generation=1)
    )
    await bench.submit()
    began, fresh = await bench.store.claim(bench.call(2), bench.now)
    assert began.steps == (step(0, "charge"), step(1, "mail"))
    assert fresh.steps is None


async def test_a_claim_from_a_lane_with_a_concurrency_brings_the_steps_too(bench: Bench) -> None:
    await handed_back(bench, step(0))
    await bench.store.records.put(LANES, Lane(name="default", concurrency=1), 0)
    (taken,) = await bench.store.claim(bench.call(), bench.now)
    assert taken.steps == (step(0),)


@pytest.mark.parametrize(
    ("count", "size", "brought"), [(32, 512, True), (33, 1, False), (2, 8_193, False)]
)
async def test_a_claim_leaves_many_or_large_steps_to_be_read(
    bench: Bench, count: int, size: int, brought: bool
) -> None:
    steps = [step(n, f"step{n}", bytes(size)) for n in range(count)]
    held = await handed_back(bench, *steps)
    (taken,) = await bench.store.claim(bench.call(), bench.now)
    assert taken.steps == (tuple(steps) if brought else None)
    assert await bench.store.steps([(held.execution.uuid, 0)]) == [steps]


async def test_a_claim_that_is_repeated_leaves_the_steps_to_be_read(bench: Bench) -> None:
    """Its first try may have recorded more since."""
    await handed_back(bench, step(0))
    call = bench.call()
    (first,) = await bench.store.claim(call, bench.now)
    (again,) = await bench.store.claim(replace(call, repeated=True), bench.now)
    assert (first.steps, again.steps) == ((step(0),), None)
    assert again.snapshot == first.snapshot
