"""`fabric.webhooks`: events posted to URLs. `verify_webhook` is for those who receive them."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_items, check_kind_of, check_mapping
from flowfabric.core.base.time import parse_span, to_datetime
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.event_filter import check_filter
from flowfabric.core.execution.webhook import Webhook, check_delivery
from flowfabric.store.clock import SystemClock
from flowfabric.worker.api.blocking import Block, blocking
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.listing import Tag, one_tag
from flowfabric.worker.api.options import Span
from flowfabric.worker.api.registries import all_pages
from flowfabric.worker.api.run import Run

TOLERANCE = 300.0


class WebhookInfo(Struct, frozen=True, kw_only=True):
    """A webhook. `secret` is there only in the answer of `set`; `reason` says why it is paused."""

    name: str
    url: str
    namespace: str | None
    families: tuple[Family, ...]
    tag: tuple[str, str] | None
    paused: bool
    reason: str
    created_at: datetime
    secret: str | None = None

    def __repr__(self) -> str:
        return f"WebhookInfo({self.name!r}, {self.url!r}, paused={self.paused})"


class WebhooksApi:
    """`fabric.webhooks`"""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def set(
        self,
        name: str,
        url: str,
        *,
        namespace: str | None = None,
        families: Iterable[Family | str] = (),
        tag: Tag | None = None,
        secret: str | None = None,
    ) -> WebhookInfo:
        """Posts every event from now on to a URL: those of a namespace, of these families (none:
        all), of runs with a tag. A webhook that exists is changed and continues where it was.
        Without a `secret` it keeps its own; a new one gets a random one."""
        pair = None if tag is None else one_tag(tag)
        wanted = check_filter(namespace, families, pair)
        engine = await self._client.engine()
        made = await engine.webhooks.put(name, url, wanted, secret=secret)
        return webhook_info(made, secret=made.secret)

    async def get(self, name: str) -> WebhookInfo:
        """The webhook with this name. Raises NotFound if there is none."""
        return webhook_info(await (await self._client.engine()).webhooks.get(name))

    async def pause(self, name: str, *, reason: str = "") -> WebhookInfo:
        """Delivers nothing until the webhook is resumed. Its events are kept meanwhile, as long as
        the retention keeps them."""
        return webhook_info(await (await self._client.engine()).webhooks.pause(name, reason=reason))

    async def resume(self, name: str) -> WebhookInfo:
        """Delivers again, what happened meanwhile first."""
        return webhook_info(await (await self._client.engine()).webhooks.resume(name))

    async def delete(self, name: str) -> None:
        """Deletes a webhook; deliveries that are waiting are not sent."""
        await (await self._client.engine()).webhooks.delete(name)

    async def test(self, name: str) -> Run[Any]:
        """Delivers an event of the kind `test`. The run fails if the receiver does not accept
        it."""
        submitted = await (await self._client.engine()).webhooks.test(name)
        return Run(self._client, submitted.id, Any)

    async def list(
        self, *, namespace: str | None = None, limit: int | None = None
    ) -> list[WebhookInfo]:
        """Webhooks by name; only those of one namespace, if given."""
        webhooks = (await self._client.engine()).webhooks

        def page(after: str | None, size: int) -> Awaitable[Sequence[Webhook]]:
            return webhooks.list(namespace=namespace, after=after or "", limit=size)

        found = await all_pages(page, lambda webhook: webhook.name, limit)
        return [webhook_info(webhook) for webhook in found]

    list_sync, get_sync, set_sync = blocking(list), blocking(get), blocking(set)
    pause_sync, resume_sync = blocking(pause), blocking(resume)
    delete_sync, test_sync = blocking(delete), blocking(test)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on


def webhook_info(webhook: Webhook, secret: str | None = None) -> WebhookInfo:
    return WebhookInfo(
        name=webhook.name,
        url=webhook.url,
        namespace=webhook.namespace,
        families=webhook.families,
        tag=webhook.tag,
        paused=webhook.paused,
        reason=webhook.reason,
        created_at=to_datetime(webhook.created_at),
        secret=secret,
    )


def verify_webhook(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes | str,
    tolerance: Span = TOLERANCE,
) -> dict[str, Any]:
    """The event in a delivery, for those who receive it. Raises Unauthorized if none of the secrets
    has signed it, or if that was longer ago than `tolerance`; Invalid if it is not an event.

    `headers` are those of the request, in any spelling, and `body` is exactly what was received. A
    delivery may come twice: its header `FlowFabric-Event-Id` stays the same.
    """
    secrets = (
        [secret]
        if isinstance(secret, str)
        else [str(each) for each in check_items(secret, "secrets")]
    )
    if not all(secrets) or not secrets:
        raise Invalid("a secret is needed to verify a delivery")
    data = body.encode() if isinstance(body, str) else check_kind_of(body, bytes, "body")
    given = {str(name): str(value) for name, value in check_mapping(headers, "headers").items()}
    check_delivery(
        secrets, given, data, SystemClock().now() / 1000, parse_span(tolerance, "tolerance") / 1000
    )
    try:
        event = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Invalid("the body of the delivery is not an event") from None
    return event
