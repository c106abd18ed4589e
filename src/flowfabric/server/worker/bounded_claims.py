"""Claims whose answers have a bounded size: 500 runs with a megabyte of input each would be one
answer of half a gigabyte."""

import asyncio
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim

MAX_ANSWER = 8 << 20
"""Bytes of one answer, unless its only run has more."""


def fitting(sizes: Iterable[int], most: int) -> int:
    """How many of the first have no more than `most` in all; at least one.

    >>> fitting([100, 100, 100], 250)
    2
    """
    return max(1, sum(total <= most for total in accumulate(sizes)))


class BoundedClaims:
    """Claims as the engine does, but no more than fit. What was taken and does not fit goes back
    before the answer; the next claim asks for about as many as fit."""

    def __init__(self, most: int = MAX_ANSWER) -> None:
        self._most = most
        self._size = 1
        """What a payload is expected to have: what those of the last claim had, and after large
        ones at least half of what was expected before. Small ones between two groups of large
        ones then do not make the next claim load a whole group."""

    async def claim(
        self, engine: Engine, worker: WorkerIdentity, *, limit: int, **options: Any
    ) -> list[Claim]:
        """As `Claims.claim`."""
        expected = min(limit, max(1, self._most // self._size))
        claims = await engine.claims.claim(worker, limit=expected, **options)
        if not claims:
            return claims
        sizes = [len(claim.payload) for claim in claims]
        self._size = max(1, sum(sizes) // len(sizes), self._size // 2)
        fits = fitting(sizes, self._most)
        try:
            await hand_back(engine, claims[fits:])
        except asyncio.CancelledError:
            await hand_back(engine, claims[:fits])
            raise
        return claims[:fits]


async def hand_back(engine: Engine, claims: list[Claim]) -> None:
    """As `Claims.hand_back`; a caller that is cancelled does not end it."""
    if claims:
        await asyncio.shield(engine.claims.hand_back(claims))
