"""Who did it: events carry the name of the token, whatever the way of the request."""

import asyncio

import httpx
import pytest

from flowfabric.engine.engine import Engine
from tests.kit.http import client_as, create, tenant

WORKER = {"worker_id": "w", "worker_instance_id": "w-1"}


async def _actors(engine: Engine, id: str) -> set[str]:
    page = await engine.events.read(execution=id, limit=100)
    return {(event.detail or {}).get("by", "") for event in page.events}


@pytest.mark.parametrize("way", ["one", "many"])
async def test_a_cancel_carries_its_caller(engine: Engine, way: str) -> None:
    async with client_as(engine, tenant()) as caller:
        id = await create(caller, namespace="mine")
        if way == "one":
            await caller.post(f"/v1/executions/{id}/cancel", json={"reason": "r"})
        else:
            body = {"execution_ids": [id], "reason": "r"}
            await caller.post("/v1/executions/cancel", json=body)
    assert "tenant" in await _actors(engine, id)


async def test_a_batch_of_a_worker_carries_its_caller(
    engine: Engine, http: httpx.AsyncClient
) -> None:
    async with client_as(engine, tenant()) as caller:
        asking = asyncio.ensure_future(
            caller.post("/v1/work/claim", json={**WORKER, "wait_ms": 30_000})
        )
        while not engine.store.hints.waiting:  # noqa: ASYNC110 - hints are no event
            await asyncio.sleep(0)
        id = await create(http, namespace="mine")
        (claim,) = (await asking).json()["claims"]
        item = {"op": "cancel", "handle": claim["handle"], "reason": "r"}
        reply = await caller.post("/v1/work/batch", json={"operations": [item]})
        assert reply.json()["results"][0]["status"] == 200
    assert "tenant" in await _actors(engine, id)
