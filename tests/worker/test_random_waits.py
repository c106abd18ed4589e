"""Random handlers that wait for random things, while signals come at random and workers die: what a
call has returned once, it returns each time the handler runs, and each signal is received once."""

import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from flowfabric import Context, FlowFabricError, Run, WaitTimeout
from tests.worker.bench import AGAIN, ENDED, Bench

pytestmark = pytest.mark.rules

NAMES = ("a", "b", "c")
MINUTE = 60_000
FOUND = {88, 102, 103, 105, 147, 168}
"""Seeds that have found an error."""
SEEDS = [
    pytest.param(seed, marks=[] if seed < 8 or seed in FOUND else [pytest.mark.deep])
    for seed in range(200)
]

Call = tuple[Any, ...]


def make_calls(chance: random.Random, depth: int = 0) -> list[Call]:
    """What a handler, or a branch of one, does."""
    return [make_call(chance, depth) for _ in range(chance.randint(1, 3 - min(depth, 1)))]


def make_call(chance: random.Random, depth: int) -> Call:
    timeout = chance.choice([None, "1s", "1m"])
    kinds = ["one", "any", "all", "all", "approval", "callback", "sleep", "step"]
    kind = chance.choice(kinds + ["gather", "gather", "gather", "race"] * (depth < 2))
    match kind:
        case "one":
            return kind, chance.choice(NAMES), timeout
        case "any" | "all":
            return kind, chance.sample(NAMES, chance.randint(1, 3)), timeout
        case "gather" | "race":
            return kind, [make_calls(chance, depth + 1) for _ in range(chance.randint(2, 3))]
        case _:
            return kind, timeout


class Player:
    """A handler that does what its program says, and notes what each call returns."""

    def __init__(self, chance: random.Random) -> None:
        self.program = make_calls(chance)
        self.callbacks: dict[str, Any] = {}
        self.returned: dict[str, Any] = {}
        self.received: defaultdict[str, list[Any]] = defaultdict(list)
        self._chance = chance
        self._crashes = 6

    async def handle(self, ctx: Context) -> None:
        await self._all(ctx, self.program, "")

    async def _all(self, ctx: Context, calls: list[Call], path: str) -> None:
        for number, call in enumerate(calls):
            place = f"{path}/{number}"
            try:
                found = await self._make(ctx, call, place)
            except WaitTimeout:
                found = None
            self._note(place, found)

    def _note(self, place: str, found: Any) -> None:
        if place not in self.returned:
            self.returned[place] = found
            for name, value in found.items() if isinstance(found, dict) else ():
                self.received[name].append(value)
        assert self.returned[place] == found, place
        if self._crashes and self._chance.random() < 0.1:
            self._crashes -= 1
            raise ConnectionError

    async def _make(self, ctx: Context, call: Call, place: str) -> Any:
        """Makes the call, and returns what it does; signals by name."""
        match call:
            case ("one", name, timeout):
                return {name: await ctx.wait_for_signal(name, timeout=timeout)}
            case ("any", names, timeout):
                first = await ctx.wait_for_any(*names, timeout=timeout)
                return {first.name: first.value}
            case ("all", names, timeout):
                return await ctx.wait_for_all(*names, timeout=timeout)
            case ("gather" | "race" as how, branches):
                begun = [self._all(ctx, each, f"{place}.{n}") for n, each in enumerate(branches)]
                return (await ctx.race(*begun)).name if how == "race" else await ctx.gather(*begun)
            case (kind, timeout):
                return await self._other(ctx, kind, timeout, place)
            case _:
                raise AssertionError(call)

    async def _other(self, ctx: Context, kind: str, timeout: str | None, place: str) -> Any:
        match kind:
            case "approval":
                return await ctx.approval("approval", of=2, about=place, timeout=timeout)
            case "callback":
                self.callbacks[place] = callback = await ctx.callback("callback")
                return [await callback.result(timeout=timeout)]
            case "sleep":
                return await ctx.sleep(timeout or "5m")
            case _:
                return await ctx.step(self._chance.random)


class World:
    """What happens around a run."""

    def __init__(self, bench: Bench, player: Player, run: Run[Any], chance: random.Random) -> None:
        self.sent: defaultdict[str, list[int]] = defaultdict(list)
        self._bench = bench
        self._fabric = bench.fabric
        self._player = player
        self._run = run
        self._chance = chance
        self._number = 0

    async def act(self) -> None:
        deeds: list[Callable[[], Any]] = [self._send, self._send, self._decide, self._answer]
        deeds += [self._wait, self._bench.lose, self._replay]
        with suppress(FlowFabricError):  # it comes too late, or too early
            await self._chance.choice(deeds)()

    async def _send(self) -> None:
        name = self._chance.choice(NAMES)
        self._number += 1
        await self._fabric.signal(self._run, name, self._number)
        self.sent[name].append(self._number)

    async def _decide(self) -> None:
        asked = [each for each in await self._fabric.waitpoints(self._run) if each.terms]
        if asked:
            decide = self._chance.choice([self._fabric.approve, self._fabric.reject])
            target = f"{self._run.id}/{self._chance.choice(asked).id}"
            await decide(target, approver=self._chance.choice(["ada", "bob"]))

    async def _answer(self) -> None:
        if self._player.callbacks:
            callback = self._chance.choice([*self._player.callbacks.values()])
            await self._fabric.signal(callback.id, payload=7, token=callback.token)

    async def _wait(self) -> None:
        await self._bench.pass_time(self._chance.choice([1, 1000, MINUTE, 10 * MINUTE]))

    async def _replay(self) -> None:
        if self._chance.random() < 0.2:
            await self._run.cancel()
            await self._run.replay()


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_a_handler_waits_for_it_gets_once_and_keeps(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    player = Player(chance)
    run = await bench.fabric.task(name="play", **AGAIN | {"retries": 20})(player.handle).submit()
    world = World(bench, player, run, chance)
    for _ in range(300):
        await bench.work()
        if (await run.state()).value in ENDED:
            break
        await world.act()
    assert (await run.state()).value == "completed", player.program
    for name, values in player.received.items():
        found = [value for value in values if value is not None]
        assert len(set(found)) == len(found), (name, player.program)
        assert set(found) <= set(world.sent[name])
