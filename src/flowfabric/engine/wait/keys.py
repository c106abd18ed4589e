"""The keys that sign waitpoint tokens: kept in the store, the same for every process.

A key that was rotated out goes on verifying for a while. Other processes follow a rotation within
a second; one that meets a key it does not know looks at once.
"""

import logging
import secrets
from collections.abc import Callable
from typing import TypeVar

from flowfabric.core.access.token import check_by
from flowfabric.core.base.time import Millis, Span
from flowfabric.core.wait import keyring as rules
from flowfabric.core.wait.keyring import (
    EMPTY_RING,
    AlreadySeeded,
    Keyring,
    Kids,
    Noop,
    Rotated,
    Seeded,
)
from flowfabric.engine.access.audit import Audit
from flowfabric.engine.commit.records import change, find
from flowfabric.engine.commit.shared_read import SharedRead
from flowfabric.store.contract import Store
from flowfabric.store.rows.record import KEYRING, ONLY, SealedKeyring

T = TypeVar("T")

log = logging.getLogger("flowfabric.keys")

MAX_AGE = Millis(1_000)
DEFAULT_GRACE = Millis(86_400_000)


class Ring:
    """The key ring as this process knows it."""

    def __init__(self, store: Store, secret: str | None, *, make: bool) -> None:
        """`secret` becomes the first key; without one a key is made when `make` says so."""
        if secret is not None:
            # Refused here, not when an execution waits for the first time.
            rules.check_first(secret, "the waitpoint secret (FLOWFABRIC_WAITPOINT_SECRET)")
        self._store = store
        self._secret = secret
        self._make = make
        self._known = EMPTY_RING
        self._read_at: Millis | None = None
        self._reading = SharedRead()

    def now(self) -> Millis:
        return self._store.clock.now()

    async def read(self, *, fresh: bool = False) -> Keyring:
        """The ring, at most a second old."""
        if fresh or self._is_old():
            asked_at = self.now()

            def needed() -> bool:
                return self._is_old() or (fresh and not self._was_read_since(asked_at))

            await self._reading.when(needed, self._read)  # once for a thousand senders
        return self._known

    async def _read(self) -> None:
        now = self.now()
        self._remember(_opened(await find(self._store, KEYRING, ONLY)), now)

    def _is_old(self) -> bool:
        age = None if self._read_at is None else self.now() - self._read_at
        return age is None or not 0 <= age < MAX_AGE

    def _was_read_since(self, moment: Millis) -> bool:
        return self._read_at is not None and self._read_at > moment

    async def to_sign(self) -> Keyring:
        """The ring with a current key, if there is a way to have one."""
        ring = await self.read()
        if ring.current is None:
            await self.install_first()
            ring = self._known
        if self._secret is not None and rules.kid_of(self._secret) not in ring.keys:
            log.warning("the configured waitpoint secret is not in use: rotate to it")
            self._secret = None
        return ring

    async def for_token(self, kid: str) -> Keyring:
        """The ring to verify a token of that key with."""
        ring = await self.read()
        return ring if kid in ring.keys else await self.read(fresh=True)

    async def change(self, rule: Callable[[Keyring, Millis], tuple[Keyring, T]]) -> T:
        """Decides on the stored ring and writes the result."""

        def decide(
            stored: SealedKeyring | None, now: Millis
        ) -> tuple[SealedKeyring | None, tuple[T, Keyring, Millis]]:
            before = _opened(stored)
            after, outcome = rule(before, now)
            sealed = stored if after == before else SealedKeyring(rules.write_ring(after))
            return sealed, (outcome, after, now)

        changed = await change(self._store, KEYRING, ONLY, decide)
        outcome, ring, now = changed.outcome
        self._remember(ring, now)
        return outcome

    async def install_first(self) -> bool:
        """Installs the first key, if there is none and a way to have one; whether it did."""
        if self._secret is None and not self._make:
            return False
        secret = self._secret or secrets.token_hex(32)

        def first(ring: Keyring, now: Millis) -> tuple[Keyring, bool]:
            if ring.current is not None:
                return ring, False  # another process was faster
            return rules.seed(ring, rules.kid_of(secret), secret, now)[0], True

        return await self.change(first)

    def _remember(self, ring: Keyring, now: Millis) -> None:
        self._known, self._read_at = ring, now


def _opened(stored: SealedKeyring | None) -> Keyring:
    return rules.read_ring(None if stored is None else stored.doc)


class Keys:
    """`engine.keys`"""

    def __init__(self, ring: Ring, audit: Audit) -> None:
        self._ring = ring
        self._audit = audit

    async def seed(self, kid: str, secret: str, *, by: str = "") -> Seeded | AlreadySeeded:
        """Installs the first key (64 hex digits). Never overwrites one."""
        who = check_by(by)
        answer = await self._ring.change(lambda ring, now: rules.seed(ring, kid, secret, now))
        if isinstance(answer, Seeded):
            await self._audit.write("key.seeded", kid, by=who)
        return answer

    async def prepare(self) -> bool:
        """Installs the first key now, not when something waits for a signal for the first time.
        True if this call did so, and no earlier one or another process."""
        installed = (await self._ring.read()).current is None and await self._ring.install_first()
        await self._ring.to_sign()
        return installed

    async def rotate(
        self, kid: str, secret: str, *, grace: Span = DEFAULT_GRACE, by: str = ""
    ) -> Rotated | Noop:
        """Signs with a new key from now on; the previous one verifies for `grace`: `"7d"`, a
        `timedelta`, or milliseconds."""
        who = check_by(by)
        answer = await self._ring.change(
            lambda ring, now: rules.rotate(ring, kid, secret, grace, now)
        )
        if isinstance(answer, Rotated):
            rest = {"previous": answer.previous, "grace": rules.check_grace(grace)}
            await self._audit.write("key.rotated", kid, by=who, detail=rest)
        return answer

    async def kids(self) -> Kids:
        """Which keys there are; never their secrets."""
        return rules.kids(await self._ring.read(fresh=True), self._ring.now())
