"""A worker that has nothing but HTTP, for tests of the data plane."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx

from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.core.execution.submission import Submission
from flowfabric.core.wait.signal import Delivery
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext
from flowfabric.server.http.asgi import App, Message
from tests.kit.signalling import fresh

JSON = [(b"content-type", b"application/json"), (b"host", b"server")]


def person(
    name: str, *, scopes: Iterable[str] = AccessScope, namespaces: Iterable[str] | None = None
) -> Identity:
    """A caller with these scopes (by default all) and namespaces (by default all)."""
    places = None if namespaces is None else frozenset(namespaces)
    return Identity(name, frozenset(map(AccessScope, scopes)), places)


class KnownCallers(Authentication):
    """A token is the name of its caller; without one, everything is allowed."""

    def __init__(self, engine: Engine, callers: dict[str, Identity]) -> None:
        super().__init__(engine, is_open=True)
        self._callers = callers

    async def identify(self, header: str | None) -> Identity | None:
        if header is None:
            return await super().identify(None)
        return self._callers[header.removeprefix("Bearer ")]


def server_for(engine: Engine, **callers: Identity) -> tuple[ServerContext, App]:
    """A server that asks for no token, but knows some callers by theirs."""
    context = ServerContext(engine, KnownCallers(engine, callers))
    return context, create_app(context)


@asynccontextmanager
async def client_of(app: App, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://server", headers=headers
    ) as client:
        yield client


class HttpWorker:
    """Short words for what a worker sends."""

    def __init__(self, engine: Engine, http: httpx.AsyncClient, name: str = "w1") -> None:
        self.engine = engine
        self.http = http
        self.name = name

    async def submit(self, payload: bytes = b'{"n": 1}', **members: Any) -> str:
        given = {"kind": "work", "encoding": "json", "payload": payload, **members}
        return (await self.engine.executions.submit(Submission(**given))).id

    async def ask(self, **members: Any) -> httpx.Response:
        body = {"worker_id": "pool", "worker_instance_id": self.name, **members}
        return await self.http.post("/v1/work/claim", json=body)

    async def claim(self, **members: Any) -> list[dict[str, Any]]:
        reply = await self.ask(**members)
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = reply.json()["claims"]
        return found

    async def take(self, **submission: Any) -> dict[str, Any]:
        """A new run, claimed."""
        await self.submit(**submission)
        (claim,) = await self.claim()
        return claim

    async def post(self, claim: dict[str, Any], op: str, **members: Any) -> httpx.Response:
        body = {"handle": claim["handle"], **members}
        return await self.http.post(f"/v1/work/{claim['execution_id']}/{op}", json=body)

    async def do(self, claim: dict[str, Any], op: str, **members: Any) -> dict[str, Any]:
        """An operation that succeeds."""
        reply = await self.post(claim, op, **members)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    async def renew(self, *claims: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
        leases = [{"handle": claim["handle"]} for claim in claims]
        reply = await self.http.post("/v1/work/renew", json={"leases": leases, **members})
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = reply.json()["leases"]
        return found

    async def batch(self, *operations: dict[str, Any]) -> list[dict[str, Any]]:
        reply = await self.http.post("/v1/work/batch", json={"operations": list(operations)})
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = reply.json()["results"]
        return found

    async def signal(self, id: str, waitpoint: dict[str, Any], name: str, **members: Any) -> None:
        """Delivers a signal with the token of a waitpoint."""
        at = UUID(waitpoint["waitpoint_id"])
        delivery = Delivery(id=fresh(), waitpoint=at, name=name, **members)
        await self.engine.signals.deliver(id, delivery, waitpoint["token"])

    async def until_it_waits(self) -> None:
        """Returns when a long poll of this process waits for hints."""
        while not self.engine.store.hints.waiting:  # noqa: ASYNC110 - hints are no event
            await asyncio.sleep(0)

    async def state(self, id: str) -> str:
        return str(await self.engine.views.state(id))


def error_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["code"]


class HalfOpenCall:
    """One request at the level of ASGI, whose client may go away before the answer."""

    def __init__(self, app: App, path: str, body: bytes) -> None:
        self._body = body
        self._gone = asyncio.Event()
        self.sent: list[Message] = []
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [*JSON, (b"content-length", b"%d" % len(body))],
            "client": ("127.0.0.1", 1),
            "server": ("server", 80),
        }
        self._asked = False
        self.reading = asyncio.Event()
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        self.reading.set()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def hang_up(self) -> None:
        self._gone.set()

    async def leave(self) -> None:
        """The client goes away; returns when the server is done with the call."""
        self.hang_up()
        await self.task
