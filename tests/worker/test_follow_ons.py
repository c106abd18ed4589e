"""A worker goes on with the run that follows the one it ends, in the same slot, without a claim."""

import asyncio
import contextvars
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowfabric import AttemptEnd, Fabric, Invocation, NextCall, PublicState, Task, metrics
from flowfabric.worker.api.flow import FlowBuilder
from flowfabric.worker.run.loop import Worker
from flowfabric.worker.run.options import WorkerSettings
from tests.kit.scrape import Scrape, measuring
from tests.worker.bench import TTL, Log, Wire, until, working

said: contextvars.ContextVar[str] = contextvars.ContextVar("said", default="nothing")


@pytest.fixture
async def followed(
    fabric: Fabric, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Wire]:
    """Counts calls of the store; a claim tells of weights and budgets for good."""
    monkeypatch.setattr("flowfabric.engine.limit.known_budgets.REFRESH", float("inf"))
    monkeypatch.setattr("flowfabric.engine.limit.lanes.REFRESH", float("inf"))
    yield wire
    wire.cut = False


async def chain(fabric: Fabric, task: Task[..., Any], length: int) -> FlowBuilder:
    flow = fabric.flow("chain")
    last = flow.add(task, 0, name="0")
    for n in range(1, length):
        last = flow.add(task, n, after=last, name=str(n))
    await flow.declare()
    return flow


async def warm_up(task: Task[..., Any]) -> None:
    """The first claim of a process does not know yet that there are no suspects."""
    for _ in range(2):
        await (await task.submit(-1)).result()


@pytest.mark.inside
async def test_a_chain_is_claimed_once(fabric: Fabric, followed: Wire) -> None:
    @fabric.task()
    async def job(n: int) -> int:
        return n

    async with asyncio.timeout(30), working(fabric):
        await warm_up(job)
        before = followed.made["end_and_claim"]
        assert await (await chain(fabric, job, 5)).result() == 4
    assert followed.made["end_and_claim"] - before == 4


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_worker_never_runs_more_than_it_has_slots_for(
    fabric: Fabric, followed: Wire, concurrency: int
) -> None:
    running, most = 0, 0

    @fabric.task()
    async def job(n: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        for _ in range(n % 3):
            await asyncio.sleep(0)
        running -= 1
        return n

    async with asyncio.timeout(60), working(fabric, concurrency=concurrency) as worker:
        flows = [await chain(fabric, job, 4) for _ in range(6)]
        runs = await job.submit_many([(n,) for n in range(20)])
        assert [await flow.result() for flow in flows] == [3] * 6
        assert [await run.result() for run in runs] == list(range(20))
        await until(lambda: not worker.active)
        assert worker._slots.left == concurrency
    assert most == concurrency


async def test_a_task_with_few_slots_of_its_own_keeps_its_limit(
    fabric: Fabric, followed: Wire
) -> None:
    running, most = 0, 0

    @fabric.task()
    async def job(n: int) -> int:
        return n

    @fabric.task(worker_concurrency=1)
    async def narrow(n: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        running -= 1
        return n

    async with asyncio.timeout(60), working(fabric, concurrency=4):
        flows = []
        for _ in range(6):
            flow = fabric.flow("mixed")
            first = flow.add(job, 0, name="first")
            second = flow.add(narrow, 1, after=first, name="second")
            flow.add(narrow, 2, after=second, name="third")
            await flow.declare()
            flows.append(flow)
        assert [await flow.result() for flow in flows] == [2] * 6
    assert most == 1


async def test_a_run_has_the_context_of_its_worker(
    fabric: Fabric, followed: Wire, log: Log
) -> None:
    """It was claimed by the commit of another run, whose context it must not have."""

    @fabric.middleware
    async def around(call: Invocation, next: NextCall) -> Any:
        log.note(said.get())
        said.set("by the run before")
        return await next(call)

    @fabric.task()
    async def job(n: int) -> int:
        return n

    token = said.set("by the program")
    try:
        async with asyncio.timeout(30), working(fabric):
            await (await chain(fabric, job, 4)).result()
    finally:
        said.reset(token)
    assert log == ["by the program"] * 4


async def test_listeners_have_returned_before_the_next_run_begins(
    fabric: Fabric, followed: Wire, log: Log
) -> None:
    """The slot of a run is taken until then; the next run is claimed."""

    async def told(end: AttemptEnd) -> None:
        await asyncio.sleep(0)
        log.note(f"{end.args[0]} ended")

    @fabric.task(on_success=told)
    async def job(n: int) -> int:
        log.note(n)
        return n

    async with asyncio.timeout(30), working(fabric, concurrency=1):
        await (await chain(fabric, job, 3)).result()
        await until(lambda: len(log) == 6)
    assert log == [0, "0 ended", 1, "1 ended", 2, "2 ended"]


@pytest.mark.inside
async def test_claims_are_counted(fabric: Fabric, followed: Wire) -> None:
    @fabric.task(lane="counted")
    async def job(n: int) -> int:
        return n

    with measuring():
        async with asyncio.timeout(30), working(fabric):
            await warm_up(job)
            before = Scrape((await metrics.render()).decode())
            await (await chain(fabric, job, 4)).result()
            after = Scrape((await metrics.render()).decode())
    assert after.since(before, "ff_executions_claimed_total", lane="counted") == 4
    assert after.since(before, "ff_attempt_outcome_total", lane="counted", outcome="ok") == 4
    assert after.since(before, "ff_queue_wait_seconds_count", lane="counted") == 4


@pytest.mark.inside
async def test_a_worker_that_stops_follows_no_more(
    fabric: Fabric, followed: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before the decision it claims nothing; stopped before the commit it hands back."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @fabric.task()
    async def job(n: int) -> int:
        if n == 0:
            begun.set()
            await go_on.wait()
        return n

    for late in (False, True):
        begun.clear()
        go_on.clear()
        worker = await _stop_in_the_middle(fabric, job, begun, go_on, monkeypatch, late=late)
        assert not worker.active


async def _stop_in_the_middle(
    fabric: Fabric,
    job: Task[..., Any],
    begun: asyncio.Event,
    go_on: asyncio.Event,
    monkeypatch: pytest.MonkeyPatch,
    *,
    late: bool,
) -> Worker:
    engine = await fabric.engine()
    honest = engine.store.end_and_claim
    async with asyncio.timeout(30), working(fabric) as worker:
        await warm_up(job)
        flow = await chain(fabric, job, 2)
        await begun.wait()

        async def stopped(*args: Any) -> Any:
            answer = await honest(*args)
            worker.stop()
            return answer

        with monkeypatch.context() as patch:
            if late:
                patch.setattr(engine.store, "end_and_claim", stopped, raising=False)
            else:
                worker.stop()
            go_on.set()
            await until(lambda: worker.stopping and not worker.active)
    states = {member.name: member.state for member in (await flow.graph()).members}
    assert states == {"0": PublicState.COMPLETED, "1": PublicState.WAITING}
    return worker


@pytest.mark.inside
async def test_a_worker_that_is_cancelled_begins_no_run_that_follows(
    fabric: Fabric, followed: Wire, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """The commit is answered after the worker has begun to hand its runs back."""
    begun, go_on, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
    engine = await fabric.engine()
    honest = engine.store.end_and_claim

    @fabric.task()
    async def job(n: int) -> int:
        if n >= 0:
            log.note(n)
            begun.set()
            await (go_on.wait() if n == 0 else asyncio.sleep(60))
        return n

    async def late(*args: Any) -> Any:
        answer = await honest(*args)
        asked.set()
        await asyncio.sleep(0.2)
        return answer

    worker = await fabric.worker(WorkerSettings(ttl=TTL))
    running = asyncio.create_task(worker.run())
    await warm_up(job)
    flow = await chain(fabric, job, 2)
    await begun.wait()
    with monkeypatch.context() as patch:
        patch.setattr(engine.store, "end_and_claim", late, raising=False)
        go_on.set()
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await engine.claims.drain()
    states = {member.name: member.state for member in (await flow.graph()).members}
    assert states == {"0": PublicState.COMPLETED, "1": PublicState.WAITING}
    assert log == [0]


@pytest.mark.inside
async def test_no_run_that_follows_begins_beside_a_suspect(
    fabric: Fabric, followed: Wire, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    """The worker takes a suspect while the commit that claims for it is under way."""
    engine = await fabric.engine()
    honest = engine.store.end_and_claim

    @fabric.task()
    async def job(n: int) -> int:
        return log.note(n)  # type: ignore[no-any-return]

    async with asyncio.timeout(30), working(fabric) as worker:
        await warm_up(job)
        with monkeypatch.context() as patch:

            async def beside(*args: Any) -> Any:
                answer = await honest(*args)
                patch.setattr(type(worker._ward), "closed", property(lambda _: bool(answer)))
                return answer

            patch.setattr(engine.store, "end_and_claim", beside, raising=False)
            flow = await chain(fabric, job, 2)
            await until(lambda: log[-1] == 0 and not worker.active)
            await engine.claims.drain()
            states = {member.name: member.state for member in (await flow.graph()).members}
        assert states == {"0": PublicState.COMPLETED, "1": PublicState.WAITING}
        worker._freed.set()
        assert await flow.result() == 1


@pytest.mark.inside
async def test_a_limited_task_has_a_slot_again_when_another_follows(
    fabric: Fabric, followed: Wire
) -> None:
    """The slot of the worker is passed on, that of the task is free: the worker claims for it."""
    begun, go_on, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @fabric.task()
    async def job(n: int) -> int:
        if n > 0:
            await again.wait()
        return n

    @fabric.task(worker_concurrency=1)
    async def narrow(n: int) -> int:
        if n == 0:
            begun.set()
            await go_on.wait()
        else:
            again.set()
        return n

    async with asyncio.timeout(60), working(fabric, concurrency=4):
        await warm_up(job)
        flow = fabric.flow("mixed")
        flow.add(job, 1, after=flow.add(narrow, 0, name="first"), name="second")
        await flow.declare()
        await begun.wait()
        waiting = await narrow.submit(1)
        await (await fabric.engine()).sweep.stop()  # it would wake the worker a second later
        await asyncio.sleep(0.1)
        go_on.set()
        assert await waiting.result() == 1
        assert await flow.result() == 1
