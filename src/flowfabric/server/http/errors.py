"""Errors as answers: a status and the body `{"error", "code", "details", "kind"?, "retryable"?}`.

`error`, `kind` and `retryable` are what clients of the original read; `code` and `details` are set
on every error: `code` is stable, `details` has the members of the error as JSON.
"""

import logging
from math import ceil
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from msgspec import UNSET, Struct, UnsetType, to_builtins

from flowfabric.core.base import errors
from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.ids import ANYWHERE, ExecutionId
from flowfabric.server.caller.access import anonymous, lacks_credential
from flowfabric.server.http.asgi import REQUEST_ID
from flowfabric.server.http.paths import shown_path
from flowfabric.server.http.wire import BodyError, encode, read_id

log = logging.getLogger("flowfabric.server")

_JSON_WORDS = {400: "Bad Request", 415: "Unsupported Media Type", 422: "Unprocessable Entity"}
_JSON_CODES = {400: "malformed_json", 415: "unsupported_media_type", 422: "invalid_body"}


class ErrorBody(Struct):
    """What every error answers."""

    error: str
    code: str
    kind: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    details: dict[str, Any] = {}


class TooLarge(Struct):
    """The answer to a body over its limit."""

    error: str
    limit_bytes: int
    route: str
    code: str = "payload_too_large"
    details: dict[str, Any] = {}


_REFUSALS = {
    400: "The request is wrong; repeating it cannot help.",
    401: "The token of the caller is missing or not known.",
    403: "The token of the caller does not allow this.",
    404: "There is no such thing, or the caller does not see it.",
    408: "The body did not arrive in time; nothing was done.",
    409: "Another state, or a race was lost: `kind`, `code` and `retryable` say which.",
    413: "The body is larger than the route allows.",
    415: "The content type is not JSON.",
    422: "The JSON has the wrong form.",
    429: "Too much at once: try again later.",
    500: "The server failed: its log says why.",
    503: "The store cannot do this now.",
    504: "It took too long; repeat it with the same ids.",
}


def refusals(*statuses: int) -> dict[int, ResponseSpec]:
    """What a route documents besides its success."""
    return {
        status: ResponseSpec(
            TooLarge if status == 413 else ErrorBody,
            generate_examples=False,
            description=_REFUSALS[status],
        )
        for status in statuses
    }


READS = refusals(400, 401, 403, 404, 413, 429, 503, 504)
CHANGES = READS | refusals(408, 409)
BODIES = CHANGES | refusals(415, 422)


_NO_ROUTE = {
    404: ErrorBody(error="not found: route", code="route_not_found"),
    405: ErrorBody(error="method not allowed", code="method_not_allowed"),
}
"""Answers to requests that no handler takes; `Allow` has the methods that are."""


class BodyTooLarge(Exception):
    def __init__(self, limit: int, route: str) -> None:
        super().__init__(limit)
        self.limit = limit
        self.route = route


class BodyTooSlow(Exception):
    """A body that was not here when the deadline of its request came."""


_FAMILIES: dict[type, tuple[int, str | None, bool | None]] = {
    errors.Unauthenticated: (401, None, None),
    errors.Forbidden: (403, None, None),
    errors.NotFound: (404, None, None),
    errors.Invalid: (400, None, None),
    errors.CycleDetected: (409, "cycle_detected", False),
    errors.SelfEdge: (409, "self_referencing_edge", False),
    errors.NotInFlow: (409, "state_conflict", False),
    errors.FlowConflict: (409, "conflict", False),
    errors.AlreadyInFlow: (409, "execution_already_in_flow", False),
    errors.EdgeExists: (409, "dependency_already_exists", False),
    errors.WaitpointExists: (409, "waitpoint_already_exists", False),
    errors.RotationConflict: (409, "rotation_conflict", False),
    errors.Contention: (409, "contention", True),
    errors.NotActive: (409, "contention", True),
    errors.RetryExhausted: (503, "retry_exhausted", None),
    errors.WrongState: (409, "state_conflict", False),
    errors.NotTerminal: (409, "execution_not_terminal", False),
    errors.MaxReplays: (409, "max_replays_exhausted", False),
    errors.FlowTerminal: (409, "flow_already_terminal", False),
    errors.BudgetExceeded: (409, "budget_exceeded", False),
    errors.LeaseExpired: (409, "already_satisfied", False),
    errors.LeaseRevoked: (409, "already_satisfied", False),
    errors.Overloaded: (429, "resource_exhausted", True),
    errors.Unavailable: (503, "unavailable", None),
}
"""Status, kind and retryable of each family, and of the classes that differ from theirs: those of
the original that have a kind of their own. All other states are `state_conflict`."""

_CODES: dict[str, str] = {"invalid_graph": "invalid_dependency"}
"""Codes that the original spells otherwise."""

_ENTITIES = {"quota": "quota_policy"}
"""Words of the original for what was not found."""

_DETAILS = {
    "phase": "lifecycle_phase",
    "outcome": "terminal_outcome",
    "epoch": "lease_epoch",
}
"""Members of ExecutionNotActive as the original calls them."""

_PRIVATE = frozenset({"args", "detail"})


def answer_to(error: FlowFabricError) -> tuple[int, ErrorBody]:
    """Status and body of an error of the engine."""
    status, kind, retryable = _family(error)
    code = _CODES.get(error.code, error.code)
    body = ErrorBody(error=_text(error, code, kind), code=code)
    if kind is not None:
        body.kind = kind
    if retryable is not None:
        body.retryable = retryable
    body.details = _details(error)
    return status, body


def _text(error: FlowFabricError, code: str, kind: str | None) -> str:
    detail = f": {error.detail}" if error.detail else ""
    if isinstance(error, errors.NotFound):
        return _missing(error)
    if isinstance(error, errors.Unauthenticated):
        return "missing or invalid Authorization header"
    if isinstance(error, errors.InvalidId):
        return f"invalid id: {error.detail}"
    if kind in ("contention", "retry_exhausted"):
        return f"contention: {_camel(error.code)}{detail}"
    return f"{code}{detail}"


def _camel(code: str) -> str:
    return "".join(word.capitalize() for word in code.split("_"))


def _missing(error: errors.NotFound) -> str:
    if error.entity.startswith("execution") and error.key:
        return f"{error.entity} not found: {_shown(error.key)}"
    return f"not found: {_ENTITIES.get(error.entity, error.entity)}"


def _shown(key: object) -> str:
    """An id as the caller gave it: without a partition if the caller named none."""
    anywhere = isinstance(key, ExecutionId) and key.partition_index == ANYWHERE
    return str(key.uuid) if isinstance(key, ExecutionId) and anywhere else str(key)


def _family(error: FlowFabricError) -> tuple[int, str | None, bool | None]:
    """Status, kind and retryable: those of the closest class in `_FAMILIES`."""
    for type_ in type(error).__mro__:
        if type_ in _FAMILIES:
            status, kind, retryable = _FAMILIES[type_]
            return status, kind, error.retryable if status == 503 else retryable
    return 500, None, False


def _details(error: FlowFabricError) -> dict[str, Any]:
    """The members of the error; what it says of itself if it has none."""
    words = _DETAILS if isinstance(error, errors.NotActive) else {}
    members = {
        words.get(name, name): value for name, value in vars(error).items() if name not in _PRIVATE
    }
    found = {
        name: _shown(value) if isinstance(value, ExecutionId) else to_builtins(value, enc_hook=str)
        for name, value in members.items()
        if value is not None and value != ""
    }
    return found if found or not error.detail else {"reason": error.detail}


# -- handlers of exceptions


def on_engine_error(request: Request[Any, Any, Any], error: FlowFabricError) -> Response[Any]:
    status, body = answer_to(_named(request, error))
    if status == 500:
        _log_fault(request, error)
    return _response(status, body, error_headers(error))


def _named(request: Request[Any, Any, Any], error: FlowFabricError) -> FlowFabricError:
    """The same error; an execution that was not found gets the id of the path, as it was given."""
    if not isinstance(error, errors.NotFound) or error.entity != "execution":
        return error
    if not request.scope.get("path_template", "").startswith("/v1/executions/{id}"):
        return error
    given = request.path_params["id"]
    other = isinstance(error.key, ExecutionId) and error.key.uuid != read_id(given).uuid
    return error if other else errors.NotFound("execution", given)


def error_headers(error: FlowFabricError) -> dict[str, str]:
    """What a client must know besides the body: when to try again, how to say who it is."""
    match error:
        case errors.Unauthenticated():
            return {"WWW-Authenticate": "Bearer"}
        case errors.Overloaded():
            return {"Retry-After": str(max(1, ceil(error.retry_after)))}
        case errors.Unavailable() | errors.RetryExhausted():
            return {"Retry-After": "1"}
        case _:
            return {}


def on_body_error(request: Request[Any, Any, Any], error: BodyError) -> Response[Any]:
    if lacks_credential(request):
        return on_engine_error(request, errors.MissingCredentials(error.detail))
    return _response(error.status, body_error(error))


def body_error(error: BodyError) -> ErrorBody:
    return ErrorBody(
        error=f"invalid JSON: {_JSON_WORDS[error.status]}",
        code=_JSON_CODES[error.status],
        details={"reason": error.detail},
    )


def on_too_large(request: Request[Any, Any, Any], error: BodyTooLarge) -> Response[Any]:
    if lacks_credential(request):
        refused = errors.MissingCredentials(f"the body has more than {error.limit} bytes")
        return on_engine_error(request, refused)
    body = TooLarge("payload_too_large", error.limit, error.route)
    return _response(413, body, {"Connection": "close"})


def on_too_slow(request: Request[Any, Any, Any], error: BodyTooSlow) -> Response[Any]:
    """Nothing was done. What the client may still send is not read."""
    body = ErrorBody(
        error="the body did not arrive in time", code="request_timeout", retryable=True
    )
    return _response(408, body, {"Connection": "close"})


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """What Litestar refuses by itself: parameters, unknown routes, wrong methods."""
    status = error.status_code
    if anonymous(request) and status in _NO_ROUTE:
        return on_engine_error(request, errors.MissingCredentials())
    if status in _NO_ROUTE:
        return _response(status, _NO_ROUTE[status], dict(error.headers or {}))
    if isinstance(error, ValidationException):
        extra = error.extra if isinstance(error.extra, list) else []
        reasons = [_as_given(request, reason) for reason in extra]
        first = reasons[0] if reasons else {"message": error.detail}
        name = f"invalid {first['key']}: " if first.get("key") else ""
        body = ErrorBody(
            error=f"{name}{first.get('message', error.detail)}",
            code="invalid_parameter",
            details={"reasons": reasons},
        )
        return _response(400, body)
    return _response(status, ErrorBody(error=error.detail, code=f"http_{status}"))


def _as_given(request: Request[Any, Any, Any], reason: dict[str, Any]) -> dict[str, Any]:
    """A reason that names the parameter as the caller does, not as the handler does."""
    handler: Any = request.scope["route_handler"]
    known = handler.parsed_fn_signature.parameters.get(reason.get("key"))
    name = getattr(known and known.kwarg_definition, "name", None)
    return {**reason, "key": name} if name else reason


def on_timeout(request: Request[Any, Any, Any], error: TimeoutError) -> Response[Any]:
    path, fields = shown_path(request.scope), _fields(request)
    log.warning("%s %s took longer than its deadline", request.method, path, extra=fields)
    body = ErrorBody(
        error="the request took longer than the server allows; repeat it with the same ids",
        code="deadline_exceeded",
        retryable=True,
    )
    return _response(504, body)


def on_fault(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """A fault of this server: the log has all of it, the answer nothing but the request id."""
    _log_fault(request, error)
    return _response(500, ErrorBody(error="internal error", code="internal", retryable=False))


def _log_fault(request: Request[Any, Any, Any], error: Exception) -> None:
    path, fields = shown_path(request.scope), _fields(request)
    log.error("%s %s failed", request.method, path, exc_info=error, extra=fields)


def _fields(request: Request[Any, Any, Any]) -> dict[str, object]:
    """What records of the log carry about a request."""
    return {"request_id": request.scope.get(REQUEST_ID), "run": request.path_params.get("id")}


def _response(status: int, body: Struct, headers: dict[str, str] | None = None) -> Response[Any]:
    return Response(
        content=encode(body), status_code=status, media_type="application/json", headers=headers
    )
