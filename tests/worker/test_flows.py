"""Flows as an application writes them, run by workers."""

import asyncio
from typing import Any

import pytest

from flowfabric import (
    AnyOf,
    Context,
    Fabric,
    FlowFailed,
    FlowState,
    InvalidGraph,
    PublicState,
    Quorum,
    Rest,
    RunSkipped,
    SyncContext,
)
from flowfabric.core.base.errors import FlowTerminal, Invalid, NotFound
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode
from flowfabric.worker.api.flow import Node
from tests.worker import handlers
from tests.worker.bench import TTL, Bench, Log, working
from tests.worker.flows import Row, Tasks, states, work


@pytest.fixture
def tasks(bench: Bench, log: Log) -> Tasks:
    return Tasks(bench.fabric, log)


# -- order and data


async def test_a_flow_runs_in_order_and_passes_typed_results(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("nightly") as flow:
        rows = flow.add(tasks.rows, 4)
        total = flow.add(tasks.total, rows.output, plus=10)
    assert flow.created
    assert await states(flow) == {"rows": "waiting", "total": "waiting_children"}
    assert await work(bench) == 2
    assert await flow.result(60) == 16
    assert await flow.state() is FlowState.COMPLETED
    assert await total.run.result() == 16
    assert await rows.run.result() == [Row(n, [str(n)]) for n in range(4)]


async def test_nothing_exists_before_the_block_ends(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("nightly") as flow:
        node = flow.add(tasks.one)
        with pytest.raises(NotFound):
            await flow.state()
        with pytest.raises(NotFound):
            await node.run.state()
        with pytest.raises(NotFound, match="it is created when its block ends"):
            await flow.result()
    assert await node.run.state() is PublicState.WAITING


async def test_nothing_is_added_after_the_block(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("nightly") as flow:
        flow.add(tasks.one, "a")
    with pytest.raises(InvalidGraph, match="add all of its nodes before its block ends"):
        flow.add(tasks.one, "b")
    await work(bench)
    assert await flow.result() == "a"


async def test_a_node_is_no_argument(bench: Bench, tasks: Tasks) -> None:
    flow = bench.fabric.flow("nightly")
    node = flow.add(tasks.one, "a")
    with pytest.raises(InvalidGraph, match="its output can"):
        flow.add(tasks.one, node)


async def test_a_block_that_raises_declares_nothing(bench: Bench, tasks: Tasks) -> None:
    flow = bench.fabric.flow("nightly")
    flow.add(tasks.one)
    with pytest.raises(KeyError):
        async with flow:
            raise KeyError
    with pytest.raises(NotFound):
        await flow.state()


async def test_after_orders_without_passing_anything(bench: Bench, tasks: Tasks, log: Log) -> None:
    async with bench.fabric.flow("nightly") as flow:
        a, b = flow.add(tasks.one, "a"), flow.add(tasks.one, "b")
        c = flow.add(tasks.one, "c", after=[a, b])
        flow.add(tasks.one, "d", after=c)
    assert list(flow.nodes) == ["one", "one#2", "one#3", "one#4"]
    await work(bench)
    assert (sorted(log[:2]), log[2:]) == (["a", "b"], ["c", "d"])


async def test_outputs_go_into_lists_and_dicts(bench: Bench, tasks: Tasks) -> None:
    """Several from one node, several nodes, odd keys"""
    async with bench.fabric.flow("nightly") as flow:
        a, b = flow.add(tasks.one, "a"), flow.add(tasks.one, "b")
        value = {
            "list": [1, a.output, [b.output, {"deep": a.output}]],
            "a/b~c\nd": (b.output, 2),
            "": a.output,
            "plain": None,
        }
        last = flow.add(tasks.show, value, x=b.output, y="y")
    await work(bench)
    assert await last.run.result() == [
        {"list": [1, "a", ["b", {"deep": "a"}]], "a/b~c\nd": ["b", 2], "": "a", "plain": None},
        {"x": "b", "y": "y"},
    ]


async def test_an_output_that_is_none_is_none(bench: Bench) -> None:
    @bench.fabric.task()
    async def nothing() -> None:
        return None

    @bench.fabric.task()
    async def show(value: int | None) -> list[int | None]:
        return [value]

    async with bench.fabric.flow("nightly") as flow:
        flow.add(show, flow.add(nothing).output)
    await work(bench)
    assert await flow.result(60) == [None]


async def test_an_upstream_without_a_result_leaves_the_argument_as_it_was(bench: Bench) -> None:
    """coordination.md 1.6: its payload is kept"""

    @bench.fabric.task()
    async def show(value: str) -> str:
        return value

    nodes = (
        GraphNode("up", Submission(kind="foreign")),
        GraphNode("down", Submission(kind=show.name, payload=b'{"value":"own"}')),
    )
    graph = Graph(nodes, (GraphEdge("up", "down", input="value"),))
    flow = await bench.engine.flows.declare("nightly", graph)
    (claim,) = await bench.engine.claims.claim(WorkerIdentity("w1", "w1-a"), ttl=TTL)
    await bench.engine.attempts.complete(claim, None)
    assert await work(bench) == 1
    assert await bench.engine.views.result(flow.members["down"]) == b'"own"'


async def test_an_output_of_the_wrong_type_fails_the_one_that_wanted_it(
    bench: Bench, tasks: Tasks
) -> None:
    async with bench.fabric.flow("nightly") as flow:
        flow.add(tasks.plain, flow.add(tasks.one).output)  # type: ignore[arg-type, unused-ignore]
    await work(bench)
    with pytest.raises(FlowFailed) as failed:
        await flow.result(60)
    assert failed.value.members == ("plain",)


async def test_plain_functions_take_and_give_outputs(bench: Bench, tasks: Tasks) -> None:
    @bench.fabric.task()
    def counted(ctx: SyncContext, number: int) -> int:
        return ctx.step(lambda: number * 2)

    async with bench.fabric.flow("nightly") as flow:
        node = flow.add(tasks.plain, 1)
        for _ in range(3):
            node = flow.add(tasks.plain, node.output)
        flow.add(counted, node.output)
    await work(bench)
    assert await flow.result(60) == 10


async def test_tasks_in_processes_take_and_give_outputs(fabric: Fabric) -> None:
    square = fabric.task(process=True)(handlers.square)
    async with fabric.flow("nightly") as flow:
        one = flow.add(square, 3)
        flow.add(square, x=flow.add(square, one.output).output)
    async with working(fabric):
        assert await flow.result(60) == 6561


async def test_a_task_with_steps_and_waits_may_be_a_node(bench: Bench, log: Log) -> None:
    @bench.fabric.task()
    async def patient(ctx: Context, word: str) -> str:
        await ctx.step(log.later, word)
        return f"{word} {await ctx.wait_for_signal('go')}"

    async with bench.fabric.flow("nightly") as flow:
        first = flow.add(patient, "a", name="first")
        flow.add(patient, first.output, name="second")
    await work(bench)
    await bench.fabric.signal(first.run, "go", 1)
    await work(bench)
    await bench.fabric.signal(flow.nodes["second"].run, "go", 2)
    await work(bench)
    assert await flow.result(60) == "a 1 2"
    assert log == ["a", "a 1"]


# -- who runs when


async def test_what_runs_after_a_failure(bench: Bench, tasks: Tasks, log: Log) -> None:
    async with bench.fabric.flow("nightly") as flow:
        bad = flow.add(tasks.boom)
        flow.add(tasks.one, "alarm", after=bad, on="failure", name="alarm")
        flow.add(tasks.one, "always", after=bad, on="any", name="always")
        flow.add(tasks.one, "never", after=bad, name="never")
    await work(bench)
    assert sorted(log) == ["alarm", "always"]
    assert await states(flow) == {
        "boom": "failed",
        "alarm": "completed",
        "always": "completed",
        "never": "skipped",
    }
    with pytest.raises(RunSkipped):
        await flow.nodes["never"].run.result(60)


async def test_an_output_that_never_came_is_none_for_who_runs_anyway(
    bench: Bench, tasks: Tasks, log: Log
) -> None:
    async with bench.fabric.flow("nightly") as flow:
        bad, good = flow.add(tasks.boom), flow.add(tasks.one, "a")
        flow.add(tasks.show, [bad.output, good.output], on="any")
    await work(bench)
    assert log == ["a", [None, "a"]]


async def test_a_cleanup_that_was_not_needed_is_no_part_of_the_result(
    bench: Bench, tasks: Tasks
) -> None:
    """Skipped nodes are as if they were not there: the last one that ran gives the result"""
    async with bench.fabric.flow("nightly") as flow:
        good = flow.add(tasks.plain, 1)
        flow.add(tasks.plain, 7, after=good, on="failure", name="alarm")
        last = flow.add(tasks.plain, good.output, name="next")
        tidy = flow.add(tasks.plain, 8, after=last, on="failure", name="tidy")
        flow.add(tasks.plain, 9, after=tidy, name="report")
    await work(bench)
    assert await flow.result(60) == 3


async def test_several_last_nodes_beside_a_cleanup_are_a_dict(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("nightly") as flow:
        one = flow.add(tasks.plain, 1, name="one")
        two = flow.add(tasks.plain, 2, name="two")
        flow.add(tasks.plain, 7, after=[one, two], on="failure", name="tidy")
    await work(bench)
    assert await flow.result(60) == {"one": 2, "two": 3}


@pytest.mark.parametrize("rest", list(Rest))
async def test_the_loser_of_a_race_is_none(
    bench: Bench, tasks: Tasks, log: Log, rest: Rest
) -> None:
    @bench.fabric.task()
    async def stuck(ctx: Context) -> str:
        return str(await ctx.wait_for_signal("never"))

    async with bench.fabric.flow("race") as flow:
        fast, slow = flow.add(tasks.one, "fast"), flow.add(stuck)
        flow.add(tasks.show, [fast.output, slow.output], join=AnyOf(rest))
    await work(bench)
    assert log == ["fast", ["fast", None]]
    if rest is Rest.CANCEL:
        assert await flow.result(60) == ["fast", None]
        assert (await states(flow))["stuck"] == "cancelled"
    else:
        assert await flow.state() is FlowState.RUNNING
        await bench.fabric.signal(slow.run, "never", "late")
        await work(bench)
        assert await flow.result(60) == ["fast", None]


async def test_a_quorum(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("vote") as flow:
        votes = [flow.add(tasks.one, word) for word in "abc"]
        bad = flow.add(tasks.boom)
        outputs = [vote.output for vote in (*votes, bad)]
        flow.add(tasks.show, outputs, join=Quorum(3, Rest.LET_RUN))
    await work(bench)
    assert (await states(flow))["show"] == "completed"
    assert await flow.nodes["show"].run.result() == ["a", "b", "c", None]


# -- results


async def test_several_last_nodes_give_a_dict(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("nightly") as flow:
        root = flow.add(tasks.one, "root")
        flow.add(tasks.show, root.output, name="left")
        flow.add(tasks.show, [root.output], name="right")
    await work(bench)
    assert await flow.result(60) == {"left": "root", "right": ["root"]}


async def test_runs_that_did_not_succeed_are_named(bench: Bench, tasks: Tasks) -> None:
    """Those who were skipped for it, and losers of races, are not"""

    @bench.fabric.task()
    async def stuck(ctx: Context) -> None:
        await ctx.wait_for_signal("never")

    async with bench.fabric.flow("nightly") as flow:
        flow.add(tasks.one, after=flow.add(tasks.boom, name="bad"))
        flow.add(tasks.boom, name="worse")
        racers: list[Node[Any]] = [flow.add(tasks.one, "fast", name="fast"), flow.add(stuck)]
        flow.add(tasks.one, after=racers, join=AnyOf(), name="winner")
    await work(bench)
    with pytest.raises(FlowFailed) as failed:
        await flow.result(60)
    assert sorted(failed.value.members) == ["bad", "worse"]
    assert str(flow.id) in str(failed.value)
    assert await flow.state() is FlowState.FAILED


async def test_of_many_runs_that_did_not_succeed_some_are_named(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("nightly") as flow:
        for number in range(7):
            flow.add(tasks.boom, name=f"bad {number}")
    await work(bench)
    with pytest.raises(
        FlowFailed, match=r"bad \d(, bad \d){4} and 2 more did not succeed"
    ) as failed:
        await flow.result(60)
    assert len(failed.value.members) == 7


async def test_a_result_may_not_come_in_time(bench: Bench, tasks: Tasks) -> None:
    async with bench.fabric.flow("nightly") as flow:
        flow.add(tasks.one)
    with pytest.raises(TimeoutError):
        await flow.result(0.001)


async def test_a_worker_in_the_background_needs_no_sweep(fabric: Fabric, log: Log) -> None:
    """What an ending makes possible is found at once"""
    tasks = Tasks(fabric, log)
    async with working(fabric):
        async with fabric.flow("wide") as flow:
            parts = [flow.add(tasks.plain, n) for n in range(20)]
            flow.add(tasks.show, [part.output for part in parts])
        assert await flow.result(60) == list(range(1, 21))


def test_a_script_without_a_loop(store_url: str, tmp_path: Any) -> None:
    async def prepare() -> None:
        async with Fabric(store_url):
            pass

    asyncio.run(prepare())
    fabric = Fabric(store_url)

    @fabric.task()
    async def add(a: int, b: int) -> int:
        return a + b

    flow = fabric.flow("nightly")
    flow.add(add, flow.add(add, 1, 2).output, 3)
    flow.declare_sync()

    async def run() -> None:
        await (await fabric.worker()).run_until_idle()

    fabric.block_on(run())
    assert flow.result_sync(60) == 6
    fabric.block_on(fabric.close())


def test_a_script_steers_a_flow_without_a_loop(store_url: str) -> None:
    fabric = Fabric(store_url)

    @fabric.task()
    async def add(a: int, b: int) -> int:
        return a + b

    try:
        with pytest.raises(ZeroDivisionError), fabric.flow("nothing") as broken:
            broken.add(add, 1, 1 // 0)
        assert fabric.flows.list_sync() == []
        with fabric.flow("nightly") as flow:
            flow.add(add, flow.add(add, 1, 2).output, 3)
        assert flow.created
        assert flow.state_sync() is FlowState.RUNNING
        assert {node.name for node in flow.graph_sync().members} == {"add", "add#2"}
        assert flow.cancel_sync("enough").reason == "enough"
        with pytest.raises(FlowTerminal):
            flow.replay_sync()
        with pytest.raises(FlowFailed, match="cancelled: enough"):
            flow.result_sync(60)
    finally:
        fabric.close_sync()


async def test_a_block_without_async_is_refused_in_an_event_loop(bench: Bench) -> None:
    with pytest.raises(Invalid, match="write `async with`"), bench.fabric.flow("nightly"):
        raise AssertionError("the block began")
    assert await bench.engine.flow_views.page() == []
