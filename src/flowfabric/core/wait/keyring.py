"""The keys that sign the tokens of waitpoints, and how one takes over from another.

At most one key is *current*: it signs what is new. Those it followed are *retired*: they sign
nothing, and verify up to and including the moment `until`. What a key signed is refused after
that, and the next rotation collects it.

Secrets stay out of sight: no `repr` shows one, no text of an error contains one, and none is a
local variable of a function that raises, since a traceback may be recorded with its variables.
"""

import hashlib
import hmac
import re
from datetime import timedelta
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.document import Document, read, write
from flowfabric.core.base.errors import (
    Corruption,
    Invalid,
    InvalidGrace,
    InvalidKid,
    InvalidSecret,
    InvalidSecretHex,
    InvalidToken,
    RotationConflict,
)
from flowfabric.core.base.time import Millis, Span, check_span

MAX_KID = 256
# A token travels in headers and addresses, and its kid ends at the first colon.
KID = rf"[!-9;-~]{{1,{MAX_KID}}}"
MAX_SECRET_DIGITS = 1024
MAX_GRACE = Millis(2**53 - 1)
NOT_VALID = "the token is not valid here"

_SEED_DIGITS = 64
_KID = re.compile(KID)
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")
_HIDDEN = "<REDACTED>"


class Key(Document, frozen=True, kw_only=True, omit_defaults=True):
    """A secret as hex digits. `until` is None for the current one."""

    secret: str = ""
    created_at: Millis = Millis(0)
    until: Millis | None = None

    def __repr__(self) -> str:
        return f"Key(secret={_HIDDEN}, created_at={self.created_at}, until={self.until})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("secret", _HIDDEN), ("created_at", self.created_at), ("until", self.until)]


class Keyring(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The keys by their kids. No member may be changed in place."""

    current: str | None = None
    keys: dict[str, Key] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Keyring(current={self.current!r}, keys={self.keys!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("current", self.current), ("keys", self.keys)]


EMPTY_RING = Keyring()


class Seeded(Struct, frozen=True):
    """The first key is in place."""

    kid: str


class AlreadySeeded(Struct, frozen=True):
    """The kid was known before; nothing changed, whether or not the secret is the same."""

    kid: str
    same_secret: bool


class Rotated(Struct, frozen=True):
    """`kid` is current now; `collected` keys were past their grace and are gone."""

    previous: str | None
    kid: str
    collected: int


class Noop(Struct, frozen=True):
    """The very same key is current already."""

    kid: str


class Kids(Struct, frozen=True):
    """What may be shown of a ring: `verifying` are retired kids and when each one runs out."""

    current_kid: str | None
    verifying: tuple[tuple[str, Millis], ...]


def seed(
    ring: Keyring, kid: str, secret: str, now: Millis
) -> tuple[Keyring, Seeded | AlreadySeeded]:
    """Installs the first key; `secret` has exactly 64 hex digits.

    Nothing is ever overwritten: a known kid, current or retired, is AlreadySeeded. `Invalid` when
    another key is current, because replacing that one is what `rotate` is for.
    """
    key = Key(secret=secret, created_at=now)
    del secret
    check_kid(kid)
    _check_secret(key, least=_SEED_DIGITS, most=_SEED_DIGITS)
    if kid in ring.keys:
        return ring, AlreadySeeded(kid, _same_secret(ring.keys[kid], key))
    if ring.current is not None:
        raise Invalid("another key signs tokens already: rotate to a new one instead")
    return replace(ring, current=kid, keys={**ring.keys, kid: key}), Seeded(kid)


def rotate(
    ring: Keyring, kid: str, secret: str, grace: Span, now: Millis
) -> tuple[Keyring, Rotated | Noop]:
    """Makes `kid` the current key; the previous one verifies until `now + grace`, inclusive.

    Keys past their grace are collected, any number of others stay in theirs. A retired key may
    become current again, so that a rotation can be taken back. `RotationConflict` for another
    secret of a kid whose tokens are still accepted.
    """
    key = Key(secret=secret, created_at=now)
    del secret
    check_kid(kid)
    _check_secret(key, least=2, most=MAX_SECRET_DIGITS)
    span = check_grace(grace)
    valid = {old: was for old, was in ring.keys.items() if verifies(ring, old, now)}
    if kid in valid and not _same_secret(valid[kid], key):
        raise RotationConflict("this key id is known with another secret")
    if kid == ring.current:
        return ring, Noop(kid)
    kept = {
        old: replace(was, until=Millis(now + span)) if old == ring.current else was
        for old, was in valid.items()
    }
    rotated = replace(ring, current=kid, keys={**kept, kid: key})
    return rotated, Rotated(ring.current, kid, len(ring.keys) - len(valid))


def kids(ring: Keyring, now: Millis) -> Kids:
    """The kids whose tokens are accepted at `now`, the next to run out first."""
    verifying = [
        (kid, key.until)
        for kid, key in ring.keys.items()
        if kid != ring.current and key.until is not None and key.until >= now
    ]
    return Kids(ring.current, tuple(sorted(verifying, key=lambda pair: (pair[1], pair[0]))))


def verifies(ring: Keyring, kid: str, now: Millis) -> bool:
    """Whether what the known key `kid` signed counts at `now`.

    A key that is neither current nor has a moment until which it verifies counts as run out.
    """
    if kid == ring.current:
        return True
    until = ring.keys[kid].until
    return until is not None and until >= now


def secret_of(ring: Keyring, kid: str) -> bytes:
    """The secret to sign with; `InvalidToken` for an unknown kid, `InvalidSecret` when what is
    stored is no secret."""
    if kid not in ring.keys:
        raise InvalidToken(NOT_VALID)
    # An empty secret is none: anyone could sign with it.
    if _HEX.fullmatch(ring.keys[kid].secret) is None:
        raise InvalidSecret("the stored key cannot be used: rotate to a new one")
    return bytes.fromhex(ring.keys[kid].secret)


def check_first(secret: str, what: str) -> None:
    """Refuses a secret that cannot be the first key; the text says what was wrong with `what`, and
    never what it is."""
    key = Key(secret=secret)
    del secret
    try:
        _check_secret(key, least=_SEED_DIGITS, most=_SEED_DIGITS)
    except InvalidSecretHex:
        size = len(key.secret) if isinstance(key.secret, str) else None
    else:
        return
    given = "something else than text" if size is None else f"{size} characters"
    given += " with others among them" if size == _SEED_DIGITS else ""
    raise InvalidSecretHex(f"{what} must be exactly {_SEED_DIGITS} hex digits, not {given}")


def kid_of(secret: str) -> str:
    """A kid for a secret that configuration gives without one: the same for the same secret."""
    key = Key(secret=secret)
    del secret
    _check_secret(key, least=2, most=MAX_SECRET_DIGITS)
    return "seed-" + hashlib.sha256(bytes.fromhex(key.secret)).hexdigest()[:8]


def read_ring(data: bytes | None) -> Keyring:
    """The stored ring, the empty one if nothing is stored; `Corruption` when it cannot be read."""
    if data is None:
        return EMPTY_RING
    try:
        return read(Keyring, data)
    except Corruption as error:
        detail = error.detail
    # Not the first error: its traceback holds the secrets in `data`.
    del data
    raise Corruption(detail)


def write_ring(ring: Keyring) -> bytes:
    """The ring as it is stored, secrets included."""
    return write(ring)


def check_kid(kid: object) -> str:
    """`kid` if it is 1 to 256 printable ASCII characters without space or colon."""
    if not isinstance(kid, str) or _KID.fullmatch(kid) is None:
        raise InvalidKid(
            f"a key id is 1 to {MAX_KID} printable ASCII characters without space or colon"
        )
    return kid


def _check_secret(key: Key, *, least: int, most: int) -> None:
    if (
        not isinstance(key.secret, str)
        or not least <= len(key.secret) <= most
        or _HEX.fullmatch(key.secret) is None
    ):
        count = f"exactly {least}" if least == most else f"an even number ({least} to {most}) of"
        raise InvalidSecretHex(f"a secret is {count} hexadecimal digits")


def check_grace(grace: Span) -> Millis:
    """A grace period in milliseconds."""
    if isinstance(grace, str | timedelta):
        try:
            return check_span(grace, "grace")
        except Invalid as error:
            raise InvalidGrace(error.detail) from None
    if type(grace) is not int or not 0 <= grace <= MAX_GRACE:
        raise InvalidGrace("a grace period must be a whole number of milliseconds, 0 to 2^53 - 1")
    return Millis(grace)


def _same_secret(one: Key, other: Key) -> bool:
    """However their digits are spelt."""
    return hmac.compare_digest(one.secret.lower().encode(), other.secret.lower().encode())
