"""Tokens: text that authorises its holder to signal one waitpoint.

`kid:` and 64 hex digits: an HMAC-SHA256 over everything that makes the waitpoint this one. A
*bound* token goes on with a dot and its claims (who may use it, for which decisions, until when,
how often) as URL-safe base64, which the same digits cover.

A token is never stored: it is minted again from the waitpoint and the ring. No answer to a sender
says whether a waitpoint exists, and neither a digest nor a secret is a local variable
of a function that raises, since a traceback may be recorded with its variables.
"""

import hashlib
import hmac
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import Any, NamedTuple, NoReturn, Self, final
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import (
    Invalid,
    InvalidSecret,
    InvalidToken,
    MissingToken,
    NoSigningKey,
    TokenExpired,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.keyring import KID, NOT_VALID, Keyring, secret_of, verifies
from flowfabric.core.wait.model import Waitpoint

MAX_TOKEN = 4096
MAX_CLAIMS = 2048
"""Bytes of claims that leave room for the longest kid."""

_VERSION = b"flowfabric waitpoint token 1"
_SHAPE = re.compile(rf"({KID}):([0-9a-f]{{64}})(?:\.([A-Za-z0-9_-]+))?")
_KID = re.compile(rf"{KID}:")
_FINGERPRINT = 16

# Verified against when there is no waitpoint, so that both cases do the same work.
_NO_WAITPOINT = Waitpoint(
    id=UUID(int=0), execution=UUID(int=0), key="", created_at=Millis(0), kid=""
)


@final
class Token:
    """The text of a token, hidden: only `reveal` gives it.

    Any text can be one. Equality takes the same time wherever two texts differ.
    """

    __slots__ = ("_text",)
    _text: str

    def __new__(cls, text: str) -> Self:
        if not _is_text(text):
            del text
            raise Invalid("a token must be text")
        token = super().__new__(cls)
        object.__setattr__(token, "_text", str.__str__(text))
        return token

    def reveal(self) -> str:
        """The text, for the sender that will present it. Keep it out of logs, lists and events."""
        return self._text

    @property
    def kid(self) -> str:
        """Which key signed it; empty when the text is not a token."""
        parts = _parts(self._text)
        return parts.kid if parts is not None else ""

    @property
    def fingerprint(self) -> str:
        """Enough to tell tokens apart, too little to use one; empty when the text is not a
        token."""
        return fingerprint(self._text)

    def __repr__(self) -> str:
        shown = _KID.match(self._text)
        if shown is None:
            return "<REDACTED:malformed>"
        return f"{shown[0]}<REDACTED:len={len(self._text) - shown.end()}>"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Token):
            return NotImplemented
        return hmac.compare_digest(_sha256(self._text), _sha256(other._text))

    def __hash__(self) -> int:
        return hash((Token, self._text))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a token cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a token cannot be changed")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type["Token"], tuple[str]]:
        return Token, (self._text,)


class TokenClaims(Struct, frozen=True, omit_defaults=True):
    """What a bound token is limited to.

    `approver` is who alone may use it (None: anyone), `decisions` are the signal names it may
    send (none named: any), `expires_at` the first moment at which it is refused. `id` is what
    a dedup record knows it by once it is used or revoked.
    """

    id: str
    issued_at: Millis
    approver: str | None = None
    decisions: tuple[str, ...] = ()
    expires_at: Millis | None = None
    single_use: bool = False


_claims_encoder = msgspec.json.Encoder()
_claims_decoder = msgspec.json.Decoder(TokenClaims)
_terms_encoder = msgspec.json.Encoder(order="sorted")


def mint(ring: Keyring, waitpoint: Waitpoint, claims: TokenClaims | None = None) -> Token:
    """The token of the waitpoint, the same every time for the same claims.

    `NoSigningKey` when the key that signs for this waitpoint was collected, `Invalid` for claims
    that no token can carry.
    """
    if waitpoint.kid not in ring.keys:
        raise NoSigningKey("the key that signs for this waitpoint is gone")
    body = None if claims is None else _pack(claims)
    digest = _mac(secret_of(ring, waitpoint.kid), waitpoint.kid, waitpoint, body)
    bound = "" if body is None else f".{_to_text(body)}"
    return Token(f"{waitpoint.kid}:{digest}{bound}")


def verify(
    ring: Keyring, waitpoint: Waitpoint | None, token: Token | str | None, now: Millis
) -> TokenClaims | None:
    """What the token is limited to, None for one that is not bound; raises unless it is valid.

    Pass None for a waitpoint that does not exist or is of another execution than the caller
    names. The answers up to `TokenExpired` for a retired key are about token and ring alone, all
    others are `InvalidToken` for a waitpoint that does not exist. The key is the one that the
    token names, current or in its grace, not necessarily the waitpoint's.

    Raises `MissingToken`, `InvalidToken`, `NoSigningKey`, `TokenExpired` or `InvalidSecret`.
    """
    presented = _presented(token)
    del token
    verdict = _verdict(ring, waitpoint, presented, now)
    if isinstance(verdict, Exception):
        raise verdict
    return verdict


def peek(token: Token | str | None) -> TokenClaims | None:
    """What a token says it is limited to, before it is verified: good for finding what
    verification needs, and for nothing else."""
    return peek_with_kid(token)[1]


def peek_with_kid(token: Token | str | None) -> tuple[str, TokenClaims | None]:
    """The same, after which key signed it; that is empty when the text is not a token."""
    presented = _presented(token)
    parts = None if presented is None else _parts(presented.reveal())
    if parts is None:
        return "", None
    return parts.kid, None if parts.claims is None else _unpack(parts.claims)


def fingerprint(text: str) -> str:
    """The first 16 hex digits of a token, safe to show; empty when the text is not a token."""
    parts = _parts(text)
    return parts.digest[:_FINGERPRINT] if parts is not None else ""


def digest_of(value: object) -> str:
    """A digest of exactly this value, as 64 hex digits; `Invalid` for what JSON cannot say.

    A value is what its JSON says: members are sorted by name, there is no white space, all text
    is UTF-8, and the digest is the same after a journey through JSON. So 1 is not 1.0, a tuple is
    a list, a date inside is its text. Bytes are digested as they are and equal no JSON value.
    NaN, infinities and members with the same name are refused, for they would be read otherwise
    than they were written.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return hashlib.sha256(b"bytes:" + bytes(value)).hexdigest()
    canonical = _canonical(value)
    if canonical is None:
        raise Invalid(f"JSON cannot say this {type(value).__name__} exactly")
    return hashlib.sha256(b"json:" + canonical).hexdigest()


class _Parts(NamedTuple):
    kid: str
    digest: str
    claims: bytes | None


_Refusal = MissingToken | InvalidToken | NoSigningKey | TokenExpired | InvalidSecret


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _presented(token: object) -> Token | None:
    """None when nothing was presented; what is no text at all is a malformed token."""
    if token is None or isinstance(token, Token):
        return token if token is not None and token.reveal() else None
    if not isinstance(token, str):
        return Token("malformed")
    return Token(token) if str.__str__(token) else None


def _verdict(
    ring: Keyring, waitpoint: Waitpoint | None, token: Token | None, now: Millis
) -> TokenClaims | _Refusal | None:
    """Returns what is to be raised instead of raising it: a digest is a local variable here."""
    if token is None:
        return MissingToken("a token is required")
    parts = _parts(token.reveal())
    if parts is None:
        return _invalid()
    secret = _secret(ring, parts.kid, now)
    if isinstance(secret, Exception):
        return secret
    if not _is_genuine(secret, waitpoint, parts):
        return _invalid()
    return _check_claims(parts.claims, now)


def _secret(ring: Keyring, kid: str, now: Millis) -> bytes | _Refusal:
    if not ring.keys:
        return NoSigningKey("no key signs tokens yet: seed one")
    if kid not in ring.keys:
        return _invalid()
    if not verifies(ring, kid, now):
        return _expired()
    try:
        return secret_of(ring, kid)
    except InvalidSecret as error:
        return error


def _is_genuine(secret: bytes, waitpoint: Waitpoint | None, parts: _Parts) -> bool:
    expected = _mac(secret, parts.kid, waitpoint or _NO_WAITPOINT, parts.claims)
    return hmac.compare_digest(expected, parts.digest) and waitpoint is not None


def _check_claims(body: bytes | None, now: Millis) -> TokenClaims | _Refusal | None:
    """Claims we signed and cannot read are from a newer release: what they forbid is unknown."""
    if body is None:
        return None
    claims = _unpack(body)
    if claims is None:
        return _invalid()
    return _expired() if claims.expires_at is not None and claims.expires_at <= now else claims


def _invalid() -> InvalidToken:
    return InvalidToken(NOT_VALID)


def _expired() -> TokenExpired:
    return TokenExpired("the token is not valid any more")


def _mac(secret: bytes, kid: str, waitpoint: Waitpoint, claims: bytes | None) -> str:
    terms = None if waitpoint.terms is None else _terms_encoder.encode(waitpoint.terms)
    fields = (
        _VERSION,
        kid.encode(),
        waitpoint.execution.bytes,
        waitpoint.id.bytes,
        waitpoint.key.encode(),
        str(waitpoint.created_at).encode(),
        terms,
        claims,
    )
    # The length of a field goes ahead of it, so nothing can move into its neighbour.
    whole = b""
    for field in fields:
        whole += b"\0" if field is None else b"\1" + len(field).to_bytes(8, "big") + field
    return hmac.digest(secret, whole, "sha256").hex()


def _parts(text: str) -> _Parts | None:
    """The parts of a token; None for any text that `mint` does not write."""
    match = _SHAPE.fullmatch(text) if len(text) <= MAX_TOKEN else None
    if match is None:
        return None
    kid, digest, bound = match.groups()
    claims = None if bound is None else _from_text(bound)
    return None if bound is not None and claims is None else _Parts(kid, digest, claims)


def _to_text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _from_text(text: str) -> bytes | None:
    """One text for one value: unused bits of the last character have to be zero."""
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except Base64Error:
        return None
    return raw if _to_text(raw) == text else None


def _pack(claims: TokenClaims) -> bytes:
    try:
        body = _claims_encoder.encode(claims)
    except (TypeError, ValueError, OverflowError, RecursionError):
        body = b""
    if _unpack(body) is None:
        raise Invalid("these claims cannot be written")
    if len(body) > MAX_CLAIMS:
        raise Invalid(f"claims have {len(body)} bytes, the limit is {MAX_CLAIMS}")
    return body


def _unpack(body: bytes) -> TokenClaims | None:
    """The claims in `body`; None unless it is exactly what this release writes for them."""
    try:
        claims = _claims_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return claims if _claims_encoder.encode(claims) == body else None


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _canonical(value: object) -> bytes | None:
    """None for what JSON cannot say, or cannot say without being ambiguous."""
    try:
        # First as text: only there are members of the same name still apart.
        json.loads(msgspec.json.encode(value), object_pairs_hook=_distinct)
        plain = msgspec.to_builtins(value, str_keys=True, order="sorted")
        return _spell(plain).encode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise ValueError


_spell = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
