"""Going back to a chosen step: what a fork, or a replay from there, has recorded already.

    recorded: reserve, charge, ship        from `charge`
    a replay                               the same run: reserve is kept, charge and ship run again
    a fork                                 another run, which has recorded reserve

Kept steps are copied, to the next generation of the run or to the fork, and nothing is deleted
(retention deletes all generations). What the code asks for after them is new: other waitpoints,
other children, other idempotency keys.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.model import Attempt, Snapshot
from flowfabric.core.execution.step import CarriedWait, Recorded, Step, TryName
from flowfabric.core.execution.step_order import (
    LOOSE,
    NO_CALL,
    REPLACED,
    StepRow,
    find_call,
    in_order,
)
from flowfabric.core.wait.channel import channel_id
from flowfabric.core.wait.model import Pending, Signal, Waits

CALLBACK = "callback-for:"
"""Begins the name of the step that makes a callback; its value is the id of the waitpoint."""

T = TypeVar("T")


class StepCut(Struct, frozen=True):
    """The steps before the chosen one, as they were in `version` of the run."""

    version: int
    from_step: str | int
    kept: tuple[StepRow, ...]

    @property
    def waits(self) -> tuple[Recorded, ...]:
        """The records among them of waits that signals have ended."""
        records = (row.record for row in self.kept)
        return tuple(each for each in records if each.waited and each.carried is None)


class KnownWaits(Struct, frozen=True):
    """What the kept waits of a cut have received: signals by suspension, and digests of what was
    to be approved by waitpoint."""

    signals: Mapping[UUID, tuple[Signal, ...]] = {}
    abouts: Mapping[UUID, str | None] = {}


def cut_before(
    snapshot: Snapshot, steps: Iterable[Step], attempts: Iterable[Attempt], from_step: str | int
) -> StepCut:
    """What comes before a step that was recorded. Before one that has raised, or that the run is at
    now, comes everything that was. Results that an operator has supplied are kept, unless the step
    is one of these."""
    if snapshot.life.cleanup is not None:
        raise Invalid(
            f"run {snapshot.execution.uuid} has cleaned up, so that its steps may be undone; "
            "replay or fork it from the beginning, without a step"
        )
    rows = in_order(steps)
    failures = (attempt.failure for attempt in attempts)
    raised = [each.step for each in failures if each is not None and each.step is not None]
    chosen = find_call(rows, from_step, [*raised, *_begun(snapshot, rows)])
    kept = [row for row in rows if chosen is None or _is_before(row, chosen)]
    known = _without_open_calls(_with_replacements(kept))
    return StepCut(snapshot.head.version, from_step, tuple(known))


def _begun(snapshot: Snapshot, rows: Iterable[StepRow]) -> Iterator[str]:
    """The names of calls that were begun and are perhaps not recorded: steps of which a try has
    failed, and waits."""
    for row in rows:
        if (tried := TryName.parse(row.step.name)) is not None:
            yield tried.call
        elif _is_of_open(row):
            yield row.step.name.removeprefix(NO_CALL)
    suspension = snapshot.waits.suspension
    if suspension is not None:
        yield from (arm.step.name for arm in suspension.arms if arm.step is not None)


def _is_before(row: StepRow, chosen: StepRow) -> bool:
    if row.record.skipped:
        return row is not chosen
    return row.order < chosen.order and not _is_around(row, chosen)


def _is_around(row: StepRow, chosen: StepRow) -> bool:
    """Whether a row is that of a block that had begun, but not ended, at the chosen call."""
    if row.record.through is None or not row.is_call:
        return False
    calls, branches = row.record.through
    return chosen.order < (*row.order[:-1], (calls, 0, branches))


def _with_replacements(rows: Iterable[StepRow]) -> Iterable[StepRow]:
    """The rows, where what has taken the place of a record is that record."""
    plain, replacing = [], dict[tuple[str, int], list[tuple[int, StepRow]]]()
    for row in rows:
        _, mark, number = row.record.branch.rpartition(f"{LOOSE}{REPLACED}/")
        if mark:
            at = replacing.setdefault((row.branch, row.step.position), [])
            at.append((int(number), row))
        else:
            plain.append(row)
    for row in plain:
        found = replacing.get((row.branch, row.step.position)) if row.is_call else None
        if found is None:
            yield row
            continue
        _, last = max(found, key=lambda pair: pair[0])
        record = replace(row.record, value=last.record.value)
        yield replace(row, step=replace(row.step, doc=msgspec.json.encode(record)), record=record)


def _without_open_calls(rows: Iterable[StepRow]) -> list[StepRow]:
    """The rows without the failed tries and the ends of waits of calls that are not recorded
    themselves: those start over."""
    found = list(rows)
    calls = {(row.branch, row.step.position) for row in found if row.is_call}
    return [
        row for row in found if not _is_of_open(row) or (row.branch, row.step.position) in calls
    ]


def _is_of_open(row: StepRow) -> bool:
    """Whether it says how far a call has come that may not be recorded."""
    return not row.is_call and (
        TryName.parse(row.step.name) is not None or row.record.branch.endswith(LOOSE)
    )


def decided_at(record: Recorded) -> UUID | None:
    """The waitpoint at which a wait was answered, if it waited at one."""
    return record.waitpoint if record.signal is None else record.signal.waitpoint


def carry(cut: StepCut, generation: int, known: KnownWaits) -> tuple[Step, ...]:
    """The kept steps for another run or generation. Waits keep what they have received."""
    return tuple(_carried(row, generation, known) for row in cut.kept)


def _carried(row: StepRow, generation: int, known: KnownWaits) -> Step:
    step, record = row.step, row.record
    if not record.waited or record.carried is not None:
        return replace(step, generation=generation)
    received = known.signals.get(record.suspension or UUID(int=0), ())
    signals = (record.signal,) if record.signal else tuple(record.received_of(received))
    at = decided_at(record)
    wait = CarriedWait(signals, None if at is None else known.abouts.get(at))
    doc = msgspec.json.encode(replace(record, carried=wait))
    return replace(step, generation=generation, doc=doc)


def cut_replay(change: "Change[T]", cut: StepCut | None, known: KnownWaits) -> "Change[T | None]":
    """A replay that keeps only the steps of the cut; the answer is None if the run has changed
    since the cut was made. Without a cut it is the replay as it is."""
    before, after = change.before, change.after
    if cut is None or before is None or after is None:
        return change
    if before.head.version != cut.version:
        return unchanged(None)
    old = before.life
    generation = old.generation + 1
    life = replace(
        after.life,
        generation=generation,
        channels=old.generation if old.channels is None else old.channels,
        waits=None if old.waits is None else _still_wanted(before, old.waits, cut),
        orphans=(),
    )
    return replace(
        change,
        after=replace(after, head=replace(after.head, life=life)),
        steps=carry(cut, generation, known),
        events=tuple(
            replace(event, detail={**(event.detail or {}), "from_step": cut.from_step})
            if event.kind is EventKind.REPLAYED
            else event
            for event in change.events
        ),
    )


def _still_wanted(before: Snapshot, waits: Waits, cut: StepCut) -> Waits:
    """Channels stay open, and so do callbacks that were handed out before the chosen step; what
    later steps have opened is closed."""
    made = {bytes(row.record.value) for row in cut.kept if CALLBACK in row.step.name}

    def wanted(pending: Pending) -> bool:
        channel = pending.id == channel_id(before, pending.key)
        return channel or f'"{pending.id}"'.encode() in made

    return replace(waits, pending=tuple(each for each in waits.pending if wanted(each)))
