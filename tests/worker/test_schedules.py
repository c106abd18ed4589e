"""Schedules as an application declares them: with a task, or while it runs."""

from datetime import timedelta
from typing import Any

import pytest

from flowfabric import CatchUp, Context, Fabric, Invalid, NotFound, Retry
from flowfabric.store.queries import Query
from tests.worker.bench import Bench, working

MINUTE = 60_000


def report(day: int, *, loud: bool = False) -> str:
    return f"{day}{'!' if loud else ''}"


async def results(bench: Bench) -> list[Any]:
    """What every run returned so far, the oldest first."""
    found = (await bench.engine.views.list(Query())).items
    runs = [await bench.fabric.run(info.id) for info in reversed(found)]
    return [await run.result() for run in runs]


# -- with a task


async def test_a_schedule_brings_the_limits_of_its_task(bench: Bench) -> None:
    """Any worker may fire it, also one that does not know the task."""

    @bench.fabric.task(every="1m", concurrency=1)
    async def tick() -> str:
        return "tick"

    @bench.fabric.task(rate="1/m")
    async def tock() -> str:
        return "tock"

    await bench.fabric.schedules.declare()
    await bench.fabric.schedules.put("tock", tock, every="1h")
    runs = [await bench.fabric.schedules.trigger(name) for name in ("tick", "tock")]
    await bench.work()
    assert [await run.result() for run in runs] == ["tick", "tock"]


async def test_a_worker_declares_what_its_tasks_say(bench: Bench) -> None:
    @bench.fabric.task(
        schedule="*/5 * * * *", timezone="Europe/Berlin", catch_up="all", lane="slow", priority=3
    )
    async def tick() -> str:
        return "tick"

    assert await bench.fabric.schedules.list() == []
    await bench.work()
    (schedule,) = await bench.fabric.schedules.list()
    assert (schedule.name, schedule.task, schedule.cron) == ("tick", "tick", "*/5 * * * *")
    assert (schedule.timezone, schedule.catch_up) == ("Europe/Berlin", CatchUp.ALL)
    await bench.pass_time(10 * MINUTE)
    assert await bench.work() == 2
    assert await results(bench) == ["tick", "tick"]


async def test_declaring_again_changes_nothing(bench: Bench) -> None:
    @bench.fabric.task(every=timedelta(minutes=1), retries=3, tags={"app.size": "big"})
    async def tick() -> None: ...

    await bench.work()
    first = await bench.fabric.schedules.pause("tick")
    bench.clock.advance(10_000)
    await bench.work()
    assert await bench.fabric.schedules.get("tick") == first


async def test_an_interval_is_a_span(bench: Bench) -> None:
    @bench.fabric.task(every="1m")
    async def tick(ctx: Context, times: int = 7) -> int:
        return times

    await bench.work()
    for number in range(1, 4):
        await bench.pass_time(MINUTE)
        assert await bench.work() == 1
        assert await results(bench) == [7] * number


async def test_a_run_has_the_policy_of_its_task(bench: Bench) -> None:
    @bench.fabric.task(every="1m", retries=1, deadline="1h", tags={"app.size": "big"}, priority=4)
    async def tick(ctx: Context) -> int:
        if ctx.info.first:
            raise Retry(after=0)
        return ctx.info.priority

    await bench.work()
    await bench.pass_time(MINUTE)
    assert await bench.work() == 2
    assert await results(bench) == [4]
    run = await bench.fabric.schedules.trigger("tick")
    about = await run.describe()
    assert (about.tags, about.creator) == ({"app.size": "big"}, "schedule tick")
    assert about.deadline_at == bench.moment(60 * MINUTE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "every day"}, "not a cron expression"),
        ({"schedule": "* * * * *", "every": "5m"}, "either"),
        ({"schedule": "* * * * *", "timezone": "Mars/Olympus"}, "not a time zone"),
        ({"every": "often"}, "not a duration"),
        ({"every": "10ms"}, "at least"),
        ({"every": "5m", "catch_up": "some"}, "latest, all, none, not 'some'"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_with_the_task(
    store_url: str, options: dict[str, Any], message: str
) -> None:
    fabric = Fabric(store_url)
    with pytest.raises(Invalid, match=message):
        fabric.task(**options)(lambda: None)
    assert fabric.tasks == {}


def test_a_task_that_needs_arguments_has_no_schedule_of_its_own(store_url: str) -> None:
    with pytest.raises(Invalid, match=r"missing a required argument: 'day'.*schedules\.put"):
        Fabric(store_url).task(every="5m")(report)


# -- while it runs


async def test_a_schedule_with_arguments(bench: Bench) -> None:
    task = bench.fabric.task(lane="slow")(report)
    schedules = bench.fabric.schedules
    options: dict[str, Any] = {"args": (7,), "kwargs": {"loud": True}, "every": "1m", "priority": 2}
    first = await schedules.put("nightly", task, **options)
    assert (first.lane, first.priority, first.options["priority"]) == ("slow", 2, 2)
    bench.clock.advance(1000)
    assert await schedules.put("nightly", task, **options) == first
    await bench.pass_time(MINUTE)
    assert await bench.work(lanes=["slow"]) == 1
    assert await results(bench) == ["7!"]


async def test_a_changed_schedule_counts_from_then_on(bench: Bench) -> None:
    task = bench.fabric.task()(report)
    schedules = bench.fabric.schedules
    await schedules.put("nightly", task, args=(1,), every="1m")
    await schedules.put("nightly", task, args=(2,), every="1m", lane="fast", tags={"a.b": "c"})
    await bench.pass_time(MINUTE)
    assert await bench.work(lanes=["fast"]) == 1
    assert await results(bench) == ["2"]


async def test_arguments_that_do_not_fit_are_refused_at_once(bench: Bench) -> None:
    task = bench.fabric.task()(report)
    schedules = bench.fabric.schedules
    with pytest.raises(TypeError, match="missing a required argument"):
        await schedules.put("nightly", task, every="1m")
    with pytest.raises(Invalid, match="Expected `int`"):
        await schedules.put("nightly", task, args=("monday",), every="1m")
    with pytest.raises(Invalid, match="either"):
        await schedules.put("nightly", task, args=(1,))
    with pytest.raises(Invalid, match="lane"):
        await schedules.put("nightly", task, args=(1,), every="1m", lane="x" * 65)
    assert await schedules.list() == []


async def test_a_schedule_is_paused_resumed_triggered_and_removed(bench: Bench) -> None:
    task = bench.fabric.task()(report)
    schedules = bench.fabric.schedules
    await schedules.put("nightly", task, args=(1,), every="1m")
    assert (await schedules.pause("nightly")).paused
    await bench.pass_time(5 * MINUTE)
    assert await bench.work() == 0
    run = await schedules.trigger("nightly")
    await bench.work()
    assert await run.result() == "1"
    assert not (await schedules.resume("nightly")).paused
    await bench.pass_time(MINUTE)
    assert await bench.work() == 1
    await schedules.remove("nightly")
    for gone in (schedules.get, schedules.pause, schedules.trigger, schedules.remove):
        with pytest.raises(NotFound):
            await gone("nightly")


async def test_many_schedules_are_listed_in_pages(bench: Bench) -> None:
    task = bench.fabric.task()(report)
    for number in (2, 1, 3):
        await bench.fabric.schedules.put(f"s{number}", task, args=(number,), every="1m")
    page = await bench.fabric.schedules.list(limit=2)
    assert [schedule.name for schedule in page] == ["s1", "s2"]
    (last,) = await bench.fabric.schedules.list(after="s2")
    assert last.name == "s3"


# -- beside a worker


async def test_a_worker_fires_it(fabric: Fabric) -> None:
    """On the real clock: the shortest interval there is."""
    task = fabric.task()(report)
    async with working(fabric):
        await fabric.schedules.put("often", task, args=(1,), every=1)
        engine = await fabric.engine()
        async for event in engine.events.subscribe():
            if event.completion is not None:
                break
        run = await fabric.run(str(event.id))
    assert await run.result(60) == "1"
