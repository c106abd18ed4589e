"""Many executions in one request: create, cancel, replay, signal. Each is answered on its own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.params import JSONBody
from msgspec import UNSET, Struct, UnsetType

from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.submission import Submitted
from flowfabric.server.caller.access import needs
from flowfabric.server.context import engine_of
from flowfabric.server.execution.executions import (
    CreateAnswer,
    CreatedExecution,
    CreateExecution,
    DuplicateExecution,
    submit,
)
from flowfabric.server.http.errors import ErrorBody, answer_to, body_error
from flowfabric.server.http.parameters import find_run
from flowfabric.server.http.wire import BodyError, RunText, read_id, respond
from flowfabric.server.wait.waitpoints import DeliverSignal, SignalRouteAnswer, deliver

MOST = 1000
CREATE_BODY = 16 << 20
IDS_BODY = 1 << 20

Act = Callable[[ExecutionId], Awaitable[object]]


class CreateMany(Struct, forbid_unknown_fields=True):
    executions: list[CreateExecution]


class CreateResult(CreateAnswer):
    """As for one execution, or why this one was refused."""

    Refused: ErrorBody | None = None


class CreateManyAnswer(Struct):
    """One result for each execution, in order."""

    results: list[CreateResult]


class CancelMany(Struct, kw_only=True, forbid_unknown_fields=True):
    execution_ids: list[str]
    reason: str


class ReplayMany(Struct, forbid_unknown_fields=True):
    execution_ids: list[str]


class BatchSignal(DeliverSignal, kw_only=True, forbid_unknown_fields=True):
    """A signal as for one execution, which it names."""

    execution_id: RunText


class SignalMany(Struct, forbid_unknown_fields=True):
    signals: list[BatchSignal]


class SignalResult(SignalRouteAnswer):
    """As for one signal, or why this one was refused."""

    Refused: ErrorBody | None = None


class SignalManyAnswer(Struct):
    """One result for each signal, in order."""

    results: list[SignalResult]


class ChangedOne(Struct, omit_defaults=True):
    """The state after the change, or why there was none."""

    execution_id: str
    public_state: str | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class ChangeManyAnswer(Struct):
    """One result for each execution, in order."""

    results: list[ChangedOne]


@post("/v1/executions/batch", opt=needs("submit", body=CREATE_BODY), status_code=200)
async def create_executions(
    request: Request[Any, Any, Any], data: JSONBody[CreateMany]
) -> Response[CreateManyAnswer]:
    """Creates up to 1,000 executions; each is created, a duplicate, or refused on its own."""
    _check_count(data.executions)
    answers = await asyncio.gather(*(_create(request, each) for each in data.executions))
    return respond(CreateManyAnswer(list(answers)))


async def _create(request: Request[Any, Any, Any], data: CreateExecution) -> CreateResult:
    try:
        answer = await submit(request, data)
    except FlowFabricError as error:
        return CreateResult(Refused=answer_to(error)[1])
    if isinstance(answer, Submitted):
        return CreateResult(Created=CreatedExecution(str(answer.id), answer.state))
    return CreateResult(Duplicate=DuplicateExecution(str(answer.id)))


@post("/v1/executions/cancel", opt=needs("operate", body=IDS_BODY), status_code=200)
async def cancel_executions(
    request: Request[Any, Any, Any], data: JSONBody[CancelMany]
) -> Response[ChangeManyAnswer]:
    """Cancels up to 1,000 executions, each on its own."""
    cancel = engine_of(request).executions.cancel
    return await _change_each(
        request, data.execution_ids, lambda key: cancel(key, reason=data.reason)
    )


@post("/v1/executions/replay", opt=needs("operate", body=IDS_BODY), status_code=200)
async def replay_executions(
    request: Request[Any, Any, Any], data: JSONBody[ReplayMany]
) -> Response[ChangeManyAnswer]:
    """Replays up to 1,000 ended executions, each on its own."""
    return await _change_each(request, data.execution_ids, engine_of(request).executions.replay)


@post("/v1/executions/signal", opt=needs("signal", body=CREATE_BODY), status_code=200)
async def signal_executions(
    request: Request[Any, Any, Any], data: JSONBody[SignalMany]
) -> Response[SignalManyAnswer]:
    """Delivers up to 1,000 signals, each with the token of its waitpoint. Those to one execution
    are delivered in their order."""
    _check_count(data.signals)
    by_run: dict[object, list[int]] = {}
    for place, signal in enumerate(data.signals):
        by_run.setdefault(_run_of(signal, place), []).append(place)
    results = [SignalResult() for _ in data.signals]

    async def in_order(places: list[int]) -> None:
        for place in places:
            results[place] = await _signal(request, data.signals[place])

    await asyncio.gather(*(in_order(places) for places in by_run.values()))
    return respond(SignalManyAnswer(results))


def _run_of(signal: BatchSignal, place: int) -> object:
    """Which execution a signal is for; one that names none is on its own."""
    try:
        return read_id(signal.execution_id).uuid
    except FlowFabricError:  # its result says so
        return place


async def _signal(request: Request[Any, Any, Any], data: BatchSignal) -> SignalResult:
    try:
        answer = await deliver(request, data.execution_id, data)
    except FlowFabricError as error:
        return SignalResult(Refused=answer_to(error)[1])
    except BodyError as error:
        return SignalResult(Refused=body_error(error))
    return SignalResult(Accepted=answer.Accepted, Duplicate=answer.Duplicate)


async def _change_each(
    request: Request[Any, Any, Any], ids: list[str], act: Act
) -> Response[ChangeManyAnswer]:
    _check_count(ids)
    answers = await asyncio.gather(*(_change(request, id, act) for id in ids))
    return respond(ChangeManyAnswer(list(answers)))


async def _change(request: Request[Any, Any, Any], id: str, act: Act) -> ChangedOne:
    try:
        key = await find_run(request, id)
        await act(key)
        state = await engine_of(request).views.state(key)
    except FlowFabricError as error:
        return ChangedOne(id, error=answer_to(error)[1])
    return ChangedOne(str(key), public_state=UNSET if state is None else str(state))


def _check_count(items: Sequence[object]) -> None:
    if len(items) > MOST:
        raise Invalid(f"at most {MOST} in one request")


HANDLERS = [create_executions, cancel_executions, replay_executions, signal_executions]
