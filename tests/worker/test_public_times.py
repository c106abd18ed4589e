"""What public calls return for limits, schedules and waits: datetimes and timedeltas."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from flowfabric import BudgetExceeded, Context, Fabric, NotFound, Schedule, SoftBreach
from flowfabric.core.base.time import Millis, to_datetime
from flowfabric.testing import harness
from tests.worker.bench import Bench

HOUR = timedelta(hours=1)


def now(bench: Bench) -> datetime:
    return to_datetime(bench.clock.now())


def members(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Every value in a view, with the name of the member that holds it."""
    yield name, value
    match value:
        case Struct():
            for each in value.__struct_fields__:
                yield from members(getattr(value, each), each)
        case dict():
            for item in value.values():
                yield from members(item, name)
        case list() | tuple():
            for item in value:
                yield from members(item, name)
        case _:
            pass


def no_milliseconds(view: object) -> None:
    for name, value in members(view):
        if name.endswith("_at") or name in {"every", "period", "ttl"}:
            assert value is None or isinstance(value, datetime | timedelta | dict), name
        if isinstance(value, datetime):
            assert value.tzinfo is UTC


# -- limits


async def test_a_budget(bench: Bench) -> None:
    fabric, made_at = bench.fabric, now(bench)
    made = await fabric.budget("team", tokens=10, soft={"tokens": 8}, every=HOUR)
    assert (made.every, made.created_at, made.next_reset_at) == (HOUR, made_at, made_at + HOUR)
    assert (made.hard("tokens"), made.soft("tokens")) == (10, 8)
    assert (made.hard("cents"), made.soft("cents")) == (None, None)
    await fabric.spend("team", tokens=3)
    status = await fabric.budget_status("team")
    assert status == await fabric.budgets.get("team")
    assert (status.used, status.taken("tokens"), status.taken("cents")) == ({"tokens": 3}, 3, 0)
    no_milliseconds(status)


async def test_a_budget_counts_its_breaches(bench: Bench) -> None:
    """C-T81, server-sdk.md 7.5: the counters outlive a reset, the last breach does not"""
    fabric = bench.fabric
    await fabric.budget("team", tokens=10, soft={"tokens": 5})
    assert isinstance(await fabric.spend("team", tokens=6), SoftBreach)
    with pytest.raises(BudgetExceeded):
        await fabric.spend("team", tokens=5)
    status = await fabric.budget_status("team")
    assert (status.breaches, status.soft_breaches) == (1, 1)
    assert (status.breached_at, status.breached_dimension) == (now(bench), "tokens")
    no_milliseconds(status)
    await fabric.reset_budget("team")
    status = await fabric.budget_status("team")
    assert (status.breaches, status.soft_breaches) == (1, 1)
    assert (status.breached_at, status.breached_dimension) == (None, None)


async def test_a_reset_says_when_the_next_period_begins(bench: Bench) -> None:
    fabric = bench.fabric
    await fabric.budget("team", tokens=10, every="1h")
    await fabric.budget("once", tokens=10)
    bench.clock.advance(60_000)
    assert await fabric.reset_budget("team") == now(bench) + HOUR
    assert await fabric.reset_budget("once") is None
    assert (await fabric.budget_status("once")).reset_at == now(bench)
    with pytest.raises(NotFound):
        await fabric.reset_budget("none")


async def test_how_full_a_quota_is(bench: Bench) -> None:
    fabric = bench.fabric
    made = await fabric.quota("api", rate="1/h", rate_per_key=(1, HOUR))
    assert made.rate is not None
    assert (made.rate.period, made.created_at) == (HOUR, now(bench))

    @fabric.task(quotas={"api": "ada"})
    async def job() -> None: ...

    await job.submit_many([()] * 2)
    await bench.work()
    status = await fabric.quota_status("api")
    assert (status.quota, status.waiting) == (await fabric.quotas.get("api"), 1)
    assert status.opens_at == now(bench) + HOUR
    assert status.key_opens_at == {"ada": now(bench) + HOUR}
    no_milliseconds(status)


# -- schedules


async def test_a_schedule(bench: Bench) -> None:
    fabric, begun = bench.fabric, now(bench)

    @fabric.task(tags={"app.team": "a"})
    async def job(day: int, loud: bool = False) -> None: ...

    made = await fabric.schedules.put("hourly", job, args=(7,), every="1h", priority=3)
    assert (made.every, made.next_at, made.last_at) == (HOUR, begun + HOUR, None)
    assert (made.task, made.arguments) == ("job", {"day": 7})
    assert (made.priority, made.tags) == (3, {"app.team": "a"})
    await bench.pass_time(3_600_000)
    await bench.work()
    moved = await fabric.schedules.get("hourly")
    assert (moved.last_at, moved.next_at) == (begun + HOUR, begun + 2 * HOUR)
    assert await fabric.schedules.list() == [moved]
    assert (await fabric.schedules.pause("hourly")).next_at == moved.next_at
    assert (await fabric.schedules.resume("hourly")).next_at == moved.next_at
    stored = await bench.engine.schedules.get("hourly")
    assert stored.every == 3_600_000  # milliseconds are the engine's
    no_milliseconds(moved)


@pytest.mark.parametrize(("payload", "shown"), [(b"\xff", b"\xff"), (b"{", b"{"), (b"7", 7)])
async def test_a_schedule_of_another_program(bench: Bench, payload: bytes, shown: Any) -> None:
    schedule = Schedule(name="odd", kind="job", every=Millis(60_000), payload=payload)
    await bench.engine.schedules.put(schedule)
    found = await bench.fabric.schedules.get("odd")
    assert (found.arguments, found.priority, found.tags) == (shown, 0, {})


# -- waits


async def test_an_open_waitpoint(bench: Bench) -> None:
    @bench.fabric.task
    async def job(ctx: Context) -> None:
        await ctx.approval("deploy", approvers=["ada"], about={"cents": 5}, timeout="1h")

    run = await job.submit()
    await bench.work()
    (found,) = await bench.fabric.waitpoints()
    assert [found] == await bench.fabric.waitpoints(run)
    assert (found.run, found.key, found.state) == (run.id, "deploy", "active")
    assert (found.created_at, found.activated_at) == (now(bench), now(bench))
    assert (found.about, found.terms and found.terms.approvers) == ({"cents": 5}, ("ada",))
    (stored,) = await bench.engine.suspensions.waitpoints(run.id)
    assert stored.created_at == bench.clock.now()
    no_milliseconds(found)


# -- elsewhere


async def test_the_same_in_the_kit() -> None:
    fabric = Fabric("sqlite://:memory:")
    fabric.budget("team", tokens=5, every="1h")

    @fabric.task(every="1h", budgets=["team"])
    async def job(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    async with harness(fabric) as kit:
        begun = to_datetime(kit.clock.now())
        await fabric.schedules.declare()
        run = await job.submit()
        await kit.run_until_idle()
        (waits,) = await fabric.waitpoints(run)
        assert waits.created_at == begun
        assert (await fabric.schedules.get("job")).next_at == begun + HOUR
        assert (await fabric.budget_status("team")).next_reset_at == begun + HOUR
        assert await fabric.reset_budget("team") == begun + HOUR


def test_the_same_without_an_event_loop(store_url: str) -> None:
    fabric = Fabric(store_url)
    try:
        assert fabric.budget_sync("team", tokens=5, every="1h").every == HOUR
        rate = fabric.quota_sync("api", rate="5/h").rate
        assert rate is not None
        assert rate.period == HOUR
        assert fabric.budget_status_sync("team").every == HOUR
        assert fabric.quota_status_sync("api").opens_at is None
        assert fabric.reset_budget_sync("team") == fabric.budget_status_sync("team").next_reset_at
    finally:
        fabric.close_sync()


async def test_views_are_written_as_json(bench: Bench) -> None:
    """As a web service answers with them."""
    await bench.fabric.budget("team", tokens=5, every="1h")
    shown = msgspec.json.decode(msgspec.json.encode(await bench.fabric.budget_status("team")))
    assert (shown["every"], shown["name"]) == ("PT3600S", "team")
