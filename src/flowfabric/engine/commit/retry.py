"""The one retry loop: a write that lost against a rival is decided again on what is stored now."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Literal, TypeVar

from flowfabric.core.base.errors import RetryExhausted

T = TypeVar("T")

MAX_ROUNDS = 10
LONGEST_PAUSE = 0.002
"""Seconds per round already lost: the tenth round begins after 18 ms at most, and so does every
later one."""


class RaceLost(Enum):
    """What a round answers when the version it was decided on no longer stands."""

    RACE_LOST = "race lost"


RACE_LOST: Final = RaceLost.RACE_LOST

Round = Callable[[int], Awaitable[T | Literal[RaceLost.RACE_LOST]]]


async def retry(round: Round[T], what: str, rounds: int = MAX_ROUNDS) -> T:
    """The answer of the first round that did not lose. Every round loads and decides afresh; it is
    given its number, from 0. RetryExhausted names `what` (such as "quota mail") after the last."""
    for number in range(rounds):
        answer = await round(number)
        if answer is not RACE_LOST:
            return answer
        # Rivals that stepped on each other's feet part: each waits for a time of its own.
        longest = LONGEST_PAUSE * min(number, MAX_ROUNDS - 1)
        await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 - only jitter
    raise RetryExhausted(f"{what} was changed by others {rounds} times in a row; try again")
