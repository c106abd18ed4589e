"""`/v1/workers/{instance}`: a worker registers, reports that it lives, and leaves, or an operator
says that it is dead.

The registry is for people and for routing: it authorises nothing, and a worker need not be in it.
"""

from typing import Annotated, Any

from litestar import Request, Response, delete, post, put
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import Meta, Struct

from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import NotRegistered, Presence, Refreshed
from flowfabric.server.caller.access import (
    caller_of,
    check_dead_worker,
    check_everywhere,
    check_namespace,
    needs,
)
from flowfabric.server.context import engine_of
from flowfabric.server.http.wire import U32, Lane, respond
from flowfabric.server.worker.work.answers import WorkerMarkedDead, WorkerRegistered
from flowfabric.server.worker.work.bodies import LeaseMs

DEFAULT_NAMESPACE = "default"


class RegisterWorker(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a worker can run. No lanes or kinds means any; `everywhere` that it claims in every
    namespace. Without a heartbeat it is removed after `liveness_ttl_ms`."""

    worker_id: str
    namespace: str = DEFAULT_NAMESPACE
    everywhere: bool = False
    lanes: list[Lane] = []
    kinds: list[str] = []
    capabilities: list[str] = []
    concurrency: Annotated[int, Meta(ge=1, lt=1 << 31)] = 1
    liveness_ttl_ms: LeaseMs = 30_000


class WorkerHeartbeat(Struct, kw_only=True, forbid_unknown_fields=True):
    """`running` is how many runs the worker holds."""

    namespace: str = DEFAULT_NAMESPACE
    worker_id: str | None = None
    running: U32 = 0


@put("/v1/workers/{instance:str}", opt=needs("work"))
async def register_worker(
    request: Request[Any, Any, Any], instance: FromPath[str], data: JSONBody[RegisterWorker]
) -> Response[WorkerRegistered]:
    """Enters a worker instance into the registry, in place of its earlier entry."""
    caller = caller_of(request)
    check_namespace(caller, data.namespace)
    if data.everywhere:
        check_everywhere(caller)
    answer = await engine_of(request).workers.register(_presence(instance, data))
    known = isinstance(answer, Refreshed)
    return respond(WorkerRegistered("refreshed" if known else "registered", answer.expires_at))


def _presence(instance: str, data: RegisterWorker) -> Presence:
    return Presence(
        worker=data.worker_id,
        instance=instance,
        namespace=data.namespace,
        everywhere=data.everywhere,
        lanes=tuple(data.lanes),
        kinds=tuple(data.kinds),
        capabilities=tuple(data.capabilities),
        concurrency=data.concurrency,
        ttl=Millis(data.liveness_ttl_ms),
    )


@post("/v1/workers/{instance:str}/heartbeat", status_code=200, opt=needs("work"))
async def worker_heartbeat(
    request: Request[Any, Any, Any], instance: FromPath[str], data: JSONBody[WorkerHeartbeat]
) -> Response[WorkerRegistered]:
    """Keeps a worker in the registry. 404: it must register again."""
    check_namespace(caller_of(request), data.namespace)
    answer = await engine_of(request).workers.heartbeat(
        instance, namespace=data.namespace, running=data.running, worker=data.worker_id
    )
    if isinstance(answer, NotRegistered):
        raise NotFound("worker", instance)
    return respond(WorkerRegistered("refreshed", answer.expires_at))


class MarkDead(Struct, kw_only=True, forbid_unknown_fields=True):
    """`revoke` takes the leases of the worker away, so that others continue its runs at once;
    otherwise they expire by themselves."""

    reason: str
    namespace: str = DEFAULT_NAMESPACE
    revoke: bool = False


@post("/v1/workers/{instance:str}/dead", status_code=200, opt=needs("operate"))
async def mark_worker_dead(
    request: Request[Any, Any, Any], instance: FromPath[str], data: JSONBody[MarkDead]
) -> Response[WorkerMarkedDead]:
    """Takes a worker that will not come back out of the registry. 404: it is not in it."""
    caller, engine = caller_of(request), engine_of(request)
    check_namespace(caller, data.namespace)
    await check_dead_worker(engine, caller, instance, data.namespace, revoke=data.revoke)
    answer = await engine.workers.mark_dead(
        instance, namespace=data.namespace, reason=data.reason, revoke=data.revoke
    )
    if isinstance(answer, NotRegistered):
        raise NotFound("worker", instance)
    return respond(WorkerMarkedDead("marked", answer.revoked))


@delete("/v1/workers/{instance:str}", status_code=200, opt=needs("work"))
async def remove_worker(
    request: Request[Any, Any, Any],
    instance: FromPath[str],
    namespace: FromQuery[str] = DEFAULT_NAMESPACE,
    worker_id: FromQuery[str | None] = None,
) -> Response[WorkerRegistered]:
    """Takes a worker that stops out of the registry; its leases stay."""
    check_namespace(caller_of(request), namespace)
    answer = await engine_of(request).workers.deregister(
        instance, namespace=namespace, worker=worker_id
    )
    if isinstance(answer, NotRegistered):
        raise NotFound("worker", instance)
    return respond(WorkerRegistered("removed"))


HANDLERS = [register_worker, worker_heartbeat, mark_worker_dead, remove_worker]
