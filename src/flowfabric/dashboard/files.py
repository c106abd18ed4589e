"""The files of the dashboard. No framework: any web server can hand them out.

Every address in them is relative, so that the dashboard works under any prefix: it expects the API
at `v1/` beside it.
"""

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing but our own files, nothing inline, nothing from another host."""

MEDIA = {  # all text is UTF-8
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
INDEX = "index.html"

_FOLDER = files("flowfabric.dashboard") / "static"


class DashboardFile(NamedTuple):
    """One file, ready to be sent."""

    content: bytes
    media_type: str
    headers: dict[str, str]


@cache
def names() -> frozenset[str]:
    """The names of all files; none of them is in a folder."""
    return frozenset(
        each.name for each in _FOLDER.iterdir() if each.name.rpartition(".")[2] in MEDIA
    )


def dashboard_file(name: str) -> DashboardFile | None:
    """The file of that name, None if there is none. Browsers keep it and ask whether it is still
    the same."""
    return _read(name) if name in names() else None


@cache
def _read(name: str) -> DashboardFile:
    content = (_FOLDER / name).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "ETag": tag}
    return DashboardFile(content, MEDIA[name.rpartition(".")[2]], headers)
