"""`/v1/admin/rotate-waitpoint-secret`: the keys that sign waitpoint tokens."""

import asyncio
import logging
from typing import Any

from litestar import Request, Response, post
from litestar.params import JSONBody
from msgspec import Struct

from flowfabric.core.base.errors import Contention, Overloaded, RotationConflict, Unavailable
from flowfabric.core.base.ids import PARTITIONS
from flowfabric.server.caller.access import caller_of, check_everywhere, needs
from flowfabric.server.context import context_of
from flowfabric.server.http.asgi import REQUEST_ID
from flowfabric.server.http.errors import BODIES, ErrorBody
from flowfabric.server.http.wire import respond

audit = logging.getLogger("flowfabric.server.audit")

ROTATION_TIME = 120.0


class RotateSecret(Struct, kw_only=True):
    """A secret as an even number of hexadecimal digits, and what its key is called."""

    new_kid: str
    new_secret_hex: str

    def __repr__(self) -> str:
        return f"RotateSecret({self.new_kid!r})"


class RotatedSecret(Struct):
    """In how many partitions the key is in use. All of them share one ring of keys."""

    rotated: int
    failed: list[int]
    new_kid: str


@post(
    "/v1/admin/rotate-waitpoint-secret",
    status_code=200,
    opt=needs("admin", long=True),
    operation_id="rotate_waitpoint_secret",
    tags=["admin"],
    responses=BODIES,
)
async def rotate_secret(
    request: Request[Any, Any, Any], data: JSONBody[RotateSecret]
) -> Response[RotatedSecret]:
    """Signs new tokens with another key; tokens of the previous one stay valid for a while. One
    rotation at a time."""
    caller, context = caller_of(request), context_of(request)
    check_everywhere(caller)
    if context.rotating.locked():
        return _refused(429, "a rotation is in progress", "rotation_in_progress", retryable=True)
    async with context.rotating:
        try:
            async with asyncio.timeout(ROTATION_TIME):
                await context.engine.keys.rotate(
                    data.new_kid, data.new_secret_hex, grace=context.options.waitpoint_grace
                )
        except (Contention, Overloaded, Unavailable) as error:
            event = "waitpoint_hmac_rotation_failed"
            _record(request, logging.WARNING, event, data.new_kid, error.code)
            if not isinstance(error, RotationConflict):
                raise
            return _refused(400, str(error), error.code)
        except TimeoutError:
            event = "waitpoint_hmac_rotation_timeout_http_504"
            _record(request, logging.WARNING, event, data.new_kid)
            text = "the rotation took too long; it is safe to repeat it"
            return _refused(504, text, "rotation_timeout", retryable=True)
    _record(request, logging.INFO, "waitpoint_hmac_rotation_complete", data.new_kid)
    return respond(RotatedSecret(PARTITIONS, [], data.new_kid))


_SAID = {
    "waitpoint_hmac_rotation_complete": "waitpoint secret rotated: kid %s by %s",
    "waitpoint_hmac_rotation_failed": "waitpoint secret not rotated: kid %s by %s",
    "waitpoint_hmac_rotation_timeout_http_504": "waitpoint secret: rotation to kid %s by %s took "
    "too long; it may be done",
}
"""What the log says of each event, which the original calls by the same names."""


def _record(
    request: Request[Any, Any, Any], level: int, event: str, kid: str, why: str = ""
) -> None:
    name = caller_of(request).name
    extra = {"event": event, "caller": name, "request_id": request.scope.get(REQUEST_ID)}
    audit.log(level, f"{_SAID[event]}%s", kid, name, why and f" ({why})", extra=extra)


def _refused(status: int, text: str, code: str, *, retryable: bool | None = None) -> Response[Any]:
    body = ErrorBody(error=text, code=code)
    if retryable is not None:
        body.retryable = retryable
    return respond(body, status)


HANDLERS = [rotate_secret]
