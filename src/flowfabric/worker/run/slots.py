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

    @property
    def taken(self) -> int:
        """Also by threads that are left of plain functions whose runs were stopped."""
        return self._all

    @property
    def left(self) -> int:
        return self._concurrency - self._all

    def take(self, kind: str) -> None:
        self._taken[kind] += 1
        self._all += 1

    def give(self, kind: str) -> None:
        self._taken[kind] -= 1
        self._all -= 1

    def can_pass(self, kind: str, next: str) -> bool:
        """Whether a run of the `next` kind can have the slot of one of this kind."""
        return next in self._tasks and (kind == next or not self.limits(next))

    def limits(self, kind: str) -> bool:
        """Whether more than the slots of the worker limits how many runs of a kind there are."""
        task = self._tasks.get(kind)
        return task is not None and _is_limited(task)

    def requests(self) -> Iterator[ClaimRequest]:
        """The claims to make, one after the other: each sees the slots the one before has left."""
        if not self._some_limited():
            yield ClaimRequest(frozenset(self._tasks), self.left)
            return
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
        if not self._some_limited():
            return False
        processes = self._processes_left()
        return any(self._left_of(task, processes) < self.left for task in self._tasks.values())

    def _some_limited(self) -> bool:
        """Whether there is a task that the slots of the worker alone do not limit."""
        return any([_is_limited(task) for task in self._tasks.values()])

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


def _is_limited(task: Task[Any, Any]) -> bool:
    """Whether more than the slots of the worker limits how many of its runs there are."""
    return task.options.worker_concurrency is not None or task.mode is Mode.PROCESS
