"""Waiting for the end of runs and flows, and for news of output streams: however many callers wait,
one query per hint answers all of them."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import Corruption, NotFound, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.pages import in_pages
from flowfabric.core.execution.model import Ended, Snapshot
from flowfabric.core.flow.model import Flow
from flowfabric.engine.collector import rare_collections
from flowfabric.engine.commit.background import Background
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.execution.inbox import Inbox
from flowfabric.store.contract import MAX_BATCH, Store
from flowfabric.store.hints import NOTHING, Nudge, Topic, Topics
from flowfabric.store.queries import StreamMarks
from flowfabric.store.readable import load_each
from flowfabric.store.rows.record import FLOWS

T = TypeVar("T")

POLL_FLOOR = 1.0
LONGEST_REST = 0.05
OLDEST = 128
"""So many of the oldest are asked about at once after a hint. It tells of as many as one commit of
a worker has ended, a few dozen, and asking costs by the number that is asked about."""
LONGEST_HINTED = 10.0
"""Seconds until all of them are asked about although hints keep coming, which tell of no deleted
ones."""
MAX_CREATED = 10_000
MANY = 200
"""While so many wait, each holding a dozen objects, the garbage collector looks rarely."""

log = logging.getLogger("flowfabric.watcher")


class Awaited(Protocol[T]):
    """What callers wait for, and how the store is asked about it. `rest` is how many seconds pass
    at least between two looks that hints about its `topics` ask for."""

    noun: str
    rest: float
    topics: Topics

    def exists(self, asked: Any) -> bool:
        """Whether it is known that there is what a caller has asked for."""

    def answer(self, asked: Any, found: T | None) -> T | None:
        """What a caller that asked for this is given now; None if it has to wait. Raises NotFound
        if there is nothing to wait for."""

    async def look(
        self, uuids: Sequence[UUID], *, whole: bool
    ) -> Mapping[UUID, T | Corruption | None]:
        """Those that callers may wait for, or with `whole` all of them as they stand; None: not
        there."""

    def changed_by(self, commit: Commit) -> Mapping[UUID, T | None]:
        """What a commit of this process has changed; None: it has to be looked at."""


class CreatedRuns:
    """The runs that this process has created last and has not ended. Most callers wait for one of
    these: it need not be asked whether they exist. One that another process has ended may have been
    deleted since, which the next look at everything finds."""

    def __init__(self) -> None:
        self._partitions: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def __contains__(self, id: ExecutionId) -> bool:
        number = id.uuid.int
        return self._partitions.get(number, self._before.get(number)) == id.partition_index

    def committed(self, commit: Commit) -> None:
        created = [each.execution for each in commit.created]
        self._partitions.update([(each.uuid.int, each.partition) for each in created])
        for uuid in commit.ended:
            self._partitions.pop(uuid.int, None)
            self._before.pop(uuid.int, None)
        if len(self._partitions) > MAX_CREATED:
            self._before, self._partitions = self._partitions, {}


class AwaitedRuns:
    noun = "execution"
    rest = 0.0
    topics = Topic.ENDINGS

    def __init__(self, store: Store, inbox: Inbox, created: CreatedRuns) -> None:
        self._store = store
        self._inbox = inbox
        self._created = created

    def exists(self, asked: ExecutionId) -> bool:
        return asked in self._created

    def answer(self, asked: ExecutionId, found: Snapshot | None) -> Snapshot | None:
        if found is None or found.execution.partition != asked.partition_index:
            raise NotFound(self.noun, asked)
        return found if isinstance(found.state, Ended) else None

    async def look(
        self, uuids: Sequence[UUID], *, whole: bool
    ) -> Mapping[UUID, Snapshot | Corruption | None]:
        if not whole:
            return await load_each(self._store.ended, uuids)
        found = await load_each(self._inbox.load, uuids)
        return {uuid: found.get(uuid) for uuid in uuids}

    def changed_by(self, commit: Commit) -> Mapping[UUID, Snapshot | None]:
        return dict.fromkeys(commit.ended)


class AwaitedFlows:
    noun = "flow"
    rest = 0.02
    """Every ending of any run is a hint; flows end less often, and most of them in this process."""
    topics = Topic.ENDINGS

    def __init__(self, store: Store) -> None:
        self._store = store

    def exists(self, asked: object) -> bool:
        return False

    def answer(self, asked: object, found: Flow | None) -> Flow | None:
        if found is None or found.id != asked:
            raise NotFound(self.noun, asked)
        return found if found.ended_at is not None else None

    async def look(
        self, uuids: Sequence[UUID], *, whole: bool
    ) -> Mapping[UUID, Flow | Corruption | None]:
        found = await self._store.records.get(FLOWS, uuids)
        return {uuid: found.get(uuid) for uuid in uuids}

    def changed_by(self, commit: Commit) -> Mapping[UUID, Flow | None]:
        return {flow.id: flow for flow in commit.ended_flows}


class SeenStream(Struct, frozen=True):
    """What a reader has seen: the version of the execution's state and of one of its streams."""

    attempt: int
    state: int | None
    version: int


class AwaitedStreams:
    noun = "stream"
    rest = 0.005
    topics = Topic.FRAMES | Topic.ENDINGS

    def __init__(self, store: Store) -> None:
        self._store = store

    def exists(self, asked: object) -> bool:
        return False

    def answer(self, asked: SeenStream, found: StreamMarks | None) -> StreamMarks | None:
        if found is None:
            return None
        version = found.streams.get(asked.attempt, 0)
        return None if (found.state, version) == (asked.state, asked.version) else found

    async def look(
        self, uuids: Sequence[UUID], *, whole: bool
    ) -> Mapping[UUID, StreamMarks | Corruption | None]:
        return await self._store.stream_marks(uuids)

    def changed_by(self, commit: Commit) -> Mapping[UUID, StreamMarks | None]:
        return dict.fromkeys((*commit.framed, *commit.closed, *commit.ended))


class Watcher(Generic[T]):
    def __init__(self, store: Store, awaited: Awaited[T]) -> None:
        self._store = store
        self._awaited = awaited
        self.waiting: dict[UUID, dict[asyncio.Future[T], object]] = {}
        """The callers that wait, and what each of them has asked."""
        self._nudged: dict[UUID, bool] = {}
        """What is looked at next; True where it is not known whether it exists."""
        self._nudge = Nudge()
        self._turn = 0
        self._own_hints = 0
        self._background = Background(f"waiting for a {awaited.noun}", log)
        self._rarely = ExitStack()
        self._many = False

    async def wait(self, asked: object, uuid: UUID, seconds: float | None = None) -> T:
        """The answer to what was asked, once there is one. NotFound if there cannot be: nothing
        has that very id. TimeoutError after so many seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.waiting.setdefault(uuid, {})[future] = asked
        self._look_soon(uuid, whole=not self._awaited.exists(asked))
        if not self._many and len(self.waiting) >= MANY:
            self._many = True
            self._rarely.enter_context(rare_collections())
        if not self._background:
            self._background.start(self._watch)
        # A third of the price of `asyncio.timeout`, and thousands may wait.
        timer = None if seconds is None else loop.call_later(seconds, _time_out, future)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            self._forget(uuid, future)

    def committed(self, commit: Commit) -> None:
        """What this process ended itself is answered at once: its own hints need no look."""
        self._own_hints += (commit.topics & self._awaited.topics).bit_count()
        if not self.waiting:
            return
        for uuid, found in self._awaited.changed_by(commit).items():
            if uuid not in self.waiting:
                continue
            if found is None:
                self._look_soon(uuid, whole=False)
            else:
                self._answer(uuid, found)

    async def close(self) -> None:
        await self._background.cancel()
        self._rarely.close()
        self._fail(list(self.waiting), Unavailable("the engine was closed"))

    def _look_soon(self, uuid: UUID, *, whole: bool) -> None:
        self._nudged[uuid] = whole or self._nudged.get(uuid, False)
        if not self._nudge.is_set():
            self._nudge.set()

    async def _watch(self) -> None:
        try:
            await self._until_none_waits()
        finally:
            self._many = False
            self._rarely.close()

    async def _until_none_waits(self) -> None:
        """Looks at once at what is nudged; at others after hints, and at the poll floor. However
        many nudges there are, those that wait longer have their turn."""
        seen, rests_until, asked_all = self._others_hints, 0.0, time.monotonic()
        floor = asked_all + POLL_FLOOR
        while self.waiting:
            count = self._store.hints.count  # before the next line: other threads send hints too
            hinted = seen != self._others_hints
            due_at = rests_until if hinted else floor
            if self._nudged:
                await self._look_at_nudged()
            else:
                topics = NOTHING if hinted else self._awaited.topics
                await self._pause(due_at - time.monotonic(), topics, count)
            if (began := time.monotonic()) < due_at:
                continue
            seen, everywhere = self._others_hints, not hinted or began - asked_all >= LONGEST_HINTED
            asked_all = began if everywhere else asked_all
            await self._look(everywhere=everywhere)
            # However many wait and however often others hint: no more than half the time.
            ended = time.monotonic()
            rests_until = ended + max(self._awaited.rest, min(LONGEST_REST, ended - began))
            floor = ended + POLL_FLOOR

    async def _look_at_nudged(self) -> None:
        nudged, self._nudged = self._nudged, {}
        for whole in (False, True):
            asked = [uuid for uuid, each in nudged.items() if each is whole]
            await self._look_at([uuid for uuid in asked if uuid in self.waiting], whole=whole)

    @property
    def _others_hints(self) -> int:
        """How many hints there were that are not about commits of this process."""
        return self._store.hints.heard(self._awaited.topics) - self._own_hints

    async def _pause(self, seconds: float, topics: Topics, since: int) -> None:
        """Until a nudge, a hint about one of the topics, or `seconds`."""
        if seconds > 0:
            self._nudge.clear()
            await self._store.hints.wait(seconds, since, topics, self._nudge)

    async def _look(self, *, everywhere: bool) -> None:
        """Asks about the awaited ones: after a hint the oldest first, as long as
        that finds any, and one page more in turn; everywhere at the poll floor."""
        awaited = list(self.waiting)
        if not everywhere:
            awaited = awaited[await self._look_at_oldest(awaited) :]
        pages = list(in_pages(awaited, MAX_BATCH))
        self._turn += 1
        for number, page in enumerate(pages):
            in_turn = number == self._turn % len(pages)
            if everywhere or in_turn:
                await self._look_at(page, whole=everywhere and in_turn)

    async def _look_at_oldest(self, awaited: Sequence[UUID]) -> int:
        """How many of them it has asked about: pages from the front, until one finds nothing."""
        asked, answered = 0, True
        while answered and asked < len(awaited):
            page = awaited[asked : asked + OLDEST]
            answered = await self._look_at(page, whole=False)
            asked += len(page)
        return asked

    async def _look_at(self, uuids: Sequence[UUID], *, whole: bool) -> bool:
        """Answers callers that wait for these; True if there was an answer for any of them."""
        answered = False
        for page in in_pages(uuids, MAX_BATCH):
            try:
                answers = await self._awaited.look(page, whole=whole)
            except Exception as error:
                self._fail(page, error)
                continue
            for uuid, answer in answers.items():
                if isinstance(answer, Corruption):
                    self._fail([uuid], answer)
                else:
                    answered = self._answer(uuid, answer) or answered
        return answered

    def _answer(self, uuid: UUID, found: T | None) -> bool:
        """Answers callers that need not wait any more; True if one got what it waited for."""
        answered = False
        for future, asked in self.waiting.get(uuid, {}).items():
            if future.done():
                continue
            try:
                answer = self._awaited.answer(asked, found)
            except NotFound as error:
                future.set_exception(error)
                continue
            if answer is not None:
                future.set_result(answer)
                answered = True
        return answered

    def _fail(self, uuids: Sequence[UUID], error: Exception) -> None:
        for uuid in uuids:
            for future in self.waiting.get(uuid, ()):
                if not future.done():
                    future.set_exception(error)

    def _forget(self, uuid: UUID, future: "asyncio.Future[T]") -> None:
        waiters = self.waiting.get(uuid)
        if waiters is not None:
            waiters.pop(future, None)
            if not waiters:
                del self.waiting[uuid]


def _time_out(future: "asyncio.Future[T]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())
