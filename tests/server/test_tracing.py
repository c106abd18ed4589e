"""A request carries its trace into the executions that it creates, and its id into the log."""

import logging

import httpx
import pytest

from flowfabric.core.base.ids import ExecutionId
from flowfabric.engine.engine import Engine
from tests.kit.http import EXECUTION, create

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def trace_of(engine: Engine, id: str) -> str | None:
    uuid = ExecutionId(id).uuid
    return (await engine.store.load([uuid]))[uuid].execution.facts.trace


async def test_an_execution_belongs_to_the_trace_of_its_request(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    reply = await http.post("/v1/executions", json=EXECUTION, headers={"traceparent": PARENT})
    assert await trace_of(engine, reply.json()["Created"]["execution_id"]) == PARENT
    many = {"executions": [EXECUTION, EXECUTION]}
    reply = await http.post("/v1/executions/batch", json=many, headers={"traceparent": PARENT})
    for each in reply.json()["results"]:
        assert await trace_of(engine, each["Created"]["execution_id"]) == PARENT
    assert await trace_of(engine, await create(http)) is None


@pytest.mark.parametrize(
    "wrong", ["", "nonsense", PARENT.upper(), f"00-{'0' * 32}-{'1' * 16}-01", PARENT + "-00"]
)
async def test_a_trace_that_is_none_is_ignored(
    http: httpx.AsyncClient, engine: Engine, wrong: str
) -> None:
    reply = await http.post("/v1/executions", json=EXECUTION, headers={"traceparent": wrong})
    assert reply.status_code == 201
    assert await trace_of(engine, reply.json()["Created"]["execution_id"]) is None


async def test_a_worker_gets_the_trace_with_its_claim(http: httpx.AsyncClient) -> None:
    await http.post("/v1/executions", json=EXECUTION, headers={"traceparent": PARENT})
    body = {"worker_id": "w", "worker_instance_id": "w-1", "limit": 1}
    reply = await http.post("/v1/work/claim", json=body)
    assert reply.status_code == 200, reply.text
    (claim,) = reply.json()["claims"]
    assert claim["traceparent"] == PARENT


async def test_the_log_has_the_request_as_fields(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flowfabric.server.access"):
        await http.get("/v1/executions/nonsense/state", headers={"X-Request-ID": "abc"})
    (record,) = caplog.records
    fields = vars(record)
    assert (fields["request_id"], fields["method"], fields["status"]) == ("abc", "GET", 400)
    assert fields["route"] == "/v1/executions/{id}/state"


async def test_a_fault_is_logged_with_the_request(
    http: httpx.AsyncClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    id = await create(http)
    monkeypatch.setattr(engine.views, "state", None)
    headers = {"X-Request-ID": "abc"}
    with caplog.at_level(logging.ERROR, "flowfabric.server"):
        reply = await http.get(f"/v1/executions/{id}/state", headers=headers)
    assert reply.status_code == 500
    (record,) = caplog.records
    assert vars(record)["request_id"] == "abc"
    assert vars(record)["run"] == id
