"""Who could run an execution: live workers, looked at one by one.

Two workers that offer a capability each are not one worker that offers both, so nothing is ever
combined.
"""

from collections.abc import Sequence

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Route
from flowfabric.core.execution.registry import Presence, Wanted
from flowfabric.core.execution.routing import missing


class Near(Struct, frozen=True):
    """The worker that comes closest to a route, and what it lacks."""

    presence: Presence
    lacks: tuple[str, ...]


class Serving(Struct, frozen=True):
    """The live workers that take work of a namespace, as far as they go: each list is part of the
    one before."""

    live: tuple[Presence, ...]
    in_lane: tuple[Presence, ...]
    of_kind: tuple[Presence, ...]
    capable: tuple[Presence, ...]
    nearest: Near | None = None

    @property
    def running(self) -> int:
        return sum(presence.running for presence in self.capable)

    @property
    def slots(self) -> int:
        return sum(presence.concurrency for presence in self.capable)

    @property
    def free(self) -> int:
        """How many more those who could run it had room for when they last said so."""
        return sum(max(0, presence.concurrency - presence.running) for presence in self.capable)


def serving(route: Route, workers: Sequence[Presence], now: Millis) -> Serving:
    """Who of the workers could run what has this route."""
    here = [each for each in workers if each.everywhere or each.namespace == route.namespace]
    live = tuple(each for each in here if Wanted().has(each, now))
    in_lane = tuple(each for each in live if Wanted(lane=route.lane).has(each, now))
    of_kind = tuple(each for each in in_lane if Wanted(kind=route.kind).has(each, now))
    near = [
        Near(worker, missing(route.capabilities, frozenset(worker.capabilities)))
        for worker in of_kind
    ]
    return Serving(
        live=live,
        in_lane=in_lane,
        of_kind=of_kind,
        capable=tuple(each.presence for each in near if not each.lacks),
        nearest=min(near, key=lambda each: len(each.lacks), default=None),
    )
