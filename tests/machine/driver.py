"""How a machine is driven: Hypothesis chooses the rules; each step has an event loop and a limit.

A machine is a set of rules about one part of the engine. What it plays is an example: it begins on
a clean database, and at its end everything that was started must come to an end too.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Protocol, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from tests.machine.benches import Bench

T = TypeVar("T")
STEP_SECONDS = 30


class Example(Protocol):
    async def begin(self) -> None:
        """Opens the stores and engines on a clean database."""

    async def end(self) -> None:
        """Closes them."""


class Machine(RuleBasedStateMachine):
    """Subclassed with rules, and again with a bench, which says where the databases come from."""

    bench: ClassVar[Bench]
    play: Example

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.patches = ExitStack()
        self.begun = False
        self.broken = False

    def teardown(self) -> None:
        try:
            if self.begun and not self.broken:
                self._run(self._play_to_the_end())
        finally:
            if self.begun:
                self.runner.run(self.play.end())
            self.runner.close()
            self.patches.close()

    async def _play_to_the_end(self) -> None:
        """Works until everything has ended; fails if something never does."""
        raise NotImplementedError

    def _begin(self) -> None:
        self.runner.run(in_time(self.play.begin()))
        self.begun = True

    def _run(self, step: Coroutine[Any, Any, object]) -> None:
        """Runs a step to its end. After one that failed nothing more is played."""
        try:
            self.runner.run(in_time(step))
        except BaseException:
            self.broken = True
            raise


def pick_from(things: Sequence[T], number: int) -> T:
    return things[number % len(things)]


async def at_once(steps: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*steps)


async def in_time(step: Coroutine[Any, Any, object]) -> None:
    async with asyncio.timeout(STEP_SECONDS):
        await step
