"""Callers of some namespaces: what is not theirs answers like what does not exist, and writing into
a foreign namespace is forbidden. Callers without a scope are refused."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from flowfabric.core.access.token import Identity
from flowfabric.engine.engine import Engine
from tests.kit.http import (
    BUDGET,
    EXECUTION,
    HOME,
    NOBODY,
    add_member,
    client_as,
    create,
    create_flow,
    error_of,
)
from tests.kit.http import tenant as caller_with

pytestmark = pytest.mark.rules

RECLAIM = {
    "worker_id": "w",
    "worker_instance_id": "w-1",
    "lane_id": "default",
    "grant_ttl_ms": 1000,
}
ASK = {"lane_id": "default", "worker_instance_id": "w-1", "grant_ttl_ms": 1000}
QUOTA = {"window_seconds": 60, "max_requests_per_window": 5, "max_concurrent": 1}
ROTATE = {"new_kid": "k2", "new_secret_hex": "ab" * 32}
EDGE = {"upstream_execution_id": NOBODY, "downstream_execution_id": NOBODY[:-1] + "2"}

RUN_ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("GET", "/state", None),
    ("GET", "/result", None),
    ("GET", "/pending-waitpoints", None),
    ("GET", f"/waitpoints/{NOBODY}/token", None),
    ("POST", "/cancel", {"reason": "r"}),
    ("PUT", "/priority", {"new_priority": 1}),
    ("POST", "/replay", None),
    ("POST", "/revoke-lease", None),
    ("POST", "/reclaim", RECLAIM),
]
FLOW_ROUTES: list[tuple[str, str, Any]] = [
    ("POST", "/members", {"execution_id": NOBODY}),
    ("POST", "/edges", {**EDGE, "expected_graph_revision": 0}),
    ("POST", "/edges/apply", {**EDGE, "edge_id": NOBODY, "graph_revision": 0}),
    ("POST", "/cancel", {"reason": "r", "cancellation_policy": "cancel_all"}),
]
SHARED: list[tuple[str, str, Any]] = [
    ("POST", "/v1/budgets", BUDGET),
    ("GET", f"/v1/budgets/{NOBODY}", None),
    ("POST", f"/v1/budgets/{NOBODY}/usage", {"dimensions": {"tokens": 1}}),
    ("POST", f"/v1/budgets/{NOBODY}/reset", None),
    ("POST", "/v1/quotas", QUOTA),
    ("POST", "/v1/admin/rotate-waitpoint-secret", ROTATE),
]


@pytest.fixture
async def tenant(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_as(engine, caller_with()) as http:
        yield http


@pytest.mark.parametrize(("method", "path", "body"), RUN_ROUTES)
async def test_a_foreign_execution_is_answered_like_none(
    http: httpx.AsyncClient, tenant: httpx.AsyncClient, method: str, path: str, body: Any
) -> None:
    id = (await create(http)).rpartition(":")[2]
    foreign = await tenant.request(method, f"/v1/executions/{id}{path}", json=body)
    nothing = await tenant.request(method, f"/v1/executions/{NOBODY}{path}", json=body)
    error_of(foreign, 404)
    assert foreign.text.replace(id, NOBODY) == nothing.text
    assert (await http.get(f"/v1/executions/{id}/state")).json() == "waiting"


@pytest.mark.parametrize(("method", "path", "body"), FLOW_ROUTES)
async def test_a_foreign_flow_is_answered_like_none(
    http: httpx.AsyncClient, tenant: httpx.AsyncClient, method: str, path: str, body: Any
) -> None:
    id = await create_flow(http)
    foreign = await tenant.request(method, f"/v1/flows/{id}{path}", json=body)
    assert error_of(foreign, 404)["error"] == "not found: flow"


async def test_a_foreign_flow_does_not_show_in_refusals(
    http: httpx.AsyncClient, tenant: httpx.AsyncClient
) -> None:
    foreign = await create_flow(http, flow_kind="secret plan")
    body = {"flow_id": foreign, "flow_kind": "k", "namespace": "mine"}
    assert "secret" not in error_of(await tenant.post("/v1/flows", json=body), 409)["error"]
    own, member = await create_flow(tenant, namespace="mine"), await add_member(http, foreign)
    apply = {**EDGE, "downstream_execution_id": member, "edge_id": NOBODY, "graph_revision": 0}
    reply = await tenant.post(f"/v1/flows/{own}/edges/apply", json=apply)
    assert foreign not in reply.text
    error_of(reply, 404)


async def test_a_foreign_execution_does_not_join_an_own_flow(
    http: httpx.AsyncClient, tenant: httpx.AsyncClient
) -> None:
    flow = await create_flow(tenant, namespace="mine")
    id = await create(http, flow_id=flow)
    error_of(await tenant.post(f"/v1/flows/{flow}/members", json={"execution_id": id}), 404)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/executions", EXECUTION),
        ("/v1/flows", {"flow_kind": "k", "namespace": "default"}),
        ("/v1/workers/w/claim", {**ASK, "namespace": "default"}),
    ],
)
async def test_writing_into_a_foreign_namespace_is_forbidden(
    tenant: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    assert error_of(await tenant.post(path, json=body), 403)["code"] == "forbidden"


async def test_own_executions_are_reached(tenant: httpx.AsyncClient) -> None:
    id = await create(tenant, namespace="mine")
    assert (await tenant.get(f"/v1/executions/{id}/state")).json() == "waiting"
    claim = await tenant.post("/v1/workers/w/claim", json={**ASK, "namespace": "mine"})
    assert claim.json()["execution_id"] == id


async def test_grants_are_limited_to_the_only_namespace_of_the_caller(
    http: httpx.AsyncClient, tenant: httpx.AsyncClient
) -> None:
    await create(http)
    assert (await tenant.post("/v1/workers/w/claim", json=ASK)).status_code == 204
    own = await create(tenant, namespace="mine")
    granted = await tenant.post("/v1/workers/w/claim", json=ASK)
    assert granted.json()["execution_id"] == own


async def test_a_partition_shows_only_what_the_caller_sees(
    http: httpx.AsyncClient, tenant: httpx.AsyncClient
) -> None:
    await create(http)
    own = await create(tenant, namespace="mine")
    reply = await tenant.get("/v1/executions", params={"partition": HOME})
    assert reply.json() == {"executions": [own], "next_cursor": None}


@pytest.mark.parametrize(("method", "path", "body"), SHARED)
async def test_what_all_share_is_for_callers_that_see_all(
    tenant: httpx.AsyncClient, method: str, path: str, body: Any
) -> None:
    error_of(await tenant.request(method, path, json=body), 403)


ROUTES = [
    ("GET", "/v1/executions?partition=1", None),
    ("POST", "/v1/executions", EXECUTION),
    *[(method, f"/v1/executions/{NOBODY}{path}", body) for method, path, body in RUN_ROUTES],
    ("POST", "/v1/flows", {"flow_kind": "k", "namespace": "default"}),
    *[(method, f"/v1/flows/{NOBODY}{path}", body) for method, path, body in FLOW_ROUTES],
    ("POST", "/v1/workers/w/claim", ASK),
    *SHARED,
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_every_route_but_signals_needs_a_scope(
    engine: Engine, method: str, path: str, body: Any
) -> None:
    async with client_as(engine, None) as anonymous:
        reply = await anonymous.request(method, path, json=body)
        assert error_of(reply, 401)["error"] == "missing or invalid Authorization header"
    async with client_as(engine, Identity("powerless", frozenset())) as powerless:
        assert error_of(await powerless.request(method, path, json=body), 403)["details"]["scope"]


async def test_the_id_of_a_foreign_execution_is_no_duplicate(
    http: httpx.AsyncClient, tenant: httpx.AsyncClient
) -> None:
    id = await create(http, idempotency_key="k")
    for given in (id, id.rpartition(":")[2]):
        body = {**EXECUTION, "namespace": "mine", "execution_id": given}
        error_of(await tenant.post("/v1/executions", json=body), 400)
        many = await tenant.post("/v1/executions/batch", json={"executions": [body]})
        assert list(many.json()["results"][0]) == ["Refused"]
        assert id not in many.text
    own = await create(tenant, namespace="mine", idempotency_key="k")
    again = {**EXECUTION, "namespace": "mine", "execution_id": own}
    assert (await tenant.post("/v1/executions", json=again)).status_code == 200
