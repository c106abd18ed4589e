"""Work that nobody can take now: its lane is closed, or no live worker can run it.

Such work does not keep a slot of a quota that others wait for. It stays in its line, at its place,
until somebody can take it.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Flags, Ready, Route, Snapshot, Start
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.serving import serving
from flowfabric.core.limit.lane import BEGINS, Lane, LaneState
from flowfabric.core.limit.quota import Uses
from flowfabric.core.limit.release import QuotaView, Room

KEEPS_SLOT = Millis(5_000)
"""How long one that nobody can take keeps its slot from others."""


class Unclaimable(Struct, frozen=True):
    """Routes by what is in the way: a paused lane, a draining one (which takes what has begun), or
    that no live worker can run it. A worker need not register to claim, so the last is a guess."""

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
        """The routes nothing is taken of."""
        return self.paused + self.unserved

    @property
    def routes(self) -> tuple[Route, ...]:
        return self.closed + self.draining


def unclaimable(
    routes: Iterable[Route], lanes: Mapping[str, Lane], workers: Sequence[Presence], now: Millis
) -> Unclaimable:
    """Of these routes those nobody can take work of. Without any live worker nobody is asked: there
    is no other who could use a slot."""
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
    """Whether an execution that is ready has had its slot for long enough without a taker."""
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


def in_the_way(holder: Uses, standing: QuotaView, now: Millis) -> bool:
    """Whether a slot of the holder is one that somebody who waits has too few of."""
    room = Room(standing, now)
    own = {(use.quota, use.key) for use in holder}
    quotas = {quota for quota, _ in own}
    return any(
        (full.use.quota, full.use.key) in own if full.of_key else full.use.quota in quotas
        for line in standing.lines
        for full in room.full(line.uses)
    )


def counted_start(snapshot: Snapshot) -> bool:
    """Whether a rate has counted that it was let through."""
    state = snapshot.state
    return isinstance(state, Ready) and state.next.start is not Start.CONTINUE


def _distinct(workers: Iterable[Presence]) -> list[Presence]:
    """One of each sort: a thousand processes of one deployment can run the same."""
    found = {
        (each.namespace, each.everywhere, each.lanes, each.kinds, each.capabilities): each
        for each in workers
    }
    return list(found.values())
