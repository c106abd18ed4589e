"""Admits runs through their quotas: right after a commit that made room, and again by the sweep.

Only this module admits runs that wait for a quota. A release loads the quota and its lines,
`core.limit.release` decides, and the store writes if the quota has not changed. Losing that race is
harmless: a run is never admitted twice."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, RetryExhausted
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Execution, Snapshot
from flowfabric.core.execution.policy import DEFAULT_POLICY
from flowfabric.core.limit.known_quota import KnownQuota
from flowfabric.core.limit.quota import Quota, Uses
from flowfabric.core.limit.release import QuotaView, Release, release
from flowfabric.core.limit.unclaimable import Unclaimable
from flowfabric.engine.commit.background import Background
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.limit.known_lines import KnownLines, LineEvent
from flowfabric.engine.limit.unbegun import UnbegunStarts
from flowfabric.engine.limit.unclaimable import ClosedRoutes
from flowfabric.store.hints import Topic
from flowfabric.store.queries import QuotaViewRequest

MAX_MOVES = 500
LEAST = 32
FIRST_LINES = 64
KEYED_LINES = 500
AT_ONCE = 4
REFRESH = 1.0
"""Seconds until lines that only other processes know of are looked at."""

_ROUTE = attrgetter("route")

log = logging.getLogger("flowfabric.limits")


class ReleaseShape(Enum):
    """What a quota limits: everything, each key, or both."""

    WHOLE = auto()
    PER_KEY = auto()
    MIXED = auto()


class ReleaseLook(Struct, frozen=True):
    """One look at a quota: what was seen and decided, and how many runs were moved; None if none
    can be admitted."""

    view: QuotaView
    decided: Release
    moved: int | None = None


class Releases(Service):
    """Admits executions through their quotas."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self._background = Background("admitting runs through quotas", log)
        self._rounds = context.rounds
        self._dirty, self._busy = self._rounds.dirty, self._rounds.busy
        self._shapes: dict[str, ReleaseShape] = {}
        self._paces: dict[str, int] = {}
        self._shared: set[str] = set()
        self._looked_at: dict[str, float] = {}
        self._moved_at: dict[str, int] = {}
        self._moves = count(1)
        self._opens_at: dict[str, Millis] = {}
        self.unbegun = UnbegunStarts(context)
        self.closed = ClosedRoutes(context)
        self.lines = KnownLines(context, self.closed)

    def committed(self, commit: Commit) -> None:
        if commit.limited:
            self.unbegun.note(commit.unbegun)
            self.kick(commit.limited)
        if commit.queued:
            self.kick(commit.queued, KnownQuota.wait)
        if commit.freed:
            self.kick(commit.freed, partial(KnownQuota.give_back, looks=commit.looks))

    def kick(self, executions: Collection[Execution], event: LineEvent = KnownQuota.forget) -> None:
        """Looks at the limits of executions that wait for them or have given room back. The event
        is what has happened in their lines; without one that is known for sure, their slots are
        counted."""
        lines: dict[str, list[int]] = {}
        met: dict[int, Uses] = {}
        for execution in executions:
            policy = execution.policy or DEFAULT_POLICY
            queue = policy.queue
            met[queue] = uses = policy.quotas
            for use in uses:
                if (line := lines.get(use.quota)) is None:
                    line = lines[use.quota] = []
                line.append(queue)
        for uses in self.lines.meet(met):
            self._shared.update(_shared_by(uses))
        for quota, queues in lines.items():
            self.lines.note(quota, queues, event)
            if (dirty := self._dirty.setdefault(quota, set())) is not None:
                dirty.update(queues)
        self.closed.meet(map(_ROUTE, executions))
        self._start()

    def changed(self, quota: Quota) -> None:
        """Looks at a quota that has other limits now."""
        self._shapes[quota.name] = _shape(quota)
        self._dirty[quota.name] = None
        self._start()

    def gone(self, name: str) -> None:
        """Admits what waited for a deleted quota."""
        self.lines.forget(name)
        self._dirty[name] = None
        self._start()

    @property
    def next_at(self) -> Millis | None:
        """When a rate has room for a run that waits."""
        return min(self._opens_at.values(), default=None)

    def forget_rates(self) -> None:
        """Every line is looked at again, so what was known of rates is not needed."""
        self._opens_at.clear()

    def reopen(self, now: Millis) -> None:
        """Looks at the quotas whose rate has room again."""
        for quota in [name for name, at in self._opens_at.items() if at <= now]:
            del self._opens_at[quota]
            self._dirty[quota] = None
        self._start()

    @property
    def busy(self) -> bool:
        return bool(self._background)

    async def drain(self) -> None:
        await self._background.drain()

    async def look_at(self, known: Mapping[int, Uses]) -> None:
        """Admits the first of these queues, and those behind, as far as there is room."""
        lines: dict[str, set[int]] = {}
        for queue, uses in known.items():
            self._shared.update(_shared_by(uses))
            for use in uses:
                lines.setdefault(use.quota, set()).add(queue)
        for quota, queues in lines.items():
            self.lines.note(quota, queues, KnownQuota.forget)
            await self._serve(quota, queues)

    def turned_away(self, snapshots: Sequence[Snapshot]) -> None:
        """These executions were claimed, and went back before they began."""
        self.unbegun.note(snapshots)
        self.kick([snapshot.execution for snapshot in snapshots])

    def _start(self) -> None:
        """One more task, if a quota is to be looked at and no task does."""
        if self._next() is not None and len(self._background) < AT_ONCE:
            self._background.start(self._run)

    def _next(self) -> str | None:
        """The quota to look at next. Quotas that are used together take turns, the one that
        admitted a run longest ago first: a line that needs two of them must not always come first
        because of the second."""
        waiting = self._dirty.keys() - self._busy
        if self._busy & self._shared:
            waiting -= self._shared
        return min(waiting, key=lambda name: self._moved_at.get(name, 0), default=None)

    async def _run(self) -> None:
        while (quota := self._next()) is not None:
            queues = self._dirty.pop(quota)
            self._busy.add(quota)
            self._rounds.begin(quota)
            self._start()
            try:
                await self.unbegun.take_back()
                await self.lines.introduce()
                await self._serve(quota, queues)
            finally:
                self._busy.discard(quota)
                self._rounds.end(quota)
        try:
            await self.closed.refresh(now_and_then=True)
        except FlowFabricError as error:
            log.warning("looking at lanes and workers failed; retrying later: %s", error)

    async def _serve(self, quota: str, queues: set[int] | None) -> None:
        """Admits as many as there is room for; these lines are looked at in any case."""
        if queues is not None and self._is_by_key(quota):
            await self._refresh(quota)
            if self._is_by_key(quota):  # room for one key is none for another
                await self._tried(quota, queues)
                return
        all_seen = await self._tried(quota, None)
        if queues and not all_seen:
            # Lines that cannot move may hide others from a look at the first.
            await self._tried(quota, queues)

    async def _refresh(self, quota: str) -> None:
        """Looks at lines that only other processes know of, now and then and only once: they look
        at them as well, and so does the sweep. While no other process has moved the quota, this one
        knows all of them."""
        looked_at = self._looked_at.get(quota)
        if looked_at is not None and quota not in self.lines.contested:
            return
        now = asyncio.get_running_loop().time()
        if looked_at is None or now - looked_at >= REFRESH:
            self._looked_at[quota] = now
            self.lines.contested.discard(quota)
            await self._tried(quota, None, once=True)

    def _is_by_key(self, quota: str) -> bool:
        """Whether only keys are limited, and each key has one line: it has several if they need
        other quotas as well. Of a quota that is not known yet, the store says so."""
        shape = self._shapes.get(quota)
        return shape in (None, ReleaseShape.PER_KEY) and quota not in self._shared

    async def _tried(self, quota: str, queues: set[int] | None, *, once: bool = False) -> bool:
        """Admits what there is room for and can be claimed. Room that none of those needs goes to
        runs without a live worker, because an unregistered worker may come for them. Returns
        whether every line was looked at; what cannot be done now is left to the sweep."""
        closed, all_seen = self.closed.known, True
        among = None if queues is None else tuple(sorted(queues))
        try:
            if closed.unserved:
                await self._admit(quota, among, closed, once=once)
                self.lines.note(quota, among or (), KnownQuota.offer)
            all_seen = await self._admit(quota, among, replace(closed, unserved=()), once=once)
        except FlowFabricError as error:
            self.lines.forget(quota)
            log.warning("releasing quota %s failed; the sweep tries again: %s", quota, error)
        return all_seen

    async def _serve_lines(self, quota: str, queues: Sequence[int], closed: Unclaimable) -> bool:
        """Admits the best of these lines, as far as there is room; False if the quota limits more
        than the concurrency of each key."""
        if not self._is_by_key(quota):
            return False
        while True:
            served = await self.lines.serve(quota, queues, self._now(), MAX_MOVES, closed)
            if served is None:
                return False
            self._moved(quota, served.moved)
            if not (queues := served.left):
                return True

    async def _admit(
        self, quota: str, among: tuple[int, ...] | None, closed: Unclaimable, *, once: bool
    ) -> bool:
        """Releases until no more can be admitted, or once. Returns whether every line was looked
        at."""
        if among is not None and await self._serve_lines(quota, among, closed):
            return True
        lines = len(among) if among is not None else _lines_at_once(self._shapes.get(quota))
        depth = _depth(lines, self._paces.get(quota, MAX_MOVES))
        shut = closed.closed, closed.draining
        while True:
            ask = QuotaViewRequest(quota, among, lines, depth, self._now(), *shut)
            try:
                look = await retry(partial(self._look, ask=ask, once=once), f"quota {quota}")
            except RetryExhausted:
                # Rivals, or a queue that the store knows in part: then it knows it after this.
                view = await self._context.store.quota_view(ask)
                await self._context.store.put_queues([(line.id, line.uses) for line in view.lines])
                return True
            if look.moved is None:
                return len(look.view.lines) < lines
            self._moved(quota, look.moved)
            all_moved = look.moved == len(look.decided.moves) < MAX_MOVES
            others = None if among else lines
            is_all = all_moved and not _more(look.view, others, depth, look.decided)
            if once or is_all:
                return is_all
            depth = _depth(len(look.view.lines), MAX_MOVES)

    async def _look(
        self, number: int, *, ask: QuotaViewRequest, once: bool
    ) -> ReleaseLook | Literal[RaceLost.RACE_LOST]:
        """Loads, decides and moves, unless a rival was faster."""
        now = self._now()
        async with self.lines.turns:
            view = await self._context.store.quota_view(replace(ask, now=now))
            self._learn(view)
            keep = once and self._shared.isdisjoint(view.quotas)
            decided = release(view, now, MAX_MOVES)
            self._wake_at(ask.quota, decided.next_at)
            if not decided.moves:
                _measure_refused(view, decided)
                looked = await self.lines.looked(view, keep=keep)
                return ReleaseLook(view, decided) if looked else RACE_LOST
            moved = await self._context.store.release(decided)
            if moved is None:
                return RACE_LOST
            self.lines.released(decided, keep=keep and not moved.repeated)
        return ReleaseLook(view, decided, len(moved))

    def _moved(self, quota: str, count: int) -> None:
        self._moved_at[quota] = next(self._moves)
        self._paces[quota] = count
        if count:
            self._context.store.hints.send(Topic.WORK)

    def _learn(self, view: QuotaView) -> None:
        for name, quota in view.quotas.items():
            self._shapes[name] = _shape(quota)
        for line in view.lines:
            self._shared.update(_shared_by(line.uses))

    def _wake_at(self, quota: str, at: Millis | None) -> None:
        if at is None:
            return
        self._opens_at[quota] = min(at, self._opens_at.get(quota, at))
        self._context.post_commit.due(at)


def _shared_by(uses: Uses) -> tuple[str, ...]:
    """The quotas that a line uses together."""
    return tuple(use.quota for use in uses) if len(uses) > 1 else ()


def _measure_refused(view: QuotaView, decided: Release) -> None:
    """Some wait although they were looked at."""
    if view.lines:
        watching().refused_by_quota("concurrency" if decided.next_at is None else "rate")


def _shape(quota: Quota) -> ReleaseShape:
    whole = quota.concurrency is not None or quota.rate is not None
    per_key = quota.concurrency_per_key is not None or quota.rate_per_key is not None
    if whole and per_key:
        return ReleaseShape.MIXED
    return ReleaseShape.PER_KEY if per_key else ReleaseShape.WHOLE


def _lines_at_once(shape: ReleaseShape | None) -> int:
    """How many lines are read: where keys have limits of their own, many can move."""
    return FIRST_LINES if shape in (None, ReleaseShape.WHOLE) else KEYED_LINES


def _depth(lines: int, pace: int) -> int:
    """How many of each line are read: in all about twice what the last release has moved."""
    return max(2, 2 * max(pace, LEAST) // max(1, lines))


def _more(view: QuotaView, lines: int | None, depth: int, decided: Release) -> bool:
    """Whether a run that was not looked at may be admitted: one behind those that were read, or one
    of another line, unless the lines were chosen."""
    other_lines = lines is not None and len(view.lines) >= lines
    return other_lines or decided.emptied >= depth
