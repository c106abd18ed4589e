"""Claiming work over HTTP (server-sdk.md 10.1, items 8, 14, 16, 17)."""

import asyncio
import base64
from typing import Any

import httpx
import msgspec
import pytest

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.step import Step
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.server.context import ServerContext
from flowfabric.server.http.asgi import App
from flowfabric.server.worker.bounded_claims import BoundedClaims
from flowfabric.store.clock import ManualClock
from flowfabric.store.queries import ClaimCall
from tests.kit.http_work import HalfOpenCall, HttpWorker, client_of, error_of
from tests.kit.lab import W1, W2, Lab

CLAIM = "/v1/work/claim"


async def test_a_claim_has_all_a_worker_needs(worker: HttpWorker, clock: ManualClock) -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 5_000}, "retry_policy": {"max_retries": 2}}
    id = await worker.submit(tags={"shop.order": "7"}, policy=policy, priority=3)
    reply = await worker.ask(lease_ms=20_000)
    (claim,) = reply.json()["claims"]
    now = clock.now()
    assert {
        key: claim[key] for key in claim if key not in ("handle", "lease_id", "attempt_id")
    } == {
        "execution_id": id,
        "kind": "work",
        "namespace": "default",
        "lane": "default",
        "attempt_index": 0,
        "lease_epoch": 1,
        "lease_ms": 20_000,
        "expires_at": now + 20_000,
        "started_as": "initial",
        "created_at": now,
        "priority": 3,
        "tags": {"shop.order": "7"},
        "steps": [],
        "signals": [],
        "payload_json": {"n": 1},
        "payload_encoding": "json",
        "attempt_times_out_at": now + 5_000,
        "max_retries": 2,
    }
    assert reply.json()["retry_after_ms"] == 0
    assert await worker.state(id) == "active"


async def test_a_run_that_a_client_put_into_a_partition_has_no_flow_yet(
    worker: HttpWorker,
) -> None:
    """A client may choose the partition of a flow that the run will join later."""
    id = "{fp:7}:11111111-1111-4111-8111-111111111111"
    body = {
        "execution_id": id,
        "namespace": "default",
        "lane_id": "default",
        "execution_kind": "work",
        "input_payload": [1],
        "priority": 0,
        "creator_identity": "tests",
    }
    assert (await worker.http.post("/v1/executions", json=body)).status_code == 201
    (claim,) = await worker.claim()
    assert claim["execution_id"] == id
    assert "flow_id" not in claim


async def test_nothing_to_do_is_an_empty_list(worker: HttpWorker) -> None:
    reply = await worker.ask()
    assert (reply.status_code, reply.json()) == (200, {"claims": [], "retry_after_ms": 1000})


@pytest.mark.rules
@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (b"\xff\x00", None),
        (b"\xff\x00", "json"),
        (b"{", "json"),
        (b"{}", "msgpack"),
        (b"[" * 5000 + b"]" * 5000, "json"),
    ],
)
async def test_bytes_are_base64(worker: HttpWorker, payload: bytes, encoding: str | None) -> None:
    claim = await worker.take(payload=payload, encoding=encoding)
    assert base64.b64decode(claim["payload"]) == payload
    assert "payload_json" not in claim


@pytest.mark.rules
@pytest.mark.parametrize("encoding", ["json", "application/json", "application/vnd.x+json"])
async def test_json_is_json(worker: HttpWorker, encoding: str) -> None:
    claim = await worker.take(payload=b"[1, null]", encoding=encoding)
    assert claim["payload_json"] == [1, None]
    assert "payload" not in claim


async def test_limit_lanes_kinds_and_capabilities(worker: HttpWorker) -> None:
    await worker.submit(lane="a")
    await worker.submit(lane="b", kind="bill")
    needs = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    await worker.submit(lane="c", policy=needs)
    assert await worker.claim(lanes=["c"]) == []
    assert [c["lane"] for c in await worker.claim(lanes=["c"], capabilities=["gpu"])] == ["c"]
    assert await worker.claim(lanes=["a"], kinds=["bill"]) == []
    assert [c["kind"] for c in await worker.claim(kinds=["bill"], limit=500)] == ["bill"]
    assert [c["lane"] for c in await worker.claim(limit=500)] == ["a"]


async def test_lanes_with_weights(worker: HttpWorker) -> None:
    for lane in ["a", "b"] * 8:
        await worker.submit(lane=lane)
    taken = await worker.claim(lanes={"a": 3, "b": 1}, limit=4)
    assert sorted(claim["lane"] for claim in taken) == ["a", "a", "a", "b"]


@pytest.mark.parametrize("lanes", [["default"], {"default": 2, "other": 1}, []])
async def test_a_repeated_claim_gets_what_it_holds(worker: HttpWorker, lanes: Any) -> None:
    for _ in range(3):
        await worker.submit()
    first = await worker.claim(claim_id="c1", limit=2, lanes=lanes)
    again = await worker.claim(claim_id="c1", limit=2, lanes=lanes)
    assert len(first) == 2
    assert {c["handle"] for c in again} == {c["handle"] for c in first}
    await worker.do(first[0], "complete")
    left = await worker.claim(claim_id="c1", limit=2, lanes=lanes)
    assert [c["handle"] for c in left] == [first[1]["handle"]]
    other = await worker.claim(claim_id="c2", limit=2, lanes=lanes)
    assert [c["execution_id"] in {f["execution_id"] for f in first} for c in other] == [False]


async def test_a_claim_id_is_of_one_worker(worker: HttpWorker) -> None:
    await worker.submit()
    assert len(await worker.claim(claim_id="c1")) == 1
    other = HttpWorker(worker.engine, worker.http, "w2")
    assert await other.claim(claim_id="c1") == []
    assert await worker.claim(claim_id="c1", namespace="default") == []


async def test_the_same_claim_id_at_the_same_time(worker: HttpWorker) -> None:
    for _ in range(5):
        await worker.submit()
    taken = await asyncio.gather(*(worker.claim(claim_id="c1", limit=2) for _ in range(4)))
    assert {c["execution_id"] for claims in taken for c in claims} == {
        c["execution_id"] for c in taken[0]
    }
    assert [len(claims) for claims in taken] == [2] * 4


async def test_many_callers_get_each_run_once(worker: HttpWorker) -> None:
    ids = {await worker.submit() for _ in range(20)}
    taken = await asyncio.gather(*(worker.claim(limit=1) for _ in range(25)))
    found = [claim["execution_id"] for claims in taken for claim in claims]
    assert len(found) == 20
    assert set(found) == ids


# -- waiting


async def test_a_long_poll_is_woken_by_work(worker: HttpWorker) -> None:
    waiting = asyncio.ensure_future(worker.ask(wait_ms=30_000))
    await worker.until_it_waits()
    id = await worker.submit()
    reply = await waiting
    assert [claim["execution_id"] for claim in reply.json()["claims"]] == [id]


async def test_a_long_poll_ends_empty(worker: HttpWorker) -> None:
    reply = await worker.ask(wait_ms=1)
    assert reply.json() == {"claims": [], "retry_after_ms": 0}


async def test_a_gone_client_takes_nothing(
    worker: HttpWorker, server: tuple[ServerContext, App]
) -> None:
    call = HalfOpenCall(server[1], CLAIM, _asking(wait_ms=30_000))
    await call.reading.wait()
    await worker.until_it_waits()
    await call.leave()
    id = await worker.submit()
    (claim,) = await worker.claim()
    assert (claim["execution_id"], claim["attempt_index"]) == (id, 0)
    assert claim["started_as"] == "initial"


async def test_what_was_taken_for_a_gone_client_is_handed_back(
    worker: HttpWorker, server: tuple[ServerContext, App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client goes away while the statement is under way."""
    id = await worker.submit(policy={"retry_policy": {"max_retries": 1}})
    real, calls, left = worker.engine.store.claim, list[HalfOpenCall](), asyncio.Event()

    async def slow(*args: Any) -> Any:
        taken = await real(*args)
        calls[0].hang_up()
        await left.wait()
        return taken

    monkeypatch.setattr(worker.engine.store, "claim", slow)
    calls.append(HalfOpenCall(server[1], CLAIM, _asking()))
    await calls[0].task
    left.set()
    monkeypatch.undo()
    await worker.engine.claims.drain()
    (claim,) = await worker.claim()
    assert (claim["execution_id"], claim["attempt_index"], claim.get("retries", 0)) == (id, 0, 0)
    assert claim["started_as"] == "resume"


async def test_a_client_that_comes_back_gets_no_lease_that_is_being_handed_back(
    worker: HttpWorker, server: tuple[ServerContext, App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection breaks while the statement is under way, and it sends the same request."""
    await worker.submit()
    real, begun, left = worker.engine.store.claim, asyncio.Event(), asyncio.Event()

    async def slow(call: ClaimCall, now: Millis) -> Any:
        taken = await real(call, now)
        if call.limit and not begun.is_set():
            begun.set()
            await left.wait()
        return taken

    monkeypatch.setattr(worker.engine.store, "claim", slow)
    asking = _asking(worker_instance_id=worker.name, claim_id="c1")
    call = HalfOpenCall(server[1], CLAIM, asking)
    await begun.wait()
    await call.leave()
    again = asyncio.ensure_future(worker.claim(claim_id="c1"))
    await asyncio.wait({again}, timeout=0.2)
    left.set()
    (claim,) = await again
    await worker.engine.claims.drain()
    assert (await worker.do(claim, "complete"))["outcome"] == "completed"


async def test_what_cannot_be_described_is_handed_back(
    worker: HttpWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worker.submit()

    async def broken(*args: Any) -> Any:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(worker.engine.store, "tags", broken)
    reply = await worker.ask()
    assert error_of(reply) == (500, "internal")
    monkeypatch.undo()
    assert len(await worker.claim()) == 1


@pytest.mark.parametrize("document", [b"no json", b'{"value":' + b"[" * 5000 + b"]" * 5000 + b"}"])
async def test_a_damaged_run_does_not_keep_the_others(worker: HttpWorker, document: bytes) -> None:
    damaged = await worker.take()
    step = Step(0, 0, "charge", 0, document)
    await worker.engine.attempts.record_step(damaged["handle"], step)
    await worker.do(damaged, "release")
    id = await worker.submit()
    (claim,) = await worker.claim(limit=2)
    assert claim["execution_id"] == id
    assert await worker.state(damaged["execution_id"]) == "failed"


async def test_a_stopping_server_gives_no_work(
    worker: HttpWorker, server: tuple[ServerContext, App]
) -> None:
    waiting = asyncio.ensure_future(worker.ask(wait_ms=30_000))
    await worker.until_it_waits()
    server[0].draining.set()
    assert (await waiting).json() == {"claims": [], "retry_after_ms": 1000}
    await worker.submit()
    assert (await worker.ask(wait_ms=30_000)).json() == {"claims": [], "retry_after_ms": 1000}
    server[0].draining.clear()
    assert len(await worker.claim()) == 1


async def test_a_stopping_server_does_not_deny_what_a_repeated_claim_holds(
    worker: HttpWorker, server: tuple[ServerContext, App]
) -> None:
    """The answer was lost, and the same request comes again while the server drains."""
    await worker.submit()
    (claim,) = await worker.claim(claim_id="c1")
    server[0].draining.set()
    reply = await worker.ask(claim_id="c1")
    assert error_of(reply) == (503, "unavailable")
    assert reply.headers["retry-after"] == "1"
    server[0].draining.clear()  # as another server answers
    assert [each["handle"] for each in await worker.claim(claim_id="c1")] == [claim["handle"]]


# -- what comes with a later attempt


async def test_a_retry_a_reclaim_and_a_resume_say_so(
    worker: HttpWorker, clock: ManualClock
) -> None:
    retrying = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 0}}}
    claim = await worker.take(policy=retrying)
    await worker.do(claim, "steps", name="charge", value={"paid": True})
    await worker.do(claim, "fail", reason="no network")
    (retry,) = await worker.claim()
    assert (retry["started_as"], retry["attempt_index"], retry["retries"]) == ("retry", 1, 1)
    assert [(s["name"], s["value"]) for s in retry["steps"]] == [("charge", {"paid": True})]
    clock.advance(30_001)
    await worker.engine.sweep.once()
    (reclaim,) = await worker.claim()
    assert (reclaim["started_as"], reclaim["attempt_index"]) == ("reclaim", 2)
    await worker.do(reclaim, "release")
    (resume,) = await worker.claim()
    assert (resume["started_as"], resume["attempt_index"]) == ("resume", 2)
    assert resume["lease_epoch"] > reclaim["lease_epoch"]


# -- tenants, scopes, bad input


async def test_a_tenant_claims_in_its_namespaces(
    worker: HttpWorker, server: tuple[ServerContext, App]
) -> None:
    await worker.submit(namespace="other")
    own = await worker.submit(namespace="acme")
    async with client_of(server[1], "tenant") as http:
        tenant = HttpWorker(worker.engine, http)
        assert error_of(await tenant.ask(namespace="other")) == (403, "forbidden")
        (claim,) = await tenant.claim(limit=10)
        assert claim["execution_id"] == own
    async with client_of(server[1], "partner") as http:
        partner = HttpWorker(worker.engine, http)
        assert error_of(await partner.ask()) == (400, "invalid_input")
        assert await partner.claim(namespace="beta") == []


async def test_the_scope_is_work(server: tuple[ServerContext, App]) -> None:
    async with client_of(server[1], "reader") as http:
        reply = await http.post(CLAIM, json={"worker_id": "a", "worker_instance_id": "b"})
        assert error_of(reply) == (403, "forbidden")


@pytest.mark.rules
@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"limit": 0}, 422),
        ({"limit": 501}, 422),
        ({"limit": 1.5}, 422),
        ({"lease_ms": 0}, 422),
        ({"wait_ms": 30_001}, 422),
        ({"lanes": "a"}, 422),
        ({"lanes": {"a": 0}}, 422),
        ({"lanes": [""]}, 400),
        ({"kinds": [""]}, 400),
        ({"capabilities": ["a b"]}, 400),
        ({"worker_id": "a b"}, 400),
        ({"worker_instance_id": ""}, 400),
        ({"namespace": ""}, 400),
        ({"claim_id": "x" * 1025}, 400),
        ({"claim_id": "\0"}, 400),
    ],
)
async def test_bad_requests_take_nothing(
    worker: HttpWorker, members: dict[str, Any], status: int
) -> None:
    id = await worker.submit()
    assert (await worker.ask(**members)).status_code == status
    assert await worker.state(id) == "waiting"


@pytest.mark.rules
async def test_bodies_that_are_no_request(worker: HttpWorker) -> None:
    async def status(**given: Any) -> int:
        return (await worker.http.post(CLAIM, **given)).status_code

    kind = {"content-type": "application/json"}
    assert await status(content=b"{", headers=kind) == 400
    assert await status(content=b"[]", headers=kind) == 422
    assert await status(content=b"{}", headers=kind) == 422
    assert await status(content=_asking(), headers={"content-type": "text/plain"}) == 415
    assert await status(content=_asking() + b" " * 70_000, headers=kind) == 413
    twice = _asking()[:-1] + b',"limit":1,"limit":2}'
    assert await status(content=twice, headers=kind) == 422
    no_text = _asking()[:-1] + b',"namespace":"\xff"}'
    assert await status(content=no_text, headers=kind) == 400
    deep = _asking()[:-1] + b',"kinds":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    assert await status(content=deep, headers=kind) == 422


def _asking(**members: Any) -> bytes:
    return msgspec.json.encode({"worker_id": "pool", "worker_instance_id": "w0", **members})


async def test_unknown_fields_are_refused(http: httpx.AsyncClient) -> None:
    body = {"worker_id": "a", "worker_instance_id": "b", "max": 3}
    reply = await http.post(CLAIM, json=body)
    assert reply.status_code == 422
    assert reply.json()["code"] == "invalid_body"
    assert reply.json()["details"]["reason"] == "Object contains unknown field `max`"


# -- answers of a bounded size


async def test_an_answer_has_so_many_bytes(engine: Engine, lab: Lab) -> None:
    """What does not fit goes back at once: no run is lost, and none is leased for nothing."""
    ids = [await lab.submit(payload=b"x" * 100) for _ in range(5)]
    first = await BoundedClaims(250).claim(engine, W1, limit=5)
    assert [claim.id for claim in first] == ids[:2]
    rest = await lab.claim(W2, limit=5)
    assert [(claim.id, claim.attempt) for claim in rest] == [(id, 0) for id in ids[2:]]


async def test_a_run_alone_may_have_more(engine: Engine, lab: Lab) -> None:
    ids = [await lab.submit(payload=b"x" * 100) for _ in range(2)]
    assert [claim.id for claim in await BoundedClaims(50).claim(engine, W1, limit=2)] == ids[:1]


async def test_claims_take_about_as_many_as_fit(engine: Engine, lab: Lab) -> None:
    """Taking all and handing most of them back, each time, would be work for nothing."""
    for _ in range(20):
        await lab.submit(payload=b"x" * 100)
    claims = BoundedClaims(250)
    taken = [len(await claims.claim(engine, W1, limit=10)) for _ in range(3)]
    handed_back = [
        event
        for event in (await engine.events.read()).events
        if event.kind is EventKind.HANDED_BACK
    ]
    assert (taken, len(handed_back)) == ([2, 2, 2], 8)


async def test_claims_grow_slowly_after_large_payloads(
    engine: Engine, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One small payload says little about the next ones."""
    asked: list[int] = []
    claim = engine.claims.claim

    async def observed(*args: Any, limit: int, **options: Any) -> list[Claim]:
        asked.append(limit)
        return await claim(*args, limit=limit, **options)

    monkeypatch.setattr(engine.claims, "claim", observed)
    claims = BoundedClaims(1000)
    for size in (400, 1, 1, 1, 1):
        await lab.submit(payload=b"x" * size)
        await claims.claim(engine, W1, limit=100)
    assert asked == [100, 2, 5, 10, 20]


async def test_steps_count_in_an_answer(
    worker: HttpWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.server.worker.work.claims.MAX_ANSWER", 250)
    ids = [await worker.submit() for _ in range(3)]
    for claim in (await worker.ask(limit=3)).json()["claims"]:
        await worker.do(claim, "steps", name="large", value="x" * 100)
        await worker.do(claim, "release")
    first, second = [(await worker.ask(limit=3)).json()["claims"] for _ in range(2)]
    assert [claim["execution_id"] for claim in first] == ids[:2]
    assert [claim["execution_id"] for claim in second] == ids[2:]
