"""Callers that allow an answer to be a little old share one; the others never get an old one."""

import asyncio
from typing import Any

import httpx
import pytest

from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.server.http import shared_answers

RUNS = "/v1/executions/search"
LIVE = {"cache-control": "max-age=2"}


@pytest.fixture
def reads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each time that the list of runs is read."""
    found: list[object] = []
    read = engine.views.list

    async def counted(query: Any, cursor: Any = None) -> Any:
        found.append(query)
        return await read(query, cursor)

    monkeypatch.setattr(engine.views, "list", counted)
    return found


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time it is for the shared answers."""
    now = [1000.0]
    monkeypatch.setattr(shared_answers, "monotonic", lambda: now[0])
    return now


async def submit(engine: Engine, namespace: str = "default") -> None:
    await engine.executions.submit(Submission(kind="job", payload=b"{}", namespace=namespace))


async def test_ten_that_ask_at_once_cost_one_read(
    engine: Engine, http: httpx.AsyncClient, reads: list[object]
) -> None:
    await submit(engine)
    answers = await asyncio.gather(*(http.get(RUNS, headers=LIVE) for _ in range(10)))
    assert len(reads) == 1
    assert {answer.status_code for answer in answers} == {200}
    assert {len(answer.json()["executions"]) for answer in answers} == {1}
    assert len({answer.headers["x-request-id"] for answer in answers}) == 10


async def test_an_answer_is_shared_as_long_as_the_caller_allows(
    http: httpx.AsyncClient, reads: list[object], moment: list[float]
) -> None:
    assert "age" not in (await http.get(RUNS, headers=LIVE)).headers
    moment[0] += 1.5
    assert (await http.get(RUNS, headers=LIVE)).headers["age"] == "2"
    assert len(reads) == 1
    moment[0] += 0.5
    assert "age" not in (await http.get(RUNS, headers=LIVE)).headers
    assert len(reads) == 2


async def test_five_seconds_are_the_most(
    http: httpx.AsyncClient, reads: list[object], moment: list[float]
) -> None:
    patient = {"cache-control": "max-age=3600"}
    await http.get(RUNS, headers=patient)
    moment[0] += 5
    await http.get(RUNS, headers=patient)
    assert len(reads) == 2


@pytest.mark.parametrize("header", [None, "no-cache", "max-age=0", "s-max-age=5", "max-age=x"])
async def test_who_does_not_allow_it_sees_what_is_true_now(
    engine: Engine, http: httpx.AsyncClient, header: str | None
) -> None:
    await http.get(RUNS, headers=LIVE)
    await submit(engine)
    headers = {} if header is None else {"cache-control": header}
    assert len((await http.get(RUNS, headers=headers)).json()["executions"]) == 1


@pytest.mark.parametrize("end", ["", "/state", "/result"])
async def test_a_long_poll_is_not_shared(engine: Engine, http: httpx.AsyncClient, end: str) -> None:
    """It ends with its own client, and one that waits keeps no other request from its answer."""
    await submit(engine)
    (claim,) = await engine.claims.claim(WorkerIdentity("w", "w1"))
    url = f"/v1/executions/{claim.id}{end}"
    waiting = asyncio.ensure_future(http.get(f"{url}?wait=30s", headers=LIVE))
    assert (await http.get("/healthz")).status_code == 200
    await engine.attempts.complete(claim, b"ready")
    answer = await asyncio.wait_for(waiting, 10)
    assert (answer.status_code, "age" in answer.headers) == (200, False)


async def test_another_question_has_its_own_answer(engine: Engine, http: httpx.AsyncClient) -> None:
    await submit(engine)
    assert len((await http.get(RUNS, headers=LIVE)).json()["executions"]) == 1
    other = await http.get(RUNS, params={"kind": "other"}, headers=LIVE)
    assert other.json()["executions"] == []


async def test_errors_are_not_kept(engine: Engine, http: httpx.AsyncClient) -> None:
    wrong = await http.get(RUNS, params={"cursor": "x"}, headers=LIVE)
    assert (wrong.status_code, "age" in wrong.headers) == (400, False)
    again = await http.get(RUNS, params={"cursor": "x"}, headers=LIVE)
    assert (again.status_code, "age" in again.headers) == (400, False)


async def test_callers_of_other_namespaces_share_nothing(engine: Engine) -> None:
    for namespace in ("mine", "theirs"):
        await submit(engine, namespace)
    app = create_app(ServerContext(engine, Authentication(engine, is_open=False)))
    seen = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as http:
        assert (await http.get(RUNS, headers=LIVE)).status_code == 401
        for namespace in ("mine", "theirs"):
            made = await engine.tokens.create(namespace, ["read"], namespaces=[namespace])
            headers = {"authorization": f"Bearer {made.secret.reveal()}", **LIVE}
            found = (await http.get(RUNS, headers=headers)).json()["executions"]
            seen[namespace] = [each["namespace"] for each in found]
        assert (await http.get(RUNS, headers=LIVE)).status_code == 401
    assert seen == {"mine": ["mine"], "theirs": ["theirs"]}
