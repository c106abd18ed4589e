"""Handlers that clean up when their run is cancelled: coroutines, threads, processes."""

import asyncio
import threading
from typing import Any

import pytest

from flowfabric import Cancelled, Context, RunCancelled, RunFailed, SyncContext, testing
from flowfabric.core.base.errors import Invalid
from flowfabric.fabric import Fabric
from flowfabric.worker.api.run import Run
from tests.worker.bench import AGAIN, Bench, Log, until, working

pytestmark = pytest.mark.rules


async def cancelled(run: Run[Any], seconds: float = 60) -> str:
    with pytest.raises(RunCancelled) as caught:
        await run.result(timeout=seconds)
    return str(caught.value)


# -- runs that wait, on a clock that stands still


async def test_a_sleeping_run_is_woken_for_its_cleanup(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task(on_cancel="cleanup")
    async def order(ctx: Context) -> None:
        await ctx.step(log.note, "charge")
        try:
            await ctx.sleep("1d")
        except Cancelled as error:
            log.append((error.reason, error.until is not None))
            await ctx.step(log.note, "refund")
            raise
        log.append("not reached")

    run = await order.submit()
    await bench.work()
    answer = await run.cancel("changed my mind")
    assert answer.until == bench.moment(30_000)
    assert (await run.state()).value == "waiting"
    await bench.work()
    assert log == ["charge", ("changed my mind", True), "refund"]
    assert "changed my mind" in await cancelled(run)
    assert "~~/Log.note" in await bench.step_names(run)


async def test_to_catch_cancelled_is_to_ask_for_a_cleanup(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task()
    async def order(ctx: Context) -> None:
        try:
            await ctx.wait_for_signal("paid")
        except Cancelled:
            await ctx.step(log.note, "undo")

    @bench.fabric.task(on_cancel="stop")
    async def other(ctx: Context) -> None:
        try:
            await ctx.wait_for_signal("paid")
        except Cancelled:
            log.append("not reached")

    runs = [await order.submit(), await other.submit()]
    await bench.work()
    answers = [await run.cancel() for run in runs]
    assert [answer.until is None for answer in answers] == [False, True]
    await bench.work()
    assert log == ["undo"]
    for run in runs:
        await cancelled(run)


async def test_a_run_that_did_not_ask_is_cancelled_at_once(bench: Bench) -> None:
    @bench.fabric.task()
    async def order(ctx: Context) -> None:
        await ctx.sleep("1d")

    run = await order.submit()
    await bench.work()
    assert (await run.cancel()).until is None
    await cancelled(run)
    assert await bench.work() == 0


async def test_a_run_that_never_began_is_cancelled_at_once(bench: Bench) -> None:
    @bench.fabric.task(on_cancel="cleanup")
    async def order(ctx: Context) -> None:
        raise AssertionError("not reached")

    run = await order.submit()
    assert (await run.cancel()).until is None
    await cancelled(run)


async def test_compensations_run_in_reverse_order_on_a_cancel(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task()
    async def trip(ctx: Context) -> None:
        await ctx.compensate(log.note, "cancel hotel")
        await ctx.step(log.note, "book hotel")
        await ctx.compensate(log.later, word="cancel flight")
        await ctx.step(log.note, "book flight")
        await ctx.sleep("1d")

    run = await trip.submit()
    await bench.work()
    assert (await run.cancel()).until is not None
    await bench.work()
    assert log == ["book hotel", "book flight", "cancel flight", "cancel hotel"]
    await cancelled(run)
    names = await bench.step_names(run)
    assert [name for name in names if "undo:" in name] == [
        "~~.~~/undo:Log.note",
        "~~.~~/undo:Log.later",
    ]


async def test_compensations_run_on_the_last_failure(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task(**{**AGAIN, "retries": 1})
    async def trip(ctx: Context) -> None:
        await ctx.compensate(log.note, "cancel hotel")
        await ctx.step(log.note, "book hotel")
        log.append("fails")
        raise ValueError("no flight")

    run = await trip.submit()
    await bench.work()
    assert log == ["book hotel", "fails", "fails", "cancel hotel"]
    with pytest.raises(RunFailed, match="no flight"):
        await run.result()


async def test_a_compensation_that_is_not_awaited_counts(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task()
    async def trip(ctx: Context, fails: bool) -> None:
        ctx.compensate(log.note, "undo")
        if fails:
            raise ValueError("no flight")
        await ctx.sleep("1d")

    failing, sleeping = await trip.submit(True), await trip.submit(False)
    await bench.work()
    assert log == ["undo"]
    await sleeping.cancel()
    await bench.work()
    assert log == ["undo", "undo"]
    with pytest.raises(RunFailed):
        await failing.result()
    await cancelled(sleeping)


async def test_one_that_cannot_be_undone_keeps_nothing_from_being_undone(bench: Bench) -> None:
    log = Log()

    def broken() -> None:
        log.append("tries")
        raise OSError("no network")

    @bench.fabric.task()
    async def trip(ctx: Context) -> None:
        await ctx.compensate(log.note, "first")
        await ctx.compensate(broken)
        await ctx.compensate(log.note, "last")
        raise ValueError("no flight")

    run = await trip.submit()
    await bench.work()
    assert log == ["last", "tries", "first"]
    with pytest.raises(RunFailed, match="no flight"):
        await run.result()


async def test_a_cleanup_that_fails_is_retried_and_does_nothing_twice(bench: Bench) -> None:
    log, broken = Log(), True

    def undo(what: str) -> None:
        if what == "hotel" and broken:
            raise OSError("no network")
        log.append(what)

    @bench.fabric.task(**AGAIN)
    async def trip(ctx: Context) -> None:
        await ctx.compensate(undo, "hotel")
        await ctx.compensate(undo, "flight")
        await ctx.sleep("1d")

    run = await trip.submit()
    await bench.work()
    await run.cancel()
    await bench.work_once()
    assert log == ["flight"]
    broken = False
    await bench.work()
    assert log == ["flight", "hotel"]
    await cancelled(run)


async def test_a_cleanup_without_retries_ends_with_its_failure(bench: Bench) -> None:
    @bench.fabric.task(on_cancel="cleanup")
    async def order(ctx: Context) -> None:
        try:
            await ctx.sleep("1d")
        except Cancelled:
            raise ValueError("cannot clean up") from None

    run = await order.submit()
    await bench.work()
    await run.cancel()
    await bench.work()
    await cancelled(run)
    failure = (await run.describe()).failure
    assert failure is not None
    assert "cannot clean up" in failure.message


async def test_a_worker_that_dies_leaves_the_rest_to_another(bench: Bench) -> None:
    log, crash = Log(), True

    @bench.fabric.task(on_cancel="cleanup", cleanup_timeout="10m")
    async def order(ctx: Context) -> None:
        await ctx.compensate(log.note, "undo")
        await ctx.step(log.note, "charge")
        try:
            await ctx.wait_for_signal("paid")
        except Cancelled:
            await ctx.step(log.note, "refund")
            if crash:
                log.append("dies")
                await bench.lose()
            await ctx.step(log.note, "mail")
            raise

    run = await order.submit()
    await bench.work()
    await run.cancel()
    await bench.work_once()
    assert log == ["charge", "refund", "dies"]
    crash = False
    await bench.work()
    assert log == ["charge", "refund", "dies", "mail", "undo"]
    await cancelled(run)


async def test_the_cleanup_of_a_run_that_fails_is_taken_over(bench: Bench) -> None:
    log, crash = Log(), True

    async def undo() -> None:
        log.append("undo")
        if crash:
            await bench.lose()

    @bench.fabric.task(cleanup_timeout="10m")
    async def order(ctx: Context) -> None:
        await ctx.compensate(log.note, "first")
        await ctx.compensate(undo)
        await ctx.step(fails)
        log.append("not reached")

    def fails() -> None:
        if crash:
            raise ValueError("no money")

    run = await order.submit()
    await bench.work_once()
    assert log == ["undo"]
    crash = False  # the step would succeed now, but what has failed is not begun again
    await bench.work()
    assert log == ["undo", "undo", "first"]
    with pytest.raises(RunFailed, match="no money"):
        await run.result()


async def test_after_the_bound_it_is_cancelled_all_the_same(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task(on_cancel="cleanup", cleanup_timeout="5s")
    async def order(ctx: Context) -> None:
        try:
            await ctx.sleep("1d")
        except Cancelled:
            await bench.pass_time(5_000)
            await ctx.step(log.note, "too late")

    run = await order.submit()
    await bench.work()
    await run.cancel()
    await bench.work()
    await cancelled(run)
    assert log == []


async def test_a_cleanup_may_wait(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task(on_cancel="cleanup", cleanup_timeout="1h")
    async def order(ctx: Context) -> None:
        try:
            await ctx.sleep("1d")
        except Cancelled:
            await ctx.step(log.note, "asks")
            await ctx.sleep("1m")
            await ctx.step(log.note, "done")

    run = await order.submit()
    await bench.work()
    await run.cancel()
    await bench.work()
    assert log == ["asks"]
    await bench.pass_time(60_000)
    await bench.work()
    assert log == ["asks", "done"]
    await cancelled(run)


async def test_what_runs_side_by_side_is_stopped_together(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task(on_cancel="cleanup")
    async def order(ctx: Context) -> None:
        async def one(number: int) -> None:
            await ctx.step(log.note, number)
            await ctx.wait_for_signal(f"go-{number}")

        try:
            await ctx.gather(one(1), one(2))
        except Cancelled:
            await ctx.gather(ctx.step(log.note, "a"), ctx.step(log.note, "b"))
            raise

    run = await order.submit()
    await bench.work()
    await run.cancel()
    await bench.work()
    assert sorted(map(str, log)) == ["1", "2", "a", "b"]
    await cancelled(run)


async def test_a_plain_function_is_told_at_its_next_call(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task()
    def order(ctx: SyncContext) -> None:
        ctx.compensate(log.note, "undo")
        ctx.step(log.note, "charge")
        try:
            ctx.sleep("1d")
        except Cancelled:
            ctx.step(log.note, "refund")
            raise

    run = await order.submit()
    await bench.work()
    await run.cancel()
    await bench.work()
    assert log == ["charge", "refund", "undo"]
    await cancelled(run)


async def test_a_replay_does_everything_again(bench: Bench) -> None:
    log = Log()

    @bench.fabric.task()
    async def order(ctx: Context) -> str:
        await ctx.compensate(log.note, "refund")
        await ctx.step(log.note, "charge")
        await ctx.wait_for_signal("paid")
        return "done"

    run = await order.submit()
    await bench.work()
    await run.cancel()
    await bench.work()
    await run.replay()
    await bench.work()
    assert log == ["charge", "refund", "charge"]
    await bench.fabric.signal(run.id, "paid")
    await bench.work()
    assert await run.result() == "done"


@pytest.mark.parametrize(
    "options",
    [{"on_cancel": "later"}, {"on_cancel": 1}, {"cleanup_timeout": "0s"}, {"cleanup_timeout": -1}],
)
async def test_bad_options_are_refused(bench: Bench, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):

        @bench.fabric.task(**options)
        async def order(ctx: Context) -> None: ...


async def test_a_compensation_is_a_function_outside_of_steps(bench: Bench) -> None:
    @bench.fabric.task()
    async def order(ctx: Context) -> None:
        with pytest.raises(Invalid, match="function"):
            ctx.compensate(7)  # type: ignore[arg-type]

        async def step() -> None:
            ctx.compensate(print)

        with pytest.raises(Invalid, match="inside step"):
            await ctx.step(step)

    run = await order.submit()
    await bench.work()
    await run.result()


def in_process() -> None: ...


@pytest.mark.parametrize("options", [{"on_cancel": "cleanup"}, {"cleanup_timeout": "1m"}])
async def test_a_process_cannot_clean_up(bench: Bench, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="process cannot clean up"):
        bench.fabric.task(process=True, **options)(in_process)


async def test_the_kit_cleans_up_as_a_worker_does() -> None:
    fabric, log = Fabric("sqlite:///unused.db"), Log()

    @fabric.task(on_cancel="cleanup", cleanup_timeout="1m")
    async def order(ctx: Context, hangs: bool) -> None:
        await ctx.compensate(log.note, "undo")
        try:
            await ctx.sleep("1d")
        except Cancelled:
            await ctx.step(log.note, "cleans up")
            await ctx.sleep("1h" if hangs else "1s")
            raise

    async with testing.harness(fabric) as harness:
        for hangs in (False, True):
            run = await order.submit(hangs)
            await harness.run_until_idle()
            await run.cancel()
            await cancelled(run, 600)
    assert log == ["cleans up", "undo", "cleans up"]


# -- handlers that run


async def test_a_running_coroutine_is_interrupted_where_it_waits(fabric: Fabric) -> None:
    log, began = Log(), asyncio.Event()

    @fabric.task(on_cancel="cleanup")
    async def order(ctx: Context) -> None:
        await ctx.step(log.note, "charge")
        try:
            began.set()
            await asyncio.sleep(60)
        except Cancelled as error:
            log.append(error.reason)
            await ctx.step(log.later, "refund")
            raise

    async with working(fabric):
        run = await order.submit()
        await began.wait()
        await run.cancel("enough")
        await cancelled(run)
    assert log == ["charge", "enough", "refund"]


async def test_a_running_step_is_interrupted_unless_it_is_shielded(fabric: Fabric) -> None:
    log, began, go = Log(), asyncio.Event(), asyncio.Event()

    async def charge() -> str:
        began.set()
        await go.wait()
        log.append("charged")
        return "receipt"

    @fabric.task(on_cancel="cleanup")
    async def order(ctx: Context, shielded: bool) -> None:
        await ctx.compensate(log.note, "undo")
        if shielded:
            receipt = await ctx.shield(ctx.step(charge))
        else:
            receipt = await ctx.step(charge)
        log.append(f"not reached with {receipt}")

    async with working(fabric) as worker:
        run = await order.submit(False)
        await began.wait()
        await run.cancel()
        await cancelled(run)
        assert log == ["undo"]
        log.clear()
        began.clear()
        run = await order.submit(True)
        await began.wait()
        await run.cancel()
        await until(lambda: any(active.notice for active in worker.active.values()))
        assert log == []
        go.set()
        await cancelled(run)
    assert log == ["charged", "undo"]


async def test_a_block_is_shielded_as_a_whole(fabric: Fabric) -> None:
    log, began, go = Log(), asyncio.Event(), asyncio.Event()

    @fabric.task(on_cancel="cleanup")
    async def order(ctx: Context) -> None:
        async with ctx.shield():
            began.set()
            await go.wait()
            await ctx.step(log.note, "charge")
            await ctx.compensate(log.note, "refund")
        log.append("not reached")

    async with working(fabric) as worker:
        run = await order.submit()
        await began.wait()
        await run.cancel()
        await until(lambda: any(active.notice for active in worker.active.values()))
        go.set()
        await cancelled(run)
    assert log == ["charge", "refund"]


async def test_a_running_thread_is_told_by_the_heartbeat(fabric: Fabric) -> None:
    log, began = Log(), threading.Event()

    @fabric.task(on_cancel="cleanup")
    def order(ctx: SyncContext) -> None:
        ctx.step(log.note, "charge")
        began.set()
        try:
            while True:
                threading.Event().wait(0.01)
                ctx.heartbeat()
        except Cancelled:
            ctx.step(log.note, "refund")
            raise

    async with working(fabric):
        run = await order.submit()
        await asyncio.to_thread(began.wait)
        await run.cancel()
        await cancelled(run)
    assert log == ["charge", "refund"]


async def test_a_thread_that_waits_for_a_coroutine_is_interrupted(fabric: Fabric) -> None:
    log, began = Log(), threading.Event()

    async def slow() -> None:
        began.set()
        await asyncio.sleep(60)

    @fabric.task(on_cancel="cleanup")
    def order(ctx: SyncContext) -> None:
        try:
            ctx.step(slow)
        except Cancelled:
            with ctx.shield():
                ctx.step(log.note, "refund")
            raise

    async with working(fabric):
        run = await order.submit()
        await asyncio.to_thread(began.wait)
        await run.cancel()
        await cancelled(run)
    assert log == ["refund"]


async def test_a_handler_that_swallows_the_cancel_is_cancelled_all_the_same(
    fabric: Fabric,
) -> None:
    began, caught = asyncio.Event(), Log()

    @fabric.task(on_cancel="cleanup")
    async def order() -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            caught.append(type(error))
        return "swallowed"

    async with working(fabric):
        run = await order.submit()
        await began.wait()
        await run.cancel()
        await cancelled(run)
    assert caught == [Cancelled]


async def test_a_second_cancel_with_force_ends_a_cleanup(fabric: Fabric) -> None:
    cleaning, over = asyncio.Event(), asyncio.Event()

    @fabric.task(on_cancel="cleanup")
    async def order() -> None:
        try:
            try:
                await asyncio.sleep(60)
            except Cancelled:
                cleaning.set()
                await asyncio.sleep(60)
        except Cancelled:
            raise AssertionError("told twice") from None
        except asyncio.CancelledError:
            over.set()
            raise

    async with working(fabric) as worker:
        run = await order.submit()
        await until(lambda: any(active.begun for active in worker.active.values()))
        await run.cancel()
        await cleaning.wait()
        assert (await run.cancel("again")).until is not None
        assert (await run.cancel("now", force=True)).until is None
        await cancelled(run)
        await asyncio.wait_for(over.wait(), 60)
