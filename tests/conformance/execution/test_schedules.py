"""Schedules on every store: times, catching up, pausing, and never twice."""

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.time import Millis, from_datetime, to_datetime
from flowfabric.core.execution.schedule import CatchUp, Schedule, begin, fire
from flowfabric.store.rows.record import SCHEDULES
from tests.kit.lab import Lab
from tests.kit.race import Race

MINUTE = 60_000


def every_minute(**members: object) -> Schedule:
    return Schedule(name="tick", kind="tick", every=Millis(MINUTE), **members)  # type: ignore[arg-type]


async def waiting(lab: Lab) -> int:
    """How many runs there are since the last look."""
    return len(await lab.claim(limit=500, ttl=Millis(86_400_000)))


async def test_an_interval_fires_again_and_again(lab: Lab) -> None:
    await lab.engine.schedules.put(every_minute())
    await lab.pass_time(MINUTE - 1)
    assert await waiting(lab) == 0
    await lab.pass_time(1)
    assert await waiting(lab) == 1
    await lab.pass_time(MINUTE)
    assert await waiting(lab) == 1


async def test_two_processes_fire_a_moment_once(lab: Lab, second_lab: Lab) -> None:
    await lab.engine.schedules.put(every_minute())
    lab.clock.advance(MINUTE)
    await asyncio.gather(
        lab.engine.schedules.fire_due(),
        second_lab.engine.schedules.fire_due(),
        lab.engine.schedules.fire_due(),
    )
    assert await waiting(lab) == 1


async def test_a_moment_that_was_submitted_but_not_noted_fires_once(lab: Lab) -> None:
    schedule = await lab.engine.schedules.put(every_minute())
    lab.clock.advance(MINUTE)
    await lab.engine.schedules.fire_due()
    moved = await lab.engine.schedules.get("tick")
    assert await lab.engine.store.records.put(SCHEDULES, schedule, moved.version)
    await lab.engine.schedules.fire_due()
    assert await waiting(lab) == 1


@pytest.mark.parametrize(
    ("catch_up", "expected"), [(CatchUp.LATEST, 1), (CatchUp.ALL, 10), (CatchUp.NONE, 1)]
)
async def test_what_was_missed_is_caught_up_as_the_policy_says(
    lab: Lab, catch_up: CatchUp, expected: int
) -> None:
    await lab.engine.schedules.put(every_minute(catch_up=catch_up))
    await lab.pass_time(10 * MINUTE)
    assert await waiting(lab) == expected


async def test_without_catching_up_a_late_moment_is_left_out(lab: Lab) -> None:
    hourly = Schedule(name="h", kind="tick", every=Millis(60 * MINUTE), catch_up=CatchUp.NONE)
    await lab.engine.schedules.put(hourly)
    await lab.pass_time(90 * MINUTE)
    assert await waiting(lab) == 0
    await lab.pass_time(30 * MINUTE)
    assert await waiting(lab) == 1


async def test_a_paused_schedule_owes_nothing_afterwards(lab: Lab) -> None:
    await lab.engine.schedules.put(every_minute(catch_up=CatchUp.ALL))
    await lab.engine.schedules.pause("tick")
    await lab.pass_time(5 * MINUTE)
    assert await waiting(lab) == 0
    await lab.engine.schedules.resume("tick")
    await lab.pass_time(MINUTE)
    assert await waiting(lab) == 1


async def test_declaring_it_again_changes_nothing(lab: Lab) -> None:
    first = await lab.engine.schedules.put(every_minute())
    lab.clock.advance(30_000)
    assert await lab.engine.schedules.put(every_minute()) == first
    await lab.engine.schedules.pause("tick")
    assert (await lab.engine.schedules.put(every_minute())).paused


async def test_other_times_start_over(lab: Lab) -> None:
    await lab.engine.schedules.put(every_minute())
    changed = await lab.engine.schedules.put(
        Schedule(name="tick", kind="tick", every=Millis(2 * MINUTE))
    )
    assert changed.next_at == lab.clock.now() + 2 * MINUTE


async def test_a_schedule_that_is_made_again_while_it_fires_stays_as_it_is_made(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The firing notes its next time on the schedule that it has read, and on no other."""
    await lab.engine.schedules.put(every_minute())
    lab.clock.advance(MINUTE)
    race = Race(lab, monkeypatch)

    async def rival() -> None:
        await second_lab.engine.schedules.remove("tick")
        await second_lab.engine.schedules.put(replace(every_minute(), kind="tock"))

    race.before("records.put", rival)
    await lab.engine.schedules.fire_due()
    assert (await lab.engine.schedules.get("tick")).kind == "tock"


async def test_a_schedule_can_be_listed_triggered_and_removed(lab: Lab) -> None:
    await lab.engine.schedules.put(every_minute())
    assert [schedule.name for schedule in await lab.engine.schedules.list()] == ["tick"]
    await lab.engine.schedules.trigger("tick")
    assert await waiting(lab) == 1
    await lab.engine.schedules.remove("tick")
    with pytest.raises(NotFound):
        await lab.engine.schedules.get("tick")
    with pytest.raises(NotFound):
        await lab.engine.schedules.remove("tick")


async def test_the_run_gets_what_the_schedule_says(lab: Lab) -> None:
    await lab.engine.schedules.put(
        every_minute(payload=b'{"n":7}', lane="slow", options={"priority": 9})
    )
    await lab.pass_time(MINUTE)
    claim = await lab.claim_one(lanes=["slow"])
    assert claim.payload == b'{"n":7}'
    assert claim.snapshot.priority == 9


@pytest.mark.rules
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(name="", kind="t", every=Millis(MINUTE)),
        Schedule(name="t", kind="t"),
        Schedule(name="t", kind="t", cron="* * * * *", every=Millis(MINUTE)),
        Schedule(name="t", kind="t", cron="99 * * * *"),
        Schedule(name="t", kind="t", cron="nonsense"),
        Schedule(name="t", kind="t", cron="* * * * *", timezone="Mars/Olympus"),
        Schedule(name="t", kind="t", every=Millis(1)),
        Schedule(name="t", kind="", every=Millis(MINUTE)),
        Schedule(name="t", kind="t", every=Millis(MINUTE), lane=""),
        Schedule(name="t", kind="t", every=Millis(MINUTE), options={"colour": "red"}),
    ],
)
async def test_a_schedule_that_cannot_be_is_refused(lab: Lab, schedule: Schedule) -> None:
    with pytest.raises(Invalid):
        await lab.engine.schedules.put(schedule)
    assert await lab.engine.schedules.list() == []


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_cron_times_are_those_of_the_time_zone(cron: str) -> None:
    night = Schedule(name="n", kind="n", cron=cron, timezone="Europe/Berlin")
    before = from_datetime(datetime(2026, 3, 28, 12, tzinfo=UTC))
    schedule = begin(night, before)
    found = []
    for _ in range(3):
        assert schedule.next_at is not None
        found.append(to_datetime(schedule.next_at).isoformat())
        schedule = fire(schedule, schedule.next_at).after
    # On the 29th the clock goes from 2:00 to 3:00: the time that does not exist is made up for.
    assert found == [
        "2026-03-29T01:00:00+00:00",
        "2026-03-30T00:30:00+00:00",
        "2026-03-31T00:30:00+00:00",
    ]


def test_all_times_within_an_hour_that_does_not_exist_are_made_up_for_once() -> None:
    schedule = Schedule(name="n", kind="n", cron="*/20 30 2,3 * * *", timezone="Europe/Berlin")
    schedule = begin(schedule, from_datetime(datetime(2026, 3, 28, 12, tzinfo=UTC)))
    found = []
    for _ in range(5):
        assert schedule.next_at is not None
        found.append(to_datetime(schedule.next_at).strftime("%d %H:%M:%S"))
        schedule = fire(schedule, schedule.next_at).after
    later = ["29 01:30:00", "29 01:30:20", "29 01:30:40", "30 00:30:00"]
    assert found == ["29 01:00:00", *later]


@pytest.mark.parametrize(
    ("cron", "spring", "autumn"),
    [("0 * * * *", 6, 6), ("0 0 * * * *", 6, 6), ("*/30 2 * * *", 0, 4), ("0,30 2 * * *", 1, 2)],
)
def test_a_rhythm_goes_on_through_a_change_of_the_clocks(
    cron: str, spring: int, autumn: int
) -> None:
    """With `*` in the minutes or hours: in both passes of an hour, and not for one left out."""
    counts = []
    for day in (
        datetime(2026, 3, 28, 23, 1, tzinfo=UTC),
        datetime(2026, 10, 24, 22, 1, tzinfo=UTC),
    ):
        schedule = Schedule(
            name="n", kind="n", cron=cron, timezone="Europe/Berlin", catch_up=CatchUp.ALL
        )
        schedule = begin(schedule, from_datetime(day))
        counts.append(len(fire(schedule, from_datetime(day + timedelta(hours=6))).moments))
    assert counts == [spring, autumn]


@pytest.mark.parametrize(
    ("cron", "zone", "day", "expected"),
    [
        ("*/15 9 * * *", "Australia/Lord_Howe", (2026, 4, 5), "09:00 09:15 09:30 09:45"),
        ("*/15 9 * * *", "Australia/Lord_Howe", (2026, 10, 4), "09:00 09:15 09:30 09:45"),
        (
            "*/15 1-2 * * *",
            "Australia/Lord_Howe",
            (2026, 10, 4),
            "01:00 01:15 01:30 01:45 02:30 02:45",
        ),
        (
            "*/20 1-2 * * *",
            "Australia/Lord_Howe",
            (2026, 4, 5),
            "01:00 01:20 01:40 01:40 02:00 02:20 02:40",
        ),
        ("*/30 0 * * 0", "America/Santiago", (2026, 9, 6), ""),
        ("*/30 23 * * 6", "America/Santiago", (2026, 4, 4), "23:00 23:30 23:00 23:30"),
    ],
)
def test_a_rhythm_follows_the_clock_whatever_its_change(
    cron: str, zone: str, day: tuple[int, int, int], expected: str
) -> None:
    """A change by half an hour, and one at midnight: no time is left out or made up for"""
    local = ZoneInfo(zone)
    schedule = Schedule(name="n", kind="n", cron=cron, timezone=zone, catch_up=CatchUp.ALL)
    midnight = datetime(*day, tzinfo=local)
    schedule = begin(schedule, Millis(from_datetime(midnight) - 1))
    moments = fire(schedule, Millis(from_datetime(midnight + timedelta(days=1)) - 1)).moments
    shown = [to_datetime(at).astimezone(local) for at in moments]
    assert " ".join(at.strftime("%H:%M") for at in shown) == expected


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_an_hour_that_comes_twice_fires_once(cron: str) -> None:
    night = Schedule(name="n", kind="n", cron=cron, timezone="Europe/Berlin")
    schedule = begin(night, from_datetime(datetime(2026, 10, 24, 12, tzinfo=UTC)))
    assert schedule.next_at is not None
    after = fire(schedule, schedule.next_at).after
    assert after.next_at is not None
    assert to_datetime(after.next_at).date().isoformat() == "2026-10-26"


async def test_a_schedule_that_cannot_fire_holds_no_other_up(lab: Lab) -> None:
    """A process that lacks a time zone, a library or an option must not stop the sweep."""
    delayed = await lab.submit(delay_until=Millis(lab.clock.now() + MINUTE))
    good = await lab.engine.schedules.put(every_minute())
    bad = replace(good, name="bad", every=None, cron="0 0 * * *", timezone="No/Where")
    assert await lab.engine.store.records.put(SCHEDULES, bad, 0)
    await lab.pass_time(MINUTE)
    assert await waiting(lab) == 2
    assert await lab.state(delayed) == "active"
    assert (await lab.engine.schedules.get("bad")).next_at == bad.next_at


async def test_a_moment_fires_once_also_without_a_dedup_window(lab: Lab) -> None:
    policy = {"policy": {"dedup_window_ms": 0}}
    schedule = await lab.engine.schedules.put(every_minute(options=policy))
    lab.clock.advance(MINUTE)
    await lab.engine.schedules.fire_due()
    moved = await lab.engine.schedules.get("tick")
    assert await lab.engine.store.records.put(SCHEDULES, schedule, moved.version)
    await lab.engine.schedules.fire_due()
    assert await waiting(lab) == 1


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_in_an_hour_that_comes_twice_the_next_time_is_still_to_come(cron: str) -> None:
    """In the second pass, before 02:30 by the clock on the wall."""
    now = from_datetime(datetime(2026, 10, 25, 1, 10, tzinfo=UTC))
    schedule = Schedule(name="n", kind="k", cron=cron, timezone="Europe/Berlin")
    expected = from_datetime(datetime(2026, 10, 26, 1, 30, tzinfo=UTC))
    assert begin(schedule, now).next_at == expected
    late = replace(schedule, next_at=from_datetime(datetime(2026, 10, 25, 0, 30, tzinfo=UTC)))
    assert fire(late, now).after.next_at == expected


@pytest.mark.parametrize(
    ("cron", "catch_up", "count"),
    [
        ("* * * * * *", CatchUp.LATEST, 1),
        ("* * * * *", CatchUp.NONE, 1),
        ("* * * * *", CatchUp.ALL, 1000),
        ("30 2 * * *", CatchUp.ALL, 366),
        ("0 0 1 1 *", CatchUp.LATEST, 1),
    ],
)
def test_an_outage_of_a_year_is_caught_up_without_passing_every_moment(
    monkeypatch: pytest.MonkeyPatch, cron: str, catch_up: CatchUp, count: int
) -> None:
    """The event loop of the process that sweeps stands still meanwhile."""
    passed, pass_one = [], CronSim.__next__

    def watched(moments: CronSim) -> datetime:
        passed.append(moments)
        assert len(passed) < 10_000
        return pass_one(moments)

    began = from_datetime(datetime(2026, 1, 1, tzinfo=UTC) - timedelta(seconds=1))
    schedule = Schedule(name="n", kind="k", cron=cron, timezone="Europe/Berlin", catch_up=catch_up)
    schedule = begin(schedule, began)
    monkeypatch.setattr(CronSim, "__next__", watched)
    moments = fire(schedule, from_datetime(datetime(2027, 1, 1, 12, tzinfo=UTC))).moments
    assert (len(moments), len(set(moments)), list(moments)) == (count, count, sorted(moments))


@pytest.mark.parametrize(
    "cron",
    [
        "*/15 * * * *",
        "30 2 * * *",
        "0 */2 * * *",
        "10 1-4 * * *",
        "0 */15 * * * *",
        "5 10 1-4 * * *",
    ],
)
@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", (2026, 3, 28)),
        ("Europe/Berlin", (2026, 10, 24)),
        ("Australia/Lord_Howe", (2026, 4, 4)),
        ("Australia/Lord_Howe", (2026, 10, 3)),
        ("UTC", (2026, 10, 24)),
    ],
)
def test_what_is_caught_up_is_what_would_have_run(
    cron: str, zone: str, day: tuple[int, int, int]
) -> None:
    """Around every change of the clocks, and wherever the look back begins."""
    start = datetime(*day, 12, 7, tzinfo=UTC)
    first = begin(
        Schedule(name="n", kind="k", cron=cron, timezone=zone, catch_up=CatchUp.ALL),
        from_datetime(start),
    )
    schedule, on_time = first, list[Millis]()
    for quarter in range(1, 4 * 24):
        now = from_datetime(start + timedelta(minutes=15 * quarter))
        firing = fire(schedule, now)
        on_time, schedule = [*on_time, *firing.moments], firing.after
        assert list(fire(first, now).moments) == on_time
        latest = replace(first, catch_up=CatchUp.LATEST)
        assert list(fire(latest, now).moments) == on_time[-1:]
