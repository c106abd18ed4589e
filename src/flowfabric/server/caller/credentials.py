"""The access token in the headers of a request."""

from flowfabric.core.base.errors import InvalidCredentials

SCHEME = "Bearer"


def bearer_token(header: str | None) -> str | None:
    """The token of an `Authorization` header, None without one. InvalidCredentials for a header
    with another scheme or without a token.

    >>> bearer_token("Bearer ff_ci_secret")
    'ff_ci_secret'
    """
    if header is None:
        return None
    scheme, space, token = header.partition(" ")
    found = token.strip(" ")
    del header, token
    if scheme != SCHEME or not space or not found:
        del found
        raise InvalidCredentials("send the access token as Authorization: Bearer TOKEN")
    return found
