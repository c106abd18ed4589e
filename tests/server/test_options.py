"""Options of the server: every variable, good and bad (server-sdk §1.6, §2.1, §10.1, 1 to 4)."""

from pathlib import Path

import pytest

from flowfabric.core.base.errors import Invalid
from flowfabric.core.limit.quota import Rate
from flowfabric.server.caller.cors import CorsPolicy
from flowfabric.server.options import (
    SETTINGS,
    ListenAddress,
    LogFormat,
    ServerOptions,
    check_exposure,
    parse_address,
    read_options,
    unread_variables,
    warnings_of,
)

TOKEN = "0123456789abcdef"


def read(name: str, text: str) -> ServerOptions:
    return read_options({f"FLOWFABRIC_{name}": text})


def test_the_defaults_are_safe() -> None:
    options = read_options({"PATH": "/bin", "FLOWFABRIC_URL": "sqlite:///work.db"})
    assert options == ServerOptions()
    assert options.listen == ListenAddress("127.0.0.1", 9090)
    assert options.listen.is_loopback
    assert options.cors == CorsPolicy()
    assert (options.token, options.insecure, options.has_tls) == (None, False, False)
    assert options.max_stream_readers == 64
    assert options.waitpoint_grace == 86_400_000
    assert (options.metrics_listen, options.public_url, options.processes) == (None, None, 1)
    assert options.log is LogFormat.TEXT


def test_every_variable(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.touch()
    key.touch()
    given = {
        "LISTEN": "10.0.0.1:80",
        "TOKEN": TOKEN,
        "CORS_ORIGINS": "https://a, https://b",
        "TLS_CERT": str(cert),
        "TLS_KEY": str(key),
        "METRICS_LISTEN": "[::1]:9091",
        "RATE_LIMIT": "100/s",
        "REQUEST_TIMEOUT": "1m30s",
        "DRAIN_TIMEOUT": "500ms",
        "MAX_STREAM_READERS": "1000",
        "WAITPOINT_GRACE": "2d",
        "INSECURE": "true",
        "PROCESSES": "4",
        "PUBLIC_URL": "https://flows.example.com/api/",
        "LOG": "json",
    }
    assert {name.lower() for name in given} == set(SETTINGS)
    assert read_options({f"FLOWFABRIC_{name}": text for name, text in given.items()}) == (
        ServerOptions(
            listen=ListenAddress("10.0.0.1", 80),
            token=TOKEN,
            cors=CorsPolicy(frozenset({"https://a", "https://b"})),
            tls_cert=cert,
            tls_key=key,
            metrics_listen=ListenAddress("::1", 9091),
            rate_limit=Rate(100, 1000),  # type: ignore[arg-type]
            request_timeout=90_000,  # type: ignore[arg-type]
            drain_timeout=500,  # type: ignore[arg-type]
            max_stream_readers=1000,
            waitpoint_grace=2 * 86_400_000,  # type: ignore[arg-type]
            insecure=True,
            processes=4,
            public_url="https://flows.example.com/api",
            log=LogFormat.JSON,
        )
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LISTEN", "9090"), ("LISTEN", ":9090"), ("LISTEN", "localhost"), ("LISTEN", "a:b"),
        ("LISTEN", "127.0.0.1:65536"), ("LISTEN", "127.0.0.1:-1"), ("LISTEN", "127.0.0.1:+1"),
        ("LISTEN", "::1:9090"), ("LISTEN", "[::1:9090"), ("LISTEN", "[::g]:9090"),
        ("LISTEN", "256.0.0.1:1"), ("LISTEN", "1.2.3:1"), ("LISTEN", "a b:1"), ("LISTEN", "é:1"),
        ("LISTEN", "http://a:1"), ("LISTEN", "127.0.0.1:90\u0661"), ("LISTEN", "a..b:1"),
        ("TOKEN", "short"), ("TOKEN", "0123456789abcde "), ("TOKEN", "0123456789abcdeé"),
        ("TOKEN", "x" * 1025), ("TOKEN", "0123456789abcdef\n"),
        ("CORS_ORIGINS", "a"), ("CORS_ORIGINS", "a,b"),
        ("TLS_CERT", "/no/such/file.pem"), ("TLS_KEY", "/"),
        ("METRICS_LISTEN", "9091"),
        ("RATE_LIMIT", "100"), ("RATE_LIMIT", "0/s"), ("RATE_LIMIT", "-1/s"),
        ("RATE_LIMIT", "100/fortnight"), ("RATE_LIMIT", "1/0s"), ("RATE_LIMIT", "1e3/s"),
        ("REQUEST_TIMEOUT", "30"), ("REQUEST_TIMEOUT", "0.25s"), ("REQUEST_TIMEOUT", "0s"),
        ("REQUEST_TIMEOUT", "-1s"), ("REQUEST_TIMEOUT", "2d"), ("REQUEST_TIMEOUT", "soon"),
        ("DRAIN_TIMEOUT", "15"), ("DRAIN_TIMEOUT", " 15s"),
        ("MAX_STREAM_READERS", "0"), ("MAX_STREAM_READERS", "64.0"), ("MAX_STREAM_READERS", "-1"),
        ("MAX_STREAM_READERS", "1_000"), ("MAX_STREAM_READERS", "\u0661"),
        ("MAX_STREAM_READERS", "9" * 1000),
        ("WAITPOINT_GRACE", "86400000"), ("WAITPOINT_GRACE", "9999999d"),
        ("PROCESSES", "0"), ("PROCESSES", "257"), ("PROCESSES", "two"),
        ("PUBLIC_URL", "flows.example.com"), ("PUBLIC_URL", "ftp://a"), ("PUBLIC_URL", "https://"),
        ("PUBLIC_URL", "https://u:p@a"), ("PUBLIC_URL", "https://a?b=c"), ("PUBLIC_URL", "https://a#"),
        ("PUBLIC_URL", "https://a:99999"), ("PUBLIC_URL", "https://a b"), ("PUBLIC_URL", "http://[a"),
        ("LOG", "JSON"), ("LOG", "xml"),
        *((name.upper(), "") for name in SETTINGS if name not in ("token", "insecure")),
    ],
)  # fmt: skip
def test_a_value_that_is_not_understood_refuses_to_start(name: str, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(name, text)
    assert caught.value.detail.startswith(f"invalid value for FLOWFABRIC_{name}: ")
    assert len(caught.value.detail) < 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True), ("true", True), ("TRUE", True), ("True", True), ("0", False), ("FALSE", False),
        ("yes", False), ("on", False), ("2", False), (" 1", False), ("truthy", False), ("", False),
    ],
)  # fmt: skip
def test_flags(text: str, value: bool) -> None:
    """server-sdk.md 2.1: 1 and true in any case, everything else is no."""
    assert read("INSECURE", text).insecure is value


def test_an_empty_token_is_none_and_opens_no_address_to_others() -> None:
    """server-sdk.md 2.1: empty = none."""
    assert read("TOKEN", "").token is None
    for insecure in ("", "yes"):
        environ = {
            "FLOWFABRIC_LISTEN": "0.0.0.0:1",
            "FLOWFABRIC_TOKEN": "",
            "FLOWFABRIC_INSECURE": insecure,
        }
        with pytest.raises(Invalid, match="refusing to listen"):
            check_exposure(read_options(environ), any_token=False)
    with pytest.raises(Invalid, match="invalid value for --token: it is empty"):
        read_options({}, {"token": ""})


def test_no_limit_may_be_said() -> None:
    assert read("RATE_LIMIT", "none").rate_limit is None


def test_a_token_is_never_shown() -> None:
    wrong = "a secret with spaces in it"
    with pytest.raises(Invalid) as caught:
        read("TOKEN", wrong)
    assert wrong not in str(caught.value)
    assert TOKEN not in repr(read("TOKEN", TOKEN))


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    file = tmp_path / "a.pem"
    file.touch()
    for given, missing in (("TLS_CERT", "TLS_KEY"), ("TLS_KEY", "TLS_CERT")):
        with pytest.raises(Invalid, match=f"FLOWFABRIC_{missing}"):
            read(given, str(file))


def test_a_flag_counts_more_than_a_variable() -> None:
    environ = {"FLOWFABRIC_LISTEN": "nonsense", "FLOWFABRIC_LOG": "json"}
    flags = {"listen": "127.0.0.1:1", "log": None, "processes": "2"}
    options = read_options(environ, flags)
    assert (options.listen.port, options.log, options.processes) == (1, LogFormat.JSON, 2)
    with pytest.raises(Invalid, match="invalid value for --max-stream-readers: "):
        read_options({}, {"max_stream_readers": "many"})
    with pytest.raises(Invalid, match="no such option: lisen"):
        read_options({}, {"lisen": "127.0.0.1:1"})


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True), ("127.9.9.9:1", True), ("[::1]:1", True), ("localhost:1", True),
        ("LOCALHOST:1", True), ("[::ffff:127.0.0.1]:1", True),
        ("0.0.0.0:1", False), ("[::]:1", False), ("10.0.0.1:1", False), ("128.0.0.1:1", False),
        ("[::ffff:10.0.0.1]:1", False), ("[fe80::1]:1", False), ("example.com:1", False),
        ("localhost.example.com:1", False), ("my-host:1", False), ("127.0.0.1.nip.io:1", False),
    ],
)  # fmt: skip
def test_what_others_can_reach(text: str, loopback: bool) -> None:
    assert parse_address(text).is_loopback is loopback


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:9090", "localhost:65535", "my_host:1"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_address(text)) == text


# -- refuses to listen where every caller would be let in


def test_an_open_server_is_for_this_machine_only() -> None:
    reachable = read("LISTEN", "0.0.0.0:9090")
    with pytest.raises(Invalid, match=r"refusing to listen on 0\.0\.0\.0:9090 without"):
        check_exposure(reachable, any_token=False)
    check_exposure(reachable, any_token=True)
    check_exposure(ServerOptions(), any_token=False)
    for more in ({"FLOWFABRIC_TOKEN": TOKEN}, {"FLOWFABRIC_INSECURE": "1"}):
        check_exposure(read_options({"FLOWFABRIC_LISTEN": "[::]:1", **more}), any_token=False)


def test_tls_alone_lets_no_stranger_be_trusted(tmp_path: Path) -> None:
    file = tmp_path / "a.pem"
    file.touch()
    options = ServerOptions(listen=ListenAddress("10.0.0.1", 1), tls_cert=file, tls_key=file)
    with pytest.raises(Invalid, match="refusing to listen"):
        check_exposure(options, any_token=False)


def test_variables_of_the_original_are_named() -> None:
    """server-sdk.md 2.1: a token that is set and not read would leave the server open."""
    given = {"FF_API_TOKEN": "s3cret", "FF_LISTEN_ADDR": "0.0.0.0:9090", "FF_OTHER": "1"}
    token, listen = unread_variables(given)
    assert "FF_API_TOKEN" in token
    assert token.endswith("set FLOWFABRIC_TOKEN")
    assert listen.endswith("set FLOWFABRIC_LISTEN")
    assert "s3cret" not in token
    assert unread_variables({"FLOWFABRIC_LISTEN": "127.0.0.1:1"}) == []


def test_an_operator_is_warned() -> None:
    """server-sdk §10.1, 7: the warning says what is true."""
    assert warnings_of(read("TOKEN", TOKEN), any_token=False) == []
    (line,) = warnings_of(ServerOptions(), any_token=False)
    assert line == "no access token: every caller of 127.0.0.1:9090 may do everything"
    (line,) = warnings_of(read("LISTEN", "0.0.0.0:1"), any_token=True)
    assert line.startswith("0.0.0.0:1 is served without TLS")
    insecure = {"FLOWFABRIC_LISTEN": "0.0.0.0:1", "FLOWFABRIC_INSECURE": "1"}
    assert len(warnings_of(read_options(insecure), any_token=False)) == 2
    (line,) = warnings_of(read("CORS_ORIGINS", "https://a,b"), any_token=True)
    assert line.startswith("FLOWFABRIC_CORS_ORIGINS: 'b' is not an origin")
    assert warnings_of(read("CORS_ORIGINS", "*"), any_token=True) == []
    _, line = warnings_of(read("CORS_ORIGINS", "*"), any_token=False)
    assert line.startswith("CORS is open")
