"""Where the database is, and how to say so without giving the password away."""

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from msgspec import Struct

from flowfabric.core.base.errors import Invalid

_SCHEMES = ("postgresql", "postgres")
_POOLERS = ("none", "session", "transaction")
_OWN = ("pooler", "listen")
_PLACE = (*_OWN, "host", "port")
_PORT = re.compile("[0-9]{1,5}")


class Address(Struct, frozen=True):
    """`shown` is for people. `pooler` is what the URL says about one, None to find out. `listen`
    is where to listen for hints, if not there."""

    dsn: str
    shown: str
    password: str | None = None
    pooler: str | None = None
    listen: "Address | None" = None

    def censored(self, text: object) -> str:
        """Text of others that may quote the URL, without the password."""
        told = str(text) if self.listen is None else self.listen.censored(text)
        return told.replace(self.password, "***") if self.password else told


def read_address(url: str) -> Address:
    """`postgresql://user:password@host:port/database?…`; `?pooler=none|session|transaction` says
    what stands between here and the server, `?listen=host:port` (or a whole URL, quoted) where the
    server itself is reached to listen for hints."""
    parts = _split(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(options)
    pooler = given.get("pooler")
    if pooler is not None and pooler not in _POOLERS:
        raise Invalid(f"pooler must be one of {', '.join(_POOLERS)}")
    rest = urlencode([(name, value) for name, value in options if name not in _OWN])
    userinfo, _, place = parts.netloc.rpartition("@")
    _, _, password = userinfo.partition(":")
    _check_ports(place)
    host = place or given.get("host") or "the local socket"
    database = parts.path.lstrip("/") or given.get("database") or given.get("dbname") or ""
    return Address(
        dsn=parts._replace(query=rest).geturl(),
        shown=f"database {unquote(database)!r} on {host}",
        password=unquote(password) or given.get("password") or None,
        pooler=pooler,
        listen=_listen_address(parts, given["listen"]) if "listen" in given else None,
    )


def _listen_address(parts: SplitResult, given: str) -> Address:
    """The same user and database at `host:port`, or all of another URL."""
    try:
        if "://" in given:
            return read_address(given)
        if not given or "/" in given or "@" in given:
            raise Invalid("give host:port, or a whole URL, quoted")
        userinfo, at, _ = parts.netloc.rpartition("@")
        options = parse_qsl(parts.query, keep_blank_values=True)
        rest = [(name, value) for name, value in options if name not in _PLACE]
        netloc = f"{userinfo}{at}{given}"
        return read_address(parts._replace(netloc=netloc, query=urlencode(rest)).geturl())
    except Invalid as error:
        raise Invalid(f"listen in the URL of the store: {error}") from None


def _check_ports(place: str) -> None:
    """A URL may name several hosts, each with a port of its own."""
    for host in place.split(","):
        _, colon, port = host.rpartition("]")[2].rpartition(":")
        if colon and port and not (_PORT.fullmatch(port) and 0 < int(port) < 65_536):
            raise Invalid(f"{port[:20]!r} is not a port")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Invalid("not a URL such as postgresql://user@host/database") from None
    if parts.scheme not in _SCHEMES:
        raise Invalid("the URL of a Postgres store begins with postgresql:// or postgres://")
    return parts
