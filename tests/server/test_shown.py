"""What the server answers is what the OpenAPI document says, member by member."""

from typing import Any

import httpx
import jsonschema_rs
import pytest

from flowfabric.core.execution.registry import Presence
from flowfabric.engine.engine import Engine
from tests.kit.http import BUDGET, NOBODY, add_member, create_flow
from tests.kit.http_work import HttpWorker
from tests.kit.lab import W1, Lab
from tests.server.test_waitpoints import signal, suspended

pytestmark = pytest.mark.rules

POLICY = {"retry_policy": {"max_retries": 1}, "routing_requirements": {"required_capabilities": []}}


async def filled(http: httpx.AsyncClient, engine: Engine, lab: Lab) -> dict[str, list[str]]:
    """A store that has something of each noun: the values for the placeholders of the paths."""
    worker = HttpWorker(engine, http)
    claim = await worker.take(tags={"shop.order": "7"}, policy=POLICY)
    await worker.do(claim, "steps", name="charge", value={"paid": True})
    await worker.do(
        claim, "frames", frames=[{"text": "a"}, {"payload_json": {}, "mode": "summary"}]
    )
    await worker.do(claim, "progress", percent=5, message="m")
    await worker.do(claim, "complete", result={"done": True})
    failed = await worker.take()
    await worker.do(failed, "fail", reason="boom", category="permanent", details={"why": 1})
    held = await worker.take(policy={"timeout_policy": {"attempt_timeout_ms": 60_000}})
    asleep, ticket = await suspended(http, lab)
    woken, other = await suspended(http, lab)
    await http.post(f"/v1/executions/{woken}/signal", json=signal(other, payload="e30="))
    flow = await create_flow(http)
    members = [await add_member(http, flow) for _ in range(2)]
    edge = {"upstream_execution_id": members[0], "downstream_execution_id": members[1]}
    await http.post(f"/v1/flows/{flow}/edges", json={**edge, "expected_graph_revision": 2})
    await http.post("/v1/budgets", json={**BUDGET, "budget_id": NOBODY})
    await http.post(f"/v1/budgets/{NOBODY}/usage", json={"dimensions": {"tokens": 90}})
    quota = {"window_seconds": 60, "max_requests_per_window": 2, "max_concurrent": 1}
    await http.post("/v1/quotas", json={**quota, "quota_policy_id": NOBODY})
    await http.put(f"/v1/schedules/{NOBODY}", json={"execution_kind": "k", "cron": "0 5 * * *"})
    await http.put(f"/v1/subscriptions/{NOBODY}", json={"families": ["completion"]})
    await http.put(f"/v1/webhooks/{NOBODY}", json={"url": "https://example.org"})
    await http.post("/v1/lanes/quiet/pause", json={"reason": "r"})
    await engine.workers.register(Presence(instance=W1.instance, worker=W1.id))
    claimed = [each["execution_id"] for each in (claim, failed, held)]
    return {
        "/v1/executions/": [*claimed, asleep, woken, *members],
        "/v1/work/": [held["execution_id"]],
        "/v1/flows/": [flow],
        "{lane}": ["default", "quiet", "nothing"],
        "{name}": [NOBODY],
        "{instance}": [W1.instance],
        "{index}": ["0"],
        "{waitpoint_id}": [str(ticket.id)],
        "/v1/budgets/": [NOBODY],
    }


def urls(path: str, values: dict[str, list[str]]) -> list[str]:
    """The path with each of the ids there are."""
    for name, given in values.items():
        if name.startswith("{") and name in path:
            return [url for each in given for url in urls(path.replace(name, each), values)]
    if "{id}" not in path:
        return [path]
    (ids,) = [ids for prefix, ids in values.items() if path.startswith(prefix)]
    return [path.replace("{id}", id) for id in ids]


def problems(
    reply: httpx.Response, operation: dict[str, Any], document: dict[str, Any]
) -> list[str]:
    """In what the answer is not as the document describes it."""
    described = operation["responses"].get(str(reply.status_code))
    if described is None:
        return [f"{reply.url}: {reply.status_code} is not described"]
    schema = described["content"].get("application/json", {}).get("schema")
    if schema is None or reply.headers["content-type"] != "application/json":
        return []
    whole = {**schema, "components": document["components"]}
    validator = jsonschema_rs.Draft202012Validator(whole)
    return [
        f"{reply.url}: {each.message} at {each.instance_path}"
        for each in validator.iter_errors(reply.json())
    ]


async def test_every_read_answers_what_the_document_says(
    http: httpx.AsyncClient, engine: Engine, lab: Lab
) -> None:
    document = (await http.get("/v1/openapi.json")).json()
    values = await filled(http, engine, lab)
    read, found = 0, []
    for path, operations in document["paths"].items():
        streams = "text/event-stream" in str(operations.get("get", ""))
        if "get" not in operations or streams:
            continue
        for url in urls(path, values):
            query = {"partition": "86", "wait": "0s", "payload": "true"}
            reply = await http.get(url, params=query)
            found += problems(reply, operations["get"], document)
            read += reply.status_code == 200
    assert found == []
    assert read > 100


async def test_every_answer_has_its_members_in_the_document(http: httpx.AsyncClient) -> None:
    """A client that is generated from the document would have nothing but a map otherwise."""
    document = (await http.get("/openapi.json")).json()
    maps = {"/v1/executions/{id}/tags", "/v1/flows/{id}/tags"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, described in operation["responses"].items():
                for media, content in described.get("content", {}).items():
                    schema = content.get("schema", {})
                    is_map = schema.get("type") == "object" and "properties" not in schema
                    named = media != "application/json" or path in maps or (schema and not is_map)
                    assert named, (method, path, status)


async def test_bodies_of_bytes_are_in_the_document(http: httpx.AsyncClient) -> None:
    document = (await http.get("/v1/openapi.json")).json()
    for path in ("/v1/executions", "/v1/work/{id}/complete"):
        body = document["paths"][path]["post"]["requestBody"]["content"]
        assert set(body) == {"application/json", "application/octet-stream"}
