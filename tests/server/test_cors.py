"""CORS: closed by default, exact origins, nothing guessed (server-sdk §1.6, §10.1, 3)."""

import pytest

from flowfabric.core.base.errors import Invalid
from flowfabric.server.cors import HEADERS, METHODS, CorsPolicy, parse_origin, parse_origins

APP = "https://app.example.com"
POLICY = CorsPolicy(frozenset({APP}))


def test_no_page_may_call_by_default() -> None:
    closed = CorsPolicy()
    assert not closed.allows(APP)
    assert closed.headers(APP) == {}
    assert closed.preflight(APP, "GET") is None


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (APP, APP),
        ("HTTPS://App.Example.COM", APP),
        ("https://app.example.com:443", APP),
        ("https://app.example.com:0443", APP),
        ("http://localhost:5173", "http://localhost:5173"),
        ("http://a:80", "http://a"),
        ("https://a:80", "https://a:80"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
    ],
)
def test_an_origin_is_written_as_browsers_do(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text",
    [
        "", "*", "null", "app.example.com", "https://", "https://*.example.com",
        "https://app.example.com/", "https://app.example.com/path", "https://a?b", "https://a#b",
        "https://user@a", "https://user:pass@a", "ftp://a", "javascript://a", "https:///a",
        "https://a:0", "https://a:65536", "https://a:", "https://a:b", "https://a b", "https://a\n",
        "https://a\0", "https://bücher.example", "https://-a", "https://a..b", "https://.a",
        "https://[::1", "https://a,b", "https://a\\b", " https://a",
    ],
)  # fmt: skip
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_origin(text)


def test_a_list_is_refused_as_a_whole() -> None:
    """The original drops what it does not understand and goes on."""
    assert parse_origins(f" {APP} , http://localhost:3000") == {APP, "http://localhost:3000"}
    for text in (f"{APP},", f",{APP}", f"{APP},nonsense", "", " ", f"{APP} http://b"):
        with pytest.raises(Invalid):
            parse_origins(text)
    with pytest.raises(Invalid, match="limit"):
        parse_origins(",".join(f"https://a{n}" for n in range(101)))


@pytest.mark.parametrize(
    "origin",
    [
        None, "", "null", "*", "https://app.example.com.evil.com", "https://evil-app.example.com",
        "http://app.example.com", "https://app.example.com:8443", "https://APP.example.com",
        "https://app.example.com/", "https://app.example.co",
    ],
)  # fmt: skip
def test_other_origins_read_nothing(origin: str | None) -> None:
    assert not POLICY.allows(origin)
    assert POLICY.headers(origin) == {"vary": "origin"}
    assert POLICY.preflight(origin, "GET") is None


def test_a_listed_origin_reads_the_answer_without_credentials() -> None:
    headers = POLICY.headers(APP)
    assert headers["access-control-allow-origin"] == APP
    assert headers["vary"] == "origin"
    allowed = POLICY.preflight(APP, "POST", "Authorization, Content-Type") or {}
    assert allowed["access-control-allow-origin"] == APP
    assert allowed["access-control-allow-methods"] == ", ".join(METHODS)
    assert allowed["access-control-allow-headers"] == ", ".join(HEADERS)
    assert "access-control-allow-credentials" not in headers | allowed


@pytest.mark.parametrize(
    ("method", "headers"),
    [("TRACE", None), ("post", None), (None, None), ("GET", "x-evil"), ("GET", "accept,*")],
)
def test_a_preflight_allows_known_methods_and_headers(
    method: str | None, headers: str | None
) -> None:
    assert POLICY.preflight(APP, method, headers) is None


def test_empty_members_of_a_list_of_headers_do_not_matter() -> None:
    assert POLICY.preflight(APP, "GET", " , accept ,, ") is not None
    assert POLICY.preflight(APP, "GET", "") is not None
