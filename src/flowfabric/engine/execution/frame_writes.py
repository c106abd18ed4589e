"""Appends to output streams, batched: one statement for all streams of a flush.

The owner of a lease is the only writer of its stream, so the header of a stream that was appended
to is remembered: the next append is one statement and no read. If the stream has moved all the same
(two requests with one handle), it is read and decided again.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Literal
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import Corruption, Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.frame import NewFrame
from flowfabric.core.execution.model import Fence, Snapshot
from flowfabric.core.execution.stream import (
    KEPT_DURABLE,
    AppendedFrame,
    Appending,
    EmitPlace,
    Stream,
    StreamHeader,
    append,
    together,
)
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.engine.context import EngineContext
from flowfabric.store.queries import FrameWrite
from flowfabric.store.readable import load_each

Key = tuple[UUID, int]

ROUNDS = 100
"""How often an append is tried that loses against another process with the same lease."""

REMEMBERED = 1024
"""How many headers are remembered."""

REMEMBERED_SUMMARY = 1 << 16
"""The largest summary, in bytes, that is remembered with a header."""


class Append(Struct, frozen=True):
    """One call. `maxlen` is how many durable frames the stream keeps, None if that has to be
    looked up in case it begins with this."""

    key: Key
    fence: Fence
    frames: tuple[NewFrame, ...]
    write: int
    maxlen: int | None = None
    place: EmitPlace | None = None


Settled = tuple[AppendedFrame, ...] | None
"""Of an append; None: its lease does not stand."""

Answer = Settled | Exception | Literal[RaceLost.RACE_LOST]


class FrameWrites:
    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._store = context.store
        self._known: OrderedDict[Key, Stream] = OrderedDict()
        self._batcher: Batcher[Append, Settled | Literal[RaceLost.RACE_LOST]] = Batcher(
            "frames", self._flush, weight=_weight
        )

    async def put(self, item: Append) -> tuple[AppendedFrame, ...] | None:
        """The answer once the frames are durable; None if the lease does not stand."""

        async def round(number: int) -> Settled | Literal[RaceLost.RACE_LOST]:
            return await self._batcher.put(item)

        return await retry(round, "a stream", ROUNDS)

    async def drain(self) -> None:
        await self._batcher.drain()

    async def _flush(self, items: list[Append]) -> list[Answer]:
        """One try for each. What has lost against another process comes again in a flush of its
        own time, so that it keeps no other stream waiting and fails none."""
        answers: dict[int, Answer] = {}
        every = dict(enumerate(items))
        streams = await self._learn(every, answers)
        while waiting := {at: item for at, item in every.items() if at not in answers}:
            refused = await self._try(waiting, streams, answers)
            for key, tried in refused.items():
                found = (await self._store.streams([key])).get(key, streams[key])
                if found.version == streams[key].version:
                    answers.update(dict.fromkeys(tried))  # as it was decided on: it is the fence
                else:
                    self._remember(found)
                    answers.update(dict.fromkeys(tried, RACE_LOST))
        return [answers[at] for at in every]

    async def _try(
        self, waiting: dict[int, Append], streams: dict[Key, Stream], answers: dict[int, Answer]
    ) -> dict[Key, list[int]]:
        """Decides and writes; returns the appends to streams that were refused. Several leases of
        one attempt do not ride together, because the store answers by stream."""
        now = self._store.clock.now()
        fences = {item.key: item.fence for item in reversed(waiting.values())}
        at_once = Counter(item.key for item in waiting.values())
        parts: dict[Key, dict[int, Appending]] = {}
        for at, item in waiting.items():
            if fences[item.key] != item.fence:
                continue
            earlier = parts.setdefault(item.key, {})
            stream = [streams[item.key], *(part.stream for part in earlier.values())][-1]
            try:
                part = append(stream, now, item.frames, item.write, item.place, at_once[item.key])
            except (Invalid, Corruption) as error:
                answers[at] = error
                continue
            if part.frames:
                earlier[at] = part
            else:  # a repeated call, or a handler that runs again
                answers[at] = part.answers
        writes = [
            _write(fences[key], streams[key].version, list(each.values()))
            for key, each in parts.items()
            if each
        ]
        written = await self._send(writes, now) if writes else set()
        for key in written:
            answers.update((at, part.answers) for at, part in parts[key].items())
        return {write.key: list(parts[write.key]) for write in writes if write.key not in written}

    async def _send(self, writes: list[FrameWrite], now: Millis) -> set[Key]:
        for write in writes:  # until it is known to stand: the outcome of an error is not known
            self._known.pop(write.key, None)
        written = await self._store.write_frames(writes, now)
        for write in writes:
            if write.key in written:
                self._remember(write.appending.stream)
        if written:
            self._context.post_commit.framed(dict.fromkeys(uuid for uuid, _ in written))
        return written

    async def _learn(
        self, waiting: dict[int, Append], answers: dict[int, Answer]
    ) -> dict[Key, Stream]:
        """The streams of these appends, as they are remembered or stored."""
        items = {item.key: item for item in waiting.values()}
        streams: dict[Key, Stream] = {}
        for key in items:
            if key in self._known:
                self._known.move_to_end(key)
                streams[key] = self._known[key]
        unknown = [key for key in items if key not in streams]
        stored = await load_each(self._store.streams, unknown)
        fresh = await self._begin([item for key, item in items.items() if key in unknown])
        for key in unknown:
            found = stored.get(key)
            if isinstance(found, Corruption):
                answers.update((at, found) for at, item in waiting.items() if item.key == key)
            streams[key] = found if isinstance(found, Stream) else fresh[key]
        return streams

    async def _begin(self, items: Iterable[Append]) -> dict[Key, Stream]:
        """Streams without a frame. How many durable ones they keep is a matter of the run."""
        items = list(items)
        unsure = [item.key[0] for item in items if item.maxlen is None]
        found = await load_each(self._store.load, unsure)
        begun: dict[Key, Stream] = {}
        for item in items:
            snapshot, maxlen = found.get(item.key[0]), item.maxlen
            if maxlen is None:
                maxlen = kept_of(snapshot) if isinstance(snapshot, Snapshot) else KEPT_DURABLE
            uuid, attempt = item.key
            header = StreamHeader(maxlen=maxlen)
            begun[item.key] = Stream(uuid=uuid, attempt=attempt, header=header)
        return begun

    def _remember(self, stream: Stream) -> None:
        if stream.summary is not None and len(stream.summary.document) > REMEMBERED_SUMMARY:
            return
        self._known[stream.uuid, stream.attempt] = stream
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def kept_of(snapshot: Snapshot) -> int:
    """How many durable frames the streams of a run keep."""
    policy = snapshot.execution.rules.stream_policy
    return KEPT_DURABLE if policy is None else policy.retention_maxlen


def _write(fence: Fence, expected: int, parts: list[Appending]) -> FrameWrite:
    return FrameWrite(fence.lease_id, fence.epoch, expected, together(parts))


def _weight(item: Append) -> int:
    return sum(len(frame.payload) + 100 for frame in item.frames)
