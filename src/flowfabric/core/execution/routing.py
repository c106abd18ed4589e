"""Capabilities: which worker may run which execution.

A capability is a flat, case-sensitive token. An execution requires a set of them, a worker offers a
set, and the worker may run the execution if it offers all of them.
"""

from collections.abc import Iterable

from flowfabric.core.base.errors import InvalidCapabilities

Capabilities = frozenset[str]

MAX_TOKENS = 256
MAX_JOINED_BYTES = 4096


def check_capabilities(tokens: object, where: str = "required") -> tuple[str, ...]:
    """The tokens, sorted and without duplicates.

    Raises `InvalidCapabilities` with a detail of `where`, a colon, and one of not_array,
    non_string_token, empty_token, comma_in_token, control_or_whitespace, too_many_tokens,
    too_many_bytes.
    """
    if not isinstance(tokens, list | tuple | set | frozenset):
        raise InvalidCapabilities(f"{where}:not_array")
    sizes = [_token_size(token, where) for token in tokens]
    if len(sizes) > MAX_TOKENS:
        raise InvalidCapabilities(f"{where}:too_many_tokens")
    if sum(sizes) + len(sizes) - 1 > MAX_JOINED_BYTES:
        raise InvalidCapabilities(f"{where}:too_many_bytes")
    return tuple(sorted(set(tokens)))


def missing(required: Iterable[str], offered: Capabilities) -> tuple[str, ...]:
    """The required capabilities that are not offered, sorted."""
    return tuple(sorted(set(required) - offered))


def satisfies(required: Iterable[str], offered: Capabilities) -> bool:
    """Whether no required capability is missing; an empty requirement suits every worker."""
    return offered.issuperset(required)


def _token_size(token: object, where: str) -> int:
    """The size of a valid token in bytes."""
    if not isinstance(token, str):
        raise InvalidCapabilities(f"{where}:non_string_token")
    if not token:
        raise InvalidCapabilities(f"{where}:empty_token")
    if "," in token:
        raise InvalidCapabilities(f"{where}:comma_in_token")
    if any(character <= " " or character == "\x7f" for character in token):
        raise InvalidCapabilities(f"{where}:control_or_whitespace")
    return _utf8_size(token, where)


def _utf8_size(token: str, where: str) -> int:
    try:
        return len(token.encode())
    except UnicodeEncodeError:
        # A lone surrogate is not a character, so this string cannot be stored.
        raise InvalidCapabilities(f"{where}:non_string_token") from None
