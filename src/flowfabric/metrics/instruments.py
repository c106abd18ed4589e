"""The metrics of a process, by name. Those of the original engine keep their names and labels.

The labels are few: lanes and tasks beyond the first hundred are counted together as `other`.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from flowfabric.metrics.distribution import Distribution

REGISTRY = CollectorRegistry(auto_describe=False)

MOST_NAMES = 100
MOST_CATEGORIES = 8
"""Of failures: a set of labels has a task and a category, and all sets together are under 1000."""
OTHER = "other"

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def _counter(name: str, what: str, *labels: str) -> Counter:
    return Counter(name, what, labels, registry=REGISTRY)


def _gauge(name: str, what: str) -> Gauge:
    """Of all processes that are alive, together."""
    return Gauge(name, what, registry=REGISTRY, multiprocess_mode="livesum")


def _histogram(
    name: str, what: str, *labels: str, bounds: tuple[float, ...] = _SHORT
) -> Distribution:
    return Distribution(name, what, labels, bounds, REGISTRY)


class BoundedNames:
    """Names that users make up, as values of a label: after the first, the rest is one."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = name if len(self._known) < self._most else OTHER
            if len(self._known) > 10 * self._most:  # names of which each is used once
                self._known = {each: each for each, as_ in self._known.items() if as_ is not OTHER}
        return found


lanes, tasks = BoundedNames(), BoundedNames()
dimensions, categories = BoundedNames(), BoundedNames(MOST_CATEGORIES)

# -- of the original engine

HTTP_REQUESTS = _counter(
    "ff_http_requests_total", "HTTP requests by route and status.", "method", "path", "status"
)
HTTP_DURATION = _histogram(
    "ff_http_request_duration_seconds",
    "How long HTTP requests took; a stream as long as it was followed.",
    "method",
    "path",
    "status",
)
SCANNER_CYCLES = _counter("ff_scanner_cycle_total", "Parts of the sweep done.", "scanner")
SCANNER_DURATION = _histogram(
    "ff_scanner_cycle_duration_seconds", "How long a part of the sweep took.", "scanner"
)
CANCEL_BACKLOG = _gauge(
    "ff_cancel_backlog_depth", "Cancelled flows whose members are being cancelled."
)
CLAIM_DURATION = _histogram(
    "ff_claim_from_grant_duration_seconds",
    "How long one look for work took, whatever it found; lane is `all` for more than one lane.",
    "lane",
)
LEASE_RENEWALS = _counter("ff_lease_renewal_total", "Renewals of leases: ok or err.", "outcome")
ATTEMPT_OUTCOMES = _counter(
    "ff_attempt_outcome_total",
    "How attempts ended, and runs while they had none: ok, error, timeout, cancelled or retry.",
    "lane",
    "outcome",
)
AT_CAPACITY = _counter("ff_worker_at_capacity_total", "How often a worker had no free slot.")
BUDGET_HITS = _counter(
    "ff_budget_hit_total", "Runs that a spent budget kept from starting.", "dimension"
)
QUOTA_HITS = _counter(
    "ff_quota_hit_total", "How often a quota let no run in: rate or concurrency.", "reason"
)
JOINS = _counter("ff_edge_group_policy_total", "Joins that were decided.", "policy")
SIBLINGS_DISPATCHED = _counter(
    "ff_sibling_cancel_dispatched_total", "Upstreams that a join wanted cancelled.", "reason"
)
SIBLING_DISPOSITIONS = _counter(
    "ff_sibling_cancel_disposition_total",
    "What became of that: cancelled, already_terminal or not_found.",
    "disposition",
)
SIBLING_RECONCILES = _counter(
    "ff_sibling_cancel_reconcile_total",
    "Sweeps of flows: completed_drain for each flow that was left behind, no_op if none was.",
    "action",
)
SHUTDOWN_TIMEOUTS = _counter(
    "ff_shutdown_timeout_total", "Shutdowns that ended before the work had."
)

# -- what the original lacks

SUBMITTED = _counter("ff_executions_submitted_total", "Runs submitted.", "lane")
CLAIMED = _counter("ff_executions_claimed_total", "Runs handed to workers.", "lane")
DURATION = _histogram(
    "ff_execution_duration_seconds",
    "From the submission of a run to its end.",
    "lane",
    "outcome",
    bounds=_LONG,
)
QUEUE_WAIT = _histogram(
    "ff_queue_wait_seconds",
    "From the moment a run could start to its first attempt.",
    "lane",
    bounds=_LONG,
)
FAILURES = _counter(
    "ff_attempt_failures_total", "Failed attempts by task and category.", "task", "category"
)
LEASES_LOST = _counter("ff_leases_lost_total", "Leases that expired or were revoked.", "reason")
SUSPENSIONS = _counter("ff_suspensions_total", "Runs that began to wait for a signal.", "lane")
SIGNALS = _counter("ff_signals_total", "Signals that runs have received.")
BATCH_SIZE = _histogram(
    "ff_batch_size", "How many calls of a kind shared one write or read.", "batch", bounds=_SIZES
)
BATCH_DURATION = _histogram("ff_batch_duration_seconds", "How long that took.", "batch")
READERS = _gauge("ff_stream_readers", "Reads and long polls of output streams that are served now.")
CONNECTIONS = _gauge("ff_sse_connections", "Connections of server-sent events that are open now.")
ProcessCollector(registry=REGISTRY)
