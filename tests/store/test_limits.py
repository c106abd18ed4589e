"""What every store keeps of quotas and the queues before them, and how work is let through."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import delay, fail
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import lose
from flowfabric.core.execution.model import Active, Failure, Gate, Ready, Snapshot
from flowfabric.core.execution.operator import change_priority
from flowfabric.core.execution.submission import Creation
from flowfabric.core.limit import release as rules
from flowfabric.core.limit.at_submission import Admissions, at_submission
from flowfabric.core.limit.budget import Exhausted
from flowfabric.core.limit.budget_gate import turn_away
from flowfabric.core.limit.quota import Quota, Rate, Use, budget_queue, queue_of
from flowfabric.core.limit.release import Move, OpenLine, Release, StartsBack
from flowfabric.core.wait.resume import resume
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.queries import Crowd, InQueue, LaneCounts, QueueCount, WaitCount
from flowfabric.store.rows.record import QUOTAS
from tests.kit.limiting import known_quota
from tests.kit.situations import RETRY, suspension
from tests.kit.snapshots import lease_of, owner_of
from tests.store.limit_bench import (
    FAR,
    Bench,
    candidate,
    freed,
    move,
    queue,
    uses_of,
    uuid_of,
    uuids,
)

MINUTE = Millis(60_000)


@pytest.fixture
async def bench(store: Store, clock: ManualClock) -> AsyncIterator[Bench]:
    await store.migrate()
    yield Bench(store, clock)
    await store.close()


# -- quotas


async def test_a_quota_is_kept_whole_and_changed_only_by_who_knows_it(bench: Bench) -> None:
    store = bench.store
    full = Quota(
        name="naïve 鍵",
        concurrency=3,
        concurrency_per_key=2,
        rate=Rate(100, MINUTE),
        rate_per_key=Rate(5, Millis(30_000)),
        version=77,
        created_at=Millis(5),
        updated_at=Millis(6),
        unknown={"later": [1]},
    )
    assert not await store.records.put(QUOTAS, full, 1)
    assert await store.records.put(QUOTAS, full, 0)
    assert await store.records.get(QUOTAS, [full.name, "b"]) == {full.name: full}
    assert not await store.records.put(QUOTAS, replace(full, concurrency=9), 0)
    assert not await store.records.put(QUOTAS, replace(full, concurrency=9), 2)
    less = Quota(name=full.name, concurrency=4)
    assert await store.records.put(QUOTAS, less, 77)
    assert await store.records.get(QUOTAS, [full.name]) == {full.name: replace(less, version=78)}
    assert await store.records.get(QUOTAS, []) == {}


async def test_a_dropped_quota_takes_its_admissions_along_and_leaves_its_queues(
    bench: Bench,
) -> None:
    """Whoever waits is found without it, and whoever runs is counted when it comes again."""
    for name in ("a", "b"):
        await bench.quota(name, concurrency=5, rate=Rate(9, MINUTE))
        await bench.running({name: "k"})
        await bench.one({name: "k"})
    await bench.through(admissions={("a", ""): 1, ("b", ""): 1})
    assert await bench.store.records.drop(QUOTAS, "a")
    assert not await bench.store.records.drop(QUOTAS, "a")
    assert not await bench.store.records.drop(QUOTAS, "never")
    assert list(await bench.store.records.get(QUOTAS, ["a", "b"])) == ["b"]
    standing = await bench.standing("a")
    assert [len(line.waiting) for line in standing.lines] == [1]
    assert (standing.quotas, standing.admitted, list(standing.held)) == ({}, {}, [])
    await bench.quota("a", concurrency=5, rate=Rate(9, MINUTE))
    standing = await bench.standing("a")
    assert (standing.admitted, list(standing.held)) == ({}, [(uses_of(a="k"), 1)])
    assert ("b", "") in (await bench.standing("b")).admitted


# -- the rows carry their queue


async def test_a_slot_is_being_ready_or_running(bench: Bench) -> None:
    """Whatever happens to a limited execution, its queue is there exactly while it has a slot."""

    async def slots_after(change: Change[Any]) -> int:
        await bench.write(change)
        return await bench.slots(a="k")

    waiting = await bench.one({"a": "k"}, policy=RETRY)
    assert await bench.claim() == []
    assert await bench.slots(a="k") == 0
    await bench.through(waiting)
    assert await bench.slots(a="k") == 1
    (held,) = await bench.claim()
    assert await bench.slots(a="k") == 1
    assert await slots_after(lose(held, bench.now, lease_of(held), revoked=False)) == 1
    (held,) = await bench.claim()
    assert await slots_after(suspension(held, bench.now)) == 0
    assert await slots_after(resume(await bench.load(held), bench.now)) == 0
    assert [item.starts for item in (await bench.standing("a")).lines[0].waiting] == [False]
    await bench.through(await bench.load(held))
    (held,) = await bench.claim()
    assert await bench.slots(a="k") == 1
    later = Millis(bench.now + 10_000)
    assert await slots_after(delay(held, bench.now, owner_of(held), later)) == 0


async def test_who_ends_fails_or_is_turned_away_gives_its_slot_back(bench: Bench) -> None:
    ending, failing, poor = [await bench.running({"a": "k"}, policy=RETRY) for _ in range(3)]
    assert await bench.slots(a="k") == 3
    await bench.store.end([bench.completing(ending)], bench.now)
    assert await bench.slots(a="k") == 2
    await bench.write(fail(failing, bench.now, owner_of(failing), Failure("boom")))
    assert await bench.slots(a="k") == 1
    why = Exhausted("team", "tokens", 5, 5)
    await bench.write(turn_away(poor, bench.now, lease_of(poor), why))
    assert await bench.slots(a="k") == 0
    assert await bench.store.executions_in(InQueue(budget_queue("team")), 9) == [uuid_of(poor)]
    assert await bench.store.executions_in(InQueue(queue(a="k")), 9) == []


# -- what a release decides on


async def test_lines_are_those_that_are_not_empty_the_longest_unserved_first(
    bench: Bench,
) -> None:
    await bench.quota("a", concurrency=9)
    for key in ("x", "y", "z", "gone"):
        waiting = await bench.submit(2, {"a": key})
    await bench.write(*(bench.cancelling(snapshot) for snapshot in waiting))
    turns = {("a", queue(a="x")): 7, ("a", queue(a="y")): 5}
    await bench.through(turns=turns)
    lines = (await bench.standing("a")).lines
    assert [(line.uses[0].key, line.turn) for line in lines] == [("z", 0), ("y", 5), ("x", 7)]
    assert [line.id for line in lines] == [queue(a=key) for key in ("z", "y", "x")]
    assert [line.id for line in (await bench.standing("a", lines=2)).lines] == [
        queue(a="z"),
        queue(a="y"),
    ]
    asked = (queue(a="x"), queue(a="y"), queue(a="x"), queue(a="never"), queue(b="x"))
    assert [line.turn for line in (await bench.standing("a", asked)).lines] == [5, 7]
    assert (await bench.standing("a", ())).lines == []
    nothing = await bench.standing("unheard of")
    assert (nothing.quotas, list(nothing.lines), list(nothing.held)) == ({}, [], [])


async def test_a_line_gives_its_best_first(bench: Bench) -> None:
    first, second, third = await bench.submit(3, {"a": "x"})
    await bench.write(change_priority(third, bench.now, 9, anywhere=True))
    best = await bench.load(third)
    (line,) = (await bench.standing("a", depth=2)).lines
    assert line.waiting == [candidate(best), candidate(first)]
    (line,) = (await bench.standing("a")).lines
    assert line.waiting == [candidate(best), candidate(first), candidate(second)]
    assert line.uses == uses_of(a="x")


async def test_a_release_knows_all_quotas_of_its_lines_and_who_holds_their_slots(
    bench: Bench,
) -> None:
    quota = await bench.quota("a", concurrency=2)
    keyed = await bench.quota("b", concurrency_per_key=1)
    await bench.quota("free", rate=Rate(9, MINUTE))
    for uses in ({"a": "1"}, {"a": "2"}, {"b": "x"}, {"b": "y"}, {"free": ""}, {"other": ""}):
        await bench.running(uses)
    ready = await bench.one({"a": "1"})
    await bench.through(ready)
    await bench.one({"a": "1", "b": "x", "free": "", "deleted": ""})
    standing = await bench.standing("a")
    assert standing.quotas.keys() == {"a", "b", "free"}
    assert standing.quotas["a"] == quota
    assert standing.quotas["b"] == keyed
    held = {queue_of(uses): count for uses, count in standing.held}
    assert held == {queue(a="1"): 2, queue(a="2"): 1, queue(b="x"): 1}
    assert len(standing.held) == 3
    await bench.one({"free": ""})
    only_rate = await bench.standing("free", (queue(free=""),))
    assert list(only_rate.held) == []
    assert only_rate.quotas.keys() == {"free"}


# -- lines of keys


async def test_lines_of_keys_are_served_as_far_as_their_keys_have_room(bench: Bench) -> None:
    quota = await bench.quota("a", concurrency_per_key=2)
    for _ in range(2):
        await bench.running({"a": "full"})
    await bench.running({"a": "half"})
    waiting = {key: await bench.submit(3, {"a": key}) for key in ("full", "half", "free")}
    await bench.store.put_queues([(queue(a="idle"), uses_of(a="idle"))])
    asked = [queue(a=key) for key in ("full", "half", "free", "idle", "unknown")]
    served = await bench.serve("a", *asked)
    assert served is not None
    assert (served.moved, served.left) == (3, [])
    assert served.version == await bench.version("a") == quota.version + 1
    rooms = {"full": 0, "half": 0, "free": 0, "idle": 2}
    assert served.room == {queue(a=key): room for key, room in rooms.items()}
    assert len(await bench.ready(*waiting["full"])) == 0
    assert await bench.ready(*waiting["half"]) == [await bench.load(waiting["half"][0])]
    assert len(await bench.ready(*waiting["free"][:2])) == 2
    view = await bench.standing("a")
    assert view.served == {"a": served.turn}


async def test_a_look_at_lines_moves_the_version_also_if_it_admits_no_run(bench: Bench) -> None:
    """Another process knows these lines as full: it must not go on to do so."""
    await bench.quota("a", concurrency_per_key=2)
    await bench.running({"a": "x"})
    before = await bench.version("a")
    served = await bench.serve("a", queue(a="x"))
    assert served is not None
    assert (served.moved, served.room) == (0, {queue(a="x"): 1})
    assert served.version == await bench.version("a") == before + 1


async def test_lines_are_served_as_the_core_says(bench: Bench) -> None:
    """In this order and at these moments, also after a release that is ahead of the clock; what is
    more than the most waits."""
    quota = await bench.quota("a", concurrency_per_key=3)
    runs: list[Snapshot] = []
    for key in ("x", "y", "z", "x", "y", "x", "x"):
        runs.append(await bench.one({"a": key}, priority=len(runs) % 2))
    lines = [queue(a=key) for key in ("x", "y", "z")]
    for most in (4, 99):
        waiting = [each for each in runs if not await bench.ready(each)]
        view = await bench.standing("a", tuple(sorted(lines)))
        held = {uses[0].key: count for uses, count in view.held}
        open_lines = [
            OpenLine(
                line.id,
                line.turn,
                [
                    (each.rank, each.uuid.bytes)
                    for each in line.waiting[: 3 - held.get(line.uses[0].key, 0)]
                ],
            )
            for line in view.lines
        ]
        latest = rules.latest_turn(quota, view.served.get("a"))
        expected = rules.serve(open_lines, latest, bench.now, most)
        served = await bench.serve("a", *lines, most=most)
        assert served is not None
        assert served.moved == len(expected.moves)
        assert sorted(served.left) == sorted(
            line.queue
            for line in open_lines
            if not {id for _, id in line.waiting} <= {id for id, _ in expected.moves}
        )
        found = await bench.ready(*waiting)
        assert {each.execution.uuid.bytes: each.admitted_at for each in found} == dict(
            expected.moves
        )
        assert served.turn // rules.TURNS == expected.turn // rules.TURNS
        assert (await bench.standing("a")).served == {"a": served.turn}


async def test_slots_of_a_key_are_counted_in_all_its_lines(bench: Bench) -> None:
    await bench.quota("a", concurrency_per_key=1)
    await bench.quota("b", concurrency_per_key=9)
    await bench.running({"a": "x", "b": ""})
    await bench.one({"a": "x"})
    served = await bench.serve("a", queue(a="x"))
    assert served is not None
    assert (served.moved, served.room) == (0, {queue(a="x"): 0})


@pytest.mark.parametrize(
    "limits",
    [
        {"concurrency_per_key": 1, "concurrency": 9},
        {"concurrency_per_key": 1, "rate": Rate(9, MINUTE)},
        {"concurrency_per_key": 1, "rate_per_key": Rate(9, MINUTE)},
        {"rate_per_key": Rate(9, MINUTE)},
        {},
    ],
)
async def test_a_quota_with_other_limits_needs_a_view(bench: Bench, limits: dict[str, Any]) -> None:
    if limits:
        await bench.quota("a", **limits)
    (run,) = await bench.submit(1, {"a": "x"})
    assert await bench.serve("a", queue(a="x")) is None
    assert not await bench.ready(run)


# -- admission at submission


def admissions(versions: dict[str, int], *creations: Creation) -> Admissions:
    """Creations for the key x of quota a that are admitted now."""
    snapshots = [creation.snapshot for creation in creations]
    known = {"a": known_quota(1, {queue(a="x"): 9})}
    now = snapshots[0].execution.created_at
    return replace(at_submission(snapshots, now, known, ()), versions=versions)


async def test_new_runs_are_admitted_in_the_commit_that_creates_them(bench: Bench) -> None:
    quota = await bench.quota("a", concurrency_per_key=2)
    await bench.store.put_queues([(queue(a="x"), uses_of(a="x"))])
    first, second = bench.creation({"a": "x"}), bench.creation({"a": "x"})
    plain = bench.creation()
    given = admissions({"a": quota.version}, first)
    answer = await bench.store.submit_and_admit([first, second, plain], given, bench.now)
    assert answer == ([None, None, None], True)
    ready = await bench.ready(first.snapshot, second.snapshot, plain.snapshot)
    assert ready == [given.admitted[uuid_of(first.snapshot).int], plain.snapshot]
    assert await bench.load(second.snapshot) == second.snapshot
    assert await bench.slots(a="x") == 1
    assert await bench.version("a") == quota.version + 1
    claimed = await bench.claim()
    assert {uuid_of(each) for each in claimed} == {uuid_of(each) for each in ready}


async def test_new_runs_wait_if_a_quota_has_another_version(bench: Bench) -> None:
    """Another process has taken the room that this one knew of, or the quota is gone."""
    quota = await bench.quota("a", concurrency_per_key=2)
    await bench.quota("b", concurrency_per_key=2)
    for versions in ({"a": quota.version + 1}, {"a": quota.version, "gone": 1}):
        creation = bench.creation({"a": "x"}, priority=3)
        given = admissions(versions, creation)
        answer = await bench.store.submit_and_admit([creation], given, bench.now)
        assert answer == ([None], False)
        assert await bench.load(creation.snapshot) == creation.snapshot
    assert await bench.version("a") == quota.version


async def test_a_run_that_exists_already_is_not_created_again(bench: Bench) -> None:
    quota = await bench.quota("a", concurrency_per_key=2)
    creation, other = bench.creation({"a": "x"}), bench.creation({"a": "x"})
    given = admissions({"a": quota.version}, creation)
    assert await bench.store.submit_and_admit([creation], given, bench.now) == ([None], True)
    given = admissions({"a": quota.version + 1}, creation, other)
    existing, _ = await bench.store.submit_and_admit([creation, other], given, bench.now)
    assert existing == [creation.snapshot.execution.id, None]
    assert len(await bench.ready(creation.snapshot, other.snapshot)) == 2


async def test_new_runs_wait_if_one_waits_in_their_line(bench: Bench) -> None:
    """It has come since the last look, and must not be overtaken."""
    quota = await bench.quota("a", concurrency_per_key=2)
    await bench.submit(1, {"a": "y"})
    creation = bench.creation({"a": "x"})
    given = admissions({"a": quota.version}, creation)
    assert await bench.store.submit_and_admit([creation], given, bench.now) == ([None], True)
    await bench.submit(1, {"a": "x"})
    late = bench.creation({"a": "x"})
    given = admissions({"a": quota.version + 1}, late)
    assert await bench.store.submit_and_admit([late], given, bench.now) == ([None], False)
    assert await bench.load(late.snapshot) == late.snapshot
    assert await bench.version("a") == quota.version + 1


async def test_windows_reach_as_far_back_as_the_longest_rate(bench: Bench) -> None:
    await bench.quota("a", rate=Rate(9, MINUTE), rate_per_key=Rate(5, Millis(10_000)))
    await bench.quota("slots", concurrency=5)
    await bench.one({"a": "x", "slots": ""})
    for count in (4, 3, 2):
        given = {("a", ""): count, ("a", "=x"): 1, ("a", "=y"): 1, ("slots", ""): 1}
        await bench.through(admissions=given)
        bench.clock.advance(MINUTE // 2)
    admitted = (await bench.standing("a")).admitted
    start = Millis(bench.now - 3 * (MINUTE // 2))
    half = MINUTE // 2
    assert {key: list(window) for key, window in admitted.items()} == {
        ("a", ""): [(start + 2 * half, 2)],
        ("a", "=x"): [(start + 2 * half, 1)],
    }
    bench.clock.advance(-1)
    assert list((await bench.standing("a")).admitted["a", ""]) == [
        (start + half, 3),
        (start + 2 * half, 2),
    ]


# -- release


async def test_a_quota_is_named_although_no_run_waits_for_it(bench: Bench) -> None:
    """How it stands, without counting slots nobody asks for."""
    quota = await bench.quota("a", concurrency=5, rate=Rate(9, MINUTE))
    await bench.running({"a": "k"})
    await bench.through(admissions={("a", ""): 3})
    standing = await bench.standing("a")
    assert (standing.quotas, list(standing.lines), list(standing.held)) == ({"a": quota}, [], [])
    assert standing.admitted == {("a", ""): [(bench.now, 3)]}


async def test_an_admitted_run_is_as_the_core_would_have_it(bench: Bench) -> None:
    plain, other = await bench.submit(2, {"a": "x"}), await bench.one({"a": "y"}, lane="slow")
    retried = await bench.running({"a": "x"}, policy={**RETRY, "execution_timeout_ms": 5_000})
    await bench.write(suspension(retried, bench.now))
    await bench.write(resume(await bench.load(retried), bench.now))
    waiting = [*plain, other, await bench.load(retried)]
    through = await bench.through(*waiting)
    assert through == set(uuids(waiting))
    found = await bench.store.load(uuids(waiting))
    assert list(found.values()) == [freed(snapshot) for snapshot in waiting]
    claimed = await bench.claim()
    assert sorted(uuids(claimed)) == sorted(uuids(waiting))
    assert await bench.slots(a="x") == 3


async def test_a_release_that_lost_the_race_writes_nothing(bench: Bench) -> None:
    await bench.quota("a", concurrency=1)
    await bench.quota("b", concurrency=1)
    snapshot = await bench.one({"a": "", "b": ""})
    written: dict[str, Any] = {
        "turns": {("a", queue(a="", b="")): 9},
        "admissions": {("a", ""): 1},
    }
    for versions in ({"a": 1, "b": 2}, {"a": 0}, {"b": 1, "c": 1}):
        assert await bench.through(snapshot, versions=versions, **written) is None
    assert await bench.load(snapshot) == snapshot
    assert {
        name: q.version for name, q in (await bench.store.records.get(QUOTAS, ["a", "b"])).items()
    } == {
        "a": 1,
        "b": 1,
    }
    assert [line.turn for line in (await bench.standing("a")).lines] == [0]
    assert await bench.through(snapshot, versions={"a": 1}, **written) is not None
    assert {
        name: q.version for name, q in (await bench.store.records.get(QUOTAS, ["a", "b"])).items()
    } == {
        "a": 2,
        "b": 1,
    }
    assert await bench.load(snapshot) == freed(snapshot)


async def test_a_release_of_a_queue_that_was_trimmed_writes_nothing(bench: Bench) -> None:
    """A slot of a queue without rows would not be counted."""
    await bench.quota("a", concurrency=3)
    waiting = await bench.submit(2, {"a": "k"})
    turns = {("a", queue(a="k")): 9, ("a", queue(a="trimmed")): 9}
    assert await bench.through(*waiting, turns=turns, versions={"a": 1}) is None
    assert await bench.slots(a="k") == 0
    standing = await bench.standing("a")
    assert ([line.turn for line in standing.lines], standing.quotas["a"].version) == ([0], 1)


async def test_who_has_gone_elsewhere_is_not_let_through(bench: Bench) -> None:
    ended, changed, gone_on, late, here = await bench.submit(5, {"a": "x"})
    poor = await bench.running({"a": "x"})
    (unlimited,) = await bench.submit(1)
    (delayed,) = await bench.submit(1, delay_until=FAR)
    (poor,) = await bench.write(
        turn_away(poor, bench.now, lease_of(poor), Exhausted("team", "tokens", 5, 5))
    )
    await bench.write(bench.cancelling(ended))
    await bench.write(change_priority(changed, bench.now, 9, anywhere=True))
    await bench.through(gone_on)
    newer = replace(late, head=replace(late.head, version=late.head.version + 1))
    unknown = Move(bench.fresh(), 1, bench.now)
    others = [move(s) for s in (ended, changed, gone_on, newer, unlimited, delayed, poor)]
    release = Release(moves=[*others, unknown, move(here), move(here)])
    through = await bench.store.release(release)
    assert through == {uuid_of(here)}
    assert await bench.load(poor) == poor
    assert await bench.load(delayed) == delayed
    assert await bench.load(late) == late
    assert await bench.store.release(Release()) == set()


async def test_admissions_add_up_and_are_forgotten(bench: Bench) -> None:
    await bench.quota("a", rate=Rate(9, Millis(10 * MINUTE)))
    await bench.quota("b", rate=Rate(9, Millis(10 * MINUTE)))
    await bench.one({"a": "x", "b": ""})
    start = bench.now
    for _ in range(2):
        await bench.through(admissions={("a", ""): 2, ("a", "=x"): 1, ("b", ""): 1})
    bench.clock.advance(1000)
    await bench.through(admissions={("a", ""): 3}, forget={"b": start, "a": Millis(start - 1)})
    admitted = {k: list(v) for k, v in (await bench.standing("a")).admitted.items()}
    assert admitted == {("a", ""): [(start, 4), (start + 1000, 3)], ("a", "=x"): [(start, 2)]}
    await bench.through(admissions={("a", ""): 1}, forget={"a": start})
    admitted = {k: list(v) for k, v in (await bench.standing("a")).admitted.items()}
    assert admitted == {("a", ""): [(start + 1000, 4)]}


async def test_starts_are_taken_off_the_log_oldest_first(bench: Bench) -> None:
    await bench.quota("a", rate=Rate(9, Millis(10 * MINUTE)))
    await bench.one({"a": "x"})
    start = bench.now
    for _ in range(3):
        await bench.through(admissions={("a", ""): 2, ("a", "=x"): 2})
        bench.clock.advance(10)

    async def back(key: str, since: int, count: int) -> list[tuple[int, int]]:
        await bench.store.take_starts_back([StartsBack("a", key, Millis(start + since), count)])
        admitted = (await bench.standing("a")).admitted
        return [(at - start, n) for at, n in admitted.get(("a", key), ())]

    assert await back("", 5, 3) == [(0, 2), (20, 1)]
    assert await back("", 30, 3) == [(0, 2), (20, 1)]
    assert await back("", 0, 9) == []
    assert await back("=x", 0, 1) == [(0, 1), (10, 2), (20, 2)]


async def test_rivals_never_let_through_more_than_there_is_room_for(bench: Bench) -> None:
    """Many releases at once, decided by the core on what stands, against cancels and endings."""
    await bench.quota("a", concurrency=3, concurrency_per_key=2)
    waiting = [s for key in ("x", "y", "z") for s in await bench.submit(8, {"a": key})]
    ended = 0

    async def release_once() -> None:
        decided = rules.release(await bench.standing("a"), bench.now, 500)
        if decided.moves:
            await bench.store.release(decided)

    async def cancel(snapshot: Snapshot) -> None:
        await bench.store.apply([bench.cancelling(snapshot)])

    for round in range(30):
        await asyncio.gather(*(release_once() for _ in range(4)), cancel(waiting[round % 24]))
        held = {key: await bench.slots(a=key) for key in ("x", "y", "z")}
        assert sum(held.values()) <= 3
        assert max(held.values()) <= 2
        running = await bench.claim()
        done = await bench.store.end([bench.completing(s) for s in running], bench.now)
        ended += len(done)
    found = (await bench.store.load(uuids(waiting))).values()
    assert all(not isinstance(snapshot.state, Ready | Active) for snapshot in found)
    assert await bench.store.queue_counts("a", 9) == []
    assert ended > 0


# -- looking at queues


async def test_crowds_are_queues_that_are_not_empty(bench: Bench) -> None:
    firsts = {}
    for key in ("x", "y", "z"):
        first, *_ = await bench.submit(3, {"a": key})
        firsts[queue(a=key)] = uuid_of(first)
    unknown = bench.creation({"b": ""})
    await bench.store.submit([unknown], bench.now)
    firsts[queue(b="")] = uuid_of(unknown.snapshot)
    poor = await bench.running({"a": "poor"})
    why = Exhausted("team", "tokens", 5, 5)
    await bench.write(turn_away(poor, bench.now, lease_of(poor), why))
    await bench.submit(2)
    uses = {queue(a=key): (Use(quota="a", key=key),) for key in ("x", "y", "z")}
    crowds = [
        Crowd(number, Gate.LIMIT, first, uses.get(number)) for number, first in firsts.items()
    ]
    crowds.append(Crowd(budget_queue("team"), Gate.BUDGET, uuid_of(poor), None))
    crowds.sort(key=lambda crowd: crowd.queue)
    assert await bench.store.crowds(0, 9) == crowds
    assert await bench.store.crowds(crowds[1].queue, 2) == crowds[2:4]
    assert await bench.store.crowds(crowds[-1].queue, 9) == []
    assert await bench.store.crowds(0, 0) == []


async def test_who_waits_in_a_queue_and_who_is_before(bench: Bench) -> None:
    first, second, third = await bench.submit(3, {"a": "x"})
    await bench.submit(2, {"a": "y"})
    (best,) = await bench.write(change_priority(third, bench.now, 9, anywhere=True))
    store, here = bench.store, queue(a="x")
    assert await store.executions_in(InQueue(here), 9) == uuids([best, first, second])
    assert await store.executions_in(InQueue(here), 2) == uuids([best, first])
    assert await store.executions_in(InQueue(5), 9) == []

    async def ahead(snapshot: Snapshot, limit: int = 9) -> int:
        return await store.ahead_of(here, snapshot.head.rank, uuid_of(snapshot), limit)

    assert [await ahead(snapshot) for snapshot in (best, first, second)] == [0, 1, 2]
    assert await ahead(second, 1) == 1
    assert await store.ahead_of(5, second.head.rank, uuid_of(second), 9) == 0


async def test_how_full_queues_are(bench: Bench) -> None:
    await bench.running({"a": "x"})
    await bench.submit(2, {"a": "x"})
    await bench.submit(1, {"a": "y", "b": ""})
    done = await bench.running({"a": "done"})
    await bench.store.end([bench.completing(done)], bench.now)
    counts = [
        (queue(a="x"), QueueCount(uses_of(a="x"), 2, 1, 1)),
        (queue(a="y", b=""), QueueCount(uses_of(a="y", b=""), 1, 0)),
    ]
    counts.sort(key=lambda count: count[0])
    assert await bench.store.queue_counts("a", 9) == [count for _, count in counts]
    assert await bench.store.queue_counts("a", 1) == [counts[0][1]]
    assert await bench.store.queue_counts("b", 9) == [QueueCount(uses_of(a="y", b=""), 1, 0)]
    assert await bench.store.queue_counts("unheard of", 9) == []


async def test_a_queue_keeps_its_turn_when_it_is_noted_again(bench: Bench) -> None:
    await bench.one({"a": "x", "b": ""})
    number = queue(a="x", b="")
    await bench.through(turns={("a", number): 8})
    await bench.store.put_queues([(number, uses_of(a="x", b=""))] * 2)
    await bench.store.put_queues([])
    assert [line.turn for line in (await bench.standing("a")).lines] == [8]
    assert [line.turn for line in (await bench.standing("b")).lines] == [0]


async def test_what_is_no_longer_needed_is_trimmed(bench: Bench) -> None:
    """Queues without anybody, and admissions out of every window; nothing else."""
    await bench.quota("a", rate=Rate(9, MINUTE))
    await bench.quota("slots", concurrency=1)
    await bench.one({"a": "waits"})
    await bench.running({"a": "runs"})
    ready = await bench.one({"a": "ready"})
    await bench.through(ready)
    empty = [(queue(a=key), uses_of(a=key)) for key in ("1", "2", "3")]
    await bench.store.put_queues([*empty, (queue(a="4", b=""), uses_of(a="4", b=""))])
    given = {("a", ""): 1, ("a", "=x"): 1, ("slots", ""): 1, ("deleted", ""): 1}
    await bench.through(admissions=given)
    some = await bench.store.trim_limits(bench.now, bench.now, 2)
    assert 2 <= some <= 4  # the limit may hold for each kind of row
    assert await bench.store.trim_limits(bench.now, bench.now, 99) == 7 - some
    assert await bench.store.trim_limits(bench.now, bench.now, 99) == 0
    assert len(await bench.store.queue_counts("a", 9)) == 3
    assert ("a", "") in (await bench.standing("a")).admitted
    bench.clock.advance(MINUTE)
    assert await bench.store.trim_limits(bench.now, bench.now, 1) == 1
    assert await bench.store.trim_limits(bench.now, bench.now, 99) == 1
    assert await bench.store.trim_limits(bench.now, bench.now, 99) == 0


async def test_who_waits_in_a_lane_is_counted_by_gate_and_queue(bench: Bench) -> None:
    await bench.submit(2, {"a": "x"})
    await bench.submit(1, {"a": "y"})
    await bench.submit(1, {"a": "y"}, namespace="ns")
    await bench.submit(1, {"a": "y"}, lane="slow")
    await bench.submit(2, delay_until=FAR)
    lost, gone, _ = [await bench.running() for _ in range(3)]
    await bench.submit(3)
    await bench.write(suspension(gone, bench.now))
    await bench.write(lose(lost, bench.now, lease_of(lost), revoked=False))
    everywhere = {
        WaitCount(Gate.LIMIT, queue(a="x"), 2),
        WaitCount(Gate.LIMIT, queue(a="y"), 2),
        WaitCount(Gate.DELAY, None, 2),
        WaitCount(None, None, 3),
    }
    counts = (await bench.store.lane_counts("default", None)).waiting
    assert len(counts) == 4
    assert set(counts) == everywhere
    one = (await bench.store.lane_counts("default", "ns")).waiting
    assert one == (WaitCount(Gate.LIMIT, queue(a="y"), 1),)
    assert await bench.store.lane_counts("unheard of", None) == LaneCounts((), {})
