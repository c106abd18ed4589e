"""What is due? One question, asked by one process at a time.

Parked work whose time has come, leases and attempts that ran out, deadlines, retention: the
holder of the duty takes what is due in batches, `core` decides, the store applies. A stale timer
is harmless, because the rule decides on what is stored now.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Corruption, FlowFabricError
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import operator
from flowfabric.core.execution.operator import BlockInQuestion
from flowfabric.core.execution.sweep_filter import SweepFilter
from flowfabric.engine.commit.background import Background
from flowfabric.engine.commit.decide import Decision, Rule
from flowfabric.engine.commit.observer import timed
from flowfabric.engine.commit.pacer import Pacer
from flowfabric.engine.commit.post_commit import Commit
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.code_gate import CodeGate
from flowfabric.engine.execution.event_readers import unread_from
from flowfabric.engine.execution.schedules import Schedules
from flowfabric.engine.execution.streams import Streams
from flowfabric.engine.execution.webhooks import Webhooks
from flowfabric.engine.flow.dispatch import FlowDispatcher
from flowfabric.engine.limit.blocks import Blocks
from flowfabric.engine.limit.sweep import LimitSweep
from flowfabric.engine.workers import Workers
from flowfabric.store.hints import NOTHING, Topic, Topics
from flowfabric.store.queries import Glance
from flowfabric.store.readable import SET_ASIDE

DUTY = "sweep"
DUTY_SPAN = Millis(2_500)
PAGE = 500
MAX_PAUSE = 1.0
"""The poll floor: how often a process looks for what no hint has named."""
REST_PAUSE = 1.25
"""The same when there was nothing at all: together with the heartbeats of workers that makes one
statement a second."""
REST = 30.0
"""The inbox is read without a hint that rarely: the sweep wakes those who admit it."""
INBOX_PAUSE = 0.02
TRIM_EVERY = Millis(60_000)
REST_TRIM_EVERY = Millis(120_000)
"""The same where the last one found nothing."""
LEASES_EVERY = Millis(1_000)
"""How often leases are looked at that this process knows nothing of: a look reads all of them."""
TIDY_EVERY = Millis(300_000)
"""Unused limits and old audit records are forgotten so often, or after a trim."""
WORKERS_EVERY = Millis(30_000)
"""How often workers are looked for that fell silent."""

log = logging.getLogger("flowfabric.sweep")


class Swept(Struct, frozen=True):
    """The services that have something to do now and then."""

    schedules: Schedules
    dispatcher: FlowDispatcher
    limits: LimitSweep
    blocks: Blocks
    workers: Workers
    code_gate: CodeGate
    streams: Streams
    webhooks: Webhooks


class LeaseEnds:
    """When the first lease ends, as far as the last look at all leases has shown."""

    def __init__(self) -> None:
        self._end_at: Millis | None = None
        self._looked_at = Millis(-LEASES_EVERY)

    def must_look(self, now: Millis, *, rests: bool) -> bool:
        is_fresh = rests or 0 <= now - self._looked_at < LEASES_EVERY
        return not is_fresh or (self._end_at is not None and self._end_at <= now)

    def looked(self, now: Millis, end_at: Millis | None) -> None:
        self._looked_at, self._end_at = now, end_at

    def next_look(self, now: Millis) -> Millis | None:
        """The turn that has looked need not come back for those that begin after it."""
        if self._looked_at == now:
            return self._end_at
        at = Millis(self._looked_at + LEASES_EVERY)
        return at if self._end_at is None else min(at, self._end_at)


class Sweep(Service):
    """`engine.sweep`"""

    def __init__(self, context: EngineContext, swept: Swept, holder: str) -> None:
        super().__init__(context)
        self._swept = swept
        self._holder = holder
        self._wanted = context.options.swept
        self._duty = _duty_of(self._wanted)
        self._background = Background("the sweep", log)
        self._trimmed_at = self._tidied_at = Millis(0)
        self._workers_at = Millis(-WORKERS_EVERY)
        self._trim_every = TRIM_EVERY
        self._has_duty = False
        self._lease_ends = LeaseEnds()
        self._pacer = Pacer()
        self._soonest: Millis | None = None
        self._early = asyncio.Event()
        self._glancing: asyncio.Future[Glance] | None = None

    def start(self) -> None:
        """Sweeps in the background whenever this process has the duty, and admits the inbox."""
        if not self._background:
            self._background.start(self._run)
            self._background.start(self._admit_inbox)
            self._background.start(lambda: self._swept.webhooks.run(lambda: self._has_duty))

    @property
    def is_running(self) -> bool:
        """Whether this process sweeps when it has the duty."""
        return len(self._background) > 0

    @property
    def has_duty(self) -> bool:
        """Whether this process is the one that sweeps."""
        return self.is_running and self._has_duty

    async def stop(self) -> None:
        if not self._background:
            return
        await self._background.cancel()
        if self._glancing is not None:
            # It may still take the duty.
            await asyncio.gather(self._glancing, return_exceptions=True)
        with suppress(FlowFabricError):
            await self._context.store.drop_duty(self._duty, self._holder)

    async def once(self) -> int:
        """Does everything that is due now, whichever process has the duty; returns how many
        executions were looked at."""
        await self._context.store.keep_time()
        await self._swept.code_gate.release()
        looked_at = await self._round(all_lines=True, leases=True)
        await self._swept.workers.sweep()
        await self._swept.webhooks.dispatch()
        return looked_at

    async def _round(self, *, all_lines: bool, leases: bool) -> int:
        """`all_lines`: every line that waits for a limit is looked at, however long that takes.
        `leases`: leases that ran out are looked for as well."""
        try:
            await timed("schedules", self._swept.schedules.fire_due())
        except FlowFabricError as trouble:  # such as a schedule that cannot be read
            log.warning("firing schedules failed; the next round tries again: %s", trouble)
        looked_at = await timed("due", self._sweep_due(leases=leases))
        await timed("dependency_reconciler", self._swept.dispatcher.sweep())
        await timed("quota_reconciler", self._swept.limits.sweep(all_lines=all_lines))
        await timed("worker_registry", self._swept.workers.finish())
        return looked_at

    async def _sweep_due(self, *, leases: bool) -> int:
        """Returns how many executions were looked at."""
        looked_at: set[UUID] = set()
        due_now = partial(self._context.store.due, leases=leases, wanted=self._wanted)
        while due := await due_now(self._now(), PAGE):
            fresh = [uuid for uuid in due if uuid not in looked_at]
            if not fresh:
                break  # only what could not be swept or had nothing to do is left
            looked_at.update(fresh)
            answers = await self._context.decisions.decide_all(
                [Decision(uuid, self._rule()) for uuid in fresh]
            )
            await self._log_failures(fresh, answers)
            blocked = [each.uuid for each in answers if isinstance(each, BlockInQuestion)]
            if blocked:
                await self._swept.blocks.look(blocked)
        return len(looked_at)

    async def _log_failures(self, uuids: Sequence[UUID], answers: Sequence[object]) -> None:
        """Logs what could not be swept. One that cannot be read is set aside: it must not take the
        place of others in every page of what is due."""
        damaged = []
        for uuid, answer in zip(uuids, answers, strict=True):
            if isinstance(answer, Corruption):
                damaged.append(uuid)
            if isinstance(answer, Exception):
                log.error(
                    "run %s is due, but sweeping it failed; retrying later: %s",
                    uuid,
                    answer,
                    extra={"run": str(uuid)},
                )
        if damaged:
            now = self._now()
            await self._context.store.set_aside(damaged, now, Millis(now + SET_ASIDE))

    async def trim(self) -> int:
        """Deletes what ended longer ago than the retention; returns how many executions."""
        deleted = 0
        await self._swept.streams.expire()
        while page := await self._trim_page():
            deleted += page
            if page < PAGE:
                break
        return deleted

    async def _trim_page(self) -> int:
        now = self._now()
        before = Millis(now - self._context.options.kept_for)
        unread = await unread_from(self._context.store, now)
        if unread is None:
            return await self._context.store.trim(before, now, PAGE, wanted=self._wanted)
        return await self._context.store.trim(
            min(before, unread), now, PAGE, unread, wanted=self._wanted
        )

    def _rule(self) -> Rule[object]:
        return partial(
            operator.due,
            jitter=self._jitter(),
            grace=self._context.options.grace,
            signal_id=self._fresh(),
        )

    async def _run(self) -> None:
        healthy = True
        while True:
            try:
                pause = await timed("sweep", self._turn())
                healthy = True
            except FlowFabricError as error:
                if healthy:
                    log.warning("the sweep failed and pauses until the store answers: %s", error)
                healthy, pause = False, MAX_PAUSE
                self._context.store.hints.wake()  # tasks that rest must see for themselves
            except Exception:
                log.exception("the sweep failed unexpectedly; retrying")
                pause = MAX_PAUSE
            await self._pause(pause)

    async def _admit_inbox(self) -> None:
        """Admits inbox entries soon after they were committed: on a hint, or at the poll floor."""
        seen = -1  # also what was in the inbox before this process began
        while True:
            try:
                await self._context.store.hints.wait(REST, seen, Topic.INBOX)
                seen = self._context.store.hints.count
                await self._context.inbox.admit()
            except FlowFabricError as error:
                log.debug("admitting inbox entries failed; retrying: %s", error)
                await asyncio.sleep(MAX_PAUSE)
            except Exception:
                log.exception("admitting inbox entries failed; retrying")
                await asyncio.sleep(MAX_PAUSE)
            await asyncio.sleep(INBOX_PAUSE)

    async def _turn(self) -> float:
        """One round if this process has the duty; returns how long to sleep."""
        store = self._context.store
        await store.keep_time()
        now = self._now()
        self._soonest = None
        seen = await self._glance(now)
        self._has_duty = seen.has_duty
        if seen.inbox or seen.ready:
            store.hints.wake(_topics(seen))
        if seen.blocked:
            await self._swept.code_gate.release()
        if not self._has_duty:
            return MAX_PAUSE if seen.inbox or seen.ready else REST_PAUSE
        moments = [seen.next_at, self._lease_ends.next_look(now), self._swept.limits.opens_at]
        longest = MAX_PAUSE if seen.ready or seen.lines else REST_PAUSE
        if self._must_look(seen, now):
            leases = seen.leases_end_at is not None and seen.leases_end_at <= now
            await self._round(all_lines=False, leases=leases)
            moments = [
                await store.next_due(now, leases=leases),
                self._lease_ends.next_look(now),
                await self._swept.schedules.next_at(),
                await self._swept.limits.next_at(),
            ]
            longest = MAX_PAUSE
        elif seen.lines and not self._swept.limits.rests:
            await timed("quota_reconciler", self._swept.limits.sweep())
            moments.append(self._swept.limits.opens_at)
        await self._expire_workers(now)
        if self._must_trim(now) and await self._trim_all(now):
            return 0.0  # the rest page by page: what becomes due meanwhile does not wait
        return self._until(moments, now, longest)

    async def _glance(self, now: Millis) -> Glance:
        """Where rows that are gone cannot be removed, because a transaction stays open, a look at
        `ready` and `lease` walks over all of them: then it is taken less often."""
        rests = self._pacer.rests
        leases = self._lease_ends.must_look(now, rests=rests)
        until = Millis(now + DUTY_SPAN)
        self._glancing = asyncio.ensure_future(
            self._context.store.glance(
                self._duty, self._holder, now, until, ready=not rests, leases=leases
            )
        )
        with nullcontext() if rests and not leases else self._pacer.look():
            seen = await asyncio.shield(self._glancing)  # `stop` waits for it
        if leases and seen.has_duty:
            self._lease_ends.looked(now, seen.leases_end_at)
        return seen

    def _must_look(self, seen: Glance, now: Millis) -> bool:
        """Whether there is anything to do for the holder of the duty. While old executions are
        deleted, it looks before every page."""
        opens_at = self._swept.limits.opens_at
        opens = opens_at is not None and opens_at <= now
        return seen.busy or opens or (self._must_trim(now) and self._trim_every == TRIM_EVERY)

    async def _expire_workers(self, now: Millis) -> None:
        if not 0 <= now - self._workers_at < WORKERS_EVERY:
            self._workers_at = now
            await timed("worker_registry", self._swept.workers.sweep())

    def _must_trim(self, now: Millis) -> bool:
        return now - self._trimmed_at >= self._trim_every

    async def _trim_all(self, now: Millis) -> bool:
        """Deletes a page of what is old, and at the end what belongs to it; True if more is left.
        Where there was nothing, the next look comes a little later, and looks at less."""
        trimmed = await timed("retention_trimmer", self._trim_page())
        if trimmed == PAGE:
            return True
        self._trimmed_at = now
        await self._swept.streams.expire()
        self._trim_every = TRIM_EVERY if trimmed else REST_TRIM_EVERY
        if trimmed or now - self._tidied_at >= TIDY_EVERY:
            self._tidied_at = now
            await self._swept.limits.trim()
            await self._context.audit.trim()
        return False

    def _until(self, moments: Iterable[Millis | None], now: Millis, longest: float) -> float:
        # What was due before this round and still is cannot be done here, now.
        next_due = min((at for at in moments if at is not None and at > now), default=None)
        if next_due is None:
            return longest
        return min(longest, max(0.001, (next_due - self._now()) / 1000))

    async def _pause(self, seconds: float) -> None:
        """Shorter when something that becomes due earlier is committed meanwhile."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        early = True
        while early and (left := min(ends_at - loop.time(), self._soon())) > 0:
            self._early.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._early.wait()
            early = self._early.is_set()

    def _soon(self) -> float:
        return REST_PAUSE if self._soonest is None else (self._soonest - self._now()) / 1000

    def committed(self, commit: Commit) -> None:
        """Is there in time for what becomes due."""
        at = commit.due_at
        if at is None or not self._has_duty:
            return
        if self._soonest is None or at < self._soonest:
            self._soonest = at
            self._early.set()


def _duty_of(wanted: SweepFilter) -> str:
    """Each tenant has a duty of its own, so that its sweep waits for no other."""
    if wanted.is_open:
        return DUTY
    return f"{DUTY} {msgspec.json.encode(wanted.values).decode()}"


def _topics(seen: Glance) -> Topics:
    topics = Topic.INBOX if seen.inbox else NOTHING
    return topics | Topic.WORK if seen.ready else topics
