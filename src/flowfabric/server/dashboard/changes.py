"""That something changed, for pages that read again: one read of the store for all who follow.

`/v1/events/stream` gives each follower every event, from where it stopped. A page needs less, and
ten pages must not read the same events ten times: one task per process reads them, at most once a
second, only after a hint, and says which executions they were about.
"""

from collections.abc import AsyncGenerator
from typing import Any

from litestar import Request, get
from litestar.response import Stream

from flowfabric.engine.engine import Engine
from flowfabric.server.caller.access import caller_of, needs
from flowfabric.server.context import context_of, engine_of
from flowfabric.server.dashboard.change_feed import ChangeFeed
from flowfabric.server.http.parameters import Namespace, visible_namespace
from flowfabric.server.http.sse import ServerEvent, event_stream


@get("/v1/changes/stream", opt=needs("read", long=True), media_type="text/event-stream")
async def follow_changes(request: Request[Any, Any, Any], namespace: Namespace = None) -> Stream:
    """Says that something changed, at most once a second, as server-sent events `changed`. It is
    for pages that then read again; who needs every event follows `/v1/events/stream`."""
    place = visible_namespace(caller_of(request), namespace)
    context = context_of(request)
    return event_stream(request, _follow(engine_of(request), context.changes, place))


async def _follow(
    engine: Engine, feed: ChangeFeed, place: str | None
) -> AsyncGenerator[ServerEvent, None]:
    with feed.follow(engine, place) as follower:
        while True:
            yield ServerEvent("changed", await follower.next())


HANDLERS = [follow_changes]
