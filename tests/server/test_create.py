"""Creating executions over HTTP: repeats, and quotas (server-sdk.md 1.7, execution.md 3.1)."""

from typing import Any
from uuid import UUID

import httpx
import pytest

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.engine import Engine
from tests.kit.http import EXECUTION, LANE, NOBODY, create, error_of, tagged

pytestmark = pytest.mark.rules

URL = "/v1/executions"


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": {"routing_requirements": "x"}},
        {"policy": {"retry_policy": {"backoff": {"type": 7}}}},
        {"policy": {"budget_ids": [NOBODY]}},
        {"lane_id": ""},
        {"tags": {"BAD KEY": "x"}},
    ],
)
async def test_a_repeat_is_a_duplicate_whatever_is_wrong_with_the_rest(
    http: httpx.AsyncClient, wrong: dict[str, Any]
) -> None:
    """Execution 3.1: key and id are looked at before policy, lane and tags."""
    id = await create(http, execution_id=NOBODY, idempotency_key="k")
    for same in ({"idempotency_key": "k"}, {"execution_id": NOBODY}):
        reply = await http.post(URL, json={**EXECUTION, **same, **wrong})
        assert (reply.status_code, reply.json()) == (200, {"Duplicate": {"execution_id": id}})
    reply = await http.post(URL, json={**EXECUTION, "idempotency_key": "other", **wrong})
    assert reply.status_code in (400, 404)


async def test_an_id_with_another_partition_is_no_repeat(http: httpx.AsyncClient) -> None:
    """Execution 1.1: it is another id, and one uuid names one execution."""
    id = await create(http, execution_id=tagged(NOBODY, 9))
    for same in (id, NOBODY):
        reply = await http.post(URL, json={**EXECUTION, "execution_id": same})
        assert (reply.status_code, reply.json()) == (200, {"Duplicate": {"execution_id": id}})
    reply = await http.post(URL, json={**EXECUTION, "execution_id": tagged(NOBODY, 10)})
    assert error_of(reply, 400)["details"]["reason"] == "wrong_partition"


@pytest.mark.parametrize("wrong", [{"lane_id": ""}, {"tags": {"X": "x"}}, {"execution_kind": ""}])
async def test_the_policy_is_looked_at_before_the_rest(
    http: httpx.AsyncClient, wrong: dict[str, Any]
) -> None:
    """Execution 3.1: check 4 comes before 5."""
    needs = {"required_capabilities": ["a,b"]}
    for policy, code in (
        ({"routing_requirements": needs}, "invalid_capabilities"),
        ({"routing_requirements": []}, "invalid_policy_json"),
    ):
        reply = await http.post(URL, json={**EXECUTION, "policy": policy, **wrong})
        assert error_of(reply, 400)["code"] == code


async def test_a_limit_that_does_not_exist_is_named(http: httpx.AsyncClient) -> None:
    for policy in ({"budget_ids": [NOBODY]}, {"quotas": [{"quota": NOBODY}]}):
        reply = await http.post(URL, json={**EXECUTION, "policy": policy})
        assert error_of(reply, 404)["details"]["key"] == NOBODY


async def test_a_run_with_a_quota_waits_for_a_worker_if_there_is_room(
    http: httpx.AsyncClient,
) -> None:
    """server-sdk.md 1.7: created as `waiting`, and the next claim gets it."""
    limits = {"window_seconds": 60, "max_requests_per_window": 500, "max_concurrent": 1}
    reply = await http.post("/v1/quotas", json={"quota_policy_id": NOBODY, **limits, "now": 1})
    assert reply.status_code == 201
    body = {**EXECUTION, "policy": {"quotas": [{"quota": NOBODY}]}}
    first, second = [(await http.post(URL, json=body)).json()["Created"] for _ in range(2)]
    assert (first["public_state"], second["public_state"]) == ("waiting", "rate_limited")
    ask = {"lane_id": LANE, "worker_instance_id": "i", "capabilities": [], "grant_ttl_ms": 1000}
    claims = [await http.post("/v1/workers/w/claim", json=ask) for _ in range(2)]
    assert [reply.status_code for reply in claims] == [200, 204]
    assert claims[0].json()["execution_id"] == first["execution_id"]


async def test_a_wrong_body_without_id_and_key_repeats_nothing(http: httpx.AsyncClient) -> None:
    """Not even the run with the nil uuid."""
    await create(http, execution_id=str(UUID(int=0)))
    reply = await http.post(URL, json={**EXECUTION, "execution_kind": ""})
    assert reply.status_code == 400


async def test_a_created_run_is_reported_although_its_state_cannot_be_read(
    http: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.quotas.define(Quota(name="q", concurrency=1))
    body = {**EXECUTION, "policy": {"quotas": [{"quota": "q"}]}}

    async def fails(id: str) -> None:
        raise Unavailable("gone")

    monkeypatch.setattr(engine.views, "state", fails)
    reply = await http.post(URL, json=body)
    assert (reply.status_code, reply.json()["Created"]["public_state"]) == (201, "rate_limited")


@pytest.mark.parametrize("name", [NOBODY.replace("-", ""), NOBODY.upper()])
async def test_a_quota_named_like_a_uuid_in_another_form_is_found(
    http: httpx.AsyncClient, engine: Engine, name: str
) -> None:
    """The very name comes first: applications name quotas as they like."""
    await engine.quotas.define(Quota(name=name, concurrency=1))
    body = {**EXECUTION, "policy": {"quotas": [{"quota": name}]}}
    assert (await http.post(URL, json=body)).status_code == 201
    assert (await http.get(f"/v1/quotas/{name}")).status_code == 200


async def test_a_lone_surrogate_in_the_query_is_refused(http: httpx.AsyncClient) -> None:
    members = {k: v for k, v in EXECUTION.items() if isinstance(v, str)}
    query = {**members, "policy": '{"\\ud800": 1}'}
    octets = {"Content-Type": "application/octet-stream"}
    reply = await http.post(URL, params=query, content=b"x", headers=octets)
    assert reply.status_code == 422
