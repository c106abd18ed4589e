"""Stores that make trouble in front of a store that works.

`Rivals` commits somebody else's change at the worst moment: after the engine has loaded and
decided, before it writes. `LostReplies` lets a write happen and then says that the store could
not be reached. Both do nothing until they are armed.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.registry import FOREVER
from flowfabric.core.execution.submission import Creation
from flowfabric.core.execution.sweep_filter import EVERY_RUN, SweepFilter
from flowfabric.core.flow.progress import DownstreamChange
from flowfabric.core.limit.at_submission import Admissions
from flowfabric.core.limit.release import Release
from flowfabric.core.limit.spend import BudgetLedger
from flowfabric.store.contract import RecordStore, Store
from flowfabric.store.queries import (
    ChangedByEnds,
    ClaimCall,
    LinesRequest,
    OtherVersion,
    Renewal,
    ServedLines,
    SideWrite,
    Taken,
)

Rival = Callable[[UUID], Awaitable[None]]
Call = Callable[..., Awaitable[Any]]
Meanwhile = Callable[[], Awaitable[None]]
T = TypeVar("T")


class Wrapper:
    """Every method of the store behind it, unless a subclass has its own."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def records(self) -> RecordStore:
        return cast(RecordStore, WrappedRecords(self))

    async def on_record(self, name: str, call: Call, *args: Any, **named: Any) -> Any:
        """A call of a method of `records`."""
        return await call(*args, **named)

    @property
    def store(self) -> Store:
        """The wrapper, as what it stands for."""
        return cast(Store, self)


class WrappedRecords:
    """The records of a store behind a wrapper, which is asked about every call."""

    def __init__(self, wrapper: Wrapper) -> None:
        self._wrapper = wrapper

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._wrapper.inner.records, name)
        return partial(self._wrapper.on_record, name, call)


class Rivals(Wrapper):
    """Between a decision and its write a rival changes every record the write is about."""

    rival: Rival | None = None
    """Who will be faster at the next write."""
    meanwhile: Meanwhile | None = None
    """What happens before the next write, whatever it is about."""

    async def renew(self, renewals: Sequence[Renewal], now: Millis) -> dict[UUID, Millis]:
        await self._interfere([renewal.uuid for renewal in renewals])
        return await self.inner.renew(renewals, now)

    async def end(
        self,
        changes: Sequence[Change[object]],
        now: Millis,
        downstreams: Sequence[DownstreamChange] = (),
    ) -> ChangedByEnds:
        await self._interfere(_decided_on([*changes, *(each.change for each in downstreams)]))
        return await self.inner.end(changes, now, downstreams)

    async def write_progress(self, notes: Sequence[SideWrite], now: Millis) -> set[UUID]:
        await self._interfere([note.uuid for note in notes])
        return await self.inner.write_progress(notes, now)

    async def apply(self, changes: Sequence[Change[object]]) -> set[UUID]:
        await self._interfere(_decided_on(changes))
        return await self.inner.apply(changes)

    async def release(self, release: Release) -> set[UUID] | None:
        await self._interfere([candidate.uuid for candidate in release.moves])
        return await self.inner.release(release)

    async def serve(self, ask: LinesRequest) -> ServedLines | OtherVersion | None:
        await self._interfere([])
        return await self.inner.serve(ask)

    async def submit_and_admit(
        self, creations: Sequence[Creation], admissions: Admissions, now: Millis
    ) -> tuple[list[ExecutionId | None], bool]:
        await self._interfere([])
        return await self.inner.submit_and_admit(creations, admissions, now)

    async def post(self, books: BudgetLedger) -> bool:
        await self._interfere([])
        return await self.inner.post(books)

    async def on_record(self, name: str, call: Call, *args: Any, **named: Any) -> Any:
        if name == "put":
            await self._interfere([])
        return await call(*args, **named)

    async def _interfere(self, uuids: Sequence[UUID]) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        if not uuids:
            return
        rival, self.rival = self.rival, None
        if rival is not None:
            for uuid in uuids:
                await rival(uuid)


class LostReplies(Wrapper):
    """The reply of the next write that writes something is lost."""

    armed = False

    async def submit(self, creations: Sequence[Creation], now: Millis) -> list[ExecutionId | None]:
        return self._lose(await self.inner.submit(creations, now))

    async def claim(self, call: ClaimCall, now: Millis) -> list[Taken]:
        """Whoever loses the reply of a claim repeats the call and says so."""
        try:
            return self._lose(await self.inner.claim(call, now))
        except Unavailable:
            return await self.inner.claim(replace(call, repeated=True), now)

    async def claim_all(self, calls: Sequence[ClaimCall], now: Millis) -> list[list[Taken]]:
        taken = await self.inner.claim_all(calls, now)
        try:
            return self._lose(taken) if any(taken) else taken
        except Unavailable:
            again = [replace(call, repeated=True) for call in calls]
            return await self.inner.claim_all(again, now)

    async def renew(self, renewals: Sequence[Renewal], now: Millis) -> dict[UUID, Millis]:
        return self._lose(await self.inner.renew(renewals, now))

    async def end(
        self,
        changes: Sequence[Change[object]],
        now: Millis,
        downstreams: Sequence[DownstreamChange] = (),
    ) -> ChangedByEnds:
        return self._lose(await self.inner.end(changes, now, downstreams))

    async def write_progress(self, notes: Sequence[SideWrite], now: Millis) -> set[UUID]:
        return self._lose(await self.inner.write_progress(notes, now))

    async def apply(self, changes: Sequence[Change[object]]) -> set[UUID]:
        return self._lose(await self.inner.apply(changes))

    async def release(self, release: Release) -> set[UUID] | None:
        return self._lose(await self.inner.release(release))

    async def serve(self, ask: LinesRequest) -> ServedLines | OtherVersion | None:
        return self._lose(await self.inner.serve(ask))

    async def submit_and_admit(
        self, creations: Sequence[Creation], admissions: Admissions, now: Millis
    ) -> tuple[list[ExecutionId | None], bool]:
        return self._lose(await self.inner.submit_and_admit(creations, admissions, now))

    async def post(self, books: BudgetLedger) -> bool:
        return self._lose(await self.inner.post(books))

    async def on_record(self, name: str, call: Call, *args: Any, **named: Any) -> Any:
        answer = await call(*args, **named)
        return self._lose(answer) if name == "put" else answer

    async def trim(
        self,
        ended_before: Millis,
        now: Millis,
        limit: int,
        unread_from: Millis = FOREVER,
        wanted: SweepFilter = EVERY_RUN,
    ) -> int:
        return self._lose(await self.inner.trim(ended_before, now, limit, unread_from, wanted))

    def _lose(self, reply: T) -> T:
        if self.armed and reply:
            self.armed = False
            raise Unavailable("the reply was lost")
        return reply


def _decided_on(changes: Sequence[Change[object]]) -> list[UUID]:
    return [change.before.execution.uuid for change in changes if change.before is not None]
