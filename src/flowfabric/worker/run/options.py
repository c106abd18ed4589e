"""How a worker behaves."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import force_setattr

from flowfabric.core.base.numbers import check_flag, check_whole
from flowfabric.core.base.text import check_lane, check_namespace, check_worker
from flowfabric.core.base.time import Span, parse_span
from flowfabric.core.execution.lease import DEFAULT_TTL
from flowfabric.core.execution.routing import check_capabilities
from flowfabric.engine.execution.claims import check_lanes, check_ttl


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How a worker behaves; `flowfabric.WorkerOptions` is the form for applications, where numbers
    are seconds.

    `concurrency` is how many runs it executes at the same time. `lanes` are those it serves, all
    without any; they may have weights: `{"fast": 3, "slow": 1}`. `ttl` is the length of a lease
    ("30s", or milliseconds): a worker that died is noticed after that time. `drain` is how long a
    stopping worker waits for its runs before it hands them back ("1m", or seconds); a process that
    a signal has asked to stop ends at most eight seconds later. With `webhooks` it delivers the
    webhooks as well, also if it serves certain lanes only. With `record_renewals` every renewal of
    a lease is an event: one for each running run every third of `ttl`.
    """

    name: str = "worker"
    instance: str | None = None
    concurrency: int = 100
    lanes: Sequence[str] | Mapping[str, int] = ()
    capabilities: Sequence[str] = ()
    namespace: str | None = None
    processes: int | None = None
    ttl: Span = DEFAULT_TTL
    drain: str | float | timedelta = 20.0
    heartbeat: bool = True
    webhooks: bool = False
    record_renewals: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "ttl", check_ttl(self.ttl))
        self._check()

    def _check(self) -> None:
        """Raises Invalid if a member is none."""
        check_worker(self.name, "name")
        if self.instance is not None:
            check_worker(self.instance, "instance")
        check_whole(self.concurrency, "concurrency", 1)
        for lane in check_lanes(self.lanes):
            check_lane(lane)
        check_capabilities(self.capabilities, "worker")
        if self.namespace is not None:
            check_namespace(self.namespace)
        if self.processes is not None:
            check_whole(self.processes, "processes", 1)
        check_ttl(self.ttl)
        parse_span(self.drain, "drain")
        check_flag(self.heartbeat, "heartbeat")
        check_flag(self.webhooks, "webhooks")
        check_flag(self.record_renewals, "record_renewals")
