"""How the server is configured: by flags and by environment variables, both parsed strictly.

The server does not start with a value that it does not understand: one that guesses is open or slow
in a way that its operator did not ask for. A flag counts more than the variable of the same name.
Two variables may be empty, since no is the safe answer to both: an empty token is none, and then a
server listens on this machine only; an empty or strange yes or no is no.
"""

import re
import ssl
from collections.abc import Callable, Mapping
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import MAX_SPAN, Millis, check_span
from flowfabric.core.limit.quota import Rate, parse_rate
from flowfabric.server.caller.cors import CorsPolicy, parse_cors

T = TypeVar("T")

VARIABLE = "FLOWFABRIC_"
_ORIGINAL = {
    "FF_API_TOKEN": "TOKEN",
    "FF_BACKEND": "URL",
    "FF_CORS_ORIGINS": "CORS_ORIGINS",
    "FF_LISTEN_ADDR": "LISTEN",
    "FF_MAX_CONCURRENT_STREAM_OPS": "MAX_STREAM_READERS",
    "FF_MAX_CONCURRENT_TAIL": "MAX_STREAM_READERS",
    "FF_POSTGRES_URL": "URL",
    "FF_SQLITE_PATH": "URL",
    "FF_WAITPOINT_HMAC_GRACE_MS": "WAITPOINT_GRACE",
    "FF_WAITPOINT_HMAC_SECRET": "WAITPOINT_SECRET",
}
"""Variables of the original's server, and the endings of ours that say the same."""

LEAST_TOKEN = 16
MOST_TOKEN = 1024
MAX_PROCESSES = 256
MAX_READERS = 100_000

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,5}")
_TOKEN = re.compile(rf"[!-~]{{{LEAST_TOKEN},{MOST_TOKEN}}}")
_WHOLE = re.compile(r"[0-9]{1,9}")
_SHOWN = 80


class ListenAddress(Struct, frozen=True):
    """Where a server listens. Port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine reach it. The name of a host is not looked up: what
        it means is decided elsewhere and may change."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    try:
        found = ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback
    return found.is_loopback


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Every member has the environment variable of its name: `listen` is FLOWFABRIC_LISTEN.

    `token` has every scope; the tokens in the store are accepted as well. `rate_limit` applies to
    each caller; None means no limit. `waitpoint_grace` is how long the tokens of a waitpoint key
    stay valid after a rotation through the server. `insecure` allows a server without tokens on an
    address that others can reach. `public_url` is how others reach the server, for links.
    """

    listen: ListenAddress = ListenAddress("127.0.0.1", 9090)
    token: str | None = None
    cors: CorsPolicy = CorsPolicy()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    metrics_listen: ListenAddress | None = None
    rate_limit: Rate | None = None
    request_timeout: Millis = Millis(30_000)
    drain_timeout: Millis = Millis(15_000)
    max_stream_readers: int = 64
    waitpoint_grace: Millis = Millis(86_400_000)
    insecure: bool = False
    processes: int = 1
    public_url: str | None = None
    log: LogFormat = LogFormat.TEXT

    def __repr__(self) -> str:
        members = (name for name in self.__struct_fields__ if name != "token")
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in members)
        return f"ServerOptions(token={'<hidden>' if self.token else None}, {shown})"

    @property
    def has_tls(self) -> bool:
        return self.tls_cert is not None


class Setting(Struct, frozen=True):
    """One member of the options: the ending of its variable, and how its text is read. A variable
    that is set and empty says nothing if it `may_be_empty`; of all others it is refused."""

    member: str
    parse: Callable[[str], Any]
    secret: bool = False
    may_be_empty: bool = False


def read_options(
    environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None
) -> ServerOptions:
    """The options that environment and command line give. `flags` are texts by the names of
    `SETTINGS` (`listen`, `tls_cert`, `cors_origins` …); None was not given. Invalid says
    `invalid value for FLOWFABRIC_LISTEN: …`, or `… for --listen: …`."""
    given = {name: text for name, text in (flags or {}).items() if text is not None}
    if strange := given.keys() - SETTINGS.keys():
        raise Invalid(f"no such option: {', '.join(sorted(strange))}")
    found: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        variable = VARIABLE + name.upper()
        if name in given:
            found[setting.member] = _parsed(setting, _flag(name), given[name])
        elif variable in environ and (environ[variable] or not setting.may_be_empty):
            found[setting.member] = _parsed(setting, variable, environ[variable])
    options = ServerOptions(**found)
    if (options.tls_cert is None) is not (options.tls_key is None):
        there, missing = "tls_cert", "tls_key"
        if options.tls_cert is None:
            there, missing = missing, there
        name = _flag(missing) if there in given else VARIABLE + missing.upper()
        raise Invalid(f"invalid value for {name}: TLS needs a certificate and its key")
    return options


def check_tls(options: ServerOptions, flags: Mapping[str, str | None]) -> None:
    """Refuses a certificate and a key with which no connection could be encrypted."""
    if options.tls_cert is None:
        return
    name = _flag("tls_cert") if flags.get("tls_cert") else f"{VARIABLE}TLS_CERT"
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # With a password for the key, none is asked for in the terminal.
        context.load_cert_chain(options.tls_cert, options.tls_key, password="")
    except OSError as error:
        reason = f"not a certificate with its key, both PEM and without a password ({error})"
        raise Invalid(f"invalid value for {name}: {reason}") from None


def check_exposure(options: ServerOptions, *, any_token: bool) -> None:
    """Refuses to listen where others can reach the server while it would let all of them in.
    `any_token`: there is one in the store."""
    if options.listen.is_loopback or options.token is not None or any_token or options.insecure:
        return
    raise Invalid(
        f"refusing to listen on {options.listen} without an access token: create one with "
        f"`flowfabric tokens create`, set {VARIABLE}TOKEN, or allow every caller everything with "
        "--insecure"
    )


def warnings_of(options: ServerOptions, *, any_token: bool, is_open: bool = True) -> list[str]:
    """What an operator should read in the log when the server starts. `is_open`: it asks for no
    token, since there never was one."""
    found = []
    if options.token is None and not any_token:
        found.append(
            f"no access token: every caller of {options.listen} may do everything"
            if is_open
            else "every access token was revoked or has expired: no caller is let in until you "
            "create one with `flowfabric tokens create`"
        )
    if not options.listen.is_loopback and not options.has_tls:
        found.append(
            f"{options.listen} is served without TLS: access tokens can be read on the way unless "
            "a proxy encrypts"
        )
    found += [
        f"{VARIABLE}CORS_ORIGINS: {_short(part)} is not an origin such as https://app.example.com; "
        "its pages may not call"
        for part in options.cors.dropped
    ]
    if options.cors.is_open and options.token is None and not any_token and is_open:
        found.append("CORS is open and there is no access token: every web page may do everything")
    return found


def unread_variables(environ: Mapping[str, str]) -> list[str]:
    """What an operator should read in the log who has moved here from FlowFabric 0.15: its
    variables have other names here, and none of them has an effect."""
    return [
        f"{name} is a variable of FlowFabric 0.15 and has no effect: set {VARIABLE}{ours}"
        for name, ours in _ORIGINAL.items()
        if name in environ
    ]


def parse_address(text: str) -> ListenAddress:
    """`127.0.0.1:9090`, `[::1]:9090` or `localhost:9090`."""
    host, colon, port = text.rpartition(":")
    if not colon or _PORT.fullmatch(port) is None or int(port) > 65535:
        raise Invalid("an address has a host and a port, such as 127.0.0.1:9090")
    if not host:
        raise Invalid(f"name the host: 127.0.0.1:{port}, or 0.0.0.0:{port} for every address")
    return ListenAddress(_bracketed(host) if host.startswith("[") else _host(host), int(port))


def parse_flag(text: str) -> bool:
    """Whether it is 1 or true, in any case; every other text is no."""
    return text.lower() in ("1", "true")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parsed(setting: Setting, name: str, text: str) -> Any:
    try:
        if not text:
            raise Invalid("it is empty; leave it out instead")
        return setting.parse(text)
    except Invalid as error:
        reason, shown = error.detail, "" if setting.secret or not text else f" ({_short(text)})"
    del text
    raise Invalid(f"invalid value for {name}: {reason}{shown}")


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _bracketed(host: str) -> str:
    try:
        if not host.endswith("]"):
            raise ValueError
        return str(IPv6Address(host[1:-1]))
    except ValueError:
        raise Invalid("the text in brackets is not an IPv6 address") from None


def _host(host: str) -> str:
    if _HOST.fullmatch(host) is None or ".." in host:
        hint = ": write an IPv6 address as [::1]:9090" if ":" in host else ""
        raise Invalid(f"not a host{hint}")
    if host.replace(".", "").isdigit():
        try:
            return str(ip_address(host))
        except ValueError:
            raise Invalid("not an IP address") from None
    return host


def _token(text: str) -> str:
    if _TOKEN.fullmatch(text) is None:
        del text
        raise Invalid(
            f"a token is {LEAST_TOKEN} to {MOST_TOKEN} printable ASCII characters without spaces"
        )
    return text


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise Invalid("there is no such file")
    return path


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if _WHOLE.fullmatch(text) is None or not least <= int(text) <= most:
            raise Invalid(f"give a whole number, {least} to {most}")
        return int(text)

    return parse


def _span(least: int = 0, most: int = MAX_SPAN) -> Callable[[str], Millis]:
    def parse(text: str) -> Millis:
        try:
            return check_span(text, "it", least, most)
        except Invalid:
            raise Invalid("give a duration such as 500ms, 30s or 1h30m") from None

    return parse


def _rate(text: str) -> Rate | None:
    return None if text.lower() == "none" else parse_rate(text, "a rate limit")


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        no_port = parts.port == 0
    except ValueError:
        raise Invalid("not a URL") from None
    plain = text.isascii() and text.isprintable() and " " not in text
    strange = no_port or parts.username is not None or "?" in text or "#" in text
    if parts.scheme not in ("http", "https") or not parts.hostname or strange or not plain:
        raise Invalid("give a URL such as https://flows.example.com, without query or password")
    return text.rstrip("/")


def _log(text: str) -> LogFormat:
    try:
        return LogFormat(text)
    except ValueError:
        raise Invalid(f"give {' or '.join(LogFormat)}") from None


DAY = 86_400_000
SETTINGS: Mapping[str, Setting] = {
    "listen": Setting("listen", parse_address),
    "token": Setting("token", _token, secret=True, may_be_empty=True),
    "cors_origins": Setting("cors", parse_cors),
    "tls_cert": Setting("tls_cert", _file),
    "tls_key": Setting("tls_key", _file),
    "metrics_listen": Setting("metrics_listen", parse_address),
    "rate_limit": Setting("rate_limit", _rate),
    "request_timeout": Setting("request_timeout", _span(100, DAY)),
    "drain_timeout": Setting("drain_timeout", _span(0, DAY)),
    "max_stream_readers": Setting("max_stream_readers", _whole(1, MAX_READERS)),
    "waitpoint_grace": Setting("waitpoint_grace", _span()),
    "insecure": Setting("insecure", parse_flag, may_be_empty=True),
    "processes": Setting("processes", _whole(1, MAX_PROCESSES)),
    "public_url": Setting("public_url", _url),
    "log": Setting("log", _log),
}
"""By the names that variables (in upper case, with FLOWFABRIC_ in front) and flags have."""
