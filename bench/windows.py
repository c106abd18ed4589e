"""Windows of a load, added up. A share of two rates compares loads that took turns: the machine's
speed changes by a third from one second to the next, and a slow second falls on both."""

from collections.abc import Awaitable, Callable

from bench.cost import Cost, counted
from bench.scenario import Figure

TURNS = 4

Work = Callable[[], Awaitable[tuple[int, float]]]
"""Executions that were done, and the seconds they took."""


class Windows:
    """What one load has done, and what that has cost, in all windows together."""

    def __init__(self, url: str, work: Work) -> None:
        self._url = url
        self._work = work
        self._cost = Cost()
        self._seconds = 0.0
        self.done = 0

    async def add(self) -> None:
        async with counted(self._url) as cost:
            done, seconds = await self._work()
        self.done += done
        self._seconds += seconds
        self._cost.add(cost)

    @property
    def rate(self) -> float:
        return self.done / self._seconds

    @property
    def cpu_us(self) -> float:
        return self._cost.cpu_us(self.done)

    def figure(self, reference: float | None = None) -> Figure:
        return Figure(self.rate, reference).costing(self._cost, self.done)


async def take_turns(first: Windows, second: Windows, turns: int = TURNS) -> None:
    """One window of each, again and again; every other time in the other order, so that neither
    always follows the other."""
    for turn in range(turns):
        for each in (first, second) if turn % 2 == 0 else (second, first):
            await each.add()
