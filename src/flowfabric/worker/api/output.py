"""The output of a run as its readers see it: `run.stream()` and `run.summary()`."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.ids import RunId
from flowfabric.core.base.numbers import check_whole
from flowfabric.core.base.time import to_datetime
from flowfabric.core.execution.frame import (
    BEGINNING,
    Encoding,
    Frame,
    FrameId,
    Visibility,
)
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.streams import FramePage
from flowfabric.worker.codec import decode

Mode = Literal["durable", "summary", "best_effort"]

PAGE = 500
BLOCK = 30.0
"""Seconds that one look at a stream waits for news."""

_CURSOR = re.compile(r"([1-9][0-9]{0,8}):([0-9]+-[0-9]+)", re.ASCII)


class RunFrame(Struct, frozen=True, kw_only=True):
    """One thing that a run has emitted. `value` is what it emitted: text, bytes, or what is left of
    any other value in JSON. `attempt` counts from 1. `summary_version` is how many patches the
    summary of the attempt had with this one.

    `cursor` continues after this frame. `gap` says that frames just before this one were deleted
    before they were read here: they were too many, or too old.
    """

    cursor: str
    attempt: int
    type: str
    at: datetime
    value: Any
    mode: Mode
    correlation: str | None = None
    summary_version: int | None = None
    gap: bool = False


async def follow_output(
    engine: Engine,
    id: RunId,
    *,
    after: str | None,
    attempt: int | None,
    follow: bool,
    best_effort: bool,
) -> AsyncGenerator[RunFrame, None]:
    """The frames of all attempts, or of one, in order; see `Run.stream`."""
    index, last = (0, BEGINNING) if after is None else _read_cursor(after)
    if attempt is not None:
        only = check_whole(attempt, "attempt", 1) - 1
        index, last = only, last if index == only else BEGINNING
    visibility = Visibility.ALL if best_effort else Visibility.EXCLUDE_BEST_EFFORT
    look = partial(_tail if follow else _read, engine, id, visibility)
    first, gap = index, None
    while (page := await _look(look, index, last, first)) is not None:
        gap = page.gap or gap
        for frame in page.frames:
            after_gap = gap is not None and frame.id > gap
            yield _run_frame(frame, index, gap=after_gap)
            gap = None if after_gap else gap
        last = page.cursor
        if page.ended and attempt is None:
            index, last, gap = index + 1, BEGINNING, None
        elif page.ended or not (page.more or follow):
            return


async def _read(
    engine: Engine, id: RunId, visibility: Visibility, index: int, last: FrameId
) -> FramePage:
    return await engine.streams.read(id, index, start=last.next, limit=PAGE, visibility=visibility)


async def _tail(
    engine: Engine, id: RunId, visibility: Visibility, index: int, last: FrameId
) -> FramePage:
    return await engine.streams.tail(
        id, index, after=last, block=BLOCK, limit=PAGE, visibility=visibility
    )


async def _look(
    look: Callable[[int, FrameId], Awaitable[FramePage]], index: int, last: FrameId, first: int
) -> FramePage | None:
    """The next page; None if the attempt before was the last one."""
    try:
        return await look(index, last)
    except NotFound as error:
        if error.entity != "attempt":
            raise NotFound("run", error.key) from None
        if index == first:
            raise NotFound("attempt", index + 1) from None
        return None


async def summary_of(engine: Engine, id: RunId, attempt: int | None) -> Any:
    """The summary of an attempt, or of the last one that has one."""
    try:
        if attempt is not None:
            indexes = [check_whole(attempt, "attempt", 1) - 1]
        else:
            indexes = list(reversed(range(await engine.views.attempts_made(id))))
        for index in indexes:
            found = await engine.streams.summary(id, index)
            if found is not None:
                return decode(bytes(found.document), Any, f"the summary of run {id}")
    except NotFound:
        raise NotFound("run", id) from None
    return None


def _run_frame(frame: Frame, index: int, *, gap: bool) -> RunFrame:
    return RunFrame(
        cursor=f"{index + 1}:{frame.id}",
        attempt=index + 1,
        type=frame.type,
        at=to_datetime(frame.at),
        value=_value(frame),
        mode=frame.mode.word,  # type: ignore[arg-type]
        correlation=frame.correlation,
        summary_version=frame.summary_version,
        gap=gap,
    )


def _value(frame: Frame) -> Any:
    match frame.encoding:
        case Encoding.JSON:
            return decode(frame.payload, Any, f"frame {frame.id}")
        case Encoding.UTF8:
            return frame.payload.decode()
        case Encoding.BINARY:
            return frame.payload


def _read_cursor(cursor: object) -> tuple[int, FrameId]:
    match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if match is None:
        shown = str(cursor)[:80]
        raise Invalid(f"{shown!r} is not a cursor of a stream, such as 1:1700000000000-7")
    return int(match[1]) - 1, FrameId.parse(match[2])
