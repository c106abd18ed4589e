"""`/v1/work/{execution_id}/…`: one route for each operation on a lease, and one for many."""

import asyncio
import logging
from typing import Any

from litestar import Request, Response, get, post
from litestar.params import FromPath, JSONBody

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.server.caller.access import caller_of, check_run, needs
from flowfabric.server.context import context_of, engine_of
from flowfabric.server.http.errors import ErrorBody, answer_to
from flowfabric.server.http.wire import EMPTY, OCTETS, Body, media_type, read_id, respond
from flowfabric.server.worker.work import bodies, frames, operations, waits
from flowfabric.server.worker.work.answers import (
    AttemptFailed,
    BatchResults,
    BudgetsSpent,
    FramesAppended,
    Noted,
    OperationResult,
    OwnerCancelled,
    RunCompleted,
    RunParked,
    RunSuspended,
    StepList,
    StepRecorded,
    WaitpointMade,
)
from flowfabric.server.worker.work.described import describe_steps
from flowfabric.server.worker.work.lease import PresentedLease, present_lease
from flowfabric.server.worker.work.operations import OPERATIONS, RawResult

log = logging.getLogger("flowfabric.server")

LARGE_BODY = 4 << 20
STEP_BODY = 2 << 20
STATE_BODY = 1 << 20
Call = Request[Any, Any, Any]


class JsonOrBytes(Body):
    """A JSON body, or the bytes of a result with its handle in the header `FlowFabric-Handle`."""

    def decode_bytes(self, value: bytes) -> Any:
        headers = self.asgi_connection.headers
        if media_type(headers.get("content-type")) != OCTETS:
            return super().decode_bytes(value)
        body = b"" if self.asgi_connection.scope.get(EMPTY) else value
        return RawResult(handle=headers.get("flowfabric-handle"), body=body)


def _work(body: int | None = None) -> dict[str, Any]:
    return needs("work") if body is None else needs("work", body=body)


async def _lease(request: Call, id: str, data: bodies.Fenced) -> PresentedLease:
    return await present_lease(context_of(request), caller_of(request), data, id)


@post(
    "/v1/work/{id:str}/complete",
    status_code=200,
    dto=JsonOrBytes,
    opt=needs("work", body=LARGE_BODY, takes=OCTETS),
)
async def complete_run(
    request: Call, id: FromPath[str], data: JSONBody[bodies.CompleteRun]
) -> Response[RunCompleted]:
    """Ends the run in success. A repeat under the same lease gets the same answer, and the first
    result stays. Instead of JSON, the body may be the result itself, as
    `application/octet-stream`, with the handle in the header `FlowFabric-Handle`."""
    return respond(await operations.complete(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/fail", status_code=200, opt=_work(LARGE_BODY))
async def fail_run(
    request: Call, id: FromPath[str], data: JSONBody[bodies.FailRun]
) -> Response[AttemptFailed]:
    """Ends the attempt in failure; the policy of the run decides whether it is retried."""
    return respond(await operations.fail(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/delay", status_code=200, opt=_work())
async def delay_run(
    request: Call, id: FromPath[str], data: JSONBody[bodies.DelayRun]
) -> Response[RunParked]:
    """Gives the lease up until a moment; the same attempt then goes on."""
    return respond(await operations.delay(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/release", status_code=200, opt=_work())
async def release_run(
    request: Call, id: FromPath[str], data: JSONBody[bodies.ReleaseRun]
) -> Response[RunParked]:
    """Gives the lease up because the worker stops."""
    return respond(await operations.release(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/wait-for-children", status_code=200, opt=_work())
async def wait_for_children(
    request: Call, id: FromPath[str], data: JSONBody[bodies.WaitForChildren]
) -> Response[RunParked]:
    """Gives the lease up until the executions it depends on have ended."""
    return respond(await operations.wait_for_children(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/cancel", status_code=200, opt=_work())
async def cancel_run(
    request: Call, id: FromPath[str], data: JSONBody[bodies.CancelRun]
) -> Response[OwnerCancelled]:
    """Ends the run as cancelled."""
    return respond(await operations.cancel(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/finish-cleanup", status_code=200, opt=_work())
async def finish_cleanup(
    request: Call, id: FromPath[str], data: JSONBody[bodies.FinishCleanup]
) -> Response[OwnerCancelled]:
    """Ends a run whose worker was asked to stop (`cancel_requested`) and has cleaned up."""
    return respond(await operations.finish_cleanup(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/progress", status_code=200, opt=_work())
async def report_progress(
    request: Call, id: FromPath[str], data: JSONBody[bodies.ReportProgress]
) -> Response[Noted]:
    """Says how far the attempt is."""
    return respond(await operations.progress(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/state", status_code=200, opt=_work(STATE_BODY))
async def set_state(
    request: Call, id: FromPath[str], data: JSONBody[bodies.SetState]
) -> Response[Noted]:
    """Sets the value that the run shows of itself."""
    return respond(await operations.state(await _lease(request, id, data), data))


@get("/v1/work/{id:str}/steps", opt=_work())
async def recorded_steps(request: Call, id: FromPath[str]) -> Response[StepList]:
    """The steps that the run has recorded, in order."""
    key, engine = read_id(id), engine_of(request)
    await check_run(caller_of(request), engine, key)
    _, steps = await engine.views.recorded(key)
    return respond(StepList(describe_steps(steps)))


@post("/v1/work/{id:str}/steps", status_code=200, opt=_work(STEP_BODY))
async def record_step(
    request: Call, id: FromPath[str], data: JSONBody[bodies.RecordStep]
) -> Response[StepRecorded]:
    """Records what a step returned, so that it never runs again."""
    return respond(await operations.record_step(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/frames", status_code=200, opt=_work(LARGE_BODY))
async def append_frames(
    request: Call, id: FromPath[str], data: JSONBody[bodies.AppendFrames]
) -> Response[FramesAppended]:
    """Appends frames to the output stream of the attempt."""
    return respond(await frames.append_frames(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/spend", status_code=200, opt=_work())
async def spend_budgets(
    request: Call, id: FromPath[str], data: JSONBody[bodies.SpendBudgets]
) -> Response[BudgetsSpent]:
    """Counts what the run has consumed of its budgets."""
    return respond(await operations.spend(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/waitpoints", status_code=200, opt=_work())
async def make_waitpoint(
    request: Call, id: FromPath[str], data: JSONBody[bodies.MakeWaitpoint]
) -> Response[WaitpointMade]:
    """Makes a waitpoint, so that its token can be handed out before the run suspends."""
    return respond(await waits.make_waitpoint(await _lease(request, id, data), data))


@post("/v1/work/{id:str}/suspend", status_code=200, opt=_work())
async def suspend_run(
    request: Call, id: FromPath[str], data: JSONBody[bodies.SuspendRun]
) -> Response[RunSuspended]:
    """Gives the lease up until signals are here, unless they are already."""
    return respond(await waits.suspend(await _lease(request, id, data), data))


@post("/v1/work/batch", status_code=200, opt=_work(LARGE_BODY))
async def work_batch(request: Call, data: JSONBody[bodies.WorkBatch]) -> Response[BatchResults]:
    """Many operations in one call. The results are in the order of the operations."""
    results: list[OperationResult | None] = [None] * len(data.operations)
    await asyncio.gather(
        *(_in_order(request, data.operations, each, results) for each in _by_run(request, data))
    )
    return respond(BatchResults([result for result in results if result is not None]))


def _by_run(request: Call, data: bodies.WorkBatch) -> list[list[int]]:
    """The places of the operations on each run. What names no run is on its own."""
    places: dict[object, list[int]] = {}
    for place, item in enumerate(data.operations):
        places.setdefault(_run_of(request, item) or place, []).append(place)
    return list(places.values())


def _run_of(request: Call, item: bodies.Item) -> object:
    try:
        if item.handle is not None:
            return engine_of(request).attempts.open(item.handle).execution
        return None if item.execution_id is None else read_id(item.execution_id).uuid
    except FlowFabricError:  # its result says so
        return None


async def _in_order(
    request: Call,
    items: list[bodies.Item],
    places: list[int],
    results: list[OperationResult | None],
) -> None:
    for place in places:
        results[place] = await _result(request, items[place])


async def _result(request: Call, item: bodies.Item) -> OperationResult:
    try:
        lease = await present_lease(
            context_of(request), caller_of(request), item, item.execution_id
        )
        return OperationResult(200, await OPERATIONS[type(item)](lease, item))
    except FlowFabricError as error:
        status, body = answer_to(error)
        return OperationResult(status, error=body)
    except Exception:  # the others have their results all the same
        operation, run = type(item).__struct_config__.tag, _run_of(request, item)
        log.exception("%s of run %s failed in a batch; the worker gets a 500", operation, run)
        return OperationResult(500, error=ErrorBody("internal error", "internal", retryable=False))


HANDLERS = [
    complete_run,
    fail_run,
    delay_run,
    release_run,
    wait_for_children,
    cancel_run,
    finish_cleanup,
    report_progress,
    set_state,
    recorded_steps,
    record_step,
    append_frames,
    spend_budgets,
    make_waitpoint,
    suspend_run,
    work_batch,
]
