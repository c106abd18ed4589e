"""Traces connect a submission with its attempts, their steps and the runs they submit, whichever
processes do the work: the context is carried with the execution (flaw 46)."""

import logging

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flowfabric import Context
from flowfabric.core.base.errors import Invalid
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.commit.trace import carrying
from flowfabric.fabric import Fabric
from flowfabric.telemetry import instrument
from tests.kit.connections import libraries
from tests.worker.bench import AGAIN, Bench

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Spans:
    """What one process has reported."""

    def __init__(self, fabric: Fabric) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        instrument(fabric, tracer_provider=self.provider)

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (found,) = self.many(name)
        return found

    def many(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]


def child_of(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    assert child.context is not None
    same = child.context.trace_id == parent.context.trace_id
    return same and child.parent is not None and child.parent.span_id == parent.context.span_id


@pytest.fixture
def spans(bench: Bench) -> Spans:
    return Spans(bench.fabric)


def shout(text: str) -> str:
    return text.upper()


async def test_submit_attempt_and_step_are_one_trace(bench: Bench, spans: Spans) -> None:
    @bench.fabric.task()
    async def greet(ctx: Context, name: str) -> str:
        return await ctx.step(shout, name)

    with spans.provider.get_tracer("app").start_as_current_span("request"):
        run = await greet.submit("ada")
    await bench.work()
    request, submit = spans.named("request"), spans.named("submit greet")
    attempt, step = spans.named("greet"), spans.named("shout")
    assert child_of(submit, request)
    assert child_of(attempt, submit)
    assert child_of(step, attempt)
    assert submit.attributes is not None
    assert submit.attributes["flowfabric.run"] == str(run.id)


async def test_every_attempt_is_in_the_trace_of_the_submission(bench: Bench, spans: Spans) -> None:
    @bench.fabric.task(**AGAIN)
    async def odd(ctx: Context) -> None:
        if ctx.info.first:
            raise ValueError("boom")

    await odd.submit()
    await bench.work()
    submit, attempts = spans.named("submit odd"), spans.many("odd")
    assert len(attempts) == 2
    assert all(child_of(attempt, submit) for attempt in attempts)


async def test_the_runs_that_a_run_submits_are_in_its_trace(bench: Bench, spans: Spans) -> None:
    @bench.fabric.task()
    async def leaf(number: int) -> int:
        return number

    @bench.fabric.task()
    async def root(ctx: Context) -> int:
        return sum(await ctx.map(leaf, [1, 2]))

    await bench.work_through(await root.submit())
    submits, leaves = spans.many("submit leaf"), spans.many("leaf")
    first = spans.many("root")[0]
    assert (len(submits), len(leaves)) == (2, 2)
    assert all(child_of(submit, first) for submit in submits)
    assert all(any(child_of(each, submit) for submit in submits) for each in leaves)


async def test_the_members_of_a_flow_are_in_the_trace_of_their_builder(
    bench: Bench, spans: Spans
) -> None:
    @bench.fabric.task()
    async def node(number: int) -> int:
        return number

    with spans.provider.get_tracer("app").start_as_current_span("request"):
        async with bench.fabric.flow("pair") as flow:
            flow.add(node, 2, after=flow.add(node, 1))
    await bench.work()
    request = spans.named("request")
    assert request.context is not None
    found = spans.many("node")
    assert len(found) == 2
    for span in found:
        assert span.context is not None
        assert span.context.trace_id == request.context.trace_id


async def test_another_process_continues_the_trace(bench: Bench, store_url: str) -> None:
    """The process that works has its own fabric and its own spans, and nothing else in common."""

    @bench.fabric.task()
    async def greet(ctx: Context, name: str) -> str:
        return await ctx.step(shout, name)

    here = Spans(bench.fabric)
    run = await greet.submit("ada")
    there = Fabric(store_url, clock=bench.clock)
    there.task(name="greet")(greet.function)
    elsewhere = Spans(there)
    with there._lend(bench.fabric.engine):  # a store in memory has one engine
        await (await there.worker()).run_until_idle()
    assert await run.result() == "ADA"
    assert [span.name for span in here.all] == ["submit greet"]
    assert child_of(elsewhere.named("greet"), here.named("submit greet"))


async def test_a_submission_without_a_span_begins_a_trace(bench: Bench, spans: Spans) -> None:
    @bench.fabric.task()
    async def lone() -> None: ...

    await lone.submit()
    await bench.work()
    submit = spans.named("submit lone")
    assert submit.parent is None
    assert child_of(spans.named("lone"), submit)


async def test_the_trace_of_a_request_is_the_parent(bench: Bench, spans: Spans) -> None:
    @bench.fabric.task()
    async def asked() -> None: ...

    with carrying(PARENT):
        await asked.submit()
    await bench.work()
    submit = spans.named("submit asked")
    assert submit.context is not None
    assert submit.parent is not None
    assert f"{submit.context.trace_id:032x}" == TRACE
    assert f"{submit.parent.span_id:016x}" == "b7ad6b7169203331"


async def test_a_request_passes_its_trace_on_without_opentelemetry(bench: Bench) -> None:
    traces: list[str | None] = []

    @bench.fabric.task()
    async def plain(ctx: Context) -> None:
        traces.append(ctx.info.trace)

    with carrying(PARENT):
        await plain.submit()
    for wrong in ("", "nonsense", PARENT.upper(), f"00-{'0' * 32}-{'1' * 16}-01", "01" + PARENT):
        with carrying(wrong):
            await plain.submit()
    await plain.submit()
    await bench.work()
    assert sorted(traces, key=str) == [PARENT, *[None] * 6]


@pytest.mark.inside  # a transaction of the application needs the database
async def test_a_trace_survives_a_transaction_of_the_application(
    bench: Bench, spans: Spans, store_url: str
) -> None:
    @bench.fabric.task()
    async def later() -> None: ...

    connect = libraries(store_url)[0]
    async with connect() as connection:
        await later.with_options(connection=connection).submit()
    await bench.work()
    assert child_of(spans.named("later"), spans.named("submit later"))


async def test_a_trace_is_checked(bench: Bench) -> None:
    for wrong in ("", "x", PARENT + "-more", 7):
        with pytest.raises(Invalid):
            await bench.engine.executions.submit(
                Submission(kind="work", trace=wrong)  # type: ignore[arg-type]
            )


async def test_without_a_tracer_nothing_is_carried(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str | None] = []

    @bench.fabric.task()
    async def quiet(ctx: Context) -> None:
        seen.append(ctx.info.trace)
        ctx.log.warning("hello")

    run = await quiet.submit()
    with caplog.at_level(logging.WARNING):
        await bench.work()
    assert seen == [None]
    (record,) = [each for each in caplog.records if each.getMessage() == "hello"]
    assert record.run == str(run.id)  # type: ignore[attr-defined]
