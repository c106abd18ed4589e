"""Budgets over HTTP (server-sdk.md 1.7, coordination.md 2)."""

from typing import Any

import httpx
import pytest

from flowfabric.store.clock import ManualClock
from tests.kit.http import BUDGET, NOBODY, create, error_of, padded, without
from tests.kit.lab import Lab

pytestmark = pytest.mark.rules

URL = "/v1/budgets"
JSON = {"Content-Type": "application/json"}


async def new(http: httpx.AsyncClient, **members: Any) -> str:
    reply = await http.post(URL, json={**BUDGET, **members})
    assert reply.status_code == 201, reply.text
    id: str = reply.json()["Created"]["budget_id"]
    return id


async def spend(http: httpx.AsyncClient, id: str, amounts: dict[str, int], **more: Any) -> Any:
    reply = await http.post(f"{URL}/{id}/usage", json={"dimensions": amounts, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_create_is_idempotent_and_compares_nothing(http: httpx.AsyncClient) -> None:
    body = {**BUDGET, "budget_id": NOBODY, "now": 1}
    first = await http.post(URL, json=body)
    assert (first.status_code, first.json()) == (201, {"Created": {"budget_id": NOBODY}})
    again = await http.post(URL, json={**body, "scope_id": "other"})
    assert (again.status_code, again.json()) == (200, {"AlreadySatisfied": {"budget_id": NOBODY}})
    assert (await http.get(f"{URL}/{NOBODY}")).json()["scope_id"] == "default"


async def test_a_budget_shows_what_it_was_created_with(
    http: httpx.AsyncClient, clock: ManualClock
) -> None:
    free = {"scope_type": "planet", "scope_id": "", "enforcement_mode": "now and then"}
    id = await new(
        http,
        **free,
        reset_interval_ms=1000,
        dimensions=["tokens", "calls"],
        hard_limits=[100, 0],
        soft_limits=[0, 5],
    )
    found = (await http.get(f"{URL}/{id}")).json()
    assert found == {
        "budget_id": id,
        **free,
        "usage": {},
        "hard_limits": {"tokens": 100, "calls": 0},
        "soft_limits": {"tokens": 0, "calls": 5},
        "breach_count": 0,
        "soft_breach_count": 0,
        "last_breach_at": None,
        "last_breach_dim": None,
        "next_reset_at": str(clock.now() + 1000),
        "created_at": str(clock.now()),
    }


async def test_the_words_for_limits_are_kept(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await new(http, on_hard_limit="reroute", on_soft_limit="sing")
    labels = (await lab.engine.budgets.get(id)).labels
    assert (labels["on_hard_limit"], labels["on_soft_limit"]) == ("reroute", "sing")


async def test_usage_counts_up_to_the_limit(http: httpx.AsyncClient, clock: ManualClock) -> None:
    id = await new(http)
    assert await spend(http, id, {"tokens": 80}) == "Ok"
    soft = {"dimension": "tokens", "current_usage": 100, "soft_limit": 80}
    assert await spend(http, id, {"tokens": 20}) == {"SoftBreach": soft}
    hard = {"dimension": "tokens", "current_usage": 100, "hard_limit": 100}
    assert await spend(http, id, {"tokens": 1, "calls": 1}) == {"HardBreach": hard}
    found = (await http.get(f"{URL}/{id}")).json()
    assert found["usage"] == {"tokens": 100}
    assert (found["breach_count"], found["soft_breach_count"]) == (1, 1)
    assert (found["last_breach_at"], found["last_breach_dim"]) == (str(clock.now()), "tokens")


async def test_the_same_key_counts_once(http: httpx.AsyncClient) -> None:
    id = await new(http)
    assert await spend(http, id, {"tokens": 1}, dedup_key="k") == "Ok"
    assert await spend(http, id, {"tokens": 1}, dedup_key="k") == "AlreadyApplied"
    assert await spend(http, id, {"tokens": 1}, dedup_key="") == "Ok"
    assert await spend(http, id, {"tokens": 1}, dedup_key=None) == "Ok"
    assert (await http.get(f"{URL}/{id}")).json()["usage"] == {"tokens": 3}


async def test_a_refused_amount_may_try_again_with_its_key(http: httpx.AsyncClient) -> None:
    id = await new(http)
    assert "HardBreach" in await spend(http, id, {"tokens": 101}, dedup_key="k")
    assert await spend(http, id, {"tokens": 1}, dedup_key="k") == "Ok"


async def test_no_amount_is_no_mistake(http: httpx.AsyncClient) -> None:
    id = await new(http)
    assert await spend(http, id, {}) == "Ok"
    error_of(await http.post(f"{URL}/{NOBODY}/usage", json={"dimensions": {}}), 404)


async def test_an_unlimited_dimension_is_counted(http: httpx.AsyncClient) -> None:
    id = await new(http, hard_limits=[0], soft_limits=[0])
    assert await spend(http, id, {"tokens": 10**12, "other": 1}) == "Ok"


async def test_only_an_advisory_budget_lets_amounts_pass(http: httpx.AsyncClient) -> None:
    strict = await new(http, on_hard_limit="warn")
    assert "HardBreach" in await spend(http, strict, {"tokens": 101})
    advisory = await new(http, on_hard_limit="warn", enforcement_mode="advisory")
    assert "SoftBreach" in await spend(http, advisory, {"tokens": 101})


async def test_reset_starts_again(http: httpx.AsyncClient, clock: ManualClock) -> None:
    id = await new(http, reset_interval_ms=1000)
    await spend(http, id, {"tokens": 7})
    reply = await http.post(f"{URL}/{id}/reset")
    next_at = clock.now() + 1000
    assert (reply.status_code, reply.json()) == (200, {"Reset": {"next_reset_at": next_at}})
    assert (await http.get(f"{URL}/{id}")).json()["usage"] == {"tokens": 0}
    once = await new(http)
    assert (await http.post(f"{URL}/{once}/reset")).json() == {"Reset": {"next_reset_at": 0}}


async def test_a_budget_keeps_executions_that_name_it_from_starting(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    id = await new(http)
    await create(http, policy={"budget_ids": [id]})
    await spend(http, id, {"tokens": 100})
    assert await lab.claim() == []


@pytest.mark.parametrize("form", ["{}", "{{{}}}", "urn:uuid:{}"])
async def test_a_policy_names_a_budget_in_any_form_of_its_uuid(
    http: httpx.AsyncClient, lab: Lab, form: str
) -> None:
    """server-sdk.md 1.2: hyphenated, simple, braced and urn are the same id."""
    id = await new(http)
    await spend(http, id, {"tokens": 100})
    await create(http, policy={"budget_ids": [form.format(id.upper())]})
    await create(http, policy={"budget_ids": [id.replace("-", "")]})
    assert await lab.claim() == []


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/usage"), ("POST", "/reset")])
async def test_nothing_is_404(http: httpx.AsyncClient, method: str, path: str) -> None:
    body = {"dimensions": {"tokens": 1}} if path == "/usage" else None
    refused = error_of(await http.request(method, f"{URL}/{NOBODY}{path}", json=body), 404)
    assert refused["error"] == "not found: budget"
    error_of(await http.request(method, f"{URL}/nonsense{path}", json=body), 400)


@pytest.mark.parametrize("name", sorted(BUDGET))
async def test_a_missing_field_is_422(http: httpx.AsyncClient, name: str) -> None:
    error_of(await http.post(URL, json=without(BUDGET, name)), 422)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"budget_id": "nonsense"}, 400),
        ({"hard_limits": [1, 2]}, 400),
        ({"soft_limits": []}, 400),
        ({"dimensions": ["a", "a"], "hard_limits": [1, 1], "soft_limits": [0, 0]}, 400),
        ({"dimensions": ["a b"]}, 400),
        ({"hard_limits": [-1]}, 422),
        ({"hard_limits": [1.0]}, 422),
        ({"hard_limits": [2**64]}, 422),
        ({"hard_limits": None}, 422),
        ({"dimensions": "tokens"}, 422),
        ({"reset_interval_ms": -1}, 422),
        ({"scope_type": None}, 422),
    ],
)
async def test_a_wrong_budget_is_refused(
    http: httpx.AsyncClient, change: dict[str, Any], status: int
) -> None:
    error_of(await http.post(URL, json={**BUDGET, **change}), status)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"dimensions": None}, 422),
        ({"dimensions": [["tokens", 1]]}, 422),
        ({"dimensions": {"tokens": -1}}, 422),
        ({"dimensions": {"tokens": 1.5}}, 422),
        ({"dimensions": {"to kens": 1}}, 400),
        ({"dimensions": {"tokens": 1}, "dedup_key": 5}, 422),
        ({"dimensions": {"tokens": 1}, "dedup_key": "k" * 1025}, 400),
    ],
)
async def test_a_wrong_usage_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any], status: int
) -> None:
    id = await new(http)
    error_of(await http.post(f"{URL}/{id}/usage", json=body), status)
    assert (await http.get(f"{URL}/{id}")).json()["usage"] == {}


@pytest.mark.parametrize("path", ["", "/{id}/usage", "/{id}/reset"])
async def test_the_limit_of_the_body(http: httpx.AsyncClient, path: str) -> None:
    url = f"{URL}{path}".replace("{id}", NOBODY)
    large = await http.post(url, content=padded({}, 64 * 1024 + 1), headers=JSON)
    assert large.status_code == 413
    assert large.json()["route"] == f"/v1/budgets{path}"
    fits = await http.post(url, content=padded({}, 64 * 1024), headers=JSON)
    assert fits.status_code in (404, 422)


async def test_more_than_can_be_counted_is_more_than_the_limit(http: httpx.AsyncClient) -> None:
    """A delta has 64 bits without a sign; a hard limit refuses all that is above it."""
    id = await new(http)
    await spend(http, id, {"tokens": 10})
    breach = {"dimension": "tokens", "current_usage": 10, "hard_limit": 100}
    assert await spend(http, id, {"tokens": (1 << 64) - 1}) == {"HardBreach": breach}


# -- change and delete


async def test_a_budget_gets_another_definition(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 10.1, flaw 12: update a budget; what was spent stays."""
    id = await new(http)
    await spend(http, id, {"tokens": 100})
    await create(http, policy={"budget_ids": [id]})
    assert await lab.claim() == []
    raised = {**BUDGET, "hard_limits": [200], "soft_limits": [150], "scope_id": "other"}
    reply = await http.put(f"{URL}/{id.upper()}", json={**raised, "budget_id": id})
    assert reply.status_code == 200, reply.text
    assert reply.json() == (await http.get(f"{URL}/{id}")).json()
    assert reply.json()["hard_limits"] == {"tokens": 200}
    assert reply.json()["usage"] == {"tokens": 100}
    assert reply.json()["scope_id"] == "other"
    await lab.engine.sweep.once()
    assert len(await lab.claim()) == 1
    made = await http.put(f"{URL}/{NOBODY}", json=raised)
    assert (made.status_code, made.json()["usage"]) == (200, {})
    error_of(await http.put(f"{URL}/{NOBODY}", json={**raised, "budget_id": id}), 400)
    error_of(await http.put(f"{URL}/{NOBODY}", json={**raised, "hard_limit": 1}), 422)


async def test_a_budget_is_deleted(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 10.1, flaw 12"""
    id = await new(http)
    await spend(http, id, {"tokens": 100})
    await create(http, policy={"budget_ids": [id]})
    assert await lab.claim() == []
    reply = await http.delete(f"{URL}/{id}")
    assert (reply.status_code, reply.content) == (204, b"")
    error_of(await http.get(f"{URL}/{id}"), 404)
    error_of(await http.delete(f"{URL}/{id}"), 404)
    error_of(await http.delete(f"{URL}/nonsense"), 400)
    await lab.engine.sweep.once()
    assert len(await lab.claim()) == 1
