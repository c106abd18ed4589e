"""Bodies that the HTTP routes accept, and short words for sending them."""

import json
from typing import Any
from uuid import UUID

import httpx

from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.core.base.ids import ExecutionId, lane_partition
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext

LANE = "default"
HOME = lane_partition(LANE)
NOBODY = "01a1e105-7c1b-7d3e-8a52-3f0c9e4b6d71"
"""A uuid that names nothing."""

EXECUTION = {
    "namespace": "default",
    "lane_id": LANE,
    "execution_kind": "work",
    "input_payload": [104, 105],
    "priority": 0,
    "creator_identity": "test",
}

BUDGET = {
    "scope_type": "lane",
    "scope_id": LANE,
    "enforcement_mode": "strict",
    "on_hard_limit": "fail",
    "on_soft_limit": "warn",
    "reset_interval_ms": 0,
    "dimensions": ["tokens"],
    "hard_limits": [100],
    "soft_limits": [80],
}


def tagged(uuid: str | UUID, partition: int = HOME) -> str:
    return f"{{fp:{partition}}}:{uuid}"


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


async def create(http: httpx.AsyncClient, **members: Any) -> str:
    """The id of a fresh execution."""
    reply = await http.post("/v1/executions", json={**EXECUTION, **members})
    assert reply.status_code == 201, reply.text
    id: str = reply.json()["Created"]["execution_id"]
    return id


async def create_flow(http: httpx.AsyncClient, **members: Any) -> str:
    reply = await http.post(
        "/v1/flows", json={"flow_kind": "build", "namespace": "default", **members}
    )
    assert reply.status_code == 201, reply.text
    id: str = reply.json()["Created"]["flow_id"]
    return id


async def add_member(http: httpx.AsyncClient, flow: str, **members: Any) -> str:
    """A fresh execution that has joined the flow."""
    id = await create(http, flow_id=flow, **members)
    reply = await http.post(f"/v1/flows/{flow}/members", json={"execution_id": id})
    assert reply.status_code == 201, reply.text
    return id


def error_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    """The body of a refusal: it always has a text and a code."""
    assert reply.status_code == status, reply.text
    body: dict[str, Any] = reply.json()
    assert body["error"]
    assert body["code"]
    return body


def padded(body: dict[str, Any], size: int) -> bytes:
    """The body as JSON of exactly so many bytes, by a field that no route knows."""
    bare = json.dumps({**body, "padding": ""}).encode()
    return json.dumps({**body, "padding": "x" * (size - len(bare))}).encode()


def uuid_of(id: str) -> UUID:
    return ExecutionId(id).uuid


class KnownCaller(Authentication):
    """Every request comes from this caller; None is one that has sent no token."""

    def __init__(self, engine: Engine, caller: Identity | None) -> None:
        super().__init__(engine, is_open=False)
        self._caller = caller

    async def identify(self, header: str | None) -> Identity | None:
        return self._caller


def client_as(engine: Engine, caller: Identity | None) -> httpx.AsyncClient:
    """A client of a server that takes every request for one of this caller."""
    app = create_app(ServerContext(engine, KnownCaller(engine, caller)))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


def tenant(*scopes: str, namespace: str = "mine") -> Identity:
    """A caller that sees one namespace, with these scopes, or with all."""
    allowed = frozenset(AccessScope(scope) for scope in scopes) or frozenset(AccessScope)
    return Identity("tenant", allowed, frozenset({namespace}))


# -- edges of flows


async def stage(
    http: httpx.AsyncClient, flow: str, upstream: str, downstream: str, revision: int, **more: Any
) -> httpx.Response:
    body = {
        "upstream_execution_id": upstream,
        "downstream_execution_id": downstream,
        "expected_graph_revision": revision,
        **more,
    }
    return await http.post(f"/v1/flows/{flow}/edges", json=body)


async def apply(
    http: httpx.AsyncClient, flow: str, edge: str, upstream: str, downstream: str, **more: Any
) -> httpx.Response:
    body = {
        "edge_id": edge,
        "upstream_execution_id": upstream,
        "downstream_execution_id": downstream,
        "graph_revision": 0,
        **more,
    }
    return await http.post(f"/v1/flows/{flow}/edges/apply", json=body)


async def link(
    http: httpx.AsyncClient, flow: str, upstream: str, downstream: str, revision: int
) -> int:
    """Stages and applies an edge, as clients of the original do; the new revision."""
    staged = (await stage(http, flow, upstream, downstream, revision)).json()["Staged"]
    reply = await apply(http, flow, staged["edge_id"], upstream, downstream)
    assert reply.status_code == 200, reply.text
    return int(staged["new_graph_revision"])
