"""OpenTelemetry for a Fabric: spans of submissions, attempts and steps, durations, and counts of
how attempts end. Needs the extra `otel`.

The span of a submission is carried with the run (`RunInfo.trace`), so that the attempts of a run,
its steps and the runs it submits are one trace, whichever processes do the work.
"""

import time
from functools import partial
from typing import Any
from uuid import UUID

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, MeterProvider, get_meter_provider
from opentelemetry.trace import (
    Span,
    SpanKind,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer_provider,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from flowfabric.core.execution.model import Route
from flowfabric.engine.commit.trace import carried_trace
from flowfabric.fabric import Fabric
from flowfabric.worker.api.hooks import AttemptEnd, Invocation, NextCall

SCOPE = "flowfabric"
_TRACEPARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()


def instrument(
    fabric: Fabric,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Reports the work of this Fabric to OpenTelemetry, through the hooks that every application
    has. Call it once, before the worker starts. The providers default to the global ones.

    Spans are named after the task or step and carry `flowfabric.run`, `flowfabric.task`,
    `flowfabric.attempt`, `flowfabric.lane` and `flowfabric.namespace`; the span of a step is inside
    that of its attempt, and that of an attempt inside that of its submission (`submit <task>`),
    which this Fabric makes from now on. The metrics are `flowfabric.attempts`, counted by task and
    outcome, and `flowfabric.attempt.duration` and `flowfabric.step.duration` in seconds.
    """
    tracer = (tracer_provider or get_tracer_provider()).get_tracer(SCOPE)
    meter = (meter_provider or get_meter_provider()).get_meter(SCOPE)
    durations = {
        kind: meter.create_histogram(
            f"flowfabric.{kind}.duration", unit="s", description=f"How long one {kind} took."
        )
        for kind in ("attempt", "step")
    }
    ends = meter.create_counter(
        "flowfabric.attempts", unit="{attempt}", description="Attempts by the way they ended."
    )

    async def trace(call: Invocation, next: NextCall) -> Any:
        is_attempt = call.kind == "attempt"
        kind = SpanKind.CONSUMER if is_attempt else SpanKind.INTERNAL
        around = _extracted(call.run.trace) if is_attempt else None
        with (
            tracer.start_as_current_span(
                call.name, context=around, kind=kind, attributes=_facts(call)
            ) as span,
            _Duration(durations[call.kind], call, span),
        ):
            return await next(call)

    async def count(end: AttemptEnd) -> None:
        ends.add(1, {"flowfabric.task": end.task, "flowfabric.outcome": end.outcome})

    fabric._client.transactions.traces.begin(partial(_submit, tracer))
    fabric.middleware(trace)
    fabric.on_attempt_end(count)


def _submit(tracer: Tracer, route: Route, run: UUID | None) -> str | None:
    """The trace of a span that marks the submission, inside the current span or that of the
    request; None if the span is not recorded and there is nothing to pass on."""
    inside = None if get_current_span().get_span_context().is_valid else _extracted(carried_trace())
    span = tracer.start_span(
        f"submit {route.kind}",
        context=inside,
        kind=SpanKind.PRODUCER,
        attributes={
            "flowfabric.task": route.kind,
            "flowfabric.lane": route.lane,
            "flowfabric.namespace": route.namespace,
        },
    )
    if run is not None:
        span.set_attribute("flowfabric.run", str(run))
    span.end()
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span))
    return carrier.get(_TRACEPARENT)


def _extracted(trace: str | None) -> Context | None:
    """The context of a trace; None, which is the current one, without a trace."""
    return None if trace is None else _propagator.extract({_TRACEPARENT: trace}, Context())


def _facts(call: Invocation) -> dict[str, str | int]:
    run = call.run
    return {
        "flowfabric.run": str(run.id),
        "flowfabric.task": run.task,
        "flowfabric.attempt": run.attempt,
        "flowfabric.lane": run.lane,
        "flowfabric.namespace": run.namespace,
    }


class _Duration:
    """Measures a block, and marks the span of a call that left before its end: because its run
    sleeps or waits, or was stopped."""

    def __init__(self, histogram: Histogram, call: Invocation, span: Span) -> None:
        self._histogram = histogram
        self._facts = {"flowfabric.task": call.run.task}
        if call.kind == "step":
            self._facts["flowfabric.step"] = call.name
        self._span = span

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._histogram.record(time.monotonic() - self._started, self._facts)
        if kind is not None and not issubclass(kind, Exception):
            self._span.set_attribute("flowfabric.interrupted", True)
