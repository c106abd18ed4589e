"""Lanes: what a claim may take of them."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.json import encode

from flowfabric.core.limit.lane import LaneState
from flowfabric.store.sqlite.session import SqliteSession


class LaneGate(Struct, frozen=True):
    """A lane that is not simply open. `room` is how many more may run, None for any number."""

    state: LaneState
    room: int | None = None

    @property
    def shut(self) -> bool:
        """Nothing can be taken now."""
        return self.state is LaneState.PAUSED or self.room == 0

    @property
    def drains(self) -> bool:
        return self.state is LaneState.DRAINING


def lane_gates(session: SqliteSession, lanes: Sequence[str] = ()) -> dict[str, LaneGate]:
    """Those of these lanes (empty: of all) that are not simply open."""
    limited = list(session.execute("limited_lanes"))
    session.registry.lanes_seen = bool(limited)
    found = {
        name: (LaneState(state), concurrency)
        for name, state, concurrency in limited
        if not lanes or name in lanes
    }
    capped = {name: cap for name, (_, cap) in found.items() if cap is not None}
    running = _running(session, capped) if capped else {}
    return {
        name: LaneGate(state, None if cap is None else max(0, cap - running.get(name, 0)))
        for name, (state, cap) in found.items()
    }


def _running(session: SqliteSession, lanes: Mapping[str, int]) -> dict[str, int]:
    """How many leases these lanes have. The routes are known."""
    routes = {
        number: route.lane
        for number, route in list(session.names.routes.items())
        if route.lane in lanes
    }
    running: dict[str, int] = {}
    values = {"routes": encode(list(routes)).decode()}
    for route, count in session.rows("leases_by_route", values):
        running[routes[route]] = running.get(routes[route], 0) + count
    return running
