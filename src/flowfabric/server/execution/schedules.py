"""Schedules: list, create, pause, resume, trigger, delete."""

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Request, Response, delete, get, post, put
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, JSONBody
from msgspec import Struct, field

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.numbers import check_word
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.time import Millis, parse_span
from flowfabric.core.execution.schedule import CatchUp, Schedule
from flowfabric.core.execution.submission import Submitted
from flowfabric.server.caller.access import caller_of, check_namespace, needs
from flowfabric.server.context import engine_of
from flowfabric.server.http.documents import document, respond_page
from flowfabric.server.http.parameters import Cursor, PageLimit
from flowfabric.server.http.shown import page, shown
from flowfabric.server.http.wire import Bytes, read_bytes, respond


class NewSchedule(Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of `cron` and `every` ("10m") is given."""

    execution_kind: str
    cron: str | None = None
    every: str | None = None
    timezone: str = "UTC"
    catch_up: str = "latest"
    input_payload: Bytes = field(default_factory=list)
    namespace: str = "default"
    lane_id: str = "default"


@get("/v1/schedules", opt=needs("read", shows=page("schedules", shown(Schedule))))
async def list_schedules(
    request: Request[Any, Any, Any], cursor: Cursor = None, limit: PageLimit = 100
) -> Response[dict[str, Any]]:
    """Schedules by name, of the namespaces that the caller sees."""
    found = await _visible(request, cursor or "", limit)
    return respond_page("schedules", found, limit, lambda last: last.name)


async def _visible(request: Request[Any, Any, Any], after: str, limit: int) -> list[Schedule]:
    """A page of what the caller sees. The cursor after it is a name that the caller sees as well,
    so what it does not see is passed here."""
    schedules, caller = engine_of(request).schedules, caller_of(request)
    size = limit if caller.sees_all else MAX_PAGE
    seen: list[Schedule] = []
    while page := await schedules.list(after=after, limit=size):
        seen += [each for each in page if caller.sees(each.namespace)]
        if len(page) < size or len(seen) >= limit:
            break
        after = page[-1].name
    return seen[:limit]


@get("/v1/schedules/{name:str}", opt=needs("read", shows=shown(Schedule)))
async def get_schedule(
    request: Request[Any, Any, Any], name: FromPath[str]
) -> Response[dict[str, Any]]:
    """One schedule, with its next time."""
    return respond(document(await _seen(request, name)))


@put("/v1/schedules/{name:str}", opt=needs("operate", shows=shown(Schedule)))
async def put_schedule(
    request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[NewSchedule]
) -> Response[dict[str, Any]]:
    """Declares a schedule, or changes the one of that name."""
    caller, schedules = caller_of(request), engine_of(request).schedules
    check_namespace(caller, data.namespace)
    if not caller.sees_all:
        await _unless_foreign(request, name)
    return respond(document(await schedules.put(_schedule(name, data))))


def _schedule(name: str, data: NewSchedule) -> Schedule:
    return Schedule(
        name=name,
        kind=data.execution_kind,
        cron=data.cron,
        catch_up=check_word(data.catch_up, CatchUp, "catch_up"),
        every=None if data.every is None else Millis(parse_span(data.every, "every")),
        timezone=data.timezone,
        payload=read_bytes(data.input_payload, "input_payload"),
        namespace=data.namespace,
        lane=data.lane_id,
    )


@post(
    "/v1/schedules/{name:str}/{action:str}",
    opt=needs("operate", shows=shown(Schedule) | shown(Submitted)),
    status_code=200,
)
async def change_schedule(
    request: Request[Any, Any, Any], name: FromPath[str], action: FromPath[str]
) -> Response[dict[str, Any]]:
    """`pause`, `resume`, or `trigger`: a run now, beside its times."""
    schedules = engine_of(request).schedules
    actions: dict[str, Callable[[str], Awaitable[Any]]] = {
        "pause": schedules.pause,
        "resume": schedules.resume,
        "trigger": schedules.trigger,
    }
    if action not in actions:
        raise NotFoundException
    await _seen(request, name)
    return respond(document(await actions[action](name)))


@delete("/v1/schedules/{name:str}", opt=needs("operate"), status_code=204)
async def delete_schedule(request: Request[Any, Any, Any], name: FromPath[str]) -> None:
    """Deletes a schedule; runs that it has submitted stay."""
    await _seen(request, name)
    await engine_of(request).schedules.remove(name)


async def _seen(request: Request[Any, Any, Any], name: str) -> Schedule:
    found = await engine_of(request).schedules.get(name)
    if not caller_of(request).sees(found.namespace):
        raise NotFound("schedule", name)
    return found


async def _unless_foreign(request: Request[Any, Any, Any], name: str) -> None:
    """A caller must not take over the schedule of another tenant by its name."""
    try:
        found = await engine_of(request).schedules.get(name)
    except NotFound:
        return
    if not caller_of(request).sees(found.namespace):
        raise Invalid(f"the name {name!r} is taken")


HANDLERS = [
    list_schedules,
    get_schedule,
    put_schedule,
    change_schedule,
    delete_schedule,
]
