"""Audit records: administrative acts that change no run, such as a new token or a new key.

What operators do to runs is in the events of those runs (`detail["by"]`). These records are never
changed, only added, and deleted when they are old.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import field

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import Invalid, PayloadTooLarge
from flowfabric.core.base.text import MAX_NAME, MAX_REASON, check_text
from flowfabric.core.base.time import Millis

AUDIT_KEPT = Millis(400 * 86_400_000)
"""Thirteen months: a yearly review sees the whole year."""

MAX_DETAIL = 1 << 16


class AuditRecord(Document, frozen=True, kw_only=True):
    """One act: what was done (`token.created`) to what (`ci-deploy`), by whom. `id` is a version 7
    uuid as text, so records are listed in the order of time. No secret is ever part of it."""

    id: str = ""
    at: Millis = Millis(0)
    action: str = ""
    subject: str = ""
    by: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    version: int = 0

    @property
    def kept_until(self) -> Millis:
        return Millis(self.at + AUDIT_KEPT)


def new_record(
    now: Millis, id: str, action: object, subject: object, by: object, detail: object
) -> AuditRecord:
    """A checked record; `detail` is a mapping of what JSON can say, or None."""
    return AuditRecord(
        id=id,
        at=now,
        action=check_text(action, "action", limit=MAX_NAME),
        subject=check_text(subject, "subject", limit=MAX_REASON),
        by=check_text(by, "by", limit=MAX_NAME),
        detail={} if detail is None else _checked(detail),
    )


def _checked(detail: object) -> dict[str, Any]:
    if not isinstance(detail, Mapping) or not all(isinstance(name, str) for name in detail):
        raise Invalid("detail must be a mapping with names as keys")
    try:
        plain = msgspec.json.encode(detail)
    except (TypeError, ValueError, RecursionError):  # such as an object, or a lone surrogate
        raise Invalid("detail must have values that JSON knows") from None
    if len(plain) > MAX_DETAIL:
        raise PayloadTooLarge("detail", len(plain), MAX_DETAIL)
    found: dict[str, Any] = msgspec.json.decode(plain)
    return found
