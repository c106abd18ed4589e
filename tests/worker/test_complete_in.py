"""Runs that end in the application's own transaction: with it, or not at all."""

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from flowfabric import Context, Invalid, LeaseLost, RunFailed, SyncContext
from flowfabric.core.execution.model import Flags
from flowfabric.engine.execution.claims import Claim
from flowfabric.worker.api.transactions import UNCOMMITTED, Completion
from tests.kit.connections import NoSale, libraries
from tests.worker.bench import AGAIN, TTL, Bench, Log
from tests.worker.flows import work
from tests.worker.test_transactions import blocking, double

pytestmark = pytest.mark.inside


async def written(bench: Bench, key: str) -> bool:
    """Whether the transaction that submitted a run under this key was committed."""
    task = bench.fabric.tasks["double"]
    return (await task.with_options(key=key).submit(0)).duplicate


async def test_a_run_ends_with_the_transaction(bench: Bench, store_url: str) -> None:
    mark = bench.fabric.task()(double)

    @bench.fabric.task(deadline="1h")
    async def job(ctx: Context, number: int) -> str:
        async with libraries(store_url)[number]() as connection:
            await mark.with_options(connection=connection, key=f"k{number}").submit(1)
            await ctx.complete_in(connection, f"result {number}")
        return "ignored"

    for number in range(len(libraries(store_url))):
        run = await job.submit(number)
        await bench.work()
        assert await run.result() == f"result {number}"
        assert [attempt.outcome for attempt in await run.attempts()] == ["ended_success"]
        assert [event.kind.name for event in await run.events()] == ["CLAIMED", "COMPLETED"]
        assert await written(bench, f"k{number}")
    await bench.pass_time(7_200_000)  # the deadline is gone with the run
    assert await run.state() == "completed"


async def test_a_plain_function_ends_its_run_in_its_own_thread(
    bench: Bench, store_url: str
) -> None:
    @bench.fabric.task()
    def job(ctx: SyncContext) -> int:
        with blocking(store_url) as connection:
            ctx.complete_in(connection, 7)
            with pytest.raises(LeaseLost):
                ctx.complete_in(connection, 8)
        return 9

    run = await job.submit()
    await bench.work()
    assert await run.result() == 7


async def test_an_awaited_connection_is_not_used_in_a_thread(bench: Bench, store_url: str) -> None:
    connect = libraries(store_url)[0]
    async with connect() as connection:
        if "async" not in repr(type(connection)):
            return

        @bench.fabric.task()
        def job(ctx: SyncContext) -> None:
            ctx.complete_in(connection)

        run = await job.submit()
        await bench.work()
        with pytest.raises(RunFailed, match="needs an event loop"):
            await run.result()


async def test_without_a_commit_the_attempt_failed(bench: Bench, store_url: str) -> None:
    for connect in libraries(store_url):

        @bench.fabric.task(name=f"job {connect}", **AGAIN)
        async def job(ctx: Context, connect: Any = connect) -> str:
            try:
                async with connect() as connection:
                    await ctx.complete_in(connection, "second")
                    if ctx.info.first:
                        raise NoSale
            except NoSale:
                return "as if nothing had happened"
            return "ignored"

        run = await job.submit()
        await bench.work()
        assert await run.result() == "second"
        first, _ = await run.attempts()
        assert first.failure is not None
        assert (first.failure.message, first.failure.category) == (UNCOMMITTED, "transient")


async def test_what_a_handler_raises_in_its_transaction_is_what_happened(
    bench: Bench, store_url: str
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        async with libraries(store_url)[0]() as connection:
            await ctx.complete_in(connection)
            raise NoSale("no stock")

    run = await job.submit()
    await bench.work()
    with pytest.raises(RunFailed, match="NoSale: no stock"):
        await run.result()


async def test_a_handler_that_raises_after_the_commit_changes_nothing(
    bench: Bench, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> str:
        async with libraries(store_url)[0]() as connection:
            await ctx.complete_in(connection, "sold")
        raise RuntimeError("too late")

    run = await job.submit()
    with caplog.at_level(logging.WARNING, "flowfabric.worker"):
        assert await bench.work() == 1
    assert await run.result() == "sold"
    (record,) = caplog.records
    assert record.message == f"run {run.id} is completed; its handler raised afterwards"
    assert "too late" in caplog.text


async def test_nothing_can_follow_the_commit(bench: Bench, store_url: str, log: Log) -> None:
    """Whether it is a step or a sleep: the run stays as it ended."""

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context, then: str) -> str:
        await ctx.step(log.later, "before")
        async with libraries(store_url)[0]() as connection:
            await ctx.complete_in(connection, "done")
        await (ctx.sleep("1h") if then == "sleep" else ctx.step(log.later, "after"))
        return "not reached"

    for then in ("sleep", "step"):
        run = await job.submit(then)
        await bench.work()
        assert await run.result() == "done"
        assert await bench.step_names(run) == ["Log.later"]


# -- twice


async def test_a_second_end_fails_its_transaction(bench: Bench, store_url: str) -> None:
    mark = bench.fabric.task()(double)

    @bench.fabric.task()
    async def job(ctx: Context, number: int) -> Any:
        connect = libraries(store_url)[number]
        async with connect() as connection:
            await mark.with_options(connection=connection, key=f"first {number}").submit(1)
            await ctx.complete_in(connection, 1)
        async with connect() as connection:
            await mark.with_options(connection=connection, key=f"second {number}").submit(1)
            await ctx.complete_in(connection, 2)

    for number in range(len(libraries(store_url))):
        run = await job.submit(number)
        await bench.work()
        assert await run.result() == 1
        assert await written(bench, f"first {number}")
        assert not await written(bench, f"second {number}")


async def test_ending_twice_in_one_transaction_is_refused(bench: Bench, store_url: str) -> None:
    for connect in libraries(store_url):

        @bench.fabric.task(name=f"job {connect}")
        async def job(ctx: Context, connect: Any = connect) -> str:
            async with connect() as connection:
                await ctx.complete_in(connection, "first")
                with pytest.raises(LeaseLost, match="in this transaction already"):
                    await ctx.complete_in(connection, "second")
            return ""

        run = await job.submit()
        await bench.work()
        assert await run.result() == "first"


async def test_after_a_rollback_the_handler_may_try_again(bench: Bench, store_url: str) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        for number in range(3):
            try:
                async with libraries(store_url)[0]() as connection:
                    await ctx.complete_in(connection, number)
                    if number < 2:
                        raise NoSale
            except NoSale:
                pass

    run = await job.submit()
    assert await bench.work() == 1
    assert await run.result() == 2


# -- the fence


async def test_a_stale_workers_whole_transaction_fails(bench: Bench, store_url: str) -> None:
    mark = bench.fabric.task()(double)
    caught: list[LeaseLost] = []

    @bench.fabric.task()
    async def job(ctx: Context, number: int) -> str:
        if not ctx.info.first:
            return "fresh"
        await bench.lose()
        try:
            async with libraries(store_url)[number]() as connection:
                await mark.with_options(connection=connection, key=f"k{number}").submit(1)
                await ctx.complete_in(connection, "stale")
        except LeaseLost as error:
            caught.append(error)
            raise
        return ""

    for number in range(len(libraries(store_url))):
        run = await job.submit(number)
        await bench.work()
        assert len(caught) == number + 1
        assert await run.result() == "fresh"
        assert not await written(bench, f"k{number}")


async def test_a_cancelled_run_cannot_be_completed(bench: Bench, store_url: str) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        await run.cancel()
        async with libraries(store_url)[0]() as connection:
            with pytest.raises(LeaseLost, match="cancelled"):
                await ctx.complete_in(connection)

    run = await job.submit()
    await bench.work()
    assert await run.state() == "cancelled"


async def test_a_renewal_by_handle_does_not_stand_in_the_way(bench: Bench, store_url: str) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        await bench.engine.attempts.renew(bench.engine.attempts.seal(ctx._scope.claim))
        async with libraries(store_url)[0]() as connection:
            await ctx.complete_in(connection, "done")

    run = await job.submit()
    await bench.work()
    assert await run.result() == "done"


# -- what cannot be


async def test_what_cannot_end_in_a_transaction_is_refused_before(
    bench: Bench, store_url: str
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        async def inside() -> None:
            await ctx.complete_in(connection)

        async with libraries(store_url)[0]() as connection:
            with pytest.raises(Invalid, match="called inside step"):
                await ctx.step(inside)
            with pytest.raises(Invalid, match="object"):
                await ctx.complete_in(connection, object())
            head = replace(ctx._scope.claim.snapshot.head, flags=Flags.DEADLINE | Flags.WAITPOINTS)
            snapshot = replace(ctx._scope.claim.snapshot, head=head)
            owns_more = Claim(snapshot, b"", TTL)
            with pytest.raises(Invalid, match="has waitpoints"):
                await Completion(bench.engine, owns_more, lambda: None).write(connection, 1)
        return "nothing was written"

    run = await job.submit()
    await bench.work()
    assert await run.result() == "nothing was written"


async def test_a_retention_of_its_own_counts(bench: Bench, store_url: str) -> None:
    @bench.fabric.task(retention="1h")
    async def job(ctx: Context) -> Any:
        async with libraries(store_url)[0]() as connection:
            await ctx.complete_in(connection)

    run = await job.submit()
    await bench.work()
    await bench.pass_time(3_600_000 - 1)
    assert await bench.engine.sweep.trim() == 0
    await bench.pass_time(1)
    assert await bench.engine.sweep.trim() == 1
    assert await bench.engine.views.state(run.id) is None


async def test_a_run_with_limits_ends_with_the_transaction(bench: Bench, store_url: str) -> None:
    """C-T96: its slot is free at once, and what it had set aside of a budget too."""
    await bench.fabric.budget("team", tokens=10)

    @bench.fabric.task(concurrency=1, budgets=["team"])
    async def job(ctx: Context, number: int) -> int:
        async with libraries(store_url)[0]() as connection, ctx.reserve(tokens=6):
            await ctx.complete_in(connection, number)
        return 0

    runs = [await job.submit(number) for number in range(3)]
    async with asyncio.timeout(9):  # less than a store waits for a lock
        await bench.work()
    assert [await run.result() for run in runs] == [0, 1, 2]
    assert (await bench.fabric.budget_status("team")).reserved == {}


async def test_a_node_of_a_flow_ends_with_the_transaction(bench: Bench, store_url: str) -> None:
    """C-T01: what comes after it starts, with its result."""

    @bench.fabric.task()
    async def first(ctx: Context, number: int) -> int:
        async with libraries(store_url)[number]() as connection:
            await ctx.complete_in(connection, number + 1)
        return 0

    second = bench.fabric.task()(double)
    for number in range(len(libraries(store_url))):
        async with bench.fabric.flow(f"flow-{number}") as flow:
            flow.add(second, flow.add(first, number).output)
        await work(bench)
        assert await flow.result(60) == 2 * (number + 1)
