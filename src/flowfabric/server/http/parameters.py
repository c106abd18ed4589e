"""What paths and queries name: executions, flows, limits, pages, times to wait, tags."""

import asyncio
from collections import Counter
from contextlib import suppress
from functools import cache
from typing import Annotated, Any
from urllib.parse import parse_qsl
from uuid import UUID

from litestar import Request
from litestar.exceptions import ValidationException
from litestar.params import QueryParameter

from flowfabric.core.access.token import Identity
from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.ids import ANYWHERE, ExecutionId
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.time import Millis, parse_span
from flowfabric.engine.engine import Engine
from flowfabric.server.caller.access import (
    caller_of,
    check_everywhere,
    check_flow,
    check_namespace,
    check_run,
)
from flowfabric.server.context import engine_of
from flowfabric.server.http.long_polls import while_wanted
from flowfabric.server.http.wire import is_whole_number, read_id, read_uuid_text, same_uuid

MAX_WAIT = 30.0
MOMENT_DIGITS = 15
"""Of a moment in the year 9999."""

Cursor = Annotated[str | None, QueryParameter(description="The `next_cursor` of the page before")]
PageLimit = Annotated[
    int, QueryParameter(ge=1, le=MAX_PAGE, description=f"At most so many, up to {MAX_PAGE}")
]
ListLimit = Annotated[
    int,
    QueryParameter(ge=0, le=MAX_PAGE, description=f"At most so many, up to {MAX_PAGE}; 0 for none"),
]
Wait = Annotated[str | None, QueryParameter(description="How long to wait, up to 30s: 500ms, 20s")]
Namespace = Annotated[str | None, QueryParameter(description="Only of this namespace")]
Tag = Annotated[str | None, QueryParameter(description="Only with this tag: key=value")]


async def find_run(request: Request[Any, Any, Any], text: str) -> ExecutionId:
    """The execution that a request names, tagged or by its uuid alone, if the caller sees it. One
    that it does not see is refused by the id as it was given: the partition would say that it
    exists."""
    id, engine = read_id(text), engine_of(request)
    await check_run(caller_of(request), engine, id)
    if id.partition_index != ANYWHERE:
        return id
    (found,) = await engine.views.locate([id.uuid])
    return found


async def find_flow(request: Request[Any, Any, Any], text: str) -> UUID:
    """The flow that a path names, if the caller sees it."""
    id = read_uuid_text(text, "flow")
    await check_flow(caller_of(request), engine_of(request), id)
    return id


def shared_engine(request: Request[Any, Any, Any]) -> Engine:
    """The engine, for what all namespaces share: refuses a caller that sees only some of them."""
    check_everywhere(caller_of(request))
    return engine_of(request)


def find_limit(
    request: Request[Any, Any, Any], path: str, member: str, repeated: str | None = None
) -> tuple[str, Engine]:
    """The name of the budget or quota whose uuid a path has, and the engine. The body may repeat
    the uuid."""
    id = read_uuid_text(path, member)
    same_uuid(id, repeated, member)
    return str(id), shared_engine(request)


def check_query(scope: Any, handler: Any) -> None:
    """Refuses a parameter that stands twice, unless it is a list, because two readers would
    disagree about which one counts; and `5.0` and `1e3` for a whole number, which Litestar would
    read. Parameters that the route does not have are not looked at."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    counts = Counter(name for name, _ in pairs)
    known = _query_parameters(handler)
    for name, text in pairs:
        is_whole, is_list = known.get(name, (False, True))
        if counts[name] > 1 and not is_list:
            raise refused_parameter(name, "stands more than once")
        if is_whole and not is_whole_number(text):
            raise refused_parameter(name, "must be a whole number of at most 64 bits")


@cache
def _query_parameters(handler: Any) -> dict[str, tuple[bool, bool]]:
    """The parameters of a route: which are whole numbers, and which are lists."""
    found = {}
    for field in handler.parsed_fn_signature.parameters.values():
        if isinstance(said := field.kwarg_definition, QueryParameter):
            kinds = {field.annotation, *(inner.annotation for inner in field.inner_types)}
            found[said.name or field.name] = (int in kinds, field.is_non_string_sequence)
    return found


def refused_parameter(name: str, message: str) -> ValidationException:
    return ValidationException(extra=[{"key": name, "message": message}])


def visible_namespace(caller: Identity, asked: str | None) -> str | None:
    """The namespace that a list is limited to. A caller that sees only some must name one of them,
    and is refused for any other, whether there is anything in it or not."""
    if asked is None and not caller.sees_all:
        seen = sorted(caller.namespaces or ())
        if len(seen) == 1:
            return seen[0]
        raise Invalid(f"name one of your namespaces: {', '.join(seen)}")
    if asked is not None:
        check_namespace(caller, asked)
    return asked


def read_wait(text: str | None) -> float:
    """Seconds to wait, 0 if none were asked for."""
    if text is None:
        return 0.0
    seconds = parse_span(text, "wait") / 1000
    if seconds > MAX_WAIT:
        raise Invalid("wait is at most 30s; repeat the request to wait longer")
    return seconds


async def until_ended(request: Request[Any, Any, Any], id: str, wait: str | None) -> None:
    """Returns when the execution has ended, when there is none, or when the time is over."""
    seconds = read_wait(wait)
    if not seconds:
        return
    views, key = engine_of(request).views, await find_run(request, id)
    if await views.state(key) is None:
        return
    waiting, _ = await while_wanted(request, views.wait(key, seconds))
    with suppress(TimeoutError, asyncio.CancelledError, NotFound):
        waiting.result()


def moment_cursor(at: Millis, id: ExecutionId) -> str:
    """The cursor of a list that is ordered by a moment, and by the id where moments are equal."""
    return f"{at}~{id}"


def read_moment_cursor(text: str) -> tuple[Millis, ExecutionId]:
    moment, _, id = text.partition("~")
    if not moment.isdecimal() or len(moment) > MOMENT_DIGITS:
        raise Invalid(f"not a cursor: {text[:80]!r}")
    return Millis(int(moment)), read_id(id)


def read_tag(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, equals, value = text.partition("=")
    if not equals:
        raise Invalid("a tag is given as key=value")
    return key, value
