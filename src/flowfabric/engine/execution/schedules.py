"""Schedules: declared, paused, removed, and turned into runs when their time comes.

A run is submitted under a key made of the schedule and the moment, before the schedule moves on.
So a moment fires once, even if a process dies halfway or two processes fire it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import schedule as rules
from flowfabric.core.execution.policy import DEFAULT_POLICY, parse_policy
from flowfabric.core.execution.schedule import Schedule
from flowfabric.core.execution.submission import Duplicate, Submission, Submitted, create
from flowfabric.engine.commit.records import change, find, listed
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.executions import Executions
from flowfabric.store.rows.record import SCHEDULES

log = logging.getLogger("flowfabric.schedules")

FIRST_BITS = 30
"""Of the first version of a schedule: the column has 32."""


class Schedules(Service):
    """`engine.schedules`"""

    def __init__(self, context: EngineContext, executions: Executions) -> None:
        super().__init__(context)
        self._executions = executions
        self._stuck: set[str] = set()

    async def put(self, schedule: Schedule) -> Schedule:
        """Declares a schedule, or changes the one of that name. Declaring the same thing again
        changes nothing: neither its next time nor whether it is paused."""
        new = rules.check_schedule(schedule)
        create(self._submission(new, Millis(0)), self._fresh(), self._now())
        first = replace(new, version=self._first_version(FIRST_BITS))
        return await self._change(new.name, lambda old, now: _declared(old, first, now))

    async def get(self, name: str) -> Schedule:
        asked = check_text(name, "schedule name")
        return _known(await find(self._context.store, SCHEDULES, asked), asked)

    async def list(self, *, after: str = "", limit: int = 100) -> list[Schedule]:
        """Schedules by name, after a cursor."""
        return await listed(self._context.store, SCHEDULES, after, limit)

    async def pause(self, name: str) -> Schedule:
        """No runs until it is resumed; times that pass meanwhile are not made up for."""
        return await self._change(name, lambda old, now: replace(_known(old, name), paused=True))

    async def resume(self, name: str) -> Schedule:
        return await self._change(name, lambda old, now: _resumed(_known(old, name), now))

    async def remove(self, name: str) -> None:
        if not await self._context.store.records.drop(SCHEDULES, check_text(name, "schedule name")):
            raise NotFound("schedule", name)

    async def trigger(self, name: str, *, fresh: UUID | None = None) -> Submitted | Duplicate:
        """A run now, beside its times; `fresh` as for `executions.submit`."""
        schedule = await self.get(name)
        return await self._executions.submit(self._submission(schedule, None), fresh=fresh)

    async def fire_due(self) -> int:
        """Submits what is due; returns how many runs. The sweep calls this. A schedule
        that cannot fire here stays due and delays no other."""
        fired = 0
        while due := await self._context.store.records.due(SCHEDULES, self._now(), MAX_PAGE):
            firings = (self._fire(schedule) for schedule in due)
            answers = await asyncio.gather(*firings, return_exceptions=True)
            counts = [answer for answer in answers if isinstance(answer, int)]
            fired += sum(counts)
            for schedule, answer in zip(due, answers, strict=True):
                self._log_stuck(schedule.name, answer)
            if len(due) < MAX_PAGE or not counts:
                break
        return fired

    async def next_at(self) -> Millis | None:
        return await self._context.store.records.next_due(SCHEDULES)

    async def _fire(self, schedule: Schedule) -> int:
        firing = rules.fire(schedule, self._now())
        submissions = [self._submission(schedule, moment) for moment in firing.moments]
        try:
            await self._executions.submit_many(submissions)
        except Invalid as error:  # this moment can never fire; the next one may
            log.warning(
                "schedule %s submits nothing this time, its run is invalid: %s",
                schedule.name,
                error,
            )
        if firing.after != schedule:
            await self._context.store.records.put(SCHEDULES, firing.after, schedule.version)
        return len(submissions)

    def _log_stuck(self, name: str, answer: int | BaseException) -> None:
        """Logs what keeps a schedule from firing, once until it fires again."""
        if isinstance(answer, int):
            self._stuck.discard(name)
        elif name not in self._stuck:
            self._stuck.add(name)
            log.error("schedule %s could not fire, stays due and is tried again: %s", name, answer)

    async def _change(
        self, name: str, rule: Callable[[Schedule | None, Millis], Schedule]
    ) -> Schedule:
        """The schedule as the rule wants it."""
        asked = check_text(name, "schedule name")
        changed = await change(
            self._context.store, SCHEDULES, asked, lambda old, now: (rule(old, now), None)
        )
        wanted = _known(changed.after, asked)
        if wanted.next_at is not None:
            self._context.post_commit.due(wanted.next_at)
        return wanted

    def _options(self, schedule: Schedule, *, keyed: bool) -> dict[str, Any]:
        """The key of a moment lasts at least the default window, also if the policy says less."""
        policy = schedule.options.get("policy")
        if not keyed or policy is None:
            return schedule.options
        rules = parse_policy(policy)
        window = max(rules.dedup_window_ms, DEFAULT_POLICY.dedup_window_ms)
        return {**schedule.options, "policy": replace(rules, dedup_window_ms=window)}

    def _submission(self, schedule: Schedule, moment: Millis | None) -> Submission:
        key = None if moment is None else f"schedule:{schedule.name}:{moment}"
        try:
            return Submission(
                kind=schedule.kind,
                payload=schedule.payload,
                namespace=schedule.namespace,
                lane=schedule.lane,
                key=key,
                creator=f"schedule {schedule.name}"[:256],
                **self._options(schedule, keyed=key is not None),
            )
        except TypeError as error:
            raise Invalid(f"schedule {schedule.name}: {error}") from None


def _declared(old: Schedule | None, new: Schedule, now: Millis) -> Schedule:
    return rules.begin(new, now) if old is None else rules.redefine(old, new, now)


def _resumed(old: Schedule, now: Millis) -> Schedule:
    return replace(rules.skip_ahead(old, now), paused=False) if old.paused else old


def _known(found: Schedule | None, name: str) -> Schedule:
    if found is None:
        raise NotFound("schedule", name)
    return found
