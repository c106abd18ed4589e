"""Quotas over HTTP (server-sdk.md 1.7, coordination.md 3.1)."""

from typing import Any

import httpx
import pytest

from flowfabric.core.limit.quota import Quota, Rate
from flowfabric.engine.engine import Engine
from flowfabric.engine.limit import rounds
from tests.kit.http import NOBODY, create, error_of, padded, without
from tests.kit.lab import Lab

pytestmark = pytest.mark.rules

URL = "/v1/quotas"
QUOTA = {"window_seconds": 60, "max_requests_per_window": 5, "max_concurrent": 1}


async def test_create_is_idempotent_and_compares_nothing(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    body = {**QUOTA, "quota_policy_id": NOBODY, "now": 1}
    first = await http.post(URL, json=body)
    assert (first.status_code, first.json()) == (201, {"Created": {"quota_policy_id": NOBODY}})
    again = await http.post(URL, json={**body, "max_concurrent": 9})
    known = {"AlreadySatisfied": {"quota_policy_id": NOBODY}}
    assert (again.status_code, again.json()) == (200, known)
    quota = await engine.quotas.get(NOBODY)
    assert (quota.concurrency, quota.rate) == (1, Rate(5, quota.longest_window))
    assert quota.longest_window == 60_000


async def test_the_server_mints_an_id_that_executions_can_name(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    id = (await http.post(URL, json=QUOTA)).json()["Created"]["quota_policy_id"]
    for _ in range(2):
        await create(http, policy={"quotas": [{"quota": id}]})
    await lab.engine.sweep.once()
    assert len(await lab.claim(limit=5)) == 1


async def test_a_replayed_execution_waits_for_a_worker_if_its_quota_has_room(
    http: httpx.AsyncClient, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server 1.7: the answer of a replay is `waiting`; without room it says so"""
    monkeypatch.setattr(rounds, "SETTLE", 30)
    id = (await http.post(URL, json=QUOTA)).json()["Created"]["quota_policy_id"]
    runs = [await create(http, policy={"quotas": [{"quota": id}]}) for _ in range(2)]
    for run in runs:
        await lab.engine.executions.cancel(run, reason="over")
    answers = [await http.post(f"/v1/executions/{run}/replay") for run in runs]
    states = [answer.json()["Replayed"]["public_state"] for answer in answers]
    assert states == ["waiting", "rate_limited"]


@pytest.mark.parametrize(
    "change",
    [
        {"max_requests_per_window": 0, "max_concurrent": 0},
        {"window_seconds": 0},
        {"max_requests_per_window": 0},
        {"max_concurrent": 0},
    ],
)
async def test_zero_is_no_limit(http: httpx.AsyncClient, change: dict[str, int]) -> None:
    assert (await http.post(URL, json={**QUOTA, **change})).status_code == 201


@pytest.mark.parametrize("name", sorted(QUOTA))
async def test_a_missing_field_is_422(http: httpx.AsyncClient, name: str) -> None:
    error_of(await http.post(URL, json=without(QUOTA, name)), 422)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"quota_policy_id": "nonsense"}, 400),
        ({"max_concurrent": 2**64}, 422),
        ({"max_concurrent": -1}, 422),
        ({"max_concurrent": 1.0}, 422),
        ({"window_seconds": None}, 422),
        ({"window_seconds": "60"}, 422),
    ],
)
async def test_a_wrong_quota_is_refused(
    http: httpx.AsyncClient, change: dict[str, Any], status: int
) -> None:
    error_of(await http.post(URL, json={**QUOTA, **change}), status)


async def test_the_limit_of_the_body(http: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    large = await http.post(URL, content=padded(QUOTA, 64 * 1024 + 1), headers=headers)
    assert (large.status_code, large.json()["route"]) == (413, "/v1/quotas")
    fits = await http.post(URL, content=padded(QUOTA, 64 * 1024), headers=headers)
    assert fits.status_code == 201


async def test_a_quota_is_read_changed_and_deleted(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 10.1, flaw 12: a quota has no route but that which creates it."""
    id = (await http.post(URL, json=QUOTA)).json()["Created"]["quota_policy_id"]
    for _ in range(3):
        await create(http, policy={"quotas": [{"quota": id.upper()}]})
    assert len(await lab.claim(limit=5)) == 1
    read = (await http.get(f"{URL}/{id.replace('-', '')}")).json()
    assert (read["quota"]["name"], read["running"], read["waiting"]) == (id, 1, 2)
    changed = await http.put(f"{URL}/{id}", json={**QUOTA, "max_concurrent": 2})
    assert (changed.status_code, changed.json()["concurrency"]) == (200, 2)
    await lab.engine.sweep.once()
    assert len(await lab.claim(limit=5)) == 1
    assert (await http.delete(f"{URL}/{id}")).status_code == 204
    error_of(await http.delete(f"{URL}/{id}"), 404)
    await lab.engine.sweep.once()
    assert len(await lab.claim(limit=5)) == 1
    error_of(await http.put(f"{URL}/{id}", json={**QUOTA, "limit": 1}), 422)
    error_of(await http.put(f"{URL}/team", json=QUOTA), 400)


async def test_a_replay_waits_for_a_worker_if_its_quota_has_room(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    """server-sdk.md 1.7: `waiting`, as after the creation"""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    ids = [await create(http, policy={"quotas": [{"quota": "q"}]}) for _ in range(2)]
    for _ in ids:
        await lab.complete(await lab.claim_one())
        await lab.engine.settle()
    states = [(await http.post(f"/v1/executions/{id}/replay")).json()["Replayed"] for id in ids]
    assert [state["public_state"] for state in states] == ["waiting", "rate_limited"]
