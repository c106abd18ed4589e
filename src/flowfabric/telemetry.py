"""OpenTelemetry for a Fabric: spans and durations of attempts and steps, and counts of how attempts
end. Needs the extra `otel`."""

import time
from typing import Any

from opentelemetry.metrics import Histogram, MeterProvider, get_meter_provider
from opentelemetry.trace import Span, SpanKind, TracerProvider, get_tracer_provider

from flowfabric.fabric import Fabric
from flowfabric.worker.api.hooks import AttemptEnd, Invocation, NextCall

SCOPE = "flowfabric"


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
    that of its attempt. The metrics are `flowfabric.attempts`, counted by task and outcome, and
    `flowfabric.attempt.duration` and `flowfabric.step.duration` in seconds.
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
        kind = SpanKind.CONSUMER if call.kind == "attempt" else SpanKind.INTERNAL
        with (
            tracer.start_as_current_span(call.name, kind=kind, attributes=_facts(call)) as span,
            _Duration(durations[call.kind], call, span),
        ):
            return await next(call)

    async def count(end: AttemptEnd) -> None:
        ends.add(1, {"flowfabric.task": end.task, "flowfabric.outcome": end.outcome})

    fabric.middleware(trace)
    fabric.on_attempt_end(count)


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
