"""Shares compare loads that took turns."""

from collections.abc import Callable

import pytest

from bench.windows import Windows, Work, take_turns

URL = "sqlite:///"


def work(name: str, log: list[str], done: int, seconds: Callable[[], float]) -> Work:
    async def window() -> tuple[int, float]:
        log.append(name)
        return done, seconds()

    return window


async def test_two_loads_take_turns_and_change_their_order() -> None:
    log = list[str]()
    first, second = (Windows(URL, work(name, log, 1, lambda: 1.0)) for name in "ab")
    await take_turns(first, second, 3)
    assert "".join(log) == "abbaab"


async def test_a_rate_is_that_of_all_windows_together() -> None:
    seconds = iter([1.0, 3.0])
    windows = Windows(URL, work("a", [], 10, lambda: next(seconds)))
    await windows.add()
    await windows.add()
    assert windows.done == 20
    assert windows.rate == 5.0
    assert windows.figure(10.0).ratio == 0.5


async def test_the_cpu_of_all_windows_is_counted() -> None:
    windows = Windows(URL, work("a", [], 10, lambda: float(sum(range(200_000)) > 0)))
    await windows.add()
    once = windows.cpu_us * windows.done
    await windows.add()
    assert windows.cpu_us * windows.done > once > 0
    assert windows.figure().cpu_us == pytest.approx(windows.cpu_us)
