"""Who has sent a request: the identity of its access token."""

from time import monotonic

from flowfabric.core.access.token import ANONYMOUS, Identity
from flowfabric.core.base.errors import InvalidCredentials
from flowfabric.engine.engine import Engine
from flowfabric.server.caller.credentials import bearer_token

LOOK_EVERY = 3.0
"""Seconds between two looks whether there are tokens by now, of a server that has started without
any."""


class Authentication:
    """A server whose store never had a token lets every caller in, until the first one exists. It
    never opens again, nor after a restart: when the last token is revoked or expires, everyone is
    shut out."""

    def __init__(self, engine: Engine, *, is_open: bool) -> None:
        self._engine = engine
        self._is_open = is_open
        self._looked_at = monotonic()

    async def identify(self, header: str | None) -> Identity | None:
        """The caller with this Authorization header, None for one that has sent none and needs
        one. Unauthenticated for a token that is not valid. A server that lets every caller in
        refuses none for a header that means nothing to it: a proxy may have sent it."""
        try:
            token = bearer_token(header)
            if token is not None:
                return await self._engine.tokens.verify(token)
        except InvalidCredentials:
            if await self._lets_everyone_in():
                return ANONYMOUS
            raise
        return ANONYMOUS if await self._lets_everyone_in() else None

    async def _lets_everyone_in(self) -> bool:
        now = monotonic()
        if self._is_open and now - self._looked_at > LOOK_EVERY:
            self._looked_at = now
            self._is_open = not await self._engine.tokens.any_made()
        return self._is_open
