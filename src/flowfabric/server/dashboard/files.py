"""Hands out the dashboard: the page at `/`, its files at `/dashboard/`. They are public, since they
say nothing: what the page shows it asks for with the caller's token."""

from typing import Any

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from flowfabric.dashboard.files import INDEX, dashboard_file


@get("/", include_in_schema=False)
async def dashboard_page(request: Request[Any, Any, Any]) -> Response[bytes]:
    return _file(request, INDEX)


@get("/dashboard/{name:str}", include_in_schema=False)
async def dashboard_asset(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
    return _file(request, name)


def _file(request: Request[Any, Any, Any], name: str) -> Response[bytes]:
    found = dashboard_file(name)
    if found is None:
        raise NotFoundException
    if request.headers.get("if-none-match") == found.headers["ETag"]:
        return Response(b"", status_code=304, headers=found.headers, media_type=found.media_type)
    return Response(found.content, media_type=found.media_type, headers=found.headers)


HANDLERS = [dashboard_page, dashboard_asset]
