"""Webhooks: URLs to which a server posts events (`docs/guide/events.md`)."""

from typing import Any

from litestar import Request, Response, delete, get, post, put
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Struct

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.execution.event import Family
from flowfabric.core.execution.event_filter import check_filter
from flowfabric.core.execution.webhook import Webhook
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import engine_of
from flowfabric.server.http.documents import document, respond_page
from flowfabric.server.http.parameters import (
    Cursor,
    Namespace,
    PageLimit,
    read_tag,
    visible_namespace,
)
from flowfabric.server.http.shown import also, members, page
from flowfabric.server.http.wire import respond


class PutWebhook(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where events are posted, and which. Without a `secret` a webhook that exists keeps its own,
    and a new one gets a random one."""

    url: str
    namespace: str | None = None
    families: list[Family] = []
    tag: str | None = None
    secret: str | None = None


HIDDEN = ("secret", "cursor", "saved_at", "version")
SHOWN = also(Webhook, *HIDDEN)


@get("/v1/webhooks", opt=needs("operate", shows=page("webhooks", SHOWN)))
async def list_webhooks(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> Response[dict[str, Any]]:
    """Webhooks by name, without their secrets."""
    place = visible_namespace(caller_of(request), namespace)
    webhooks = engine_of(request).webhooks
    found = await webhooks.list(namespace=place, after=cursor or "", limit=limit)
    return respond_page("webhooks", found, limit, lambda last: last.name, _shown)


@put("/v1/webhooks/{name:str}", opt=needs("operate", shows=also(Webhook, *HIDDEN, secret=str)))
async def put_webhook(
    request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[PutWebhook]
) -> Response[dict[str, Any]]:
    """Posts every event from now on to a URL. One that exists is changed and continues where it
    was. Only this answer has the `secret` that signs the deliveries."""
    place = visible_namespace(caller_of(request), data.namespace)
    wanted = check_filter(place, data.families, read_tag(data.tag))
    webhooks = engine_of(request).webhooks
    found = await webhooks.find(name)
    if found is not None and not _is_seen(request, found):
        raise Invalid(f"the name {name!r} is taken")
    made = await webhooks.put(name, data.url, wanted, secret=data.secret)
    return respond({**_shown(made), "secret": made.secret})


@get("/v1/webhooks/{name:str}", opt=needs("operate", shows=SHOWN))
async def get_webhook(
    request: Request[Any, Any, Any], name: FromPath[str]
) -> Response[dict[str, Any]]:
    """One webhook, without its secret."""
    return respond(_shown(await _seen(request, name)))


@post("/v1/webhooks/{name:str}/pause", opt=needs("operate", shows=SHOWN), status_code=200)
async def pause_webhook(
    request: Request[Any, Any, Any], name: FromPath[str], reason: FromQuery[str] = ""
) -> Response[dict[str, Any]]:
    """Delivers nothing until it is resumed; its events are kept as long as retention keeps them."""
    await _seen(request, name)
    return respond(_shown(await engine_of(request).webhooks.pause(name, reason=reason)))


@post("/v1/webhooks/{name:str}/resume", opt=needs("operate", shows=SHOWN), status_code=200)
async def resume_webhook(
    request: Request[Any, Any, Any], name: FromPath[str]
) -> Response[dict[str, Any]]:
    """Delivers again, what happened meanwhile first."""
    await _seen(request, name)
    return respond(_shown(await engine_of(request).webhooks.resume(name)))


@post(
    "/v1/webhooks/{name:str}/test",
    opt=needs("operate", shows=members("WebhookTest", execution_id=str)),
    status_code=202,
)
async def try_webhook(
    request: Request[Any, Any, Any], name: FromPath[str]
) -> Response[dict[str, Any]]:
    """Delivers an event of the kind `test`; the execution fails if the receiver refuses it."""
    await _seen(request, name)
    made = await engine_of(request).webhooks.test(name)
    return respond({"execution_id": str(made.id)}, 202)


@delete("/v1/webhooks/{name:str}", opt=needs("operate"), status_code=204)
async def delete_webhook(request: Request[Any, Any, Any], name: FromPath[str]) -> None:
    """Deletes a webhook; deliveries that are waiting are not sent."""
    await _seen(request, name)
    await engine_of(request).webhooks.delete(name)


async def _seen(request: Request[Any, Any, Any], name: str) -> Webhook:
    """A webhook that the caller sees: of one of its namespaces."""
    found = await engine_of(request).webhooks.get(name)
    if not _is_seen(request, found):
        raise NotFound("webhook", name)
    return found


def _is_seen(request: Request[Any, Any, Any], webhook: Webhook) -> bool:
    caller, place = caller_of(request), webhook.namespace
    return caller.sees_all or (place is not None and caller.sees(place))


def _shown(webhook: Webhook) -> dict[str, Any]:
    return document(webhook, *HIDDEN)


HANDLERS = [
    list_webhooks,
    put_webhook,
    get_webhook,
    pause_webhook,
    resume_webhook,
    try_webhook,
    delete_webhook,
]
