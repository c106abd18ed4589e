"""Events: pages, server-sent events, and durable subscriptions with a cursor in the store."""

from collections.abc import AsyncGenerator, Collection
from typing import Annotated, Any

from litestar import Request, Response, delete, get, post, put
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.response import Stream
from msgspec import UNSET, Struct, UnsetType

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.execution.event import Family, StoredEvent
from flowfabric.core.execution.event_filter import (
    EventBatch,
    EventFilter,
    EventGap,
    check_filter,
    encode_cursor,
    parse_handled,
)
from flowfabric.core.execution.event_views import EventView, GapView, gap_view, view
from flowfabric.core.execution.subscription import HeldElsewhere, Subscription
from flowfabric.engine.engine import Engine
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import engine_of
from flowfabric.server.http.documents import document, respond_page
from flowfabric.server.http.errors import ErrorBody
from flowfabric.server.http.parameters import (
    Cursor,
    Namespace,
    PageLimit,
    Tag,
    find_run,
    read_tag,
    visible_namespace,
)
from flowfabric.server.http.shown import also, page
from flowfabric.server.http.sse import ServerEvent, event_stream, last_event_id
from flowfabric.server.http.wire import respond

BATCH = 100

Families = Annotated[
    list[Family] | None,
    QueryParameter(name="family", description="Only of these families; repeatable"),
]
After = Annotated[
    str | None,
    QueryParameter(description="The cursor of the last event seen; from the first on without one"),
]


class ShownEvent(EventView, frozen=True, kw_only=True, omit_defaults=True):
    """An event whose execution is named by its tagged id, as in every answer of the server."""

    execution_id: str | None = None  # type: ignore[assignment]


class EventList(Struct, omit_defaults=True):
    """Events after a cursor, oldest first. `next_cursor` continues after everything that was read,
    also what the filter left out. With a `gap`, retention deleted events before they were read."""

    events: list[ShownEvent]
    next_cursor: str
    gap: GapView | UnsetType = UNSET


class NewSubscription(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a durable subscription is about. It begins after `after`, or with the next event."""

    namespace: str | None = None
    families: list[Family] = []
    tag: str | None = None
    after: str | None = None


class Acknowledge(Struct, forbid_unknown_fields=True):
    cursor: str


SHOWN = also(Subscription, cursor=str)


@get("/v1/events", opt=needs("read"))
async def list_events(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    families: Families = None,
    tag: Tag = None,
    after: After = None,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> Response[EventList]:
    """Events after a cursor, oldest first. `cursor` is another word for `after`."""
    engine, wanted = engine_of(request), _filter(request, namespace, families, tag)
    begin = await _position(engine, _either(after, cursor))
    batch = await engine.events.batch(wanted, begin, limit)
    return respond(_list(batch, wanted))


@get("/v1/executions/{id:str}/events", opt=needs("read"))
async def execution_events(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    after: After = None,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> Response[EventList]:
    """What has happened to one execution. `cursor` is another word for `after`."""
    engine, key = engine_of(request), await find_run(request, id)
    if await engine.views.state(key) is None:
        raise NotFound("execution", id)
    begin = await _position(engine, _either(after, cursor))
    page = await engine.events.read(after=begin, limit=limit, execution=key)
    return respond(EventList([_event(each) for each in page.events], encode_cursor(page.cursor)))


@get("/v1/events/stream", opt=needs("read", long=True), media_type="text/event-stream")
async def follow_events(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    families: Families = None,
    tag: Tag = None,
    after: After = None,
) -> Stream:
    """Events as they are committed, as server-sent events. The id of each is its cursor, which
    `Last-Event-ID` or `after` resumes; without one the stream begins with the next event. `gap`
    says that retention deleted events before they were read."""
    engine, wanted = engine_of(request), _filter(request, namespace, families, tag)
    cursor = last_event_id(request) or after
    begin = await engine.events.position(cursor or "")
    return event_stream(request, _follow(engine, wanted, begin))


async def _follow(
    engine: Engine, wanted: EventFilter, after: int
) -> AsyncGenerator[ServerEvent, None]:
    async for batch in engine.events.follow(wanted, after=after, limit=BATCH):
        for each in batch.in_order():
            shown = gap_view(each) if isinstance(each, EventGap) else _event(each, wanted.families)
            yield ServerEvent(shown.kind, shown, shown.cursor)


# -- durable subscriptions


@get("/v1/subscriptions", opt=needs("read", shows=page("subscriptions", SHOWN)))
async def list_subscriptions(
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> Response[dict[str, Any]]:
    """Subscriptions by name."""
    place = visible_namespace(caller_of(request), namespace)
    subscriptions = engine_of(request).subscriptions
    found = await subscriptions.list(namespace=place, after=cursor or "", limit=limit)
    return respond_page("subscriptions", found, limit, lambda last: last.name, _shown)


@put("/v1/subscriptions/{name:str}", opt=needs("operate", shows=SHOWN))
async def put_subscription(
    request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[NewSubscription]
) -> Response[dict[str, Any]]:
    """A subscription whose cursor the store keeps; one that exists stays where it is."""
    wanted = _filter(request, data.namespace, data.families, data.tag)
    engine = engine_of(request)
    after = await engine.events.position(data.after) if data.after else None
    return respond(_shown(await engine.subscriptions.create(name, wanted, after=after)))


@get("/v1/subscriptions/{name:str}", opt=needs("read", shows=SHOWN))
async def get_subscription(
    request: Request[Any, Any, Any], name: FromPath[str]
) -> Response[dict[str, Any]]:
    """One subscription, with its cursor."""
    return respond(_shown(await _seen(request, name)))


@post("/v1/subscriptions/{name:str}/read", opt=needs("read", shows=EventList), status_code=200)
async def read_subscription(
    request: Request[Any, Any, Any],
    name: FromPath[str],
    holder: FromQuery[str],
    limit: PageLimit = 100,
    lease_ms: FromQuery[int] = 30_000,
) -> Response[dict[str, Any]]:
    """The next events for one of several readers; the same ones again until they are
    acknowledged. 409 while another reader has them."""
    held = await _seen(request, name)
    subscriptions = engine_of(request).subscriptions
    batch = await subscriptions.read(name, holder=holder, limit=limit, lease=lease_ms)
    if isinstance(batch, HeldElsewhere):
        return respond(_held(batch), 409)
    return respond(_list(batch, held.filter))


def _held(elsewhere: HeldElsewhere) -> dict[str, Any]:
    """An error as all others. `holder` and `until` are beside it as well, where they were first."""
    details = document(elsewhere)
    text = f"another reader has it: {elsewhere.holder}"
    error = ErrorBody(text, "held", kind="contention", retryable=True, details=details)
    return {**document(error), **details}


@post("/v1/subscriptions/{name:str}/ack", opt=needs("read", shows=SHOWN), status_code=200)
async def acknowledge(
    request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[Acknowledge]
) -> Response[dict[str, Any]]:
    """Everything up to this cursor is handled."""
    await _seen(request, name)
    moved = await engine_of(request).subscriptions.ack(name, parse_handled(data.cursor))
    return respond(_shown(moved))


@post("/v1/subscriptions/{name:str}/release", opt=needs("read"), status_code=204)
async def release_subscription(
    request: Request[Any, Any, Any], name: FromPath[str], holder: FromQuery[str]
) -> None:
    """Lets other readers go on at once, with what this one has not acknowledged."""
    await _seen(request, name)
    await engine_of(request).subscriptions.release(name, holder=holder)


@delete("/v1/subscriptions/{name:str}", opt=needs("operate"), status_code=204)
async def delete_subscription(request: Request[Any, Any, Any], name: FromPath[str]) -> None:
    """Deletes a subscription and its cursor."""
    await _seen(request, name)
    await engine_of(request).subscriptions.delete(name)


async def _seen(request: Request[Any, Any, Any], name: str) -> Subscription:
    """A subscription that the caller sees: of one of its namespaces."""
    found = await engine_of(request).subscriptions.get(name)
    caller, place = caller_of(request), found.filter.namespace
    if not caller.sees_all and (place is None or not caller.sees(place)):
        raise NotFound("subscription", name)
    return found


def _shown(subscription: Subscription) -> dict[str, Any]:
    shown = document(subscription)
    return {**shown, "cursor": encode_cursor(subscription.cursor)}


def _filter(
    request: Request[Any, Any, Any],
    namespace: str | None,
    families: list[Family] | None,
    tag: str | None,
) -> EventFilter:
    place = visible_namespace(caller_of(request), namespace)
    return check_filter(place, families or (), read_tag(tag))


def _either(after: str | None, cursor: str | None) -> str | None:
    if after and cursor and after != cursor:
        raise Invalid("give after or cursor, not both")
    return after or cursor


async def _position(engine: Engine, cursor: str | None) -> int:
    """The number in a cursor, 0 without one."""
    return await engine.events.position(cursor) if cursor else 0


def _event(event: StoredEvent, families: Collection[Family] = ()) -> ShownEvent:
    seen = view(event, families)
    members = {name: getattr(seen, name) for name in seen.__struct_fields__}
    id = None if event.id is None else str(event.id)
    return ShownEvent(**{**members, "execution_id": id})


def _list(batch: EventBatch, wanted: EventFilter) -> EventList:
    events = [_event(each, wanted.families) for each in batch.events]
    found = EventList(events, encode_cursor(batch.cursor))
    if batch.gap is not None:
        found.gap = gap_view(batch.gap)
    return found


HANDLERS = [
    list_events,
    execution_events,
    follow_events,
    list_subscriptions,
    put_subscription,
    get_subscription,
    read_subscription,
    acknowledge,
    release_subscription,
    delete_subscription,
]
