"""The readable world: every list and view answers, filters, and pages by cursor."""

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest

from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.store.queries import ExpiredLease
from tests.kit.http import EXECUTION as NEW
from tests.kit.http import NOBODY
from tests.kit.lab import TTL, Lab

pytestmark = pytest.mark.rules


async def make(http: httpx.AsyncClient, **more: Any) -> str:
    reply = await http.post("/v1/executions", json={**NEW, **more})
    id: str = reply.json()["Created"]["execution_id"]
    return id


async def test_search_filters_and_pages(http: httpx.AsyncClient) -> None:
    ids = [await make(http, lane_id="a", tags={"app.x": str(n)}) for n in range(3)]
    await make(http, lane_id="b")
    params: dict[str, Any] = {"lane": "a", "limit": 2}
    first = (await http.get("/v1/executions/search", params=params)).json()
    rest = (
        await http.get("/v1/executions/search", params={**params, "cursor": first["next_cursor"]})
    ).json()
    found = [each["id"] for each in first["executions"] + rest["executions"]]
    assert sorted(found) == sorted(ids)
    tagged = await http.get("/v1/executions/search", params={"tag": "app.x=1"})
    assert [each["id"] for each in tagged.json()["executions"]] == [ids[1]]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "invalid_parameter"),
        ("limit=100000", "invalid_parameter"),
        ("limit=x", "invalid_parameter"),
        ("cursor=nonsense", "invalid_input"),
        ("state=nonsense", "invalid_parameter"),
        ("tag=nonsense", "invalid_input"),
    ],
)
async def test_search_refuses_bad_filters(http: httpx.AsyncClient, query: str, code: str) -> None:
    reply = await http.get(f"/v1/executions/search?{query}")
    assert (reply.status_code, reply.json()["code"]) == (400, code)


async def test_describe_by_plain_uuid_shows_payload(http: httpx.AsyncClient) -> None:
    id = await make(http, input_payload=list(b'{"n":1}'))
    plain = id.partition(":")[2].partition(":")[2]
    reply = await http.get(f"/v1/executions/{plain}/describe?payload=true")
    assert reply.status_code == 200
    assert reply.json()["id"] == id
    assert reply.json()["input_payload"] == {"n": 1}


@pytest.mark.parametrize(
    "view", ["describe", "attempts", "steps", "explain", "signals", "tags", "wait?wait=0s"]
)
async def test_views_of_one_execution(http: httpx.AsyncClient, view: str) -> None:
    id = await make(http)
    assert (await http.get(f"/v1/executions/{id}/{view}")).status_code in (200, 202)
    unknown = "{fp:86}:01a1e105-7c1b-7d3e-8a52-3f0c9e4b6d71"
    reply = await http.get(f"/v1/executions/{unknown}/{view}")
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


async def test_a_search_for_the_members_of_a_flow(http: httpx.AsyncClient, engine: Engine) -> None:
    flow = UUID(int=1)
    await engine.flows.create("nightly", id=flow)
    member = await engine.flows.add(flow, Submission(kind="work"))
    await make(http)
    found = (await http.get(f"/v1/executions/search?flow={flow}")).json()
    assert [run["id"] for run in found["executions"]] == [member.id]
    assert found["next_cursor"] is None
    wrong = await http.get("/v1/executions/search?flow=nightly")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_id")


async def test_tags_of_a_flow(http: httpx.AsyncClient, engine: Engine) -> None:
    """C-T139"""
    flow = UUID(int=1)
    await engine.flows.create("nightly", id=flow, tags={"app.old": "0"})
    assert (await http.put(f"/v1/flows/{flow}/tags", json={"app.x": "1"})).json() == {"set": 1}
    assert (await http.get(f"/v1/flows/{flow}/tags")).json() == {"app.old": "0", "app.x": "1"}
    wrong = await http.put(f"/v1/flows/{flow}/tags", json={"nodot": "1"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_tag_key")
    unknown = f"/v1/flows/{UUID(int=2)}/tags"
    assert (await http.put(unknown, json={"app.x": "1"})).status_code == 404
    assert (await http.get(unknown)).status_code == 404


async def test_reads_wait_for_the_end(http: httpx.AsyncClient, engine: Engine) -> None:
    id = await make(http)
    (claim,) = await engine.claims.claim(WorkerIdentity("w", "w1"))
    ends = ("", "/state", "/result")
    waiting = [
        asyncio.ensure_future(http.get(f"/v1/executions/{id}{end}?wait=30s")) for end in ends
    ]
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert not done
    await engine.attempts.complete(claim, b"ready")
    info, state, result = await asyncio.gather(*waiting)
    assert info.json()["public_state"] == "completed"
    assert state.json() == "completed"
    assert result.content == b"ready"


async def test_a_wait_ends_without_an_end(http: httpx.AsyncClient) -> None:
    id = await make(http)
    assert (await http.get(f"/v1/executions/{id}/state?wait=1ms")).json() == "waiting"
    assert (await http.get(f"/v1/executions/{id}?wait=1ms")).json()["public_state"] == "waiting"
    assert (await http.get(f"/v1/executions/{id}/result?wait=1ms")).status_code == 404
    for end in ("", "/state", "/result"):
        assert (await http.get(f"/v1/executions/{id}{end}?wait=31s")).status_code == 400
        assert (await http.get(f"/v1/executions/{id}{end}?wait=long")).status_code == 400
        unknown = await http.get(f"/v1/executions/{NOBODY}{end}?wait=30s")
        assert unknown.status_code == 404


@pytest.mark.parametrize("wait", ["0s", "1s"])
async def test_wait_answers_with_the_result(
    http: httpx.AsyncClient, engine: Engine, wait: str
) -> None:
    id = await make(http)
    (claim,) = await engine.claims.claim(WorkerIdentity("w", "w1"))
    await engine.attempts.complete(claim, b'{"ok":true}')
    reply = await http.get(f"/v1/executions/{id}/wait?wait={wait}")
    assert reply.status_code == 200
    assert reply.json()["public_state"] == "completed"
    assert reply.json()["result"] == {"ok": True}


async def test_create_many_answers_each_on_its_own(http: httpx.AsyncClient) -> None:
    body = {"executions": [NEW, {**NEW, "lane_id": ""}, {**NEW, "idempotency_key": "k"}]}
    reply = await http.post("/v1/executions/batch", json=body)
    assert reply.status_code == 200
    good, bad, keyed = reply.json()["results"]
    assert "Created" in good
    assert "Created" in keyed
    assert bad["Refused"]["code"] == "invalid_input"


async def test_cancel_many_answers_each_on_its_own(http: httpx.AsyncClient) -> None:
    id = await make(http)
    body = {"execution_ids": [id, "nonsense"], "reason": "test"}
    reply = await http.post("/v1/executions/cancel", json=body)
    done, wrong = reply.json()["results"]
    assert done == {"execution_id": id, "public_state": "cancelled"}
    assert wrong["error"]["code"] == "invalid_id"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/flows",
        "/v1/lanes",
        "/v1/lanes/default",
        "/v1/lanes/default/explain",
        "/v1/schedules",
        "/v1/counts",
        "/v1/failures",
        "/v1/suspended",
        "/v1/waitpoints",
        "/v1/capabilities",
        "/v1/leases/expired",
    ],
)
async def test_lists_answer(http: httpx.AsyncClient, path: str) -> None:
    await make(http)
    reply = await http.get(path)
    assert reply.status_code == 200, reply.text


async def test_expired_leases_are_paged(http: httpx.AsyncClient, lab: Lab) -> None:
    """C-T132, §7.5, F-59: by moment and id, of one namespace, as of another moment"""
    held = [await lab.running(namespace=place) for place in ("a", "b", "a")]

    async def get(**asked: Any) -> dict[str, Any]:
        reply = await http.get("/v1/leases/expired", params=asked)
        assert reply.status_code == 200, reply.text
        page: dict[str, Any] = reply.json()
        return page

    assert await get() == {"leases": [], "next_cursor": None}
    end = held[0].lease.expires_at
    assert (await get(as_of=end - 1))["leases"] == []
    assert len((await get(as_of=end))["leases"]) == 3
    lab.clock.advance(TTL)
    first = await get(limit=2)
    rest = await get(limit=2, cursor=first["next_cursor"])
    assert rest["next_cursor"] is None
    found = [lease["lease_id"] for lease in first["leases"] + rest["leases"]]
    assert found == [str(claim.lease.id) for claim in held]
    assert len((await get(namespace="a"))["leases"]) == 2
    for bad in ({"cursor": "x"}, {"as_of": "x"}, {"as_of": -1}, {"limit": -1}):
        assert (await http.get("/v1/leases/expired", params=bad)).status_code == 400


async def test_how_many_expired_leases_and_lanes_are_listed(
    http: httpx.AsyncClient, lab: Lab, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T63, C-T132, E-T245, §7.4, §7.5: 1,000 by default and 10,000 at most; a limit of 0 is an
    empty page"""
    await lab.lose(await lab.running())
    asked: list[int] = []
    expired = engine.claims.expired

    async def watched(**given: Any) -> list[ExpiredLease]:
        asked.append(given["limit"])
        return await expired(**given)

    monkeypatch.setattr(engine.claims, "expired", watched)
    for params in ({}, {"limit": 10_000}, {"limit": 2**40}):
        page = (await http.get("/v1/leases/expired", params=params)).json()
        assert (len(page["leases"]), page["next_cursor"]) == (1, None)
    assert asked == [1000, 10_000, 10_000]
    for noun, path in (
        ("leases", "/v1/leases/expired"),
        ("lanes", "/v1/lanes"),
        ("executions", "/v1/suspended"),
    ):
        none = await http.get(path, params={"limit": 0})
        assert none.json() == {noun: [], "next_cursor": None}


async def test_a_paused_lane_says_who_and_why(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/lanes/slow/pause", json={"reason": "deploy"})
    assert reply.status_code == 200
    shown = (await http.get("/v1/lanes/slow")).json()
    assert (shown["state"], shown["by"], shown["reason"]) == ("paused", "anonymous", "deploy")
    assert (await http.post("/v1/lanes/slow/nonsense", json={})).status_code == 404
    assert (await http.post("/v1/lanes/slow/resume")).status_code == 200  # it needs no body


async def test_a_lane_is_in_a_state_of_the_original(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 1.3: LaneState is active, paused, draining or disabled."""
    await lab.submit(lane="slow")
    shown = (await http.get("/v1/lanes/slow")).json()
    listed = (await http.get("/v1/lanes")).json()["lanes"]
    (seen,) = (await http.get("/v1/overview")).json()["lanes"]
    assert [shown["state"], listed[0]["state"], seen["state"]] == ["active"] * 3
    drained = await http.post("/v1/lanes/slow/drain", json={})
    assert drained.json()["state"] == "draining"
    resumed = await http.post("/v1/lanes/slow/resume", json={})
    assert resumed.json()["state"] == "active"


async def test_schedules_are_made_paused_and_deleted(http: httpx.AsyncClient) -> None:
    body = {"execution_kind": "work", "every": "10m"}
    made = await http.put("/v1/schedules/tick", json=body)
    assert made.status_code == 200, made.text
    assert (await http.post("/v1/schedules/tick/pause")).json()["paused"] is True
    assert (await http.delete("/v1/schedules/tick")).status_code == 204
    assert (await http.get("/v1/schedules/tick")).status_code == 404
    assert (await http.put("/v1/schedules/tick", json={**body, "every": "x"})).status_code == 400
