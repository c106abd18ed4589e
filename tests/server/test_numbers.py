"""Numbers of the wire: u32 and u64 in their whole range, one more is a type error
(server-sdk.md 1.2, 1.4, 1.7)."""

from typing import Any

import httpx
import pytest

from flowfabric.core.base.numbers import MAX_COUNT
from flowfabric.core.base.time import MAX_SPAN
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import ManualClock
from tests.kit.http import BUDGET, EXECUTION, NOBODY, add_member, create, create_flow, error_of
from tests.kit.lab import Lab
from tests.kit.waits import named, suspend, wait_on

pytestmark = pytest.mark.rules

U32 = 2**32 - 1
U64 = 2**64 - 1
LARGEST = 2**63 - 1
QUOTA = {"window_seconds": 60, "max_requests_per_window": 5, "max_concurrent": 1}


async def test_the_largest_limit_of_a_budget_is_no_limit(http: httpx.AsyncClient) -> None:
    body = {**BUDGET, "budget_id": NOBODY, "hard_limits": [U64], "soft_limits": [U64]}
    assert (await http.post("/v1/budgets", json=body)).status_code == 201
    usage = {"dimensions": {"tokens": 10**15}}
    assert (await http.post(f"/v1/budgets/{NOBODY}/usage", json=usage)).json() == "Ok"
    found = (await http.get(f"/v1/budgets/{NOBODY}")).json()
    assert (found["hard_limits"], found["soft_limits"]) == (
        {"tokens": LARGEST},
        {"tokens": LARGEST},
    )


async def test_the_largest_amount_does_not_fit(http: httpx.AsyncClient) -> None:
    await http.post("/v1/budgets", json={**BUDGET, "budget_id": NOBODY})
    reply = await http.post(f"/v1/budgets/{NOBODY}/usage", json={"dimensions": {"tokens": U64}})
    breach = {"dimension": "tokens", "current_usage": 0, "hard_limit": 100}
    assert (reply.status_code, reply.json()) == (200, {"HardBreach": breach})


async def test_a_soft_limit_above_the_hard_one_is_never_exceeded(http: httpx.AsyncClient) -> None:
    body = {**BUDGET, "budget_id": NOBODY, "hard_limits": [10], "soft_limits": [20]}
    assert (await http.post("/v1/budgets", json=body)).status_code == 201
    usage = {"dimensions": {"tokens": 10}}
    assert (await http.post(f"/v1/budgets/{NOBODY}/usage", json=usage)).json() == "Ok"


async def test_a_budget_resets_as_often_as_asked(
    http: httpx.AsyncClient, clock: ManualClock
) -> None:
    body = {**BUDGET, "budget_id": NOBODY, "reset_interval_ms": 50}
    assert (await http.post("/v1/budgets", json=body)).status_code == 201
    await http.post(f"/v1/budgets/{NOBODY}/usage", json={"dimensions": {"tokens": 7}})
    clock.advance(50)
    found = (await http.get(f"/v1/budgets/{NOBODY}")).json()
    assert (found["usage"], found["next_reset_at"]) == ({"tokens": 0}, str(clock.now() + 50))


async def test_a_budget_that_resets_in_the_far_future(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/budgets", json={**BUDGET, "reset_interval_ms": U64})
    assert reply.status_code == 201


@pytest.mark.parametrize(
    ("moment", "state"), [(-LARGEST - 1, "waiting"), (-1, "waiting"), (LARGEST, "delayed")]
)
async def test_a_moment_has_64_bits(http: httpx.AsyncClient, moment: int, state: str) -> None:
    """1.2, 1.4: `delay_until` is any moment, in the body and in the policy; one that has passed
    delays nothing."""
    for given in ({"delay_until": moment}, {"policy": {"delay_until": moment}}):
        reply = await http.post("/v1/executions", json={**EXECUTION, **given})
        assert reply.status_code == 201, reply.text
        assert reply.json()["Created"]["public_state"] == state


async def test_a_deadline_that_never_comes(http: httpx.AsyncClient) -> None:
    body = {**EXECUTION, "execution_deadline_at": LARGEST}
    assert (await http.post("/v1/executions", json=body)).status_code == 201


@pytest.mark.parametrize("moment", [LARGEST + 1, -LARGEST - 2])
async def test_a_moment_of_more_bits_is_refused(http: httpx.AsyncClient, moment: int) -> None:
    given = {"delay_until": moment}
    for body, status in ((given, 422), ({"policy": given}, 400)):
        reply = await http.post("/v1/executions", json={**EXECUTION, **body})
        assert reply.status_code == status, reply.text


async def test_the_largest_quota(http: httpx.AsyncClient, engine: Engine) -> None:
    body = dict.fromkeys(QUOTA, U64)
    reply = await http.post("/v1/quotas", json={**body, "quota_policy_id": NOBODY})
    assert reply.status_code == 201
    quota = await engine.quotas.get(NOBODY)
    assert quota.concurrency == MAX_COUNT
    assert quota.rate is not None
    assert (quota.rate.count, quota.longest_window) == (MAX_COUNT, MAX_SPAN // 1000 * 1000)


async def test_the_largest_revision_is_stale(http: httpx.AsyncClient) -> None:
    flow = await create_flow(http)
    first, second = await add_member(http, flow), await add_member(http, flow)
    ends = {"upstream_execution_id": first, "downstream_execution_id": second}
    body = {**ends, "expected_graph_revision": U64}
    refused = error_of(await http.post(f"/v1/flows/{flow}/edges", json=body), 409)
    assert refused["code"] == "stale_graph_revision"


async def test_the_largest_epoch_is_stale(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await create(http)
    fence = (await lab.claim_one()).fence
    body = {
        "reason": "mine",
        "source": "lease_holder",
        "lease_id": str(fence.lease_id),
        "lease_epoch": U64,
        "attempt_id": str(fence.attempt_id),
    }
    refused = error_of(await http.post(f"/v1/executions/{id}/cancel", json=body), 409)
    assert refused["code"] == "stale_lease"


async def test_the_largest_members_of_a_signal(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await create(http)
    answer = await suspend(lab, await lab.claim_one(), wait_on(lab, named("go")))
    ticket = answer.primary
    assert ticket.token is not None
    limits = ("dedup_ttl_ms", "resume_delay_ms", "max_signals_per_execution", "signal_maxlen")
    body: dict[str, Any] = {
        "waitpoint_id": str(ticket.id),
        "waitpoint_token": ticket.token.reveal(),
        "signal_name": "other",
        "signal_category": "external",
        "source_type": "user",
        "source_identity": "ada",
        "target_scope": "execution",
        **dict.fromkeys(limits, U64),
    }
    url = f"/v1/executions/{id}/signal"
    assert (await http.post(url, json=body)).json()["Accepted"]["effect"] == "no_op"
    for name in limits:
        error_of(await http.post(url, json={**body, name: U64 + 1}), 422)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/budgets", {**BUDGET, "hard_limits": [U64 + 1]}),
        ("/v1/budgets", {**BUDGET, "soft_limits": [U64 + 1]}),
        ("/v1/budgets", {**BUDGET, "reset_interval_ms": U64 + 1}),
        (f"/v1/budgets/{NOBODY}/usage", {"dimensions": {"tokens": U64 + 1}}),
        *(("/v1/quotas", {**QUOTA, name: U64 + 1}) for name in QUOTA),
        (
            "/v1/workers/w/claim",
            {"lane_id": "default", "worker_instance_id": "w-1", "grant_ttl_ms": U64 + 1},
        ),
    ],
)
async def test_one_more_is_a_type_error(
    http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    await http.post("/v1/budgets", json={**BUDGET, "budget_id": NOBODY})
    refused = error_of(await http.post(path, json=body), 422)
    assert refused["error"] == "invalid JSON: Unprocessable Entity"


async def test_the_largest_grant_is_too_long(http: httpx.AsyncClient) -> None:
    body = {"lane_id": "default", "worker_instance_id": "w-1", "grant_ttl_ms": U64}
    error_of(await http.post("/v1/workers/w/claim", json=body), 400)


@pytest.mark.parametrize(
    "policy",
    [
        {"max_replay_count": U32},
        {"max_reclaim_count": U32},
        {"max_signals_per_execution": U32},
        {"dedup_window_ms": U64},
        {"retry_policy": {"max_retries": U32}},
        {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": U64}}},
        {
            "retry_policy": {
                "backoff": {
                    "type": "exponential",
                    "initial_delay_ms": 1,
                    "max_delay_ms": U64,
                    "multiplier": 2.0,
                }
            }
        },
        {
            "timeout_policy": {
                "attempt_timeout_ms": U64,
                "execution_deadline_ms": U64,
                "max_reclaim_count": U32,
            }
        },
        {"suspension_policy": {"default_timeout_ms": U64}},
        {"stream_policy": {"retention_maxlen": U32, "retention_ttl_ms": U64}},
    ],
)
async def test_the_largest_members_of_a_policy(
    http: httpx.AsyncClient, policy: dict[str, Any]
) -> None:
    await create(http, policy=policy)


@pytest.mark.parametrize(
    "policy",
    [
        {"max_replay_count": U32 + 1},
        {"retry_policy": {"max_retries": U32 + 1}},
        {"dedup_window_ms": U64 + 1},
        {"max_replay_count": True},
    ],
)
async def test_one_more_in_a_policy_is_refused(
    http: httpx.AsyncClient, policy: dict[str, Any]
) -> None:
    reply = await http.post("/v1/executions", json={**EXECUTION, "policy": policy})
    assert error_of(reply, 400)["code"] == "invalid_policy_json"


@pytest.mark.parametrize("number", ["5.0", "1e1", "99999999999999999999"])
async def test_bytes_have_whole_numbers_beside_them(http: httpx.AsyncClient, number: str) -> None:
    """1.2: `5.0` is a type error, also where the members of a body are in the query."""
    members = {name: value for name, value in EXECUTION.items() if isinstance(value, str)}
    headers = {"Content-Type": "application/octet-stream"}
    for name in ("priority", "delay_until"):
        query = {**members, "priority": "0", name: number}
        reply = await http.post("/v1/executions", params=query, content=b"x", headers=headers)
        error_of(reply, 422)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/executions/search?limit={}",
        "/v1/executions/search?created_from={}",
        f"/v1/executions/{NOBODY}/signals?after={{}}",
        f"/v1/executions/{NOBODY}/stream?attempt={{}}",
        "/v1/events?limit={}",
        "/v1/flows?limit={}",
        "/v1/lanes?limit={}",
        "/v1/suspended?limit={}",
        "/v1/failures?since={}",
    ],
)
@pytest.mark.parametrize("number", ["5.0", "1e1", "99999999999999999999"])
async def test_a_query_has_whole_numbers(http: httpx.AsyncClient, path: str, number: str) -> None:
    refused = error_of(await http.get(path.format(number)), 400)
    assert refused["code"] == "invalid_parameter"
