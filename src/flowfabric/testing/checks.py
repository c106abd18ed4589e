"""What a test says about a run, with an answer that tells what is so instead."""

import re
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Recorded
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.views import Description
from flowfabric.testing.stuck import tell
from flowfabric.testing.watch import is_step, plain_name
from flowfabric.worker.api.run import Run
from flowfabric.worker.run.journal import is_beside

T = TypeVar("T")


class Checks(ABC):
    """The part of a bench that only looks. Nothing here is awaited."""

    @abstractmethod
    def _open_engine(self) -> Engine:
        """The engine of the bench, which must be open."""

    def describe(self, run: Run[Any] | str) -> Description:
        """Everything known about a run, as it stands now."""
        id = run.id if isinstance(run, Run) else run
        found = at_once(self._open_engine().views.describe(id))
        if found is None:
            raise NotFound("run", id)
        return found

    def state(self, run: Run[Any]) -> PublicState:
        """Where a run stands now."""
        return self.describe(run).state

    def steps(self, run: Run[Any]) -> list[str]:
        """The names of what a run has recorded: steps, and `sleep`, `now`, `random`,
        `submit:task`, `signal:name`, `approval:name`. In the order of the code; what ran side by
        side follows, one branch after the other."""
        engine, uuid = self._open_engine(), run.id.uuid
        snapshot = at_once(engine.store.load([uuid]))[uuid]
        (found,) = at_once(engine.store.steps([(uuid, snapshot.life.generation)]))
        branches = [msgspec.json.decode(step.doc, type=Recorded).branch for step in found]
        ordered = sorted(zip(branches, found, strict=True), key=lambda p: (p[0], p[1].position))
        return [plain_name(step.name) for _, step in ordered if not is_beside(step.name)]

    def waits_for(self, run: Run[Any] | str) -> list[str]:
        """The names of the signals, approvals and callbacks that a suspended run waits for."""
        uuid = ExecutionId(run.id if isinstance(run, Run) else run).uuid
        snapshot = at_once(self._open_engine().store.load([uuid])).get(uuid)
        waits = None if snapshot is None else snapshot.life.waits
        return [] if waits is None else list(dict.fromkeys(each.key for each in waits.active))

    def assert_completed(self, run: Run[Any]) -> None:
        """The run ended in success."""
        self._assert_state(run, PublicState.COMPLETED)

    def assert_failed(self, run: Run[Any], match: str | None = None) -> None:
        """The run failed, with an error that `match` (a regular expression) is found in."""
        self._assert_state(run, PublicState.FAILED)
        failure = self.describe(run).failure
        message = failure.message if failure is not None else ""
        if match is not None and not re.search(match, message):
            raise AssertionError(f"{self._tell(run)}\nwhich does not match {match!r}")

    def assert_steps(self, run: Run[Any], names: Sequence[str]) -> None:
        """The run has recorded exactly these steps, in this order (see `steps`)."""
        found = self.steps(run)
        if len(found) != len(names) or not all(map(is_step, found, names)):
            raise AssertionError(
                f"{self._tell(run)}\n  expected steps {list(names)}\n  recorded steps {found}"
            )

    def assert_attempts(self, run: Run[Any], count: int) -> None:
        """So many attempts were made, the first one included."""
        made = self.describe(run).attempts_made
        if made != count:
            raise AssertionError(f"{self._tell(run)}\n  expected attempts {count}\n  made {made}")

    def _assert_state(self, run: Run[Any], wanted: PublicState) -> None:
        if self.describe(run).state is not wanted:
            raise AssertionError(f"expected {wanted.value}, but {self._tell(run)}")

    def _tell(self, run: Run[Any] | str, tasks: frozenset[str] | None = None) -> str:
        """One run in one line; with the names of tasks also whether its own is missing."""
        found = self.describe(run)
        attempts = at_once(self._open_engine().views.attempts(found.id))
        failures = [found.failure, *(attempt.failure for attempt in reversed(attempts))]
        error = next((failure.message for failure in failures if failure is not None), None)
        known = frozenset({found.kind}) if tasks is None else tasks
        return tell(found, known, error, self.waits_for(found.id))


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The answer of work that has nothing to wait for, because its store has no threads."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    work.close()
    raise RuntimeError("a read on the bench had to wait")
