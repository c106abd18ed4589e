"""Many leases in one call: renewals and batches; grants, budgets and the registry."""

import asyncio
from typing import Any

import pytest
from litestar import Litestar

from flowfabric.core.base.errors import FlowFabricError, Overloaded, Unavailable
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.server.context import ServerContext
from flowfabric.server.http.asgi import App
from flowfabric.server.http.wire import Body
from flowfabric.server.worker import work
from flowfabric.store.clock import ManualClock
from tests.kit.http import EXECUTION, uuid_of
from tests.kit.http_work import HttpWorker, client_of, error_of
from tests.kit.signalling import fresh

# -- renew


async def test_renew_extends_many_leases(worker: HttpWorker, clock: ManualClock) -> None:
    one, two = await worker.take(), await worker.take()
    clock.advance(10_000)
    first, second = await worker.renew(one, two)
    assert first == {
        "execution_id": one["execution_id"],
        "status": 200,
        "expires_at": clock.now() + 30_000,
    }
    assert second["execution_id"] == two["execution_id"]
    (longer,) = await worker.renew(one, lease_ms=60_000)
    assert longer["expires_at"] == clock.now() + 60_000
    (shorter,) = await worker.renew(one, lease_ms=1)
    assert shorter["expires_at"] == clock.now() + 60_000
    assert await worker.renew() == []


async def test_a_renewal_is_an_event_unless_the_worker_says_otherwise(
    worker: HttpWorker, clock: ManualClock
) -> None:
    """D-12"""
    claim = await worker.take()
    await worker.renew(claim)
    await worker.renew(claim, record=False)
    page = await worker.engine.events.read(execution=claim["execution_id"])
    assert [event.lease for event in page.events] == ["acquired", "renewed"]


async def test_each_lost_lease_says_why(worker: HttpWorker, clock: ManualClock) -> None:
    claims = [await worker.take() for _ in range(5)]
    kept, done, revoked, slow, stale = claims
    await worker.do(done, "complete")
    await worker.engine.claims.revoke(revoked["execution_id"], reason="moved")
    clock.advance(20_000)
    await worker.renew(kept)
    clock.advance(10_000)
    await worker.engine.sweep.once()
    second = HttpWorker(worker.engine, worker.http, "w2")
    taken = await second.claim(limit=2)
    gone = {claim["execution_id"] for claim in taken}
    answers = await worker.renew(*claims)
    codes = {
        each["execution_id"]: (each["status"], each.get("error", {}).get("code"))
        for each in answers
    }
    assert codes[kept["execution_id"]] == (200, None)
    assert codes[done["execution_id"]] == (409, "execution_not_active")
    for claim in (revoked, slow, stale):
        if claim["execution_id"] in gone:
            assert codes[claim["execution_id"]] == (409, "stale_lease")
    lost = next(c for c in (revoked, slow, stale) if c["execution_id"] not in gone)
    wanted = "lease_revoked" if lost is revoked else "lease_expired"
    assert codes[lost["execution_id"]] == (409, wanted)


@pytest.mark.parametrize(
    ("error", "status"),
    [(Unavailable("the store is away"), 503), (Overloaded("busy", retry_after=2), 429)],
)
async def test_a_lease_is_not_called_lost_because_the_store_is_away(
    worker: HttpWorker, monkeypatch: pytest.MonkeyPatch, error: FlowFabricError, status: int
) -> None:
    """A worker drops a run whose renewal has an error, and repeats a request that was refused."""
    one, two = await worker.take(), await worker.take()
    renew = worker.engine.store.renew

    async def away(renewals: Any, now: Any) -> Any:
        if any(each.uuid == uuid_of(one["execution_id"]) for each in renewals):
            raise error
        return await renew(renewals, now)

    monkeypatch.setattr(worker.engine.store, "renew", away)
    body = {"leases": [{"handle": one["handle"]}, {"handle": two["handle"]}, {"handle": "x"}]}
    reply = await worker.http.post("/v1/work/renew", json=body)
    assert reply.status_code == status
    assert reply.headers["retry-after"]
    monkeypatch.undo()
    assert [each["status"] for each in await worker.renew(one, two)] == [200, 200]


async def test_renewals_that_make_no_sense(worker: HttpWorker) -> None:
    claim = await worker.take()
    fence = {key: claim[key] for key in ("execution_id", "lease_id", "lease_epoch", "attempt_id")}
    body: dict[str, Any] = {
        "leases": [{"handle": "x"}, {}, fence, {**fence, "execution_id": str(fresh())}]
    }
    reply = await worker.http.post("/v1/work/renew", json=body)
    codes = [(each["status"], each["error"]["code"]) for each in reply.json()["leases"]]
    assert codes == [
        (400, "invalid_handle"),
        (400, "invalid_input"),
        (400, "invalid_input"),
        (400, "invalid_input"),
    ]
    reply = await worker.http.post("/v1/work/renew", json={**body, "lease_ms": 1_000})
    assert [each["status"] for each in reply.json()["leases"]] == [400, 400, 200, 404]
    wrong: list[dict[str, Any]] = [{}, {"leases": {}}, {"leases": [{}] * 1_001}]
    for bad in [*wrong, {"leases": [], "lease_ms": 0}]:
        assert (await worker.http.post("/v1/work/renew", json=bad)).status_code == 422


async def test_a_tenant_renews_its_own(
    worker: HttpWorker, server: tuple[ServerContext, App]
) -> None:
    own, other = await worker.take(namespace="acme"), await worker.take()
    async with client_of(server[1], "tenant") as http:
        answers = await HttpWorker(worker.engine, http).renew(own, other)
    assert [each["status"] for each in answers] == [200, 404]


async def test_a_worker_that_renews_keeps_its_runs(worker: HttpWorker, clock: ManualClock) -> None:
    """What was renewed can be ended, although the server remembers the older lease."""
    one, two = await worker.take(), await worker.take()
    for _ in range(4):
        clock.advance(20_000)
        await worker.renew(one, two)
    await worker.engine.sweep.once()
    assert (await worker.do(one, "complete", result=1))["outcome"] == "completed"
    assert (await worker.do(two, "release"))["outcome"] == "released"


# -- batch


async def test_a_batch_answers_in_order(worker: HttpWorker, clock: ManualClock) -> None:
    one, two, three = [await worker.take() for _ in range(3)]
    await worker.engine.claims.revoke(two["execution_id"], reason="moved")
    results = await worker.batch(
        {"op": "steps", "handle": one["handle"], "name": "a", "value": 1},
        {"op": "complete", "handle": two["handle"], "result": 2},
        {"op": "complete", "handle": one["handle"], "result": 1},
        {"op": "fail", "handle": "forged", "reason": "x"},
        {"op": "delay", "execution_id": three["execution_id"], "handle": three["handle"]},
        {"op": "release", "handle": three["handle"]},
        {"op": "progress", "handle": one["handle"], "percent": 1},
    )
    assert [each["status"] for each in results] == [200, 409, 200, 400, 400, 200, 409]
    assert results[0]["answer"]["outcome"] == "recorded"
    assert results[1]["error"]["code"] == "lease_revoked"
    assert results[2]["answer"]["outcome"] == "completed"
    assert results[3]["error"]["code"] == "invalid_handle"
    assert results[6]["error"]["code"] == "execution_not_active"
    assert await worker.engine.views.result(one["execution_id"]) == b"1"


async def test_a_batch_completes_many_at_once(worker: HttpWorker) -> None:
    for _ in range(50):
        await worker.submit()
    claims = await worker.claim(limit=50)
    operations = [
        {"op": "complete", "handle": claim["handle"], "result": claim["attempt_index"]}
        for claim in claims
    ]
    results = await worker.batch(*operations)
    assert [each["answer"]["execution_id"] for each in results] == [
        claim["execution_id"] for claim in claims
    ]
    assert await worker.batch(*operations) == results


async def test_operations_on_one_run_keep_their_order(worker: HttpWorker) -> None:
    claim = await worker.take()
    steps = [
        {"op": "steps", "handle": claim["handle"], "name": f"s{number}"} for number in range(20)
    ]
    results = await worker.batch(*steps, {"op": "complete", "handle": claim["handle"]})
    assert [each["status"] for each in results] == [200] * 21
    assert [each["answer"]["position"] for each in results[:-1]] == list(range(20))


@pytest.mark.rules
async def test_batches_that_are_none(worker: HttpWorker) -> None:
    claim = await worker.take()
    done = {"op": "complete", "handle": claim["handle"]}
    wrong: list[dict[str, Any]] = [
        {},
        {"operations": {}},
        {"operations": [done, {"op": "explode"}]},
        {"operations": [done, {"handle": "x"}]},
        {"operations": [done, {"op": "fail", "handle": "x"}]},
        {"operations": [done] * 501},
    ]
    for bad in wrong:
        assert (await worker.http.post("/v1/work/batch", json=bad)).status_code == 422
    assert await worker.state(claim["execution_id"]) == "active"
    assert await worker.batch() == []


async def test_a_fault_in_one_does_not_hide_the_others(
    worker: HttpWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await worker.take(), await worker.take()

    async def broken(*args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(worker.engine.attempts, "progress", broken)
    results = await worker.batch(
        {"op": "progress", "handle": one["handle"], "percent": 1},
        {"op": "complete", "handle": two["handle"]},
    )
    assert [each["status"] for each in results] == [500, 200]
    assert results[0]["error"]["code"] == "internal"
    assert "a bug" not in str(results)


async def test_two_workers_end_a_run_once(worker: HttpWorker, clock: ManualClock) -> None:
    """The race of a slow worker with the one that took over: exactly one result stays."""
    claim = await worker.take()
    clock.advance(30_000)
    await worker.engine.sweep.once()
    second = HttpWorker(worker.engine, worker.http, "w2")
    (taken,) = await second.claim()
    replies = await asyncio.gather(
        worker.post(claim, "complete", result="slow"),
        second.post(taken, "complete", result="second"),
    )
    assert [reply.status_code for reply in replies] == [409, 200]
    assert await worker.engine.views.result(claim["execution_id"]) == b'"second"'


# -- grants


async def _granted(worker: HttpWorker, id: str) -> dict[str, Any]:
    grant = await worker.engine.grants.issue(id, WorkerIdentity("pool", worker.name))
    return {
        "execution_id": id,
        "grant_key": grant.key,
        "worker_id": "pool",
        "worker_instance_id": worker.name,
    }


async def test_a_grant_becomes_a_claim(worker: HttpWorker) -> None:
    body = await _granted(worker, await worker.submit(tags={"a.b": "c"}))
    first = await worker.http.post("/v1/work/claim-grant", json=body)
    assert first.status_code == 200
    claim = first.json()
    assert (claim["started_as"], claim["tags"]) == ("initial", {"a.b": "c"})
    again = await worker.http.post("/v1/work/claim-grant", json=body)
    assert again.json()["handle"] == claim["handle"]
    assert (await worker.do(claim, "complete"))["outcome"] == "completed"


async def test_a_grant_continues_an_interrupted_attempt(worker: HttpWorker) -> None:
    claim = await worker.take()
    await worker.do(claim, "release")
    body = await _granted(worker, claim["execution_id"])
    reply = await worker.http.post("/v1/work/claim-grant", json=body)
    assert (reply.json()["started_as"], reply.json()["attempt_index"]) == ("resume", 0)
    again = await worker.http.post("/v1/work/claim-grant", json=body)
    assert again.json()["handle"] == reply.json()["handle"]


async def test_a_reclaim_grant_takes_over(worker: HttpWorker, clock: ManualClock) -> None:
    claim = await worker.take()
    clock.advance(30_000)
    await worker.engine.sweep.once()
    id = claim["execution_id"]
    grant = await worker.engine.grants.issue_reclaim(id, WorkerIdentity("pool", "w1"))
    body = {
        "execution_id": id,
        "grant_key": grant.key,  # type: ignore[union-attr]
        "worker_id": "pool",
        "worker_instance_id": "w1",
    }
    wrong = {**body, "grant_key": "ffg1.other"}
    reply = await worker.http.post("/v1/work/claim-grant", json=wrong)
    assert error_of(reply) == (409, "invalid_claim_grant")
    taken = (await worker.http.post("/v1/work/claim-grant", json=body)).json()
    assert (taken["started_as"], taken["attempt_index"]) == ("reclaim", 1)
    again = await worker.http.post("/v1/work/claim-grant", json=body)
    assert again.json()["handle"] == taken["handle"]


async def test_grants_that_do_not_fit(
    worker: HttpWorker, clock: ManualClock, server: tuple[ServerContext, App]
) -> None:
    async def code(**members: Any) -> tuple[int, str]:
        return error_of(await worker.http.post("/v1/work/claim-grant", json={**body, **members}))

    body = await _granted(worker, await worker.submit())
    assert await code(grant_key="ffg1.other") == (409, "invalid_claim_grant")
    assert await code(worker_id="someone") == (409, "invalid_claim_grant")
    assert await code(expected_attempt_index=3) == (409, "stale_lease")
    assert await code(execution_id=str(fresh())) == (404, "not_found")
    assert await code(execution_id="x") == (400, "invalid_id")
    assert await code(grant_key="") == (400, "invalid_input")
    async with client_of(server[1], "tenant") as http:
        reply = await http.post("/v1/work/claim-grant", json=body)
        assert error_of(reply) == (404, "not_found")
    server[0].draining.set()
    assert await code() == (503, "unavailable")
    server[0].draining.clear()
    clock.advance(10_001)
    assert await code() == (409, "claim_grant_expired")


# -- budgets


async def test_spending(worker: HttpWorker) -> None:
    await worker.engine.budgets.create(Budget(name="team", limits={"tokens": Limit(hard=100)}))
    claim = await worker.take(policy={"budget_ids": ["team"]})
    assert await worker.do(claim, "spend", amounts={"tokens": 60}, key="a") == {"outcome": "ok"}
    again = await worker.do(claim, "spend", amounts={"tokens": 60}, key="a")
    assert again == {"outcome": "ok", "already_applied": True}
    refused = await worker.do(claim, "spend", amounts={"tokens": 60}, key="b")
    assert refused == {
        "outcome": "hard_breach",
        "budget": "team",
        "dimension": "tokens",
        "used": 60,
        "limit": 100,
        "action": "refuse",
    }
    assert (await worker.engine.budgets.get("team")).used == {"tokens": 60}


async def test_bad_spending(worker: HttpWorker, server: tuple[ServerContext, App]) -> None:
    await worker.engine.budgets.create(Budget(name="other", limits={"tokens": Limit(hard=100)}))
    claim = await worker.take(namespace="acme")
    assert (await worker.post(claim, "spend", amounts={"tokens": -1})).status_code == 422
    assert (await worker.post(claim, "spend")).status_code == 422
    missing = await worker.post(claim, "spend", amounts={"tokens": 1}, budgets=["none"])
    assert error_of(missing) == (404, "not_found")
    async with client_of(server[1], "tenant") as http:
        tenant = HttpWorker(worker.engine, http)
        reply = await tenant.post(claim, "spend", amounts={"tokens": 1}, budgets=["other"])
        assert error_of(reply) == (404, "not_found")
    assert (await worker.engine.budgets.get("other")).used == {}


# -- the registry


async def test_a_worker_registers_beats_and_leaves(worker: HttpWorker, clock: ManualClock) -> None:
    url = "/v1/workers/host-7"
    body = {"worker_id": "pool", "lanes": ["a"], "capabilities": ["gpu"], "liveness_ttl_ms": 5_000}
    reply = await worker.http.put(url, json=body)
    assert reply.json() == {"outcome": "registered", "expires_at": clock.now() + 5_000}
    reply = await worker.http.put(url, json=body)
    assert reply.json()["outcome"] == "refreshed"
    clock.advance(4_000)
    reply = await worker.http.post(f"{url}/heartbeat", json={"running": 2})
    assert reply.json() == {"outcome": "refreshed", "expires_at": clock.now() + 5_000}
    (entry,) = await worker.engine.workers.list()
    assert (entry.worker, entry.running, entry.lanes) == ("pool", 2, ("a",))
    assert (await worker.http.delete(url)).json() == {"outcome": "removed", "expires_at": None}
    assert error_of(await worker.http.delete(url)) == (404, "not_found")
    reply = await worker.http.post(f"{url}/heartbeat", json={})
    assert error_of(reply) == (404, "not_found")


async def test_a_worker_that_will_not_come_back_is_marked_dead(worker: HttpWorker) -> None:
    """server-sdk.md 7.13: mark dead, again, and a heartbeat afterwards; `revoke` frees its runs."""
    url, http = "/v1/workers/host-7", worker.http
    await http.put(url, json={"worker_id": "pool"})
    await http.post("/v1/executions", json=EXECUTION)
    asked = {"worker_id": "pool", "worker_instance_id": "host-7"}
    (claim,) = (await http.post("/v1/work/claim", json=asked)).json()["claims"]
    assert (await http.post(f"{url}/dead", json={})).status_code == 422
    refused = await http.post(f"{url}/dead", json={"reason": "x" * 257})
    assert error_of(refused) == (400, "invalid_input")
    dead = {"reason": "its rack burned", "revoke": True}
    assert (await http.post(f"{url}/dead", json=dead)).json() == {"outcome": "marked", "revoked": 1}
    assert error_of(await http.post(f"{url}/dead", json=dead)) == (404, "not_found")
    assert error_of(await http.post(f"{url}/heartbeat", json={})) == (404, "not_found")
    late = {"op": "complete", "handle": claim["handle"]}
    (answer,) = (await http.post("/v1/work/batch", json={"operations": [late]})).json()["results"]
    assert answer["error"]["code"] == "lease_revoked"


async def test_only_a_caller_of_all_namespaces_revokes_the_leases_of_a_worker_for_all(
    worker: HttpWorker, server: tuple[ServerContext, App]
) -> None:
    url, place = "/v1/workers/host-7", {"namespace": "acme"}
    await worker.http.put(url, json={"worker_id": "pool", "everywhere": True, **place})
    async with client_of(server[1], "tenant") as http:
        dead = {"reason": "gone", "revoke": True, **place}
        assert error_of(await http.post(f"{url}/dead", json=dead)) == (403, "forbidden")
        reply = await http.post(f"{url}/dead", json={"reason": "gone", **place})
        assert reply.json() == {"outcome": "marked", "revoked": 0}


@pytest.mark.rules
async def test_registrations_that_are_refused(
    worker: HttpWorker, clock: ManualClock, server: tuple[ServerContext, App]
) -> None:
    url = "/v1/workers/host-7"
    await worker.http.put(url, json={"worker_id": "pool"})
    taken = await worker.http.put(url, json={"worker_id": "other"})
    assert error_of(taken) == (400, "invalid_input")
    reply = await worker.http.post(f"{url}/heartbeat", json={"worker_id": "other"})
    assert error_of(reply) == (404, "not_found")
    clock.advance(30_000)
    assert error_of(await worker.http.post(f"{url}/heartbeat", json={})) == (404, "not_found")
    for bad in ({}, {"worker_id": 1}, {"worker_id": "a", "concurrency": 0}):
        assert (await worker.http.put(url, json=bad)).status_code == 422
    assert error_of(await worker.http.put(url, json={"worker_id": "a b"})) == (
        400,
        "invalid_input",
    )
    async with client_of(server[1], "tenant") as http:
        reply = await http.put(url, json={"worker_id": "pool"})
        assert error_of(reply) == (403, "forbidden")
        own = {"worker_id": "pool", "namespace": "acme"}
        assert (await http.put(url, json=own)).json()["outcome"] == "registered"
        reply = await http.put(url, json={**own, "everywhere": True})
        assert error_of(reply) == (403, "forbidden")
        reply = await http.delete(url, params={"namespace": "acme"})
        assert reply.json()["outcome"] == "removed"
    async with client_of(server[1], "reader") as http:
        assert (await http.put(url, json={"worker_id": "pool"})).status_code == 403


# -- the description of the API


def test_the_description_has_every_route() -> None:
    app = Litestar(work.HANDLERS, dto=Body, return_dto=None, logging_config=None)
    paths = app.openapi_schema.to_schema()["paths"]
    found = {path for path in paths if path.startswith("/v1/work")}
    operations = ["cancel", "complete", "delay", "fail", "finish-cleanup", "progress", "release"]
    operations += [
        "frames",
        "spend",
        "state",
        "steps",
        "suspend",
        "wait-for-children",
        "waitpoints",
    ]
    assert {f"/v1/work/{{id}}/{name}" for name in operations} <= found
    assert {"/v1/work/claim", "/v1/work/claim-grant", "/v1/work/renew", "/v1/work/batch"} <= found
    assert {"/v1/workers/{instance}", "/v1/workers/{instance}/heartbeat"} <= found
    body = paths["/v1/work/claim"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("ClaimWork")
