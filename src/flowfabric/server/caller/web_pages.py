"""Which web pages may call a server that asks for no access token.

Such a server trusts every program that reaches it, and a browser is one of them: every page that it
shows can send it requests. CORS keeps a page from reading the answers, but a request without a
body, or with one of plain text, changes something all the same. And a page whose host name is made
to resolve to 127.0.0.1 (DNS rebinding) reads the answers as well, since for the browser they come
from its own host. So a caller without a token is refused if the request

- changes something and comes from a page of another origin, unless that origin is listed, or
- reaches the loopback address under a host name that is not one of this machine.

Programs send no `Origin`, and reach the server by its address. Host names without a dot are let
through: no public name server answers for them.
"""

from functools import lru_cache
from ipaddress import ip_address

from flowfabric.core.base.errors import Forbidden
from flowfabric.server.options import ServerOptions, is_loopback

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SUFFIXES = (".localhost", ".internal")
"""Reserved for this machine and for private networks."""


def check_page(
    options: ServerOptions,
    method: str,
    reached_at: str | None,
    host: str | None,
    origin: str | None,
) -> None:
    """Raises Forbidden for a request that a foreign web page has caused. `reached_at` is the
    address of ours at which it arrived; `host` and `origin` are the headers of these names."""
    public = _place(options.public_url)
    if origin is not None and method not in SAFE_METHODS and not options.cors.allows(origin):
        page = _place(origin)
        if not page or page not in ((host or "").lower(), public):
            raise Forbidden(
                "a web page of another origin may not call a server without access tokens: create "
                "a token, or list the origin with --cors-origins"
            )
    if options.insecure or reached_at is None or not is_loopback(reached_at):
        return
    if host is not None and not is_own_name(host) and _name(host) != _name(public):
        raise Forbidden(
            "this server is called by a host name that is not its own: use 127.0.0.1 or localhost, "
            "create an access token, or name the host with --public-url"
        )


@lru_cache(maxsize=64)
def is_own_name(host: str) -> bool:
    """Whether a `Host` header names this machine, by an address or by a name that no public name
    server can give to another."""
    name = _name(host)
    if "." not in name or name.endswith(_OWN_SUFFIXES):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """`[::1]:9090` as `::1`, `Localhost:9090` as `localhost`, `evil.example.` without its dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def _place(url: str | None) -> str:
    """Host and port of a URL, as the `Host` of a request for it; nothing if it has none."""
    return (url or "").partition("://")[2].partition("/")[0].lower()
