"""What a sender of signals presents: tokens are verified, unless they were revoked."""

from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import NotFound, TokenRevoked
from flowfabric.core.base.time import NO_TIME, Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Ended, Snapshot
from flowfabric.core.wait.keyring import Keyring
from flowfabric.core.wait.model import DedupRecord, Loaded, Needs, Waitpoint, dedup_key
from flowfabric.core.wait.token import Token, TokenClaims, verify


class Credential(Struct, frozen=True):
    """How a sender proves itself: by a token, checked with the keys of the store."""

    ring: Keyring
    token: Token | str | None


def needs_of_tokens(
    snapshot: Snapshot | None, waitpoint: UUID, claims: TokenClaims | None = None
) -> Needs | None:
    """What must be read to verify, issue or revoke tokens of a waitpoint. `claims` are what a token
    says, unverified."""
    if snapshot is None:
        return None
    dedup = revocation_keys(waitpoint, claims)
    return Needs(snapshot.execution.uuid, waitpoints=(waitpoint,), dedup=dedup)


def check_token(
    loaded: Loaded, now: Millis, waitpoint: UUID, credential: Credential
) -> tuple[Waitpoint, TokenClaims | None]:
    """The waitpoint, and what the token is limited to; raises unless the token is good for it."""
    row = loaded.waitpoints.get(waitpoint)
    claims = verify(credential.ring, row, credential.token, now)
    _check_revoked(loaded, waitpoint, claims, row)
    if row is None:
        raise NotFound("waitpoint", waitpoint)
    return row, claims


def revoke(
    snapshot: Snapshot | None, now: Millis, loaded: Loaded, waitpoint: UUID, token_id: str
) -> "Change[None]":
    """Revokes a token (by the id in its claims), or with an empty id every token of the waitpoint
    that was issued so far."""
    snapshot = present(snapshot)
    row = loaded.waitpoints.get(waitpoint)
    if row is None:
        raise NotFound("waitpoint", waitpoint)
    if isinstance(snapshot.state, Ended) and row.attempt is not None:
        return unchanged(None)  # one that outlives attempts is opened again by a replay
    # After those were revoked, tokens are issued a moment later.
    before = revoked_at(loaded, waitpoint)
    at = now if before is None else max(now, before + 1)
    record = DedupRecord(_revoked_key(waitpoint, token_id), doc=msgspec.json.encode(at))
    # The version moves, so that a delivery decided before is decided again.
    return Change(None, snapshot, snapshot.to(snapshot.state), dedup=(record,))


def revoked_at(loaded: Loaded, waitpoint: UUID) -> Millis | None:
    """When every token of a waitpoint issued so far was revoked, the last time."""
    if not loaded.dedup:
        return None
    everything = loaded.dedup.get(_revoked_key(waitpoint, ""))
    return None if everything is None else Millis(msgspec.json.decode(everything.doc, type=int))


def _check_revoked(
    loaded: Loaded, waitpoint: UUID, claims: TokenClaims | None, row: Waitpoint | None
) -> None:
    until = revoked_at(loaded, waitpoint)
    issued = claims.issued_at if claims is not None else row.created_at if row else NO_TIME
    if until is not None and issued <= until:
        raise TokenRevoked("every token issued before was revoked")
    if claims is not None and _revoked_key(waitpoint, claims.id) in loaded.dedup:
        raise TokenRevoked("the token was revoked")


def revocation_keys(waitpoint: UUID, claims: TokenClaims | None) -> tuple[bytes, ...]:
    """The keys of the dedup records that say whether a token was revoked: with all of its
    waitpoint, or on its own."""
    everything = _revoked_key(waitpoint, "")
    return (everything,) if claims is None else (everything, _revoked_key(waitpoint, claims.id))


def _revoked_key(waitpoint: UUID, token_id: str) -> bytes:
    return dedup_key("revoked", waitpoint.bytes, token_id)
