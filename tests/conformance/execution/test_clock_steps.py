"""A clock that is set back: time goes on from where it was, in every process, and one of them says
so once."""

import logging
from collections.abc import Callable

import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState
from flowfabric.store.clock import Correction, ManualClock, StoreClock
from flowfabric.store.open import open_store
from tests.kit.lab import TTL, W2, Lab

HOUR = 3_600_000


async def test_leases_end_and_sleepers_wake_on_time(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    claim = await lab.running()
    sleeper = await lab.submit(delay_until=Millis(lab.clock.now() + 5000))
    with caplog.at_level(logging.WARNING, "flowfabric.store"):
        await lab.pass_time(-HOUR)
        await lab.pass_time(5000)
        assert await lab.state(sleeper) is PublicState.WAITING
        await lab.pass_time(TTL - 5000)
    assert caplog.text.count("set back by 3600.0 s") == 1
    again = {each.id: each for each in await lab.claim(W2, limit=2)}
    assert again[claim.id].epoch == claim.epoch + 1


async def test_a_process_that_starts_later_lives_in_the_same_time(
    lab: Lab, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    claim = await lab.running()
    await lab.pass_time(-HOUR)
    now = lab.engine.now()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flowfabric.store"):
        other = await Lab.open(await open_store(store_url, clock=lab.clock), lab.clock)
        assert abs(other.engine.now() - now) < 1000
        await lab.pass_time(TTL)
        assert (await other.claim_one(W2)).id == claim.id
    assert "set back" not in caplog.text
    await other.engine.close()


async def test_a_clock_set_back_while_no_process_ran_is_noticed(
    lab: Lab, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await lab.running()
    before = lab.engine.now()
    lab.clock.advance(-HOUR)
    with caplog.at_level(logging.WARNING, "flowfabric.store"):
        other = await Lab.open(await open_store(store_url, clock=lab.clock), lab.clock)
    assert "set back" in caplog.text
    assert other.engine.now() >= before - 60_000
    await other.engine.close()


async def test_one_that_notices_after_another_adds_nothing(lab: Lab, second_lab: Lab) -> None:
    now = lab.engine.now()
    assert second_lab.engine.now() == now
    lab.clock.advance(-HOUR)
    await lab.engine.sweep.once()
    await second_lab.engine.sweep.once()
    assert lab.engine.now() == second_lab.engine.now() == now


# -- the clock alone


@pytest.fixture
def source() -> ManualClock:
    return ManualClock()


def test_a_small_adjustment_stands_still_and_adds_nothing(source: ManualClock) -> None:
    clock = StoreClock(source)
    now = clock.now()
    source.advance(-500)
    assert clock.now() == now
    source.advance(700)
    assert clock.now() == now + 200


def test_it_never_goes_back(source: ManualClock) -> None:
    clock = StoreClock(source)
    moments = [clock.now()]
    for step in (10, -HOUR, 10, -900, 5, -2 * HOUR, 100, HOUR, -1001):
        source.advance(step)
        moments.append(clock.now())
    assert moments == sorted(moments)


def test_what_was_added_is_given_back_slowly(source: ManualClock) -> None:
    """A tenth of the time that passes, until nothing is left."""
    clock = StoreClock(source)
    known = Correction(HOUR, source.now() + HOUR)
    clock.adopt(known)
    source.advance(10_000)
    after = clock.corrected(known)
    assert after.offset == HOUR - 1000
    source.advance(20 * HOUR)
    assert clock.corrected(after).offset == 0


@pytest.mark.parametrize("known", [Correction(), Correction(0, 1_700_000_000_000)])
def test_a_clock_that_was_never_set_back_is_left_alone(
    source: ManualClock, known: Correction
) -> None:
    clock = StoreClock(source)
    assert clock.corrected(known).offset == 0
    assert _unchanged(clock.now)


def _unchanged(now: Callable[[], Millis]) -> bool:
    return now() == 1_700_000_000_000
