"""Lanes: listing, pausing, and how a weighted claim is shared out among them."""

from flowfabric.core.check import check_limit
from flowfabric.core.text import check_lane, check_text
from flowfabric.engine.base import Noun

MAX_PAGE = 1000


class Lanes(Noun):
    """`engine.lanes`"""

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[str]:
        """Names of all lanes anything was submitted to, ascending, after a cursor."""
        wanted = check_limit(limit, MAX_PAGE)
        if after is not None:
            check_text(after, "cursor")
        return await self._parts.store.lanes(after, wanted) if wanted else []

    async def pause(self, lane: str) -> None:
        """Nothing of this lane is claimed until it is resumed. What runs goes on running."""
        await self._parts.store.pause_lane(check_lane(lane), True)

    async def resume(self, lane: str) -> None:
        name = check_lane(lane)
        await self._parts.store.pause_lane(name, False)
        self._parts.store.hint(frozenset({name}))


def share_out(
    weights: dict[str, int], limit: int, turns: dict[str, float]
) -> list[tuple[str, int]]:
    """How many of `limit` each lane may take, the most deserving first.

    `turns` remembers what a lane was owed but did not get, so that claims of one at a time are
    in proportion as well. It is updated in place.
    """
    total = sum(weights.values())
    shares = dict.fromkeys(weights, 0)
    for lane, weight in weights.items():
        turns[lane] += limit * weight / total
    for _ in range(limit):
        lane = max(turns, key=lambda name: (turns[name], weights[name]))
        turns[lane] -= 1
        shares[lane] += 1
    return sorted(shares.items(), key=lambda share: -share[1])
