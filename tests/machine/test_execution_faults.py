"""Faults put in on purpose: a machine that does not find them proves nothing by its silence."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, gate, operator
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import Owner, enter
from flowfabric.core.execution.model import (
    Flags,
    Life,
    Next,
    Ready,
    Snapshot,
    Source,
    Suspended,
    Waiting,
)
from flowfabric.core.flow.progress import DownstreamChange
from flowfabric.core.wait import resume, signal
from flowfabric.core.wait.model import NO_WAITS, DedupRecord
from flowfabric.store.contract import Store
from flowfabric.store.queries import ChangedByEnds, ClaimCall, Renewal, SideWrite, Taken
from tests.machine.benches import Fault, FaultyBench, SqliteBench
from tests.machine.execution_machine import ExecutionMachine
from tests.machine.faults import assert_found


class EndsUnderAnyFence(Fault):
    """Its end statement compares nothing: whoever ran it once may end it."""

    async def end(
        self,
        changes: Sequence[Change[object]],
        now: Millis,
        downstreams: Sequence[DownstreamChange] = (),
    ) -> ChangedByEnds:
        return ChangedByEnds(await self.inner.apply(await _rebased(self.inner, changes)))


class ComparesNoVersion(Fault):
    """Writes what was decided on an older version over a newer one."""

    async def apply(self, changes: Sequence[Change[object]]) -> set[UUID]:
        return await self.inner.apply(await _rebased(self.inner, changes))


class RenewsForAnybody(Fault):
    """Extends a lease without asking whose it is."""

    async def renew(self, renewals: Sequence[Renewal], now: Millis) -> dict[UUID, Millis]:
        found = await self.inner.load([renewal.uuid for renewal in renewals])
        return await self.inner.renew([_current(it, found.get(it.uuid)) for it in renewals], now)


class NotesForAnybody(Fault):
    """Says that a side write was fine although its lease is gone."""

    async def write_progress(self, notes: Sequence[SideWrite], now: Millis) -> set[UUID]:
        await self.inner.write_progress(notes, now)
        return {note.uuid for note in notes}


class ClaimsTwice(Fault):
    """A claim that gets less than it asked for also gets what the one before it got."""

    earlier: tuple[Taken, ...] = ()

    async def claim(self, call: ClaimCall, now: Millis) -> list[Taken]:
        taken = await self.inner.claim(call, now)
        again, self.earlier = self.earlier, tuple(taken)
        return [*taken, *again][: call.limit]


class LeavesTheReadyRow(Fault):
    """A claim writes the lease and forgets to delete what it took."""

    async def claim(self, call: ClaimCall, now: Millis) -> list[Taken]:
        before = _ready_rows(self.path)
        taken = await self.inner.claim(call, now)
        _put_back(self.path, before - _ready_rows(self.path))
        return taken


class ClaimsTheWorst(Fault):
    """Gives a worker the right executions in the wrong order."""

    async def claim(self, call: ClaimCall, now: Millis) -> list[Taken]:
        return (await self.inner.claim(call, now))[::-1]


class ForgetsEvents(Fault):
    """Writes the general changes without their events."""

    async def apply(self, changes: Sequence[Change[object]]) -> set[UUID]:
        return await self.inner.apply([replace(change, events=()) for change in changes])


class DropsWhatWaits(Fault):
    """Says that a retry or a delay was written, and has forgotten it."""

    async def apply(self, changes: Sequence[Change[object]]) -> set[UUID]:
        kept = [change for change in changes if not _parks(change)]
        lost = {_uuid(change) for change in changes if _parks(change)}
        return lost | await self.inner.apply(kept)


class SeesNothingDue(Fault):
    """Has no timers: what waits for a moment waits for ever."""

    async def due(self, *_: object, **looks: object) -> list[UUID]:
        return []


class HearsUnseen(Fault):
    """Compares no version when a signal is written to the suspension it was decided on: two
    halves of a condition do not see each other."""

    async def apply(self, changes: Sequence[Change[object]]) -> set[UUID]:
        found = await self.inner.load([_uuid(change) for change in changes if change.signals])
        return await self.inner.apply([_renumbered(change, found) for change in changes])


STORE_FAULTS: list[type[Fault]] = [
    EndsUnderAnyFence,
    ComparesNoVersion,
    RenewsForAnybody,
    NotesForAnybody,
    ClaimsTwice,
    LeavesTheReadyRow,
    ClaimsTheWorst,
    ForgetsEvents,
    DropsWhatWaits,
    SeesNothingDue,
    HearsUnseen,
]


def no_fence(snapshot: Snapshot, now: Millis, owner: Owner) -> Any:
    """The gate of every owner, which lets everybody in."""
    return enter(snapshot, now, Owner(source=Source.OPERATOR))


def no_timer(life: Life, next: Next, now: Millis, flags: Flags) -> Waiting | Ready:
    """The door to `ready`, which parks what has to wait and forgets until when."""
    state = gate.admit(life, next, now, flags)
    return replace(state, due_at=None) if isinstance(state, Waiting) else state


def no_repeat(*_: object) -> None:
    """Nobody is recognised who asks again because the reply was lost."""


def no_growth(snapshot: Snapshot | None, now: Millis) -> Change[object]:
    """A replay that begins with the first epoch again."""
    change = honest_replay(snapshot, now)
    assert change.after is not None
    after = replace(change.after, head=replace(change.after.head, epoch=0))
    return replace(change, after=after)


def no_records(delivering: object) -> list[DedupRecord]:
    """A signal leaves nothing behind by which its repeat would be recognised."""
    return []


def no_second_look(snapshot: Snapshot | None, now: Millis, signal_id: UUID) -> Any:
    """A timeout that ends the suspension without asking whether its time has come."""
    if snapshot is not None and isinstance(snapshot.state, Suspended):
        waits = snapshot.life.waits or NO_WAITS
        assert waits.suspension is not None
        arms = tuple(replace(arm, timeout_at=now) for arm in waits.suspension.arms)
        early = replace(waits, suspension=replace(waits.suspension, arms=arms))
        head = replace(snapshot.head, life=replace(snapshot.life, waits=early))
        snapshot = replace(snapshot, head=head, state=replace(snapshot.state, due_at=now))
    return honest_timeout(snapshot, now, signal_id)


honest_replay = operator.replay
honest_timeout = resume.expire_suspension

RULE_FAULTS: list[tuple[Any, str, Callable[..., Any]]] = [
    (attempt, "enter", no_fence),
    (attempt, "admit", no_timer),
    (attempt, "_failed_by", no_repeat),
    (attempt, "_ended_by", no_repeat),
    (operator, "replay", no_growth),
    (signal._Delivering, "_records", no_records),
    (resume, "expire_suspension", no_second_look),
]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_the_machine_finds_a_fault_of_the_store(fault: type[Fault], tmp_path: Path) -> None:
    assert_found(ExecutionMachine, FaultyBench(tmp_path, fault))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("module", "rule", "fault"), RULE_FAULTS)
def test_the_machine_finds_a_fault_of_a_rule(
    module: Any,
    rule: str,
    fault: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, rule, fault)
    assert_found(ExecutionMachine, SqliteBench(tmp_path))


def _parks(change: Change[object]) -> bool:
    return change.after is not None and isinstance(change.after.state, Waiting)


def _uuid(change: Change[object]) -> UUID:
    assert change.before is not None
    return change.before.execution.uuid


async def _rebased(store: Store, changes: Sequence[Change[object]]) -> list[Change[object]]:
    """The changes as if they had been decided on what stands now."""
    found = await store.load([_uuid(change) for change in changes])
    return [_onto(change, found) for change in changes]


def _onto(change: Change[object], found: dict[UUID, Snapshot]) -> Change[object]:
    if change.before is None or change.after is None:
        return change
    current = found.get(change.before.execution.uuid, change.before)
    head = replace(change.after.head, version=current.head.version + 1)
    return replace(change, before=current, after=replace(change.after, head=head))


def _renumbered(change: Change[object], found: dict[UUID, Snapshot]) -> Change[object]:
    """Onto the same suspension as it stands now, with the next free number, but with what had
    been heard when the signal was decided."""
    if not change.signals or change.before is None or change.after is None:
        return change
    current, waits = found[_uuid(change)], change.after.life.waits
    if waits is None or current.life.waits is None or current.state != change.before.state:
        return change
    last = current.life.waits.signals
    signals = tuple(
        replace(heard, signal=replace(heard.signal, number=last + place))
        for place, heard in enumerate(change.signals, start=1)
    )
    waits = replace(waits, signals=last + len(signals))
    life = replace(change.after.life, waits=waits, priority=current.life.priority)
    head = replace(current.head, version=current.head.version + 1, life=life)
    after = replace(change.after, head=head)
    return replace(change, before=current, after=after, signals=signals)


def _current(renewal: Renewal, snapshot: Snapshot | None) -> Renewal:
    lease = getattr(snapshot.state, "lease", None) if snapshot else None
    if snapshot is None or lease is None:
        return renewal
    return replace(renewal, lease_id=lease.id, epoch=snapshot.head.epoch)


def _ready_rows(path: Path) -> set[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return set(connection.execute("select * from ready").fetchall())
    finally:
        connection.close()


def _put_back(path: Path, rows: set[tuple[Any, ...]]) -> None:
    connection = sqlite3.connect(path)
    try:
        with connection:
            for row in rows:
                marks = ", ".join("?" * len(row))
                connection.execute(f"insert into ready values ({marks})", row)
    finally:
        connection.close()
