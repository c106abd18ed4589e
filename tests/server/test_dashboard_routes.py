"""The routes that the dashboard needs beside the others: who calls, workers, limits, decisions,
signals by name, many replays."""

import json
from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.core.limit.budget import Budget, Limit
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext

UNKNOWN = ExecutionId.of(0, UUID(int=99))
ADA = WorkerIdentity("ada", "ada-1")


async def submit(engine: Engine, **more: object) -> ExecutionId:
    made = await engine.executions.submit(Submission(kind="job", payload=b"{}", **more))  # type: ignore[arg-type]
    assert isinstance(made, Submitted)
    return made.id


@pytest.fixture
async def guarded(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that wants tokens; it has none yet."""
    app = create_app(ServerContext(engine, Authentication(engine, is_open=False)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


async def bearer(
    engine: Engine, *scopes: str, namespaces: list[str] | None = None
) -> dict[str, str]:
    made = await engine.tokens.create("-".join(scopes), scopes, namespaces=namespaces)
    return {"authorization": f"Bearer {made.secret.reveal()}"}


async def test_who_calls(engine: Engine, http: httpx.AsyncClient) -> None:
    found = (await http.get("/v1/me")).json()
    assert (found["name"], found["open"], found["namespaces"]) == ("anonymous", True, None)
    assert "operate" in found["scopes"]
    assert found["store"] == engine.store.name


async def test_any_token_may_ask_who_it_is(engine: Engine, guarded: httpx.AsyncClient) -> None:
    assert (await guarded.get("/v1/me")).status_code == 401
    headers = await bearer(engine, "submit", namespaces=["b", "a"])
    found = (await guarded.get("/v1/me", headers=headers)).json()
    assert (found["scopes"], found["namespaces"], found["open"]) == (["submit"], ["a", "b"], False)


async def test_workers_and_what_they_hold(engine: Engine, http: httpx.AsyncClient) -> None:
    await engine.workers.register(Presence(worker="ada", instance="ada-1", concurrency=4))
    await engine.workers.register(Presence(worker="bob", instance="bob-1", namespace="other"))
    id = await submit(engine)
    await engine.claims.claim(ADA, lanes=["default"], limit=1)
    first = (await http.get("/v1/workers", params={"limit": 1})).json()
    assert [(each["instance"], each["held"]) for each in first["workers"]] == [("ada-1", 1)]
    rest = (await http.get("/v1/workers", params={"cursor": first["next_cursor"]})).json()
    assert [each["instance"] for each in rest["workers"]] == ["bob-1"]
    held = (await http.get("/v1/workers/ada-1/leases")).json()["leases"]
    assert [each["id"] for each in held] == [str(id)]
    assert (await http.get("/v1/workers?cursor=nonsense")).status_code == 400


async def test_workers_are_paged_whatever_their_names_are(
    engine: Engine, http: httpx.AsyncClient
) -> None:
    """§7.4: every worker once, in the order of namespace and instance"""
    keys = [(place, f"{host}~1") for place in ("a", "a~b", "a~b c", "ä") for host in ("b", "w")]
    for place, instance in keys:
        await engine.workers.register(Presence(worker="w", instance=instance, namespace=place))
    found, query = [], {"limit": "1"}
    for _ in keys:
        page = (await http.get("/v1/workers", params=query)).json()
        found += [(entry["namespace"], entry["instance"]) for entry in page["workers"]]
        query["cursor"] = page["next_cursor"]
    assert found == sorted(keys)
    for wrong in ("nonsense", "a~b", "1", "~", "9999~a"):
        reply = await http.get("/v1/workers", params={"cursor": wrong})
        assert reply.status_code == 400


async def test_workers_of_other_namespaces_are_not_seen(
    engine: Engine, guarded: httpx.AsyncClient
) -> None:
    await engine.workers.register(Presence(worker="ada", instance="ada-1"))
    headers = await bearer(engine, "read", namespaces=["other"])
    assert (await guarded.get("/v1/workers", headers=headers)).json()["workers"] == []
    for path in ("/v1/workers?namespace=default", "/v1/workers/ada-1/leases?namespace=default"):
        assert (await guarded.get(path, headers=headers)).status_code == 403


async def test_budgets_and_quotas(engine: Engine, http: httpx.AsyncClient) -> None:
    limits = {"tokens": Limit(hard=100, soft=80)}
    await engine.budgets.create(Budget(name="team", limits=limits))
    await engine.budgets.spend("team", {"tokens": 30})
    await engine.quotas.create(Quota(name="api", concurrency=2))
    (budget,) = (await http.get("/v1/budgets")).json()["budgets"]
    assert budget["dimensions"] == {"tokens": {"hard": 100, "soft": 80, "taken": 30}}
    (quota,) = (await http.get("/v1/quotas")).json()["quotas"]
    assert (quota["name"], quota["concurrency"]) == ("api", 2)
    status = (await http.get("/v1/quotas/api")).json()
    assert (status["admitted"], status["waiting"], status["key_count"]) == (0, 0, 0)
    assert (await http.get("/v1/quotas/nothing")).status_code == 404


@pytest.mark.parametrize("path", ["/v1/budgets", "/v1/quotas", "/v1/quotas/api"])
async def test_limits_are_for_callers_that_see_everything(
    engine: Engine, guarded: httpx.AsyncClient, path: str
) -> None:
    headers = await bearer(engine, "read", namespaces=["mine"])
    assert (await guarded.get(path, headers=headers)).status_code == 403


async def test_replay_many(engine: Engine, http: httpx.AsyncClient) -> None:
    ended, waiting = await submit(engine), await submit(engine)
    await engine.executions.cancel(ended, reason="test")
    ids = [str(ended), str(waiting), str(UNKNOWN)]
    answer = await http.post("/v1/executions/replay", json={"execution_ids": ids})
    first, second, third = answer.json()["results"]
    assert first["public_state"] == "waiting"
    assert second["error"]["code"] == "execution_not_terminal"
    assert "not found" in third["error"]["error"]
    many = await http.post("/v1/executions/replay", json={"execution_ids": ["x"] * 1001})
    assert many.status_code == 400


async def test_replays_need_a_scope_and_the_namespace(
    engine: Engine, guarded: httpx.AsyncClient
) -> None:
    id = await submit(engine)
    await engine.executions.cancel(id, reason="test")
    body = {"execution_ids": [str(id)]}
    reader = await bearer(engine, "read")
    refused = await guarded.post("/v1/executions/replay", json=body, headers=reader)
    assert refused.status_code == 403
    stranger = await bearer(engine, "operate", namespaces=["other"])
    answer = await guarded.post("/v1/executions/replay", json=body, headers=stranger)
    assert "not found" in answer.json()["results"][0]["error"]["error"]
    assert await engine.views.state(id) == "cancelled"


async def test_a_signal_by_name(engine: Engine, http: httpx.AsyncClient) -> None:
    id = await submit(engine)
    body = {"name": "paid", "payload": {"cents": 1999}, "idempotency_key": "k"}
    first = (await http.post(f"/v1/executions/{id}/send", json=body)).json()
    again = (await http.post(f"/v1/executions/{id}/send", json=body)).json()
    assert (again["signal_id"], again["effect"]) == (first["signal_id"], "duplicate")
    (found,) = await engine.signals.of(id)
    assert found.signal.payload is not None
    assert json.loads(found.signal.payload) == {"cents": 1999}
    assert found.signal.source == "anonymous"
    assert (await http.post(f"/v1/executions/{UNKNOWN}/send", json=body)).status_code == 404
    assert (await http.post(f"/v1/executions/{id}/send", json={})).status_code == 422


async def test_waitpoints_of_one_run_and_a_decision_at_an_unknown_one(
    engine: Engine, http: httpx.AsyncClient
) -> None:
    id = await submit(engine)
    reply = await http.get(f"/v1/executions/{id}/waitpoints")
    assert reply.json() == {"waitpoints": [], "next_cursor": None}
    path = f"/v1/executions/{id}/waitpoints/{UUID(int=7)}/decide"
    answer = await http.post(path, json={"decision": "approved"})
    assert answer.status_code in (404, 409)
