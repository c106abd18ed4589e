"""Which web pages may call the server from a browser: none, unless their origins are listed.

An origin is compared as browsers send it: scheme, host and port, in lower case and without the
port that the scheme implies. `*` is every origin, with any method and any header. Credentials are
never allowed: a page sends its access token in a header that it sets itself.
"""

import re

from msgspec import Struct

from flowfabric.core.base.errors import Invalid

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
HEADERS = (
    "accept",
    "authorization",
    "cache-control",
    "content-type",
    "flowfabric-handle",
    "idempotency-key",
    "last-event-id",
    "prefer",
    "traceparent",
    "x-request-id",
)
"""Headers of requests that the API describes."""
EXPOSED = (
    "age",
    "flowfabric-ignored-fields",
    "flowfabric-next-cursor",
    "flowfabric-priority-clamped",
    "retry-after",
    "x-request-id",
)
"""The headers of its answers that say what the body does not; browsers hide all others."""
MAX_AGE = 600
"""Seconds for which a browser remembers the answer to a preflight."""
MAX_ORIGINS = 100
EVERY = "*"
"""Stands for every origin."""

_DEFAULT_PORTS = {"http": "80", "https": "443"}
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_ORIGIN = re.compile(
    rf"(?P<scheme>https?)://(?P<host>{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]{{2,45}}\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


class CorsPolicy(Struct, frozen=True):
    """The origins that may call; none by default. `dropped` are members of the list that are no
    origins."""

    origins: frozenset[str] = frozenset()
    dropped: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether every page may call."""
        return EVERY in self.origins

    def allows(self, origin: str | None) -> bool:
        """Whether a page of this origin, as the browser names it, may read the answer."""
        return origin is not None and (self.is_open or origin in self.origins)

    def headers(self, origin: str | None) -> dict[str, str]:
        """The headers of an answer to this origin. `Vary` is there for every origin, so that a
        cache never gives the answer of one to another."""
        if not self.origins:
            return {}
        if self.is_open:
            exposed = ", ".join(EXPOSED)
            return {"access-control-allow-origin": EVERY, "access-control-expose-headers": exposed}
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
        if self.is_open:
            return _open_preflight(method, asked)
        if not self.allows(origin) or method not in METHODS or not set(asked) <= set(HEADERS):
            return None
        return {
            "access-control-allow-origin": origin or "",
            "access-control-allow-methods": ", ".join(METHODS),
            "access-control-allow-headers": ", ".join(HEADERS),
            "access-control-max-age": str(MAX_AGE),
            "vary": "origin, access-control-request-method, access-control-request-headers",
        }


def _open_preflight(method: str | None, asked: list[str]) -> dict[str, str]:
    """Allows what is asked for, by its name: a wildcard for headers would leave out
    `authorization`."""
    methods = METHODS if method is None or method in METHODS else (*METHODS, method)
    return {
        "access-control-allow-origin": EVERY,
        "access-control-allow-methods": ", ".join(methods),
        "access-control-allow-headers": ", ".join(asked or HEADERS),
        "access-control-max-age": str(MAX_AGE),
        "vary": "access-control-request-method, access-control-request-headers",
    }


def parse_cors(text: str) -> CorsPolicy:
    """The policy for a list of origins separated by commas; `*` is every origin. A member that is
    no origin is dropped: without it the server is less open. Invalid if no member is one."""
    found = [part.strip() for part in text.split(",")]
    if len(found) > MAX_ORIGINS:
        raise Invalid(f"{len(found)} origins, the limit is {MAX_ORIGINS}")
    if found == [EVERY]:
        return CorsPolicy(frozenset(found))
    origins: set[str] = set()
    dropped: dict[str, Invalid] = {}
    for part in found:
        try:
            origins.add(parse_origin(part))
        except Invalid as error:
            dropped[part] = error
    if not origins:
        raise next(iter(dropped.values()))
    return CorsPolicy(frozenset(origins), tuple(dropped))


def parse_origin(text: str) -> str:
    """One origin, as browsers write it."""
    match = _ORIGIN.fullmatch(text.lower()) if text.isascii() else None
    if match is None or (match["port"] is not None and not 1 <= int(match["port"]) <= 65535):
        raise Invalid(f"{text[:80]!r} is not an origin such as https://app.example.com")
    scheme, host, port = match["scheme"], match["host"], match["port"]
    number = None if port is None else str(int(port))
    shown = "" if number in (None, _DEFAULT_PORTS[scheme]) else f":{number}"
    return f"{scheme}://{host}{shown}"
