"""Names in paths: every name that the engine takes can be named in a path, if it is encoded."""

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from flowfabric.engine.engine import Engine
from flowfabric.server.context import ServerContext
from tests.kit.lab import Lab
from tests.server.listening import listening

AWKWARD = ["team/a", "a//b", "/", "a%2Fb", "100%", "a?b#c", ". /~"]


@pytest.mark.parametrize("lane", AWKWARD)
async def test_any_lane_can_be_named(http: httpx.AsyncClient, lab: Lab, lane: str) -> None:
    """Spec 1.2: a lane is 1 to 64 bytes from 0x20 to 0x7e, so it may have a slash."""
    await lab.submit(lane=lane)
    path = f"/v1/lanes/{quote(lane, safe='')}"
    paused = await http.post(f"{path}/pause", json={})
    assert paused.status_code == 200, paused.text
    seen: dict[str, Any] = (await http.get(path)).json()
    assert (seen["name"], seen["state"], seen["counts"]["waiting"]) == (lane, "paused", 1)


@pytest.mark.parametrize("worker", ["pool/7", "a%2Fb", "host/proc/1"])
async def test_any_worker_can_claim(
    context: ServerContext, engine: Engine, lab: Lab, worker: str
) -> None:
    """Spec 1.6: a worker identifier has no white space and no control characters; all else goes."""
    id = await lab.submit()
    body = {"lane_id": "default", "worker_instance_id": "i", "grant_ttl_ms": 5000}
    async with listening(context) as url, httpx.AsyncClient(base_url=url) as real:
        claimed = await real.post(f"/v1/workers/{quote(worker, safe='')}/claim", json=body)
    assert claimed.status_code == 200, claimed.text
    grant = await engine.grants.identity(id)
    assert grant is not None
    assert grant.worker == worker


async def test_a_slash_that_is_not_encoded_divides(http: httpx.AsyncClient, lab: Lab) -> None:
    await lab.submit(lane="team/a")
    body = {"lane_id": "team/a", "worker_instance_id": "i", "grant_ttl_ms": 5000}
    assert (await http.post("/v1/workers/pool/7/claim", json=body)).status_code == 404
    encoded = await http.get("/v1/lanes%2Fteam")
    assert encoded.status_code == 404, "it is not the route /v1/lanes/{lane}"
    assert encoded.json()["code"] == "route_not_found"


async def test_shared_answers_are_those_of_the_very_name(http: httpx.AsyncClient, lab: Lab) -> None:
    shared = {"Cache-Control": "max-age=5"}
    for lane in ("a/b", "a%2Fb"):
        await lab.submit(lane=lane)
        seen = await http.get(f"/v1/lanes/{quote(lane, safe='')}", headers=shared)
        assert seen.json()["name"] == lane


@pytest.mark.parametrize("name", ["%FF", "a%C3", "%ED%A0%AF"])
async def test_a_path_that_is_no_utf8_is_refused(context: ServerContext, name: str) -> None:
    """Names of other bytes would look the same: one worker could take the grants of the other."""
    body = {"lane_id": "default", "worker_instance_id": "i", "grant_ttl_ms": 5000}
    async with listening(context) as url, httpx.AsyncClient(base_url=url) as real:
        refused = await real.post(f"/v1/workers/{name}/claim", json=body)
        shown = await real.post("/v1/workers/%EF%BF%BD/claim", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"] == "invalid_input: the path is not UTF-8"
    assert shown.status_code == 204, "the replacement character itself is a character"
