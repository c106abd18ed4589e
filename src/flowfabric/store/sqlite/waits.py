"""What executions wait for: waitpoints, signals and dedup records."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from flowfabric.core.base.pages import in_pages
from flowfabric.core.execution.change import Change
from flowfabric.core.wait.model import Loaded, Needs, ReceivedSignal
from flowfabric.store.contract import MAX_BATCH
from flowfabric.store.readable import readable
from flowfabric.store.rows.wait import (
    DEDUP,
    EDGE,
    FEW,
    INCOMING,
    SIGNAL,
    WAITPOINT,
    NeedsLoader,
    read_signal,
    written_by,
)
from flowfabric.store.sqlite.session import SqliteSession, plain, read_uuid


def write(session: SqliteSession, changes: Iterable[tuple[UUID, Change[object]]]) -> None:
    """Inside the transaction that writes the changes themselves."""
    rows = written_by(changes)
    session.insert("new_waitpoints", plain(rows.waitpoints))
    session.insert("new_signals", plain(rows.signals))
    counted = plain(rows.counted)
    session.each("counted_signals", [(counted_for, *key) for *key, counted_for in counted])
    session.insert("new_dedup_records", plain(rows.dedup))


def load_needs(session: SqliteSession, needs: Sequence[Needs]) -> list[Loaded]:
    loader = NeedsLoader(needs)
    wanted = plain(
        [
            *((WAITPOINT, *key, 0) for key in loader.waitpoints),
            *((DEDUP, *key, 0) for key in loader.dedup),
            *((SIGNAL if most is None else FEW, *key) for *key, most in loader.buffers),
            *((EDGE, *key, 0) for key in loader.edges),
            *((INCOMING, *key, None, 0) for key in loader.incoming),
        ]
    )
    for page in in_pages(wanted, MAX_BATCH):
        for row in session.given("needed", page):
            loader.add(row, read_uuid)
    for waitpoint, id in owners(session, loader.unique):
        loader.add_owner(waitpoint, id)
    return loader.loaded()


def owners(session: SqliteSession, waitpoints: Sequence[UUID]) -> list[tuple[UUID, UUID]]:
    """Those of these waitpoints that attempts have made, each with its execution."""
    found: list[tuple[UUID, UUID]] = []
    for page in in_pages(waitpoints, MAX_BATCH):
        keys = [waitpoint.bytes for waitpoint in page]
        rows = session.among("waitpoint_owners", keys)
        found += [(read_uuid(waitpoint), read_uuid(id)) for waitpoint, id in rows]
    return found


def signals(
    session: SqliteSession,
    uuid: UUID,
    *,
    suspension: UUID | None = None,
    after: int = 0,
    limit: int = 1000,
) -> list[ReceivedSignal]:
    values = {"id": uuid.bytes, "after": after, "limit": limit}
    if suspension is None:
        found = session.rows("signals_of", values)
    else:
        found = session.rows("signals_counted", {**values, "suspension": suspension.bytes})
    return readable(
        found,
        lambda row: read_signal(row[0], None if row[1] is None else read_uuid(row[1])),
        "a signal of execution",
        lambda row: uuid,
    )
