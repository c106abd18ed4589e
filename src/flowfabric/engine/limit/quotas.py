"""Quotas: define them, and show how full they are."""

from contextlib import suppress
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.errors import NotEligible, NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.status import Blocking
from flowfabric.core.limit.check_admission import (
    Admission,
    AdmissionReleased,
    Admitted,
    RateExceeded,
    admit_one,
    gave_back,
    give_back,
    has_room,
)
from flowfabric.core.limit.quota import Quota, Use, check_quota, check_quota_name, queue_of
from flowfabric.core.limit.release import Release, Room, limits_since
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.commit.records import find, listed
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.limit.releases import Releases
from flowfabric.store.hints import Topic
from flowfabric.store.queries import QueueCount, QuotaViewRequest
from flowfabric.store.rows.record import QUOTAS

MAX_KEYS = 100_000


class QuotaStatus(Struct, frozen=True):
    """How full a quota is: altogether, and by key (the first hundred thousand). `admitted` have a
    slot: of those `running` are with a worker, the others wait for one. `opens_at` is when another
    start is allowed, None when one is allowed now or no rate is set; `key_opens_at` the same by
    key, for keys that executions wait with and whose own rate is used up. `started` are the starts
    within the window of the rate, None without one."""

    quota: Quota
    running: int
    waiting: int
    keys: tuple[QueueCount, ...]
    opens_at: Millis | None = None
    admitted: int = 0
    key_opens_at: dict[str, Millis] = field(default_factory=dict)
    started: int | None = None


class Quotas(Service):
    """`engine.quotas`"""

    def __init__(self, context: EngineContext, releases: Releases) -> None:
        super().__init__(context)
        self._releases = releases

    async def create(self, quota: Quota) -> bool:
        """Creates a quota; False if one of that name exists, which stays as it is."""
        return await self._write(quota, over=False)

    async def define(self, quota: Quota) -> bool:
        """Creates a quota (True), or gives an existing one these limits. Waiting executions are
        admitted at once if there is room; running ones are never stopped."""
        return await self._write(quota, over=True)

    async def get(self, name: str) -> Quota:
        asked = check_quota_name(name)
        found = await find(self._context.store, QUOTAS, asked)
        if found is None:
            raise NotFound("quota", asked)
        return found

    async def list(self, *, after: str = "", limit: int = 100) -> list[Quota]:
        """Quotas by name, after a cursor."""
        return await listed(self._context.store, QUOTAS, after, limit)

    async def delete(self, name: str) -> bool:
        """Deletes a quota and admits the executions that waited for it; False if there was none."""
        asked = check_quota_name(name)
        gone = await self._context.store.records.drop(QUOTAS, asked)
        self._context.known_limits.quotas.discard(asked)
        if gone:
            self._releases.gone(asked)
        return gone

    async def status(self, name: str) -> QuotaStatus:
        """How full a quota is."""
        quota = await self.get(name)
        await self._settle((quota.name,))
        counts = await self._context.store.queue_counts(quota.name, MAX_KEYS)
        now = self._now()
        lines = MAX_KEYS if quota.rate_per_key is not None else 1
        view = await self._context.store.quota_view(
            QuotaViewRequest(quota.name, None, lines, 1, now)
        )
        room = Room(view, now)
        own = [use for line in view.lines for use in line.uses if use.quota == quota.name]
        uses = {"": Use(quota=quota.name)} | {use.key: use for use in own}
        waits = room.used_up(tuple(uses.values()))
        return QuotaStatus(
            quota=quota,
            running=sum(count.running for count in counts),
            admitted=sum(count.held for count in counts),
            waiting=sum(count.waiting for count in counts),
            keys=tuple(counts),
            opens_at=max((wait.opens_at for wait in waits if not wait.of_key), default=None),
            key_opens_at={wait.use.key: wait.opens_at for wait in waits if wait.of_key},
            started=room.started(quota),
        )

    async def check_admission(self, name: str, id: str) -> Admission:
        """Asks a quota for one execution: `Admitted`, `RateExceeded` with the time after which to
        ask again, or `ConcurrencyExceeded`. The asking execution takes the room that is there, in
        all quotas it uses or in none, without waiting for its turn; asking again takes no more.
        `NotEligible` if it waits for something else, `Invalid` if it does not use the quota."""
        asked, returned = check_quota_name(name), False

        async def round(_: int) -> Admission | Literal[RaceLost.RACE_LOST]:
            nonlocal returned
            snapshot = await self._present(id)
            await self.get(asked)
            if gave_back(snapshot):  # it returns to its line, where it may be admitted at once
                with suppress(NotEligible):
                    await self._decide(id, operator.unblock, str(Blocking.QUOTA))
                    returned = True
                return RACE_LOST
            if has_room(snapshot, asked):
                return Admitted(snapshot.execution.id, already=not returned)
            return await self._admit(snapshot, asked)

        return await retry(round, f"run {id}")

    async def release_admission(self, name: str, id: str) -> AdmissionReleased:
        """Gives back the room of an execution that was admitted and not started, in all quotas it
        uses, and its start within their rates. It returns to its line after a few seconds, or when
        `check_admission` asks for it. Has no effect on one without room, so that it can be
        repeated; `NotEligible` if it is granted to a worker or has started."""
        asked, key = check_quota_name(name), ExecutionId(id)
        await self.get(asked)
        await self._decide(key, give_back, asked)
        await self._releases.unbegun.take_back()
        return AdmissionReleased(key)

    async def _admit(
        self, snapshot: Snapshot, quota: str
    ) -> Admission | Literal[RaceLost.RACE_LOST]:
        """Admits one execution that waits for its limits, or says which limit has no room."""
        store, now, uses = self._context.store, self._now(), snapshot.execution.uses
        queue = queue_of(uses)
        await store.put_queues([(queue, uses)])
        view = await store.quota_view(QuotaViewRequest(quota, (queue,), 1, 1, now))
        decided = admit_one(snapshot, now, quota, view)
        if decided is None:
            return RACE_LOST
        if not isinstance(decided, Release):
            reason = "rate" if isinstance(decided, RateExceeded) else "concurrency"
            watching().refused_by_quota(reason)
            return decided
        moved = await store.release(decided)
        if moved is None or snapshot.execution.uuid not in moved:
            return RACE_LOST
        store.hints.send(Topic.WORK)
        return Admitted(snapshot.execution.id)

    async def _write(self, quota: Quota, *, over: bool) -> bool:
        checked = check_quota(check_kind_of(quota, Quota, "quota"))
        store, now, first = self._context.store, self._now(), self._first_version()

        async def round(_: int) -> bool | Literal[RaceLost.RACE_LOST]:
            old = await find(store, QUOTAS, checked.name)
            if old is not None and (not over or old.limits == checked.limits):
                return False
            # Read between the quota and the write, so that its version covers what was served.
            view = await store.quota_view(QuotaViewRequest(checked.name, (), 1, 1, now))
            created_at = now if old is None else old.created_at
            new = limits_since(checked, view, now)
            new = replace(new, version=first, created_at=created_at, updated_at=now)
            if not await store.records.put(QUOTAS, new, 0 if old is None else old.version):
                return RACE_LOST
            self._context.known_limits.quotas.add(checked.name)
            self._releases.changed(new)
            return old is None

        return await retry(round, QUOTAS.title(checked.name))
