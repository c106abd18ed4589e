"""Whatever a body or a path contains, the answer is no fault of the server."""

import random
from typing import Any

import httpx
import pytest

from tests.kit.corpus import CORPUS, read_steps
from tests.kit.http import NOBODY

pytestmark = pytest.mark.rules

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    1e300,
    "",
    " ",
    "\0",
    "\ud7ff\ue000",
    "x" * 5000,
    "{fp:1}:",
    "{{}}",
    NOBODY,
    [],
    [None],
    [[]],
    {},
    {"": ""},
    {"a": {"b": [1, {}]}},
]
NAMES = sorted(path.stem for path in CORPUS.glob("*.json") if path.stem != "vectors")


@pytest.mark.parametrize("name", NAMES)
async def test_no_body_is_a_fault(name: str, http: httpx.AsyncClient) -> None:
    chance = random.Random(7)
    for step in read_steps(name):
        request = step.get("request", {})
        if "body" not in request:
            continue
        for member in request["body"]:
            body = {**request["body"], member: chance.choice(ODD)}
            path = request["path"].replace("{{", "").replace("}}", "")
            reply = await http.request(request["method"], path, json=body)
            assert reply.status_code < 500, (path, body, reply.text)


PATHS = [
    "/v1/executions/{}",
    "/v1/executions/{}/state",
    "/v1/executions/{}/result",
    "/v1/executions/{}/pending-waitpoints",
    f"/v1/executions/{NOBODY}/waitpoints/{{}}/token",
    "/v1/executions?partition={}",
    "/v1/executions?partition=1&cursor={}",
    "/v1/executions?partition=1&limit={}",
    "/v1/budgets/{}",
]
SEGMENTS = [
    "%00",
    "%FF",
    "%2F",
    "%7B%7D",
    "%C3%A4",
    "a" * 3000,
    "..",
    "-1",
    "1e9",
    "99999999999999",
]


@pytest.mark.parametrize("path", PATHS)
async def test_no_path_is_a_fault(path: str, http: httpx.AsyncClient) -> None:
    for segment in SEGMENTS:
        reply = await http.get(path.format(segment))
        assert reply.status_code < 500, (path, segment, reply.text)
