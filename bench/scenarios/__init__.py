"""Every scenario, in the order of the table in docs/performance.md."""

from bench.scenario import Scenario
from bench.scenarios import flows, http, idle, lifecycle, limits, signals, tables, worker

ALL: tuple[Scenario, ...] = (
    lifecycle.lifecycle,
    lifecycle.cost,
    worker.drain,
    lifecycle.claims,
    worker.pickup,
    worker.pooler,
    worker.steps,
    flows.chain,
    signals.signals,
    flows.cancel,
    limits.limits,
    tables.old_transaction,
    tables.tables,
    idle.idle,
    idle.coroutines,
    idle.submit_many,
    http.http,
    http.http_processes,
    http.http_worker,
    http.http_tails,
)
