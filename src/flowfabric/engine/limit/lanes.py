"""Lanes: list, pause and drain them; set their concurrency and their weight."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_limit, check_names
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import check_lane, check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.lane import Lane, LaneState, check_lane_settings, set_state
from flowfabric.engine.access.actor import current_actor
from flowfabric.engine.commit.records import change, find
from flowfabric.engine.context import EngineContext, Service
from flowfabric.store.contract import Store
from flowfabric.store.hints import Topic
from flowfabric.store.queries import RouteDepth
from flowfabric.store.readable import load_readable
from flowfabric.store.rows.record import LANES

DEPTH_READ = 100_000
"""Most waiting executions that are counted by route."""
REFRESH = 1.0
"""Seconds until weights that another process set are seen."""


class Lanes(Service):
    """`engine.lanes`"""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self._weights: dict[str, int] = {}
        self._names: tuple[str, ...] = ()
        self._refreshed_at: float | None = None

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[str]:
        """The names of all lanes with submissions, ascending, after a cursor."""
        wanted = check_limit(limit, MAX_PAGE)
        if after is not None:
            check_text(after, "cursor")
        if not wanted:
            return []
        await self._let_in()
        names = await self._all(await self.settings())
        return [name for name in names if after is None or name > after][:wanted]

    async def get(self, lane: str) -> Lane:
        """What was decided about a lane; an open one without limits if nothing ever was."""
        name = check_lane(lane)
        return await lane_of(self._context.store, name)

    async def settings(self, lanes: Sequence[str] | None = None) -> dict[str, Lane]:
        """The settings of these lanes, or of all."""
        records = self._context.store.records
        if lanes is None:
            return {lane.name: lane for lane in await records.page(LANES)}
        return await load_readable(partial(records.get, LANES), _names(lanes))

    async def pause(self, lane: str, *, by: str = "", reason: str = "") -> Lane:
        """Pauses a lane: nothing of it is claimed until it is resumed. Running executions
        continue."""
        return await self._set_state(lane, LaneState.PAUSED, by, reason)

    async def drain(self, lane: str, *, by: str = "", reason: str = "") -> Lane:
        """Drains a lane: started executions continue to their end, including retries and resumes;
        nothing new starts until the lane is resumed."""
        return await self._set_state(lane, LaneState.DRAINING, by, reason)

    async def resume(self, lane: str, *, by: str = "", reason: str = "") -> Lane:
        """Resumes a paused or draining lane."""
        return await self._set_state(lane, LaneState.OPEN, by, reason)

    async def set(
        self, lane: str, *, weight: int | None = None, concurrency: int | None = None
    ) -> Lane:
        """Sets the weight of a lane, or how many of it may run at once (0: any number)."""
        if weight is None and concurrency is None:
            raise Invalid("give a weight or a concurrency")

        def settle(old: Lane) -> Lane:
            new = old if weight is None else replace(old, weight=weight)
            if concurrency is not None:
                new = replace(new, concurrency=None if concurrency == 0 else concurrency)
            return check_lane_settings(new)

        return await self._write(lane, settle)

    async def weights(self, lanes: Sequence[str]) -> dict[str, int]:
        """The weights of these lanes (none given: of all lanes); empty if all are equal."""
        wanted = _names(lanes)
        if len(wanted) == 1:
            return {}
        await self._refresh()
        found = {lane: self._weights.get(lane, 1) for lane in wanted or self._names}
        return found if len(set(found.values())) > 1 else {}

    @property
    def unweighted(self) -> bool:
        """Whether all lanes are known to have the same weight."""
        now, at = asyncio.get_running_loop().time(), self._refreshed_at
        return not self._weights and at is not None and now - at < REFRESH

    async def depths(self) -> "Sequence[RouteDepth]":
        """How many wait for a worker and how many run, by route; reads at most 100,000 of each."""
        return await self._context.store.depths(DEPTH_READ)

    async def _set_state(self, lane: str, state: LaneState, by: str, reason: str) -> Lane:
        now, who = self._now(), current_actor() or by
        return await self._write(lane, lambda old: set_state(old, state, who, reason, now))

    async def _write(self, lane: str, rule: Callable[[Lane], Lane]) -> Lane:
        name = check_lane(lane)
        store = self._context.store

        def decide(old: Lane | None, _: Millis) -> tuple[Lane | None, LaneState]:
            known = old or Lane(name=name)
            new = rule(known)
            return (old if new == known else new), known.state

        changed = await change(store, LANES, name, decide)
        new = changed.after or Lane(name=name)
        if changed.written:
            self._refreshed_at = None
            store.hints.send(Topic.WORK)
            if new.state is not changed.outcome:
                self._context.post_commit.claimable()
        return new

    async def _refresh(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._refreshed_at is not None and now - self._refreshed_at < REFRESH:
            return
        self._refreshed_at = now
        settings = await self.settings()
        weights = {name: lane.weight for name, lane in settings.items() if lane.weight != 1}
        # Without weights the names are not needed: claims take from all lanes in one order.
        names = (await self._all(settings))[:MAX_PAGE] if weights else []
        self._weights, self._names = weights, tuple(names)

    async def _all(self, settings: Iterable[str]) -> "Sequence[str]":
        """The names of lanes with submissions or settings, ascending."""
        routes = await self._context.store.routes()
        return sorted({route.lane for route in routes}.union(settings))


async def lane_of(store: Store, name: str) -> Lane:
    """What was decided about a lane; an open one without limits if nothing ever was."""
    return await find(store, LANES, name) or Lane(name=name)


def _names(lanes: object) -> "list[str]":
    return [check_lane(lane) for lane in check_names(lanes, "lanes")]


def share_out(
    weights: dict[str, int], limit: int, turns: dict[str, float]
) -> "list[tuple[str, int]]":
    """How many of `limit` each lane may take, the lane with the largest claim first.

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
