"""Suspending, resuming and keeping a lease as one statement each: everything that the general way
writes, rivals, renewals, lost replies, a refused one among others, and the plans."""

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import Event, EventKind
from flowfabric.core.execution.model import (
    Gate,
    Next,
    Ready,
    Snapshot,
    Start,
    State,
    Suspended,
    Waiting,
)
from flowfabric.core.wait.model import DedupRecord, Needs, ReceivedSignal, Signal, Waitpoint
from flowfabric.store.postgres.dialer import PINNED
from flowfabric.store.queries import EventQuery
from flowfabric.store.sql import load_queries
from tests.kit.snapshots import after
from tests.store.postgres_bench import (
    Bench,
    listen,
    lose_reply,
    renewal,
    step,
    until_waiting,
    uuid_of,
)

HERE, FIRST = UUID(int=1), UUID(int=11)
CONTINUED = Next(Start.CONTINUE, 0)
PARKED = Suspended(CONTINUED, FIRST, "waiting_for_signal", Millis(5))
READY = Ready(CONTINUED)
NAMES = {"suspended_directly", "resumed_directly", "held_directly", "state_versions"}


def moved(snapshot: Snapshot, state: State | None = None, source: int = 1) -> Change[object]:
    """A change with everything that may be written beside the state row."""
    uuid = snapshot.execution.uuid
    event = Event(
        uuid=uuid, at=Millis(5), kind=EventKind.SIGNALLED, epoch=snapshot.head.epoch, attempt=0
    )
    signal = Signal(1, UUID(int=source), HERE, "wp", "go", Millis(5))
    return Change(
        None,
        snapshot,
        snapshot.to(state or snapshot.state),
        events=(event, replace(event, at=Millis(6))),
        steps=(step(0), step(1, "wait")),
        waitpoints=(Waitpoint(HERE, uuid, "wp", Millis(5), "k1"),),
        signals=(ReceivedSignal(signal, FIRST),),
        dedup=(DedupRecord(b"k", None, b"1"), DedupRecord(b"k", Millis(9), b"2")),
    )


async def is_written(bench: Bench, change: Change[object]) -> bool:
    """Whether all of a change is there; half of it never is."""
    uuid = uuid_of(change)
    (needs,) = await bench.store.load_needs([Needs(uuid, (HERE,), (b"k",))])
    (steps,) = await bench.store.steps([(uuid, 0)])
    events = (await bench.store.events(EventQuery(uuid=uuid))).events
    found = [
        (await bench.load(after(change))) == after(change),
        needs.waitpoints == {w.id: w for w in change.waitpoints},
        list(needs.dedup.values()) == [change.dedup[-1]],
        await bench.store.signals(uuid) == [*change.signals],
        steps == [*change.steps],
        [event.at for event in events if event.kind is EventKind.SIGNALLED]
        == [event.at for event in change.events],
    ]
    assert any(found) == all(found), found
    return all(found)


async def test_each_is_one_statement_that_writes_everything(bench: Bench) -> None:
    sent: list[str] = []
    await listen(bench, sent)
    held = moved(await bench.running())
    suspended = moved(await bench.running(), PARKED)
    there = await bench.apply(Change(None, parked := await bench.running(), parked.to(PARKED)))
    resumed = moved(there, READY)
    changes = [held, suspended, resumed]
    assert await bench.store.apply(changes) == {uuid_of(change) for change in changes}
    assert [await is_written(bench, change) for change in changes] == [True] * 3
    await asyncio.sleep(0)
    used = [name for name in sent if name in NAMES]
    assert sorted(used) == [
        "held_directly",
        "resumed_directly",
        "suspended_directly",
        "suspended_directly",
    ]


async def test_one_that_moved_is_refused_and_its_neighbours_are_written(bench: Bench) -> None:
    one, two, three, four = [await bench.running() for _ in range(4)]
    await bench.apply(Change(None, one, one.to(one.state)))
    await bench.apply(Change(None, three, three.to(PARKED)))
    changes = [moved(one, PARKED), moved(two, PARKED), moved(three), moved(four)]
    assert await bench.store.apply(changes) == {uuid_of(changes[1]), uuid_of(changes[3])}
    assert [await is_written(bench, change) for change in changes] == [False, True, False, True]
    assert await bench.store.apply(changes) == set()


async def test_a_lease_that_was_renewed_is_looked_at_again(bench: Bench) -> None:
    """A renewal moves no version: what was decided on the old expiry is not written over it."""
    one, two = await bench.running(), await bench.running()
    bench.clock.advance(10)
    extended = await bench.store.renew([renewal(one), renewal(two)], bench.now)
    changes = [moved(one), moved(two, PARKED)]
    assert await bench.store.apply(changes) == set()
    assert [await is_written(bench, change) for change in changes] == [False, False]
    found = await bench.store.load([*extended])
    again = [moved(found[uuid_of(changes[0])]), moved(found[uuid_of(changes[1])], PARKED)]
    assert await bench.store.apply(again) == {*extended}
    assert [await is_written(bench, change) for change in again] == [True, True]


@pytest.mark.parametrize("commits", [True, False])
async def test_one_that_waited_for_a_renewal_writes_only_if_that_was_undone(
    bench: Bench, commits: bool
) -> None:
    one, two = await bench.running(), await bench.running()
    changes = [moved(one), moved(two, PARKED)]
    raw, watcher, other = await bench.raw(), await bench.raw(), await bench.other_store()
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("update flowfabric.lease set expires_at = expires_at + 1")
    tasks = [
        asyncio.create_task(store.apply([change]))
        for store, change in zip((bench.store, other), changes, strict=True)
    ]
    await until_waiting(watcher, 2)
    await (transaction.commit() if commits else transaction.rollback())
    answers = [await task for task in tasks]
    assert answers == [set() if commits else {uuid_of(change)} for change in changes]
    assert [await is_written(bench, change) for change in changes] == [not commits] * 2


async def test_two_processes_that_signal_one_waitpoint_at_once_resume_it_once(
    bench: Bench,
) -> None:
    """Both have seen the same version: one of them writes, the other loads again."""
    other = await bench.other_store()
    for held in [await bench.running() for _ in range(5)]:
        parked = await bench.apply(Change(None, held, held.to(PARKED)))
        rivals = [moved(parked, READY, source=n) for n in (1, 2)]
        answers = await asyncio.gather(bench.store.apply(rivals[:1]), other.apply(rivals[1:]))
        assert sorted(map(len, answers)) == [0, 1]
        (received,) = await bench.store.signals(parked.execution.uuid)
        winner = rivals[0] if answers[0] else rivals[1]
        assert received == winner.signals[0]


async def test_lost_replies_are_recognised_and_rivals_are_not(bench: Bench) -> None:
    link = bench.store.session.apply
    for change in (moved(await bench.running()), moved(await bench.running(), PARKED)):
        lose_reply(link)
        assert await bench.store.apply([change]) == {uuid_of(change)}
        assert await is_written(bench, change), "once"
    held = await bench.running()
    rival = moved(held, PARKED, source=2)
    await bench.apply(rival)
    lose_reply(link)
    assert await bench.store.apply([moved(held, PARKED)]) == set()
    assert await is_written(bench, rival)


async def test_a_signal_that_cannot_be_written_keeps_no_neighbour_from_it(bench: Bench) -> None:
    changes = []
    for _ in range(5):
        held = await bench.running()
        changes.append(moved(await bench.apply(Change(None, held, held.to(PARKED))), READY))
    broken = after(changes[2])
    changes[2] = replace(changes[2], after=replace(broken, head=replace(broken.head, epoch=-1)))
    with pytest.raises(Invalid, match="epoch"):
        await bench.store.apply(changes)
    found = await bench.store.load([uuid_of(change) for change in changes])
    for n, change in enumerate(changes):
        assert found[uuid_of(change)] == (change.before if n == 2 else after(change))
        assert len(await bench.store.signals(uuid_of(change))) == (n != 2)


async def test_all_find_everything_by_key_and_compare_no_list_with_another(bench: Bench) -> None:
    """Plans as they are made while the tables are empty: they stay."""
    for name, highest in (
        ("resumed_directly", 41),
        ("suspended_directly", 42),
        ("held_directly", 44),
    ):
        connection = await bench.store.session.dialer.dial(PINNED)
        await connection.execute(f"prepare {name} as {load_queries('postgres')[name]}")
        given = ", ".join(["'{}'"] * highest)
        rows = await connection.fetch(f"explain (costs off) execute {name} ({given})")
        await connection.close()
        plan = "\n".join(line for (line,) in rows)
        assert "Seq Scan" not in plan
        assert plan.count("hashed SubPlan") == 5
        if name == "resumed_directly":
            assert "Tid Scan on parked" in plan
        else:
            assert "Index Scan using lease_pkey on lease" in plan


def with_one_event(snapshot: Snapshot, state: State, attempt: int | None) -> Change[object]:
    """A change with one row of each kind, as most changes have them."""
    uuid = snapshot.execution.uuid
    event = Event(uuid=uuid, at=Millis(5), kind=EventKind.SIGNALLED, epoch=1, attempt=attempt)
    signal = Signal(1, UUID(int=1), HERE, "wp", "go", Millis(5))
    return Change(
        None,
        snapshot,
        snapshot.to(state),
        events=(event,),
        steps=(step(0),),
        waitpoints=(Waitpoint(HERE, uuid, "wp", Millis(5), "k1"),),
        signals=(ReceivedSignal(signal, FIRST),),
        dedup=(DedupRecord(b"k", None, b"1"),),
    )


DELAYED = Waiting(Gate.DELAY, CONTINUED, Millis(9))
LATER = replace(PARKED, since=Millis(7), due_at=Millis(8))


@pytest.mark.parametrize("attempts", [(0, 0, 0), (0, None, 1), (None, None, None)])
@pytest.mark.parametrize(
    "states", [(PARKED, PARKED, PARKED), (PARKED, DELAYED, LATER), (DELAYED, PARKED, PARKED)]
)
async def test_columns_that_rows_share_are_sent_once_and_others_keep_their_gaps(
    bench: Bench, states: tuple[State, ...], attempts: tuple[int | None, ...]
) -> None:
    """Suspensions beside a delay, which has neither a moment nor a note, in one statement"""
    ways = zip(states, attempts, strict=True)
    changes = [with_one_event(await bench.running(), *way) for way in ways]
    assert await bench.store.apply(changes) == {uuid_of(change) for change in changes}
    for change, attempt in zip(changes, attempts, strict=True):
        assert await is_written(bench, change)
        events = (await bench.store.events(EventQuery(uuid=uuid_of(change)))).events
        assert [event.attempt for event in events][-1] == attempt
    back = [with_next_signal(after(change)) for change in changes]
    assert await bench.store.apply(back) == {uuid_of(change) for change in back}
    assert [await bench.load(after(change)) for change in back] == [*map(after, back)]


def with_next_signal(snapshot: Snapshot) -> Change[object]:
    signal = Signal(2, UUID(int=2), HERE, "wp", "go", Millis(6))
    steps = (step(1, "wait"),)
    return Change(
        None, snapshot, snapshot.to(READY), steps=steps, signals=(ReceivedSignal(signal),)
    )
