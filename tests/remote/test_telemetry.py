"""Traces and metrics of an application that reaches the engine through a server only."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flowfabric import Context, Fabric, metrics
from flowfabric.metrics.exposition import render_for_one
from flowfabric.telemetry import instrument
from tests.kit.scrape import Scrape, measuring


async def test_traces_go_through_the_server(fabric: Fabric) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(fabric, tracer_provider=provider)

    @fabric.task()
    async def leaf(number: int) -> int:
        return number

    @fabric.task()
    async def root(ctx: Context) -> int:
        return sum(await ctx.map(leaf, [1, 2]))

    with provider.get_tracer("app").start_as_current_span("request"):
        await root.submit()
        await leaf.submit_many([3, 4])
        async with fabric.flow("one") as flow:
            flow.add(leaf, 5)
    await (await fabric.worker()).run_until_idle()
    spans = exporter.get_finished_spans()
    (request,) = [span for span in spans if span.name == "request"]
    found = [span for span in spans if span.name in ("leaf", "root")]
    assert len([span for span in found if span.name == "leaf"]) == 5
    ids = {span.context.span_id: span.name for span in spans if span.context}
    for span in found:
        assert span.context is not None
        assert span.parent is not None
        assert request.context is not None
        assert span.context.trace_id == request.context.trace_id
        assert ids[span.parent.span_id] == f"submit {span.name}"


async def test_its_metrics_are_those_of_its_process(fabric: Fabric) -> None:
    with measuring():
        found = Scrape((await render_for_one(await fabric.engine())).decode())
        whole = Scrape((await metrics.render(await fabric.engine())).decode())
    assert found.has("ff_lease_renewal_total")
    assert not found.has("ff_workers")
    assert not whole.has("ff_workers")
