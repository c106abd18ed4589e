"""Waiting for a store that is away: what was done is not thrown away because of a short outage."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from flowfabric.core.base.errors import NoSigningKey, Overloaded, RetryExhausted, Unavailable

T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


async def until_available(call: Callable[[], Awaitable[T]], give_up: Callable[[], bool]) -> T:
    """The answer of `call`, repeated until the store has given one; its error once `give_up` says
    that nobody waits for the answer any more."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await call()
        except NoSigningKey:
            raise  # somebody must act, waiting does not help
        except (Unavailable, Overloaded, RetryExhausted):
            if give_up():
                raise
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 2)
