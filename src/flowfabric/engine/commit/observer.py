"""What an engine does, for those who measure it. Costs one empty call where nothing is measured.

There is one observer per process, as there is one set of metrics: batches, sweeps and heartbeats
belong to the process, and all engines of it are measured together.
"""

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Snapshot

T = TypeVar("T")


class Observer:
    """Is called after the fact, sometimes from other threads, and must not raise or wait. This one
    measures nothing; a measurement overrides what it needs."""

    def flushed(self, batch: str, size: int, seconds: float) -> None:
        """So many calls of one kind have shared a write or read."""

    def created(self, snapshots: Sequence[Snapshot]) -> None:
        """These executions were submitted."""

    def applied(self, changes: Sequence[Change[Any]]) -> None:
        """These changes were committed."""

    def looked(self, lanes: Sequence[str], seconds: float) -> None:
        """A look for work in these lanes (none: all of them) took so long, whatever it found."""

    def claimed(self, snapshots: Sequence[Snapshot]) -> None:
        """Workers have taken these executions."""

    def renewed(self, kept: int, lost: int) -> None:
        """So many leases were renewed, and so many could not be: they are gone, or the store did
        not answer."""

    def swept(self, part: str, seconds: float) -> None:
        """One part of the sweep was done."""

    def refused_by_budget(self, dimension: str) -> None:
        """An execution has to wait, because a budget has none of this left."""

    def refused_by_quota(self, reason: str) -> None:
        """Executions have to wait for a quota: for its "rate" or its "concurrency"."""

    def cancelled_siblings(self, reason: str, answers: Sequence[str]) -> None:
        """A join that has fired cancelled the upstreams that were left; how each answered."""

    def resolved_flows(self, count: int) -> None:
        """The sweep has resolved so many flows that were left behind."""

    def at_capacity(self) -> None:
        """A worker has no slot for more work."""

    def shutdown_timed_out(self) -> None:
        """A server or worker has stopped before its work had ended."""

    def requested(self, method: str, path: str | None, status: int, seconds: float) -> None:
        """A server has answered a request of this route; None if there is no such route."""

    def following(self, kind: str, change: int) -> None:
        """One more (1) or one less (-1) of what takes a while is under way: a client that follows
        a "stream" or "sse", or a flow that must "cancel" its members."""


class _Current:
    observer = Observer()


def watching() -> Observer:
    """The observer of this process."""
    return _Current.observer


def watch(observer: Observer) -> None:
    """From now on this observer is called."""
    _Current.observer = observer


@contextmanager
def followed(kind: str) -> Iterator[None]:
    """Something takes as long as the block runs, such as a client that follows a stream."""
    seen = watching()  # the same at the end, so that the two add up to zero
    seen.following(kind, 1)
    try:
        yield
    finally:
        seen.following(kind, -1)


@contextmanager
def looking(*lanes: str) -> Iterator[None]:
    """Looks for work in these lanes while the block runs, and says how long it took."""
    began = monotonic()
    try:
        yield
    finally:
        watching().looked(lanes, monotonic() - began)


async def timed(part: str, work: Awaitable[T]) -> T:
    """Does one part of the sweep and says how long it took."""
    began = monotonic()
    try:
        return await work
    finally:
        watching().swept(part, monotonic() - began)
