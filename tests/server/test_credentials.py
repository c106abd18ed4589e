"""The `Authorization` header: a bearer token, nothing, or an error."""

import pytest

from flowfabric.core.base.errors import InvalidCredentials
from flowfabric.server.caller.credentials import bearer_token


@pytest.mark.parametrize("header", ["Bearer abc", "Bearer   abc "])
def test_the_token_follows_the_scheme(header: str) -> None:
    assert bearer_token(header) == "abc"


def test_without_a_header_there_is_no_token() -> None:
    assert bearer_token(None) is None


@pytest.mark.parametrize(
    "header",
    [
        "bearer abc",
        "BEARER abc",
        "",
        " ",
        "Bearer",
        "Bearer ",
        "abc",
        "Basic YTpi",
        "Bearerabc",
        "Bearer\tabc",
        " Bearer a",
    ],
)
def test_another_header_is_refused(header: str) -> None:
    with pytest.raises(InvalidCredentials, match="Bearer TOKEN") as caught:
        bearer_token(header)
    assert "YTpi" not in str(caught.value)


def test_what_is_inside_a_token_is_left_as_it_is() -> None:
    assert bearer_token("Bearer a b\t") == "a b\t"
