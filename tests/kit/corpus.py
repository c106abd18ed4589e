"""Replays recorded requests: what a client of the routes sends, and what it must get.

A file is a list of steps. A step is a request with its reply, or something that a worker does
(`"do"`). `{{name}}` in a request stands for a value that an earlier reply had there; in a reply a
new name takes the value, a known one compares it. `{{text}}` and `{{number}}` are any such value.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from flowfabric.core.execution.frame import NewFrame
from tests.kit.lab import Lab
from tests.kit.waits import named, suspend, wait_on

CORPUS = Path(__file__).parent.parent / "server" / "corpus"
_NAME = re.compile(r"\{\{(\w+)\}\}")
_KINDS: dict[str, Callable[[object], bool]] = {
    "text": lambda value: isinstance(value, str) and bool(value),
    "number": lambda value: type(value) is int,
}


class Replay:
    """One run through a file, against one server."""

    def __init__(self, http: httpx.AsyncClient, lab: Lab) -> None:
        self._http = http
        self._lab = lab
        self.known: dict[str, Any] = {}

    async def run(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            if "do" in step:
                await self._do(step["do"])
                continue
            reply = await self.send(step["request"])
            self._compare(step["response"], reply, step["name"])

    async def send(self, request: dict[str, Any]) -> httpx.Response:
        body = self._filled(request.get("body"))
        content = request.get("content")
        return await self._http.request(
            request["method"],
            self._filled(request["path"]),
            headers=request.get("headers"),
            content=content.encode() if content is not None else None,
            json=body if "body" in request else None,
        )

    async def _do(self, what: str) -> None:
        """What the worker does with the next execution of its lane."""
        await self._lab.engine.flows.drain()
        claim = await self._lab.claim_one(lanes=["default"])
        match what:
            case "claim":
                pass
            case "complete":
                await self._lab.complete(claim, b"result")
            case "emit":
                await self._lab.engine.streams.append(claim, [NewFrame(payload=b"hi")])
                await self._lab.complete(claim, b"result")
            case "suspend":
                answer = await suspend(self._lab, claim, wait_on(self._lab, named("go")))
                ticket = answer.primary
                assert ticket.token is not None
                self.known |= {"waitpoint": str(ticket.id), "token": ticket.token.reveal()}
            case _:
                raise ValueError(what)

    def _filled(self, value: Any) -> Any:
        match value:
            case str():
                return _NAME.sub(lambda match: str(self.known[match[1]]), value)
            case dict():
                return {name: self._filled(each) for name, each in value.items()}
            case list():
                return [self._filled(each) for each in value]
            case _:
                return value

    def _compare(self, expected: dict[str, Any], reply: httpx.Response, name: str) -> None:
        assert reply.status_code == expected["status"], f"{name}: {reply.text}"
        for header, value in expected.get("headers", {}).items():
            assert reply.headers.get(header) == value, f"{name}: {header}"
        if "text" in expected:
            assert reply.text == expected["text"], name
        if "body" in expected:
            self._same(expected["body"], reply.json(), name)

    def _same(self, expected: Any, found: Any, where: str) -> None:
        match expected:
            case dict():
                assert isinstance(found, dict), where
                assert sorted(found) == sorted(expected), where
                for name, each in expected.items():
                    self._same(each, found[name], f"{where}.{name}")
            case list():
                assert isinstance(found, list), where
                assert len(found) == len(expected), where
                for number, each in enumerate(expected):
                    self._same(each, found[number], f"{where}[{number}]")
            case str() if (match := _NAME.fullmatch(expected)) is not None:
                self._same_as_named(match[1], found, where)
            case str():
                assert found == self._filled(expected), where
            case _:
                assert found == expected, where
                assert type(found) is type(expected), where

    def _same_as_named(self, name: str, found: Any, where: str) -> None:
        if name in _KINDS:
            assert _KINDS[name](found), f"{where}: {found!r} is no {name}"
        else:
            assert self.known.setdefault(name, found) == found, where


def read_steps(name: str) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads((CORPUS / f"{name}.json").read_text())
    return steps
