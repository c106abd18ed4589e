"""Creating executions over HTTP: repeats, and quotas (server-sdk.md 1.7, execution.md 3.1)."""

from typing import Any

import httpx
import pytest

from tests.kit.http import EXECUTION, LANE, NOBODY, create

pytestmark = pytest.mark.rules

URL = "/v1/executions"


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": {"routing_requirements": "x"}},
        {"policy": {"retry_policy": {"backoff": {"type": "never"}}}},
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
