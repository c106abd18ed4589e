"""The steps of an execution as people see them."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Attempt, AttemptOutcome, Start
from flowfabric.core.execution.step import FailedTry, Recorded, Step, TryName
from flowfabric.core.execution.step_order import StepRow, in_order
from flowfabric.core.execution.step_order import plain_name as plain_name


class StepView(Struct, frozen=True, kw_only=True):
    """One call of a handler: a step, a sleep or a wait. `branch` is empty unless calls ran
    concurrently. `result` is the JSON it returned, of a wait the payload it received. `waited` says
    how a wait ended, `until` when a sleep ends. One that raised has an `error` and the number of
    its `attempt`, from 1; it is not recorded, and is called again in the next attempt. An operator
    has supplied the result of a `skipped` one. A step that an earlier release recorded has no
    times.

    `tries` is how often a step was tried. One that has failed so far has the `error` of a try, how
    many tries it has (`of`), and `next_try_at`, unless the handler went on without it."""

    name: str
    call: int = 1
    branch: str = ""
    started_at: Millis | None = None
    ended_at: Millis | None = None
    result: bytes | None = None
    waited: str | None = None
    until: Millis | None = None
    error: str | None = None
    attempt: int | None = None
    tries: int = 1
    of: int | None = None
    next_try_at: Millis | None = None
    skipped: bool = False


class _TriedCall(Struct, frozen=True):
    """What is recorded about the failed tries of one call in one turn: see `TryName`."""

    step: Step
    name: str
    first: Recorded
    last: Recorded
    failed: FailedTry

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.step.occurrence


def describe_steps(steps: Iterable[Step], attempts: Sequence[Attempt]) -> list[StepView]:
    """Recorded calls in the order of the code (see `step_order`), then the steps whose tries have
    failed, then those that raised, by attempt."""
    steps = list(steps)
    rows = [row for row in in_order(steps) if row.is_call]
    tried, turns = _tried(steps), _turns(attempts)
    calls = {(row.name, row.step.occurrence) for row in rows}
    last: dict[str, int] = {}
    for row in rows:
        last[row.branch] = max(row.step.position, last.get(row.branch, 0))
    return [
        *(_recorded(row, tried) for row in rows),
        *_failed_so_far([each for each in tried if each.key not in calls], last, attempts, turns),
        *_raised(attempts, tried, turns),
    ]


def _branch_in(name: str) -> str:
    """The branch that a step was made in, as its name has it."""
    return name.removesuffix(plain_name(name)).removesuffix("/")


def _tried(steps: Iterable[Step]) -> list[_TriedCall]:
    """The failed tries of every call and turn, the oldest turn first."""
    found: dict[tuple[str, str, int], list[tuple[Recorded, FailedTry, Step]]] = {}
    for step in steps:
        if (name := TryName.parse(step.name)) is not None:
            record = msgspec.json.decode(step.doc, type=Recorded)
            failed = msgspec.json.decode(record.value, type=FailedTry)
            key = name.turn, name.call, step.occurrence
            found.setdefault(key, []).append((record, failed, step))
    tried: list[_TriedCall] = []
    for (_, call, _), tries in found.items():
        tries.sort(key=lambda each: each[1].number)
        (first, _, _), (last, failed, step) = tries[0], tries[-1]
        tried.append(_TriedCall(step, call, first, last, failed))
    return sorted(tried, key=lambda each: each.failed.attempt)


def _turns(attempts: Sequence[Attempt]) -> dict[int, int]:
    """The first attempt of the turn that each attempt belongs to: a takeover continues a turn, a
    retry or a replay of the run starts one."""
    turns: dict[int, int] = {}
    turn = 0
    for attempt in attempts:
        if attempt.type in (Start.RETRY, Start.REPLAY):
            turn = attempt.index
        turns[attempt.index] = turn
    return turns


def _recorded(row: StepRow, tried: Sequence[_TriedCall]) -> StepView:
    step, record = row.step, row.record
    started_at = record.started_at
    if record.tries > 1:
        began = [
            each.first.started_at for each in tried if each.key == (step.name, step.occurrence)
        ]
        started_at = began[-1] if began else started_at
    waits, sleeps = bool(record.waited), record.until is not None
    payload = None if record.signal is None else record.signal.payload
    return StepView(
        name=plain_name(row.name),
        call=step.occurrence + 1,
        branch=record.branch,
        started_at=started_at,
        ended_at=record.until if sleeps else record.ended_at,
        result=payload if waits and not record.skipped else None if sleeps else bytes(record.value),
        waited=record.waited or None,
        until=record.until,
        tries=record.tries,
        skipped=record.skipped,
    )


def _failed_so_far(
    tried: Sequence[_TriedCall],
    last: Mapping[str, int],
    attempts: Sequence[Attempt],
    turns: Mapping[int, int],
) -> list[StepView]:
    """The steps that are to be tried again, or that the handler went on without; `last` is the last
    recorded position of each branch."""
    if not attempts:
        return []
    current = attempts[-1]
    raised = current.failure.step if current.failure is not None else None
    views: list[StepView] = []
    for each in tried:
        if turns.get(each.failed.attempt) != turns[current.index] or each.name == raised:
            continue
        branch = _branch_in(each.name)
        left = (
            current.outcome is AttemptOutcome.SUCCESS or last.get(branch, -1) > each.step.position
        )
        views.append(
            StepView(
                name=plain_name(each.name),
                call=each.step.occurrence + 1,
                branch=branch,
                started_at=each.first.started_at,
                error=each.failed.error,
                attempt=each.failed.attempt + 1,
                tries=each.failed.number + left,
                of=each.failed.of,
                next_try_at=None if left or current.ended_at else each.last.until,
            )
        )
    return views


def _tries_of(
    attempt: Attempt, name: str, tried: Sequence[_TriedCall], turns: Mapping[int, int]
) -> int:
    """How often a step was tried until it raised in this attempt."""
    turn = turns[attempt.index]
    failed = [
        each.failed.number
        for each in tried
        if each.name == name and turns.get(each.failed.attempt) == turn
    ]
    return (failed[-1] if failed else 0) + 1


def _raised(
    attempts: Sequence[Attempt], tried: Sequence[_TriedCall], turns: Mapping[int, int]
) -> list[StepView]:
    return [
        StepView(
            name=plain_name(attempt.failure.step),
            ended_at=attempt.ended_at,
            error=attempt.failure.message,
            attempt=attempt.index + 1,
            tries=_tries_of(attempt, attempt.failure.step, tried, turns),
        )
        for attempt in attempts
        if attempt.failure is not None and attempt.failure.step is not None
    ]
