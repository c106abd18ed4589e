"""Checks of text, bytes and tags that callers pass in.

Every check returns the accepted value and raises a kind of `Invalid` otherwise, for an argument of
any type. Every store can hold text without NUL characters and lone surrogates.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

from flowfabric.core.base.errors import Invalid, InvalidTag, PayloadTooLarge

MAX_PAYLOAD = 1 << 20
MAX_RESULT = 1 << 20
MAX_PROGRESS_MESSAGE = 4096
MAX_STATE_VALUE = 1 << 18
MAX_REASON = 4096
MAX_LANE = 64
MAX_NAME = 256
MAX_KEY = 1024
MAX_SIGNAL_NAME = 256
MAX_STEP_NAME = 2048
"""In bytes: the longest name of a signal, plus its prefix and its branch."""
MAX_TAG_VALUE = 4096

_TAG_KEY = re.compile(r"[a-z][a-z0-9_]*\.[a-z0-9_][a-z0-9_.]*")


def check_text(value: object, what: str, *, limit: int | None = None) -> str:
    """`value` if it is storable text of at most `limit` bytes of UTF-8."""
    if not isinstance(value, str):
        raise Invalid(f"{what} must be text, not {type(value).__name__}")
    if "\0" in value:
        raise Invalid(f"{what} contains a NUL character at position {value.index(chr(0))}")
    size = len(value) if value.isascii() else _utf8_size(value, what)
    if limit is not None and size > limit:
        raise Invalid(f"{what} has {size} bytes, the limit is {limit}")
    return value if type(value) is str else str.__str__(value)  # codecs do not know subclasses


def check_lane(value: object) -> str:
    """A lane's name: 1 to 64 printable ASCII characters, including the space."""
    return _lane(value) if isinstance(value, str) else check_text(value, "lane")


def check_namespace(value: object) -> str:
    """A namespace: 1 to 256 bytes of text."""
    return _name(value, "namespace") if isinstance(value, str) else check_text(value, "namespace")


def check_kind(value: object, what: str = "kind") -> str:
    """The name of a kind of work: 1 to 256 bytes of text."""
    return _name(value, what) if isinstance(value, str) else check_text(value, what)


def check_worker(value: object, what: str) -> str:
    """A worker's or an instance's name: 1 to 256 bytes, no white space, no control character."""
    return _solid_name(value, what) if isinstance(value, str) else check_text(value, what)


def check_signal_name(value: object, what: str = "signal name") -> str:
    """The name of a signal, channel, approval, callback or waitpoint: at most 256 characters in any
    script. The caller decides whether it may be empty."""
    text = check_text(value, what)
    if len(text) > MAX_SIGNAL_NAME:
        raise Invalid(f"{what} has {len(text)} characters, the limit is {MAX_SIGNAL_NAME}")
    return text


def check_key(value: object) -> str | None:
    """An idempotency key of at most 1024 bytes; None for an empty text."""
    if value is None or value == "":
        return None
    return check_text(value, "idempotency key", limit=MAX_KEY)


def check_tag_key(value: object) -> str:
    """A tag's key such as `app.tenant`: two parts of lower-case letters, digits, underscores, the
    first starts with a letter, the second may contain further dots."""
    if not isinstance(value, str):
        raise InvalidTag(f"a tag's key must be text, not {type(value).__name__}")
    if len(value) > MAX_NAME or _TAG_KEY.fullmatch(value) is None:
        raise InvalidTag(f"{value[:80]!r} is not a key such as 'app.tenant'")
    return value


def check_tags(tags: object) -> dict[str, str]:
    """A copy of `tags` if every key and value is valid."""
    if type(tags) is not dict and not isinstance(tags, Mapping):
        raise InvalidTag(f"tags must be a mapping, not {type(tags).__name__}")
    return {
        check_tag_key(key): check_text(value, f"tag {key}", limit=MAX_TAG_VALUE)
        for key, value in tags.items()
    }


def check_tag(tag: object) -> tuple[str, str]:
    """A pair of key and value to look for."""
    if not isinstance(tag, tuple) or len(tag) != 2:
        raise InvalidTag("a tag to look for is a pair of key and value")
    return check_tag_key(tag[0]), check_text(tag[1], f"tag {tag[0]}", limit=MAX_TAG_VALUE)


def check_bytes(value: object, what: str, limit: int) -> bytes:
    """`value` as `bytes` if it is bytes-like and no longer than `limit`."""
    if type(value) is bytes and len(value) <= limit:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise Invalid(f"{what} must be bytes, not {type(value).__name__}")
    check_size(value.nbytes if isinstance(value, memoryview) else len(value), what, limit)
    return bytes(value)


def check_size(size: int, what: str, limit: int) -> None:
    """Raises `PayloadTooLarge` if `size` exceeds `limit`."""
    if size > limit:
        raise PayloadTooLarge(what, size, limit)


# The checks below cache what they accepted. They accept only short text and never cache a refusal,
# so callers cannot fill the memory with long names.


@lru_cache(maxsize=1024)
def _lane(value: str) -> str:
    if not value:
        raise Invalid("lane must not be empty")
    for position, character in enumerate(value[: MAX_LANE + 1]):
        if not " " <= character <= "~":
            raise Invalid(f"lane has a non-printable or non-ASCII character at position {position}")
    return check_text(value, "lane", limit=MAX_LANE)


@lru_cache(maxsize=4096)
def _name(value: str, what: str) -> str:
    if not value:
        raise Invalid(f"{what} must not be empty")
    return check_text(value, what, limit=MAX_NAME)


@lru_cache(maxsize=4096)
def _solid_name(value: str, what: str) -> str:
    name = _name(value, what)
    for position, character in enumerate(name):
        if character.isspace() or unicodedata.category(character) == "Cc":
            raise Invalid(f"{what} has white space or a control character at position {position}")
    return name


def _utf8_size(value: str, what: str) -> int:
    try:
        return len(value.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} contains a lone surrogate at position {error.start}") from None
