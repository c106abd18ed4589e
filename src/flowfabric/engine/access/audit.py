"""Audit records: written after an administrative act, listed in the order of time."""

import logging
from collections.abc import Mapping
from typing import Any

from flowfabric.core.access.audit import AuditRecord, new_record
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.numbers import check_limit
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import check_text
from flowfabric.core.base.time import Millis, check_moment
from flowfabric.engine.access.actor import current_actor
from flowfabric.engine.commit.ids import Ids
from flowfabric.engine.commit.records import change
from flowfabric.store.contract import Store
from flowfabric.store.rows.record import AUDIT

log = logging.getLogger("flowfabric.audit")


class Audit:
    """`engine.audit`"""

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store = store
        self._ids = ids

    async def write(
        self, action: str, subject: str, *, by: str = "", detail: Mapping[str, Any] | None = None
    ) -> AuditRecord:
        """Records an act that is done. `by` is who did it; an authenticated caller takes its place.
        The log gets a line in any case: if the store fails now, the act has happened all the
        same."""
        now = self._store.clock.now()
        id, who = str(self._ids.fresh(now)), current_actor() or by
        record = new_record(now, id, action, subject, who, detail)
        shown = {"action": action, "subject": subject, "by": who, "detail": record.detail}
        named = record.by or "an unknown caller"
        line = "%s %s by %s %s"
        log.info(line, action, subject, named, record.detail or "", extra={"audit": shown})
        written = await change(self._store, AUDIT, record.id, lambda old, at: (old or record, None))
        return written.after or record

    async def list(
        self, *, after: str | None = None, since: Millis | None = None, limit: int = 100
    ) -> list[AuditRecord]:
        """Records after a cursor (the `id` of one), or from a moment on, oldest first."""
        wanted = check_limit(limit, MAX_PAGE)
        if not wanted:
            return []
        if after is not None:
            check_text(after, "cursor")
        elif since is not None:
            after = str(new_uuid7(check_moment(since, "since"), 0))
        return await self._store.records.page(AUDIT, after, wanted)

    async def trim(self) -> int:
        """Deletes records that were kept long enough; returns how many."""
        return len(await self._store.records.expire(AUDIT, self._store.clock.now()))
