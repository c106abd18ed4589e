"""What a flow refuses, the same flow again, and steering one."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flowfabric import Fabric, Fail, FlowFailed, PublicState, Quorum
from flowfabric.core.base.errors import FlowConflict, Invalid, InvalidGraph, NotFound
from flowfabric.worker.api.flow import FlowBuilder, Node
from tests.worker.bench import Bench, Log, working
from tests.worker.flows import Tasks, states, work


class Odd(NamedTuple):
    x: Any


@pytest.fixture
def tasks(bench: Bench, log: Log) -> Tasks:
    return Tasks(bench.fabric, log)


# -- refused


async def test_a_flow_that_cannot_run_creates_nothing(bench: Bench, tasks: Tasks) -> None:
    spoils: list[Callable[[FlowBuilder, Node[str]], object]] = [
        lambda flow, a: flow.add(tasks.one, after=a, join=Quorum(2)),
        lambda flow, a: flow.add(tasks.one.with_options(key="k"), after=a),
    ]
    for spoil in spoils:
        with pytest.raises(InvalidGraph):
            async with bench.fabric.flow("nightly") as flow:
                spoil(flow, flow.add(tasks.one))
        with pytest.raises(NotFound):
            await flow.state()
        with pytest.raises(NotFound):
            await flow.nodes["one"].run.state()
    with pytest.raises(InvalidGraph):
        async with bench.fabric.flow("empty"):
            pass
    assert await work(bench) == 0


async def test_a_flow_that_was_declared_takes_no_more_nodes(bench: Bench, tasks: Tasks) -> None:
    """They would never be created; the flow itself goes on as it was declared"""
    async with bench.fabric.flow("nightly") as flow:
        node = flow.add(tasks.one)
    with pytest.raises(InvalidGraph, match="before its block ends"):
        flow.add(tasks.one, after=node)
    await flow.declare()
    assert await work(bench) == 1
    assert await flow.result(60) == await node.run.result()


async def test_what_is_wrong_with_a_node_is_said_where_it_is_added(
    bench: Bench, tasks: Tasks
) -> None:
    fabric, stranger = bench.fabric, bench.fabric.flow("other").add(tasks.one)
    async with fabric.flow("nightly") as flow:
        good = flow.add(tasks.one)
        with pytest.raises(InvalidGraph):
            flow.add(tasks.one, after=good, on="sometimes")
        with pytest.raises(InvalidGraph):
            flow.add(tasks.one, name="one")
        with pytest.raises(InvalidGraph):
            flow.add(tasks.one, after=stranger)
        with pytest.raises(InvalidGraph):
            flow.add(tasks.show, stranger.output)
        with pytest.raises(InvalidGraph):
            flow.add(tasks.one, after="one")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            flow.add(tasks.plain)
        with pytest.raises(Invalid):
            flow.add(tasks.plain, "x")
        with pytest.raises(Invalid):
            flow.add(tasks.show, Odd(good.output))
        with pytest.raises(Invalid):
            flow.add(tasks.show, {good.output})
        with pytest.raises(Invalid):
            flow.add(tasks.one.with_options(id="x"))
    assert list(flow.nodes) == ["one"], "nothing of what was refused is left"
    await work(bench)
    assert await flow.result(60) == "one"


# -- the same again


async def test_a_key_names_one_flow(bench: Bench, tasks: Tasks, log: Log) -> None:
    async def declare(word: str, key: str | None = "day-1", **options: Any) -> FlowBuilder:
        async with bench.fabric.flow("nightly", key=key, **options) as flow:
            flow.add(tasks.one, word)
        return flow

    first = await declare("a")
    await work(bench)
    bench.clock.advance(1_000)
    again = await declare("a")
    assert (first.id, first.created, again.created) == (again.id, True, False)
    assert await again.result(60) == "a"
    with pytest.raises(FlowConflict):
        await declare("b")
    assert len({(await declare("a", key)).id for key in ("x", "y", None, None)}) == 4
    assert (await declare("a", namespace="other")).id != first.id
    await work(bench)
    assert log == ["a"] * 6


async def test_declaring_from_many_places_at_once_makes_one_flow(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    async def declare() -> bool:
        async with bench.fabric.flow("nightly", key="k") as flow:
            rows = flow.add(tasks.rows, 3)
            flow.add(tasks.total, rows.output)
        return flow.created

    assert sum(await asyncio.gather(*(declare() for _ in range(8)))) == 1
    assert await work(bench) == 2


async def test_the_options_of_a_call_hold_for_its_node(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("nightly", namespace="acme", tags={"app.x": "1"}) as flow:
        node = flow.add(
            tasks.one.with_options(priority=7, lane="slow", tags={"app.y": "2"}, delay="1h"), "a"
        )
    seen = await node.run.describe()
    assert (seen.priority, seen.lane, seen.namespace) == (7, "slow", "acme")
    assert (seen.tags, seen.state) == ({"app.y": "2"}, PublicState.DELAYED)
    (found,) = await bench.engine.flow_views.page(tag=("app.x", "1"))
    assert (found.id, found.kind) == (flow.id, "nightly")


# -- steering


async def test_a_flow_is_cancelled_with_its_handlers(fabric: Fabric, log: Log) -> None:
    begun = asyncio.Event()

    @fabric.task()
    async def long() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.note("stopped")
            raise

    async with fabric.flow("nightly") as flow:
        flow.add(long, after=flow.add(long, name="first"))
    async with working(fabric):
        await begun.wait()
        answer = await flow.cancel("enough")
        assert (answer.reason, answer.remaining) == ("enough", ())
        with pytest.raises(FlowFailed, match="enough"):
            await flow.result(60)
    assert log == ["stopped"]
    assert set((await states(flow)).values()) == {"cancelled"}


async def test_a_flow_is_replayed(bench: Bench, tasks: Tasks, log: Log) -> None:
    broken = [True]

    @bench.fabric.task()
    async def flaky(word: str) -> str:
        if broken[0]:
            raise Fail("not now")
        return str(log.note(f"{word}!"))

    async with bench.fabric.flow("nightly") as flow:
        flow.add(tasks.show, flow.add(flaky, flow.add(tasks.one, "a").output).output)
    await work(bench)
    with pytest.raises(FlowFailed):
        await flow.result(60)
    broken[0] = False
    await flow.replay()
    await work(bench)
    assert await flow.result(60) == "a!"
    assert log == ["a", "a!", "a!"]


async def test_the_graph_shows_nodes_and_edges(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("nightly") as flow:
        a = flow.add(tasks.one, "a", name="first")
        flow.add(tasks.show, a.output, name="second")
    await work(bench)
    graph = await flow.graph()
    assert {(member.name, member.kind) for member in graph.members} == {
        ("first", "one"),
        ("second", "show"),
    }
    (edge,) = graph.edges
    assert (edge.edge.upstream, edge.edge.input, edge.satisfied) == (a.id.uuid, "value", True)


async def test_words_for_people(bench: Bench, tasks: Tasks) -> None:
    flow = bench.fabric.flow("nightly")
    node: Node[str] = flow.add(tasks.one)
    assert repr(node) == "Node('one')"
    assert repr(node.output) == "the output of 'one'"
    assert repr(flow).startswith("Flow('nightly', ")
