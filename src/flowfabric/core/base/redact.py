"""Keeps secrets out of texts that may be logged."""

import re

_SECRET = re.compile(r"[0-9a-fA-F]{33,}[\w.-]*|\bff_[a-z0-9.-]{1,64}_[\w-]{8,}")
_USER = re.compile(r"(://[^/@\s:]*):\S*@")
_PARAMETER = re.compile(r"([?&](?:password|passfile|sslpassword)=)[^&\s]*", re.IGNORECASE)
HIDDEN = "<hidden>"


def without_secrets(text: str) -> str:
    """The text without possible tokens and keys, which people sometimes pass where an id belongs.
    Waitpoint tokens and keys have more hex digits in a row than any id; access tokens begin with
    `ff_`."""
    return _SECRET.sub(HIDDEN, text)


def redact(text: str) -> str:
    """The text without the passwords of URLs."""
    return _PARAMETER.sub(r"\1***", _USER.sub(r"\1:***@", text))
