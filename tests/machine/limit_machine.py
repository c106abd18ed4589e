"""Random limits, random work, deaths and rivals between any two writes: no limit is ever passed,
nobody waits who could go, and in the end nothing is left over.

A rule that finds nothing to act on does nothing, so that what is drawn does not depend on how races
end.
"""

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from flowfabric.core.execution.model import Ended
from tests.machine import limit_deeds as deeds
from tests.machine.driver import Machine
from tests.machine.limit_checks import BUDGETS, Checks
from tests.machine.limit_deeds import Deed
from tests.machine.limit_play import LimitPlay, small

MOST_ROUNDS = 60

numbers = st.integers(0, 29)
rivals = st.tuples(st.sampled_from(deeds.EVERY), numbers, numbers)
fuses = st.tuples(st.integers(1, 6), st.booleans())
troubles = st.one_of(st.none(), st.none(), st.none(), st.just("lost"), fuses, rivals)

Trouble = None | str | tuple[int, bool] | tuple[Deed, int, int]
Day = tuple[Deed, int, int, Trouble]


def _day(some: list[Deed]) -> st.SearchStrategy[Day]:
    return st.tuples(st.sampled_from(some), numbers, numbers, troubles)


class LimitMachine(Machine):
    play: LimitPlay

    @initialize(
        seed=st.integers(0, 999),
        limits=st.lists(st.tuples(numbers, numbers), min_size=4, max_size=6),
        work=st.lists(st.tuples(numbers, numbers), min_size=3, max_size=8),
    )
    def begin(self, seed: int, limits: list[tuple[int, int]], work: list[tuple[int, int]]) -> None:
        self.play = LimitPlay(self.bench, seed)
        self.checks = Checks(self.play)
        self.patches.enter_context(small())
        self._begin()
        self._run(self._prepare(limits, work))

    # -- what is done

    @rule(many=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4), trouble=troubles)
    def submit(self, many: list[tuple[int, int]], trouble: Trouble) -> None:
        for a, b in many:
            self._do(deeds.submit, a, b, trouble)

    @rule(days=st.lists(_day(deeds.WORKING), min_size=3, max_size=6))
    def work(self, days: list[Day]) -> None:
        for deed, a, b, trouble in days:
            self._do(deeds.claim, a, b, None if a % 2 else trouble)
            self._do(deed, a, b, trouble)

    @rule(days=st.lists(_day(deeds.SPENDING), min_size=4, max_size=8))
    def spend(self, days: list[Day]) -> None:
        self._do(deeds.claim, 3, 0, None)
        self._all(days)

    @rule(days=st.lists(_day(deeds.DEFINING), min_size=1, max_size=3))
    def define(self, days: list[Day]) -> None:
        self._all(days)

    @rule(days=st.lists(_day(deeds.STEERING), min_size=1, max_size=4))
    def steer(self, days: list[Day]) -> None:
        self._all(days)

    @rule(days=st.lists(_day(deeds.EVERY), min_size=8, max_size=20))
    def live(self, days: list[Day]) -> None:
        self._all(days)

    @rule(days=st.lists(_day(deeds.TIMELY), min_size=1, max_size=2))
    def pass_time(self, days: list[Day]) -> None:
        self._all(days)

    @rule(many=st.lists(st.tuples(rivals, st.booleans()), min_size=2, max_size=4))
    def several_at_once(self, many: list[tuple[tuple[Deed, int, int], bool]]) -> None:
        self._run(self._together(many))

    @rule(idle=st.booleans())
    def leave_it_to_the_sweep(self, idle: bool) -> None:
        self.play.tune(idle=idle)

    @rule()
    def rest(self) -> None:
        self._run(self._rest())

    # -- how it is done

    def _all(self, days: list[Day]) -> None:
        for deed, a, b, trouble in days:
            self._do(deed, a, b, trouble)

    def _do(self, deed: Deed, a: int, b: int, trouble: Trouble) -> None:
        self._run(self._troubled(deed, a, b, trouble))
        self._run(self.checks.step())

    async def _troubled(self, deed: Deed, a: int, b: int, trouble: Trouble) -> None:
        play = self.play
        match trouble:
            case "lost":
                play.lose_a_reply()
            case (int() as fuse, bool() as heard):
                play.light(fuse, heard=heard)
            case (rival, int() as one, int() as two):
                play.calm = False
                play.meanwhile(lambda: rival(play, one, two, True))
            case _:
                pass
        await deed(play, a, b, False)
        await play.calm_down()
        play.calm = True

    async def _together(self, many: list[tuple[tuple[Deed, int, int], bool]]) -> None:
        play = self.play
        play.calm = False
        await asyncio.gather(*(deed(play, a, b, other) for (deed, a, b), other in many))
        await play.calm_down()
        play.calm = True
        await self.checks.step()

    async def _prepare(self, limits: list[tuple[int, int]], work: list[tuple[int, int]]) -> None:
        play = self.play
        for a, b in limits:
            await deeds.define_quota(play, a, b, False)
        for number, (_, b) in enumerate(limits[:4]):
            await deeds.define_budget(play, number, b, False)
        for a, b in work:
            await deeds.submit(play, a, b, False)
        await play.calm_down()

    async def _rest(self) -> None:
        """One sweep lets everybody through there is room for; whoever waited for a budget that
        admits again is let in page by page."""
        await self.play.calm_down()
        crowd = sum(one.life.budget is not None for one in (await self.play.look()).values())
        for _ in range(1 + crowd):
            await deeds.sweep(self.play, 0, 0, True)
            await self.play.calm_down()
        await self.checks.rest()

    async def _play_to_the_end(self) -> None:
        """Opens what operators closed and works until every execution has ended."""
        play = self.play
        for lane in deeds.LANES:
            await play.other.lanes.resume(lane)
        for number in range(MOST_ROUNDS):
            for pick in range(len(BUDGETS)):
                await deeds.reset_budget(play, pick, 0, True)
            await self._rest()
            if all(isinstance(one.state, Ended) for one in play.seen.values()):
                break
            await deeds.wake(play, number, 0, True)
            await deeds.unblock(play, number, 0, True)
            await deeds.claim(play, 1 + number % 3, 0, True)
            while play.holdings:
                await deeds.complete(play, 0, 0, True)
            play.clock.advance(1000 if number % 4 else 31_000)
        else:
            raise AssertionError(f"some never end: {play.seen.values()}")
        await self.checks.end()
