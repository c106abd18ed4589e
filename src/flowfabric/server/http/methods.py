"""OPTIONS: which methods a path has. Litestar answers with those of its first handler alone."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from litestar import Request, Response, route
from litestar.handlers import HTTPRouteHandler

from flowfabric.server.caller.access import SCOPE, caller_of


def options_of(handlers: Iterable[Any]) -> list[HTTPRouteHandler]:
    """One handler for each path of these. Without a token a caller learns the methods of public
    paths only, as it gets 401 for every other method that a path does not have."""
    found: defaultdict[str, list[HTTPRouteHandler]] = defaultdict(list)
    for handler in handlers:
        if isinstance(handler, HTTPRouteHandler):
            for path in handler.paths:
                found[path].append(handler)
    return [_options(path, beside) for path, beside in found.items()]


def _options(path: str, handlers: list[HTTPRouteHandler]) -> HTTPRouteHandler:
    methods = {str(method) for each in handlers for method in each.http_methods}
    allow = ", ".join(sorted({*methods, "OPTIONS"}))
    public = any(SCOPE not in each.opt for each in handlers)

    async def options(request: Request[Any, Any, Any]) -> Response[None]:
        if not public:
            caller_of(request)
        return Response(None, status_code=204, headers={"Allow": allow})

    return route(path, http_method="OPTIONS", status_code=204, include_in_schema=False)(options)
