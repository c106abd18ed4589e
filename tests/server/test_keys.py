"""Rotating the waitpoint secret over HTTP (server-sdk.md 1.7, execution.md 3.43, E-T310)."""

import asyncio
import logging
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from flowfabric.core.base.errors import StoreFull
from flowfabric.core.wait.keyring import Noop
from flowfabric.engine.engine import Engine
from tests.kit.http import error_of, padded
from tests.kit.lab import Lab
from tests.server.test_waitpoints import signal, suspended

pytestmark = pytest.mark.rules

URL = "/v1/admin/rotate-waitpoint-secret"
SECRET = "ab" * 32
ROTATE = {"new_kid": "k2", "new_secret_hex": SECRET}


async def test_a_rotation_repeats(http: httpx.AsyncClient, engine: Engine) -> None:
    for _ in range(2):
        reply = await http.post(URL, json=ROTATE)
        expected = {"rotated": 256, "failed": [], "new_kid": "k2"}
        assert (reply.status_code, reply.json()) == (200, expected)
    assert (await engine.keys.kids()).current_kid == "k2"


async def test_tokens_of_the_previous_key_stay_valid(http: httpx.AsyncClient, lab: Lab) -> None:
    id, ticket = await suspended(http, lab)
    await http.post(URL, json=ROTATE)
    reply = await http.post(f"/v1/executions/{id}/signal", json=signal(ticket))
    assert reply.status_code == 200


async def test_another_secret_for_a_known_kid_fails_everywhere(http: httpx.AsyncClient) -> None:
    await http.post(URL, json=ROTATE)
    body = error_of(await http.post(URL, json={**ROTATE, "new_secret_hex": "cd" * 32}), 400)
    assert body["code"] == "rotation_conflict"
    assert "cdcd" not in str(body)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"new_kid": ""}, "invalid_kid"),
        ({"new_kid": "a:b"}, "invalid_kid"),
        ({"new_secret_hex": ""}, "invalid_secret_hex"),
        ({"new_secret_hex": "abc"}, "invalid_secret_hex"),
        ({"new_secret_hex": "zz"}, "invalid_secret_hex"),
    ],
)
async def test_bad_input_is_400(
    http: httpx.AsyncClient, engine: Engine, change: dict[str, str], code: str
) -> None:
    assert error_of(await http.post(URL, json={**ROTATE, **change}), 400)["code"] == code
    assert (await engine.keys.kids()).current_kid is None


@pytest.mark.parametrize("body", [{}, {"new_kid": "k"}, {"new_kid": 1, "new_secret_hex": "ab"}])
async def test_a_wrong_body_is_422(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    error_of(await http.post(URL, json=body), 422)


async def test_one_rotation_at_a_time(
    http: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def rotate(kid: str, secret: str, **options: Any) -> Noop:
        begun.set()
        await go_on.wait()
        return Noop(kid)

    monkeypatch.setattr(engine.keys, "rotate", rotate)
    first = asyncio.create_task(http.post(URL, json=ROTATE))
    await begun.wait()
    body = error_of(await http.post(URL, json=ROTATE), 429)
    assert body["retryable"] is True
    assert "kind" not in body
    go_on.set()
    assert (await first).status_code == 200
    assert (await http.post(URL, json=ROTATE)).status_code == 200


async def test_a_rotation_that_takes_too_long_is_504(
    http: httpx.AsyncClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def rotate(kid: str, secret: str, **options: Any) -> Noop:
        await asyncio.Event().wait()
        return Noop(kid)

    monkeypatch.setattr(engine.keys, "rotate", rotate)
    monkeypatch.setattr("flowfabric.server.wait.keys.ROTATION_TIME", 0.0)
    with caplog.at_level(logging.INFO, "flowfabric.server.audit"):
        error_of(await http.post(URL, json=ROTATE), 504)
    assert _events(caplog) == ["waitpoint_hmac_rotation_timeout_http_504"]


async def test_a_rotation_that_the_store_refuses_is_recorded(
    http: httpx.AsyncClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """server-sdk.md 2.5: a rotation that failed is a security event, whatever the reason."""
    monkeypatch.setattr(engine.keys, "rotate", AsyncMock(side_effect=StoreFull("no space left")))
    with caplog.at_level(logging.INFO, "flowfabric.server.audit"):
        error_of(await http.post(URL, json=ROTATE), 503)
    assert _events(caplog) == ["waitpoint_hmac_rotation_failed"]
    assert "(store_full)" in _audited(caplog)[0].getMessage()


async def test_a_rotation_is_recorded_without_the_secret(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """server-sdk.md 2.5: security events are records of their own."""
    with caplog.at_level(logging.INFO, "flowfabric.server.audit"):
        await http.post(URL, json=ROTATE)
        await http.post(URL, json={**ROTATE, "new_secret_hex": "cd" * 32})
    assert _events(caplog) == [
        "waitpoint_hmac_rotation_complete",
        "waitpoint_hmac_rotation_failed",
    ]
    for record in _audited(caplog):
        assert "k2" in record.getMessage()
        assert "anonymous" in record.getMessage()
    assert SECRET not in caplog.text
    assert "cdcd" not in caplog.text


def _audited(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == "flowfabric.server.audit"]


def _events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(each)["event"] for each in _audited(caplog)]


async def test_the_limit_of_the_body(http: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    large = await http.post(URL, content=padded(ROTATE, 64 * 1024 + 1), headers=headers)
    assert (large.status_code, large.json()["route"]) == (413, URL)
    fits = await http.post(URL, content=padded(ROTATE, 64 * 1024), headers=headers)
    assert fits.status_code == 200
