"""What the owner of a lease does with it over HTTP: outcomes, repeats, and how a lease is lost
(execution.md: complete, fail, delay, cancel, progress; server-sdk.md 3.3)."""

import base64
from typing import Any

import pytest

from flowfabric.engine.engine import Engine
from flowfabric.server.context import ServerContext
from flowfabric.server.http.asgi import App
from flowfabric.store.clock import ManualClock
from tests.kit.http_work import HttpWorker, client_of, error_of, server_for
from tests.kit.signalling import fresh

RETRIES = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 500}}}
CLEANUP = {"cleanup_policy": {"cleanup_timeout_ms": 10_000}}

OPERATIONS: dict[str, dict[str, Any]] = {
    "complete": {"result": 1},
    "fail": {"reason": "broken"},
    "delay": {"delay_ms": 10},
    "release": {},
    "wait-for-children": {},
    "cancel": {"reason": "not needed"},
    "progress": {"percent": 5},
    "steps": {"name": "charge", "value": 1},
    "state": {"value": "busy"},
    "suspend": {"signal": "go"},
    "waitpoints": {"waitpoint_key": "k"},
}


# -- complete


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        ({"result": {"b": 1, "a": [1.50]}}, b'{"b":1,"a":[1.5]}'),
        ({"result": None}, b"null"),
        ({"result_base64": base64.b64encode(b"\x00\xff").decode()}, b"\x00\xff"),
        ({"result_base64": [0, 255]}, b"\x00\xff"),
        ({}, None),
    ],
)
async def test_complete_keeps_the_result(
    worker: HttpWorker, body: dict[str, Any], stored: bytes | None
) -> None:
    claim = await worker.take()
    answer = await worker.do(claim, "complete", **body)
    assert answer == {"execution_id": claim["execution_id"], "outcome": "completed"}
    assert await worker.engine.views.result(claim["execution_id"]) == stored


async def test_a_result_says_how_it_is_encoded(worker: HttpWorker) -> None:
    claim = await worker.take()
    body = {"result_base64": "gA==", "result_encoding": "msgpack"}
    await worker.do(claim, "complete", **body)
    seen = await worker.http.get(f"/v1/executions/{claim['execution_id']}/describe")
    assert seen.json()["result_encoding"] == "msgpack"


async def test_complete_with_a_raw_body(worker: HttpWorker) -> None:
    claim = await worker.take()
    url = f"/v1/work/{claim['execution_id']}/complete"
    headers = {"content-type": "application/octet-stream", "FlowFabric-Handle": claim["handle"]}
    reply = await worker.http.post(url, content=b"\x00\xff", headers=headers)
    assert (reply.status_code, reply.json()["outcome"]) == (200, "completed")
    assert await worker.engine.views.result(claim["execution_id"]) == b"\x00\xff"
    del headers["FlowFabric-Handle"]
    reply = await worker.http.post(url, content=b"other", headers=headers)
    assert error_of(reply) == (400, "fence_required")


async def test_a_repeated_complete_keeps_the_first_result(worker: HttpWorker) -> None:
    claim = await worker.take()
    first = await worker.do(claim, "complete", result="first")
    assert await worker.do(claim, "complete", result="second") == first
    assert await worker.engine.views.result(claim["execution_id"]) == b'"first"'
    reply = await worker.post(claim, "fail", reason="too late")
    assert error_of(reply) == (409, "execution_not_active")
    details = reply.json()["details"]
    assert (details["terminal_outcome"], details["lifecycle_phase"]) == ("success", "terminal")


async def test_a_server_that_does_not_know_the_claim_completes_it(
    worker: HttpWorker, engine: Engine
) -> None:
    """The handle proves ownership at any server of the deployment, after any restart."""
    claim = await worker.take(policy=RETRIES)
    async with client_of(server_for(engine)[1]) as http:
        elsewhere = HttpWorker(engine, http)
        await elsewhere.do(claim, "progress", percent=50)
        await elsewhere.do(claim, "complete", result=1)
    assert await worker.do(claim, "complete", result=2)
    assert await worker.engine.views.result(claim["execution_id"]) == b"1"


async def test_results_have_a_limit(worker: HttpWorker) -> None:
    claim = await worker.take()
    reply = await worker.post(claim, "complete", result="x" * (1 << 20))
    assert error_of(reply) == (400, "payload_too_large")
    assert reply.json()["details"] == {
        "what": "result",
        "size": (1 << 20) + 2,
        "limit": 1 << 20,
    }
    reply = await worker.post(claim, "complete", result="x" * (4 << 20))
    assert error_of(reply) == (413, "payload_too_large")
    both = await worker.post(claim, "complete", result=1, result_base64="AA==")
    assert error_of(both) == (400, "invalid_input")
    assert error_of(await worker.post(claim, "complete", result_base64="?")) == (
        400,
        "invalid_input",
    )
    assert await worker.state(claim["execution_id"]) == "active"


# -- fail


async def test_fail_schedules_a_retry_then_ends(worker: HttpWorker, clock: ManualClock) -> None:
    claim = await worker.take(policy=RETRIES)
    wanted = {
        "execution_id": claim["execution_id"],
        "outcome": "retry_scheduled",
        "delay_until": clock.now() + 500,
        "next_attempt_index": 1,
    }
    assert await worker.do(claim, "fail", reason="no network", details="Traceback …") == wanted
    assert await worker.do(claim, "fail", reason="no network") == wanted
    clock.advance(500)
    await worker.engine.sweep.once()
    (again,) = await worker.claim()
    answer = await worker.do(again, "fail", reason="no network")
    assert answer == {"execution_id": claim["execution_id"], "outcome": "terminal_failed"}
    assert await worker.do(again, "fail", reason="once more") == answer
    assert await worker.state(claim["execution_id"]) == "failed"
    first, _ = await worker.engine.views.attempts(claim["execution_id"])
    assert first.failure is not None
    assert first.failure.detail == "Traceback …".encode()


async def test_retry_after_replaces_the_backoff(worker: HttpWorker, clock: ManualClock) -> None:
    claim = await worker.take(policy=RETRIES)
    answer = await worker.do(claim, "fail", reason="slow down", retry_after_ms=60_000)
    assert answer["delay_until"] == clock.now() + 60_000


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({}, "retry_scheduled"),
        ({"retryable": True}, "retry_scheduled"),
        ({"category": "timeout"}, "retry_scheduled"),
        ({"category": "simulated_503"}, "retry_scheduled"),
        ({"retryable": False}, "terminal_failed"),
        ({"category": "permanent"}, "terminal_failed"),
        ({"category": "cancelled", "retryable": False}, "terminal_failed"),
    ],
)
async def test_the_category_decides(worker: HttpWorker, body: dict[str, Any], outcome: str) -> None:
    claim = await worker.take(policy=RETRIES)
    assert (await worker.do(claim, "fail", reason="x", **body))["outcome"] == outcome


@pytest.mark.rules
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"reason": 1}, 422),
        ({"reason": "x", "category": 5}, 422),
        ({"reason": "x", "category": ""}, 400),
        ({"reason": "x", "category": "x" * 257}, 400),
        ({"reason": "x", "category": "permanent", "retryable": True}, 400),
        ({"reason": "x", "category": "timeout", "retryable": False}, 400),
        ({"reason": "x", "retry_after_ms": -1}, 422),
        ({"reason": "x" * 70_000}, 400),
        ({"reason": "\0"}, 400),
    ],
)
async def test_bad_failures_change_nothing(
    worker: HttpWorker, body: dict[str, Any], status: int
) -> None:
    claim = await worker.take()
    assert (await worker.post(claim, "fail", **body)).status_code == status
    assert await worker.state(claim["execution_id"]) == "active"


# -- giving the lease up


async def test_delay_continues_the_same_attempt(worker: HttpWorker, clock: ManualClock) -> None:
    claim = await worker.take()
    until = clock.now() + 1_000
    answer = await worker.do(claim, "delay", until=until)
    assert answer["outcome"] == "delayed"
    assert answer["public_state"] == "delayed"
    assert await worker.do(claim, "delay", until=until) == answer
    assert await worker.claim() == []
    clock.advance(1_000)
    await worker.engine.sweep.once()
    (again,) = await worker.claim()
    assert (again["attempt_index"], again["started_as"]) == (0, "resume")
    assert error_of(await worker.post(claim, "complete")) == (409, "stale_lease")


@pytest.mark.rules
@pytest.mark.parametrize("body", [{}, {"until": 1, "delay_ms": 1}])
async def test_a_delay_says_when(worker: HttpWorker, body: dict[str, Any]) -> None:
    claim = await worker.take()
    assert error_of(await worker.post(claim, "delay", **body)) == (400, "invalid_input")


async def test_release_uses_no_retry(worker: HttpWorker) -> None:
    claim = await worker.take(policy=RETRIES)
    answer = await worker.do(claim, "release")
    assert (answer["outcome"], answer["public_state"]) == ("released", "waiting")
    assert await worker.do(claim, "release") == answer
    (again,) = await worker.claim()
    assert (again["attempt_index"], again.get("retries", 0)) == (0, 0)


async def test_cancel_ends_the_run(worker: HttpWorker) -> None:
    claim = await worker.take()
    answer = await worker.do(claim, "cancel", reason="the user left")
    assert answer == {
        "execution_id": claim["execution_id"],
        "outcome": "cancelled",
        "public_state": "cancelled",
    }
    assert await worker.do(claim, "cancel", reason="again") == answer


async def test_a_cancel_with_clean_up_reaches_the_worker(
    worker: HttpWorker, clock: ManualClock
) -> None:
    claim = await worker.take(policy=CLEANUP)
    id = claim["execution_id"]
    assert error_of(await worker.post(claim, "finish-cleanup")) == (409, "execution_not_eligible")
    await worker.engine.executions.cancel(id, reason="order withdrawn")
    (renewed,) = await worker.renew(claim)
    assert renewed["cancel_requested"] == {
        "until": clock.now() + 10_000,
        "reason": "order withdrawn",
        "outcome": "cancelled",
    }
    await worker.do(claim, "release")
    (again,) = await worker.claim()
    assert again["cancel_requested"] == renewed["cancel_requested"]
    answer = await worker.do(again, "finish-cleanup")
    assert (answer["outcome"], answer["public_state"]) == ("cleaned_up", "cancelled")
    assert await worker.do(again, "finish-cleanup") == answer


# -- progress, state, steps


async def test_progress_and_state_are_shown(worker: HttpWorker) -> None:
    claim = await worker.take()
    assert await worker.do(claim, "progress", percent=40) == {"outcome": "recorded"}
    await worker.do(claim, "progress", message="halfway")
    await worker.do(claim, "state", value={"page": 3})
    shown = await worker.engine.views.describe(claim["execution_id"])
    assert shown is not None
    assert shown.progress is not None
    assert (shown.progress.percent, shown.progress.message) == (40, "halfway")
    assert await worker.engine.views.state_value(claim["execution_id"]) == b'{"page":3}'
    await worker.do(claim, "state", value_base64="AP8=")
    assert await worker.engine.views.state_value(claim["execution_id"]) == b"\x00\xff"
    assert error_of(await worker.post(claim, "state")) == (400, "invalid_input")
    assert (await worker.post(claim, "progress", percent=101)).status_code == 422


async def test_a_step_is_recorded_once(worker: HttpWorker, clock: ManualClock) -> None:
    claim = await worker.take()
    first = await worker.do(claim, "steps", name="charge", value={"paid": 1})
    assert first == {
        "outcome": "recorded",
        "name": "charge",
        "occurrence": 0,
        "position": 0,
        "value": {"paid": 1},
    }
    again = await worker.do(claim, "steps", name="charge", value={"paid": 2})
    assert again == {**first, "outcome": "already_recorded"}
    await worker.do(claim, "steps", name="charge", occurrence=1, value=None)
    await worker.do(claim, "steps", name="mail", position=7)
    reply = await worker.http.get(f"/v1/work/{claim['execution_id']}/steps")
    at = clock.now()
    assert reply.json() == {
        "steps": [
            _step("charge", 0, 0, {"paid": 1}, at),
            _step("charge", 1, 1, None, at),
            _step("mail", 0, 7, None, at),
        ]
    }
    seen = await worker.engine.views.steps(claim["execution_id"])
    assert [step.name for step in seen] == ["charge", "charge", "mail"]


def _step(name: str, occurrence: int, position: int, value: object, at: int) -> dict[str, Any]:
    return {
        "name": name,
        "occurrence": occurrence,
        "position": position,
        "value": value,
        "recorded_at": at,
    }


@pytest.mark.rules
@pytest.mark.parametrize("name", ["", "~/x", "0/x", "x" * 201, "\0"])
async def test_names_that_no_step_has(worker: HttpWorker, name: str) -> None:
    claim = await worker.take()
    assert error_of(await worker.post(claim, "steps", name=name)) == (400, "invalid_input")


async def test_steps_of_no_run(worker: HttpWorker) -> None:
    reply = await worker.http.get(f"/v1/work/{fresh()}/steps")
    assert error_of(reply) == (404, "not_found")


# -- lost leases, for every operation


@pytest.mark.parametrize("op", sorted(OPERATIONS))
async def test_an_expired_lease_changes_nothing(
    worker: HttpWorker, clock: ManualClock, op: str
) -> None:
    claim = await worker.take()
    clock.advance(30_000)
    reply = await worker.post(claim, op, **OPERATIONS[op])
    assert error_of(reply) == (409, "lease_expired")
    assert reply.json()["retryable"] is False
    assert await worker.engine.views.result(claim["execution_id"]) is None


@pytest.mark.parametrize("op", sorted(OPERATIONS))
async def test_a_stale_lease_changes_nothing(
    worker: HttpWorker, clock: ManualClock, op: str
) -> None:
    """Two workers: the first one was too slow, and the second has the run."""
    claim = await worker.take()
    clock.advance(30_000)
    await worker.engine.sweep.once()
    second = HttpWorker(worker.engine, worker.http, "w2")
    (taken,) = await second.claim()
    reply = await worker.post(claim, op, **OPERATIONS[op])
    assert error_of(reply) == (409, "stale_lease")
    assert await second.do(taken, "complete", result="second")
    assert await worker.engine.views.result(claim["execution_id"]) == b'"second"'


@pytest.mark.rules
@pytest.mark.parametrize("op", sorted(OPERATIONS))
async def test_a_revoked_lease_changes_nothing(worker: HttpWorker, op: str) -> None:
    claim = await worker.take()
    await worker.engine.claims.revoke(claim["execution_id"], reason="wrong host")
    reply = await worker.post(claim, op, **OPERATIONS[op])
    assert error_of(reply) == (409, "lease_revoked")
    assert "wrong host" in reply.json()["error"]


@pytest.mark.rules
@pytest.mark.parametrize("op", sorted(OPERATIONS))
async def test_an_ended_run_changes_no_more(worker: HttpWorker, op: str) -> None:
    """An operator cancels the run while its worker is busy."""
    claim = await worker.take()
    await worker.engine.executions.cancel(claim["execution_id"], reason="operator")
    reply = await worker.post(claim, op, **OPERATIONS[op])
    if op == "cancel":
        assert reply.status_code == 200
    else:
        assert error_of(reply) == (409, "execution_not_active")
        assert reply.json()["details"]["terminal_outcome"] == "cancelled"


# -- who presents what


async def test_a_bare_fence_is_as_good_as_a_handle(worker: HttpWorker) -> None:
    claim = await worker.take()
    fence = {key: claim[key] for key in ("lease_id", "lease_epoch", "attempt_id")}
    url = f"/v1/work/{claim['execution_id']}"
    assert (await worker.http.post(f"{url}/progress", json={**fence, "percent": 1})).is_success
    uuid = claim["execution_id"].partition("}:")[2]
    wrong = {**fence, "lease_epoch": 9}
    for op, more in OPERATIONS.items():
        reply = await worker.http.post(f"{url}/{op}", json={**wrong, **more})
        assert error_of(reply) == (409, "stale_lease")
        reply = await worker.http.post(f"{url}/{op}", json={"lease_epoch": 1, **more})
        assert error_of(reply) == (400, "partial_fence_triple")
        reply = await worker.http.post(f"{url}/{op}", json=more)
        assert error_of(reply) == (400, "fence_required")
    # One that has lost its lease may count what it has consumed, but it must say who it is.
    for body, code in (({}, "fence_required"), ({"lease_epoch": 1}, "partial_fence_triple")):
        reply = await worker.http.post(f"{url}/spend", json={"amounts": {"tokens": 1}, **body})
        assert error_of(reply) == (400, code)
    reply = await worker.http.post(f"/v1/work/{uuid}/complete", json=fence)
    assert reply.status_code == 200


@pytest.mark.rules
@pytest.mark.parametrize(
    "spoil",
    [
        lambda handle: handle[:-1] + ("A" if handle[-1] != "A" else "B"),
        lambda handle: handle[:20],
        lambda handle: "",
        lambda handle: "ffh1.",
        lambda handle: handle.replace("ffh1.", "ffh2."),
        lambda handle: handle + "é",
    ],
)
async def test_forged_handles(worker: HttpWorker, spoil: Any) -> None:
    claim = await worker.take()
    forged = {**claim, "handle": spoil(claim["handle"])}
    reply = await worker.post(forged, "complete")
    assert error_of(reply) == (400, "invalid_handle")
    assert claim["handle"][5:] not in reply.text


async def test_a_handle_is_for_its_run(worker: HttpWorker) -> None:
    one, two = await worker.take(), await worker.take()
    mixed = {**one, "execution_id": two["execution_id"]}
    assert error_of(await worker.post(mixed, "complete")) == (400, "invalid_handle")
    both = await worker.post(one, "complete", lease_id=one["lease_id"])
    assert error_of(both) == (400, "invalid_input")
    nothing = {**one, "execution_id": "not-an-id"}
    assert error_of(await worker.post(nothing, "complete")) == (400, "invalid_id")
    wrong = "{fp:0}:" + one["execution_id"].partition("}:")[2]
    assert error_of(await worker.post({**one, "execution_id": wrong}, "complete")) == (
        400,
        "invalid_handle",
    )


@pytest.mark.rules
async def test_a_run_of_another_tenant_looks_unknown(
    worker: HttpWorker, server: tuple[ServerContext, App]
) -> None:
    claim = await worker.take(namespace="other")
    known = {key: claim[key] for key in ("lease_id", "lease_epoch", "attempt_id")}
    async with client_of(server[1], "tenant") as http:
        for fence in ({"handle": claim["handle"]}, known):
            for op, more in OPERATIONS.items():
                url = f"/v1/work/{claim['execution_id']}/{op}"
                assert error_of(await http.post(url, json={**fence, **more})) == (404, "not_found")
        reply = await http.get(f"/v1/work/{claim['execution_id']}/steps")
        assert error_of(reply) == (404, "not_found")
    assert await worker.state(claim["execution_id"]) == "active"


async def test_a_tenant_works_on_its_own(
    worker: HttpWorker, server: tuple[ServerContext, App]
) -> None:
    claim = await worker.take(namespace="acme")
    async with client_of(server[1], "tenant") as http:
        tenant = HttpWorker(worker.engine, http)
        await tenant.do(claim, "steps", name="one")
        assert (await tenant.do(claim, "complete"))["outcome"] == "completed"


@pytest.mark.rules
@pytest.mark.parametrize("op", sorted(OPERATIONS))
async def test_every_operation_needs_the_scope(server: tuple[ServerContext, App], op: str) -> None:
    async with client_of(server[1], "reader") as http:
        reply = await http.post(f"/v1/work/{fresh()}/{op}", json=OPERATIONS[op])
        assert error_of(reply) == (403, "forbidden")


@pytest.mark.rules
@pytest.mark.parametrize("op", sorted(OPERATIONS))
async def test_a_run_that_does_not_exist(worker: HttpWorker, op: str) -> None:
    fence = {"lease_id": str(fresh()), "lease_epoch": 1, "attempt_id": str(fresh())}
    reply = await worker.http.post(f"/v1/work/{fresh()}/{op}", json={**fence, **OPERATIONS[op]})
    assert error_of(reply) == (404, "not_found")
