"""Output streams of attempts: range reads, long polls, server-sent events, summaries."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound, Overloaded, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.frame import Visibility, parse_after
from flowfabric.core.execution.status import ENDED
from flowfabric.engine.commit.observer import followed
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.streams import FramePage
from flowfabric.server.caller.access import check_again, needs
from flowfabric.server.context import ServerContext, context_of, engine_of
from flowfabric.server.http.long_polls import while_wanted
from flowfabric.server.http.parameters import find_run
from flowfabric.server.http.sse import ServerEvent, event_stream, last_event_id
from flowfabric.server.http.wire import respond

MAX_FRAMES = 1000
MAX_BLOCK = 30_000
MAX_INDEX = (1 << 31) - 1
"""No attempt of the engine has a higher index; callers may ask for any of 32 bits."""
TAIL_PAGE = 200
TAIL_BLOCK = 300.0

FrameLimit = Annotated[int, QueryParameter(ge=1, le=MAX_FRAMES)]
Seen = Annotated[Visibility, QueryParameter(description="all, or exclude_best_effort")]


class WireFrame(Struct):
    """`fields` has frame_type, ts, payload, encoding (utf8 or base64), source, mode, and, where
    they apply, correlation_id, summary_version and ttl_ms."""

    id: str
    fields: dict[str, str]


class WireFrames(Struct, omit_defaults=True):
    """`gap` is the id of the newest frame that was trimmed where this page was read."""

    frames: list[WireFrame]
    count: int
    closed_at: int | UnsetType = UNSET
    closed_reason: str | UnsetType = UNSET
    gap: str | UnsetType = UNSET


EMPTY = WireFrames([], 0)
"""A stream that was never written to."""


class WireSummary(Struct):
    """What the summary frames of an attempt add up to."""

    document: Raw
    version: int
    patch_kind: str
    first_applied_ms: int
    last_updated_ms: int


@get("/v1/executions/{id:str}/attempts/{index:str}/stream", opt=needs("read"))
async def read_stream(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    index: FromPath[str],
    first: Annotated[str, QueryParameter(name="from")] = "start",
    to: FromQuery[str] = "end",
    limit: FrameLimit = 100,
    visibility: Seen = Visibility.ALL,
) -> Response[WireFrames]:
    """Frames from `from` to `to`, both included: `start`, `end`, `<ms>` or `<ms>-<seq>`. What was
    never written to, by whichever execution, is empty and open."""
    read = partial(
        engine_of(request).streams.read,
        attempt=_index(index),
        start=first,
        end=to,
        limit=limit,
        visibility=visibility,
    )
    with _reader(context_of(request)):
        page = await _found(request, id, read)
    return respond(EMPTY if page is None else _frames(page))


@get("/v1/executions/{id:str}/attempts/{index:str}/stream/tail", opt=needs("read", long=True))
async def tail_stream(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    index: FromPath[str],
    after: FromQuery[str] = "0-0",
    block_ms: FromQuery[int] = 0,
    limit: FrameLimit = 50,
    visibility: Seen = Visibility.ALL,
) -> Response[WireFrames]:
    """Waits up to `block_ms` for a frame after `after`; a closed stream says when and why with its
    last frames."""
    if not 0 <= block_ms <= MAX_BLOCK:
        raise Invalid(f"block_ms is 0 to {MAX_BLOCK}")
    tail = partial(
        engine_of(request).streams.tail,
        attempt=_index(index),
        after=after,
        limit=limit,
        visibility=visibility,
    )
    with _reader(context_of(request)):
        waiting = _found(request, id, partial(tail, block=block_ms / 1000), block_ms / 1000)
        tailing, _ = await while_wanted(request, waiting)
        await check_again(request)
        page = await _found(request, id, tail) if tailing.cancelled() else tailing.result()
    if page is not None and page.more:  # a reader goes on until the stream is closed
        page = replace(page, closed=None)
    return respond(EMPTY if page is None else _frames(page))


async def _found(
    request: Request[Any, Any, Any],
    id: str,
    read: Callable[[ExecutionId], Awaitable[FramePage]],
    block: float = 0.0,
) -> FramePage | None:
    """What can be read of an execution; None, after as long as a reader waits, if there is no such
    stream: clients of the original may wait for an execution that is created later."""
    try:
        return await read(await find_run(request, id))
    except NotFound:
        if not block:
            return None
    await asyncio.sleep(block)
    return await _found(request, id, read)


@get("/v1/executions/{id:str}/summary", opt=needs("read"))
async def latest_summary(
    request: Request[Any, Any, Any], id: FromPath[str]
) -> Response[WireSummary]:
    """The rolling document of the newest attempt; 404 before its first summary frame."""
    made = await engine_of(request).views.attempts_made(await find_run(request, id))
    return await _summary(request, id, max(0, made - 1))


@get("/v1/executions/{id:str}/attempts/{index:str}/summary", opt=needs("read"))
async def read_summary(
    request: Request[Any, Any, Any], id: FromPath[str], index: FromPath[str]
) -> Response[WireSummary]:
    """The rolling document; 404 before the first summary frame."""
    return await _summary(request, id, _index(index))


async def _summary(request: Request[Any, Any, Any], id: str, index: int) -> Response[WireSummary]:
    key = await find_run(request, id)
    found = await engine_of(request).streams.summary(key, index)
    if found is None:
        raise NotFound("stream")
    return respond(
        WireSummary(
            document=found.document,
            version=found.version,
            patch_kind=found.patch_kind,
            first_applied_ms=found.first_applied_at,
            last_updated_ms=found.last_updated_at,
        )
    )


@get("/v1/executions/{id:str}/stream", opt=needs("read", long=True), media_type="text/event-stream")
async def follow_stream(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    attempt: Annotated[int | None, QueryParameter(ge=0, le=MAX_INDEX)] = None,
    after: FromQuery[str | None] = None,
    visibility: Seen = Visibility.ALL,
) -> Stream:
    """The output as server-sent events: of one attempt, or of all from the first on, to the end
    of the execution. An event `frame` has the id `<attempt>:<ms>-<seq>`, which `Last-Event-ID` or
    `after` resumes; `gap` tells of trimmed frames, `closed` of the end of an attempt, `end` of the
    end of the execution."""
    engine, key = engine_of(request), await find_run(request, id)
    index, cursor = _resume(last_event_id(request) or after, attempt)
    # Whatever cannot be followed is refused now: once the answer has begun, its status is 200.
    await engine.streams.tail(key, index, after=cursor, limit=1)
    return event_stream(request, _follow(engine, key, index, cursor, attempt, visibility))


async def _follow(
    engine: Engine,
    id: ExecutionId,
    index: int,
    cursor: str,
    only: int | None,
    visibility: Visibility,
) -> AsyncGenerator[ServerEvent, None]:
    while True:
        page = await engine.streams.tail(
            id, index, after=cursor, block=TAIL_BLOCK, limit=TAIL_PAGE, visibility=visibility
        )
        if page.gap is not None:
            yield ServerEvent("gap", {"attempt_index": index, "through": str(page.gap)})
        for frame in page.frames:
            shown = {"attempt_index": index, "id": str(frame.id), "fields": frame.fields}
            yield ServerEvent("frame", shown, f"{index}:{frame.id}")
        cursor = str(page.cursor)
        if not page.ended or page.closed is None:
            continue
        closed = {"attempt_index": index, "closed_at": page.closed.at}
        yield ServerEvent("closed", {**closed, "closed_reason": str(page.closed.reason)})
        state = await engine.views.state(id)
        last = await engine.views.attempts_made(id) <= index + 1
        if only is not None or state is None or (state in ENDED and last):
            yield ServerEvent("end", {"public_state": None if state is None else str(state)})
            return
        index, cursor = index + 1, "0-0"


def _resume(given: str | None, attempt: int | None) -> tuple[int, str]:
    """The attempt and the place in it after which a stream goes on."""
    if given is None:
        return attempt or 0, "0-0"
    index, colon, cursor = given.rpartition(":")
    parse_after(cursor)  # before the answer begins
    if not colon:
        return attempt or 0, cursor
    if not _is_number(index) or len(index) > 9 or attempt not in (None, int(index)):
        raise Invalid(f"{given[:80]!r} is not a cursor of this stream")
    return int(index), cursor


def _index(text: str) -> int:
    if not _is_number(text) or len(text) > 10 or int(text) >= 1 << 32:
        raise Invalid(f"{text[:80]!r} is no index of an attempt")
    return min(int(text), MAX_INDEX)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _frames(page: FramePage) -> WireFrames:
    frames = [WireFrame(str(frame.id), frame.fields) for frame in page.frames]
    found = WireFrames(frames, len(frames))
    if page.closed is not None:
        found.closed_at, found.closed_reason = page.closed.at, str(page.closed.reason)
    if page.gap is not None:
        found.gap = str(page.gap)
    return found


@contextmanager
def _reader(context: ServerContext) -> Iterator[None]:
    """One of the readers that are served at once: no request waits for its turn."""
    if context.draining.is_set():
        raise Unavailable("the server is draining")
    if context.stream_readers >= context.options.max_stream_readers:
        text = f"{context.stream_readers} readers of streams are served; try again"
        raise Overloaded(text, retry_after=1.0)
    context.stream_readers += 1
    try:
        with followed("stream"):
            yield
    finally:
        context.stream_readers -= 1


HANDLERS = [read_stream, tail_stream, latest_summary, read_summary, follow_stream]
