"""The OpenAPI document: every route with its answers and errors, at `/v1/openapi.json`."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from litestar import Litestar, Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from msgspec import json

from flowfabric.server.caller.access import SCOPE
from flowfabric.server.http.errors import BODIES, CHANGES, READS

OPENAPI = OpenAPIConfig(
    title="FlowFabric",
    version="1",
    description="Durable execution over HTTP.",
    path="/v1/openapi",
    render_plugins=[JsonRenderPlugin()],  # the others load scripts from another host
    use_handler_docstrings=True,
    components=Components(
        security_schemes={"token": SecurityScheme(type="http", scheme="bearer")},
    ),
)


@get(["/v1/openapi.json", "/openapi.json"], include_in_schema=False)
async def openapi_document(request: Request[Any, Any, Any]) -> Response[bytes]:
    """This document."""
    return Response(_document(request.app), media_type="application/json")


@cache
def _document(app: Litestar) -> bytes:
    document = app.openapi_schema.to_schema()
    for operations in document["paths"].values():
        for operation in operations.values():
            if (takes := _taken.get(operation["operationId"])) is not None:
                body = {"schema": {"type": "string", "format": "binary"}}
                operation["requestBody"]["content"][takes] = body
    return json.encode(document)


_taken: dict[str, str] = {}
"""The types of bodies that operations take beside JSON."""


def describe(noun: str, handlers: Iterable[Any]) -> list[HTTPRouteHandler]:
    """The handlers of a noun, with what the document says of each beside its docstring: a stable
    name, the errors that every route may answer with, and whether it needs an access token."""
    found: list[HTTPRouteHandler] = list(handlers)
    for handler in found:
        handler.operation_id = handler.operation_id or handler.fn.__name__
        handler.tags = handler.tags or [noun]
        handler.responses = {**_errors(handler), **_shown(handler), **(handler.responses or {})}
        if "takes" in handler.opt:
            _taken[str(handler.operation_id)] = handler.opt["takes"]
        if SCOPE in handler.opt:
            handler.security = [{"token": []}]
    return found


def _shown(handler: HTTPRouteHandler) -> dict[int, Any]:
    """What the handler says that it shows (`server.http.shown`), where its return type does not."""
    shows = handler.opt.get("shows")
    if shows is None:
        return {}
    spec = ResponseSpec(shows, generate_examples=False, description="What was asked for.")
    return {handler.status_code: spec}


def _errors(handler: HTTPRouteHandler) -> dict[int, Any]:
    if handler.http_methods == {"GET"}:
        return dict(READS)
    if "data" in handler.parsed_fn_signature.parameters:
        return {**CHANGES, **BODIES}
    return dict(CHANGES)
