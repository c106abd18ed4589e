"""Fields that a route does not know: ignored where clients of the original send them, refused
everywhere else (server-sdk.md 1.2, 10.1)."""

import json
from typing import Any

import httpx
import pytest
from msgspec import Struct

from flowfabric.server.app import HANDLERS
from tests.kit.every_route import ROUTES, Route
from tests.kit.http import EXECUTION, NOBODY, error_of

pytestmark = pytest.mark.rules

ORIGINAL = {"executions", "waitpoints", "workers", "flows", "graphs", "budgets", "quotas", "keys"}
"""Modules with routes of the original, or of its documents."""


def _bodies() -> dict[tuple[str, str], tuple[str, type[Struct]]]:
    """The module and the body of each route that has one."""
    found: dict[tuple[str, str], tuple[str, type[Struct]]] = {}
    for handler in HANDLERS:
        data = handler.parsed_fn_signature.parameters.get("data")
        if data is None or not issubclass(getattr(data.annotation, "__mro__", [dict])[0], Struct):
            continue
        module = handler.fn.__module__.rpartition(".")[2]
        for method in handler.http_methods:
            for path in handler.paths:
                found[method, path.replace(":str", "")] = (module, data.annotation)
    return found


BODIES = _bodies()


def test_only_routes_of_the_original_ignore_fields() -> None:
    assert len(BODIES) > 40
    for key, (module, body) in BODIES.items():
        assert body.__struct_config__.forbid_unknown_fields is (module not in ORIGINAL), key


def _routes(original: bool) -> list[Any]:
    return [
        pytest.param(route, id=" ".join(route.key))
        for route in ROUTES
        if route.key in BODIES and (BODIES[route.key][0] in ORIGINAL) is original
    ]


async def _send(http: httpx.AsyncClient, route: Route, **more: object) -> httpx.Response:
    url = route.url.replace("{", "").replace("}", "")
    for name in ("run", "waiting", "flow", "waitpoint", "edge"):
        url = url.replace(f"/{name}/", f"/{NOBODY}/")
    return await http.request(route.method, url, json={**route.body, **more})


@pytest.mark.parametrize("route", _routes(original=True))
async def test_a_stray_field_of_an_existing_client_changes_nothing(
    http: httpx.AsyncClient, route: Route
) -> None:
    bare, stray = await _send(http, route), await _send(http, route, policy_json="{}")
    assert stray.headers["FlowFabric-Ignored-Fields"] == "policy_json"
    assert stray.status_code in {bare.status_code, 200}  # what was created exists by now
    strict = {"Prefer": "handling=strict"}
    http.headers.update(strict)
    assert error_of(await _send(http, route, policy_json="{}"), 422)["code"] == "invalid_body"


async def test_a_stray_number_may_be_of_any_length(http: httpx.AsyncClient) -> None:
    kind = {"Content-Type": "application/json"}
    body = json.dumps(EXECUTION).encode()[:-1] + b',"zone":' + b"1" * 5000 + b"}"
    reply = await http.post("/v1/executions", content=body, headers=kind)
    assert (reply.status_code, reply.headers["FlowFabric-Ignored-Fields"]) == (201, "zone")


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ({"required_capabilities": ["gpu"]}, "policy.required_capabilities"),
        ({"retry_policy": {"max_retry": 1}}, "policy.retry_policy.max_retry"),
        (
            {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 1, "delay": 1}}},
            "policy.retry_policy.backoff.delay",
        ),
        ({"routing_requirements": {"zone": "a"}}, "policy.routing_requirements.zone"),
        (
            {"fallback_policy": {"tiers": [{"provider": "p", "model": "m", "tokens": 1}]}},
            "policy.fallback_policy.tiers.0.tokens",
        ),
    ],
)
async def test_a_stray_field_of_a_policy_is_named(
    http: httpx.AsyncClient, policy: dict[str, Any], path: str
) -> None:
    """server-sdk.md 10.1, flaw 27: a capability at the wrong level was ignored without a word."""
    body = {**EXECUTION, "policy": policy}
    reply = await http.post("/v1/executions", json=body)
    assert (reply.status_code, reply.headers["FlowFabric-Ignored-Fields"]) == (201, path)
    query: dict[str, Any] = {**body, "policy": json.dumps(policy)}
    del query["input_payload"]
    octets = {"Content-Type": "application/octet-stream"}
    raw = await http.post("/v1/executions", params=query, content=b"x", headers=octets)
    assert (raw.status_code, raw.headers["FlowFabric-Ignored-Fields"]) == (201, path)
    many = await http.post("/v1/executions/batch", json={"executions": [EXECUTION, body]})
    assert many.headers["FlowFabric-Ignored-Fields"] == f"executions.1.{path}"
    strict = {"Prefer": "handling=strict"}
    refused = error_of(await http.post("/v1/executions", json=body, headers=strict), 422)
    assert path in refused["details"]["reason"]


async def test_what_a_policy_has_is_not_named(http: httpx.AsyncClient) -> None:
    policy = {
        "retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 1}},
        "fallback_policy": {"tiers": [{"provider": "p", "model": "m", "timeout_ms": 1}]},
        "routing_requirements": {"required_capabilities": [], "preferred_locality": "a"},
        "cleanup_policy": {"cleanup_timeout_ms": 5},
    }
    reply = await http.post(
        "/v1/executions", json={**EXECUTION, "policy": policy, "tags": {"a.b": "c"}}
    )
    assert reply.status_code == 201
    assert "FlowFabric-Ignored-Fields" not in reply.headers


@pytest.mark.parametrize("route", _routes(original=False))
async def test_a_new_route_refuses_it(http: httpx.AsyncClient, route: Route) -> None:
    refused = error_of(await _send(http, route, misspelled=1), 422)
    assert refused["code"] == "invalid_body"
    assert "misspelled" in refused["details"]["reason"]
