"""Waitpoints of an execution: which are open, their tokens, and signals to them."""

from typing import Annotated, Any
from uuid import UUID

from litestar import Request, Response, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET, Struct, UnsetType

from flowfabric.core.access.token import AccessScope
from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    InvalidToken,
    MissingCredentials,
    MissingToken,
    NotFound,
    Unauthorized,
)
from flowfabric.core.base.numbers import MAX_COUNT
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.time import MAX_SPAN, Millis
from flowfabric.core.wait.model import Effect
from flowfabric.core.wait.signal import DEDUP_TTL, Accepted, Delivery
from flowfabric.core.wait.waitpoint import OpenWaitpoint
from flowfabric.server.caller.access import (
    CREDENTIAL_IN_BODY,
    anonymous,
    caller_of,
    check_run,
    known_caller,
    needs,
)
from flowfabric.server.context import engine_of
from flowfabric.server.execution.executions import RunPath, own_run
from flowfabric.server.http.errors import BODIES, READS, answer_to
from flowfabric.server.http.wire import (
    NO_STORE,
    U64,
    Bytes,
    Moment,
    Now,
    RunText,
    Tagged,
    UuidText,
    fit,
    optional_uuid,
    read_bytes,
    read_id,
    read_moment,
    read_uuid_text,
    respond,
    same_id,
)

SIGNAL_BODY = 256 * 1024
PAGE = 100
NEXT = "FlowFabric-Next-Cursor"


class PendingWaitpoint(Struct, kw_only=True):
    """An open waitpoint, without its token. No `required_signal_names` means any signal."""

    waitpoint_id: str
    waitpoint_key: str
    state: str
    required_signal_names: list[str]
    created_at: int
    activated_at: int | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET
    execution_id: str
    token_kid: str
    token_fingerprint: str


@get(
    "/v1/executions/{id:str}/pending-waitpoints",
    opt=needs("read"),
    operation_id="list_pending_waitpoints",
    tags=["waitpoints"],
    responses=READS,
)
async def pending_waitpoints(
    request: Request[Any, Any, Any],
    id: RunPath,
    cursor: Annotated[
        str | None, QueryParameter(description=f"The header {NEXT} of the page before")
    ] = None,
    limit: Annotated[int, QueryParameter(ge=0)] = PAGE,
) -> Response[list[PendingWaitpoint]]:
    """The open waitpoints by id, as a bare array. If there are more, a header has the cursor. A
    page has at least one and at most 1,000, whatever `limit` says."""
    key, engine = await own_run(request, id)
    limit = min(max(1, limit), MAX_PAGE)
    after = optional_uuid(cursor, "cursor")
    # One more than is wanted tells whether there are more, except on the largest page.
    found = await engine.suspensions.waitpoints(key, after=after, limit=min(limit + 1, MAX_PAGE))
    page = found[:limit]
    more = len(found) > limit or (limit == MAX_PAGE and len(page) == MAX_PAGE)
    headers = {NEXT: str(page[-1].id)} if more else {}
    return respond([_pending(waitpoint) for waitpoint in page], headers=headers)


def _pending(waitpoint: OpenWaitpoint) -> PendingWaitpoint:
    activated_at, expires_at = waitpoint.activated_at, waitpoint.expires_at
    return PendingWaitpoint(
        waitpoint_id=str(waitpoint.id),
        waitpoint_key=waitpoint.key,
        state=waitpoint.state,
        required_signal_names=list(waitpoint.required_signal_names),
        created_at=waitpoint.created_at,
        activated_at=UNSET if activated_at is None else activated_at,
        expires_at=UNSET if expires_at is None else expires_at,
        execution_id=str(waitpoint.execution),
        token_kid=waitpoint.token_kid,
        token_fingerprint=waitpoint.token_fingerprint,
    )


class WaitpointToken(Struct):
    token: str


@get(
    "/v1/executions/{id:str}/waitpoints/{waitpoint_id:str}/token",
    opt=needs("signal"),
    operation_id="get_waitpoint_token",
    tags=["waitpoints"],
    responses=READS,
)
async def waitpoint_token(
    request: Request[Any, Any, Any], id: RunPath, waitpoint_id: FromPath[UuidText]
) -> Response[WaitpointToken]:
    """The token of an open waitpoint: a credential, so it is never cached."""
    key, engine = read_id(id), engine_of(request)
    waitpoint = read_uuid_text(waitpoint_id, "waitpoint_id")
    try:
        await check_run(caller_of(request), engine, key)
        token = await engine.suspensions.token(key, waitpoint)
        if token is None:
            raise NotFound("waitpoint", waitpoint)
    except NotFound:
        status, body = answer_to(NotFound("waitpoint", waitpoint))
        return respond(body, status, NO_STORE)
    return respond(WaitpointToken(token.reveal()), headers=NO_STORE)


class DeliverSignal(Struct, kw_only=True):
    """A signal to a waitpoint; its token is the credential."""

    waitpoint_id: UuidText
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    target_scope: str
    waitpoint_token: str
    execution_id: RunText | None = None
    signal_id: UuidText | None = None
    payload: Bytes | None = None
    payload_encoding: str | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    created_at: Moment | None = None
    dedup_ttl_ms: U64 | None = None
    resume_delay_ms: U64 | None = None
    max_signals_per_execution: U64 | None = None
    signal_maxlen: U64 | None = None
    now: Now = None


class AcceptedSignal(Struct):
    signal_id: str
    effect: Effect


class RepeatedSignal(Struct):
    existing_signal_id: str


class SignalRouteAnswer(Tagged):
    Accepted: AcceptedSignal | None = None
    Duplicate: RepeatedSignal | None = None


@post(
    "/v1/executions/{id:str}/signal",
    status_code=200,
    opt={"body": SIGNAL_BODY, CREDENTIAL_IN_BODY: True},
    operation_id="deliver_signal",
    tags=["waitpoints"],
    responses=BODIES,
)
async def deliver_signal(
    request: Request[Any, Any, Any], id: RunPath, data: JSONBody[DeliverSignal]
) -> Response[SignalRouteAnswer]:
    """Delivers a signal. The token of the waitpoint is enough. Callers without a token of the
    server do not learn which executions exist: with a wrong token they get 401."""
    try:
        return respond(await deliver(request, id, data))
    except (Invalid, NotFound) as error:
        if anonymous(request) and not await _has_token(request, id, data, error):
            text = "neither an access token nor the token of the waitpoint"
            raise MissingCredentials(text) from None
        raise


async def _has_token(
    request: Request[Any, Any, Any], id: str, data: DeliverSignal, refused: FlowFabricError
) -> bool:
    """Whether a signal that was refused came with a token of the waitpoint. What is wrong in the
    rest of a body is found before its token is looked at."""
    if isinstance(refused, Unauthorized | NotFound):  # one that expired or was used is a token
        return not isinstance(refused, InvalidToken | MissingToken | NotFound)
    try:
        waitpoint = read_uuid_text(data.waitpoint_id, "waitpoint_id")
        await engine_of(request).signals.look(read_id(id), waitpoint, data.waitpoint_token)
    except Invalid:
        return False
    return True


async def deliver(
    request: Request[Any, Any, Any], id: str, data: DeliverSignal
) -> SignalRouteAnswer:
    """Delivers what a body says to the execution `id`."""
    key, engine = read_id(id), engine_of(request)
    same_id(key, data.execution_id)
    caller = known_caller(request)
    hidden = caller is None or not caller.sees_all or not caller.allows(AccessScope.READ)
    delivery = _delivery(data, engine.suspensions.new_id())
    answer = await engine.signals.deliver(key, delivery, data.waitpoint_token, hidden=hidden)
    if isinstance(answer, Accepted):
        accepted = AcceptedSignal(str(answer.signal), answer.effect)
        return SignalRouteAnswer(Accepted=accepted)
    return SignalRouteAnswer(Duplicate=RepeatedSignal(str(answer.signal)))


def _delivery(data: DeliverSignal, fresh: UUID) -> Delivery:
    ttl = _fit(data.dedup_ttl_ms, "dedup_ttl_ms", MAX_SPAN)
    delay = _fit(data.resume_delay_ms, "resume_delay_ms", MAX_SPAN)
    _fit(data.signal_maxlen, "signal_maxlen", MAX_COUNT)
    return Delivery(
        id=optional_uuid(data.signal_id, "signal_id") or fresh,
        waitpoint=read_uuid_text(data.waitpoint_id, "waitpoint_id"),
        name=data.signal_name,
        category=data.signal_category,
        source_type=data.source_type,
        source=data.source_identity,
        payload=None if data.payload is None else read_bytes(data.payload, "payload"),
        encoding=data.payload_encoding,
        correlation=data.correlation_id,
        idempotency_key=data.idempotency_key or None,
        scope=data.target_scope,
        created_at=read_moment(data.created_at),
        dedup_ttl=DEDUP_TTL if ttl is None else Millis(ttl),
        delay=None if delay is None else Millis(delay),
        max_signals=_fit(data.max_signals_per_execution, "max_signals_per_execution", MAX_COUNT),
    )


def _fit(value: int | None, name: str, most: int) -> int | None:
    return None if value is None else fit(value, name, most)


HANDLERS = [pending_waitpoints, waitpoint_token, deliver_signal]
