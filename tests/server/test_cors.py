"""CORS: closed by default, exact origins, nothing guessed (server-sdk §1.6, §10.1, 3)."""

import pytest

from flowfabric.core.base.errors import Invalid
from flowfabric.server.caller.cors import HEADERS, METHODS, CorsPolicy, parse_cors, parse_origin

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


def test_what_is_no_origin_is_dropped_from_a_list() -> None:
    """server-sdk.md 1.6: if no member of the list is an origin, the server does not start."""
    both = parse_cors(f" {APP} , http://localhost:3000")
    assert both == CorsPolicy(frozenset({APP, "http://localhost:3000"}))
    assert parse_cors(f"{APP},nonsense,*") == CorsPolicy(frozenset({APP}), ("nonsense", "*"))
    for text in ("", " ", ",", "nonsense", "a,b", f"{APP} http://b", "*,*"):
        with pytest.raises(Invalid):
            parse_cors(text)
    with pytest.raises(Invalid, match="limit"):
        parse_cors(",".join(f"https://a{n}" for n in range(101)))


@pytest.mark.parametrize("origin", [APP, "https://other", "null"])
def test_a_star_allows_every_page_without_credentials(origin: str) -> None:
    """server-sdk.md 1.6: any origin, method and header; no credentials."""
    every = parse_cors("*")
    assert every.allows(origin)
    assert every.headers(origin)["access-control-allow-origin"] == "*"
    allowed = every.preflight(origin, "PURGE", "X-Mine, Authorization") or {}
    assert allowed["access-control-allow-origin"] == "*"
    assert "PURGE" in allowed["access-control-allow-methods"].split(", ")
    assert allowed["access-control-allow-headers"] == "x-mine, authorization"
    assert "access-control-allow-credentials" not in every.headers(origin) | allowed


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


def test_a_listed_page_may_use_every_header_of_the_api() -> None:
    policy = parse_cors("https://app.example.com")
    asked = "authorization, cache-control, flowfabric-handle, prefer, traceparent"
    assert policy.preflight("https://app.example.com", "POST", asked) is not None


@pytest.mark.parametrize("origins", ["*", "https://app.example.com"])
def test_a_page_may_read_what_only_headers_say(origins: str) -> None:
    shown = parse_cors(origins).headers("https://app.example.com")["access-control-expose-headers"]
    assert {
        "flowfabric-ignored-fields",
        "flowfabric-next-cursor",
        "flowfabric-priority-clamped",
        "age",
    } <= set(shown.split(", "))
