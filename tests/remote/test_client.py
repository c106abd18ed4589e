"""The client: requests that are shared, answers that are lost, servers that are away."""

import asyncio
import ssl
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    Forbidden,
    Invalid,
    NotTerminal,
    Overloaded,
    Unavailable,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.frame import NewFrame
from flowfabric.core.execution.model import Failure, Progress, WorkerIdentity
from flowfabric.core.execution.submission import Duplicate, Submission, Submitted
from flowfabric.engine.engine import Engine
from flowfabric.engine.service_calls import PrepareNoOp
from flowfabric.remote import client as module
from flowfabric.remote.client import RemoteClient
from flowfabric.remote.connection import AnswerLost, Connection
from flowfabric.remote.engine import RemoteEngine
from flowfabric.remote.scalars import Misfit
from flowfabric.remote.wire import CallRequest, RemoteCall, read_reply, read_request, write_request
from flowfabric.store.clock import ManualClock
from flowfabric.store.hints import Topic
from flowfabric.store.queries import Query
from tests.kit.served import EVERYONE, EngineApp, caller_named, served

W1 = WorkerIdentity("w1", "w1-a")
MINE = UUID(int=77)


async def submitted(engine: Engine, **members: Any) -> ExecutionId:
    answer = await engine.executions.submit(Submission(kind="job", **members))
    assert isinstance(answer, Submitted)
    return answer.id


async def test_service_calls_reach_the_engine_of_the_server(remote: Engine, inside: Engine) -> None:
    await remote.ping()
    assert await remote.capabilities() == await inside.capabilities()
    assert await remote.prepare() == PrepareNoOp()
    await inside.store.close()
    with pytest.raises(Unavailable):
        await remote.ping()


async def test_a_client_that_will_stop_asks_for_no_new_work(remote: Engine, inside: Engine) -> None:
    id = await submitted(remote)
    (claim,) = await remote.claims.claim(W1)
    waiting = asyncio.ensure_future(remote.claims.claim(W1, max_wait=600))
    await asyncio.sleep(0)
    with pytest.raises(Invalid):
        await remote.shutdown_prepare("soon")
    assert await remote.shutdown_prepare(60) is True
    async with asyncio.timeout(60):
        assert await waiting == []
    with pytest.raises(Unavailable):
        await submitted(remote)
    with pytest.raises(Unavailable):
        await remote.claims.claim(W1)
    with pytest.raises(Unavailable):
        await remote.flows.create("build")
    with pytest.raises(Unavailable):
        await remote.schedules.trigger("nightly")
    with pytest.raises(Unavailable):
        await remote.webhooks.test("audit")
    await remote.attempts.complete(claim, b"done")
    assert await remote.views.state(id) == "completed"
    await submitted(inside)  # the server and its other clients work on


async def test_a_tenant_may_ask_whether_the_engine_is_there(tenant: Engine, inside: Engine) -> None:
    await tenant.ping()
    assert await tenant.capabilities() == await inside.capabilities()


async def test_attempts_arrive_with_what_each_has_reported(remote: Engine, inside: Engine) -> None:
    id = await submitted(remote)
    for percent in (10, 20):
        (claim,) = await remote.claims.claim(W1, ttl=Millis(1000))
        await remote.attempts.progress(claim, percent, None)
        await remote.attempts.fail(claim, Failure("boom"))
        await remote.executions.replay(id)
    attempts = await remote.views.attempts(id)
    assert attempts == await inside.views.attempts(id)
    assert [attempt.progress for attempt in attempts] == [Progress(10), Progress(20)]


# -- sharing requests


async def test_calls_of_the_same_moment_share_a_request(remote: Engine, app: EngineApp) -> None:
    before = app.requests
    await asyncio.gather(*(submitted(remote) for _ in range(300)))
    assert app.requests - before <= 3


async def test_many_submissions_are_sent_in_several_requests(
    remote: Engine, app: EngineApp, inside: Engine
) -> None:
    before = app.requests
    large = [Submission(kind="job", payload=b"x" * (900 << 10)) for _ in range(9)]
    answers = await remote.executions.submit_many([*large, *[Submission(kind="job")] * 1200])
    assert len(answers) == 1209
    assert app.requests - before == 5
    with pytest.raises(Invalid):
        await remote.executions.submit_many([Submission(kind="ok"), Submission(kind="")])
    with pytest.raises(Invalid):
        await remote.executions.submit_many(5)  # type: ignore[arg-type]
    assert (await inside.views.list(Query(kind="ok"))).items == ()


async def test_each_call_of_a_request_has_its_own_answer(remote: Engine) -> None:
    id = await submitted(remote)
    (claim,) = await remote.claims.claim(W1)
    answers = await asyncio.gather(
        remote.attempts.complete(claim, b"1"),
        remote.attempts.complete("no handle"),
        remote.views.state(id),
        return_exceptions=True,
    )
    assert [type(each).__name__ for each in answers[:2]] == ["Completed", "InvalidHandle"]


async def test_many_that_wait_share_a_few_requests(remote: Engine, app: EngineApp) -> None:
    ids = [await submitted(remote) for _ in range(50)]
    before = app.requests
    waits = []
    for id in ids:  # one after the other, each in a turn of its own
        waits.append(asyncio.ensure_future(remote.views.wait(id)))
        await asyncio.sleep(0.002)
    assert app.requests - before <= 50
    claims = await remote.claims.claim(W1, limit=50)
    await asyncio.gather(*(remote.attempts.complete(claim, b"1") for claim in claims))
    endings = await asyncio.wait_for(asyncio.gather(*waits), 60)
    assert {ending.result for ending in endings} == {b"1"}


async def test_a_wait_ends_with_its_timeout(remote: Engine) -> None:
    id = await submitted(remote)
    with pytest.raises(TimeoutError):
        await remote.views.wait(id, timeout=0.05)
    with pytest.raises(Invalid):
        await remote.views.wait(id, timeout="soon")


async def test_a_wait_that_takes_long_is_asked_again(
    remote: Engine, app: EngineApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.02)
    id = await submitted(remote)
    (claim,) = await remote.claims.claim(W1)
    before = app.requests
    wait = asyncio.ensure_future(remote.views.wait(id))
    while app.requests < before + 4:  # noqa: ASYNC110 - until it was asked again
        await asyncio.sleep(0.01)
    await remote.attempts.complete(claim, b"1")
    assert (await wait).result == b"1"


# -- answers that are lost


async def test_a_submission_whose_answer_is_lost_exists_once(
    remote: Engine, inside: Engine, app: EngineApp
) -> None:
    app.lose = 2
    answer = await remote.executions.submit(Submission(kind="job"))
    assert isinstance(answer, Submitted)
    app.lose = 1
    many = await remote.executions.submit_many([Submission(kind="job") for _ in range(3)])
    assert all(isinstance(each, Submitted) for each in many)
    assert len((await inside.views.list(Query())).items) == 4


async def test_a_key_that_another_run_has_is_a_duplicate(remote: Engine) -> None:
    id = await submitted(remote, key="k")
    assert await remote.executions.submit(Submission(kind="job", key="k")) == Duplicate(id)


async def test_a_claim_whose_answer_is_lost_gets_what_it_took(
    remote: Engine, inside: Engine, app: EngineApp
) -> None:
    ids = {await submitted(remote) for _ in range(4)}
    app.lose = 1
    claims = await remote.claims.claim(W1, limit=3)
    assert len(claims) == 3
    assert {claim.id for claim in claims} < ids
    assert len(await inside.claims.held_by(W1.instance)) == 3
    for claim in claims:
        await remote.attempts.complete(claim)


async def test_a_weighted_claim_whose_answer_is_lost_gets_what_it_took(
    remote: Engine, inside: Engine, app: EngineApp
) -> None:
    for lane in ("a", "b"):
        for _ in range(3):
            await submitted(remote, lane=lane)
    app.lose = 1
    claims = await remote.claims.claim(W1, limit=4, lanes={"a": 3, "b": 1})
    assert len(claims) == 4
    assert len(await inside.claims.held_by(W1.instance)) == 4


async def test_what_a_claim_took_that_was_given_up_is_handed_back(
    remote: Engine, inside: Engine, app: EngineApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote._client, "_retry_for", 0.0)  # type: ignore[attr-defined]
    await submitted(remote)
    app.lose = 1
    with pytest.raises(Unavailable):
        await remote.claims.claim(W1)
    assert len(await inside.claims.held_by(W1.instance)) == 1
    await remote.claims.recover()
    assert await inside.claims.held_by(W1.instance) == []
    (claim,) = await remote.claims.claim(W1)
    assert claim.attempt == 0


async def test_a_server_that_goes_away_after_a_lost_answer_may_have_done_it(
    remote: Engine, inside: Engine, app: EngineApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between the claim and its reply: what it took is found when it is back."""
    monkeypatch.setattr(remote._client, "_retry_for", 0.1)  # type: ignore[attr-defined]
    await submitted(remote)
    app.lose, app.refuse_after_loss = 1, 503
    with pytest.raises(AnswerLost):
        await remote.claims.claim(W1)
    assert len(await inside.claims.held_by(W1.instance)) == 1
    app.refuse = None
    (claim,) = await remote.claims.claim(W1)
    assert claim.attempt == 0


async def test_a_cancelled_claim_hands_back_what_it_took(remote: Engine, inside: Engine) -> None:
    id = await submitted(remote)
    claiming = asyncio.ensure_future(remote.claims.claim(W1))
    await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await remote.claims.drain()
    assert await inside.claims.held_by(W1.instance) == []
    assert (await inside.views.state(id)) == "waiting"


async def test_an_operation_that_must_not_be_repeated_is_done_once(
    remote: Engine, inside: Engine, app: EngineApp
) -> None:
    id = await submitted(remote)
    (claim,) = await remote.claims.claim(W1)
    await remote.attempts.fail(claim, Failure("no", "permanent"))
    app.lose = 1
    await remote.executions.replay(id)  # the server remembers its answer
    with pytest.raises(NotTerminal):
        await remote.executions.replay(id)


async def test_a_server_that_does_not_know_the_first_try_does_not_repeat_it(
    remote: Engine, inside: Engine, app: EngineApp
) -> None:
    id = await submitted(remote)
    (claim,) = await remote.claims.claim(W1)
    await remote.attempts.fail(claim, Failure("no", "permanent"))
    call = RemoteCall(MINE, "executions.replay", {"id": id.replace("x", "x")})
    body = write_request(CallRequest([call], tried=True))
    reply = read_reply(await app.operations.answer(EVERYONE, body))
    error = reply.answers[0].error  # type: ignore[union-attr]
    assert isinstance(error, Unavailable)
    assert "not known" in str(error)
    assert await inside.views.state(id) == "failed"


async def test_an_ending_whose_answer_is_lost_is_the_first_one(
    remote: Engine, inside: Engine, app: EngineApp
) -> None:
    id = await submitted(remote)
    (claim,) = await remote.claims.claim(W1)
    app.lose = 1
    await remote.attempts.complete(claim, b"1")
    assert await inside.views.result(id) == b"1"


async def test_frames_whose_answer_is_lost_are_appended_once(
    remote: Engine, inside: Engine, app: EngineApp
) -> None:
    id = await submitted(remote)
    (claim,) = await remote.claims.claim(W1)
    app.lose = 1
    await remote.streams.append(claim, NewFrame(payload=b"x"))
    assert (await inside.streams.read(id, 0)).frame_count == 1


async def test_a_test_of_a_webhook_whose_answer_is_lost_is_made_once(
    remote: Engine, inside: Engine, app: EngineApp
) -> None:
    await inside.webhooks.put("hook", "https://example.org/")
    app.lose = 1
    await remote.webhooks.test("hook")
    assert len((await inside.views.list(Query())).items) == 1


async def test_a_worker_can_report_through_another_server(
    remote: Engine, inside: Engine, clock: ManualClock
) -> None:
    """A server that did not hand out the claim loads the run."""
    await submitted(remote)
    (claim,) = await remote.claims.claim(W1)
    async with served(EngineApp(inside)) as url:
        other = await RemoteEngine.open(url, None, clock)
        engine = other.as_engine()
        assert (await engine.claims.renew(claim)).epoch == claim.epoch
        watched = await engine.claims.watch(claim, alone=True)
        assert watched.payload == claim.payload
        await engine.attempts.complete(claim, b"1")
        await other.close()
    assert await inside.views.result(claim.id) == b"1"


# -- servers that are away


async def test_a_server_that_is_away_is_unavailable(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_FOR", 0.0)
    client = RemoteClient(Connection("http://127.0.0.1:9", None), clock, retry_for=0.1)
    with pytest.raises(Unavailable, match=r"cannot be reached: Connection refused$"):
        await client.greet()
    await client.close()


async def test_a_refused_certificate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(*args: Any, **options: Any) -> Any:
        refused = ssl.SSLCertVerificationError(1, "self-signed certificate")
        key: Any = None
        error = aiohttp.ClientConnectorCertificateError(key, refused)
        error.__dict__.pop("_os_error", None)  # before aiohttp 3.14 it has none
        raise error

    monkeypatch.setattr(aiohttp.ClientSession, "post", post)
    connection = Connection("https://127.0.0.1:9", None)
    with pytest.raises(Unavailable, match=r"cannot be reached: self-signed certificate$"):
        await connection.post(b"", 1.0)
    await connection.close()


async def test_a_draining_server_is_asked_again(remote: Engine, app: EngineApp) -> None:
    app.refuse = 503
    work = asyncio.ensure_future(submitted(remote))
    before = app.requests
    while app.requests < before + 2:  # noqa: ASYNC110 - until it was refused twice
        await asyncio.sleep(0.01)
    app.refuse = None
    assert await work


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, Forbidden),
        (403, Forbidden),
        (404, Invalid),
        (408, Unavailable),
        (413, Invalid),
        (429, Overloaded),
        (500, FlowFabricError),
        (502, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
    ],
)
async def test_what_a_server_refuses_is_an_error_of_its_family(
    client: RemoteClient, app: EngineApp, status: int, error: type[FlowFabricError]
) -> None:
    client._retry_for = 0.0
    app.refuse = status
    with pytest.raises(error):
        await client.call("views.state", (str(ExecutionId.solo("x", MINE)),), {})


async def test_a_token_that_the_server_does_not_know_is_refused(
    app: EngineApp, url: str, clock: ManualClock
) -> None:
    app.callers = {"right": caller_named()}
    advice = r": give token=…, or set FLOWFABRIC_TOKEN"
    with pytest.raises(Forbidden, match=f"does not know the token{advice}"):
        await RemoteEngine.open(url, "wrong", clock)
    with pytest.raises(Forbidden, match=f"wants an access token{advice}"):
        await RemoteEngine.open(url, None, clock)
    await (await RemoteEngine.open(url, "right", clock)).close()


async def test_a_server_is_no_place_for_other_answers(clock: ManualClock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    async with served(app) as url:
        with pytest.raises(Invalid):
            await RemoteEngine.open(url, None, clock)


# -- clock and hints


async def test_the_clock_of_the_server_is_followed(url: str, clock: ManualClock) -> None:
    remote = await RemoteEngine.open(url, None)
    assert abs(remote.now() - clock.now()) < 60_000
    await remote.close()


async def test_a_hint_of_the_server_wakes_those_that_wait(remote: Engine, inside: Engine) -> None:
    seen = remote.hints.count
    await asyncio.wait_for(remote.hints.wait(10, seen), 60)  # it listens
    seen = remote.hints.count
    woken = asyncio.ensure_future(remote.hints.wait(10, seen, Topic.SIGNALS))
    await asyncio.sleep(0)
    inside.hints.send(Topic.SIGNALS)
    assert await asyncio.wait_for(woken, 60)
    assert remote.hints.since(seen) == Topic.SIGNALS


async def test_without_hints_everything_is_looked_at_now_and_then(
    remote: Engine, app: EngineApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.remote.engine.RECONNECT_AFTER", 0.01)
    app.refuse = 503
    for _ in range(3):
        assert await remote.hints.wait(10, remote.hints.count, Topic.WORK)


# -- requests that are none


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"{}",
        b"\x93\x90\xc2",
        b"\x93\x91\x01\xc2\xc0",
        b"\x93\x90\x01\xc0",
    ],
)
async def test_a_body_that_is_no_request_is_refused(app: EngineApp, body: bytes) -> None:
    with pytest.raises(Misfit):
        await app.operations.answer(EVERYONE, body)


async def test_too_many_calls_are_refused() -> None:
    calls = [RemoteCall(MINE, "events.tail", {})] * 501
    with pytest.raises(Misfit):
        read_request(write_request(CallRequest(calls)))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("executions.drain", {}),
        ("store.load", {"uuids": []}),
        ("views.state", {}),
        ("views.state", {"id": 5}),
        ("views.state", {"id": "x", "more": 1}),
        ("suspensions.token_again", {"uuid": b"x"}),
        ("claims.claim", {"worker": {"id": "w"}}),
        ("attempts.complete", {"owned": {"": "Claim", "snapshot": {}}}),
        ("attempts.complete", {"owned": {"": "Snapshot"}}),
    ],
)
async def test_a_call_that_is_none_is_answered_with_invalid(
    app: EngineApp, name: str, arguments: dict[str, Any]
) -> None:
    body = write_request(CallRequest([RemoteCall(MINE, name, arguments)]))
    reply = read_reply(await app.operations.answer(EVERYONE, body))
    assert isinstance(reply.answers[0].error, Invalid)  # type: ignore[union-attr]


async def test_a_fault_of_the_server_says_nothing_of_it(
    remote: Engine, inside: Engine, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async def fails(id: str) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(inside.views, "state", fails)
    with pytest.raises(FlowFabricError) as caught:
        await remote.views.state("x")
    assert "secret" not in str(caught.value)
    assert "views.state failed" in caplog.text


async def test_what_needs_the_database_is_refused(remote: Engine) -> None:
    with pytest.raises(Invalid, match="needs the database"):
        _ = remote.store
    with pytest.raises(Invalid, match="needs the database"):
        _ = remote.attempts.seal
    with pytest.raises(AttributeError):
        _ = remote.attempts.invented  # type: ignore[attr-defined]
    with pytest.raises(Invalid, match="transaction"):
        _ = remote.identity


async def test_a_closed_engine_says_so(url: str, clock: ManualClock) -> None:
    remote = await RemoteEngine.open(url, None, clock)
    await remote.close()
    with pytest.raises(Invalid, match="closed"):
        await remote.as_engine().views.state("x")


@pytest.mark.parametrize("url", ["http://", "https://u:p@host", "http://host/?a=b", "http://h#x"])
def test_the_url_of_a_server_is_checked(url: str) -> None:
    with pytest.raises(Invalid):
        Connection(url, None)


async def test_a_lease_of_another_epoch_is_refused_by_its_rule(
    remote: Engine, inside: Engine, clock: ManualClock
) -> None:
    await submitted(remote)
    (old,) = await remote.claims.claim(W1, ttl=Millis(1000))
    clock.advance(2000)
    await inside.sweep.once()
    (new,) = await remote.claims.claim(WorkerIdentity("w2", "w2-a"))
    for owned in (old,):
        with pytest.raises(FlowFabricError) as caught:
            await remote.attempts.complete(owned, b"late")
        assert caught.value.code in ("stale_lease", "lease_expired")
        with pytest.raises(FlowFabricError):
            await remote.claims.renew(owned)
        with pytest.raises(FlowFabricError):
            await remote.claims.watch(owned, alone=True)
    await remote.attempts.complete(new, b"1")
    assert await inside.views.result(new.id) == b"1"
