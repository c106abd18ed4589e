"""What is kept of waiting: waitpoints, signals, dedup records, keys of tokens, who is suspended."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import complete
from flowfabric.core.execution.change import Change, fold
from flowfabric.core.execution.lease import Owner, fence_of
from flowfabric.core.execution.model import Active, Flags, Snapshot, Suspended
from flowfabric.core.execution.submission import Submission, create
from flowfabric.core.wait.model import (
    DedupRecord,
    Loaded,
    Needs,
    Pending,
    ReceivedSignal,
    Signal,
    Terms,
    Waitpoint,
    Waits,
)
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.open import open_store
from flowfabric.store.queries import ClaimCall, SuspendedIn
from flowfabric.store.rows.record import KEYRING, ONLY, SealedKeyring
from tests.kit.lab import TTL, W1
from tests.kit.situations import suspension
from tests.kit.store_bench import StoreBench

NOTHING = Loaded({}, {}, [])
DAY = 86_400_000
numbers = itertools.count(1)


class Bench(StoreBench):
    """A store and executions made by the core's own rules."""

    async def submitted(self, count: int = 1, **members: Any) -> list[Snapshot]:
        submission = Submission(kind="job", **members)
        made = [create(submission, self.fresh(), self.now) for _ in range(count)]
        assert not any(await self.store.submit(made, self.now))
        return [creation.snapshot for creation in made]

    async def running(self, **members: Any) -> Snapshot:
        """A fresh execution, claimed; nothing else may be waiting."""
        await self.submitted(**members)
        call = ClaimCall(self.fresh(), W1, frozenset(), (), None, 1, TTL)
        (taken,) = await self.store.claim(call, self.now)
        return taken.snapshot

    async def suspended(self, **members: Any) -> UUID:
        change = suspension(await self.running(**members), self.now)
        await self.write(change)
        return uuid_of(change)

    async def write(self, *changes: Change[Any]) -> None:
        assert await self.store.apply(changes) == {uuid_of(change) for change in changes}

    async def load_needs(self, ask: Needs) -> Loaded:
        (memory,) = await self.store.load_needs([ask])
        return memory


@pytest.fixture
async def bench(store: Store, clock: ManualClock) -> AsyncIterator[Bench]:
    await store.migrate()
    yield Bench(store, clock)
    await store.close()


def change_of(snapshot: Snapshot, **written: Any) -> Change[None]:
    """Changes nothing of the execution itself but its version and its flags."""
    flags = snapshot.head.flags | Flags.WAITPOINTS
    return Change(None, snapshot, snapshot.to(snapshot.state, flags=flags), **written)


def after(change: Change[Any]) -> Snapshot:
    assert change.after is not None
    return change.after


def uuid_of(change: Change[Any] | Snapshot) -> UUID:
    return (change if isinstance(change, Snapshot) else after(change)).execution.uuid


def signal(number: int, waitpoint: UUID, **members: Any) -> Signal:
    given = {"key": "wp", "name": "go", "accepted_at": Millis(5), **members}
    return Signal(number=number, id=UUID(int=next(numbers)), waitpoint=waitpoint, **given)


def heard(
    number: int, waitpoint: UUID, suspension: UUID | None = None, **members: Any
) -> ReceivedSignal:
    return ReceivedSignal(signal(number, waitpoint, **members), suspension)


def waitpoint(snapshot: Snapshot, number: int = 1, **members: Any) -> Waitpoint:
    given = {"key": "wp", "created_at": Millis(5), "kid": "k1", **members}
    return Waitpoint(id=UUID(int=number), execution=uuid_of(snapshot), **given)


HERE, THERE = UUID(int=1), UUID(int=2)
FIRST, SECOND = UUID(int=11), UUID(int=12)


# -- round trips


async def test_a_waitpoint_is_remembered_whole(bench: Bench) -> None:
    (snapshot,) = await bench.submitted()
    terms = Terms(about="sha256:ü", decisions=("approve", "nein"), approvers=("Zoë",))
    full = waitpoint(snapshot, 1, key="naïve 鍵", attempt=3, terms=terms)
    bare = waitpoint(snapshot, 2)
    await bench.write(change_of(snapshot, waitpoints=(full, bare)))
    memory = await bench.load_needs(Needs(uuid_of(snapshot), waitpoints=(bare.id, full.id)))
    assert memory == Loaded({full.id: full, bare.id: bare}, {}, [])


@pytest.mark.parametrize("payload", [None, b"", b"\x00\xff", bytes(range(256)) * 1024])
async def test_a_signal_is_remembered_whole(bench: Bench, payload: bytes | None) -> None:
    (snapshot,) = await bench.submitted()
    full = heard(
        1,
        HERE,
        FIRST,
        key="naïve 鍵",
        name="gø",
        category="Ω",
        source_type="äußerer",
        source="\N{SNOWMAN}\x00",
        payload=payload,
        encoding="json",
        correlation="c",
        idempotency_key="ï",
        scope="execution",
        created_at=Millis(4),
        effect="no_op",
    )
    bare = heard(2, HERE, payload=payload)
    await bench.write(change_of(snapshot, signals=(full, bare)))
    assert await bench.store.signals(uuid_of(snapshot)) == [full, bare]
    memory = await bench.load_needs(Needs(uuid_of(snapshot), buffered=((HERE, 0),)))
    assert memory.signals == [full, bare]


async def test_a_mark_is_remembered_whole_also_when_it_ran_out(bench: Bench) -> None:
    (snapshot,) = await bench.submitted()
    records = (
        DedupRecord(b"\x00\xff", Millis(1), b"{}"),
        DedupRecord(b"", None, b""),
        DedupRecord(b"a", Millis(0)),
    )
    await bench.write(change_of(snapshot, dedup=records))
    keys = tuple(record.key for record in records)
    memory = await bench.load_needs(Needs(uuid_of(snapshot), dedup=(*keys, b"never")))
    assert memory.dedup == {record.key: record for record in records}


# -- writing


async def test_a_waitpoint_that_is_there_stays(bench: Bench) -> None:
    (snapshot,) = await bench.submitted()
    first, rival = waitpoint(snapshot, key="first"), waitpoint(snapshot, key="rival")
    change = change_of(snapshot, waitpoints=(first, rival))
    await bench.write(change)
    await bench.write(change_of(after(change), waitpoints=(rival,)))
    memory = await bench.load_needs(Needs(uuid_of(snapshot), waitpoints=(first.id,)))
    assert memory.waitpoints == {first.id: first}


async def test_the_last_mark_of_a_key_stays(bench: Bench) -> None:
    (snapshot,) = await bench.submitted()
    old, new, newer = (
        DedupRecord(b"k", None, b"1"),
        DedupRecord(b"k", Millis(9), b"2"),
        DedupRecord(b"k", None, b"3"),
    )
    change = change_of(snapshot, dedup=(old, DedupRecord(b"other"), new))
    await bench.write(change)
    ask = Needs(uuid_of(snapshot), dedup=(b"k", b"other"))
    assert (await bench.load_needs(ask)).dedup == {b"k": new, b"other": DedupRecord(b"other")}
    await bench.write(change_of(after(change), dedup=(newer,)))
    assert (await bench.load_needs(ask)).dedup[b"k"] == newer


async def test_a_signal_counts_for_a_later_suspension(bench: Bench) -> None:
    (snapshot,) = await bench.submitted()
    one, two, three = heard(1, HERE), heard(2, THERE), heard(3, HERE, FIRST)
    change = change_of(snapshot, signals=(one, two, three))
    await bench.write(change)
    await bench.write(change_of(after(change), counted=((1, FIRST), (1, SECOND), (9, FIRST))))
    found = await bench.store.signals(uuid_of(snapshot))
    assert found == [replace(one, suspension=SECOND), two, three]


async def test_a_signal_may_be_accepted_and_counted_in_one_write(bench: Bench) -> None:
    (snapshot,) = await bench.submitted()
    one = heard(1, HERE)
    accepted = change_of(snapshot, signals=(one,), dedup=(DedupRecord(b"k", None, b"1"),))
    counted = change_of(
        after(accepted), counted=((1, FIRST),), dedup=(DedupRecord(b"k", None, b"2"),)
    )
    await bench.write(fold(accepted, counted))
    assert await bench.store.signals(uuid_of(snapshot)) == [replace(one, suspension=FIRST)]
    memory = await bench.load_needs(Needs(uuid_of(snapshot), dedup=(b"k",)))
    assert memory.dedup[b"k"].doc == b"2"


async def test_a_refused_change_leaves_nothing(bench: Bench) -> None:
    moved, stands = await bench.submitted(2)
    first = change_of(moved, signals=(heard(1, HERE),))
    await bench.write(first)
    written: dict[str, Any] = {
        "signals": (heard(2, HERE),),
        "counted": ((1, SECOND),),
        "dedup": (DedupRecord(b"k"),),
    }
    changes = [
        change_of(moved, waitpoints=(waitpoint(moved),), **written),
        change_of(stands, waitpoints=(waitpoint(stands),), **written),
    ]
    assert await bench.store.apply(changes) == {uuid_of(stands)}
    asks = [Needs(uuid_of(s), (HERE,), (b"k",), ((HERE, 0),)) for s in (moved, stands)]
    refused, kept = await bench.store.load_needs(asks)
    assert refused == Loaded({}, {}, list(first.signals))
    assert kept == Loaded(
        {HERE: waitpoint(stands)}, {b"k": DedupRecord(b"k")}, list(written["signals"])
    )


async def test_a_signal_number_is_given_once(bench: Bench) -> None:
    """Two signals with one number would be a mistake of the rules: nothing of that change is
    written, and its neighbours are."""
    snapshot, other = await bench.submitted(2)
    change = change_of(snapshot, signals=(heard(1, HERE),))
    await bench.write(change)
    again = change_of(after(change), signals=(heard(1, HERE),), dedup=(DedupRecord(b"k"),))
    beside = change_of(other, signals=(heard(1, HERE),), dedup=(DedupRecord(b"k"),))
    with pytest.raises(Invalid):
        await bench.store.apply([again, beside])
    asks = [Needs(uuid_of(s), dedup=(b"k",), buffered=((HERE, 0),)) for s in (snapshot, other)]
    assert await bench.store.load_needs(asks) == [
        Loaded({}, {}, list(change.signals)),
        Loaded({}, {b"k": DedupRecord(b"k")}, list(beside.signals)),
    ]


# -- recall


async def test_asked_for_nothing_or_the_unknown_nothing_is_recalled(bench: Bench) -> None:
    assert await bench.store.load_needs([]) == []
    (snapshot,) = await bench.submitted()
    unknown = Needs(bench.fresh(), (HERE,), (b"k",), ((HERE, 0),))
    nothing = Needs(uuid_of(snapshot))
    no_such = replace(unknown, execution=uuid_of(snapshot))
    assert await bench.store.load_needs([unknown, nothing, no_such]) == [NOTHING] * 3
    assert await bench.store.load_needs([nothing]) == [NOTHING]


async def test_each_ask_gets_its_own_answer_in_order(bench: Bench) -> None:
    one, two = await bench.submitted(2)
    signals = [heard(n, (HERE, THERE)[n % 2]) for n in range(1, 7)]
    await bench.write(
        change_of(one, signals=tuple(reversed(signals)), dedup=(DedupRecord(b"k", None, b"1"),)),
        change_of(two, waitpoints=(waitpoint(two),), dedup=(DedupRecord(b"k", None, b"2"),)),
    )
    first, second, third, fourth = await bench.store.load_needs(
        [
            Needs(uuid_of(two), waitpoints=(HERE, THERE), dedup=(b"k",)),
            Needs(uuid_of(one), buffered=((HERE, 2), (THERE, 3))),
            Needs(uuid_of(one), dedup=(b"k", b"l"), buffered=((HERE, 4), (HERE, 5))),
            Needs(uuid_of(one), waitpoints=(HERE,), buffered=((HERE, 6),)),
        ]
    )
    assert first == Loaded({HERE: waitpoint(two)}, {b"k": DedupRecord(b"k", None, b"2")}, [])
    assert [h.signal.number for h in second.signals] == [4, 5, 6]
    assert second.signals == signals[3:]
    assert third == Loaded({}, {b"k": DedupRecord(b"k", None, b"1")}, [signals[5]])
    assert fourth == NOTHING


async def test_five_hundred_asks_are_answered_at_once(bench: Bench) -> None:
    snapshots = await bench.submitted(500)
    changes = [
        change_of(
            snapshot,
            waitpoints=(waitpoint(snapshot, 1), waitpoint(snapshot, 2)),
            signals=(heard(1, HERE), heard(2, THERE), heard(3, HERE)),
            dedup=(DedupRecord(b"a", None, b"%d" % number), DedupRecord(b"b")),
        )
        for number, snapshot in enumerate(snapshots)
    ]
    await bench.write(*changes)
    asks = [
        Needs(uuid_of(change), (HERE, THERE), (b"a", b"b", b"c"), ((HERE, 1), (THERE, 0)))
        for change in reversed(changes)
    ]
    memories = await bench.store.load_needs(asks)
    for memory, change in zip(memories, reversed(changes), strict=True):
        assert list(memory.waitpoints.values()) == list(change.waitpoints)
        assert list(memory.dedup.values()) == list(change.dedup)
        assert memory.signals == list(change.signals[1:])


# -- signals


async def test_signals_are_read_by_number_in_pages(bench: Bench) -> None:
    (snapshot, other) = await bench.submitted(2)
    signals = [heard(n, HERE, (None, FIRST, SECOND)[n % 3]) for n in range(1, 31)]
    await bench.write(
        change_of(snapshot, signals=tuple(reversed(signals))),
        change_of(other, signals=(heard(1, HERE, FIRST),)),
    )
    uuid, read = uuid_of(snapshot), bench.store.signals
    assert await read(uuid) == signals
    assert await read(uuid, limit=7) == signals[:7]
    assert await read(uuid, after=7, limit=7) == signals[7:14]
    assert await read(uuid, after=30) == []
    counted = [item for item in signals if item.suspension == FIRST]
    assert await read(uuid, suspension=FIRST) == counted
    after_some = counted[2].signal.number
    assert await read(uuid, suspension=FIRST, after=after_some, limit=3) == counted[3:6]
    assert await read(uuid, suspension=UUID(int=99)) == []
    assert await read(bench.fresh()) == []


# -- suspended


async def test_the_suspended_are_listed_by_since_when_and_id(bench: Bench) -> None:
    early = [await bench.suspended() for _ in range(3)]
    await bench.running()
    await bench.submitted(namespace="other")
    bench.clock.advance(1)
    late = [await bench.suspended(namespace="other"), await bench.suspended(priority=9)]
    expected = [*sorted(early), *sorted(late)]
    pages: list[Snapshot] = []
    while page := await bench.store.snapshots(SuspendedIn(None, _cursor(pages), 2)):
        assert len(page) <= 2
        pages += page
    assert [uuid_of(snapshot) for snapshot in pages] == expected
    assert await bench.store.load(expected) == {uuid_of(found): found for found in pages}


def _cursor(pages: list[Snapshot]) -> tuple[Millis, UUID] | None:
    if not pages:
        return None
    state = pages[-1].state
    assert isinstance(state, Suspended)
    return state.since, uuid_of(pages[-1])


async def test_the_suspended_of_a_namespace(bench: Bench) -> None:
    uuids = [await bench.suspended(namespace=name) for name in ("a", "b", "a", "b")]
    mine = sorted([uuids[1], uuids[3]])
    found = await bench.store.snapshots(SuspendedIn("b", None, 9))
    assert [uuid_of(snapshot) for snapshot in found] == mine
    (second,) = await bench.store.snapshots(SuspendedIn("b", (bench.now, mine[0]), 1))
    assert uuid_of(second) == mine[1]
    assert await bench.store.snapshots(SuspendedIn("c", None, 9)) == []


# -- the keys of tokens


async def stored_keys(store: Store) -> tuple[int, bytes] | None:
    found = (await store.records.get(KEYRING, [ONLY])).get(ONLY)
    return None if found is None else (found.version, found.doc)


async def put_keys(store: Store, doc: bytes, expected: int) -> bool:
    return await store.records.put(KEYRING, SealedKeyring(doc), expected)


async def test_keys_are_written_on_the_version_they_were_made_from(bench: Bench) -> None:
    store = bench.store
    assert await stored_keys(store) is None
    assert not await put_keys(store, b"early", 1)
    assert await put_keys(store, b"one", 0)
    assert not await put_keys(store, b"rival", 0)
    assert await stored_keys(store) == (1, b"one")
    assert await put_keys(store, b"", 1)
    assert not await put_keys(store, b"late", 1)
    assert await stored_keys(store) == (2, b"")


async def test_of_two_processes_one_writes_the_keys(bench: Bench, store_url: str) -> None:
    other = await open_store(store_url, clock=bench.clock)
    for version in range(10):
        answers = await asyncio.gather(
            put_keys(bench.store, b"mine", version), put_keys(other, b"theirs", version)
        )
        assert sorted(answers) == [False, True]
        winner = b"mine" if answers[0] else b"theirs"
        assert await stored_keys(other) == (version + 1, winner)
    await other.close()


# -- alarms


def pending(snapshot: Snapshot, *expiries: int) -> Change[None]:
    """Waitpoints nobody waits at yet, with the moments they run out."""
    found = tuple(Pending(UUID(int=at), "wp", expires_at=Millis(at)) for at in expiries)
    life = replace(snapshot.life, waits=Waits(pending=found))
    flags = snapshot.head.flags | Flags.WAITPOINTS
    return Change(None, snapshot, snapshot.to(snapshot.state, life=life, flags=flags))


async def test_the_end_of_a_pending_waitpoint_is_due(bench: Bench) -> None:
    (snapshot,) = await bench.submitted()
    soon, later = bench.now + 10, bench.now + 20
    change = pending(snapshot, later, soon)
    await bench.write(change)
    assert await bench.store.next_due(bench.now) == soon
    assert await bench.store.due(Millis(soon - 1), 9) == []
    assert await bench.store.due(Millis(soon), 9) == [uuid_of(snapshot)]
    change = pending(after(change), later)
    await bench.write(change)
    assert await bench.store.due(Millis(soon), 9) == []
    assert await bench.store.next_due(bench.now) == later
    await bench.write(pending(after(change)))
    assert await bench.store.next_due(bench.now) is None


async def test_a_deadline_rings_again_when_the_waitpoint_is_gone(bench: Bench) -> None:
    deadline = Millis(bench.now + 50)
    (snapshot,) = await bench.submitted(deadline_at=deadline)
    change = pending(snapshot, bench.now + 10)
    await bench.write(change)
    assert await bench.store.next_due(bench.now) == bench.now + 10
    await bench.write(pending(after(change), bench.now + 90))
    assert await bench.store.next_due(bench.now) == deadline


async def test_nothing_is_due_of_what_ended(bench: Bench) -> None:
    held = await bench.running()
    change = pending(held, bench.now + 10)
    await bench.write(change)
    await bench.write(_completion(after(change), bench.now))
    assert await bench.store.due(Millis(bench.now + DAY), 9) == []
    assert await bench.store.next_due(bench.now) is None


def _completion(held: Snapshot, now: Millis) -> Change[Any]:
    assert isinstance(held.state, Active)
    return complete(held, now, Owner.of(fence_of(held, held.state.lease)), None)


# -- retention


async def test_trimming_deletes_everything_of_an_execution(bench: Bench) -> None:
    (kept,) = await bench.submitted(namespace="kept", delay_until=Millis(bench.now + DAY))
    held = await bench.running()
    written: dict[str, Any] = {
        "signals": (heard(1, HERE), heard(2, HERE, FIRST)),
        "dedup": (DedupRecord(b"k"),),
    }
    changes = [
        change_of(snapshot, waitpoints=(waitpoint(snapshot),), **written)
        for snapshot in (kept, held)
    ]
    await bench.write(*changes)
    await bench.write(_completion(after(changes[1]), bench.now))
    assert await bench.store.trim(bench.now, bench.now, 500) == 1
    asks = [Needs(uuid_of(change), (HERE,), (b"k",), ((HERE, 0),)) for change in changes]
    remaining, gone = await bench.store.load_needs(asks)
    assert gone == NOTHING
    assert await bench.store.signals(uuid_of(held)) == []
    assert remaining == Loaded(
        {HERE: waitpoint(kept)}, {b"k": DedupRecord(b"k")}, list(written["signals"])
    )
