"""What a caller may do.

A handler names the scope it needs: `opt=needs("read")`; without one it is public. The gateway has
found the caller before (`server.http.gateway`). What belongs to a namespace that the caller does
not see answers exactly like what does not exist.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from litestar import Request
from litestar.connection import ASGIConnection

from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.core.base.errors import Forbidden, MissingCredentials, NotFound, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.engine.engine import Engine
from flowfabric.server.http.asgi import CONTEXT, Scope

CALLER = "flowfabric_caller"
SCOPE = "flowfabric_scope"
CREDENTIAL_IN_BODY = "credential_in_body"
"""Option of a route whose body may have another credential than an access token."""


def needs(scope: str, **more: object) -> dict[str, Any]:
    """The options of a handler that needs a scope."""
    return {SCOPE: AccessScope(scope), **more}


def known_caller(connection: ASGIConnection[Any, Any, Any, Any]) -> Identity | None:
    """The caller, None if the request carries no token and the server wants one."""
    found: Identity | None = connection.scope.get(CALLER)  # type: ignore[assignment]
    return found


def anonymous(connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    return known_caller(connection) is None


def lacks_credential(connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    """Whether the caller has sent no access token, and a body that cannot be read might have had
    the credential."""
    return anonymous(connection) and CREDENTIAL_IN_BODY in connection.route_handler.opt


def check_scope(scope: Scope) -> None:
    """The guard of every route, once it is known. No guard of Litestar's, which copies the handler
    for each request."""
    needed = scope["route_handler"].opt.get(SCOPE)
    if needed is None:
        return
    caller: Identity | None = scope.get(CALLER)
    if caller is None:
        raise MissingCredentials("missing or invalid Authorization header")
    caller.require(needed)


def caller_of(request: Request[Any, Any, Any]) -> Identity:
    """The caller of a request to a route that is not public."""
    caller = known_caller(request)
    if caller is None:
        raise MissingCredentials("missing or invalid Authorization header")
    return caller


async def check_again(request: Request[Any, Any, Any]) -> None:
    """Raises unless the token of a request that takes long is still valid, and as it was. A store
    that does not answer leaves that open until the next time."""
    context = request.scope[CONTEXT]  # type: ignore[literal-required]
    try:
        now = await context.authentication.identify(request.headers.get("authorization"))
    except Unavailable:
        return
    if now is None:
        raise MissingCredentials("missing or invalid Authorization header")
    if now != caller_of(request):
        raise Forbidden("the access token has changed since the request began")


async def check_run(caller: Identity, engine: Engine, id: ExecutionId) -> None:
    """Raises NotFound unless the caller sees the execution. Costs nothing for a caller that
    sees all namespaces: the operation itself says whether the execution exists."""
    if caller.sees_all:
        return
    namespace = await engine.views.namespace(id)
    if namespace is None or not caller.sees(namespace):
        raise NotFound("execution", id)


def run_filter(caller: Identity, engine: Engine) -> Callable[[UUID], Awaitable[bool]]:
    """Which runs the caller sees."""

    async def sees(uuid: UUID) -> bool:
        if caller.sees_all:
            return True
        namespace = await engine.views.namespace(ExecutionId.anywhere(uuid))
        return namespace is not None and caller.sees(namespace)

    return sees


async def check_flow(caller: Identity, engine: Engine, id: UUID) -> None:
    """The same for a flow."""
    if caller.sees_all:
        return
    flow = await engine.flow_views.get(id)
    if flow is None or not caller.sees(flow.namespace):
        raise NotFound("flow", id)


def check_namespace(caller: Identity, namespace: str) -> None:
    """Nothing is written into a namespace that the caller does not see."""
    if not caller.sees(namespace):
        raise Forbidden("this access token is not for that namespace")


def check_everywhere(caller: Identity) -> None:
    """What all namespaces share is for callers that see all of them."""
    if not caller.sees_all:
        raise Forbidden("this needs an access token for all namespaces")


async def check_dead_worker(
    engine: Engine, caller: Identity, instance: str, namespace: str, *, revoke: bool
) -> None:
    """A worker that claims in every namespace is registered in one: to revoke its leases concerns
    all of them."""
    if caller.sees_all or not revoke:
        return
    entry = await engine.workers.get(instance, namespace=namespace)
    if entry is not None and entry.everywhere:
        check_everywhere(caller)
