"""Names in paths. A slash inside a name is sent as `%2F`, and does not divide the path.

Servers decode a path before the application sees it, so that `/v1/lanes/team%2Fa` would look like
`/v1/lanes/team/a`. While the route is found, another character stands for such a slash.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote, unquote_to_bytes

from flowfabric.core.base.errors import Invalid
from flowfabric.server.http.asgi import Scope

_SLASH = "\ud82f"
"""Half a surrogate pair: no bytes decode to it, so that no path can have it."""
_SENT = re.compile("%2f", re.IGNORECASE)
_UNREADABLE = "\N{REPLACEMENT CHARACTER}"


def hide_slashes(scope: Scope) -> None:
    """Before the route is found."""
    raw = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return
    text = raw.decode("latin-1")
    if unquote(text) == scope["path"]:  # otherwise what is around this application has changed it
        scope["path"] = _SLASH.join(unquote(part) for part in _SENT.split(text))


def show_slashes(scope: Scope) -> None:
    """Once the route is known."""
    if _SLASH in scope["path"]:
        scope["path"] = _with_slashes(scope)
        scope["path_params"] = {
            name: value.replace(_SLASH, "/") for name, value in scope["path_params"].items()
        }


def shown_path(scope: Mapping[str, object]) -> str:
    """The path as text for people. One with a line end or an escape sequence in it is quoted: no
    caller writes lines of its own into the log."""
    path = _with_slashes(scope)
    return path if path.isprintable() else quote(path, safe="/%:{}", errors="replace")


def _with_slashes(scope: Mapping[str, object]) -> str:
    return str(scope["path"]).replace(_SLASH, "%2F")


def check_path(scope: Scope) -> None:
    """Refuses a path whose bytes are no UTF-8: decoded, different names would look the same."""
    if _UNREADABLE not in scope["path"]:
        return
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
    except UnicodeDecodeError:
        raise Invalid("the path is not UTF-8") from None
