"""The OpenAPI document is complete, and the server does what it says for any request it allows."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Err

from flowfabric.engine.engine import Engine
from tests.kit.http import client_as
from tests.kit.server_process import server_process

pytestmark = pytest.mark.rules

LONG = {"wait": "0s", "block_ms": 0}
"""Requests that would wait on purpose do not wait here."""


async def document(engine: Engine) -> dict[str, Any]:
    async with client_as(engine, None) as http:
        reply = await http.get("/v1/openapi.json")
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


async def test_every_route_is_described(engine: Engine) -> None:
    found = operations(await document(engine))
    assert len(found) > 90
    names = [operation["operationId"] for _, _, operation in found]
    assert len(set(names)) == len(names)
    for method, path, operation in found:
        assert operation["description"], (method, path)
        assert operation["tags"], (method, path)
        assert "400" in operation["responses"], (method, path)


async def test_every_reference_has_its_schema(engine: Engine) -> None:
    found = await document(engine)
    schemas = found["components"]["schemas"]

    def check(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                assert value["$ref"].rpartition("/")[2] in schemas
            for each in value.values():
                check(each)
        elif isinstance(value, list):
            for each in value:
                check(each)

    check(found)


async def test_public_routes_are_few(engine: Engine) -> None:
    """A route without a scope is one on purpose."""
    found = operations(await document(engine))
    public = {path for _, path, operation in found if not operation.get("security")}
    assert public == {
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/executions/{id}/signal",
        "/v1/waitpoints/look",
        "/v1/waitpoints/decide",
    }


@pytest.mark.long
def test_no_request_that_the_document_allows_is_a_fault(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    examples = 12 if pytestconfig.getoption("--deep") else 3
    with server_process("--store", f"sqlite:///{tmp_path / 'fuzz.db'}") as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/v1/openapi.json")
        with httpx.Client(base_url=server.url, timeout=60) as http:
            for result in schema.get_all_operations():
                assert not isinstance(result, Err)
                operation = result.ok()
                if "stream" not in operation.path or "attempts" in operation.path:
                    _play(operation, http, examples)


def _play(operation: Any, http: httpx.Client, examples: int) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def play(case: Any) -> None:
        request = _without_waiting(case).as_transport_kwargs(base_url=str(http.base_url))
        reply = http.request(
            request["method"],
            request["url"],
            params=request.get("params"),
            json=request.get("json"),
            content=request.get("data"),
            headers=_headers(request.get("headers") or {}),
        )
        assert reply.status_code < 500, (request["method"], request["url"], request, reply.text)

    play()


def _headers(given: Any) -> dict[str, str]:
    """Without the token that was made up: this server asks for none."""
    return {name: value for name, value in given.items() if name.lower() != "authorization"}


def _without_waiting(case: Any) -> Any:
    for name, value in LONG.items():
        if case.query and name in case.query:
            case.query[name] = value
    if "/wait" in case.path:
        case.query = {"wait": "0s"}
    if isinstance(case.body, dict) and "wait_ms" in case.body:
        case.body["wait_ms"] = 0
    return case
