"""Webhooks over HTTP: set, shown without their secret, paused, tried, deleted."""

from typing import Any

import httpx
import pytest

from flowfabric.core.execution.event_filter import EventFilter
from flowfabric.core.execution.webhook import KIND
from flowfabric.engine.engine import Engine
from flowfabric.store.queries import Query
from tests.kit.http import client_as, tenant
from tests.kit.lab import Lab

URL = "/v1/webhooks/orders"
BODY = {"url": "https://example.org/in", "namespace": "acme", "families": ["completion"]}


async def test_a_webhook_is_set_and_its_secret_shown_once(http: httpx.AsyncClient) -> None:
    made = await http.put(URL, json={**BODY, "tag": "app.tenant=a"})
    assert made.status_code == 200, made.text
    secret = made.json().pop("secret")
    assert len(secret) > 30
    shown = (await http.get(URL)).json()
    assert shown == {
        "name": "orders",
        "url": "https://example.org/in",
        "namespace": "acme",
        "families": ["completion"],
        "tag": ["app.tenant", "a"],
        "paused": False,
        "reason": "",
        "created_at": made.json()["created_at"],
    }
    listed = await http.get("/v1/webhooks", params={"namespace": "acme", "limit": 1})
    assert listed.json() == {"webhooks": [shown], "next_cursor": "orders"}
    rest = await http.get("/v1/webhooks", params={"cursor": "orders"})
    assert rest.json() == {"webhooks": [], "next_cursor": None}
    again = (await http.put(URL, json={**BODY, "url": "https://example.org/other"})).json()
    assert (again["url"], again["secret"]) == ("https://example.org/other", secret)


async def test_a_webhook_is_paused_resumed_and_deleted(http: httpx.AsyncClient) -> None:
    await http.put(URL, json=BODY)
    paused = (await http.post(f"{URL}/pause", params={"reason": "holiday"})).json()
    assert (paused["paused"], paused["reason"]) == (True, "holiday")
    assert not (await http.post(f"{URL}/resume")).json()["paused"]
    assert (await http.delete(URL)).status_code == 204
    for method, end in (("GET", ""), ("POST", "/pause"), ("POST", "/test"), ("DELETE", "")):
        reply = await http.request(method, URL + end)
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


async def test_events_and_trials_become_deliveries(http: httpx.AsyncClient, lab: Lab) -> None:
    await http.put(URL, json=BODY)
    await lab.complete(await lab.running(namespace="other"))
    await lab.complete(await lab.running(namespace="acme"))
    tried = await http.post(f"{URL}/test")
    assert tried.status_code == 202
    await lab.engine.webhooks.dispatch()
    found = (await lab.engine.views.list(Query(kind=KIND, namespace="acme"))).items
    assert len(found) == 2
    assert tried.json()["execution_id"] in [str(info.id) for info in found]


@pytest.mark.rules
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"url": "ftp://example.org"}, 400),
        ({"url": "https://user:word@example.org"}, 400),
        ({"url": "https://example.org", "secret": "short"}, 400),
        ({"url": "https://example.org", "tag": "nonsense"}, 400),
        ({"url": "https://example.org", "families": ["nonsense"]}, 422),
        ({"url": 7}, 422),
        ({}, 422),
    ],
)
async def test_a_webhook_that_makes_no_sense_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any], status: int
) -> None:
    reply = await http.put(URL, json=body)
    assert reply.status_code == status, reply.text
    assert (await http.get(URL)).status_code == 404


async def test_a_tenant_does_not_take_over_a_webhook_by_its_name(engine: Engine) -> None:
    before = await engine.webhooks.put("orders", "https://theirs.example.org")
    async with client_as(engine, tenant(namespace="acme")) as caller:
        reply = await caller.put(URL, json=BODY)
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input")
        assert await engine.webhooks.get("orders") == before
        assert (await caller.put("/v1/webhooks/mine", json={"url": BODY["url"]})).status_code == 200
    assert (await engine.webhooks.get("mine")).filter == EventFilter(namespace="acme")
