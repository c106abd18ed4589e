"""One server, over HTTP: connections are reused, each request has a time limit, and errors say
whether it may have been executed."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from flowfabric.core.base.errors import (
    FlowFabricError,
    Forbidden,
    Invalid,
    Overloaded,
    Unavailable,
)
from flowfabric.remote.wire import CALLS_PATH, HINTS_PATH, MEDIA_TYPE, QUIET

if TYPE_CHECKING:
    import aiohttp

LARGE = 1 << 20
MAX_CONNECTIONS = 32
CONNECT_WITHIN = 5.0
KEEP_ALIVE = 4.0
"""Seconds for which an idle connection is kept: less than servers do, which close it then."""


class AnswerLost(Unavailable):
    """The request may have been executed: no answer came."""


def is_server(url: str) -> bool:
    """Whether a URL names a server, not a database."""
    return url.startswith(("http://", "https://"))


def check_server(url: str) -> str:
    """The URL of a server, without a slash at its end."""
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment:
        raise Invalid("the URL of a server looks like https://host:9090")
    if parts.username or parts.password:
        raise Invalid("give the token as `token` or in FLOWFABRIC_TOKEN, not in the URL")
    return url.rstrip("/")


def _import_aiohttp() -> None:
    """Only what reaches a server waits for this import: it takes as long as FlowFabric's own."""
    global aiohttp
    try:
        import aiohttp
    except ImportError:
        raise Invalid("a server is reached with aiohttp: pip install 'flowfabric[http]'") from None


class Connection:
    """The connections of one event loop to a server."""

    def __init__(self, url: str, token: str | None) -> None:
        _import_aiohttp()
        self.url = check_server(url)
        self._headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._resolver = _make_resolver()
        self._pool = self._session(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE)
        # Requests that wait would keep all connections; for them there is no limit.
        self._waiting = self._session(limit=0, keepalive_timeout=KEEP_ALIVE)
        # A connection that the server closes in this moment cannot be told from a lost answer.
        self._single = self._session(limit=0, force_close=True)

    def _session(self, **options: Any) -> "aiohttp.ClientSession":
        connector = aiohttp.TCPConnector(resolver=self._resolver, **options)
        return aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def post(
        self, body: bytes, timeout: float, *, waits: bool = False, once: bool = False
    ) -> bytes:
        """The body of the reply. Raises Unavailable if the request was not executed, AnswerLost if
        it may have been, and otherwise what the server says."""
        session = self._waiting if waits else self._single if once else self._pool
        if session.closed:
            raise Invalid("the connection to the server was closed")
        # A connection lives long and keeps the context it was made in: not that of a caller.
        return await asyncio.create_task(self._post(session, body, timeout), context=Context())

    async def _post(self, session: "aiohttp.ClientSession", body: bytes, timeout: float) -> bytes:
        limit = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_WITHIN)
        try:
            path, content = self.url + CALLS_PATH, _data(body)
            async with session.post(path, data=content, timeout=limit) as reply:
                data = await reply.read()
        except aiohttp.ClientConnectorError as error:
            reason = _reason(error)
            raise Unavailable(f"the server {self.url} cannot be reached: {reason}") from None
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ssl.SSLError) as error:
            reason = str(error) or f"no answer within {timeout:g} s"
            raise self._lost(reason) from None
        if reply.status == 200:
            return data
        raise self._refusal(reply, data)

    async def hints(self) -> AsyncIterator[int]:
        """The hints of the server, one number each. Ends with Unavailable."""
        limit = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_WITHIN, sock_read=2 * QUIET + CONNECT_WITHIN
        )
        try:
            async with self._waiting.get(self.url + HINTS_PATH, timeout=limit) as reply:
                if reply.status != 200:
                    raise self._refusal(reply, await reply.read())
                yield 0  # it listens from now on
                async for chunk in reply.content.iter_any():
                    for byte in chunk:
                        yield byte
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ssl.SSLError) as error:
            raise Unavailable(f"the hints of {self.url} ended: {error}") from None

    def _refusal(self, reply: "aiohttp.ClientResponse", data: bytes) -> FlowFabricError:
        status, text = reply.status, _text(data)
        match status:
            case 401:
                what = _NOT_LET_IN.get(_member(data, "code"), "does not know the token")
                text = f"the server {self.url} {what}: give token=…, or set FLOWFABRIC_TOKEN"
                return Forbidden(text)
            case 403:
                return Forbidden(text or f"the token does not allow this at the server {self.url}")
            case 404 | 405:
                return Invalid(f"there is no FlowFabric server at {self.url} (status {status})")
            case 429:
                return Overloaded(text or "too many requests", retry_after=_retry_after(reply))
            case 408 | 503:
                return Unavailable(text or "the server is draining")
            case 502 | 504:
                return self._lost(f"status {status}")
            case _:
                family = FlowFabricError if status >= 500 else Invalid
                return family(f"the server refuses the request: {text or status}")

    def _lost(self, reason: str) -> AnswerLost:
        return AnswerLost(
            f"the server {self.url} did not answer, and may have done what was asked: {reason}"
        )

    async def close(self) -> None:
        for session in (self._pool, self._waiting, self._single):
            await session.close()
        await self._resolver.close()
        await asyncio.sleep(0)  # transports are closed in the next turn


def _make_resolver() -> "aiohttp.abc.AbstractResolver":
    """Finds hosts in a thread of its own: handlers may keep all threads of the event loop."""

    class Resolver(aiohttp.ThreadedResolver):
        def __init__(self) -> None:
            super().__init__()
            self._threads = ThreadPoolExecutor(1, "flowfabric-resolver")

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list["aiohttp.abc.ResolveResult"]:
            find = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
            found = await asyncio.get_running_loop().run_in_executor(self._threads, find)
            return [_resolved(host, port, each) for each in found]

        async def close(self) -> None:
            self._threads.shutdown(wait=False)

    return Resolver()


def _resolved(host: str, port: int, info: Any) -> "aiohttp.abc.ResolveResult":
    family, _, proto, _, address = info
    return {
        "hostname": host,
        "host": address[0],
        "port": port,
        "family": family,
        "proto": proto,
        "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    }


def _reason(error: "aiohttp.ClientConnectorError") -> str:
    """What the system says. The text of asyncio names the address again instead."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)  # before aiohttp 3.14 it has no `os_error`
    found = error.os_error
    if isinstance(found, ConnectionError) and found.errno:
        return os.strerror(found.errno)
    return found.strerror or str(found)


def _data(body: bytes) -> bytes | BytesIO:
    """A large body is sent piece by piece, so that the event loop goes on meanwhile."""
    return body if len(body) < LARGE else BytesIO(body)


_NOT_LET_IN = {
    "missing_credentials": "wants an access token",
    "credentials_expired": "says that the token has expired",
    "credentials_revoked": "says that the token was revoked",
}
"""What the codes of a 401 mean. The server itself speaks of a header."""


def _text(data: bytes) -> str:
    """What the body of an error says."""
    return _member(data, "error", data[:200].decode("utf-8", "replace"))


def _member(data: bytes, name: str, otherwise: str = "") -> str:
    """A member of the body of an error; `otherwise` if the body is not JSON."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return otherwise
    return str(body.get(name, "")) if isinstance(body, dict) else ""


def _retry_after(reply: "aiohttp.ClientResponse") -> float:
    try:
        return max(0.0, float(reply.headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
