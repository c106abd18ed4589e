"""The steps of an execution as people see them."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Attempt
from flowfabric.core.execution.step import Recorded, Step

NO_CALL = "~/"
"""Begins the name of what is recorded beside the calls of a handler."""

_BRANCH = "~.0123456789"


class StepView(Struct, frozen=True, kw_only=True):
    """One call of a handler: a step, a sleep or a wait. `branch` is empty unless calls ran
    concurrently. `result` is the JSON it returned, of a wait the payload it received. `waited` says
    how a wait ended, `until` when a sleep ends. One that raised has an `error` and the number of
    its `attempt`, from 1; it is not recorded, and is called again in the next attempt. A step that
    an earlier release recorded has no times."""

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


def describe_steps(steps: Iterable[Step], attempts: Sequence[Attempt]) -> list[StepView]:
    """Recorded calls in the order of the code, one branch after the other, then those that
    raised, by attempt."""
    named = [step for step in steps if not step.name.startswith(NO_CALL)]
    read = [(msgspec.json.decode(step.doc, type=Recorded), step) for step in named]
    read.sort(key=lambda pair: (pair[0].branch, pair[1].position))
    return [*(_recorded(step, record) for record, step in read), *_raised(attempts)]


def plain_name(name: str) -> str:
    """The name of a step without the branch it was made in."""
    branch, slash, rest = name.partition("/")
    return rest if slash and branch.strip(_BRANCH) == "" else name


def _recorded(step: Step, record: Recorded) -> StepView:
    waits, sleeps = bool(record.waited), record.until is not None
    payload = None if record.signal is None else record.signal.payload
    return StepView(
        name=plain_name(step.name),
        call=step.occurrence + 1,
        branch=record.branch,
        started_at=record.started_at,
        ended_at=record.until if sleeps else record.ended_at,
        result=payload if waits else None if sleeps else bytes(record.value),
        waited=record.waited or None,
        until=record.until,
    )


def _raised(attempts: Sequence[Attempt]) -> list[StepView]:
    return [
        StepView(
            name=plain_name(attempt.failure.step),
            ended_at=attempt.ended_at,
            error=attempt.failure.message,
            attempt=attempt.index + 1,
        )
        for attempt in attempts
        if attempt.failure is not None and attempt.failure.step is not None
    ]
