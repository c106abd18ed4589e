"""What there is, read and changed from Python: runs, lanes, workers, quotas, budgets, flows."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric import Context, Fabric, FlowState, Invalid, NotFound, PublicState
from flowfabric.core.base.time import to_datetime
from flowfabric.testing import harness
from tests.worker.bench import Bench, working


async def ids(bench: Bench, **filters: Any) -> list[str]:
    return [found.id async for found in bench.fabric.runs(**filters)]


# -- runs


async def test_runs_by_state_task_tag_lane_and_time(bench: Bench) -> None:
    @bench.fabric.task(tags={"app.team": "growth"})
    async def good() -> int:
        return 1

    @bench.fabric.task(lane="mail")
    async def bad() -> int:
        raise ValueError("no such address")

    first = await good.submit()
    bench.clock.advance(60_000)
    second = await bad.submit()
    await bench.work()
    third = await good.submit()
    assert set(await ids(bench)) == {first.id, second.id, third.id}
    assert await ids(bench, newest_first=False) == [first.id, *reversed((await ids(bench))[:2])]
    assert await ids(bench, state="failed") == [second.id]
    assert set(await ids(bench, state=["waiting", PublicState.FAILED])) == {second.id, third.id}
    assert await ids(bench, task="bad") == await ids(bench, task=bad) == [second.id]
    for tag in ("app.team=growth", ("app.team", "growth"), {"app.team": "growth"}):
        assert set(await ids(bench, tag=tag)) == {first.id, third.id}
    assert await ids(bench, lane="mail") == [second.id]
    assert first.id not in await ids(bench, since="30s")
    assert await ids(bench, until=timedelta(seconds=30)) == [first.id]
    moment = to_datetime(bench.engine.now())
    assert first.id not in await ids(bench, since=moment)
    assert len(await ids(bench, limit=2)) == 2
    assert await ids(bench, limit=0) == []
    assert await ids(bench, limit=1, newest_first=False) == [first.id]
    assert await ids(bench, task="unknown") == []


async def test_what_a_listed_run_tells(bench: Bench) -> None:
    @bench.fabric.task
    async def job(x: int) -> int:
        raise ValueError(f"{x} is too much")

    run = await job.submit(7)
    await bench.work()
    (found,) = [each async for each in bench.fabric.runs()]
    assert (found.id, found.task, found.state) == (run.id, "job", "failed")
    assert (found.lane, found.namespace, found.attempts) == ("default", "default", 1)
    assert found.failure is not None
    assert "7 is too much" in found.failure.message
    assert found.failure.detail is None
    at = to_datetime(bench.engine.now())
    assert (found.created_at, found.started_at, found.ended_at) == (at, at, at)
    assert found.created_at.tzinfo is UTC
    assert await found.run.state() is PublicState.FAILED


async def test_more_runs_than_a_page(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowfabric.worker.api.listing.MAX_PAGE", 3)

    @bench.fabric.task
    async def job(x: int) -> None: ...

    runs = await job.submit_many(range(8))
    assert set(await ids(bench)) == {run.id for run in runs}
    assert len(await ids(bench, limit=7)) == 7


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "fine"},
        {"state": 3},
        {"tag": "growth"},
        {"tag": {}},
        {"tag": {"a.b": "c", "d.e": "f"}},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"until": "yesterday"},
        {"since": -1},
        {"limit": -1},
        {"limit": "all"},
        {"newest_first": "no"},
    ],
)
async def test_filters_that_are_none_are_refused_at_the_call(
    bench: Bench, wrong: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        bench.fabric.runs(**wrong)


def test_lists_without_an_event_loop(store_url: str) -> None:
    fabric = Fabric(store_url)

    @fabric.task
    def job() -> None: ...

    try:
        run = job.submit_sync()
        assert [found.id for found in fabric.runs_sync(task=job, limit=5)] == [run.id]
        assert [lane.name for lane in fabric.lanes.list_sync()] == ["default"]
        assert fabric.quotas.set_sync("api", rate="5/s").name == "api"
        assert fabric.quota_sync("api", rate="6/s").rate is not None
        assert fabric.budget_sync("team", tokens=5).name == "team"
        assert fabric.budgets.get_sync("team").limits["tokens"].hard == 5
        assert fabric.workers.list_sync() == []
        assert fabric.flows.list_sync() == []
        fabric.budgets.delete_sync("team")
        assert fabric.budgets.list_sync() == []
    finally:
        fabric.close_sync()


# -- lanes, workers, flows


async def test_lanes(bench: Bench) -> None:
    @bench.fabric.task(lane="mail")
    async def job() -> None: ...

    await job.submit()
    lanes = bench.fabric.lanes
    assert [(lane.name, lane.state) for lane in await lanes.list()] == [("mail", "open")]
    assert (await lanes.set("mail", weight=3, concurrency=2)).weight == 3
    paused = await lanes.pause("mail", reason="provider is down", by="ada")
    assert (paused.state, paused.reason, paused.by) == ("paused", "provider is down", "ada")
    assert paused.since == to_datetime(bench.engine.now())
    assert (await lanes.drain("mail")).state == "draining"
    assert (await lanes.resume("mail")).state == "open"
    assert (await lanes.get("mail")).concurrency == 2
    assert [lane.concurrency for lane in await lanes.list(limit=1)] == [2]


async def test_workers(fabric: Fabric) -> None:
    @fabric.task
    async def job() -> int:
        return 1

    workers = fabric.workers
    with pytest.raises(NotFound, match="no worker w1"):
        await workers.get("w1")
    with pytest.raises(NotFound, match="no worker w1"):
        await workers.delete("w1", reason="gone")
    async with working(fabric):
        await (await job.submit()).result(timeout="60s")
        (found,) = await workers.list(task="job")
        assert (found.alive, found.tasks) == (True, ("job",))
        assert found.seen_at.tzinfo is UTC
        assert isinstance(found.ttl, timedelta)
        assert await workers.get(found.instance) is not None
        assert await workers.list(task="other") == []


async def test_flows(bench: Bench) -> None:
    @bench.fabric.task
    async def part(x: int) -> int:
        return x

    async with bench.fabric.flow("nightly", tags={"app.team": "growth"}) as flow:
        flow.add(part, 1)
    flows = bench.fabric.flows
    found = await flows.get(flow.id)
    assert (found.id, found.name, found.nodes, found.ended_at) == (flow.id, "nightly", 1, None)
    assert await flows.get(str(flow.id)) == found
    assert await flows.list(state="running", name="nightly", tag="app.team=growth") == [found]
    assert await flows.list(state=["failed", FlowState.COMPLETED]) == []
    await flows.cancel(flow.id, "no longer needed")
    assert (await flows.get(flow.id)).state is FlowState.CANCELLED
    with pytest.raises(NotFound):
        await flows.get(UUID(int=7))
    with pytest.raises(Invalid):
        await flows.list(state="asleep")


# -- quotas and budgets


async def test_quotas(bench: Bench) -> None:
    quotas = bench.fabric.quotas
    made = await quotas.set("openai", rate="100/m", concurrency_per_key=2, smooth=True)
    assert made.rate is not None
    assert (made.rate.count, made.rate.period, made.rate.smooth) == (
        100,
        timedelta(minutes=1),
        True,
    )
    assert (made.concurrency, made.concurrency_per_key) == (None, 2)
    assert made.created_at == to_datetime(bench.engine.now())
    assert await quotas.get("openai") == made
    assert [quota.name for quota in await quotas.list()] == ["openai"]
    await quotas.delete("openai")
    for gone in (quotas.get, quotas.delete):
        with pytest.raises(NotFound, match="no quota openai"):
            await gone("openai")


async def test_budgets(bench: Bench) -> None:
    budgets = bench.fabric.budgets
    made = await budgets.set("team", tokens=100, every="1d", soft={"tokens": 80})
    assert (made.every, made.cron) == (timedelta(days=1), None)
    assert made.next_reset_at is not None
    assert made.next_reset_at.tzinfo is UTC
    await bench.fabric.spend("team", tokens=30)
    assert (await budgets.get("team")).used == {"tokens": 30}
    assert (await budgets.reset("team")).used == {}
    assert [budget.name for budget in await budgets.list()] == ["team"]
    await budgets.delete("team")
    with pytest.raises(NotFound, match="no budget team"):
        await budgets.delete("team")


async def test_declared_limits_are_made_when_a_worker_starts(bench: Bench) -> None:
    fabric = bench.fabric
    fabric.budget("part", tokens=5, parent="team")
    fabric.budget("team", tokens=50)
    fabric.quota("api", concurrency=3)
    assert await fabric.budgets.list() == []
    await fabric.worker()
    assert [each.name for each in await fabric.budgets.list()] == ["part", "team"]
    assert (await fabric.quotas.get("api")).concurrency == 3
    await fabric.worker()
    assert (await fabric.budgets.get("part")).parent == "team"


async def test_a_worker_keeps_what_an_await_made_and_an_operator_changed(bench: Bench) -> None:
    fabric = bench.fabric
    assert (await fabric.quota("api", concurrency=3)).concurrency == 3
    await fabric.quotas.set("api", concurrency=9)
    await fabric.worker()
    assert (await fabric.quotas.get("api")).concurrency == 9


@pytest.mark.parametrize(
    "declare",
    [
        lambda fabric: fabric.quota("", concurrency=1),
        lambda fabric: fabric.quota("api", concurrency=-1),
        lambda fabric: fabric.quota("api", rate="many"),
        lambda fabric: fabric.budget("team", tokens=-1),
        lambda fabric: fabric.budget("team", every="often"),
        lambda fabric: fabric.budget("team", tokens=1, on_hard="explode"),
    ],
)
async def test_an_impossible_declaration_is_refused_at_once(
    bench: Bench, declare: Callable[[Fabric], object]
) -> None:
    with pytest.raises(Invalid):
        declare(bench.fabric)
    await bench.fabric.worker()
    assert await bench.fabric.quotas.list() == []


async def test_the_harness_makes_declared_limits_too() -> None:
    fabric = Fabric("sqlite://:memory:")
    fabric.budget("team", tokens=5)

    @fabric.task(budgets=["team"])
    async def job(ctx: Context) -> None:
        await ctx.spend(tokens=3)

    async with harness(fabric):
        await (await job.submit()).result()
        assert (await fabric.budgets.get("team")).used == {"tokens": 3}
        assert [run.state async for run in fabric.runs()] == ["completed"]


async def test_a_submission_makes_declared_limits_before_any_worker(bench: Bench) -> None:
    fabric = bench.fabric
    fabric.quota("api", concurrency=3)

    @fabric.task(quotas=["api"], budgets=["team"])
    async def job() -> None: ...

    with pytest.raises(NotFound, match="no budget team"):
        await job.submit()
    fabric.budget("team", tokens=5)
    run = await job.submit()
    await bench.work()
    assert await run.state() is PublicState.COMPLETED


def test_schedules_without_an_event_loop(store_url: str) -> None:
    fabric = Fabric(store_url)

    @fabric.task
    def job() -> None: ...

    try:
        assert fabric.schedules.set_sync("hourly", job, every="1h").name == "hourly"
        assert [each.name for each in fabric.schedules.list_sync()] == ["hourly"]
        fabric.schedules.delete_sync("hourly")
        assert fabric.schedules.list_sync() == []
    finally:
        fabric.close_sync()
