"""Output streams over HTTP: ranges, long polls, server-sent events (C 5.3, 5.4)."""

import asyncio
from typing import Any

import httpx
import pytest

from flowfabric.core.execution.frame import NewFrame, StreamMode
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.server.options import ServerOptions
from flowfabric.store.clock import ManualClock
from tests.kit.http import EXECUTION
from tests.kit.lab import Lab
from tests.server.listening import Events, listening

UNKNOWN = "{fp:86}:01a1e105-7c1b-7d3e-8a52-3f0c9e4b6d71"


@pytest.fixture
def lab(engine: Engine, clock: ManualClock) -> Lab:
    return Lab(engine, clock)


async def append(lab: Lab, claim: Claim, *payloads: bytes, **more: Any) -> None:
    await lab.engine.streams.append(claim, [NewFrame(payload=each, **more) for each in payloads])


def path(claim: Claim, rest: str = "") -> str:
    return f"/v1/executions/{claim.id}/attempts/{claim.attempt}/stream{rest}"


async def test_a_range_has_the_fields_of_the_wire(http: httpx.AsyncClient, lab: Lab) -> None:
    claim = await lab.running()
    await append(lab, claim, b"hello", type="log", correlation="c1")
    reply = (await http.get(path(claim))).json()
    (frame,) = reply["frames"]
    assert reply["count"] == 1
    assert "closed_at" not in reply
    assert frame["fields"]["frame_type"] == "log"
    assert frame["fields"]["payload"] == "hello"
    assert frame["fields"]["encoding"] == "utf8"
    assert frame["fields"]["source"] == "worker"
    assert frame["fields"]["mode"] == "durable"
    assert frame["fields"]["correlation_id"] == "c1"
    assert frame["id"].partition("-")[0] == frame["fields"]["ts"]


async def test_bytes_that_are_no_text_arrive_whole(http: httpx.AsyncClient, lab: Lab) -> None:
    claim = await lab.running()
    await append(lab, claim, b"\xff\x00")
    (frame,) = (await http.get(path(claim))).json()["frames"]
    assert (frame["fields"]["encoding"], frame["fields"]["payload"]) == ("base64", "/wA=")


async def test_a_closed_stream_says_when_and_why(http: httpx.AsyncClient, lab: Lab) -> None:
    claim = await lab.running()
    await append(lab, claim, b"one")
    await lab.complete(claim)
    for rest in ("", "/tail"):
        reply = (await http.get(path(claim, rest))).json()
        assert reply["closed_reason"] == "attempt_success"
        assert reply["closed_at"] == lab.clock.now()


async def test_a_limited_tail_of_a_closed_stream_goes_on(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 1.7: a reader goes on until `closed_at` is there, and misses no frame."""
    claim = await lab.running()
    for payload in (b"1", b"2", b"3"):
        await append(lab, claim, payload)
    await lab.complete(claim)
    seen: list[str] = []
    after, closed = "0-0", False
    while not closed:
        page = (await http.get(path(claim, f"/tail?after={after}&limit=2"))).json()
        seen += [frame["fields"]["payload"] for frame in page["frames"]]
        after, closed = page["frames"][-1]["id"], "closed_at" in page
    assert seen == ["1", "2", "3"]


async def test_a_tail_waits_for_the_next_frame(http: httpx.AsyncClient, lab: Lab) -> None:
    claim = await lab.running()
    tail = asyncio.ensure_future(http.get(path(claim, "/tail?block_ms=30000")))
    while not lab.engine.streams.readers:  # noqa: ASYNC110 - the server says nothing else
        await asyncio.sleep(0)
    await append(lab, claim, b"late")
    reply = (await tail).json()
    assert [frame["fields"]["payload"] for frame in reply["frames"]] == ["late"]
    last = reply["frames"][-1]["id"]
    after = (await http.get(path(claim, f"/tail?after={last}"))).json()
    assert (after["frames"], "closed_at" in after) == ([], False)


@pytest.mark.parametrize(
    "query",
    [
        "?limit=0",
        "?limit=1001",
        "?from=-",
        "?to=%2B",
        "?from=",
        "?from=nonsense",
        "/tail?after=start",
        "/tail?after=end",
        "/tail?block_ms=30001",
        "/tail?block_ms=-1",
        "/tail?limit=1001",
        "?limit=5.0",
        "/tail?limit=5.0",
        "/tail?block_ms=5.0",
        "/tail?block_ms=1e3",
    ],
)
async def test_bad_cursors_and_limits_are_400(
    http: httpx.AsyncClient, lab: Lab, query: str
) -> None:
    claim = await lab.running()
    reply = await http.get(path(claim, query))
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]


@pytest.mark.parametrize("index", ["x", "-1", "99999999999", "%D9%A3"])
async def test_a_bad_index_is_400(http: httpx.AsyncClient, lab: Lab, index: str) -> None:
    claim = await lab.running()
    reply = await http.get(f"/v1/executions/{claim.id}/attempts/{index}/stream")
    assert reply.status_code == 400


async def test_an_attempt_that_cannot_exist_is_empty(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 1.2: an index has 32 bits; 1.7: a stream never written to is empty and open."""
    claim = await lab.running()
    for index in (2**31, 2**32 - 1):
        url = f"/v1/executions/{claim.id}/attempts/{index}/stream"
        for each in (url, f"{url}/tail"):
            assert (await http.get(each)).json() == {"frames": [], "count": 0}


async def test_the_stream_of_an_unknown_execution_is_empty(http: httpx.AsyncClient) -> None:
    """server-sdk.md 1.7: even an unknown execution id answers 200 empty."""
    for rest in ("", "/tail", "/tail?block_ms=1"):
        reply = await http.get(f"/v1/executions/{UNKNOWN}/attempts/0/stream{rest}")
        assert (reply.status_code, reply.json()) == (200, {"frames": [], "count": 0})


async def test_an_attempt_that_never_was_is_empty(http: httpx.AsyncClient, lab: Lab) -> None:
    claim = await lab.running()
    await lab.complete(claim)
    reply = await http.get(f"/v1/executions/{claim.id}/attempts/7/stream")
    assert (reply.status_code, reply.json()) == (200, {"frames": [], "count": 0})


async def test_a_tail_sees_an_execution_that_is_created_while_it_waits(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    tail = http.get(f"/v1/executions/{UNKNOWN}/attempts/0/stream/tail?block_ms=200")
    waiting = asyncio.ensure_future(tail)
    await asyncio.sleep(0)
    body = {**EXECUTION, "execution_id": UNKNOWN}
    assert (await http.post("/v1/executions", json=body)).status_code == 201
    await append(lab, await lab.claim_one(), b"first")
    frames = (await waiting).json()["frames"]
    assert [frame["fields"]["payload"] for frame in frames] == ["first"]


async def test_a_summary_or_events_of_an_unknown_execution_are_404(
    http: httpx.AsyncClient,
) -> None:
    bare = UNKNOWN.rpartition(":")[2]
    for id in (UNKNOWN, bare):
        for rest in ("stream", "attempts/0/summary", "summary"):
            reply = await http.get(f"/v1/executions/{id}/{rest}")
            assert reply.status_code == 404
            assert reply.json()["error"] == f"execution not found: {id}"


async def test_every_form_of_an_id_names_a_stream(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 1.2"""
    claim = await lab.running()
    await append(lab, claim, b"x")
    uuid = claim.id.uuid
    for text in (f"{{fp:{claim.id.partition_index}}}:{uuid}", f"{uuid}", uuid.hex, uuid.urn):
        reply = await http.get(f"/v1/executions/{text}/attempts/0/stream")
        assert reply.json()["count"] == 1


@pytest.mark.parametrize(
    "query",
    [
        "attempt=-1",
        "attempt=4294967296",
        "after=nonsense",
        "after=0:start",
        "after=9:1-1&attempt=0",
    ],
)
async def test_a_place_that_no_stream_has_is_400(
    http: httpx.AsyncClient, lab: Lab, query: str
) -> None:
    claim = await lab.running()
    reply = await http.get(f"/v1/executions/{claim.id}/stream?{query}")
    assert reply.status_code == 400


async def test_readers_beyond_the_pool_get_429(
    http: httpx.AsyncClient, context: ServerContext, lab: Lab
) -> None:
    claim = await lab.running()
    context.stream_readers = context.options.max_stream_readers
    reply = await http.get(path(claim))
    assert reply.status_code == 429
    assert (reply.json()["kind"], reply.json()["retryable"]) == ("resource_exhausted", True)
    context.draining.set()
    assert (await http.get(path(claim))).status_code == 503


async def test_the_summary_of_the_newest_attempt(http: httpx.AsyncClient, lab: Lab) -> None:
    """server-sdk.md 1.8"""
    claim = await lab.running()
    url = f"/v1/executions/{claim.id}/summary"
    missing = await http.get(url)
    assert (missing.status_code, missing.json()["error"]) == (404, "not found: stream")
    await append(lab, claim, b'{"done": 1}', mode=StreamMode.SUMMARY)
    assert (await http.get(url)).json()["document"] == {"done": 1}


async def test_a_burst_of_tails_is_served_as_far_as_the_pool_goes(engine: Engine, lab: Lab) -> None:
    """C-T125, server-sdk.md 1.7: a pool of two and five tails; whoever waits keeps its place"""
    options = ServerOptions(max_stream_readers=2)
    context = ServerContext(engine, Authentication(engine, is_open=True), options)
    transport = httpx.ASGITransport(create_app(context))
    claim = await lab.running()
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        url = path(claim, "/tail?block_ms=30000")
        tails = [asyncio.ensure_future(http.get(url)) for _ in range(5)]
        while sum(tail.done() for tail in tails) < 3:
            await asyncio.wait(tails, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
        assert [tail.result().status_code for tail in tails if tail.done()] == [429] * 3
        assert context.stream_readers == 2
        await append(lab, claim, b"one")
        replies = [await tail for tail in tails]
        assert sorted(reply.status_code for reply in replies) == [200, 200, 429, 429, 429]
        assert (context.stream_readers, (await http.get(path(claim))).status_code) == (0, 200)


async def test_the_summary_is_merged(http: httpx.AsyncClient, lab: Lab) -> None:
    claim = await lab.running()
    url = f"/v1/executions/{claim.id}/attempts/0/summary"
    assert (await http.get(url)).status_code == 404
    await append(lab, claim, b'{"a":1,"b":2}', b'{"b":null}', mode=StreamMode.SUMMARY)
    reply = (await http.get(url)).json()
    assert (reply["document"], reply["version"]) == ({"a": 1}, 2)


async def test_server_sent_events_follow_all_attempts(
    http: httpx.AsyncClient, context: ServerContext, lab: Lab
) -> None:
    claim = await lab.running()
    async with (
        listening(context) as address,
        Events.open(f"{address}/v1/executions/{claim.id}/stream") as events,
    ):
        await append(lab, claim, b"one")
        assert (await events.next("frame"))["fields"]["payload"] == "one"
        resume = events.last_id
        await append(lab, claim, b"two")
        assert (await events.next("frame"))["fields"]["payload"] == "two"
        await lab.complete(claim)
        assert (await events.next("closed"))["closed_reason"] == "attempt_success"
        assert (await events.next("end"))["public_state"] == "completed"
        again = Events.open(f"{address}/v1/executions/{claim.id}/stream", last_id=resume)
        async with again as resumed:
            assert (await resumed.next("frame"))["fields"]["payload"] == "two"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?after=nonsense", 400),
        ("?after=0:nonsense", 400),
        ("?after=0:start", 400),
        ("?after=x:1-1", 400),
        ("?after=%D9%A3:1-1", 400),
        ("?attempt=0&after=1:1-1", 400),
        ("?attempt=-1", 400),
        ("?attempt=99999999999", 400),
        ("?attempt=7", 404),
        ("?after=7:1-1", 404),
    ],
)
async def test_what_cannot_be_followed_is_refused_with_a_status(
    http: httpx.AsyncClient, lab: Lab, query: str, status: int
) -> None:
    """Bad input gets the documented 4xx: no stream begins that consists of an error."""
    claim = await lab.running()
    await lab.complete(claim)
    reply = await http.get(f"/v1/executions/{claim.id}/stream{query}")
    assert reply.status_code == status, reply.text
    refused = {"invalid_input", "invalid_parameter"}
    assert reply.json()["code"] in ({"not_found"} if status == 404 else refused)


async def test_a_bad_last_event_id_is_refused_with_a_status(
    http: httpx.AsyncClient, lab: Lab
) -> None:
    claim = await lab.running()
    url, headers = f"/v1/executions/{claim.id}/stream", {"Last-Event-ID": "nonsense"}
    assert (await http.get(url, headers=headers)).status_code == 400
