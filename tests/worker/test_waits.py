"""Waiting for signals in a handler: in order, never early, without a slot, and recorded."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from flowfabric import (
    Context,
    Fabric,
    PublicState,
    Received,
    RunFailed,
    SyncContext,
    WaitTimeout,
)
from tests.worker.bench import AGAIN, Bench, Log, Wire, kinds, until, working

HOUR = 3_600_000


class Order(msgspec.Struct):
    number: int
    note: str = ""


async def suspended(run: Any) -> bool:
    return await run.state() is PublicState.SUSPENDED


# -- one signal


async def test_a_run_waits_without_a_worker_until_the_signal_comes(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    run = await job.submit()
    assert await bench.work() == 1
    assert await suspended(run)
    assert await bench.work() == 0
    sent = await bench.fabric.signal(run, "go", {"by": "ada"})
    assert (sent.resumed, sent.duplicate) == (True, False)
    assert await bench.work() == 1
    assert await run.result() == {"by": "ada"}
    assert await bench.step_names(run) == ["signal:go"]
    assert (await run.describe()).attempts_made == 1


async def test_a_plain_function_waits_the_same_way(bench: Bench) -> None:
    @bench.fabric.task()
    def job(ctx: SyncContext) -> list[Any]:
        first = ctx.wait_for_signal("go", int)
        any_of = ctx.wait_for_any("a", "b")
        every = ctx.wait_for_all("x", "y")
        return [first, any_of.name, every]

    run = await job.submit()
    for name, value in [("go", 1), ("b", 2), ("x", 3), ("y", 4)]:
        await bench.work()
        assert await suspended(run)
        await bench.fabric.signal(run.id, name, value)
    await bench.work()
    assert await run.result() == [1, "b", {"x": 3, "y": 4}]


async def test_the_slot_is_free_meanwhile(fabric: Fabric) -> None:
    """A worker with room for one run takes another while the first one waits."""

    @fabric.task()
    async def wait(ctx: Context) -> str:
        return str(await ctx.wait_for_signal("go"))

    @fabric.task()
    async def wake(id: str) -> str:
        await fabric.signal(id, "go", "woken")
        return "woke it"

    async with working(fabric, concurrency=1) as worker:
        first = await wait.submit()
        await until(lambda: worker.completed == 1)
        second = await wake.submit(str(first.id))
        assert await second.result(60) == "woke it"
        assert await first.result(60) == "woken"


async def test_what_came_is_of_the_type_that_was_asked_for(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        order = await ctx.wait_for_signal("order", Order)
        return [type(order).__name__, order.number, await ctx.wait_for_signal("nothing")]

    run = await job.submit()
    await bench.fabric.signal(run, "order", Order(7))
    await bench.fabric.signal(run, "nothing")
    await bench.work()
    assert await run.result() == ["Order", 7, None]


async def test_a_signal_that_does_not_fit_the_type_fails_the_run_and_says_why(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> int:
        return await ctx.wait_for_signal("count", int)

    run = await job.submit()
    await bench.fabric.signal(run, "count", "many")
    await bench.work()
    with pytest.raises(RunFailed, match="Expected `int`, got `str`"):
        await run.result()


# -- never early, always in order


async def test_a_signal_before_the_run_has_started_is_not_lost(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    run = await job.submit()
    sent = await bench.fabric.signal(run, "go", "early")
    assert not sent.resumed
    await bench.work()
    assert await run.result() == "early"


async def test_what_is_there_already_keeps_the_lease(bench: Bench, log: Log) -> None:
    """No second claim, no suspension, and the handler is not run again."""

    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        log.note("top")
        await ctx.step(log.later, "step")
        return [await ctx.wait_for_signal("go"), await ctx.wait_for_signal("go")]

    run = await job.submit()
    await bench.fabric.signal(run, "go", 1)
    await bench.fabric.signal(run, "go", 2)
    assert await bench.work() == 1
    assert await run.result() == [1, 2]
    assert log == ["top", "step"]
    assert await kinds(run) == ["SIGNALLED", "SIGNALLED", "CLAIMED", "COMPLETED"]
    assert (await run.describe()).epoch == 1


async def test_signals_of_one_name_come_in_the_order_they_were_sent(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("line") for _ in range(5)]

    run = await job.submit()
    await bench.fabric.signal(run, "line", 0)
    await bench.fabric.signal(run, "line", 1)
    await bench.work()
    await bench.fabric.signal(run, "line", 2)
    await bench.fabric.signal(run, "line", 3)
    await bench.work()
    assert await suspended(run)
    await bench.fabric.signal(run, "line", 4)
    await bench.work()
    assert await run.result() == [0, 1, 2, 3, 4]


async def test_a_signal_between_two_waits_is_kept_for_the_second(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        first = await ctx.wait_for_signal("go")
        await ctx.sleep("1h")
        return [first, await ctx.wait_for_signal("go")]

    run = await job.submit()
    await bench.fabric.signal(run, "go", "one")
    await bench.work()
    assert await run.state() is PublicState.DELAYED
    await bench.fabric.signal(run, "go", "two")
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == ["one", "two"]


async def test_a_signal_of_another_name_wakes_no_run(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("a"), await ctx.wait_for_signal("b")]

    run = await job.submit()
    await bench.work()
    assert not (await bench.fabric.signal(run, "b", 2)).resumed
    assert await bench.work() == 0
    await bench.fabric.signal(run, "a", 1)
    assert await bench.work() == 1
    assert await run.result() == [1, 2]


async def test_a_signal_with_a_key_counts_once_however_often_it_is_sent(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("go"), await ctx.wait_for_signal("go")]

    run = await job.submit()
    first = await bench.fabric.signal(run, "go", 1, key="order-7")
    again = await bench.fabric.signal(run, "go", 1, key="order-7")
    assert again.duplicate
    assert again.signal == first.signal
    await bench.work()
    assert (await bench.fabric.signal(run, "go", 1, key="order-7")).duplicate
    assert await suspended(run)
    await bench.fabric.signal(run, "go", 2, key="order-8")
    await bench.work()
    assert await run.result() == [1, 2]


async def test_a_signal_can_let_the_run_go_on_later(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "go", 1, delay="1h")
    assert (await bench.work(), await run.state()) == (0, PublicState.DELAYED)
    await bench.pass_time(HOUR)
    await bench.work()
    assert await run.result() == 1


async def test_the_one_signal_of_a_wait_is_part_of_its_step(bench: Bench, wire: Wire) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("go") for _ in range(5)]

    run = await job.submit()
    for number in range(5):
        await bench.fabric.signal(run, "go", number)
    await bench.work()
    assert await run.result() == list(range(5))
    assert wire.made["signals"] == 0


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_a_handler_that_goes_on_reads_no_steps(bench: Bench, wire: Wire) -> None:
    """Where a read is a round trip, the claim brings them."""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("go") for _ in range(2)]

    run = await job.submit()
    for number in range(2):
        await bench.work()
        await bench.fabric.signal(run, "go", number)
    await bench.work()
    assert await run.result() == [0, 1]
    assert wire.made["steps"] == 0


async def test_what_was_heard_is_read_once_under_a_lease(bench: Bench, wire: Wire) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_all("a", "b") for _ in range(3)]

    run = await job.submit()
    for number in range(3):
        await bench.fabric.signal(run, "a", number)
        await bench.fabric.signal(run, "b", number)
    await bench.work()
    assert await run.result() == [{"a": number, "b": number} for number in range(3)]
    assert wire.made["signals"] == 3


# -- any and all


async def test_any_takes_the_first_and_keeps_the_others(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        first = await ctx.wait_for_any("a", "b")
        second = await ctx.wait_for_any("a", "b")
        return [first, second, await ctx.wait_for_signal("a")]

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "b", "b1", source="desk")
    at = bench.clock.now() / 1000
    await bench.fabric.signal(run, "a", "a1")
    await bench.fabric.signal(run, "a", "a2")
    await bench.work()
    first, second, third = await run.result()
    found = msgspec.convert(first, Received)
    assert (found.name, found.value, found.source) == ("b", "b1", "desk")
    assert found.at.timestamp() == at
    assert (second["name"], second["value"], third) == ("a", "a1", "a2")


async def test_all_needs_one_of_each(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> dict[str, Any]:
        return await ctx.wait_for_all("a", "b", "c")

    run = await job.submit()
    await bench.fabric.signal(run, "b", 2)
    await bench.work()
    await bench.fabric.signal(run, "a", 1)
    assert await bench.work() == 0
    assert (await bench.fabric.signal(run, "c", 3)).resumed
    await bench.work()
    assert await run.result() == {"a": 1, "b": 2, "c": 3}


# -- timeouts


async def test_a_wait_that_is_not_answered_in_time_raises(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        try:
            await ctx.wait_for_signal("go", timeout="1h")
        except TimeoutError as error:  # which a WaitTimeout is
            return str(error)
        return "signalled"

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR - 1)
    assert await bench.work() == 0
    await bench.pass_time(1)
    assert await bench.work() == 1
    assert await run.result() == "wait_timeout: nothing came in time for 'signal:go' (call 1)"


@pytest.mark.parametrize("way", ["any", "all"])
async def test_any_and_all_time_out_too(bench: Bench, way: str) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> str:
        wait = ctx.wait_for_any if way == "any" else ctx.wait_for_all
        try:
            await wait("a", "b", timeout="1h")
        except WaitTimeout:
            return "too late"
        return "in time"

    run = await job.submit()
    if way == "all":
        await bench.fabric.signal(run, "a")
    await bench.work_through(run)
    assert await run.result() == "too late"


@pytest.mark.parametrize("way", ["timeout", "operator"])
async def test_what_came_for_a_wait_that_got_too_little_is_for_the_next_one(
    bench: Bench, way: str
) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        found: dict[str, Any] = {}
        with suppress(WaitTimeout):
            found = await ctx.wait_for_all("a", "b", timeout="1h")
        return [found, await ctx.wait_for_signal("a"), await ctx.wait_for_signal("a")]

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "a", 1)
    if way == "timeout":
        await bench.pass_time(HOUR)
    else:
        await bench.engine.executions.resume(run.id)
    await bench.fabric.signal(run, "a", 2)
    await bench.work()
    assert await run.result() == [{}, 1, 2]


async def test_a_timeout_is_recorded(bench: Bench, log: Log) -> None:
    """A signal that comes later changes nothing about it, it is kept for the next wait."""

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> list[Any]:
        try:
            await ctx.wait_for_signal("go", timeout="1h")
        except WaitTimeout:
            log.note("timed out")
        if ctx.info.first:
            raise ValueError
        return [await ctx.wait_for_signal("go")]

    run = await job.submit()
    await bench.work()
    await bench.pass_time(HOUR)
    await bench.fabric.signal(run, "go", "late")
    await bench.work()
    assert await run.result() == ["late"]
    assert log == ["timed out"] * 2


async def test_a_timeout_of_zero_takes_only_what_is_there(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        found: list[Any] = []
        for _ in range(2):
            try:
                found.append(await ctx.wait_for_signal("go", timeout=0))
            except WaitTimeout:
                found.append("nothing")
        return found

    run = await job.submit()
    await bench.fabric.signal(run, "go", 1)
    await bench.work()
    await bench.pass_time(1)
    await bench.work()
    assert await run.result() == [1, "nothing"]


async def test_the_time_of_a_wait_goes_on_while_other_things_wake_the_run(bench: Bench) -> None:
    """It is counted from when it was first asked for, not from when the handler last ran."""

    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def patient() -> str:
            try:
                return str(await ctx.wait_for_signal("never", timeout="1h"))
            except WaitTimeout:
                return str((await ctx.now()).timestamp())

        return list(await ctx.gather(patient(), ctx.wait_for_signal("go"), ctx.sleep("40m")))

    run = await job.submit()
    begun = bench.clock.now()
    await bench.work()
    await bench.pass_time(HOUR // 2)
    await bench.fabric.signal(run, "go")
    await bench.work()
    await bench.pass_time(HOUR // 6)
    await bench.work()
    await bench.pass_time(HOUR // 3)
    await bench.work()
    assert await run.result() == [str((begun + HOUR) / 1000), None, None]


async def test_a_wait_whose_time_ran_out_while_no_worker_ran_is_over_at_once(bench: Bench) -> None:
    @bench.fabric.task()
    async def job(ctx: Context) -> list[Any]:
        async def patient() -> str:
            try:
                return str(await ctx.wait_for_signal("never", timeout="1h"))
            except WaitTimeout:
                return "over"

        return list(await ctx.gather(patient(), ctx.wait_for_signal("go")))

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "go", 1)
    await bench.pass_time(24 * HOUR)
    await bench.work()
    await bench.pass_time(0)
    await bench.work()
    assert await run.result() == ["over", 1]


async def test_code_may_give_a_wait_a_timeout_later(bench: Bench) -> None:
    spans: list[str | None] = [None, "1h", None]

    @bench.fabric.task(**AGAIN)
    async def job(ctx: Context) -> Any:
        await ctx.gather(ctx.wait_for_signal("a"), ctx.wait_for_signal("go", timeout=spans.pop(0)))
        return "both"

    run = await job.submit()
    await bench.work()
    await bench.fabric.signal(run, "a")
    await bench.work()
    await bench.fabric.signal(run, "go")
    await bench.work()
    assert await run.result() == "both"
