"""Delivering webhooks: what reaches a receiver, what is retried, what is given up.

None of it goes through HTTP: a worker that reaches its store through a server delivers nothing, as
the server does so itself."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest
from aiohttp import web

from flowfabric import Fabric, Invalid, Unauthorized, WorkerOptions, verify_webhook
from flowfabric.core.base.errors import Unavailable
from flowfabric.core.execution.submission import Submission
from flowfabric.core.execution.webhook import KIND, LANE, headers_of
from flowfabric.engine.execution import webhooks as dispatching
from flowfabric.engine.execution.webhooks import Webhooks
from flowfabric.store.queries import Query
from flowfabric.worker import webhooks as handler
from tests.kit.damage import spoil
from tests.worker.bench import Bench, end_one, until, working

pytestmark = [pytest.mark.inside, pytest.mark.rules]

SECRET = "a secret of the receiver"
HOUR = 3_600_000
WEEK = 8 * 24 * HOUR


class Receiver:
    """A server on loopback that keeps what it is sent. `answers` are its next statuses."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[int] = []
        self.headers: dict[str, str] = {}
        self.hang: asyncio.Event | None = None
        self.requests: list[tuple[Mapping[str, str], bytes]] = []

    async def handle(self, request: web.Request) -> web.Response:
        if self.hang is not None:
            await self.hang.wait()
        self.requests.append((dict(request.headers), await request.read()))
        status = self.answers.pop(0) if self.answers else 204
        return web.Response(status=status, headers=self.headers)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(body) for _, body in self.requests]

    @property
    def runs(self) -> list[str]:
        return [event["execution_id"] for event in self.events]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/hook", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (address, *_) = runner.addresses
    found.url = f"http://127.0.0.1:{address[1]}/hook"
    yield found
    await runner.cleanup()


async def hook(bench: Bench, receiver: Receiver, name: str = "h", **members: Any) -> None:
    await bench.fabric.webhooks.set(name, receiver.url, **{"secret": SECRET, **members})


async def deliver(bench: Bench) -> int:
    """Everything that can be delivered now; returns how many attempts that were."""
    await bench.engine.webhooks.dispatch()
    return await bench.work(webhooks=True, lanes=("other",))


async def deliveries(bench: Bench, *states: str) -> list[Any]:
    found = (await bench.engine.views.list(Query(kind=KIND))).items
    return [info for info in found if not states or info.state.value in states]


# -- delivering


async def test_a_worker_delivers_what_happens(fabric: Fabric, receiver: Receiver) -> None:
    """From the event to the receiver, which verifies it, with nothing done by hand"""

    @fabric.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    await fabric.webhooks.set("h", receiver.url, families=["completion"], secret=SECRET)
    async with working(fabric, webhooks=True):
        run = await greet.submit("ada")
        assert await run.result(60) == "hello ada"
        await until(lambda: receiver.requests)
    headers, body = receiver.requests[0]
    event = verify_webhook(SECRET, headers, body)
    assert event["execution_id"] == str(run.id)
    assert event["completion"] == {"outcome": "success", "state": "success"}
    assert headers["Content-Type"] == "application/json"
    assert headers["FlowFabric-Event-Id"] == event["cursor"]
    with pytest.raises(Unauthorized):
        verify_webhook("not the secret", headers, body)


async def test_every_event_is_delivered_once(bench: Bench, receiver: Receiver) -> None:
    await end_one(bench)
    await hook(bench, receiver)
    made = [await end_one(bench) for _ in range(5)]
    assert await deliver(bench) == 5
    assert sorted(receiver.runs) == sorted(made)
    assert await deliver(bench) == 0
    done = await deliveries(bench, "completed")
    result = await (await bench.fabric.run(done[0].id)).result()
    assert (result["webhook"], result["status"]) == ("h", 204)


async def test_deliveries_are_not_delivered(bench: Bench, receiver: Receiver) -> None:
    """A webhook for everything would feed itself for ever."""
    await hook(bench, receiver)
    await end_one(bench)
    for _ in range(4):
        await deliver(bench)
        await bench.pass_time(HOUR)
    assert len(receiver.requests) == 1


async def test_filters_keep_other_tenants_out(bench: Bench, receiver: Receiver) -> None:
    """C-T135, I-45"""
    await hook(bench, receiver, namespace="n", families=["completion"], tag="app.tenant=acme")
    mine = await end_one(bench, namespace="n", tags={"app.tenant": "acme"})
    await end_one(bench, namespace="n", tags={"app.tenant": "contoso"})
    await end_one(bench, namespace="m", tags={"app.tenant": "acme"})
    await end_one(bench, namespace="n")
    assert await deliver(bench) == 1
    assert receiver.runs == [mine]
    (run,) = await deliveries(bench)
    assert (run.namespace, run.lane) == ("n", LANE), "its tenant sees it as its own"


async def test_worker_events_are_delivered_too(bench: Bench, receiver: Receiver) -> None:
    await hook(bench, receiver, families=["worker"])
    await bench.engine.workers.register((await bench.fabric.worker()).presence)
    await deliver(bench)
    (event,) = receiver.events
    assert event["worker"]["change"] == "registered"
    assert "execution_id" not in event


async def test_two_webhooks_get_the_same_events(bench: Bench, receiver: Receiver) -> None:
    await hook(bench, receiver, "a")
    await hook(bench, receiver, "b")
    made = await end_one(bench)
    assert await deliver(bench) == 2
    assert receiver.runs == [made, made]


async def test_a_webhook_that_cannot_be_read_delays_no_other(
    bench: Bench, receiver: Receiver, store_url: str
) -> None:
    await hook(bench, receiver, "a")
    await hook(bench, receiver, "b")
    await spoil(store_url, "webhook", "doc", "a", key="name")
    made = await end_one(bench)
    await deliver(bench)
    assert receiver.runs == [made]


async def test_events_that_were_deleted_unread_are_reported(
    bench: Bench, receiver: Receiver
) -> None:
    """F-65: never silently"""
    await hook(bench, receiver)
    await end_one(bench)
    bench.clock.advance(WEEK)
    left = await end_one(bench)
    await bench.engine.sweep.trim()
    await deliver(bench)
    gaps = [event for event in receiver.events if event["kind"] == "gap"]
    assert len(gaps) == 1
    assert [event.get("execution_id") for event in receiver.events if event not in gaps] == [left]


async def test_runs_that_are_kept_for_a_moment_are_delivered(
    bench: Bench, receiver: Receiver
) -> None:
    """F-65: a sweep that comes before the delivery was submitted deletes nothing"""

    @bench.fabric.task(name="brief", retention=0)
    async def brief() -> None: ...

    await hook(bench, receiver)
    run = await brief.with_options(lane="elsewhere").submit()
    await run.cancel()
    bench.clock.advance(HOUR)
    assert await bench.engine.sweep.trim() == 0
    await deliver(bench)
    assert receiver.runs == [str(run.id)]
    assert await bench.engine.sweep.trim() == 1


# -- crashes


async def test_a_crash_before_the_cursor_moves_loses_and_repeats_nothing(
    bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between submitting the deliveries and moving on"""
    await hook(bench, receiver)
    made = [await end_one(bench) for _ in range(3)]

    async def dies(*args: Any) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(Webhooks, "_advance", dies)
        with pytest.raises(asyncio.CancelledError):
            await bench.engine.webhooks.dispatch()
    assert len(await deliveries(bench)) == 3
    made.append(await end_one(bench))
    await deliver(bench)
    assert sorted(receiver.runs) == sorted(made)


async def test_a_crash_before_the_deliveries_are_submitted_loses_nothing(
    bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hook(bench, receiver)
    made = await end_one(bench)

    async def fails(*args: Any) -> None:
        raise Unavailable("the store is gone")

    with monkeypatch.context() as patch:
        patch.setattr(bench.engine.executions, "submit_many", fails)
        await bench.engine.webhooks.dispatch()
    assert await deliveries(bench) == []
    await deliver(bench)
    assert receiver.runs == [made]


async def test_two_processes_with_the_duty_deliver_once(
    bench: Bench, receiver: Receiver, store_url: str
) -> None:
    """The duty may pass from one to the other at any moment."""
    await hook(bench, receiver)
    made = [await end_one(bench) for _ in range(5)]
    async with Fabric(store_url, clock=bench.clock) as other:
        engine = await other.engine()
        await asyncio.gather(bench.engine.webhooks.dispatch(), engine.webhooks.dispatch())
    await deliver(bench)
    assert sorted(receiver.runs) == sorted(made)


async def test_a_worker_that_dies_before_it_reports_delivers_again(
    bench: Bench, receiver: Receiver
) -> None:
    """At least once: the id of the event stays the same, so that receivers can tell."""
    await hook(bench, receiver)
    await end_one(bench)
    await bench.engine.webhooks.dispatch()
    worker = await bench.fabric.worker()
    (claim,) = await bench.engine.claims.claim(worker.identity, limit=1, lanes=[LANE])
    bench.clock.advance(claim.ttl)
    await bench.engine.sweep.once()
    await deliver(bench)
    (headers, body) = receiver.requests[0]
    assert headers["FlowFabric-Event-Id"] == msgspec.json.decode(body)["cursor"]


# -- answers


@pytest.mark.parametrize("status", [500, 503, 599, 429])
async def test_a_receiver_in_trouble_is_tried_again(
    bench: Bench, receiver: Receiver, status: int
) -> None:
    await hook(bench, receiver)
    made = await end_one(bench)
    receiver.answers = [status, status]
    await deliver(bench)
    assert len(receiver.requests) == 1, "after a pause"
    for _ in range(2):
        await bench.pass_time(HOUR)
        await deliver(bench)
    assert receiver.runs == [made] * 3
    ids = {headers["FlowFabric-Event-Id"] for headers, _ in receiver.requests}
    times = [headers["FlowFabric-Timestamp"] for headers, _ in receiver.requests]
    assert len(ids) == 1
    assert times == sorted(set(times)), "each attempt is signed at its own time"
    assert len(await deliveries(bench, "completed")) == 1


async def test_a_receiver_may_say_when(bench: Bench, receiver: Receiver) -> None:
    await hook(bench, receiver)
    await end_one(bench)
    receiver.answers, receiver.headers = [429], {"Retry-After": "120"}
    await deliver(bench)
    await bench.pass_time(119_000)
    assert await deliver(bench) == 0
    await bench.pass_time(1_000)
    assert await deliver(bench) == 1


@pytest.mark.parametrize("text", ["soon", "-1", "", "²", "9" * 30])
async def test_nonsense_about_when_is_ignored_or_bounded(
    bench: Bench, receiver: Receiver, text: str
) -> None:
    assert (handler._seconds(text) or 0) <= handler.MAX_RETRY_AFTER


@pytest.mark.parametrize("status", [400, 401, 404, 422, 301, 302, 307, 308])
async def test_a_refusal_is_final(bench: Bench, receiver: Receiver, status: int) -> None:
    """Other 4xx are not retried, and redirects are not followed."""
    await hook(bench, receiver)
    await end_one(bench)
    receiver.answers, receiver.headers = [status], {"Location": receiver.url}
    await deliver(bench)
    await bench.pass_time(HOUR)
    await deliver(bench)
    assert len(receiver.requests) == 1
    (failed,) = await deliveries(bench, "failed")
    assert failed is not None
    assert not (await bench.fabric.webhooks.get("h")).paused


async def test_a_receiver_that_is_gone_pauses_the_webhook(bench: Bench, receiver: Receiver) -> None:
    """410: nothing more is sent until somebody has looked, and nothing is lost meanwhile"""
    await hook(bench, receiver)
    first = await end_one(bench)
    receiver.answers = [410]
    await deliver(bench)
    found = await bench.fabric.webhooks.get("h")
    assert (found.paused, found.reason) == (True, f"{receiver.url} answered 410")
    later = [await end_one(bench) for _ in range(2)]
    await deliver(bench)
    assert receiver.runs == [first]
    await bench.fabric.webhooks.resume("h")
    await deliver(bench)
    assert sorted(receiver.runs[1:]) == sorted(later)


async def test_what_is_under_way_waits_while_the_webhook_is_paused(
    bench: Bench, receiver: Receiver
) -> None:
    """As long as it takes, and no retry is used"""
    await hook(bench, receiver)
    made = await end_one(bench)
    await bench.engine.webhooks.dispatch()
    await bench.fabric.webhooks.pause("h", reason="maintenance")
    for _ in range(30):
        await deliver(bench)
        await bench.pass_time(60_000)
    assert receiver.requests == []
    await bench.fabric.webhooks.resume("h")
    await deliver(bench)
    assert receiver.runs == [made]
    (done,) = await deliveries(bench, "completed")
    attempts = await (await bench.fabric.run(done.id)).attempts()
    assert len(attempts) == 1


async def test_a_webhook_that_was_deleted_sends_nothing(bench: Bench, receiver: Receiver) -> None:
    """Also if there is another one of its name by now"""
    await hook(bench, receiver)
    await end_one(bench)
    await bench.engine.webhooks.dispatch()
    await bench.fabric.webhooks.delete("h")
    bench.clock.advance(1)
    await hook(bench, receiver)
    assert await deliver(bench) == 1
    assert receiver.requests == []
    (done,) = await deliveries(bench, "completed")
    assert (await (await bench.fabric.run(done.id)).result())["status"] is None


async def test_a_url_without_a_receiver_is_tried_again(bench: Bench, receiver: Receiver) -> None:
    await bench.fabric.webhooks.set("h", "http://127.0.0.1:1/hook", secret=SECRET)
    made = await end_one(bench)
    await deliver(bench)
    assert len(await deliveries(bench, "delayed")) == 1
    await hook(bench, receiver)
    await bench.pass_time(HOUR)
    await deliver(bench)
    assert receiver.runs == [made]


async def test_a_receiver_that_does_not_answer_is_tried_again(
    bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "TIMEOUT", 0.05)
    await hook(bench, receiver)
    made = await end_one(bench)
    receiver.hang = asyncio.Event()
    await deliver(bench)
    receiver.hang.set()
    receiver.hang = None
    assert len(await deliveries(bench, "delayed")) == 1
    monkeypatch.undo()
    await bench.pass_time(HOUR)
    await deliver(bench)
    assert made in receiver.runs


async def test_a_delivery_that_never_succeeds_is_given_up(bench: Bench, receiver: Receiver) -> None:
    await hook(bench, receiver)
    await end_one(bench)
    receiver.answers = [500] * 99
    for _ in range(20):
        await deliver(bench)
        await bench.pass_time(HOUR)
    assert len(receiver.requests) == 16
    assert len(await deliveries(bench, "failed")) == 1


async def test_a_delivery_that_the_engine_did_not_make_is_not_sent(
    bench: Bench, receiver: Receiver
) -> None:
    """A caller who may submit runs must not have anything signed in the name of a webhook."""
    await hook(bench, receiver)
    made_at = (await bench.engine.webhooks.get("h")).created_at
    call = {"webhook": "h", "made_at": made_at, "event_id": "x", "body": "{}"}
    for seal in ({}, {"seal": "0" * 64}):
        payload = msgspec.json.encode({**call, **seal})
        await bench.engine.executions.submit(Submission(kind=KIND, lane=LANE, payload=payload))
    await deliver(bench)
    assert receiver.requests == []
    assert len(await deliveries(bench, "failed")) == 2


# -- who delivers


async def test_only_a_worker_with_webhooks_delivers(bench: Bench, receiver: Receiver) -> None:
    await hook(bench, receiver)
    await end_one(bench)
    await bench.engine.webhooks.dispatch()
    assert await bench.work() == 0, "although it serves every lane"
    assert await deliver(bench) == 1


async def test_a_worker_of_some_lanes_serves_that_of_deliveries(bench: Bench) -> None:
    for lanes in (("a", "b"), {"a": 2}):
        worker = await bench.fabric.worker(_options(lanes))
        assert LANE in worker.options.lanes
        assert "a" in worker.options.lanes
    assert not (await bench.fabric.worker(_options(()))).options.lanes, "all of them"


def _options(lanes: Any) -> WorkerOptions:
    return WorkerOptions(webhooks=True, lanes=lanes)


async def test_an_outage_is_logged_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for pause in ("LOOK_EVERY", "REST"):
        monkeypatch.setattr(dispatching, pause, 0.0)
    engine, over = await bench.fabric.engine(), asyncio.Event()
    answers = ["away", "away", "back", "away", "away"]

    async def dispatch() -> bool:
        if len(answers) == 1:
            over.set()
        if answers.pop(0) == "away":
            raise Unavailable("the store is away")
        return False

    monkeypatch.setattr(engine.webhooks, "dispatch", dispatch)
    looking = asyncio.create_task(engine.webhooks.run(lambda: True))
    await over.wait()
    looking.cancel()
    assert [each.message for each in caplog.records if "webhooks" in each.message] == [
        "looking for webhooks failed; retrying: unavailable: the store is away"
    ] * 2


async def test_without_the_library_a_worker_says_what_is_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(Invalid, match="extra `http`"):
        await bench.fabric.worker(_options(()))


async def test_a_trial_tells_whether_the_receiver_listens(bench: Bench, receiver: Receiver) -> None:
    await hook(bench, receiver)
    run = await bench.fabric.webhooks.test("h")
    await deliver(bench)
    (event,) = receiver.events
    assert (event["kind"], event["webhook"]) == ("test", "h")
    assert (await run.result())["status"] == 204
    assert await deliver(bench) == 0


async def test_a_new_secret_signs_what_is_under_way(bench: Bench, receiver: Receiver) -> None:
    await hook(bench, receiver)
    await end_one(bench)
    await bench.engine.webhooks.dispatch()
    await hook(bench, receiver, secret="another secret of it")
    await deliver(bench)
    headers, body = receiver.requests[0]
    at = int(headers["FlowFabric-Timestamp"])
    expected = headers_of("another secret of it", "", at, body)
    assert headers["FlowFabric-Signature"] == expected["FlowFabric-Signature"]
