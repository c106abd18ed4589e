"""The trace that a submission belongs to: found where it is made, carried with the execution.

A server sets what its caller has sent (`carrying`); OpenTelemetry, if an application uses it, is
the source of spans (`Traces`). Without both, a submission costs one look.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.trace import is_trace
from flowfabric.core.execution.model import Route
from flowfabric.core.execution.submission import Creation, Submission

TraceSource = Callable[[Route, UUID | None], str | None]
"""The `traceparent` under which an execution is submitted here; it may have no id yet."""

_carried: ContextVar[str | None] = ContextVar("flowfabric_trace", default=None)

carried_trace = _carried.get
"""The `traceparent` of the request that is served here, if it has sent one."""


@contextmanager
def carrying(trace: str | None) -> Iterator[None]:
    """What is submitted in this block belongs to this trace, if the text is one."""
    if trace is None or not is_trace(trace):
        yield
        return
    token = _carried.set(trace)
    try:
        yield
    finally:
        _carried.reset(token)


class Traces:
    """Gives submissions their trace. One per Fabric, shared with its engine."""

    def __init__(self) -> None:
        self._source: TraceSource | None = None

    def begin(self, source: TraceSource) -> None:
        """From now on this source is asked for the trace of a submission."""
        self._source = source

    def traced(self, creation: Creation) -> Creation:
        """The creation with its trace, if it is submitted in one."""
        if self._source is None and _carried.get() is None:
            return creation
        snapshot = creation.snapshot
        execution = snapshot.execution
        facts = execution.facts
        if facts.trace is not None:
            return creation
        facts = replace(facts, trace=self._trace(execution.route, execution.uuid))
        return replace(
            creation, snapshot=replace(snapshot, execution=replace(execution, facts=facts))
        )

    def sent(self, submission: Submission, fresh: UUID | None = None) -> Submission:
        """The same for a submission that another process makes an execution of, under the fresh id
        if it has none of its own."""
        if submission.trace is not None or (self._source is None and _carried.get() is None):
            return submission
        route = Route(submission.namespace, submission.lane, submission.kind)
        id = fresh if submission.id is None else submission.id.uuid
        return replace(submission, trace=self._trace(route, id))

    def _trace(self, route: Route, id: UUID | None) -> str | None:
        found = None if self._source is None else self._source(route, id)
        return _carried.get() if found is None else found
