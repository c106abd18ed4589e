"""One answer about the whole: right, cheap, and only of what the caller sees."""

import asyncio
from typing import Any

import httpx
import pytest

from flowfabric.core.execution.model import Failure, WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.store.clock import ManualClock

ADA = WorkerIdentity("ada", "ada-1")


async def submit(engine: Engine, kind: str = "job", **more: Any) -> None:
    await engine.executions.submit(Submission(kind=kind, payload=b"{}", **more))


async def test_an_empty_store(http: httpx.AsyncClient) -> None:
    found = (await http.get("/v1/overview")).json()
    assert set(found["counts"].values()) == {0}
    assert (found["lanes"], found["failures"], found["workers"], found["capped"]) == (
        [],
        [],
        [],
        [],
    )
    assert (found["oldest_waiting"], found["waited"], found["ran"]) == (None, None, None)
    assert len(found["spans"]) == 60


async def test_what_is_going_on(
    engine: Engine, http: httpx.AsyncClient, clock: ManualClock
) -> None:
    await engine.workers.register(Presence(worker="ada", instance="ada-1", concurrency=4))
    for lane in ("mail", "orders", "orders"):
        await submit(engine, lane=lane)
    await submit(engine, "bad", lane="ends")
    await submit(engine, "good", lane="ends")
    clock.advance(2_000)
    for claim in await engine.claims.claim(ADA, lanes=["ends"], limit=2):
        if claim.kind == "bad":
            await engine.attempts.fail(claim, Failure("broken", category="permanent"))
        else:
            await engine.attempts.complete(claim, b"1")
    await engine.claims.claim(ADA, lanes=["orders"], limit=1)
    await engine.lanes.pause("closed", by="ada", reason="holidays")
    found = (await http.get("/v1/overview")).json()
    counts = {state: count for state, count in found["counts"].items() if count}
    assert counts == {"waiting": 2, "active": 1, "completed": 1, "failed": 1}
    lanes = {each["lane"]: (each["waiting"], each["running"]) for each in found["lanes"]}
    assert lanes == {"mail": (1, 0), "orders": (1, 1), "closed": (0, 0)}
    assert {each["lane"]: each["state"] for each in found["lanes"]}["closed"] == "paused"
    assert found["oldest_waiting"]["kind"] == "job"
    assert sum(span["completed"] for span in found["spans"]) == 1
    assert sum(span["failed"] for span in found["spans"]) == 1
    assert found["waited"]["count"] == 3
    assert [group["kind"] for group in found["failures"]] == ["bad"]
    assert [worker["instance"] for worker in found["workers"]] == ["ada-1"]


async def test_however_many_ask_the_store_is_read_once(
    engine: Engine, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten dashboards cost what one costs: five reads, of which three are of things that change
    slowly and are shared for five seconds."""
    read: list[str] = []
    for service, method in (
        (engine.views, "counts"), (engine.lanes, "depths"), (engine.views, "failures"),
        (engine.events, "read"), (engine.workers, "list"), (engine.lanes, "settings"),
    ):  # fmt: skip
        monkeypatch.setattr(service, method, _counted(getattr(service, method), method, read))
    answers = await asyncio.gather(*(http.get("/v1/overview") for _ in range(10)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert sorted(read) == ["counts", "depths", "failures", "list", "read", "settings"]


def _counted(method: Any, name: str, read: list[str]) -> Any:
    async def counted(*args: Any, **kwargs: Any) -> Any:
        read.append(name)
        return await method(*args, **kwargs)

    return counted


async def test_a_caller_sees_its_namespace_only(engine: Engine) -> None:
    await submit(engine, namespace="mine", lane="a")
    await submit(engine, namespace="theirs", lane="b")
    made = await engine.tokens.create("tenant", ["read"], namespaces=["mine"])
    app = create_app(ServerContext(engine, Authentication(engine, is_open=False)))
    headers = {"authorization": f"Bearer {made.secret.reveal()}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://server", headers=headers
    ) as client:
        found = (await client.get("/v1/overview")).json()
        assert found["counts"]["waiting"] == 1
        assert [each["lane"] for each in found["lanes"]] == ["a"]
        assert (await client.get("/v1/overview?namespace=theirs")).status_code == 403
