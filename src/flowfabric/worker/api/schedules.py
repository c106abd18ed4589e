"""Schedules, which an application declares with its tasks or puts at any time."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, InvalidCall
from flowfabric.core.base.numbers import check_items, check_mapping, check_word
from flowfabric.core.base.text import check_tags
from flowfabric.core.base.time import optional_datetime, optional_timedelta, parse_span
from flowfabric.core.execution.policy import Policy, write_policy
from flowfabric.core.execution.schedule import CatchUp, Schedule, check_schedule
from flowfabric.worker.api.blocking import Block, blocking
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.options import CallOptions, TaskOptions
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.span import Span
from flowfabric.worker.api.task import Task


class ScheduleInfo(Struct, frozen=True, kw_only=True):
    """A schedule of a task: either `cron` or `every` is set. `arguments` are those of its runs,
    by name, and `options` the document that its runs are submitted with, as it is stored. `next_at`
    is None only if no time is left."""

    name: str
    task: str
    cron: str | None
    every: timedelta | None
    timezone: str
    catch_up: CatchUp
    paused: bool
    arguments: Any
    priority: int
    tags: dict[str, str]
    namespace: str
    lane: str
    options: dict[str, Any]
    next_at: datetime | None
    last_at: datetime | None

    @property
    def kind(self) -> str:
        """The task, by the engine's word for it."""
        return self.task


class SchedulesApi:
    """`fabric.schedules`: tasks that run periodically."""

    def __init__(self, client: Client, tasks: Mapping[str, Task[Any, Any]]) -> None:
        self._client = client
        self._tasks = tasks

    async def put(  # noqa: PLR0913 - the options are the interface
        self,
        name: str,
        task: Task[Any, Any],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        cron: str | None = None,
        every: Span | None = None,
        timezone: str = "UTC",
        catch_up: str = CatchUp.LATEST,
        lane: str | None = None,
        namespace: str | None = None,
        priority: int | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> ScheduleInfo:
        """Runs a task periodically, by a cron expression or by an interval (at least a second).
        Putting a schedule again changes it; putting the same one again changes nothing."""
        if not isinstance(task, Task):
            raise Invalid(f"a task is needed, not {type(task).__name__}")
        own = task.options
        wanted = replace(
            own,
            schedule=cron,
            every=every,
            timezone=timezone,
            catch_up=catch_up,
            lane=own.lane if lane is None else lane,
            namespace=own.namespace if namespace is None else namespace,
            priority=own.priority if priority is None else priority,
            tags={**own.tags, **({} if tags is None else check_tags(tags))},
        )
        given = {} if kwargs is None else check_mapping(kwargs, "kwargs")
        payload = task.signature.encode(check_items(args, "args"), given)
        schedule = _schedule(name, task, wanted, payload)
        return schedule_info(await self._put(task, schedule))

    async def declare(self) -> None:
        """Puts the schedules that tasks declare; every new worker does this."""
        for task in list(self._tasks.values()):
            if (schedule := schedule_of(task)) is not None:
                await self._put(task, schedule)

    async def _put(self, task: Task[Any, Any], schedule: Schedule) -> Schedule:
        """Stores the limits of the task first: its runs name them, and any worker may fire it."""
        engine = await self._client.engine()
        await task.declare(engine)
        return await engine.schedules.put(schedule)

    async def get(self, name: str) -> ScheduleInfo:
        """The schedule with this name. Raises NotFound if there is none."""
        return schedule_info(await (await self._client.engine()).schedules.get(name))

    async def list(self, *, after: str = "", limit: int = 100) -> list[ScheduleInfo]:
        """Schedules by name. Give the last name of a page as `after` to read the next."""
        engine = await self._client.engine()
        return [
            schedule_info(each) for each in await engine.schedules.list(after=after, limit=limit)
        ]

    async def pause(self, name: str) -> ScheduleInfo:
        """Creates no runs until the schedule is resumed. Times that pass meanwhile are skipped."""
        return schedule_info(await (await self._client.engine()).schedules.pause(name))

    async def resume(self, name: str) -> ScheduleInfo:
        """Creates runs again, from the next scheduled time on."""
        return schedule_info(await (await self._client.engine()).schedules.resume(name))

    async def remove(self, name: str) -> None:
        """Removes a schedule; its runs stay. The next worker puts a schedule that a task declares
        again: pause it instead."""
        await (await self._client.engine()).schedules.remove(name)

    set, delete = put, remove

    async def trigger(self, name: str) -> Run[Any]:
        """Submits a run now, in addition to the scheduled ones; also if the schedule is paused."""
        engine = await self._client.engine()
        kind = (await engine.schedules.get(name)).kind
        submitted = await engine.schedules.trigger(name)
        task = self._tasks.get(kind)
        return Run(self._client, submitted.id, task.signature.returns if task else Any)

    put_sync, get_sync, list_sync = blocking(put), blocking(get), blocking(list)
    set_sync, delete_sync, remove_sync = put_sync, blocking(delete), blocking(remove)
    pause_sync, resume_sync = blocking(pause), blocking(resume)
    trigger_sync = blocking(trigger)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on


def schedule_info(schedule: Schedule) -> ScheduleInfo:
    return ScheduleInfo(
        name=schedule.name,
        task=schedule.kind,
        cron=schedule.cron,
        every=optional_timedelta(schedule.every),
        timezone=schedule.timezone,
        catch_up=schedule.catch_up,
        paused=schedule.paused,
        arguments=_arguments(schedule.payload),
        priority=schedule.options.get("priority") or 0,
        tags=schedule.options.get("tags") or {},
        namespace=schedule.namespace,
        lane=schedule.lane,
        options=schedule.options,
        next_at=optional_datetime(schedule.next_at),
        last_at=optional_datetime(schedule.last_at),
    )


def _arguments(payload: bytes) -> Any:
    """The arguments by name; the bytes themselves of a schedule put by another program, if they
    are not JSON."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return payload


def schedule_of(task: Task[Any, Any]) -> Schedule | None:
    """The schedule that a task declares, with the name of the task; Invalid if it is impossible."""
    own = task.options
    if own.schedule is None and own.every is None:
        return None
    try:
        payload = task.signature.encode((), {})
    except InvalidCall as error:
        raise Invalid(
            f"{error.detail}: a scheduled task gets no arguments; give some with "
            "fabric.schedules.put"
        ) from None
    return check_schedule(_schedule(task.name, task, own, payload))


def _schedule(name: str, task: Task[Any, Any], options: TaskOptions, payload: bytes) -> Schedule:
    every = options.every
    policy = task.policy_of(CallOptions(), (), {}, payload)
    return Schedule(
        name=name,
        kind=task.name,
        cron=options.schedule,
        every=None if every is None else parse_span(every, "every"),
        timezone=options.timezone,
        catch_up=check_word(options.catch_up, CatchUp, "catch_up"),
        payload=payload,
        options=_members(options.priority, options.tags, policy),
        namespace=options.namespace,
        lane=options.lane,
    )


def _members(priority: int, tags: Mapping[str, str], policy: Policy) -> dict[str, Any]:
    """What a run is submitted with besides its arguments, in the plain form that a store returns,
    so that a schedule that is declared again compares equal."""
    rules = msgspec.json.decode(write_policy(policy))
    given = {"priority": priority, "tags": dict(tags), "policy": rules, "encoding": "json"}
    return {name: value for name, value in given.items() if value}
