"""The policy of a new execution on the wire (server-sdk.md 1.4)."""

from typing import Any

import httpx
import pytest

from tests.kit.http import EXECUTION, error_of

pytestmark = pytest.mark.rules


@pytest.mark.parametrize(
    ("policy", "missing"),
    [
        ({"fallback_policy": {"tiers": [{"provider": "p"}]}}, "model"),
        ({"fallback_policy": {}}, "tiers"),
    ],
)
async def test_what_a_policy_must_say(
    http: httpx.AsyncClient, policy: dict[str, Any], missing: str
) -> None:
    """server-sdk.md 1.4: members without a default are required."""
    body = error_of(await http.post("/v1/executions", json={**EXECUTION, "policy": policy}), 400)
    assert body["code"] == "invalid_policy_json"
    assert missing in body["error"]


async def test_a_policy_may_be_nested_deeply(http: httpx.AsyncClient) -> None:
    """What a policy does not know has no effect, however it looks."""
    deep: dict[str, Any] = {}
    for _ in range(800):
        deep = {"backoff": deep}
    body = {**EXECUTION, "policy": {"retry_policy": deep}}
    assert (await http.post("/v1/executions", json=body)).status_code == 201
