"""Reads of one execution each, by many callers at the same time, share statements."""

import asyncio
from collections.abc import Sequence
from typing import cast
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.submission import Submission, create
from flowfabric.engine.commit.post_commit import PostCommit
from flowfabric.engine.execution.inbox import LOOKS, Inbox
from flowfabric.engine.limit.known import KnownLimits
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.queries import InboxEntry


def fresh(number: int) -> Snapshot:
    now = ManualClock().now()
    return create(Submission(kind="job"), new_uuid7(now, number), now).snapshot


class Rows:
    """Counts what is loaded; a load waits while `gate` is closed."""

    is_server = True

    def __init__(self, *snapshots: Snapshot) -> None:
        self.rows = {snapshot.execution.uuid: snapshot for snapshot in snapshots}
        self.loads: list[list[UUID]] = []
        self.unreadable: set[UUID] = set()
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        self.loads.append(list(uuids))
        self.asked.set()
        found = {uuid: self.rows[uuid] for uuid in uuids if uuid in self.rows}
        await self.gate.wait()
        if self.unreadable.intersection(uuids):
            raise Corruption("no document")
        return found

    async def inbox(self, uuids: Sequence[UUID] | None, limit: int) -> list[InboxEntry]:
        """Nothing was submitted by the application's own transactions."""
        return []


def inbox_of(rows: Rows) -> Inbox:
    store = cast("Store", rows)
    return Inbox(store, KnownLimits(store), cast("PostCommit", None), 1)


async def test_callers_that_ask_at_the_same_time_share_a_statement() -> None:
    snapshots = [fresh(number) for number in range(20)]
    rows = Rows(*snapshots)
    uuids = [snapshot.execution.uuid for snapshot in snapshots]
    found = await asyncio.gather(*map(inbox_of(rows).find, [*uuids, uuids[0]]))
    assert found == [*snapshots, snapshots[0]]
    assert rows.loads == [uuids]


async def test_a_statement_reads_only_so_many_because_results_may_be_large() -> None:
    snapshots = [fresh(number) for number in range(2 * LOOKS)]
    rows = Rows(*snapshots)
    inbox = inbox_of(rows)
    found = await asyncio.gather(*(inbox.find(each.execution.uuid) for each in snapshots))
    assert found == snapshots
    assert [len(uuids) for uuids in rows.loads] == [LOOKS, LOOKS]


async def test_who_asks_after_a_write_sees_it_though_a_read_is_under_way() -> None:
    snapshot = fresh(1)
    rows = Rows(snapshot)
    rows.gate.clear()
    inbox = inbox_of(rows)
    early = asyncio.ensure_future(inbox.find(snapshot.execution.uuid))
    await rows.asked.wait()
    written = rows.rows[snapshot.execution.uuid] = snapshot.to(snapshot.state)
    late = asyncio.ensure_future(inbox.find(snapshot.execution.uuid))
    await asyncio.sleep(0)
    rows.gate.set()
    assert (await early, await late) == (snapshot, written)


async def test_one_that_cannot_be_read_fails_its_caller_alone() -> None:
    good, bad = fresh(1), fresh(2)
    rows = Rows(good, bad)
    rows.unreadable = {bad.execution.uuid}
    inbox = inbox_of(rows)
    found = await asyncio.gather(
        *(inbox.find(each.execution.uuid) for each in (good, bad)), return_exceptions=True
    )
    assert found[0] == good
    assert isinstance(found[1], Corruption)


async def test_one_that_does_not_exist_is_none_for_its_caller_alone() -> None:
    good, gone = fresh(1), fresh(2)
    inbox = inbox_of(Rows(good))
    found = await asyncio.gather(*(inbox.find(each.execution.uuid) for each in (good, gone)))
    assert found == [good, None]


async def test_a_caller_that_gives_up_leaves_the_others_alone() -> None:
    good, other = fresh(1), fresh(2)
    rows = Rows(good, other)
    rows.gate.clear()
    inbox = inbox_of(rows)
    gone, stays = (asyncio.ensure_future(inbox.find(e.execution.uuid)) for e in (good, other))
    await rows.asked.wait()
    gone.cancel()
    rows.gate.set()
    assert await stays == other
    with pytest.raises(asyncio.CancelledError):
        await gone
    await inbox.drain()
