"""Asking for work over HTTP (server-sdk.md 1.7, coordination.md 4.1)."""

from typing import Any

import httpx
import pytest

from flowfabric.store.clock import ManualClock
from tests.kit.http import HOME, LANE, create, error_of, tagged, without
from tests.kit.lab import W1, Lab

URL = "/v1/workers/w1/claim"
ASK: dict[str, Any] = {"lane_id": LANE, "worker_instance_id": "w1-a", "grant_ttl_ms": 5000}


async def test_no_work_is_an_empty_204(http: httpx.AsyncClient) -> None:
    """C-T108"""
    reply = await http.post(URL, json=ASK)
    assert (reply.status_code, reply.content) == (204, b"")


async def test_a_grant_is_redeemed_by_its_worker(
    http: httpx.AsyncClient, lab: Lab, clock: ManualClock
) -> None:
    id = await create(http)
    reply = await http.post(URL, json=ASK)
    grant = reply.json()
    assert reply.status_code == 200
    assert grant == {
        "execution_id": id,
        "partition_key": f"{{fp:{HOME}}}",
        "grant_key": grant["grant_key"],
        "expires_at_ms": clock.now() + 5000,
    }
    assert (await http.post(URL, json=ASK)).status_code == 204
    claim = await lab.engine.grants.claim(id, W1, key=grant["grant_key"])
    assert claim.id == id


async def test_an_expired_grant_is_granted_again(
    http: httpx.AsyncClient, clock: ManualClock
) -> None:
    id = await create(http)
    await http.post(URL, json=ASK)
    clock.advance(5001)
    assert (await http.post(URL, json=ASK)).json()["execution_id"] == id


async def test_the_partition_key_is_that_of_the_id(http: httpx.AsyncClient) -> None:
    await create(http, execution_id=tagged("01a1e105-7c1b-7d3e-8a52-3f0c9e4b6d71", 9))
    assert (await http.post(URL, json=ASK)).json()["partition_key"] == "{fp:9}"


async def test_priority_then_age_decide(http: httpx.AsyncClient, clock: ManualClock) -> None:
    ids = []
    for priority in (0, 5, 5):
        ids.append(await create(http, priority=priority))
        clock.advance(1)
    order = [(await http.post(URL, json=ASK)).json()["execution_id"] for _ in ids]
    assert order == [ids[1], ids[2], ids[0]]


async def test_capabilities_decide_and_do_not_hide_others(http: httpx.AsyncClient) -> None:
    needed = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    special = await create(http, policy=needed, priority=9)
    plain = await create(http)
    assert (await http.post(URL, json=ASK)).json()["execution_id"] == plain
    able = {**ASK, "capabilities": ["gpu", "x"]}
    assert (await http.post(URL, json=able)).json()["execution_id"] == special


async def test_other_lanes_and_namespaces_are_left_alone(http: httpx.AsyncClient) -> None:
    await create(http)
    assert (await http.post(URL, json={**ASK, "lane_id": "other"})).status_code == 204
    assert (await http.post(URL, json={**ASK, "namespace": "other"})).status_code == 204
    assert (await http.post(URL, json={**ASK, "namespace": "default"})).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"grant_ttl_ms": 0},
        {"grant_ttl_ms": 60_001},
        {"grant_ttl_ms": 2**40},
        {"worker_instance_id": ""},
        {"worker_instance_id": "a b"},
        {"worker_instance_id": "\u00e4" * 129},
        {"lane_id": ""},
        {"lane_id": "x" * 65},
        {"capabilities": [""]},
        {"capabilities": ["a,b"]},
        {"capabilities": ["a b"]},
        {"capabilities": [f"c{n}" for n in range(257)]},
        {"capabilities": ["c" * 4097]},
    ],
)
async def test_what_the_rules_refuse_is_400(
    http: httpx.AsyncClient, change: dict[str, Any]
) -> None:
    body = error_of(await http.post(URL, json={**ASK, **change}), 400)
    expected = "invalid_capabilities" if "capabilities" in change else "invalid_input"
    assert body["code"] == expected


@pytest.mark.parametrize("ttl", [1, 60_000])
async def test_the_bounds_of_a_grant_are_allowed(http: httpx.AsyncClient, ttl: int) -> None:
    assert (await http.post(URL, json={**ASK, "grant_ttl_ms": ttl})).status_code == 204


@pytest.mark.parametrize("worker", ["a%20b", "a%0Ab", "x" * 257])
async def test_a_wrong_worker_is_400(http: httpx.AsyncClient, worker: str) -> None:
    error_of(await http.post(f"/v1/workers/{worker}/claim", json=ASK), 400)


@pytest.mark.parametrize("name", sorted(ASK))
async def test_a_missing_field_is_422(http: httpx.AsyncClient, name: str) -> None:
    error_of(await http.post(URL, json=without(ASK, name)), 422)
    error_of(await http.post(URL, json={**ASK, name: None}), 422)


@pytest.mark.parametrize(
    "change", [{"capabilities": None}, {"capabilities": [1]}, {"grant_ttl_ms": "5"}]
)
async def test_a_wrong_type_is_422(http: httpx.AsyncClient, change: dict[str, Any]) -> None:
    error_of(await http.post(URL, json={**ASK, **change}), 422)


async def test_the_limit_of_the_body(http: httpx.AsyncClient) -> None:
    content = b" " * (64 * 1024 + 1)
    reply = await http.post(URL, content=content, headers={"Content-Type": "application/json"})
    assert reply.status_code == 413
    assert reply.json()["route"] == "/v1/workers/{worker_id}/claim"
