"""`/metrics`: what Prometheus reads of a server, and who may read it (spec §5.1, flaw 46)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowfabric import metrics
from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import webhook
from flowfabric.core.execution.model import Failure, WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.metrics import instruments, store_gauges
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.server.metrics import metrics_beside
from flowfabric.server.options import ListenAddress, ServerOptions
from flowfabric.store.clock import ManualClock
from tests.kit import flow_lab, limiting
from tests.kit.http import NOBODY, KnownCaller, create, tenant
from tests.kit.lab import W1, Lab
from tests.kit.scrape import Scrape, measuring, scrape
from tests.kit.situations import take
from tests.server.listening import Events, listening

ORIGINAL = {
    "ff_http_requests_total",
    "ff_http_request_duration_seconds",
    "ff_scanner_cycle_total",
    "ff_scanner_cycle_duration_seconds",
    "ff_cancel_backlog_depth",
    "ff_claim_from_grant_duration_seconds",
    "ff_lease_renewal_total",
    "ff_attempt_outcome_total",
    "ff_worker_at_capacity_total",
    "ff_budget_hit_total",
    "ff_quota_hit_total",
    "ff_edge_group_policy_total",
    "ff_sibling_cancel_dispatched_total",
    "ff_sibling_cancel_disposition_total",
    "ff_sibling_cancel_reconcile_total",
    "ff_shutdown_timeout_total",
}
"""The names that dashboards and alerts of the original use."""
MISSING_THERE = {
    "ff_execution_duration_seconds",
    "ff_queue_depth",
    "ff_executions",
    "ff_workers",
    "ff_attempt_failures_total",
    "ff_batch_size",
    "ff_sweep_lag_seconds",
    "ff_signals_total",
    "ff_suspensions_total",
    "ff_stream_readers",
    "ff_sse_connections",
}


@pytest.fixture(autouse=True)
def measured() -> Iterator[None]:
    with measuring():
        yield


@pytest.fixture
async def public(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that others can reach, where it shows no token."""
    options = ServerOptions(listen=ListenAddress("0.0.0.0", 9090))  # noqa: S104
    async with _client(ServerContext(engine, KnownCaller(engine, None), options)) as client:
        yield client


def _everywhere(scope: str) -> Identity:
    return Identity("operator", frozenset({AccessScope(scope)}))


def _client(context: ServerContext) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(context))
    return httpx.AsyncClient(transport=transport, base_url="http://server")


async def test_a_scrape_does_not_count_itself(http: httpx.AsyncClient) -> None:
    """Spec 1.7: `/metrics` is outside the metrics of HTTP."""
    metrics.enable()
    await http.get("/metrics")
    assert (await http.get("/healthz")).status_code == 200
    text = (await http.get("/metrics")).text
    assert 'path="/healthz"' in text
    assert 'path="/metrics"' not in text


async def test_the_text_is_that_of_prometheus(http: httpx.AsyncClient) -> None:
    reply = await http.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert reply.headers["cache-control"] == "no-store"
    names = {_exposed(family) for family in text_string_to_metric_families(reply.text)}
    assert names >= ORIGINAL | MISSING_THERE
    assert "ff_pending_waitpoint_legacy_token_served_total" not in names
    assert "ff_backend_unready_boot_total" not in names
    assert "_created" not in reply.text


def _exposed(family: object) -> str:
    name, kind = str(family.name), family.type  # type: ignore[attr-defined]
    return f"{name}_total" if kind == "counter" and not name.endswith("_total") else name


async def test_requests_are_counted_by_route_and_status(http: httpx.AsyncClient) -> None:
    before = await scrape(http)
    id = await create(http)
    await http.get(f"/v1/executions/{id}/state")
    await http.get("/v1/executions/nonsense/state")
    await http.get("/nowhere/to/be/found")
    await http.request("BREW", "/v1/counts")
    after = await scrape(http)

    def more(**labels: str) -> float:
        return after.since(before, "ff_http_requests_total", **labels)

    assert more(method="POST", path="/v1/executions", status="201") == 1
    state = {"method": "GET", "path": "/v1/executions/{id}/state"}
    assert more(**state, status="200") == 1
    assert more(**state, status="400") == 1
    assert more(method="GET", path="unknown", status="404") == 1
    assert more(method="OTHER") == 1
    timed = "ff_http_request_duration_seconds_count"
    assert after.since(before, timed, **state, status="200") == 1


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
async def test_a_refused_caller_is_counted_by_route(
    engine: Engine, headers: dict[str, str]
) -> None:
    """Spec 5.1: every request is counted under its template, refused ones (401) included, also by
    a method that the route does not have."""
    async with _client(ServerContext(engine, Authentication(engine, is_open=False))) as http:
        before = await scrape(http)
        for path in (f"/v1/executions/{NOBODY}/state", "/nowhere", "/v1/executions/%00"):
            assert (await http.get(path, headers=headers)).status_code == 401
        assert (await http.delete("/v1/executions", headers=headers)).status_code == 401
        after = await scrape(http)

    def more(method: str, path: str) -> float:
        labels = {"method": method, "path": path, "status": "401"}
        return after.since(before, "ff_http_requests_total", **labels)

    assert more("GET", "/v1/executions/{id}/state") == 1
    assert more("GET", "/v1/executions/{id}") == 1
    assert more("GET", "unknown") == 1
    assert more("DELETE", "/v1/executions") == 1
    assert more("DELETE", "unknown") == 0


async def test_a_wrong_method_and_a_preflight_are_counted_by_route(
    http: httpx.AsyncClient,
) -> None:
    """Spec 5.1: `path` is the template of a route that exists, whatever the answer."""
    before = await scrape(http)
    assert (await http.put("/v1/executions")).status_code == 405
    asked = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "GET"}
    assert (await http.options("/v1/flows", headers=asked)).status_code == 403
    after = await scrape(http)

    def more(method: str, path: str, status: str) -> float:
        labels = {"method": method, "path": path, "status": status}
        return after.since(before, "ff_http_requests_total", **labels)

    assert more("PUT", "/v1/executions", "405") == 1
    assert more("OPTIONS", "/v1/flows", "403") == 1


async def test_the_life_of_runs_is_counted(
    http: httpx.AsyncClient, engine: Engine, clock: ManualClock
) -> None:
    before = await scrape(http)
    for _ in range(3):
        await engine.executions.submit(Submission(kind="work", lane="fast"))
    clock.advance(2_000)
    done, failed, lost = await engine.claims.claim(W1, lanes=["fast"], limit=3)
    clock.advance(1_000)
    await engine.attempts.complete(done)
    await engine.attempts.fail(failed, Failure("boom", "permanent"))
    await engine.claims.revoke(lost.id, reason="test")
    after = await scrape(http)

    def more(name: str, **labels: str) -> float:
        return after.since(before, name, **labels)

    assert more("ff_executions_submitted_total", lane="fast") == 3
    assert more("ff_executions_claimed_total", lane="fast") == 3
    assert more("ff_claim_from_grant_duration_seconds_count", lane="fast") == 1
    assert more("ff_queue_wait_seconds_sum", lane="fast") == 6
    assert more("ff_attempt_outcome_total", lane="fast", outcome="ok") == 1
    assert more("ff_attempt_outcome_total", lane="fast", outcome="error") == 1
    assert more("ff_attempt_failures_total", task="work", category="permanent") == 1
    assert more("ff_execution_duration_seconds_sum", lane="fast", outcome="ok") == 3
    assert more("ff_execution_duration_seconds_bucket", lane="fast", outcome="ok", le="2.5") == 0
    assert more("ff_execution_duration_seconds_bucket", lane="fast", outcome="ok", le="5.0") == 1
    assert more("ff_leases_lost_total", reason="revoked") == 1
    assert more("ff_batch_size_count", batch="submit") == 3
    assert more("ff_batch_size_sum", batch="end") == 2


async def test_a_claim_for_a_worker_is_timed_whatever_it_finds(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    """Spec 5.1: the whole scheduler claim call, any outcome; the run is claimed by redeeming."""
    call = {"lane_id": "granted", "worker_instance_id": "w1-a", "grant_ttl_ms": 5000}
    before = await scrape(http)
    assert (await http.post("/v1/workers/w1/claim", json=call)).status_code == 204
    answer = await engine.executions.submit(Submission(kind="work", lane="granted"))
    assert (await http.post("/v1/workers/w1/claim", json=call)).status_code == 200
    granted = await scrape(http)
    timed = "ff_claim_from_grant_duration_seconds_count"
    assert granted.since(before, timed, lane="granted") == 2
    assert granted.since(before, "ff_executions_claimed_total") == 0
    await engine.grants.claim(answer.id, WorkerIdentity("w1", "w1-a"))
    after = await scrape(http)
    assert after.since(before, "ff_executions_claimed_total", lane="granted") == 1
    assert after.since(before, "ff_queue_wait_seconds_count", lane="granted") == 1


async def test_a_retry_names_the_category_of_what_failed(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    before = await scrape(http)
    policy = {"retry_policy": {"max_retries": 1}}
    await engine.executions.submit(Submission(kind="shaky", lane="odd", policy=policy))
    (claim,) = await engine.claims.claim(W1, lanes=["odd"])
    await engine.attempts.fail(claim, Failure("boom", "timeout"))
    after = await scrape(http)
    assert after.since(before, "ff_attempt_outcome_total", lane="odd", outcome="retry") == 1
    failed = {"task": "shaky", "category": "timeout"}
    assert after.since(before, "ff_attempt_failures_total", **failed) == 1


async def test_a_revoked_attempt_that_runs_out_of_time_counts_as_a_retry(
    http: httpx.AsyncClient, engine: Engine, clock: ManualClock
) -> None:
    """execution.md 3.20: its timer goes on"""
    before = await scrape(http)
    policy = {"retry_policy": {"max_retries": 1}, "timeout_policy": {"attempt_timeout_ms": 500}}
    await engine.executions.submit(Submission(kind="slow", lane="timed", policy=policy))
    (claim,) = await engine.claims.claim(W1, lanes=["timed"])
    await engine.claims.revoke(claim.id, reason="test")
    clock.advance(500)
    await engine.sweep.once()
    after = await scrape(http)
    assert after.since(before, "ff_attempt_outcome_total", lane="timed", outcome="retry") == 1
    failed = {"task": "slow", "category": "timeout"}
    assert after.since(before, "ff_attempt_failures_total", **failed) == 1
    assert after.since(before, "ff_leases_lost_total", reason="revoked") == 1


async def test_renewals_are_counted(http: httpx.AsyncClient, engine: Engine) -> None:
    before = await scrape(http)
    await engine.executions.submit(Submission(kind="work"))
    (claim,) = await engine.claims.claim(W1)
    await engine.claims.renew(claim)
    await engine.attempts.complete(claim)
    await engine.claims.renew_all([claim])
    after = await scrape(http)
    assert after.since(before, "ff_lease_renewal_total", outcome="ok") == 1
    assert after.since(before, "ff_lease_renewal_total", outcome="err") == 1


async def test_renewals_that_the_store_does_not_answer_are_errors(
    http: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec 5.1: `ff_lease_renewal_total` is ok or err, whatever the error."""

    async def away(*args: object) -> None:
        raise Unavailable("gone")

    await engine.executions.submit(Submission(kind="work"))
    (claim,) = await engine.claims.claim(W1)
    before = await scrape(http)
    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "renew", away)
        with pytest.raises(Unavailable):
            await engine.claims.renew(claim)
    after = await scrape(http)
    assert after.since(before, "ff_lease_renewal_total", outcome="ok") == 0
    assert after.since(before, "ff_lease_renewal_total", outcome="err") == 1


async def test_waiting_in_the_queue_begins_when_a_run_could_start(
    http: httpx.AsyncClient, lab: Lab, clock: ManualClock
) -> None:
    """Not when it was submitted: a delay, upstreams and limits are no lack of workers."""
    before = await scrape(http)
    drawn = await flow_lab.declare(lab, "a>b")
    await limiting.define(lab, concurrency=1)
    first, second = await limiting.crowd(lab, 2, "q")
    delayed = await lab.submit(delay_until=Millis(clock.now() + 9_000))
    holding = await take(lab, first)
    clock.advance(10_000)
    await drawn.complete("a")  # the worker was late for this one
    await lab.complete(holding)
    await lab.engine.sweep.once()
    clock.advance(2_000)
    for late in (drawn.members["b"], second, delayed):
        await take(lab, late)
    after = await scrape(http)
    assert after.since(before, "ff_queue_wait_seconds_sum") == 10 + 2 + 2 + 3


async def test_workers_that_only_deliver_webhooks_are_not_counted(engine: Engine) -> None:
    """Every server has one; with it, an alert on `ff_workers == 0` would never fire."""
    await engine.workers.register(Presence(worker="webhooks", instance="w", kinds=(webhook.KIND,)))
    figures = await store_gauges.StoreGauges(engine).read()
    assert figures.workers == ()
    both = Presence(worker="shop", instance="s", kinds=("pay", webhook.KIND), concurrency=7)
    await engine.workers.register(both)
    found = {each.name: each for each in store_gauges.families(await _figures(engine))}
    assert found["ff_workers"].samples[0].value == 1
    assert found["ff_worker_slots"].samples[0].value == 7


async def _figures(engine: Engine) -> store_gauges.StoreFigures:
    return await store_gauges.StoreGauges(engine).read()


async def test_flows_that_cancel_their_members_are_the_backlog(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gauge of the registry, so that the processes of one server are counted together."""
    depths: list[float] = []
    drawn = await flow_lab.declare(lab, "a>b")
    apply = lab.engine.store.apply

    async def looked(*args: Any, **options: Any) -> Any:
        depths.append(Scrape((await metrics.render()).decode()).value("ff_cancel_backlog_depth"))
        return await apply(*args, **options)

    monkeypatch.setattr(lab.engine.store, "apply", looked)
    await lab.engine.flows.cancel(drawn.id)
    assert max(depths) == 1
    assert Scrape((await metrics.render()).decode()).value("ff_cancel_backlog_depth") == 0


async def test_the_store_is_shown_and_read_once_for_all(
    http: httpx.AsyncClient, engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_gauges, "FRESH", 3_600.0)  # a busy machine may take its five seconds
    for lane in ("a", "a", "b"):
        await engine.executions.submit(Submission(kind="work", lane=lane))
    await engine.claims.claim(W1, lanes=["b"])
    clock.advance(4_000)
    found = await scrape(http)
    assert found.value("ff_queue_depth", lane="a") == 2
    assert found.value("ff_queue_depth", lane="b") == 0
    assert found.value("ff_executions_running", lane="b") == 1
    assert found.value("ff_queue_oldest_seconds", lane="a") == 4
    assert found.value("ff_executions", state="waiting") == 2
    assert found.value("ff_executions", state="active") == 1
    assert found.value("ff_workers") == 0
    monkeypatch.setattr(engine.store, "counts", None)  # not asked again so soon
    again = await asyncio.gather(*(scrape(http) for _ in range(3)))
    assert [each.value("ff_queue_depth", lane="a") for each in again] == [2, 2, 2]


async def test_sweep_lag_is_the_age_of_what_is_due(
    engine: Engine, clock: ManualClock, http: httpx.AsyncClient
) -> None:
    await engine.executions.submit(Submission(kind="work", delay_until=Millis(clock.now() + 1_000)))
    clock.advance(8_000)
    late = await store_gauges.StoreGauges(engine).read()
    assert late.lag == 7
    before = await scrape(http)
    await engine.sweep.once()
    assert (await store_gauges.StoreGauges(engine).read()).lag == 0
    after = await scrape(http)
    for part in ("schedules", "due", "dependency_reconciler", "quota_reconciler"):
        assert after.since(before, "ff_scanner_cycle_total", scanner=part) == 1
        timed = "ff_scanner_cycle_duration_seconds_count"
        assert after.since(before, timed, scanner=part) == 1


async def test_a_store_that_does_not_answer_hides_nothing_else(
    http: httpx.AsyncClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def away(*args: object) -> None:
        raise Unavailable("gone")

    await http.get("/v1/me")  # a request to count
    monkeypatch.setattr(engine.store, "counts", away)
    with caplog.at_level(logging.WARNING):
        found = await scrape(http)
    assert not found.has("ff_queue_depth")
    assert found.has("ff_http_requests_total")
    assert "left out of a scrape" in caplog.text


async def test_elsewhere_it_needs_a_token_for_all_namespaces(
    engine: Engine, public: httpx.AsyncClient
) -> None:
    assert (await public.get("/metrics")).status_code == 401
    options = ServerOptions(listen=ListenAddress("0.0.0.0", 9090))  # noqa: S104
    for caller, status in (
        (tenant("read"), 403),
        (tenant("submit"), 403),
        (_everywhere("read"), 200),
        (_everywhere("work"), 403),
    ):
        context = ServerContext(engine, KnownCaller(engine, caller), options)
        async with _client(context) as http:
            assert (await http.get("/metrics")).status_code == status, caller


async def test_with_an_address_of_its_own_it_is_only_there(engine: Engine) -> None:
    """Prometheus may scrape another address: a separate bind for metrics."""
    options = ServerOptions(metrics_listen=ListenAddress("127.0.0.1", 0))
    context = ServerContext(engine, Authentication(engine, is_open=True), options)
    async with _client(context) as http, metrics_beside(context) as url:
        assert (await http.get("/metrics")).status_code == 404
        assert url is not None
        async with httpx.AsyncClient() as other:
            reply = await other.get(url)
            assert reply.status_code == 200
            assert "ff_queue_depth" in reply.text
            assert (await other.get(url.replace("/metrics", "/healthz"))).status_code == 404


async def test_clients_of_streams_are_gauges(context: ServerContext, engine: Engine) -> None:
    async with listening(context) as url, httpx.AsyncClient(base_url=url) as http:
        before = await scrape(http)
        async with Events.open(f"{url}/v1/events/stream") as events:
            await engine.executions.submit(Submission(kind="work"))
            await engine.claims.claim(W1)
            await events.next()
            assert (await scrape(http)).since(before, "ff_sse_connections") == 1
        async with asyncio.timeout(60):  # until the server has noticed
            while (await scrape(http)).since(before, "ff_sse_connections"):
                pass


def test_names_that_users_make_up_are_bounded() -> None:
    """Cardinality: under 1000 sets of labels, however many lanes there are."""
    names = instruments.BoundedNames()
    assert [names(f"lane-{number}") for number in range(3)] == ["lane-0", "lane-1", "lane-2"]
    found = {names(f"lane-{number}") for number in range(5000)}
    assert len(found) == instruments.MOST_NAMES + 1
    assert names("lane-7") == "lane-7"
    assert names("lane-4999") == instruments.OTHER


def test_tasks_and_categories_together_are_under_a_thousand() -> None:
    """Spec 5.1: the cardinality target is under 1000 sets of labels."""
    names, kinds = instruments.BoundedNames(), instruments.BoundedNames(instruments.MOST_CATEGORIES)
    tasks = {names(f"task-{number}") for number in range(500)}
    categories = {kinds(f"category-{number}") for number in range(500)}
    assert len(tasks) * len(categories) < 1000


async def test_lanes_beyond_a_hundred_are_one(engine: Engine) -> None:
    many = [Submission(kind="work", lane=f"lane-{number}") for number in range(105)]
    await engine.executions.submit_many([*many, many[0]])
    figures = await store_gauges.StoreGauges(engine).read()
    (depth,) = [each for each in store_gauges.families(figures) if each.name == "ff_queue_depth"]
    found = {sample.labels["lane"]: sample.value for sample in depth.samples}
    assert len(found) == 101
    assert (found["lane-0"], found["other"]) == (2, 5)


async def test_nothing_is_counted_before_it_is_enabled(
    engine: Engine, http: httpx.AsyncClient
) -> None:
    before = Scrape((await metrics.render()).decode())
    metrics.disable()
    await engine.executions.submit(Submission(kind="work", lane="unseen"))
    await http.get("/healthz")
    after = Scrape((await metrics.render()).decode())
    assert after.since(before, "ff_executions_submitted_total") == 0
    assert after.since(before, "ff_http_requests_total") == 0
