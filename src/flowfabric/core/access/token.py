"""Access tokens: who calls the server, and what the caller may do.

A token is `ff_`, its name, `_`, and 32 random bytes as URL-safe text. The name finds the stored
record, which has only a SHA-256 of the text: the secret is random, so it needs no slow hash, and
a copy of the database opens nothing. Everything that is compared is compared in constant time, and
the answer for a name that does not exist is that for a wrong secret.

Tokens are not the only ones of that word: those of waitpoints (`core/wait/token.py`) are signed,
never stored, and good for one waitpoint.

Secrets stay out of sight: no `repr` shows one, no text of an error contains one, and none is a
local variable of a function that raises, since a traceback may be recorded with its variables.
"""

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import (
    CredentialsExpired,
    CredentialsRevoked,
    Forbidden,
    Invalid,
    InvalidCredentials,
    MissingCredentials,
    TokenExists,
    WrongState,
)
from flowfabric.core.base.numbers import check_items, check_word
from flowfabric.core.base.text import check_namespace, check_text
from flowfabric.core.base.time import MAX_MILLIS, Millis

PREFIX = "ff_"
SECRET_BYTES = 32
MAX_PRESENTED = 1024
"""Longer text is refused unread."""
MAX_NAMESPACES = 100
MAX_BY = 256
MAX_REPLACED = 8
"""So many earlier secrets of a token may be in their grace; the one that ends first gives way."""

_NAME_FORM = "[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?"
_NAME = re.compile(_NAME_FORM)
_SHAPE = re.compile(rf"{PREFIX}({_NAME_FORM})_[A-Za-z0-9_-]{{43}}")
_LAST = 4
_REFUSED = "the access token is not valid"


class AccessScope(StrEnum):
    """What a token allows. A route names the one scope it needs."""

    READ = "read"
    """Look at runs, flows, events, results, lanes, limits, workers."""
    SUBMIT = "submit"
    """Create runs and flows."""
    WORK = "work"
    """Claim runs and report on them, as workers do."""
    SIGNAL = "signal"
    """Send signals and decide approvals without the token of a waitpoint."""
    OPERATE = "operate"
    """Cancel, replay, change priorities, pause lanes, set limits."""
    ADMIN = "admin"
    """Manage tokens and keys."""


IMPLIED: dict[AccessScope, frozenset[AccessScope]] = {
    AccessScope.OPERATE: frozenset({AccessScope.READ}),
    AccessScope.ADMIN: frozenset(AccessScope),
}
"""Which scopes come with another. An operator must see what it acts on. An admin could create a
token with any scope, so to withhold one would be a pretence. The others stand alone: a form on a
website submits without reading what others submitted, a worker sees the runs it has claimed and no
others, a chat bot signals without reading results."""

EVERYTHING = frozenset(AccessScope)


class Identity(Struct, frozen=True):
    """Who calls. `scopes` are all the caller has, implied ones included; `namespaces` are those it
    sees, None for all."""

    name: str
    scopes: frozenset[AccessScope]
    namespaces: frozenset[str] | None = None

    def allows(self, scope: AccessScope) -> bool:
        return scope in self.scopes

    def sees(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces

    @property
    def sees_all(self) -> bool:
        """Needed for what all namespaces share: lanes, quotas, budgets, workers, keys."""
        return self.namespaces is None

    def require(self, scope: AccessScope, *, everywhere: bool = False) -> None:
        """Raises Forbidden without the scope; with `everywhere` also for a caller that is limited
        to namespaces."""
        if scope not in self.scopes:
            raise Forbidden(f"this needs an access token with the scope {scope}", scope=scope)
        if everywhere and self.namespaces is not None:
            raise Forbidden("this needs an access token for all namespaces", scope=scope)


ANONYMOUS = Identity("anonymous", EVERYTHING)
"""Every caller of a server that was started without tokens."""
CONFIGURED = Identity("configured", EVERYTHING)
"""The caller with the token of the configuration (FLOWFABRIC_TOKEN)."""
_RESERVED = frozenset({ANONYMOUS.name, CONFIGURED.name})


class ReplacedSecret(Document, frozen=True, kw_only=True):
    """An earlier secret of a token, valid before `until`."""

    digest: str = ""
    until: Millis = Millis(0)


class AccessToken(Document, frozen=True, kw_only=True):
    """A token as it is stored. `namespaces` is None for all. Scopes are words: those that a newer
    release knows allow nothing here."""

    name: str = ""
    scopes: tuple[str, ...] = ()
    namespaces: tuple[str, ...] | None = None
    created_at: Millis = Millis(0)
    created_by: str = ""
    expires_at: Millis | None = None
    digest: str = ""
    last_four: str = ""
    replaced: tuple[ReplacedSecret, ...] = ()
    rotated_at: Millis | None = None
    rotated_by: str = ""
    revoked_at: Millis | None = None
    revoked_by: str = ""
    version: int = 0

    def __repr__(self) -> str:
        return f"AccessToken({self.name!r}, …{self.last_four}, version={self.version})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name), ("version", self.version)]


# Compared with when there is no token of the name, so that both cases do the same work.
_UNKNOWN = AccessToken(digest="0" * 64)


class TokenState(StrEnum):
    LIVE = "live"
    EXPIRED = "expired"
    REVOKED = "revoked"


class TokenInfo(Struct, frozen=True, kw_only=True):
    """What may be shown of a token. `grace_until` is when the last of its earlier secrets ends;
    None if only the newest is valid."""

    name: str
    state: TokenState
    scopes: tuple[str, ...]
    namespaces: tuple[str, ...] | None
    last_four: str
    created_at: Millis
    created_by: str
    expires_at: Millis | None
    rotated_at: Millis | None
    rotated_by: str
    grace_until: Millis | None
    revoked_at: Millis | None
    revoked_by: str


class TokenRequest(Struct, frozen=True, kw_only=True):
    """A checked wish for a token: see `check_request`."""

    name: str
    scopes: tuple[AccessScope, ...]
    namespaces: tuple[str, ...] | None
    lifetime: Millis | None


class SecretText:
    """The text of a new token. Only `reveal` gives it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text, for the one it was made for. It cannot be shown again."""
        return self._text

    @property
    def digest(self) -> str:
        return _digest(self._text)

    @property
    def last_four(self) -> str:
        return self._text[-_LAST:]

    def __repr__(self) -> str:
        return "<REDACTED>"


class Presented(NamedTuple):
    """A token that a caller has sent: the name in it (empty if it has not the form of one) and its
    digest, never its text."""

    name: str
    digest: str


def new_secret(name: str, random: bytes) -> SecretText:
    """The text of a token, made of its name and 32 random bytes."""
    return SecretText(f"{PREFIX}{name}_{urlsafe_b64encode(random).rstrip(b'=').decode()}")


def check_request(
    name: object, scopes: object, namespaces: object = None, lifetime: Millis | None = None
) -> TokenRequest:
    """Raises Invalid for a name, a scope or a namespace that is none."""
    wanted = {check_word(scope, AccessScope, "a scope") for scope in check_items(scopes, "scopes")}
    if not wanted:
        raise Invalid(f"a token needs a scope: {', '.join(AccessScope)}")
    seen = None if namespaces is None else _namespaces(check_items(namespaces, "namespaces"))
    if seen is not None and AccessScope.ADMIN in wanted:
        # It could create a token for the others.
        raise Invalid("a token with the scope admin cannot be limited to namespaces")
    return TokenRequest(
        name=_new_name(name),
        scopes=tuple(scope for scope in AccessScope if scope in wanted),
        namespaces=seen,
        lifetime=lifetime,
    )


def check_token_name(name: object) -> str:
    """`name` if a token can have it."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise Invalid(
            "the name of a token must be 1 to 64 lower-case letters, digits, dots and hyphens, "
            "such as ci-deploy"
        )
    return name


def check_by(by: object) -> str:
    return check_text(by, "by", limit=MAX_BY)


def create(
    token: AccessToken | None, now: Millis, request: TokenRequest, secret: SecretText, by: str
) -> AccessToken:
    """A new token. The name of one that was revoked or has expired may be used again; the earlier
    secret stays invalid."""
    if token is not None and state_of(token, now) is TokenState.LIVE:
        raise TokenExists(f"an access token {request.name} exists: rotate or revoke it")
    return AccessToken(
        name=request.name,
        scopes=request.scopes,
        namespaces=request.namespaces,
        created_at=now,
        created_by=by,
        expires_at=_ends(now, request.lifetime),
        digest=secret.digest,
        last_four=secret.last_four,
    )


def revoke(token: AccessToken, now: Millis, by: str) -> AccessToken:
    """The token, valid no more. Repeating it keeps the first `revoked_at` and `revoked_by`."""
    if token.revoked_at is not None:
        return token
    return replace(token, revoked_at=now, revoked_by=by, replaced=())


def rotate(
    token: AccessToken,
    now: Millis,
    secret: SecretText,
    grace: Millis,
    by: str,
    *,
    lifetime: Millis | None = None,
) -> AccessToken:
    """The token with a new secret. The one before is valid for `grace`, though not longer than it
    was. With a `lifetime` the token expires after that, otherwise when it would have."""
    state = state_of(token, now)
    if state is not TokenState.LIVE:
        raise WrongState(f"the access token {token.name} is {state}: create a new one")
    until = min(now + grace, MAX_MILLIS if token.expires_at is None else token.expires_at)
    kept = [each for each in token.replaced if each.until > now]
    if until > now:
        kept.append(ReplacedSecret(digest=token.digest, until=Millis(until)))
    kept.sort(key=lambda each: each.until)
    return replace(
        token,
        digest=secret.digest,
        last_four=secret.last_four,
        replaced=tuple(kept[-MAX_REPLACED:]),
        rotated_at=now,
        rotated_by=by,
        expires_at=token.expires_at if lifetime is None else _ends(now, lifetime),
    )


def read_credentials(text: object) -> Presented:
    """What a caller has sent. MissingCredentials without a token; InvalidCredentials for what
    cannot be one."""
    if text is None or text == "":
        raise MissingCredentials("an access token is required")
    found = _presented(text)
    if found is None:
        del text
        raise InvalidCredentials(_REFUSED)
    return found


def check_trusted(text: object) -> str:
    """What is kept of a token that the configuration gives: its digest. Invalid for what no caller
    could present."""
    found = None if text == "" else _presented(text)
    if found is None:
        del text
        raise Invalid(f"a token must be ASCII text of at most {MAX_PRESENTED} characters")
    return found.digest


def same_digest(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def verify(token: AccessToken | None, now: Millis, presented: Presented) -> Identity:
    """Who has sent this. `token` is the record of the presented name.

    Only the holder of a secret learns that its token was revoked or has expired: all others get
    InvalidCredentials.
    """
    return identity_of(check_presented(token, now, presented))


def check_presented(token: AccessToken | None, now: Millis, presented: Presented) -> AccessToken:
    """The token if this is a secret of it that is valid now; the rule behind `verify`."""
    known = _UNKNOWN if token is None else token
    matches = same_digest(known.digest, presented.digest)
    ends_at = known.expires_at
    for earlier in known.replaced:
        if same_digest(earlier.digest, presented.digest):
            matches, ends_at = True, earlier.until
    if token is None or not matches:
        raise InvalidCredentials(_REFUSED)
    if token.revoked_at is not None:
        raise CredentialsRevoked("the access token was revoked")
    if ends_at is not None and ends_at <= now:
        raise CredentialsExpired("the access token has expired")
    return token


def identity_of(token: AccessToken) -> Identity:
    """The caller that presents this token."""
    given = frozenset(scope for scope in AccessScope if scope in token.scopes)
    namespaces = None if token.namespaces is None else frozenset(token.namespaces)
    return Identity(token.name, with_implied(given), namespaces)


def with_implied(scopes: Iterable[AccessScope]) -> frozenset[AccessScope]:
    given = frozenset(scopes)
    return given.union(*(IMPLIED.get(scope, frozenset()) for scope in given))


def state_of(token: AccessToken, now: Millis) -> TokenState:
    if token.revoked_at is not None:
        return TokenState.REVOKED
    expired = token.expires_at is not None and token.expires_at <= now
    return TokenState.EXPIRED if expired else TokenState.LIVE


def info_of(token: AccessToken, now: Millis) -> TokenInfo:
    """What may be shown of a token."""
    state = state_of(token, now)
    ends = [each.until for each in token.replaced if each.until > now]
    return TokenInfo(
        name=token.name,
        state=state,
        scopes=token.scopes,
        namespaces=token.namespaces,
        last_four=token.last_four,
        created_at=token.created_at,
        created_by=token.created_by,
        expires_at=token.expires_at,
        rotated_at=token.rotated_at,
        rotated_by=token.rotated_by,
        grace_until=max(ends) if ends and state is TokenState.LIVE else None,
        revoked_at=token.revoked_at,
        revoked_by=token.revoked_by,
    )


def _new_name(name: object) -> str:
    found = check_token_name(name)
    if found in _RESERVED:
        raise Invalid(f"no token can have the name {found}: the server uses it")
    return found


def _namespaces(given: tuple[object, ...]) -> tuple[str, ...]:
    if not 1 <= len(given) <= MAX_NAMESPACES:
        raise Invalid(f"give 1 to {MAX_NAMESPACES} namespaces, or none for a token that sees all")
    return tuple(sorted({check_namespace(namespace) for namespace in given}))


def _ends(now: Millis, lifetime: Millis | None) -> Millis | None:
    return None if lifetime is None else Millis(min(now + lifetime, MAX_MILLIS))


def _presented(text: object) -> Presented | None:
    if not isinstance(text, str) or len(text) > MAX_PRESENTED or not text.isascii():
        return None
    shape = _SHAPE.fullmatch(text)
    return Presented("" if shape is None else shape[1], _digest(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
