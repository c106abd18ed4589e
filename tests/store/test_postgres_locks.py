"""An open transaction of the application holds up only those who need what it holds."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from flowfabric.core.base.errors import Locked
from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.engine.execution.inbox import write_options
from flowfabric.store import foreign
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from flowfabric.store.queries import InboxEntry
from tests.kit.lab import W1, Lab


@pytest.fixture
async def lab(database: str) -> AsyncIterator[Lab]:
    clock = ManualClock()
    lab = await Lab.open(await open_store(database, clock=clock), clock)
    yield lab
    await lab.engine.close()


@pytest.fixture
async def application(database: str, lab: Lab) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the application with a transaction open; rolled back at the end."""
    connection = await asyncpg.connect(database)
    transaction = connection.transaction()
    await transaction.start()
    yield connection
    await transaction.rollback()
    await connection.close()


def inbox_entry(lab: Lab) -> InboxEntry:
    now = lab.clock.now()
    options = write_options(Submission(kind="job"))
    return InboxEntry(new_uuid7(now, 1), now, "job", "default", "default", options, b"{}")


async def test_a_key_in_an_open_transaction_holds_up_only_that_key(
    lab: Lab, application: asyncpg.Connection
) -> None:
    until = Millis(lab.clock.now() + 60_000)
    await foreign.put_in_inbox(application, inbox_entry(lab), "order-7", until)
    submit = lab.engine.executions.submit
    answers = await asyncio.gather(
        submit(Submission(kind="job")),
        submit(Submission(kind="job", key="order-7")),
        submit(Submission(kind="job", key="order-8")),
        submit(Submission(kind="job")),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [Submitted, Locked, Submitted, Submitted]
    assert len(await lab.claim(limit=10)) == 3


async def test_neighbours_do_not_wait_for_a_key_in_an_open_transaction(
    lab: Lab, application: asyncpg.Connection
) -> None:
    """They have their answers while the one in question still waits for its own."""
    until = Millis(lab.clock.now() + 60_000)
    await foreign.put_in_inbox(application, inbox_entry(lab), "order-7", until)
    submit = lab.engine.executions.submit
    await submit(Submission(kind="job"))
    keys = [None] * 30 + ["order-7"] + [f"order-{number}" for number in range(100, 130)]
    tasks = [asyncio.create_task(submit(Submission(kind="job", key=key))) for key in keys]
    locked = tasks.pop(30)
    await asyncio.gather(*tasks)
    later = await submit(Submission(kind="job"))
    assert isinstance(later, Submitted)
    assert not locked.done()
    with pytest.raises(Locked):
        await locked


async def test_renewals_do_not_wait_for_a_lease_in_an_open_transaction(
    lab: Lab, application: asyncpg.Connection
) -> None:
    for _ in range(3):
        await lab.submit()
    held = await lab.claim(W1, limit=3)
    lab.clock.advance(1000)
    lock = "select 1 from flowfabric.lease where id = $1 for update"
    await application.execute(lock, held[1].uuid)
    answers = [asyncio.create_task(lab.engine.claims.renew(claim)) for claim in held]
    locked = answers.pop(1)
    renewed = await asyncio.gather(*answers)
    assert not locked.done()
    assert all(answer.expires_at == held[0].expires_at + 1000 for answer in renewed)
    with pytest.raises(Locked):
        await locked


async def test_an_ending_in_an_open_transaction_holds_up_only_that_run(
    lab: Lab, application: asyncpg.Connection
) -> None:
    await lab.submit()
    await lab.submit()
    ending, other = await lab.claim(W1, limit=2)
    written = foreign.TransactionEnding(
        ending.uuid,
        ending.lease.id,
        ending.epoch,
        ending.snapshot.head.version,
        lab.clock.now(),
        b"1",
        None,
    )
    assert await foreign.complete(application, written)
    answers = await asyncio.gather(
        lab.engine.executions.cancel(ending.id, reason="impatient"),
        lab.engine.attempts.hand_back(other),
        return_exceptions=True,
    )
    assert isinstance(answers[0], Locked)
    assert not isinstance(answers[1], BaseException)
    assert await lab.state(other.id) == "waiting"
