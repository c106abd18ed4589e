"""The clock that follows another machine's."""

from flowfabric.store.clock import Correction, ManualClock, OffsetClock, StoreClock


def offset(clock: OffsetClock) -> float:
    return clock.now() / 1000 - clock.steady()


def test_a_slower_answer_does_not_spoil_a_better_one() -> None:
    clock = OffsetClock()
    clock.sample(100.0, 100.0002, 1100.0001)
    clock.sample(105.0, 105.2, 1105.19)
    assert abs(offset(clock) - 1000) < 0.05


def test_a_clock_that_was_set_is_followed_at_once_however_slow_the_answer() -> None:
    """After a failover to a server whose clock differs by a minute."""
    clock = OffsetClock()
    clock.sample(100.0, 100.0002, 1100.0001)
    clock.sample(105.0, 105.02, 1165.01)
    assert abs(offset(clock) - 1060) < 0.05


def test_a_correction_counts_within_the_same_millisecond() -> None:
    source = ManualClock(1_000_000)
    clock = StoreClock(source)
    assert clock.now() == clock.now() == 1_000_000
    clock.adopt(Correction(offset=5_000, seen=1_000_000))
    assert clock.now() == 1_005_000
    source.advance(-10)  # less than what counts as a step
    assert clock.now() == 1_005_000
    clock.adopt(Correction())
    assert clock.now() == 1_005_000  # never back
