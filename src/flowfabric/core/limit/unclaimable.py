"""Executions that no worker can take now: the lane is closed, or no live worker can run them.

Such an execution does not keep a quota slot that others wait for. It stays at its place in its line
until a worker can take it.
"""

from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Flags, Ready, Route, Snapshot, Start
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.serving import serving
from flowfabric.core.limit.lane import BEGINS, Lane, LaneState
from flowfabric.core.limit.quota import Uses
from flowfabric.core.limit.release import QuotaView, Room

KEEPS_SLOT = Millis(5_000)
"""How long an execution that no worker can take keeps its slot."""


class Unclaimable(Struct, frozen=True):
    """Routes by obstacle: a paused lane, a draining lane (which yields only started executions), or
    no live worker that can run them. A worker need not register to claim, so the last is a
    guess."""

    paused: tuple[Route, ...] = ()
    draining: tuple[Route, ...] = ()
    unserved: tuple[Route, ...] = ()

    def __add__(self, other: "Unclaimable") -> "Unclaimable":
        return Unclaimable(
            self.paused + other.paused,
            self.draining + other.draining,
            self.unserved + other.unserved,
        )

    @property
    def closed(self) -> tuple[Route, ...]:
        """The routes from which nothing is claimed."""
        return self.paused + self.unserved

    @property
    def routes(self) -> tuple[Route, ...]:
        return self.closed + self.draining


def unclaimable(
    routes: Iterable[Route], lanes: Mapping[str, Lane], workers: Sequence[Presence], now: Millis
) -> Unclaimable:
    """The routes from which no worker can claim. Without any live worker, workers are not
    considered: no other execution could use a slot."""
    live = _distinct(worker for worker in workers if worker.alive(now))
    states = {name: lane.state for name, lane in lanes.items()}
    paused, draining, unserved = [], [], []
    for route in routes:
        state = states.get(route.lane, LaneState.OPEN)
        if state is LaneState.PAUSED:
            paused.append(route)
        elif live and not serving(route, live, now).capable:
            unserved.append(route)
        elif state is LaneState.DRAINING:
            draining.append(route)
    return Unclaimable(tuple(paused), tuple(draining), tuple(unserved))


def yields_slot(snapshot: Snapshot, now: Millis, lane: Lane, closed: Unclaimable) -> bool:
    """Whether a ready execution has held its slot long enough without being claimed."""
    state = snapshot.state
    if not isinstance(state, Ready) or not snapshot.head.flags & Flags.LIMITS:
        return False
    if state.hold is not None and state.hold.alive(now):
        return False
    route, since = snapshot.execution.route, snapshot.admitted_at
    if route in closed.paused or (route in closed.draining and state.next.start in BEGINS):
        since = max(since, lane.at or since)
    elif route not in closed.unserved:
        return False
    return now - since >= KEEPS_SLOT


NeededSlot = tuple[str, str | None]
"""A quota without a free slot, and the key that needs one; None if every key does."""


def needed_slots(view: QuotaView, now: Millis) -> set[NeededSlot]:
    """The slots that waiting executions need."""
    room = Room(view, now)
    return {
        (full.use.quota, full.use.key if full.of_key else None)
        for line in view.lines
        for full in room.full(line.uses)
    }


def in_the_way(holder: Uses, needed: Set[NeededSlot]) -> bool:
    """Whether the holder uses a slot that a waiting execution needs."""
    return any(not needed.isdisjoint({(use.quota, use.key), (use.quota, None)}) for use in holder)


def counted_start(snapshot: Snapshot) -> bool:
    """Whether a rate has counted its admission."""
    state = snapshot.state
    return isinstance(state, Ready) and state.next.start is not Start.CONTINUE


def _distinct(workers: Iterable[Presence]) -> list[Presence]:
    """One worker of each sort: a thousand processes of one deployment can run the same."""
    found = {
        (each.namespace, each.everywhere, each.lanes, each.kinds, each.capabilities): each
        for each in workers
    }
    return list(found.values())
