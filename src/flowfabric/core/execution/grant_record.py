"""The record of a grant: who was granted what, until when and why.

The hold on the ready row decides who may take an execution. The record is kept until the next grant
of the execution, or until its lease is lost.
"""

from enum import StrEnum
from hashlib import sha256

from msgspec import Struct

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.numbers import check_kind_of
from flowfabric.core.base.text import MAX_KEY, MAX_NAME, check_text
from flowfabric.core.base.time import Millis

MAX_NOTE = 1 << 14
KEY_PREFIX = "ffg1."


class GrantKind(StrEnum):
    """What a grant is for: a new attempt, the interrupted one, or a new one after a loss."""

    CLAIM = "claim"
    RESUME = "resume"
    RECLAIM = "reclaim"


class GrantNotes(Struct, frozen=True, kw_only=True):
    """Notes that a scheduler may keep with a grant. No rule reads them."""

    capability_hash: str | None = None
    route_snapshot: str | None = None
    admission_summary: str | None = None


NO_NOTES = GrantNotes()


class Grant(Document, frozen=True, kw_only=True):
    """A grant as stored. `id` is derived from its key, which is not stored. `epoch` is that of the
    execution when it was granted: the lease that redeems the grant has a higher one."""

    id: str = ""
    kind: GrantKind = GrantKind.CLAIM
    worker: str = ""
    instance: str = ""
    lane: str = ""
    granted_at: Millis = Millis(0)
    expires_at: Millis = Millis(0)
    epoch: int = 0
    capabilities: tuple[str, ...] = ()
    capability_hash: str = ""
    route_snapshot: str | None = None
    admission_summary: str | None = None


def grant_id_from_key(key: str) -> str:
    """The id of the grant with this key, the same in every process and release."""
    return sha256(check_grant_key(key).encode()).hexdigest()


def hash_capabilities(capabilities: frozenset[str]) -> str:
    """A short digest of a set of capabilities, for grants without one."""
    return sha256(",".join(sorted(capabilities)).encode()).hexdigest()[:16]


def check_grant_key(key: object) -> str:
    text = check_text(key, "the key of a grant", limit=MAX_KEY)
    if not text:
        raise Invalid("the key of a grant must not be empty")
    return text


def check_notes(notes: object) -> GrantNotes:
    """`notes` if every member is short text."""
    checked = check_kind_of(notes, GrantNotes, "the notes of a grant")
    limits = {
        "capability_hash": MAX_NAME,
        "route_snapshot": MAX_NOTE,
        "admission_summary": MAX_NOTE,
    }
    for name, limit in limits.items():
        if (value := getattr(checked, name)) is not None:
            check_text(value, name, limit=limit)
    return checked
