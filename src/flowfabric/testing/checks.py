"""Assertions about a run. A failing one says what is true instead."""

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.ids import RunId
from flowfabric.core.execution.history import plain_name
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Recorded
from flowfabric.core.execution.step_order import is_named
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.views import Views
from flowfabric.engine.limit.rounds import Rounds
from flowfabric.testing.stuck import summary
from flowfabric.worker.api.described import RunDescription, describe_run
from flowfabric.worker.api.ids import find_id
from flowfabric.worker.api.run import Run
from flowfabric.worker.run.branches import is_no_call

T = TypeVar("T")


class Checks:
    """The part of a harness that only looks. Nothing here is awaited."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    @property
    def views(self) -> Views:
        """Views that do not wait for quotas and budgets that are being looked at."""
        context = self._engine()._context
        return Views(replace(context, rounds=Rounds(context.store.hints)))

    def describe(self, run: Run[Any] | str) -> RunDescription:
        """Everything known about a run now."""
        id = self._id(run)
        found = at_once(self.views.describe(id))
        if found is None:
            raise NotFound("run", id)
        return describe_run(found)

    def _id(self, run: Run[Any] | str) -> RunId:
        return run.id if isinstance(run, Run) else at_once(find_id(self._engine(), run))

    def state(self, run: Run[Any]) -> PublicState:
        """The state of a run now."""
        return self.describe(run).state

    def steps(self, run: Run[Any]) -> list[str]:
        """The names of everything a run has recorded: its steps, and `sleep`, `now`, `random`,
        `submit:task`, `signal:name`, `approval:name`. They are in the order of the code; what ran
        concurrently follows, one branch after the other."""
        engine, uuid = self._engine(), run.id.uuid
        snapshot = at_once(engine.store.load([uuid]))[uuid]
        (found,) = at_once(engine.store.steps([(uuid, snapshot.life.generation)]))
        branches = [msgspec.json.decode(step.doc, type=Recorded).branch for step in found]
        ordered = sorted(zip(branches, found, strict=True), key=lambda p: (p[0], p[1].position))
        return [plain_name(step.name) for _, step in ordered if not is_no_call(step.name)]

    def waits_for(self, run: Run[Any] | str) -> list[str]:
        """The names of the signals, approvals and callbacks that a suspended run waits for."""
        uuid = self._id(run).uuid
        snapshot = at_once(self._engine().store.load([uuid])).get(uuid)
        waits = () if snapshot is None else snapshot.waits.active
        return list(dict.fromkeys(each.key for each in waits))

    def assert_completed(self, run: Run[Any]) -> None:
        """Asserts that the run ended in success."""
        self._assert_state(run, PublicState.COMPLETED)

    def assert_failed(self, run: Run[Any], match: str | None = None) -> None:
        """Asserts that the run failed, with an error that `match` (a regular expression) finds."""
        self._assert_state(run, PublicState.FAILED)
        failure = self.describe(run).failure
        message = failure.message if failure is not None else ""
        if match is not None and not re.search(match, message):
            raise AssertionError(f"{self.summary(run)}\nwhich does not match {match!r}")

    def assert_steps(self, run: Run[Any], names: Sequence[str]) -> None:
        """Asserts that the run has recorded exactly these steps, in this order (see `steps`)."""
        found = self.steps(run)
        if len(found) != len(names) or not all(map(is_named, found, names)):
            raise AssertionError(
                f"{self.summary(run)}\n  expected steps {list(names)}\n  recorded steps {found}"
            )

    def assert_attempts(self, run: Run[Any], count: int) -> None:
        """Asserts how many attempts were made, the first one included."""
        made = self.describe(run).attempts_made
        if made != count:
            raise AssertionError(f"{self.summary(run)}\n  expected attempts {count}\n  made {made}")

    def _assert_state(self, run: Run[Any], wanted: PublicState) -> None:
        if self.describe(run).state is not wanted:
            raise AssertionError(f"expected {wanted.value}, but {self.summary(run)}")

    def summary(self, run: Run[Any] | str, tasks: frozenset[str] | None = None) -> str:
        """One run in one line; with the names of tasks also whether its own is missing."""
        found = self.describe(run)
        attempts = at_once(self._engine().views.attempts(found.id))
        failures = [found.failure, *(attempt.failure for attempt in reversed(attempts))]
        error = next((failure.message for failure in failures if failure is not None), None)
        known = frozenset({found.kind}) if tasks is None else tasks
        return summary(found, known, error, self.waits_for(found.id))


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits, because the store of a harness has no threads."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    work.close()
    raise RuntimeError("a read in the harness had to wait")
