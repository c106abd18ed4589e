"""Executions over HTTP: create, list, read, control (server-sdk.md 1.7)."""

import base64
import json
from typing import Any
from uuid import UUID

import httpx
import pytest

from flowfabric.core.base.ids import lane_partition
from flowfabric.store.clock import ManualClock
from tests.kit.http import EXECUTION, HOME, LANE, NOBODY, create, error_of, tagged, without
from tests.kit.lab import W1, W2, Lab

pytestmark = pytest.mark.rules

JSON = {"Content-Type": "application/json"}
URL = "/v1/executions"
ELSEWHERE = (HOME + 1) % 256


# -- create


async def test_create_answers_201_and_echoes_the_given_id(http: httpx.AsyncClient) -> None:
    """E-T039, the first half"""
    id = tagged(NOBODY)
    body = {**EXECUTION, "execution_id": id, "now": 1, "partition_id": 0}
    reply = await http.post(URL, json=body)
    assert reply.status_code == 201
    assert reply.json() == {"Created": {"execution_id": id, "public_state": "waiting"}}


async def test_an_id_of_any_partition_is_kept(http: httpx.AsyncClient) -> None:
    id = tagged(NOBODY, ELSEWHERE)
    assert await create(http, execution_id=id) == id
    assert (await http.get(f"{URL}/{id}/state")).json() == "waiting"
    assert (await http.get(f"{URL}/{id}")).json()["flow_id"] is None
    again = await http.post(URL, json={**EXECUTION, "execution_id": id})
    assert (again.status_code, again.json()) == (200, {"Duplicate": {"execution_id": id}})


async def test_the_server_mints_an_id_in_the_partition_of_the_lane(http: httpx.AsyncClient) -> None:
    id = await create(http, lane_id="other lane")
    assert id.startswith(f"{{fp:{lane_partition('other lane')}}}:")


async def test_a_plain_uuid_gets_the_partition_of_the_lane(http: httpx.AsyncClient) -> None:
    assert await create(http, execution_id=NOBODY) == tagged(NOBODY)


@pytest.mark.parametrize(
    "text",
    [NOBODY.upper(), NOBODY.replace("-", ""), f"{{{NOBODY}}}", f"urn:uuid:{NOBODY}"],
)
async def test_every_form_of_a_uuid_is_read(http: httpx.AsyncClient, text: str) -> None:
    await create(http, execution_id=NOBODY)
    assert (await http.get(f"{URL}/{text}/state")).json() == "waiting"
    assert (await http.get(f"{URL}/{{fp:{HOME}}}:{text}/state")).json() == "waiting"


async def test_an_id_of_another_partition_names_nothing(http: httpx.AsyncClient) -> None:
    await create(http, execution_id=NOBODY)
    wrong = tagged(NOBODY, ELSEWHERE)
    for path in ("", "/state", "/result", "/pending-waitpoints"):
        reply = await http.get(f"{URL}/{wrong}{path}")
        assert "not found" in error_of(reply, 404)["error"]


async def test_create_twice_with_a_key_answers_the_first_id(http: httpx.AsyncClient) -> None:
    """E-X02"""
    first = await create(http, idempotency_key="one")
    again = await http.post(URL, json={**EXECUTION, "idempotency_key": "one"})
    assert (again.status_code, again.json()) == (200, {"Duplicate": {"execution_id": first}})


async def test_a_delay_in_the_future_delays(http: httpx.AsyncClient, clock: ManualClock) -> None:
    body = {**EXECUTION, "delay_until": clock.now() + 1000}
    reply = await http.post(URL, json=body)
    assert reply.json()["Created"]["public_state"] == "delayed"
    past = await http.post(URL, json={**EXECUTION, "delay_until": -5})
    assert past.json()["Created"]["public_state"] == "waiting"


@pytest.mark.parametrize(("given", "kept"), [(-1, "0"), (9001, "9000"), (2147483647, "9000")])
async def test_a_clamped_priority_is_reported(
    http: httpx.AsyncClient, given: int, kept: str
) -> None:
    reply = await http.post(URL, json={**EXECUTION, "priority": given})
    assert reply.status_code == 201
    assert reply.headers["FlowFabric-Priority-Clamped"] == kept
    fine = await http.post(URL, json={**EXECUTION, "priority": 9000})
    assert "FlowFabric-Priority-Clamped" not in fine.headers


@pytest.mark.parametrize("payload", [[], [0, 255], "", "AP8=", "AP8", "aGk_"])
async def test_payloads_are_lists_of_bytes_or_base64(
    http: httpx.AsyncClient, lab: Lab, payload: Any
) -> None:
    if payload == "AP8":
        error_of(await http.post(URL, json={**EXECUTION, "input_payload": payload}), 400)
        return
    await create(http, input_payload=payload)
    text = payload.replace("_", "/") if isinstance(payload, str) else ""
    expected = bytes(payload) if isinstance(payload, list) else base64.b64decode(text)
    assert (await lab.claim_one()).payload == expected


async def test_a_body_of_bytes_is_the_payload(http: httpx.AsyncClient, lab: Lab) -> None:
    query = {
        **without(EXECUTION, "input_payload"),
        "tags": json.dumps({"app.tenant": "a"}),
        "policy": json.dumps({"max_replay_count": 2}),
        "idempotency_key": "raw",
    }
    content = bytes(range(256))
    headers = {"Content-Type": "application/octet-stream"}
    reply = await http.post(URL, params=query, content=content, headers=headers)
    assert reply.status_code == 201, reply.text
    claim = await lab.claim_one()
    assert (claim.payload, claim.policy.max_replay_count) == (content, 2)
    again = await http.post(URL, params=query, content=b"", headers=headers)
    assert again.status_code == 200


@pytest.mark.parametrize(
    "change", [{"priority": "high"}, {"tags": "{"}, {"tags": "[]"}, {"lane_id": None}]
)
async def test_a_body_of_bytes_needs_a_right_query(
    http: httpx.AsyncClient, change: dict[str, str | None]
) -> None:
    given = {**without(EXECUTION, "input_payload"), **change}
    query = {name: value for name, value in given.items() if value is not None}
    headers = {"Content-Type": "application/octet-stream"}
    reply = await http.post(URL, params=query, content=b"x", headers=headers)
    assert error_of(reply, 422)["error"] == "invalid JSON: Unprocessable Entity"


async def test_a_body_of_exactly_the_limit_passes(http: httpx.AsyncClient) -> None:
    """E-T041, C-T143"""
    headers = {"Content-Type": "application/octet-stream"}
    query = without(EXECUTION, "input_payload")
    fits = await http.post(URL, params=query, content=b"x" * (1 << 20), headers=headers)
    assert fits.status_code == 201
    large = await http.post(URL, params=query, content=b"x" * ((1 << 20) + 1), headers=headers)
    assert large.status_code == 413
    assert large.json() == {
        "error": "payload_too_large",
        "limit_bytes": 1 << 20,
        "route": "/v1/executions",
        "code": "payload_too_large",
        "details": {},
    }


@pytest.mark.parametrize("name", sorted(EXECUTION))
async def test_a_missing_field_is_422(http: httpx.AsyncClient, name: str) -> None:
    reply = await http.post(URL, json=without(EXECUTION, name))
    assert error_of(reply, 422)["error"] == "invalid JSON: Unprocessable Entity"


@pytest.mark.parametrize(
    "change",
    [
        {"tags": None},
        {"tags": {"app.a": 1}},
        {"priority": 5.0},
        {"priority": "5"},
        {"priority": True},
        {"priority": 2147483648},
        {"priority": None},
        {"input_payload": [256]},
        {"input_payload": [1.0]},
        {"input_payload": None},
        {"input_payload": {"a": 1}},
        {"namespace": None},
        {"delay_until": "soon"},
        {"delay_until": 1.5},
        {"delay_until": 2**63},
        {"partition_id": 65536},
        {"policy": []},
        {"execution_id": 7},
    ],
)
async def test_a_wrong_type_is_422(http: httpx.AsyncClient, change: dict[str, Any]) -> None:
    reply = await http.post(URL, json={**EXECUTION, **change})
    assert error_of(reply, 422)["code"] == "invalid_body"


async def test_optional_fields_may_be_null(http: httpx.AsyncClient) -> None:
    names = ("payload_encoding", "idempotency_key", "policy", "delay_until", "execution_id", "now")
    await create(http, **dict.fromkeys(names))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"namespace": "\xff"}',
        b"nonsense",
        b"\xef\xbb\xbf{}",
        json.dumps(EXECUTION).encode() + b" {}",
        b'{"policy": {"a": ' + b"[" * 5000,
        json.dumps(EXECUTION).encode()[:-1] + b',"stray":"\xff"}',
        json.dumps(EXECUTION).encode()[:-1] + b',"stray":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    ],
)
async def test_broken_json_is_400(http: httpx.AsyncClient, content: bytes) -> None:
    reply = await http.post(URL, content=content, headers=JSON)
    assert error_of(reply, 400)["error"] == "invalid JSON: Bad Request"


@pytest.mark.parametrize("content", [b"[]", b"null", b"7", b'"text"'])
async def test_another_document_is_422(http: httpx.AsyncClient, content: bytes) -> None:
    error_of(await http.post(URL, content=content, headers=JSON), 422)


async def test_a_key_that_stands_twice_is_422(http: httpx.AsyncClient) -> None:
    text = json.dumps(EXECUTION)[:-1] + ', "priority": 3}'
    reply = await http.post(URL, content=text.encode(), headers=JSON)
    assert "priority" in error_of(reply, 422)["details"]["reason"]


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_another_content_type_is_415(http: httpx.AsyncClient, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    reply = await http.post(URL, content=json.dumps(EXECUTION).encode(), headers=headers)
    assert error_of(reply, 415)["error"] == "invalid JSON: Unsupported Media Type"


async def test_unknown_fields_are_ignored_and_named(http: httpx.AsyncClient) -> None:
    body = {**EXECUTION, "policy_json": "{}", "extra": 1}
    reply = await http.post(URL, json=body)
    assert reply.status_code == 201
    assert reply.headers["FlowFabric-Ignored-Fields"] == "extra, policy_json"
    strict = await http.post(URL, json=body, headers={"Prefer": "handling=strict"})
    error_of(strict, 422)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"execution_id": "nonsense"}, "invalid_id"),
        ({"execution_id": "{fp:x}:" + NOBODY}, "invalid_id"),
        ({"execution_id": "{fp:256}:" + NOBODY}, "invalid_id"),
        ({"execution_id": "{fp:70000}:" + NOBODY}, "invalid_id"),
        ({"execution_id": "{fp:7}:nonsense"}, "invalid_id"),
        ({"lane_id": ""}, "invalid_input"),
        ({"lane_id": "x" * 65}, "invalid_input"),
        ({"lane_id": "l\u00e4ne"}, "invalid_input"),
        ({"namespace": ""}, "invalid_input"),
        ({"execution_kind": ""}, "invalid_input"),
        ({"tags": {"NoDot": "x"}}, "invalid_tag_key"),
        ({"policy": {"retry_policy": 3}}, "invalid_policy_json"),
        ({"policy": {"routing_requirements": []}}, "invalid_policy_json"),
        (
            {"policy": {"routing_requirements": {"required_capabilities": ["a,b"]}}},
            "invalid_capabilities",
        ),
        ({"creator_identity": "x\0y"}, "invalid_input"),
    ],
)
async def test_what_the_rules_refuse_is_400(
    http: httpx.AsyncClient, change: dict[str, Any], code: str
) -> None:
    body = error_of(await http.post(URL, json={**EXECUTION, **change}), 400)
    assert body["code"] == code
    assert "kind" not in body
    assert "retryable" not in body


async def test_a_full_policy_is_accepted(http: httpx.AsyncClient) -> None:
    policy = {
        "priority": 1,
        "retry_policy": {
            "max_retries": 2,
            "backoff": {"type": "fixed", "delay_ms": 5},
            "retryable_categories": ["transient"],
        },
        "timeout_policy": {"attempt_timeout_ms": 1000, "max_reclaim_count": 4},
        "max_reclaim_count": 100,
        "suspension_policy": {"default_timeout_ms": 5, "timeout_behavior": "expire"},
        "fallback_policy": {"tiers": [{"provider": "p", "model": "m"}]},
        "max_replay_count": 1,
        "routing_requirements": {"required_capabilities": ["gpu"], "isolation_level": "vm"},
        "dedup_window_ms": 1000,
        "stream_policy": {"durability_mode": "buffered", "retention_maxlen": 10},
        "max_signals_per_execution": 3,
        "required_capabilities": ["at the wrong level"],
    }
    await create(http, policy=policy)


async def test_optional_members_of_a_policy_may_be_null(http: httpx.AsyncClient) -> None:
    """server-sdk.md 1.2: an optional field may be absent or null."""
    groups = {
        "timeout_policy": ["attempt_timeout_ms", "execution_deadline_ms"],
        "suspension_policy": ["default_timeout_ms"],
        "routing_requirements": ["preferred_locality", "isolation_level"],
        "stream_policy": ["retention_ttl_ms"],
    }
    others = ("delay_until", "retry_policy", "fallback_policy", "dedup_window_ms")
    await create(http, policy=dict.fromkeys([*groups, *others]))
    await create(http, policy={name: dict.fromkeys(each) for name, each in groups.items()})


# -- list


async def test_the_ids_of_a_partition_come_in_order(http: httpx.AsyncClient) -> None:
    ids = sorted([tagged(UUID(int=number), 7) for number in range(5)])
    for id in reversed(ids):
        await create(http, execution_id=id)
    here = await create(http)
    reply = await http.get(URL, params={"partition": 7})
    assert reply.json() == {"executions": ids, "next_cursor": None}
    assert (await http.get(URL, params={"partition": HOME})).json()["executions"] == [here]
    assert (await http.get(URL, params={"partition": 8})).json()["executions"] == []


async def test_pages_of_a_partition_end_with_a_cursor(http: httpx.AsyncClient) -> None:
    """E-T329"""
    ids = sorted([await create(http) for _ in range(5)])
    pages, cursor = [], None
    while True:
        query = {"partition": HOME, "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await http.get(URL, params=query)).json()
        pages.append(page["executions"])
        cursor = page["next_cursor"]
        if cursor is None:
            break
        assert cursor == page["executions"][-1]
    assert pages == [ids[:2], ids[2:4], ids[4:]]


async def test_braces_in_the_query_need_not_be_encoded(http: httpx.AsyncClient) -> None:
    first, second = sorted([await create(http), await create(http)])
    url = httpx.URL(
        "http://server/v1/executions", query=f"partition={HOME}&cursor={first}".encode()
    )
    assert (await http.get(url)).json()["executions"] == [second]


async def test_limits_of_a_page(http: httpx.AsyncClient) -> None:
    id = await create(http)
    empty = await http.get(URL, params={"partition": HOME, "limit": 0})
    assert empty.json() == {"executions": [], "next_cursor": None}
    huge = await http.get(URL, params={"partition": HOME, "limit": 2**64 - 1})
    assert huge.json()["executions"] == [id]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"partition": "x"},
        {"partition": -1},
        {"partition": 65536},
        {"partition": 300},
        {"partition": "5.0"},
        {"partition": "1e1"},
        {"partition": "+5"},
        {"partition": 1, "limit": "x"},
        {"partition": 1, "limit": -1},
        {"partition": 1, "limit": 2**64},
        {"partition": 1, "limit": "9" * 5000},
    ],
)
async def test_a_wrong_query_is_400(http: httpx.AsyncClient, query: dict[str, Any]) -> None:
    error_of(await http.get(URL, params=query), 400)


async def test_a_wrong_cursor_is_400(http: httpx.AsyncClient) -> None:
    reply = await http.get(URL, params={"partition": 1, "cursor": "nonsense"})
    assert error_of(reply, 400)["error"].startswith("invalid cursor: ")


# -- read


async def test_info_has_every_member_of_the_original(
    http: httpx.AsyncClient, clock: ManualClock
) -> None:
    """E-T039"""
    id = await create(http, priority=3)
    assert (await http.get(f"{URL}/{id}")).json() == {
        "execution_id": id,
        "namespace": "default",
        "lane_id": LANE,
        "priority": 3,
        "execution_kind": "work",
        "state_vector": {
            "lifecycle_phase": "runnable",
            "ownership_state": "unowned",
            "eligibility_state": "eligible_now",
            "blocking_reason": "waiting_for_worker",
            "terminal_outcome": "none",
            "attempt_state": "pending_first_attempt",
            "public_state": "waiting",
        },
        "public_state": "waiting",
        "created_at": str(clock.now()),
        "current_attempt_index": 0,
        "flow_id": None,
        "blocking_detail": "",
    }


async def test_info_of_an_ended_execution(
    http: httpx.AsyncClient, lab: Lab, clock: ManualClock
) -> None:
    id = await create(http)
    started = clock.now()
    claim = await lab.claim_one()
    clock.advance(5)
    await lab.complete(claim, b"done")
    info = (await http.get(f"{URL}/{id}")).json()
    assert (info["started_at"], info["completed_at"]) == (str(started), str(started + 5))
    assert info["state_vector"]["terminal_outcome"] == "success"
    assert info["public_state"] == "completed"


@pytest.mark.parametrize("path", ["", "/state", "/result", "/pending-waitpoints"])
async def test_reads_of_nothing(http: httpx.AsyncClient, path: str) -> None:
    """E-T040"""
    for id in (NOBODY, tagged(NOBODY)):
        body = error_of(await http.get(f"{URL}/{id}{path}"), 404)
        assert body["error"].endswith(f"not found: {id}")
        assert body["code"] == "not_found"
    error_of(await http.get(f"{URL}/nonsense{path}"), 400)


async def test_state_is_a_bare_string(http: httpx.AsyncClient) -> None:
    reply = await http.get(f"{URL}/{await create(http)}/state")
    assert (reply.status_code, reply.text) == (200, '"waiting"')


async def test_the_result_is_exactly_the_bytes(http: httpx.AsyncClient, lab: Lab) -> None:
    """E-T137"""
    id = await create(http)
    url = f"{URL}/{id}/result"
    missing = f"execution result not found: {id}"
    assert error_of(await http.get(url), 404)["error"] == missing
    content = bytes(range(256))
    await lab.complete(await lab.claim_one(), content)
    reply = await http.get(url)
    assert (reply.content, reply.headers["Content-Type"]) == (content, "application/octet-stream")
    offered = (await http.get(url, params={"encoding": "base64"})).json()
    assert offered == {"result": base64.b64encode(content).decode(), "encoding": "base64"}
    error_of(await http.get(url, params={"encoding": "hex"}), 400)


async def test_completed_without_a_result_is_404(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await create(http)
    await lab.complete(await lab.claim_one())
    error_of(await http.get(f"{URL}/{id}/result"), 404)


# -- cancel


async def test_cancel_ends_in_any_state_and_repeats(http: httpx.AsyncClient) -> None:
    """E-T173"""
    id = await create(http)
    body = {"execution_id": id, "reason": "enough", "now": 1}
    for _ in range(2):
        reply = await http.post(f"{URL}/{id}/cancel", json=body)
        expected = {"Cancelled": {"execution_id": id, "public_state": "cancelled"}}
        assert (reply.status_code, reply.json()) == (200, expected)
    assert (await http.get(f"{URL}/{id}/state")).json() == "cancelled"


async def test_cancel_of_a_completed_execution_is_contention(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    id = await create(http)
    await lab.complete(await lab.claim_one())
    body = error_of(await http.post(f"{URL}/{id}/cancel", json={"reason": "late"}), 409)
    assert (body["kind"], body["retryable"], body["code"]) == (
        "contention",
        True,
        "execution_not_active",
    )
    assert body["error"].startswith("contention: ExecutionNotActive")
    assert body["details"]["terminal_outcome"] == "success"


async def test_a_lease_holder_needs_its_lease(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await create(http)
    claim = await lab.claim_one()
    fence = claim.fence
    url, own = f"{URL}/{id}/cancel", {"reason": "mine", "source": "lease_holder"}
    assert error_of(await http.post(url, json=own), 400)["code"] == "fence_required"
    partial = {**own, "lease_id": str(fence.lease_id)}
    assert error_of(await http.post(url, json=partial), 400)["code"] == "partial_fence_triple"
    whole = {**partial, "lease_epoch": fence.epoch, "attempt_id": str(fence.attempt_id)}
    stale = error_of(await http.post(url, json={**whole, "lease_epoch": 99}), 409)
    assert (stale["kind"], stale["code"]) == ("state_conflict", "stale_lease")
    assert (await http.post(url, json=whole)).status_code == 200


async def test_an_operator_ignores_the_lease(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 1.7: operator override ignores the lease."""
    id = await create(http)
    await lab.claim_one()
    body = {"reason": "enough", "source": "operator_override", "lease_epoch": 99}
    assert (await http.post(f"{URL}/{id}/cancel", json=body)).status_code == 200


async def test_cancel_of_one_that_cleans_up_says_until_when(
    http: httpx.AsyncClient, lab: Lab, clock: ManualClock
) -> None:
    id = await create(http, policy={"cleanup_policy": {"cleanup_timeout_ms": 500}})
    await lab.claim_one()
    reply = await http.post(f"{URL}/{id}/cancel", json={"reason": "enough"})
    cancelled = reply.json()["Cancelled"]
    assert cancelled["cleanup_until"] == clock.now() + 500
    assert cancelled["public_state"] != "cancelled"


# -- priority, replay, lease


async def test_priority_changes_while_it_waits(http: httpx.AsyncClient, lab: Lab) -> None:
    """E-T183"""
    id = await create(http)
    reply = await http.put(f"{URL}/{id}/priority", json={"new_priority": 10_000})
    assert reply.json() == {"Changed": {"execution_id": id}}
    assert reply.headers["FlowFabric-Priority-Clamped"] == "9000"
    assert (await http.get(f"{URL}/{id}")).json()["priority"] == 9000
    await lab.claim_one()
    body = error_of(await http.put(f"{URL}/{id}/priority", json={"new_priority": 1}), 409)
    assert (body["kind"], body["retryable"]) == ("contention", True)
    assert body["error"].startswith("contention: ExecutionNotEligible")


@pytest.mark.parametrize("value", [None, "1", 1.0, 2**31])
async def test_a_priority_is_a_number(http: httpx.AsyncClient, value: Any) -> None:
    id = await create(http)
    error_of(await http.put(f"{URL}/{id}/priority", json={"new_priority": value}), 422)


async def test_replay_of_an_ended_execution(http: httpx.AsyncClient, lab: Lab) -> None:
    """E-T185"""
    id = await create(http, policy={"max_replay_count": 1})
    url = f"{URL}/{id}/replay"
    early = error_of(await http.post(url), 409)
    assert (early["kind"], early["retryable"]) == ("execution_not_terminal", False)
    await lab.complete(await lab.claim_one())
    reply = await http.post(url)
    assert (reply.status_code, reply.json()) == (200, {"Replayed": {"public_state": "waiting"}})
    await lab.complete(await lab.claim_one())
    spent = error_of(await http.post(url), 409)
    assert (spent["kind"], spent["code"]) == ("max_replays_exhausted", "max_replays_exhausted")


async def test_revoke_takes_the_lease_away(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await create(http)
    url = f"{URL}/{id}/revoke-lease"
    none = {"AlreadySatisfied": {"reason": "no_active_lease"}}
    assert (await http.post(url)).json() == none
    claim = await lab.claim_one()
    reply = await http.post(url)
    lease = {"lease_id": str(claim.fence.lease_id), "lease_epoch": "1"}
    assert (reply.status_code, reply.json()) == (200, {"Revoked": lease})
    again = await http.post(url)
    assert again.json() == {"AlreadySatisfied": {"reason": "already_revoked"}}


# -- reclaim

RECLAIM = {
    "worker_id": W2.id,
    "worker_instance_id": W2.instance,
    "lane_id": LANE,
    "grant_ttl_ms": 60_000,
}


async def test_reclaim_grants_a_lost_execution(
    http: httpx.AsyncClient, lab: Lab, clock: ManualClock
) -> None:
    id = await create(http)
    url = f"{URL}/{id}/reclaim"
    early = (await http.post(url, json=RECLAIM)).json()
    assert (early["status"], early["execution_id"]) == ("not_reclaimable", id)
    await lab.claim_one()
    await http.post(f"{URL}/{id}/revoke-lease")
    granted = (await http.post(url, json=RECLAIM)).json()
    assert granted["grant_key"]
    assert granted == {
        "status": "granted",
        "execution_id": id,
        "partition_key": f"{{fp:{HOME}}}",
        "grant_key": granted["grant_key"],
        "expires_at_ms": clock.now() + 60_000,
        "lane_id": LANE,
    }
    claim = await lab.engine.grants.reclaim(id, W2, key=granted["grant_key"])
    assert getattr(claim, "attempt", None) == 1


async def test_a_second_grant_is_a_conflict(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await create(http)
    await lab.claim_one()
    await http.post(f"{URL}/{id}/revoke-lease")
    await http.post(f"{URL}/{id}/reclaim", json=RECLAIM)
    body = error_of(await http.post(f"{URL}/{id}/reclaim", json=RECLAIM), 409)
    assert (body["kind"], body["code"]) == ("state_conflict", "grant_already_exists")


async def test_reclaim_names_missing_capabilities(http: httpx.AsyncClient, lab: Lab) -> None:
    needed = {"routing_requirements": {"required_capabilities": ["b", "a"]}}
    id = await create(http, policy=needed)
    await lab.claim_one(W1, capabilities=["a", "b"])
    await http.post(f"{URL}/{id}/revoke-lease")
    refused = (await http.post(f"{URL}/{id}/reclaim", json=RECLAIM)).json()
    expected = {"status": "not_reclaimable", "execution_id": id}
    assert refused == {**expected, "detail": "capability_mismatch: a,b"}


async def test_reclaim_says_when_the_cap_is_reached(http: httpx.AsyncClient, lab: Lab) -> None:
    id = await create(http, policy={"max_reclaim_count": 0})
    await lab.claim_one()
    await http.post(f"{URL}/{id}/revoke-lease")
    answer = (await http.post(f"{URL}/{id}/reclaim", json=RECLAIM)).json()
    assert answer == {"status": "reclaim_cap_exceeded", "execution_id": id, "reclaim_count": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"grant_ttl_ms": 0},
        {"grant_ttl_ms": 60_001},
        {"worker_id": ""},
        {"worker_id": "a b"},
        {"worker_instance_id": "x" * 257},
        {"worker_instance_id": "a\nb"},
        {"lane_id": ""},
    ],
)
async def test_a_wrong_reclaim_is_400(http: httpx.AsyncClient, change: dict[str, Any]) -> None:
    id = await create(http)
    error_of(await http.post(f"{URL}/{id}/reclaim", json={**RECLAIM, **change}), 400)


# -- all routes that change one execution

CHANGES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "cancel", {"reason": "r"}),
    ("PUT", "priority", {"new_priority": 1}),
    ("POST", "replay", None),
    ("POST", "revoke-lease", None),
    ("POST", "reclaim", RECLAIM),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_changes_of_nothing(
    http: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> None:
    reply = await http.request(method, f"{URL}/{NOBODY}/{path}", json=body)
    assert "not found" in error_of(reply, 404)["error"]
    assert "fp:-1" not in reply.text
    error_of(await http.request(method, f"{URL}/nonsense/{path}", json=body), 400)


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_large_body_is_413_also_where_it_is_ignored(
    http: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> None:
    """E-T173, E-T189"""
    content = b" " * (64 * 1024 + 1)
    reply = await http.request(method, f"{URL}/{NOBODY}/{path}", content=content, headers=JSON)
    assert reply.status_code == 413
    assert reply.json()["limit_bytes"] == 64 * 1024
    assert reply.json()["route"] == f"/v1/executions/{{id}}/{path}"
    fits = await http.request(method, f"{URL}/{NOBODY}/{path}", content=content[1:], headers=JSON)
    assert fits.status_code in (400, 404)


async def test_reads_have_the_limit_of_their_path_as_well(http: httpx.AsyncClient) -> None:
    """server-sdk.md 1.6: GET and POST of `/v1/executions` share it."""
    content, query = b" " * (1 << 20), {"partition": HOME}
    fits = await http.request("GET", URL, params=query, content=content)
    assert fits.status_code == 200
    reply = await http.request("GET", URL, params=query, content=content + b" ")
    assert (reply.status_code, reply.json()["limit_bytes"]) == (413, 1 << 20)


async def test_the_body_may_not_contradict_the_path(http: httpx.AsyncClient) -> None:
    id, other = await create(http), await create(http)
    body = {"execution_id": other, "reason": "r"}
    error_of(await http.post(f"{URL}/{id}/cancel", json=body), 400)
    body["execution_id"] = id.partition(":")[2].partition(":")[2]
    assert (await http.post(f"{URL}/{id}/cancel", json=body)).status_code == 200
