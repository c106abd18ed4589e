"""What operators may change about recorded steps while no worker has the run: names and results.

A *skipped* call gets the result that an operator supplies, wherever the code makes it, and takes no
place in the order of calls. So it also lets a history fit to code that has one call more, or one
call less:

    recorded            the code                  skip `check`
    a, b                a; check; b               `check` gets the result, `b` keeps its place
    a, check, b         a; b                      `b` keeps its place, `check` is no longer missed
    a                   a; check (which raises)   `check` gets the result, the run goes on
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotEligible, NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.code import FOR_CODE
from flowfabric.core.execution.ending import event_of
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import gated
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Active, Gate, Snapshot, Waiting
from flowfabric.core.execution.step import CarriedWait, Recorded, Step
from flowfabric.core.execution.step_order import (
    NO_CALL,
    SKIPPED,
    StepRow,
    calls_named,
    find_call,
    in_order,
    plain_name,
    reference,
    split_reference,
)
from flowfabric.core.wait.model import Signal, Waited

_NOWHERE = -1
_ANSWERED = ("signal:", "callback:")
_WAITS = (*_ANSWERED, "any:", "all:", "approval:")
"""Begin the names of calls that wait."""


class SeenSteps(Struct, frozen=True):
    """The steps of a run as they were in a version of it."""

    version: int
    steps: tuple[Step, ...]


class RewriteBy(Struct, frozen=True):
    """Who changes the history of a run, and why."""

    by: str = ""
    reason: str = ""


class StepsRenamed(Struct, frozen=True):
    """`steps` are the calls with their new names."""

    id: ExecutionId
    steps: tuple[str, ...]


class StepSkipped(Struct, frozen=True):
    """`recorded` says that the call had a recorded result, which the supplied one replaces."""

    id: ExecutionId
    step: str
    recorded: bool


def check_unleased(snapshot: Snapshot | None) -> Snapshot:
    """The run, if its history may be changed: only while no worker executes it."""
    snapshot = present(snapshot)
    if isinstance(snapshot.state, Active):
        raise NotEligible(
            f"a worker executes {snapshot.run}, so its steps cannot be changed now; wait until it "
            "waits, sleeps or has ended, or cancel it"
        )
    return snapshot


def rename(
    snapshot: Snapshot | None, now: Millis, seen: SeenSteps, step: str, name: str, who: RewriteBy
) -> "Change[StepsRenamed | None]":
    """Gives recorded calls another name: all calls of a name, or one (`name#2`). None for an answer
    if the run has changed since the steps were seen."""
    snapshot = check_unleased(snapshot)
    if snapshot.head.version != seen.version:
        return unchanged(None)
    rows = in_order(seen.steps)
    chosen = calls_named(rows, step)
    if not chosen:
        find_call(rows, step)  # says what is recorded
        raise NotFound("step", f"{step!r}: it was skipped by an operator")
    for row in chosen:
        _check_renamed(row)
    old, new = _renamed(rows, chosen, name)
    if old == new:
        return unchanged(StepsRenamed(snapshot.execution.id, ()))
    names = tuple(reference(each.name, each.occurrence) for each in new if not _beside(each))
    detail = {"step": step, "name": name, **_who(who)}
    change: Change[StepsRenamed | None] = Change(
        StepsRenamed(snapshot.execution.id, names),
        snapshot,
        _rewritten(snapshot, now),
        (event_of(snapshot, now, EventKind.STEP_RENAMED, detail),),
        steps=tuple(new),
        forgotten=tuple(old),
    )
    return change


def skip(
    snapshot: Snapshot | None,
    now: Millis,
    seen: SeenSteps,
    step: str,
    result: bytes | None,
    who: RewriteBy,
) -> "Change[StepSkipped | None]":
    """Supplies the result of a call, so that it is not made. Without a result, that which is
    recorded. None for an answer if the run has changed since the steps were seen."""
    snapshot = check_unleased(snapshot)
    if snapshot.head.version != seen.version:
        return unchanged(None)
    rows = in_order(seen.steps)
    try:
        row = find_call(rows, step)
    except NotFound:
        row = None
    if result is None and row is None:
        raise Invalid(f"nothing is recorded for step {step!r} of {snapshot.run}: give its result")
    name, occurrence = split_reference(step) if row is None else (row.name, row.step.occurrence)
    _check_not_waited(snapshot, name, occurrence)
    value = bytes(row.record.value) if result is None and row is not None else result or b"null"
    mark = Step(
        generation=snapshot.life.generation,
        position=_NOWHERE if row is None else row.step.position,
        name=f"{SKIPPED}{name}",
        occurrence=occurrence,
        doc=msgspec.json.encode(_supplied(row, plain_name(name), value, now)),
    )
    gone = () if row is None else tuple(each.step for each in rows if _belongs_to(each, row))
    detail = {"step": reference(name, occurrence), "recorded": row is not None, **_who(who)}
    return Change(
        StepSkipped(snapshot.execution.id, reference(name, occurrence), row is not None),
        snapshot,
        _rewritten(snapshot, now),
        (event_of(snapshot, now, EventKind.STEP_SKIPPED, detail),),
        steps=(mark,),
        forgotten=gone,
    )


def _check_not_waited(snapshot: Snapshot, name: str, occurrence: int) -> None:
    suspension = snapshot.waits.suspension
    arms = () if suspension is None else suspension.arms
    if any(arm.step and (arm.step.name, arm.step.occurrence) == (name, occurrence) for arm in arms):
        raise NotEligible(
            f"{snapshot.run} waits at {reference(name, occurrence)!r} now; "
            "send what it waits for, or resume it"
        )


def _supplied(row: StepRow | None, name: str, value: bytes, now: Millis) -> Recorded:
    """A call that waits for an answer gets the value as if it had been sent; one that waits for
    several, or for a decision, ends as if an operator had resumed the run."""
    record = Recorded(value=msgspec.Raw(value), skipped=True, ended_at=now)
    if name.startswith(_ANSWERED):
        key, no_id = name.partition(":")[2], UUID(int=0)
        signal = Signal(0, no_id, no_id, key, key, now, payload=value)
        carried = CarriedWait(signals=(signal,))
        record = replace(record, waited=Waited.SIGNALLED, carried=carried)
    elif name.startswith(_WAITS):
        record = replace(record, waited=Waited.RESUMED)
    if row is None:
        return record
    return replace(record, branch=row.branch, opened=row.record.opened)


def _belongs_to(row: StepRow, call: StepRow) -> bool:
    """Whether a row is the call, or is recorded beside it: the end of its time, a repetition."""
    if row.record.skipped or call.record.skipped:
        return row is call
    same = (row.branch, row.step.position) == (call.branch, call.step.position)
    return same and not row.is_patch


def _check_renamed(row: StepRow) -> None:
    if row.record.waited or row.record.until is not None:
        raise Invalid(f"{row.reference!r} is a wait or a sleep; only steps can be renamed")


def _renamed(
    rows: Sequence[StepRow], chosen: Sequence[StepRow], name: str
) -> tuple[list[Step], list[Step]]:
    """The rows to be replaced, and those that replace them. If other calls have the new name, or
    keep the old one, the calls of both are counted again in the order of the code."""
    places = {id(row) for row in chosen}
    names = {id(row): _with_name(row.name, name) for row in chosen}
    touched = {*names.values(), *(row.name for row in chosen)}
    calls = [row for row in rows if row.is_call and not row.record.skipped and row.name in touched]
    counted = len(calls) > len(chosen)
    seen: dict[str, int] = {}
    old: list[Step] = []
    new: list[Step] = []
    for row in calls:
        called = names.get(id(row), row.name)
        occurrence = seen.get(called, 0) if counted else row.step.occurrence
        seen[called] = occurrence + 1
        if id(row) not in places and occurrence == row.step.occurrence:
            continue
        for each in rows:
            # Beside it may be failed tries of a step that was in its place before.
            if _belongs_to(each, row) and f"/{each.step.name}".endswith(f"/{row.name}"):
                old.append(each.step)
                told = each.step.name.removesuffix(row.name) + called
                new.append(replace(each.step, name=told, occurrence=occurrence))
    return old, new


def _with_name(full: str, name: str) -> str:
    """The new name in the branch of the old one."""
    return full.removesuffix(plain_name(full)) + name


def _beside(step: Step) -> bool:
    return step.name.startswith(NO_CALL)


def _who(who: RewriteBy) -> dict[str, str]:
    return {"by": who.by, "reason": who.reason}


def _rewritten(snapshot: Snapshot, now: Millis) -> Snapshot:
    """The run with another history: what was blocked by code may be claimed again, also by code
    that did not fit before."""
    life = replace(snapshot.life, touched_at=now)
    if not snapshot.attempts_made:
        life = replace(life, seeded=True)
    match snapshot.state:
        case Waiting(gate=Gate.BLOCKED, next=next) if life.blocked == FOR_CODE:
            life = replace(life, blocked=None, detail=None, code=None)
            return gated(snapshot, now, next, life)
        case _:
            return snapshot.to(snapshot.state, life=life)
