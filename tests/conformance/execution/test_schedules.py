"""Schedules on every store: times, catching up, pausing, and never twice."""

import asyncio
from datetime import UTC, datetime

import pytest
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


def test_cron_times_are_those_of_the_time_zone() -> None:
    night = Schedule(name="n", kind="n", cron="30 2 * * *", timezone="Europe/Berlin")
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


def test_an_hour_that_comes_twice_fires_once() -> None:
    night = Schedule(name="n", kind="n", cron="30 2 * * *", timezone="Europe/Berlin")
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


def test_in_an_hour_that_comes_twice_the_next_time_is_still_to_come() -> None:
    """In the second pass, before 02:30 by the clock on the wall."""
    now = from_datetime(datetime(2026, 10, 25, 1, 10, tzinfo=UTC))
    schedule = Schedule(name="n", kind="k", cron="30 2 * * *", timezone="Europe/Berlin")
    expected = from_datetime(datetime(2026, 10, 26, 1, 30, tzinfo=UTC))
    assert begin(schedule, now).next_at == expected
    late = replace(schedule, next_at=from_datetime(datetime(2026, 10, 25, 0, 30, tzinfo=UTC)))
    assert fire(late, now).after.next_at == expected
