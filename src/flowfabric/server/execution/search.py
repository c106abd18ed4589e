"""Executions as people look for them: search, all that is known of one, waiting for its end."""

import asyncio
from typing import Annotated, Any

from litestar import Request, Response, get, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import Struct

from flowfabric.core.base.errors import NotFound
from flowfabric.core.base.numbers import check_limit
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.plain import plain_bytes
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.history import StepView
from flowfabric.core.execution.model import Attempt
from flowfabric.core.execution.status import ENDED, PublicState
from flowfabric.core.explain.reasons import Explanation
from flowfabric.core.wait.model import ReceivedSignal
from flowfabric.engine.execution.described import Description, Ending, Info
from flowfabric.server.caller.access import caller_of, check_again, needs, run_filter
from flowfabric.server.caller.explanations import without_foreign_runs
from flowfabric.server.context import engine_of
from flowfabric.server.http.documents import document, plain
from flowfabric.server.http.long_polls import while_wanted
from flowfabric.server.http.parameters import (
    MAX_WAIT,
    Cursor,
    Namespace,
    PageLimit,
    Tag,
    Wait,
    find_run,
    read_tag,
    read_wait,
    visible_namespace,
)
from flowfabric.server.http.shown import also, listing, maybe, page, shown
from flowfabric.server.http.wire import optional_uuid, respond
from flowfabric.store.queries import Query


class ExecutionList(Struct):
    """A page of executions. There are more unless `next_cursor` is null, even if it is short."""

    executions: list[dict[str, Any]]
    next_cursor: str | None


class EndingAnswer(Struct):
    """How an execution ended. `result` is JSON or text if it is, else `{"base64": …}`."""

    execution_id: str
    public_state: str
    outcome: str
    ended_at: int
    result: Any = None
    failure: dict[str, Any] | None = None
    reason: str | None = None


class NotEnded(Struct):
    """How an execution stands that has not ended by then; null if it was deleted meanwhile."""

    execution_id: str
    public_state: PublicState | None


States = Annotated[
    list[PublicState] | None, QueryParameter(name="state", description="Only in these; repeatable")
]


@get("/v1/executions/search", opt=needs("read", shows=page("executions", shown(Info))))
async def search_executions(  # noqa: PLR0913 - the filters are the interface
    request: Request[Any, Any, Any],
    namespace: Namespace = None,
    lane: FromQuery[str | None] = None,
    kind: FromQuery[str | None] = None,
    states: States = None,
    tag: Tag = None,
    flow: FromQuery[str | None] = None,
    created_from: FromQuery[int | None] = None,
    created_until: FromQuery[int | None] = None,
    newest_first: FromQuery[bool] = True,
    cursor: Cursor = None,
    limit: PageLimit = 100,
) -> Response[ExecutionList]:
    """Executions that match every filter, by creation time, newest first. The members of a flow
    that began long ago are found faster at `/v1/flows/{id}/members`."""
    engine, caller = engine_of(request), caller_of(request)
    query = Query(
        namespace=visible_namespace(caller, namespace),
        lane=lane,
        kind=kind,
        states=tuple(states or ()),
        tag=read_tag(tag),
        flow=optional_uuid(flow, "flow"),
        created_from=None if created_from is None else Millis(created_from),
        created_until=None if created_until is None else Millis(created_until),
        limit=check_limit(limit, MAX_PAGE),
        newest_first=newest_first,
    )
    page = await engine.views.list(query, cursor)
    return respond(ExecutionList([document(info) for info in page.items], page.cursor))


@get(
    "/v1/executions/{id:str}/describe",
    opt=needs("read", shows=also(Description, input_payload=maybe(Any), result=maybe(Any))),
)
async def describe_execution(
    request: Request[Any, Any, Any], id: FromPath[str], payload: FromQuery[bool] = False
) -> Response[dict[str, Any]]:
    """Everything known about one execution; with `payload=true` its input and result as well."""
    engine, key = engine_of(request), await find_run(request, id)
    found = await engine.views.describe(key)
    if found is None:
        raise NotFound("execution", id)
    answer = document(found)
    if payload:
        context = await engine.views.context(key)
        result = await engine.views.result(key)
        answer["input_payload"] = plain_bytes(context.payload)
        answer["result"] = None if result is None else plain_bytes(result)
    return respond(answer)


@get(
    "/v1/executions/{id:str}/attempts", opt=needs("read", shows=listing("attempts", shown(Attempt)))
)
async def execution_attempts(
    request: Request[Any, Any, Any], id: FromPath[str]
) -> Response[dict[str, Any]]:
    """Every attempt by index, the current one included."""
    key = await find_run(request, id)
    found = await engine_of(request).views.attempts(key)
    return respond({"attempts": [document(attempt) for attempt in found]})


@get("/v1/executions/{id:str}/steps", opt=needs("read", shows=listing("steps", shown(StepView))))
async def execution_steps(
    request: Request[Any, Any, Any], id: FromPath[str]
) -> Response[dict[str, Any]]:
    """What the handler has recorded since it was last started over."""
    key = await find_run(request, id)
    found = await engine_of(request).views.steps(key)
    return respond({"steps": [document(step) for step in found]})


@get("/v1/executions/{id:str}/explain", opt=needs("read", shows=shown(Explanation)))
async def explain_execution(
    request: Request[Any, Any, Any], id: FromPath[str]
) -> Response[dict[str, Any]]:
    """Why the execution does not run, beginning with what must change first."""
    key, engine = await find_run(request, id), engine_of(request)
    found = await engine.explain(key)
    sees = run_filter(caller_of(request), engine)
    return respond(document(await without_foreign_runs(found, sees)))


@get(
    "/v1/executions/{id:str}/signals",
    opt=needs("read", shows=listing("signals", shown(ReceivedSignal))),
)
async def execution_signals(
    request: Request[Any, Any, Any],
    id: FromPath[str],
    after: FromQuery[int] = 0,
    limit: PageLimit = 100,
) -> Response[dict[str, Any]]:
    """Accepted signals, by number."""
    key = await find_run(request, id)
    found = await engine_of(request).signals.of(key, after=after, limit=limit)
    return respond({"signals": [document(signal) for signal in found]})


@get("/v1/executions/{id:str}/tags", opt=needs("read"))
async def execution_tags(
    request: Request[Any, Any, Any], id: FromPath[str]
) -> Response[dict[str, str]]:
    """The tags of an execution."""
    key = await find_run(request, id)
    return respond(dict((await engine_of(request).views.context(key)).tags))


@put("/v1/executions/{id:str}/tags", opt=needs("operate"))
async def set_execution_tags(
    request: Request[Any, Any, Any], id: FromPath[str], data: JSONBody[dict[str, str]]
) -> Response[dict[str, int]]:
    """Adds or replaces tags, all or none."""
    key = await find_run(request, id)
    return respond({"set": await engine_of(request).executions.set_tags(key, data)})


@get(
    "/v1/executions/{id:str}/wait",
    opt=needs("read", long=True),
    responses={202: ResponseSpec(NotEnded, generate_examples=False, description="Not yet.")},
)
async def wait_for_execution(
    request: Request[Any, Any, Any], id: FromPath[str], wait: Wait = "30s"
) -> Response[EndingAnswer]:
    """Waits for the end: 200 with the result, or 202 with the state if it has not ended by then."""
    engine, key = engine_of(request), await find_run(request, id)
    state = await engine.views.state(key)
    if state is None:
        raise NotFound("execution", id)
    seconds = read_wait(wait)
    patience = MAX_WAIT if state in ENDED else seconds  # the end is there: it only has to be read
    waiting, _ = await while_wanted(request, engine.views.wait(key, patience))
    await check_again(request)
    try:
        return respond(_ending(waiting.result()))
    except (TimeoutError, asyncio.CancelledError):
        now = await engine.views.state(key)
        return respond(NotEnded(str(key), now), 202)


def _ending(ending: Ending) -> EndingAnswer:
    outcome = plain(ending.outcome)
    return EndingAnswer(
        execution_id=str(ending.id),
        public_state="completed" if outcome == "success" else outcome,
        outcome=outcome,
        ended_at=ending.ended_at,
        result=None if ending.result is None else plain_bytes(ending.result),
        failure=None if ending.failure is None else plain(ending.failure),
        reason=ending.reason,
    )


HANDLERS = [
    search_executions,
    describe_execution,
    execution_attempts,
    execution_steps,
    explain_execution,
    execution_signals,
    execution_tags,
    set_execution_tags,
    wait_for_execution,
]
