"""Events over HTTP: pages, server-sent events, subscriptions with a durable cursor (C 8)."""

import httpx
import pytest

from flowfabric.core.execution.event_filter import encode_cursor
from flowfabric.engine.engine import Engine
from flowfabric.server.context import ServerContext
from flowfabric.store.clock import ManualClock
from tests.kit.lab import Lab
from tests.server.listening import Events, listening

DAY = 86_400_000


@pytest.fixture
def lab(engine: Engine, clock: ManualClock) -> Lab:
    return Lab(engine, clock)


async def test_events_page_by_cursor(http: httpx.AsyncClient, lab: Lab) -> None:
    claim = await lab.running()
    await lab.complete(claim)
    first = (await http.get("/v1/events", params={"limit": 1})).json()
    rest = (await http.get("/v1/events", params={"after": first["next_cursor"]})).json()
    assert [each["kind"] for each in first["events"] + rest["events"]] == ["claimed", "completed"]
    assert rest["events"][0]["completion"] == {"outcome": "success", "state": "success"}
    own = (await http.get(f"/v1/executions/{claim.id}/events")).json()
    assert len(own["events"]) == 2
    for path in ("/v1/events", f"/v1/executions/{claim.id}/events"):  # as other lists are paged
        paged = await http.get(path, params={"cursor": first["next_cursor"]})
        assert paged.json()["events"] == rest["events"]
        both = {"cursor": first["next_cursor"], "after": rest["next_cursor"]}
        assert (await http.get(path, params=both)).status_code == 400


async def test_a_family_is_filtered(http: httpx.AsyncClient, lab: Lab) -> None:
    await lab.complete(await lab.running())
    found = (await http.get("/v1/events", params={"family": "completion"})).json()
    assert [each["kind"] for each in found["events"]] == ["completed"]
    refused = await http.get("/v1/events", params={"family": "nonsense"})
    assert (refused.status_code, refused.json()["details"]["reasons"][0]["key"]) == (400, "family")


@pytest.mark.parametrize("cursor", ["nonsense", "AgAAAAAAAAA=", "AQAAAAAAAAAH", "é"])
async def test_a_foreign_cursor_is_refused(http: httpx.AsyncClient, cursor: str) -> None:
    reply = await http.get("/v1/events", params={"after": cursor})
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input")
    reply = await http.get("/v1/events/stream", params={"after": cursor})
    assert reply.status_code == 400


async def test_a_cursor_beyond_the_last_event_is_refused(http: httpx.AsyncClient, lab: Lab) -> None:
    """A page of nothing would hide every event until that number is reached."""
    run = await lab.running()
    beyond = {"after": encode_cursor(71)}
    for path in ("/v1/events", f"/v1/executions/{run.id}/events", "/v1/events/stream"):
        reply = await http.get(path, params=beyond)
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input")


async def test_a_stream_of_events_resumes(context: ServerContext, lab: Lab) -> None:
    async with listening(context) as address:
        url = f"{address}/v1/events/stream"
        async with Events.open(url) as events:
            claim = await lab.running()
            assert (await events.next("claimed"))["execution_id"] == str(claim.id)
            seen = events.last_id
            await lab.complete(claim)
            await events.next("completed")
        async with Events.open(url, last_id=seen) as events:
            assert (await events.next("completed"))["execution_id"] == str(claim.id)


async def test_a_stream_resumes_at_every_cursor_around_a_gap(
    context: ServerContext, engine: Engine, lab: Lab
) -> None:
    """E-T335: the events of a run that has not ended are left inside of what was deleted, and no
    cursor passes them, that of the gap included."""
    left = await lab.running()
    await lab.complete(await lab.running())
    lab.clock.advance(8 * DAY)
    assert await engine.sweep.trim() == 1
    last = await lab.running()
    async with listening(context) as address:
        url = f"{address}/v1/events/stream"
        seen: list[tuple[str, str | None]] = []
        begin: str | None = encode_cursor(0)
        for _ in range(3):
            async with Events.open(url, last_id=begin) as events:
                found = await events.next()
            seen.append((found["kind"], found.get("execution_id")))
            begin = events.last_id
    assert seen == [("claimed", str(left.id)), ("gap", None), ("claimed", str(last.id))]


async def test_tenants_see_their_own_events(
    engine: Engine, context: ServerContext, lab: Lab
) -> None:
    token = await engine.tokens.create("acme", ["read"], namespaces=["acme"])
    async with listening(context) as address:
        secret = token.secret.reveal()
        async with Events.open(f"{address}/v1/events/stream", token=secret) as events:
            await lab.complete(await lab.running(namespace="other"))
            mine = await lab.running(namespace="acme")
            assert (await events.next("claimed"))["execution_id"] == str(mine.id)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}) as http:
            foreign = await http.get(f"{address}/v1/events?namespace=other")
            assert foreign.status_code == 403


async def test_a_subscription_keeps_its_cursor(http: httpx.AsyncClient, lab: Lab) -> None:
    url = "/v1/subscriptions/audit"
    made = await http.put(url, json={"families": ["completion"]})
    assert made.status_code == 200, made.text
    claim = await lab.running()
    await lab.complete(claim)
    batch = await http.post(f"{url}/read", params={"holder": "a"})
    assert batch.status_code == 200, batch.text
    (event,) = batch.json()["events"]
    assert event["execution_id"] == str(claim.id)
    held = await http.post(f"{url}/read", params={"holder": "b"})
    assert (held.status_code, held.json()["code"]) == (409, "held")
    assert held.json()["error"] == "another reader has it: a"
    assert (held.json()["kind"], held.json()["retryable"]) == ("contention", True)
    assert held.json()["details"]["holder"] == "a"
    acked = await http.post(f"{url}/ack", json={"cursor": batch.json()["next_cursor"]})
    assert acked.status_code == 200
    released = await http.post(f"{url}/release", params={"holder": "a"})
    assert released.status_code == 204
    empty = await http.post(f"{url}/read", params={"holder": "b"})
    assert empty.status_code == 200, empty.text
    assert empty.json()["events"] == []
    assert (await http.delete(url)).status_code == 204
    assert (await http.get(url)).status_code == 404


async def test_a_subscription_does_not_begin_beyond_the_last_event(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    """A cursor of another store would skip whatever happens until that number is reached."""
    await lab.complete(await lab.running())
    url = "/v1/subscriptions/audit"
    reply = await http.put(url, json={"after": encode_cursor(71)})
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input")
    assert (await http.get(url)).status_code == 404
    assert (await http.put(url, json={"after": encode_cursor(1)})).status_code == 200
    batch = await http.post(f"{url}/read", params={"holder": "a"})
    assert [each["kind"] for each in batch.json()["events"]] == ["completed"]


async def test_an_empty_cursor_acknowledges_nothing(http: httpx.AsyncClient, lab: Lab) -> None:
    url = "/v1/subscriptions/audit"
    made = (await http.put(url, json={})).json()
    await lab.complete(await lab.running())
    await http.post(f"{url}/read", params={"holder": "a"})
    reply = await http.post(f"{url}/ack", json={"cursor": ""})
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input")
    assert (await http.get(url)).json()["cursor"] == made["cursor"]
