"""Spans and metrics of OpenTelemetry, made by the hooks that every application has."""

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flowfabric import Context, SyncContext
from flowfabric.telemetry import instrument
from tests.worker.bench import AGAIN, Bench


class Telemetry:
    """What was reported."""

    def __init__(self, bench: Bench) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self.reader])
        instrument(bench.fabric, tracer_provider=provider, meter_provider=meters)

    @property
    def spans(self) -> list[Any]:
        """Of calls; those of submissions are tested with what they connect."""
        spans = self.exporter.get_finished_spans()
        return [span for span in spans if not span.name.startswith("submit ")]

    def points(self, name: str) -> list[Any]:
        data: Any = self.reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        (found,) = [each for each in metrics if each.name == name]
        return list(found.data.data_points)


@pytest.fixture
def telemetry(bench: Bench) -> Telemetry:
    return Telemetry(bench)


def shout(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize("plain", [False, True])
async def test_the_span_of_a_step_is_inside_that_of_its_attempt(
    bench: Bench, telemetry: Telemetry, plain: bool
) -> None:
    @bench.fabric.task(name="greet")
    async def in_loop(ctx: Context, name: str) -> str:
        return await ctx.step(shout, name)

    @bench.fabric.task(name="plain")
    def in_thread(ctx: SyncContext, name: str) -> str:
        return ctx.step(shout, name)

    task = in_thread if plain else in_loop
    run = await task.submit("ada")
    await bench.work()
    assert await run.result() == "ADA"
    step, attempt = telemetry.spans
    assert (step.name, attempt.name) == ("shout", task.name)
    assert step.parent.span_id == attempt.context.span_id
    assert attempt.attributes["flowfabric.run"] == step.attributes["flowfabric.run"] == str(run.id)
    assert attempt.status.is_ok


async def test_an_error_is_recorded_and_ends_are_counted(
    bench: Bench, telemetry: Telemetry
) -> None:
    @bench.fabric.task(**AGAIN)
    async def odd(ctx: Context) -> None:
        if ctx.info.first:
            raise ValueError("boom")

    await odd.submit()
    await bench.work()
    failed, completed = telemetry.spans
    assert not failed.status.is_ok
    assert failed.events[0].attributes["exception.type"] == "ValueError"
    assert completed.status.is_ok
    counted = {
        point.attributes["flowfabric.outcome"]: point.value
        for point in telemetry.points("flowfabric.attempts")
    }
    assert counted == {"retrying": 1, "completed": 1}
    (duration,) = telemetry.points("flowfabric.attempt.duration")
    assert (duration.count, dict(duration.attributes)) == (2, {"flowfabric.task": "odd"})


async def test_a_sleep_interrupts_a_span_without_an_error(
    bench: Bench, telemetry: Telemetry
) -> None:
    @bench.fabric.task()
    async def sleepy(ctx: Context) -> None:
        await ctx.sleep("1h")

    await bench.work_through(await sleepy.submit())
    first, second = telemetry.spans
    assert first.attributes["flowfabric.interrupted"] is True
    assert (first.status.is_ok, first.events) == (True, ())
    assert "flowfabric.interrupted" not in second.attributes
