"""Access tokens: create, list, revoke and rotate them, and say who has sent one."""

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from time import monotonic

from msgspec import Struct

from flowfabric.core.access import token as rules
from flowfabric.core.access.token import (
    CONFIGURED,
    AccessToken,
    Identity,
    SecretText,
    TokenInfo,
    TokenRequest,
    TokenState,
)
from flowfabric.core.base.errors import Corruption, NotFound
from flowfabric.core.base.numbers import check_limit
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.time import Millis, Span, check_span
from flowfabric.engine.access.actor import current_actor
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.records import RecordChange, RecordRule, change, find
from flowfabric.engine.context import EngineContext, Service
from flowfabric.store.readable import load_each
from flowfabric.store.rows.record import TOKENS

MAX_AGE = 3.0
"""For so many seconds a token is verified without a look at the store: a revocation by another
process is seen within that time, one by this process at once. Measured by the monotonic clock, so
that steps of the store's clock do not lengthen it."""
MAX_KNOWN = 1_000
DEFAULT_GRACE = Millis(86_400_000)


class IssuedToken(Struct, frozen=True):
    """A new secret, which is shown once, and the token it belongs to."""

    info: TokenInfo
    secret: SecretText


class KnownToken(Struct, frozen=True):
    """A token as this process has read it, and when, by the monotonic clock."""

    token: AccessToken
    identity: Identity
    read_at: float


class Tokens(Service):
    """`engine.tokens`"""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        # Only tokens that exist: callers that guess names cannot push the others out.
        self._known: OrderedDict[str, KnownToken] = OrderedDict()
        self._reads: Batcher[str, AccessToken | None] = Batcher("tokens", self._read)
        self._trusted: str | None = None

    def trust(self, text: str) -> None:
        """Accepts this token as well, with every scope: the one of the configuration."""
        self._trusted = rules.check_trusted(text)

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        namespaces: Sequence[str] | None = None,
        expires: Span | None = None,
        by: str = "",
    ) -> IssuedToken:
        """A token for callers of the server. Its secret is in the answer and nowhere else.
        TokenExists if a live token has the name."""
        lifetime = None if expires is None else check_span(expires, "expires", 1)
        request = rules.check_request(name, scopes, namespaces, lifetime)
        who, secret = _who(by), _secret(request.name)

        def decide(old: AccessToken | None, now: Millis) -> tuple[AccessToken, TokenInfo]:
            new = rules.create(old, now, request, secret, who)
            return new, rules.info_of(new, now)

        changed = await self._change(request.name, decide)
        await self._context.audit.write(
            "token.created", request.name, by=who, detail=_granted(request)
        )
        return IssuedToken(changed.outcome, secret)

    async def list(self, *, after: str | None = None, limit: int = 100) -> "list[TokenInfo]":
        """Tokens by name after a cursor, those that expired or were revoked included."""
        wanted = check_limit(limit, MAX_PAGE)
        if not wanted:
            return []
        start = None if after is None else rules.check_token_name(after)
        now = self._now()
        found = await self._context.store.records.page(TOKENS, start, wanted)
        return [rules.info_of(token, now) for token in found]

    async def get(self, name: str) -> TokenInfo:
        key = rules.check_token_name(name)
        return rules.info_of(
            _existing(await find(self._context.store, TOKENS, key), key), self._now()
        )

    async def any_live(self) -> bool:
        """Whether there is a token that is accepted now, that of the configuration included."""
        if self._trusted is not None:
            return True
        after: str | None = None
        while page := await self.list(after=after, limit=MAX_PAGE):
            if any(token.state is TokenState.LIVE for token in page):
                return True
            after = page[-1].name
        return False

    async def any_made(self) -> bool:
        """Whether there is a token, or was one: tokens that were revoked or have expired count, as
        they are kept."""
        return self._trusted is not None or bool(await self.list(limit=1))

    async def revoke(self, name: str, *, by: str = "") -> TokenInfo:
        """Ends a token, with all its secrets. Revoking it again changes nothing."""
        key, who = rules.check_token_name(name), _who(by)

        def decide(old: AccessToken | None, now: Millis) -> tuple[AccessToken, TokenInfo]:
            new = rules.revoke(_existing(old, key), now, who)
            return new, rules.info_of(new, now)

        changed = await self._change(key, decide)
        if changed.written:
            await self._context.audit.write("token.revoked", key, by=who)
        return changed.outcome

    async def rotate(
        self,
        name: str,
        *,
        grace: Span = DEFAULT_GRACE,
        expires: Span | None = None,
        by: str = "",
    ) -> IssuedToken:
        """A new secret for a token; the earlier one is valid for `grace`. With `expires` the token
        ends after that, otherwise when it would have. WrongState if it is not live."""
        key, who = rules.check_token_name(name), _who(by)
        span = check_span(grace, "grace")
        lifetime = None if expires is None else check_span(expires, "expires", 1)
        secret = _secret(key)

        def decide(old: AccessToken | None, now: Millis) -> tuple[AccessToken, TokenInfo]:
            found = _existing(old, key)
            new = rules.rotate(found, now, secret, span, who, lifetime=lifetime)
            return new, rules.info_of(new, now)

        changed = await self._change(key, decide)
        await self._context.audit.write("token.rotated", key, by=who, detail={"grace": span})
        return IssuedToken(changed.outcome, secret)

    async def verify(self, presented: str | None) -> Identity:
        """Who has sent this token; raises a kind of Unauthenticated if it is not accepted."""
        given = rules.read_credentials(presented)
        del presented  # not in the traceback of a refusal
        if self._trusted is not None and rules.same_digest(self._trusted, given.digest):
            return CONFIGURED
        known = self._recent(given.name)
        if known is not None:
            rules.check_presented(known.token, self._now(), given)
            return known.identity
        read = await self._reads.put(given.name) if given.name else None
        return rules.verify(read, self._now(), given)

    async def drain(self) -> None:
        await self._reads.drain()

    def _recent(self, name: str) -> KnownToken | None:
        known = self._known.get(name)
        if known is None or monotonic() - known.read_at >= MAX_AGE:
            return None
        self._known.move_to_end(name)
        return known

    async def _read(self, names: Sequence[str]) -> Sequence[AccessToken | Corruption | None]:
        """The tokens of all requests that came during the last read, in one statement."""
        began = monotonic()
        wanted = [*dict.fromkeys(names)]
        found = await load_each(partial(self._context.store.records.get, TOKENS), wanted)
        for token in found.values():
            if isinstance(token, AccessToken):
                self._remember(token, began)
        return [found.get(name) for name in names]

    async def _change(
        self, name: str, rule: RecordRule[AccessToken, TokenInfo]
    ) -> RecordChange[AccessToken, TokenInfo]:
        began = monotonic()
        changed = await change(self._context.store, TOKENS, name, rule)
        if changed.after is not None:
            self._remember(changed.after, began)
        return changed

    def _remember(self, token: AccessToken, read_at: float) -> None:
        known = self._known.get(token.name)
        if known is not None and known.token.version > token.version:
            return  # read before this process changed it
        self._known[token.name] = KnownToken(token, rules.identity_of(token), read_at)
        self._known.move_to_end(token.name)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def _existing(token: AccessToken | None, name: str) -> AccessToken:
    if token is None:
        raise NotFound("access token", name)
    return token


def _secret(name: str) -> SecretText:
    return rules.new_secret(name, secrets.token_bytes(rules.SECRET_BYTES))


def _who(by: object) -> str:
    """An authenticated caller counts more than what was given."""
    return current_actor() or rules.check_by(by)


def _granted(request: TokenRequest) -> dict[str, object]:
    return {
        "scopes": list(request.scopes),
        "namespaces": None if request.namespaces is None else list(request.namespaces),
        "lifetime": request.lifetime,
    }
