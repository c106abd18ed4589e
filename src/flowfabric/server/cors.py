"""Which web pages may call the server from a browser: none, unless their origins are listed.

An origin is compared as browsers send it: scheme, host and port, in lower case and without the
port that the scheme implies. There is no wildcard. Credentials are never allowed: a page sends its
access token in a header that it sets itself.
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from flowfabric.core.base.errors import Invalid

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
HEADERS = (
    "accept",
    "authorization",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "x-request-id",
)
EXPOSED = ("retry-after", "x-request-id")
MAX_AGE = 600
"""Seconds for which a browser remembers the answer to a preflight."""
MAX_ORIGINS = 100

_DEFAULT_PORTS = {"http": "80", "https": "443"}
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_ORIGIN = re.compile(
    rf"(?P<scheme>https?)://(?P<host>{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]{{2,45}}\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


class CorsPolicy(Struct, frozen=True):
    """The origins that may call; none by default."""

    origins: frozenset[str] = frozenset()

    def allows(self, origin: str | None) -> bool:
        """Whether a page of this origin, as the browser names it, may read the answer."""
        return origin is not None and origin in self.origins

    def headers(self, origin: str | None) -> dict[str, str]:
        """The headers of an answer to this origin. `Vary` is there for every origin, so that a
        cache never gives the answer of one to another."""
        if not self.origins:
            return {}
        if not self.allows(origin):
            return {"vary": "origin"}
        return {
            "access-control-allow-origin": origin or "",
            "access-control-expose-headers": ", ".join(EXPOSED),
            "vary": "origin",
        }

    def preflight(
        self, origin: str | None, method: str | None, headers: str | None = None
    ) -> dict[str, str] | None:
        """The headers that allow a request with this method and these headers; None refuses it."""
        asked = [name.strip().lower() for name in (headers or "").split(",") if name.strip()]
        if not self.allows(origin) or method not in METHODS or not set(asked) <= set(HEADERS):
            return None
        return {
            "access-control-allow-origin": origin or "",
            "access-control-allow-methods": ", ".join(METHODS),
            "access-control-allow-headers": ", ".join(HEADERS),
            "access-control-max-age": str(MAX_AGE),
            "vary": "origin, access-control-request-method, access-control-request-headers",
        }


def parse_origins(text: str) -> frozenset[str]:
    """The origins in a list separated by commas. Invalid if one of them is none."""
    found = [part.strip() for part in text.split(",")]
    if len(found) > MAX_ORIGINS:
        raise Invalid(f"{len(found)} origins, the limit is {MAX_ORIGINS}")
    return check_origins(found)


def check_origins(origins: Iterable[str]) -> frozenset[str]:
    return frozenset(parse_origin(origin) for origin in origins)


def parse_origin(text: str) -> str:
    """One origin, as browsers write it."""
    if text == "*":
        raise Invalid("* would open the server to every web page: list the origins")
    match = _ORIGIN.fullmatch(text.lower()) if text.isascii() else None
    if match is None or (match["port"] is not None and not 1 <= int(match["port"]) <= 65535):
        raise Invalid(f"{text[:80]!r} is not an origin such as https://app.example.com")
    scheme, host, port = match["scheme"], match["host"], match["port"]
    number = None if port is None else str(int(port))
    shown = "" if number in (None, _DEFAULT_PORTS[scheme]) else f":{number}"
    return f"{scheme}://{host}{shown}"
