"""Decisions by link: a waitpoint's token alone shows what is asked and takes the decision."""

from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from flowfabric.core.wait.condition.model import ByName, Single
from flowfabric.core.wait.model import Terms
from flowfabric.core.wait.request import Binding, Wait
from flowfabric.core.wait.token import digest_of
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import ManualClock
from tests.kit.lab import Lab
from tests.kit.signalling import fresh
from tests.kit.waits import suspend

pytestmark = pytest.mark.rules

PLAN = {"deploy": "v2", "to": "production"}
TERMS = Terms(
    about=digest_of(PLAN),
    decisions=("approved", "rejected"),
    approvers=("ann", "bob"),
    value='{"deploy":"v2","to":"production"}',
)
UNKNOWN = "01a1e105-7c1b-7d3e-8a52-3f0c9e4b6d71"


@pytest.fixture
async def asked(engine: Engine, clock: ManualClock) -> dict[str, str]:
    """The three parts of Ann's link to an approval that a run waits for."""
    lab = Lab(engine, clock)
    claim = await lab.running()
    binding = Binding(id=fresh(), key="deploy", terms=TERMS)
    wait = Wait(condition=Single("deploy", ByName("approved")), bindings=(binding,))
    ticket = (await suspend(lab, claim, wait)).primary
    token = await engine.suspensions.issue_token(claim.id, ticket.id, approver="ann")
    return {
        "execution_id": str(claim.id),
        "waitpoint_id": str(ticket.id),
        "token": token.reveal(),
    }


async def test_a_token_shows_what_is_asked(http: httpx.AsyncClient, asked: dict[str, str]) -> None:
    reply = await http.post("/v1/waitpoints/look", json=asked)
    assert reply.status_code == 200
    assert reply.headers["cache-control"] == "no-store"
    shown = reply.json()
    assert (shown["about"], shown["open"], shown["key"]) == (PLAN, True, "deploy")
    assert shown["decisions"] == ["approved", "rejected"]
    assert "token" not in reply.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": ""},
        {"token": "k1:" + "0" * 64},
        {"execution_id": UNKNOWN},
        {"waitpoint_id": UNKNOWN},
        {"token": "", "execution_id": UNKNOWN},
        {"token": "", "waitpoint_id": UNKNOWN},
    ],
)
@pytest.mark.parametrize("route", ["look", "decide"])
async def test_a_wrong_link_reveals_nothing(
    http: httpx.AsyncClient, asked: dict[str, str], wrong: dict[str, str], route: str
) -> None:
    decision = {"decision": "approved"} if route == "decide" else {}
    body = {**asked, **wrong, **decision}
    reply = await http.post(f"/v1/waitpoints/{route}", json=body)
    expected = "missing_token" if wrong.get("token") == "" else "invalid_token"
    assert (reply.status_code, reply.json()["code"]) == (400, expected)


@pytest.mark.parametrize("wrong", [{}, {"execution_id": UNKNOWN}, {"waitpoint_id": UNKNOWN}])
@pytest.mark.parametrize("route", ["look", "decide"])
async def test_a_link_of_an_expired_key_reveals_nothing(
    http: httpx.AsyncClient,
    asked: dict[str, str],
    engine: Engine,
    clock: ManualClock,
    wrong: dict[str, str],
    route: str,
) -> None:
    """INV-21: whether the run or the waitpoint exists or not."""
    await engine.keys.rotate("next", "ab" * 32, grace=0)
    clock.advance(1)
    decision = {"decision": "approved"} if route == "decide" else {}
    reply = await http.post(f"/v1/waitpoints/{route}", json={**asked, **wrong, **decision})
    assert (reply.status_code, reply.json()["code"]) == (400, "token_expired")


async def test_a_decision_resumes_the_run(
    http: httpx.AsyncClient, asked: dict[str, str], engine: Engine
) -> None:
    body = {**asked, "decision": "approved", "about_digest": digest_of(PLAN)}
    reply = await http.post("/v1/waitpoints/decide", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["effect"] == "resume_condition_satisfied"
    again = await http.post("/v1/waitpoints/decide", json=body)
    assert again.json().get("effect") == "duplicate", again.text
    assert (await http.post("/v1/waitpoints/look", json=asked)).json()["open"] is False


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"decision": "maybe"}, 400, "decision_not_allowed"),
        ({"about_digest": digest_of("else")}, 409, "approval_outdated"),
    ],
)
async def test_only_the_terms_allow_a_decision(
    http: httpx.AsyncClient,
    asked: dict[str, str],
    change: dict[str, Any],
    status: int,
    code: str,
) -> None:
    body = {**asked, "decision": "approved", **change}
    reply = await http.post("/v1/waitpoints/decide", json=body)
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert (await http.post("/v1/waitpoints/look", json=asked)).json()["open"] is True


async def test_a_link_carries_a_bound_token(http: httpx.AsyncClient, asked: dict[str, str]) -> None:
    """An approver's link speaks for that approver alone; one for any holder is no approver's."""
    path = f"/v1/executions/{asked['execution_id']}/waitpoints/{asked['waitpoint_id']}/link"
    reply = await http.post(path, json={"approver": "ann", "single_use": True})
    assert reply.status_code == 200, reply.text
    page, _, token = reply.json()["url"].partition("#")
    assert (await http.get(page)).headers["content-type"].startswith("text/html")
    shown = await http.post("/v1/waitpoints/look", json={**asked, "token": unquote(token)})
    assert shown.json()["approver"] == "ann"
    open_link = (await http.post(path, json={})).json()["url"].partition("#")[2]
    body = {**asked, "token": unquote(open_link), "decision": "approved"}
    refused = await http.post("/v1/waitpoints/decide", json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "decision_not_allowed")


@pytest.mark.parametrize("options", [{"approver": ""}, {"expires_in_ms": 0}])
async def test_a_link_is_never_bound_to_less_than_was_said(
    http: httpx.AsyncClient, asked: dict[str, str], options: dict[str, Any]
) -> None:
    """An empty approver is not anyone, and no time at all is not for ever"""
    path = f"/v1/executions/{asked['execution_id']}/waitpoints/{asked['waitpoint_id']}/link"
    reply = await http.post(path, json=options)
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input")


async def test_pages_load_nothing_from_elsewhere(http: httpx.AsyncClient) -> None:
    for path in ("/approve/a/b", "/pages/approve.css", "/pages/approve.js"):
        reply = await http.get(path)
        assert reply.status_code == 200
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "http://" not in reply.text
        assert "https://" not in reply.text
    assert (await http.get("/pages/../app.py")).status_code == 404
    assert (await http.get("/pages/app.py")).status_code == 404
