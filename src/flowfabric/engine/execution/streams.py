"""Output streams: attempts append to them, readers range over them and follow them.

A reader that waits holds no connection. All readers of a process wait in one `Watcher`, and what
they read after a hint is read together.
"""

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import (
    Corruption,
    FenceRequired,
    Invalid,
    NotFound,
    Overloaded,
    Unavailable,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import check_items, check_kind_of, check_seconds, check_whole
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import stream as rules
from flowfabric.core.execution.attempts import StreamClosing
from flowfabric.core.execution.frame import (
    BEGINNING,
    END,
    MAX_CURSOR,
    MAX_FRAMES,
    Frame,
    FrameId,
    NewFrame,
    StreamMode,
    Visibility,
    check_frame,
    parse_after,
    parse_lower,
    parse_upper,
)
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Attempt, Fence, Gate, Snapshot, Waiting
from flowfabric.core.execution.stream import AppendedFrame, EmitPlace, Summary
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.watcher import AwaitedStreams, SeenStream, Watcher
from flowfabric.engine.context import EngineContext, Service, exactly
from flowfabric.engine.execution.attempts import Attempts, FencedExecution, Owned
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.frame_writes import Append, FrameWrites, Key, kept_of
from flowfabric.store.queries import FrameQuery, FrameRows
from flowfabric.store.readable import load_each

MAX_PAGE = 10_000
"""Most frames of one read."""

MAX_BLOCK = 600.0
"""Longest wait of one tail, in seconds."""

MAX_INDEX = (1 << 31) - 1
MAX_WRITE = (1 << 63) - 1
EXPIRING = 50
"""Streams that expire in one transaction."""


class FramePage(Struct, frozen=True):
    """Frames of one attempt, oldest first.

    `gap` says that frames were trimmed where this page was read: the newest of them had that id.
    `more` says that the limit has cut the page. `closed` is when and why the stream was closed:
    then no frame follows those that can be read now. Continue after `cursor`. `frame_count` is how
    many frames were ever appended.
    """

    frames: tuple[Frame, ...]
    cursor: FrameId
    more: bool = False
    gap: FrameId | None = None
    closed: StreamClosing | None = None
    frame_count: int = 0

    @property
    def ended(self) -> bool:
        """Whether there is nothing to read after this page, now and later."""
        return self.closed is not None and not self.more


class _Ask(Struct, frozen=True):
    id: ExecutionId
    query: FrameQuery


class _Found(Struct, frozen=True):
    """A page, and what to wait for if it is not enough."""

    page: FramePage
    seen: SeenStream


class Streams(Service):
    """`engine.streams`"""

    def __init__(self, context: EngineContext, attempts: Attempts) -> None:
        super().__init__(context)
        self._attempts = attempts
        self._writes = FrameWrites(context)
        self._reads: Batcher[_Ask, _Found] = Batcher("read frames", self._read_all)
        self.watcher = Watcher(context.store, AwaitedStreams(context.store))
        self._readers = 0
        self._closed = False

    async def append(
        self,
        owned: Owned,
        frames: Sequence[NewFrame] | NewFrame,
        *,
        write: int | None = None,
        place: EmitPlace | None = None,
    ) -> tuple[AppendedFrame, ...]:
        """Appends frames to the stream of the attempt that the caller owns: all or, if one is
        refused, none. They are durable when it returns.

        `write` is any number that tells this append from others. A caller that repeats an append,
        because it does not know whether it took effect, gives it the same number again. With the
        `place` of a handler that runs again, only what it has not emitted before is appended."""
        checked = self._checked(frames)
        if write is None:
            write = secrets.randbits(48)
        check_whole(write, "write", 0, MAX_WRITE)
        if place is not None:
            rules.check_place(place)
        id, owner = self._attempts.unpack(owned)
        if isinstance(owned, FencedExecution) or not checked:
            # A bare fence is not signed, and does not say which attempt it is.
            index = await self._decide(id, rules.may_append, owner)
        else:
            index = self._index(owned)
        if not checked:
            return ()
        maxlen = kept_of(owned.snapshot) if isinstance(owned, Claim) else None
        fence = _whole(owner.fence)
        item = Append((id.uuid, index), fence, checked, write, maxlen, place)
        while True:
            try:
                answers = await self._writes.put(item)
            except (Invalid, Corruption):
                await self._decide(id, rules.may_append, owner)  # the fence counts first
                raise
            if answers is not None:
                return answers
            # Refused: the rule says why. If it finds nothing wrong, the lease changed in between.
            await self._decide(id, rules.may_append, owner)

    async def read(
        self,
        id: str,
        attempt: int,
        *,
        start: str | FrameId = "start",
        end: str | FrameId = "end",
        limit: int = 100,
        visibility: Visibility = Visibility.ALL,
    ) -> FramePage:
        """Frames from `start` to `end`, both included: `start`, `end`, `<ms>` or `<ms>-<seq>`.
        NotFound if there is no such execution, or if it has ended without such an attempt."""
        first, last = parse_lower(start), parse_upper(end)
        ask = _ask(id, attempt, (first, last), limit, visibility)
        with self._reader():
            return (await self._reads.put(ask)).page

    async def tail(
        self,
        id: str,
        attempt: int,
        *,
        after: str | FrameId = BEGINNING,
        block: float = 0.0,
        limit: int = 50,
        visibility: Visibility = Visibility.ALL,
    ) -> FramePage:
        """Frames after an id (`0-0`: from the first on), as soon as there is one; an empty page
        when the stream is closed, or after `block` seconds."""
        last_seen, seconds = parse_after(after), check_seconds(block, "block")
        if seconds > MAX_BLOCK:
            raise Invalid(f"a tail can wait at most {MAX_BLOCK:g} seconds")
        ask = _ask(id, attempt, (min(last_seen.next, END), END), limit, visibility)
        with self._reader():
            found = await self._reads.put(ask)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while seconds and _waits(found.page) and not self._closed:
                        await self._news(found.seen, ask.query.uuid)
                        found = await self._reads.put(ask)
            return found.page

    async def summary(self, id: str, attempt: int) -> Summary | None:
        """What the summary frames of an attempt add up to; None before the first."""
        key = ExecutionId(id)
        index = check_whole(attempt, "attempt", 0, MAX_INDEX)
        with self._reader():
            await self._present(key)
            found = await self._context.store.streams([(key.uuid, index)])
        stream = found.get((key.uuid, index))
        if stream is None or stream.summary is None:
            return None
        rules.read_document(stream.summary)
        return stream.summary

    async def expire(self) -> int:
        """Deletes best-effort frames whose time is over; for the sweep."""
        expired = 0
        while page := await self._context.store.expire_frames(self._now(), EXPIRING):
            expired += page
            if page < EXPIRING:
                break
        return expired

    @property
    def readers(self) -> int:
        """How many reads and tails are under way."""
        return self._readers

    async def close(self) -> None:
        """From now on reads and tails are refused; those that wait end at once, with what they
        have."""
        self._closed = True
        await self.watcher.close()

    async def drain(self) -> None:
        await self._writes.drain()
        await self._reads.drain()

    # -- how

    def _checked(self, frames: object) -> tuple[NewFrame, ...]:
        given = (frames,) if isinstance(frames, NewFrame) else check_items(frames, "frames")
        if len(given) > MAX_FRAMES:
            raise Invalid(f"{len(given)} frames in one append, the limit is {MAX_FRAMES}")
        limit = self._context.options.max_frame
        return tuple(check_frame(frame, limit) for frame in given)

    def _index(self, owned: Claim | str) -> int:
        if isinstance(owned, Claim):
            return owned.lease.attempt
        return self._attempts.open(owned).attempt_index

    @contextmanager
    def _reader(self) -> Iterator[None]:
        """One of the readers that are served at the same time."""
        if self._closed:
            raise Unavailable("the engine is closing")
        if self._readers >= self._context.options.stream_readers:
            raise Overloaded(f"{self._readers} callers already read streams", retry_after=1.0)
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    async def _news(self, seen: SeenStream, uuid: UUID) -> None:
        """Returns when a stream, or its run, is not as it was seen, or when the engine closes."""
        try:
            await self.watcher.wait(seen, uuid)
        except Unavailable:
            if not self._closed:
                raise

    async def _read_all(self, asks: list[_Ask]) -> list[_Found | Exception]:
        """The states first, then the frames: of a stream that was closed no frame can be missed."""
        uuids = list(dict.fromkeys(ask.query.uuid for ask in asks))
        snapshots = await load_each(self._context.inbox.load, uuids)
        past = await self._past_attempts(asks, snapshots)
        rows = await self._context.store.read_frames([ask.query for ask in asks])
        now = self._now()
        answers: list[_Found | Exception] = []
        for ask, found in zip(asks, rows, strict=True):
            snapshot, key = snapshots.get(ask.query.uuid), (ask.query.uuid, ask.query.attempt)
            if isinstance(snapshot, Corruption):
                answers.append(snapshot)
                continue
            if isinstance(found, Corruption):
                answers.append(found)
                continue
            try:
                answers.append(_found(ask, exactly(snapshot, ask.id), past.get(key), found, now))
            except NotFound as error:
                answers.append(error)
        return answers

    async def _past_attempts(
        self, asks: Sequence[_Ask], snapshots: Mapping[UUID, Snapshot | Corruption]
    ) -> dict[Key, Attempt]:
        """The attempts that are asked for and have a row in history; one index of each execution at
        a time, as the store answers."""
        wanted = {
            (ask.query.uuid, ask.query.attempt)
            for ask in asks
            if _is_past(snapshots.get(ask.query.uuid), ask.query.attempt)
        }
        found: dict[Key, Attempt] = {}
        while wanted:
            turn = {uuid: index for uuid, index in wanted}
            wanted -= set(turn.items())
            rows = await self._context.store.attempts_at(list(turn.items()))
            found |= {(uuid, turn[uuid]): attempt for uuid, attempt in rows.items()}
        return found


def _ask(
    id: str,
    attempt: int,
    between: tuple[FrameId, FrameId],
    limit: int,
    visibility: Visibility,
) -> _Ask:
    key = ExecutionId(id)
    index = check_whole(attempt, "attempt", 0, MAX_INDEX)
    most = check_whole(limit, "limit", 1, MAX_PAGE)
    modes = rules.visible_modes(check_kind_of(visibility, Visibility, "visibility"))
    # One more than asked for says whether there are more.
    return _Ask(key, FrameQuery(key.uuid, index, *between, most + 1, modes))


def _found(
    ask: _Ask, snapshot: Snapshot | None, past: Attempt | None, found: FrameRows, now: Millis
) -> _Found:
    snapshot = present(snapshot, ask.id)
    query, stream = ask.query, found.stream
    closed = rules.closing(snapshot, query.attempt, past)
    frames, gaps = found.frames, [found.gaps[mode] for mode in query.modes if mode in found.gaps]
    if stream is not None and stream.expired(now):  # it has best-effort frames only
        frames, gaps = (), [stream.header.last] if StreamMode.BEST_EFFORT in query.modes else []
    page = frames[: query.limit - 1]
    last = page[-1].id if len(frames) > len(page) else query.last
    gap = max(_gaps_within(query.first, last, gaps, page), default=None)
    passed = [*(frame.id for frame in page[-1:]), *([] if gap is None else [gap])]
    waiting = isinstance(snapshot.state, Waiting) and snapshot.state.gate is Gate.INBOX
    return _Found(
        FramePage(
            frames=page,
            cursor=max(passed, default=_before(query.first)),
            more=len(frames) > len(page),
            gap=gap,
            closed=closed,
            frame_count=0 if stream is None else stream.header.frame_count,
        ),
        SeenStream(
            query.attempt,
            None if waiting else snapshot.head.version,
            0 if stream is None else stream.version,
        ),
    )


def _gaps_within(
    first: FrameId, last: FrameId, gaps: Sequence[FrameId], page: Sequence[Frame]
) -> Iterator[FrameId]:
    """Trimmed frames from `first` to `last`, the newest among them. A mode that was trimmed further
    than `last` has no frame in the page. That leaves holes, because the numbers of frames have
    none: 1, 4 with a gap at 5 misses 2 and 3."""
    yield from (gap for gap in gaps if first <= gap <= last)
    if all(gap <= last for gap in gaps):
        return
    places = [frame.id for frame in page]
    if first.ms == 0 or first.seq > 1:  # the number that comes first is known
        places.insert(0, _before(first))
    if last.seq < MAX_CURSOR:  # and the one that comes last
        places.append(last.next)
    for place, following in pairwise(places):
        if following.seq > place.seq + 1:
            yield FrameId(following.ms, following.seq - 1)


def _before(first: FrameId) -> FrameId:
    """The id after which `first` comes."""
    return FrameId(first.ms, max(0, first.seq - 1))


def _waits(page: FramePage) -> bool:
    return not page.frames and page.closed is None


def _is_past(snapshot: Snapshot | Corruption | None, index: int) -> bool:
    if not isinstance(snapshot, Snapshot) or index >= snapshot.attempts_made:
        return False
    return rules.attempt_in(snapshot, index) is None


def _whole(fence: Fence | None) -> Fence:
    if fence is None:
        raise FenceRequired("only the owner of a lease can append to its stream")
    return fence
