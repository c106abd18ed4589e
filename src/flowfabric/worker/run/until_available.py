"""Repeating a call while the store is unavailable, so that a short outage loses no work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.core.base.errors import NoSigningKey, Overloaded, RetryExhausted, Unavailable

T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


async def until_available(call: Callable[[], Awaitable[T]], give_up: Callable[[], bool]) -> T:
    """The answer of `call`, which is repeated while the store is unavailable. Raises its error once
    `give_up` says that the answer is no longer needed."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await call()
        except NoSigningKey:
            raise  # waiting does not help: an operator must act
        except (Unavailable, Overloaded, RetryExhausted):
            if give_up():
                raise
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 2)
