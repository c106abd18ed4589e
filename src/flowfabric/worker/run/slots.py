"""How many more runs a worker can take: in all, of a task with its own limit, in processes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from flowfabric.worker.api.task import Mode, Task


class ClaimRequest(Struct, frozen=True):
    """A claim to make: up to `limit` executions of these kinds."""

    kinds: frozenset[str]
    limit: int


class Slots:
    """The slots of one worker, and the claims that would fill them."""

    def __init__(
        self, concurrency: int, processes: int, tasks: Mapping[str, Task[Any, Any]]
    ) -> None:
        self._concurrency = concurrency
        self._processes = processes
        self._tasks = tasks
        self._taken: Counter[str] = Counter()
        self._all = 0
        self._vacated = 0

    @property
    def left(self) -> int:
        return self._concurrency - self._all

    def take(self, kind: str) -> None:
        self._taken[kind] += 1
        self._all += 1

    def give(self, kind: str) -> None:
        self._taken[kind] -= 1
        self._all -= 1

    def vacate(self, task: Task[Any, Any]) -> bool:
        """Gives the slot of a handler that has returned to the next run, while its end is being
        written; False if it keeps the slot until then. A worker or a task that may run one after
        the other begins the next run when the end is written. At most as many ends as there are
        slots are written beside running handlers."""
        alone = self._concurrency == 1 or task.mode is Mode.PROCESS
        limited = task.options.worker_concurrency is not None
        if alone or limited or self._vacated >= self._concurrency:
            return False
        self._vacated += 1
        self.give(task.name)
        return True

    def leave(self) -> None:
        """The end of a run that had vacated its slot is written."""
        self._vacated -= 1

    @property
    def busy(self) -> int:
        """How many handlers run."""
        return self._all

    def requests(self) -> Iterator[ClaimRequest]:
        """The claims to make, one after the other: each sees the slots the one before has left."""
        yield from self.narrow()
        yield self.wide()

    def narrow(self) -> list[ClaimRequest]:
        """Claims for tasks of which fewer runs can be taken than there are slots in all."""
        processes = self._processes_left()
        requests, in_processes = [], set()
        for name, task in self._tasks.items():
            left = self._left_of(task, processes)
            if not 0 < left < self.left:
                continue
            if left == processes and task.mode is Mode.PROCESS:
                in_processes.add(name)
            else:
                requests.append(ClaimRequest(frozenset({name}), left))
        if in_processes:
            requests.append(ClaimRequest(frozenset(in_processes), processes))
        return requests

    def wide(self) -> ClaimRequest:
        """The claim for all other tasks, in the order of the store."""
        processes = self._processes_left()
        kinds = {
            name
            for name, task in self._tasks.items()
            if self._left_of(task, processes) >= self.left
        }
        return ClaimRequest(frozenset(kinds), self.left)

    @property
    def limited(self) -> bool:
        """Whether a task has fewer slots left than there are in all."""
        processes = self._processes_left()
        return any(self._left_of(task, processes) < self.left for task in self._tasks.values())

    def _left_of(self, task: Task[Any, Any], processes: int) -> int:
        limit = task.options.worker_concurrency
        left = self.left if limit is None else min(self.left, limit - self._taken[task.name])
        return min(left, processes) if task.mode is Mode.PROCESS else left

    def _processes_left(self) -> int:
        tasks = self._tasks
        used = sum(
            count
            for name, count in self._taken.items()
            if name in tasks and tasks[name].mode is Mode.PROCESS
        )
        return self._processes - used
