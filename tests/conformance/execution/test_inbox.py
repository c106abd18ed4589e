"""Submissions and endings inside the application's own transaction, whatever library it uses."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, NotFound
from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.base.text import MAX_PAYLOAD
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Outcome, Snapshot
from flowfabric.core.execution.submission import Duplicate, Submission
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.execution.inbox import write_options
from flowfabric.store import foreign
from flowfabric.store.queries import InboxEntry, Query
from tests.kit.connections import libraries, rolled_back
from tests.kit.lab import Lab


def inbox_entry(lab: Lab, number: int = 1, **members: Any) -> InboxEntry:
    submission = Submission(kind="job", **members)
    now = lab.clock.now()
    return InboxEntry(
        new_uuid7(now, number),
        now,
        "job",
        "default",
        submission.lane,
        write_options(submission),
        b'{"n":1}',
    )


def id_of(found: tuple[UUID, str]) -> ExecutionId:
    return ExecutionId.solo(found[1], found[0])


async def test_a_run_exists_once_the_transaction_commits(lab: Lab, store_url: str) -> None:
    for number, connect in enumerate(libraries(store_url), 1):
        item = inbox_entry(lab, number, priority=number)
        async with connect() as connection:
            found = await foreign.put_in_inbox(connection, item, None, Millis(0))
        assert await lab.state(id_of(found)) == "waiting"
        claim = await lab.claim_one()
        assert claim.id == id_of(found)
        assert claim.payload == b'{"n":1}'
        await lab.complete(claim)


async def test_a_run_does_not_exist_when_the_transaction_is_rolled_back(
    lab: Lab, store_url: str
) -> None:
    for number, connect in enumerate(libraries(store_url), 1):
        item = inbox_entry(lab, number)
        found = await rolled_back(
            connect,
            lambda connection, item=item, key=f"k{number}": foreign.put_in_inbox(  # type: ignore[misc]
                connection, item, key, lab.clock.now()
            ),
        )
        assert await lab.engine.views.state(id_of(found)) is None
        assert await lab.claim() == []


async def test_a_key_names_one_run_whichever_way_it_was_submitted(lab: Lab, store_url: str) -> None:
    until = Millis(lab.clock.now() + 1000)
    for number, connect in enumerate(libraries(store_url), 1):
        key = f"order-{number}"
        async with connect() as connection:
            first = await foreign.put_in_inbox(
                connection, inbox_entry(lab, 10 * number), key, until
            )
        async with connect() as connection:
            again = await foreign.put_in_inbox(
                connection, inbox_entry(lab, 10 * number + 1), key, until
            )
        outcome = await lab.engine.executions.submit(Submission(kind="job", key=key))
        assert id_of(again) == id_of(first)
        assert outcome == Duplicate(id_of(first))
    known = await lab.engine.executions.submit(Submission(kind="job", key="straight", lane="l2"))
    async with libraries(store_url)[0]() as connection:
        found = await foreign.put_in_inbox(connection, inbox_entry(lab, 999), "straight", until)
    assert id_of(found) == known.id


async def test_the_door_decides_delays_and_priorities_like_everywhere(
    lab: Lab, store_url: str
) -> None:
    later = Millis(lab.clock.now() + 5000)
    async with libraries(store_url)[0]() as connection:
        item = inbox_entry(lab, delay_until=later, priority=20_000, tags={"app.tenant": "acme"})
        found = await foreign.put_in_inbox(connection, item, None, Millis(0))
    assert await lab.engine.inbox.admit() == 1
    description = await lab.engine.views.describe(id_of(found))
    assert description is not None
    assert description.state == "delayed"
    assert description.priority == 9000
    assert description.tags == {"app.tenant": "acme"}
    await lab.pass_time(5000)
    assert (await lab.claim_one()).id == id_of(found)


async def test_what_the_rules_refuse_ends_as_failed_with_the_reason(
    lab: Lab, store_url: str
) -> None:
    item = inbox_entry(lab)
    bad = InboxEntry(
        item.uuid, item.at, "job", "default", "default", b'{"tags":{"BAD":"x"}}', b"{}"
    )
    async with libraries(store_url)[0]() as connection:
        found = await foreign.put_in_inbox(connection, bad, None, Millis(0))
    await lab.engine.inbox.admit()
    assert await lab.claim() == []
    await lab.pass_time(0)
    ending = await lab.engine.views.wait(id_of(found), 5)
    assert ending.outcome is Outcome.FAILED
    assert ending.failure is not None
    assert "invalid_tag_key" in ending.failure.message


async def test_two_engines_admit_each_inbox_entry_once(
    lab: Lab, second_lab: Lab, store_url: str
) -> None:
    async with libraries(store_url)[0]() as connection:
        for number in range(20):
            await foreign.put_in_inbox(connection, inbox_entry(lab, number), None, Millis(0))
    admitted = await lab.engine.inbox.admit() + await second_lab.engine.inbox.admit()
    assert admitted == 20
    assert len(await lab.claim(limit=100)) == 20


async def test_an_ending_in_the_applications_transaction_counts_if_it_commits(
    lab: Lab, store_url: str
) -> None:
    for connect in libraries(store_url):
        claim = await lab.running(deadline_at=Millis(lab.clock.now() + 60_000))
        ending = foreign.TransactionEnding(
            claim.uuid,
            claim.lease.id,
            claim.epoch,
            claim.snapshot.head.version,
            lab.clock.now(),
            b'"done"',
            None,
        )
        assert await rolled_back(
            connect,
            lambda connection, ending=ending: foreign.complete(connection, ending),  # type: ignore[misc]
        )
        assert await lab.state(claim.id) == "active"
        async with connect() as connection:
            assert await foreign.complete(connection, ending)
        assert await lab.engine.views.result(claim.id) == b'"done"'
        assert await lab.engine.attempts.complete(claim, b"late") is not None
        assert await lab.engine.views.result(claim.id) == b'"done"'
        completions = [
            event for event in await lab.events(claim.id) if event.completion is not None
        ]
        assert len(completions) == 1


async def test_a_stale_worker_cannot_end_anything_in_a_transaction(
    lab: Lab, store_url: str
) -> None:
    for connect in libraries(store_url):
        stale = await lab.running()
        await lab.lose(stale)
        fresh = await lab.claim_one()
        ending = foreign.TransactionEnding(
            stale.uuid,
            stale.lease.id,
            stale.epoch,
            stale.snapshot.head.version,
            lab.clock.now(),
            b'"stale"',
            None,
        )
        async with connect() as connection:
            assert not await foreign.complete(connection, ending)
        assert await lab.state(stale.id) == "active"
        await lab.complete(fresh, b'"fresh"')
        assert await lab.engine.views.result(stale.id) == b'"fresh"'


async def test_a_foreign_object_is_refused() -> None:
    with pytest.raises(Invalid, match="not a connection"):
        foreign.Foreign(object())


async def test_an_unknown_id_is_still_unknown(lab: Lab) -> None:
    id = ExecutionId.solo("default", new_uuid7(lab.clock.now(), 5))
    with pytest.raises(NotFound):
        await lab.engine.executions.cancel(id, reason="x")


async def test_a_run_that_another_process_lets_in_meanwhile_is_found(
    lab: Lab, second_lab: Lab, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with libraries(store_url)[0]() as connection:
        found = await foreign.put_in_inbox(connection, inbox_entry(lab), None, Millis(0))
    look = lab.engine.store.load

    async def look_and_wait(uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        seen = await look(uuids)
        await second_lab.engine.inbox.admit()
        return seen

    monkeypatch.setattr(lab.engine.store, "load", look_and_wait)
    assert await lab.state(id_of(found)) == "waiting"


async def test_one_entry_too_large_keeps_no_other_in_the_inbox(lab: Lab, store_url: str) -> None:
    large = replace(inbox_entry(lab, 1), payload=b"x" * (MAX_PAYLOAD + 1))
    connect = libraries(store_url)[0]
    async with connect() as connection:
        refused = await foreign.put_in_inbox(connection, large, None, Millis(0))
        good = await foreign.put_in_inbox(connection, inbox_entry(lab, 2), None, Millis(0))
    assert await lab.engine.inbox.admit() == 2
    await lab.engine.sweep.once()
    assert (await lab.claim_one()).id == id_of(good)
    assert await lab.state(id_of(refused)) == "failed"


async def test_an_inbox_entry_whose_id_was_submitted_meanwhile_is_admitted_no_second_time(
    lab: Lab, store_url: str
) -> None:
    async with libraries(store_url)[0]() as connection:
        found = await foreign.put_in_inbox(connection, inbox_entry(lab, 1), None, Millis(0))
        await foreign.put_in_inbox(connection, inbox_entry(lab, 2), None, Millis(0))
    await lab.submit(id=id_of(found))
    await lab.engine.inbox.admit()
    assert len(await lab.claim(limit=10)) == 2


async def test_the_key_of_a_refused_inbox_entry_goes_with_its_run(lab: Lab, store_url: str) -> None:
    item = replace(inbox_entry(lab), options=b'{"key":"k","nonsense":1}')
    until = Millis(lab.clock.now() + 30 * 86_400_000)
    async with libraries(store_url)[0]() as connection:
        found = await foreign.put_in_inbox(connection, item, "k", until)
    await lab.engine.inbox.admit()
    await lab.engine.sweep.once()
    assert await lab.state(id_of(found)) == "failed"
    lab.clock.advance(7 * 86_400_000)
    assert await lab.engine.sweep.trim() == 1
    assert await lab.submit(key="k") != id_of(found)


async def test_runs_show_before_any_worker_came(lab: Lab, store_url: str) -> None:
    """Each of these is the first to look after the commit."""
    engine = lab.engine
    await engine.quotas.define(Quota(name="q", concurrency=1))
    looks: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: listed(lab),
        lambda: counted(lab),
        lambda: engine.lanes.list(),
        lambda: engine.explain.lane("fresh"),
        lambda: engine.quotas.status("q"),
        lambda: engine.grants.find_and_issue("w9", lane="fresh"),
    )
    for number, look in enumerate(looks, 1):
        policy = {"quotas": [{"quota": "q"}]} if number == 5 else None
        item = inbox_entry(lab, number, lane="fresh", policy=policy)
        async with libraries(store_url)[0]() as connection:
            await foreign.put_in_inbox(connection, item, None, Millis(0))
        assert await look()
        assert await engine.store.inbox(None, 10) == []
    assert await listed(lab) == len(looks)


async def listed(lab: Lab) -> int:
    return len((await lab.engine.views.list(Query(lane="fresh"))).items)


async def counted(lab: Lab) -> int:
    return (await lab.engine.views.counts(lane="fresh")).by_state["waiting"]


async def test_a_new_run_is_explained_together_with_those_before_it(
    lab: Lab, store_url: str
) -> None:
    async with libraries(store_url)[0]() as connection:
        await foreign.put_in_inbox(connection, inbox_entry(lab, 1, priority=9), None, Millis(0))
        last = await foreign.put_in_inbox(connection, inbox_entry(lab, 2), None, Millis(0))
    assert (await lab.engine.explain(id_of(last))).reasons
    assert await lab.engine.store.inbox(None, 10) == []
