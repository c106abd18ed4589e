"""Delivering webhooks: the handler of the built-in task `flowfabric.webhook`."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import ModuleType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.execution.webhook import KIND, LANE, DeliveryCall, Webhook, headers_of
from flowfabric.engine.engine import Engine
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.options import TaskOptions
from flowfabric.worker.api.task import Task
from flowfabric.worker.errors import Fail, Postpone, Retry
from flowfabric.worker.run.options import WorkerSettings

TIMEOUT = 10.0
"""Seconds that a receiver has to answer."""
LOOK_AGAIN = timedelta(minutes=1)
"""How long a delivery waits while its webhook is paused."""
MAX_RETRY_AFTER = 3600

GONE = 410
TOO_MANY = 429


class Delivered(Struct, frozen=True):
    """The result of a delivery. `status` is what the receiver answered; None if nothing was sent,
    because the webhook was deleted meanwhile."""

    webhook: str
    event_id: str
    status: int | None


def webhook_task(client: Client) -> Task[Any, Any]:
    """The built-in task. Its policy is that of the run, not that of these options."""
    sessions = SharedSession(_aiohttp())

    async def deliver(
        webhook: str, made_at: int, event_id: str, body: str, seal: str = ""
    ) -> Delivered:
        engine = await client.engine()
        if not engine.webhooks.is_genuine(DeliveryCall(webhook, made_at, event_id, body, seal)):
            raise Fail("this delivery was not made by the engine, so it is not sent")
        found = await engine.webhooks.find(webhook)
        if found is None or found.created_at != made_at:
            return Delivered(webhook, event_id, None)
        if found.paused:
            raise Postpone(LOOK_AGAIN)
        data = body.encode()
        headers = headers_of(found.secret, event_id, engine.now() // 1000, data)
        status, retry_after = await sessions.post(found.url, headers, data)
        await _judge(engine, found, status, retry_after)
        return Delivered(webhook, event_id, status)

    return Task(deliver, TaskOptions(name=KIND, lane=LANE), client)


def with_webhooks(options: WorkerSettings) -> WorkerSettings:
    """The options of a worker that serves the lane of deliveries beside its own; one without lanes
    serves them all."""
    lanes = options.lanes
    if isinstance(lanes, Mapping):
        return replace(options, lanes={LANE: 1, **lanes}) if lanes else options
    return replace(options, lanes=(*dict.fromkeys((*lanes, LANE)),)) if lanes else options


async def _judge(engine: Engine, webhook: Webhook, status: int, retry_after: str) -> None:
    """Raises what the answer of a receiver means for the delivery, unless it has accepted it."""
    text = f"{webhook.url} answered {status}"
    if 200 <= status < 300:
        return
    if status == GONE:
        with suppress(NotFound):  # deleted meanwhile
            await engine.webhooks.pause(webhook.name, reason=text)
        raise Fail(f"{text}; the webhook is paused")
    if status == TOO_MANY or status >= 500:
        raise Retry(text, after=_seconds(retry_after))
    raise Fail(f"{text}, and redirects are not followed" if 300 <= status < 400 else text)


def _seconds(retry_after: str) -> float | None:
    """The pause that a receiver asks for, as far as it is a number and reasonable."""
    if not (retry_after.isascii() and retry_after.isdigit()):
        return None
    return min(MAX_RETRY_AFTER, int(retry_after[:9]))


class SharedSession:
    """One session for all deliveries that are under way, closed when there are none: connections
    are used again within a burst, and none is left open when the worker stops."""

    def __init__(self, http: ModuleType) -> None:
        self._http = http
        self._session: Any = None
        self._users = 0

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        """The status of the answer and its Retry-After; Retry if there is none. The answer is not
        read any further."""
        try:
            async with self._shared() as session:
                answer = session.post(url, data=body, headers=headers, allow_redirects=False)
                async with answer as response:
                    return int(response.status), str(response.headers.get("Retry-After", ""))
        except self._http.InvalidURL:
            raise Fail(f"{url} is not a URL") from None
        except (self._http.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise Retry(f"{url} did not answer: {why}") from error

    @asynccontextmanager
    async def _shared(self) -> AsyncIterator[Any]:
        if self._session is None:
            timeout = self._http.ClientTimeout(total=TIMEOUT)
            jar = self._http.DummyCookieJar()
            self._session = self._http.ClientSession(timeout=timeout, cookie_jar=jar)
        self._users += 1
        try:
            yield self._session
        finally:
            self._users -= 1
            if not self._users:
                session, self._session = self._session, None
                await asyncio.shield(session.close())


def _aiohttp() -> ModuleType:
    try:
        import aiohttp
    except ImportError:
        raise Invalid("webhooks need aiohttp: install flowfabric with the extra `http`") from None
    return aiohttp
