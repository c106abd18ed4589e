"""`fabric.lanes`, `workers`, `quotas`, `budgets` and `flows`: what there is, read and changed from
Python. Moments are `datetime`, durations `timedelta`."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.numbers import check_whole
from flowfabric.core.base.time import (
    Millis,
    optional_datetime,
    to_datetime,
    to_timedelta,
)
from flowfabric.core.execution.registry import NotRegistered, Presence
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState
from flowfabric.core.limit.lane import Lane
from flowfabric.engine.flow.flows import FlowCancelled
from flowfabric.worker.api.blocking import Block, blocking
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.limit_info import BudgetInfo, QuotaInfo, budget_info, quota_info
from flowfabric.worker.api.limits import LimitsApi
from flowfabric.worker.api.listing import Tag, one_tag

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")

PAGE = 1000


class LaneInfo(Struct, frozen=True, kw_only=True):
    """A lane. `state` is open, paused or draining; `by`, `reason` and `since` belong to its last
    change. `concurrency` is how many may run at once; None means any number."""

    name: str
    state: str
    weight: int
    concurrency: int | None
    by: str
    reason: str
    since: datetime | None


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A worker process. No lanes or no tasks means any; `running` is what it held at its last
    heartbeat."""

    name: str
    instance: str
    namespace: str
    lanes: tuple[str, ...]
    tasks: tuple[str, ...]
    capabilities: tuple[str, ...]
    concurrency: int
    running: int
    alive: bool
    ttl: timedelta
    registered_at: datetime
    seen_at: datetime


class FlowInfo(Struct, frozen=True, kw_only=True):
    """A flow. `ended` counts its nodes by how they ended."""

    id: UUID
    name: str
    namespace: str
    state: FlowState
    nodes: int
    ended: dict[str, int]
    tags: dict[str, str]
    created_at: datetime
    ended_at: datetime | None


class LanesApi:
    """`fabric.lanes`"""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, name: str) -> LaneInfo:
        """A lane; an open one without limits if nothing was decided about it."""
        return lane_info(await (await self._client.engine()).lanes.get(name))

    async def set(
        self, name: str, *, weight: int | None = None, concurrency: int | None = None
    ) -> LaneInfo:
        """Sets the share of a lane, or how many of it may run at once (0: any number)."""
        engine = await self._client.engine()
        return lane_info(await engine.lanes.set(name, weight=weight, concurrency=concurrency))

    async def pause(self, name: str, *, reason: str = "", by: str = "") -> LaneInfo:
        """No run of the lane is claimed until it is resumed; running ones continue."""
        engine = await self._client.engine()
        return lane_info(await engine.lanes.pause(name, by=by, reason=reason))

    async def drain(self, name: str, *, reason: str = "", by: str = "") -> LaneInfo:
        """Runs that have begun end; no other begins until the lane is resumed."""
        engine = await self._client.engine()
        return lane_info(await engine.lanes.drain(name, by=by, reason=reason))

    async def resume(self, name: str, *, reason: str = "", by: str = "") -> LaneInfo:
        """Resumes a paused or draining lane."""
        engine = await self._client.engine()
        return lane_info(await engine.lanes.resume(name, by=by, reason=reason))

    async def list(self, *, limit: int | None = None) -> list[LaneInfo]:
        """The lanes that runs were submitted to, by name."""
        lanes = (await self._client.engine()).lanes
        names = await all_pages(
            lambda after, size: lanes.list(after=after, limit=size), lambda name: name, limit
        )
        known = await lanes.settings()
        return [lane_info(known.get(name) or Lane(name=name)) for name in names]

    list_sync, get_sync, set_sync = blocking(list), blocking(get), blocking(set)
    pause_sync, drain_sync, resume_sync = blocking(pause), blocking(drain), blocking(resume)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on


class WorkersApi:
    """`fabric.workers`"""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, instance: str, *, namespace: str = "default") -> WorkerInfo:
        """The worker process with this name. Raises NotFound if it is not registered."""
        engine = await self._client.engine()
        found = await engine.workers.get(instance, namespace=namespace)
        if found is None:
            raise NotFound("worker", instance)
        return worker_info(found, engine.now())

    async def delete(
        self, instance: str, *, reason: str, namespace: str = "default", revoke: bool = False
    ) -> None:
        """Marks a worker that will not come back as dead. With `revoke`, other workers continue its
        runs at once; otherwise when its leases expire."""
        workers = (await self._client.engine()).workers
        answer = await workers.mark_dead(
            instance, namespace=namespace, reason=reason, revoke=revoke
        )
        if isinstance(answer, NotRegistered):
            raise NotFound("worker", instance)

    async def list(
        self,
        *,
        namespace: str | None = None,
        lane: str | None = None,
        task: str | None = None,
        capabilities: Iterable[str] = (),
        alive: bool | None = True,
        limit: int | None = None,
    ) -> list[WorkerInfo]:
        """The live workers that serve this lane, run this task and offer these capabilities; with
        `alive=False` those that fell silent, with None both."""
        engine = await self._client.engine()
        wanted = tuple(capabilities)

        def page(after: tuple[str, str] | None, size: int) -> Awaitable[Sequence[Presence]]:
            return engine.workers.list(
                namespace=namespace,
                lane=lane,
                kind=task,
                capabilities=wanted,
                alive=alive,
                after=after,
                limit=size,
            )

        found = await all_pages(page, lambda entry: entry.key, limit)
        return [worker_info(entry, engine.now()) for entry in found]

    list_sync, get_sync, delete_sync = blocking(list), blocking(get), blocking(delete)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on


def _set(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method `set` with the parameters of a declaration, which is made at once."""

    @wraps(method)
    async def set(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        made: Awaitable[T] = getattr(self._limits, method.__name__)(*args, **kwargs)
        return await made

    set.__name__ = "set"
    return set


async def all_pages(
    fetch: Callable[[K | None, int], Awaitable[Sequence[T]]],
    cursor: Callable[[T], K],
    limit: int | None,
) -> list[T]:
    """All items of a list that is read page by page, or the first `limit`."""
    wanted = None if limit is None else check_whole(limit, "limit")
    found: list[T] = []
    after: K | None = None
    while wanted is None or len(found) < wanted:
        size = PAGE if wanted is None else min(PAGE, wanted - len(found))
        page = await fetch(after, size)
        found += page
        if not page:
            break
        after = cursor(page[-1])
    return found


def lane_info(lane: Lane) -> LaneInfo:
    return LaneInfo(
        name=lane.name,
        state=lane.state.name.lower(),
        weight=lane.weight,
        concurrency=lane.concurrency,
        by=lane.by,
        reason=lane.reason,
        since=optional_datetime(lane.at),
    )


def worker_info(entry: Presence, now: Millis) -> WorkerInfo:
    return WorkerInfo(
        name=entry.worker,
        instance=entry.instance,
        namespace=entry.namespace,
        lanes=entry.lanes,
        tasks=entry.kinds,
        capabilities=entry.capabilities,
        concurrency=entry.concurrency,
        running=entry.running,
        alive=entry.alive(now),
        ttl=to_timedelta(entry.ttl),
        registered_at=to_datetime(entry.registered_at),
        seen_at=to_datetime(entry.seen_at),
    )


def flow_info(flow: Flow) -> FlowInfo:
    return FlowInfo(
        id=flow.id,
        name=flow.kind,
        namespace=flow.namespace,
        state=flow.state,
        nodes=flow.nodes,
        ended=dict(flow.ended),
        tags=dict(flow.tags),
        created_at=to_datetime(flow.created_at),
        ended_at=optional_datetime(flow.ended_at),
    )


class QuotasApi:
    """`fabric.quotas`"""

    def __init__(self, client: Client, limits: LimitsApi) -> None:
        self._client = client
        self._limits = limits

    set = _set(LimitsApi.quota)

    async def get(self, name: str) -> QuotaInfo:
        """The quota with this name. Raises NotFound if there is none."""
        return quota_info(await (await self._client.engine()).quotas.get(name))

    async def delete(self, name: str) -> None:
        """Deletes a quota; runs no longer wait for it."""
        if not await (await self._client.engine()).quotas.delete(name):
            raise NotFound("quota", name)

    async def list(self, *, limit: int | None = None) -> list[QuotaInfo]:
        """Quotas by name."""
        quotas = (await self._client.engine()).quotas
        found = await all_pages(
            lambda after, size: quotas.list(after=after or "", limit=size),
            lambda quota: quota.name,
            limit,
        )
        return [quota_info(quota) for quota in found]

    list_sync, get_sync = blocking(list), blocking(get)
    set_sync, delete_sync = blocking(set), blocking(delete)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on


class BudgetsApi:
    """`fabric.budgets`"""

    def __init__(self, client: Client, limits: LimitsApi) -> None:
        self._client = client
        self._limits = limits

    set = _set(LimitsApi.budget)

    async def get(self, name: str) -> BudgetInfo:
        """The budget with this name and what was spent of it. Raises NotFound if there is none."""
        return budget_info(await (await self._client.engine()).budgets.get(name))

    async def reset(self, name: str) -> BudgetInfo:
        """Begins a new period now."""
        await (await self._client.engine()).budgets.reset(name)
        return await self.get(name)

    async def delete(self, name: str) -> None:
        """Deletes a budget that has no parts; it no longer limits runs."""
        if not await (await self._client.engine()).budgets.delete(name):
            raise NotFound("budget", name)

    async def list(self, *, limit: int | None = None) -> list[BudgetInfo]:
        """Budgets by name."""
        budgets = (await self._client.engine()).budgets
        found = await all_pages(
            lambda after, size: budgets.list(after=after or "", limit=size),
            lambda budget: budget.name,
            limit,
        )
        return [budget_info(budget) for budget in found]

    list_sync, get_sync, reset_sync = blocking(list), blocking(get), blocking(reset)
    set_sync, delete_sync = blocking(set), blocking(delete)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on


class StoredFlowsApi:
    """`fabric.flows`"""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, id: UUID | str) -> FlowInfo:
        """The flow with this id. Raises NotFound if there is none."""
        found = await (await self._client.engine()).flow_views.get(id)
        if found is None:
            raise NotFound("flow", id)
        return flow_info(found)

    async def cancel(
        self,
        id: UUID | str,
        reason: str = "cancelled by its owner",
        *,
        policy: CancelPolicy | str = CancelPolicy.ALL,
    ) -> FlowCancelled:
        """Cancels a flow and its runs; see CancelPolicy."""
        flow = await self.get(id)
        engine = await self._client.engine()
        return await engine.flows.cancel(flow.id, reason=reason, policy=policy)

    async def list(
        self,
        *,
        state: FlowState | str | Iterable[FlowState | str] | None = None,
        name: str | None = None,
        namespace: str | None = None,
        tag: Tag | None = None,
        limit: int | None = None,
    ) -> list[FlowInfo]:
        """Flows, the newest first."""
        engine = await self._client.engine()
        states = () if state is None else (state,) if isinstance(state, str) else tuple(state)
        pair = None if tag is None else one_tag(tag)

        def page(after: tuple[Millis, UUID] | None, size: int) -> Awaitable[Sequence[Flow]]:
            return engine.flow_views.page(
                namespace=namespace,
                kind=name,
                states=states,
                tag=pair,
                after=after,
                limit=size,
                newest_first=True,
            )

        found = await all_pages(page, lambda flow: (flow.created_at, flow.id), limit)
        return [flow_info(flow) for flow in found]

    list_sync, get_sync, cancel_sync = blocking(list), blocking(get), blocking(cancel)

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on
