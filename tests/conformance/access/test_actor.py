"""Who did it: events and audit records carry the identity of the request that caused them."""

import asyncio
import logging
from typing import Any

import pytest

from flowfabric.core.access.audit import AUDIT_KEPT
from flowfabric.core.base.errors import FlowTerminal, Invalid, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, Family, StoredEvent
from flowfabric.core.wait.condition.model import Count, CountKind
from flowfabric.engine.access.actor import acting_as, current_actor
from tests.kit.flow_lab import declare
from tests.kit.lab import Lab
from tests.kit.signalling import deliver, waiting

A, B = "aa" * 32, "bb" * 32


async def last(lab: Lab, id: str) -> StoredEvent:
    return (await lab.events(id))[-1]


def by(event: StoredEvent) -> object:
    return (event.detail or {}).get("by")


# -- events


@pytest.mark.inside
async def test_what_an_operator_does_to_a_run_carries_the_name(lab: Lab) -> None:
    executions, id = lab.engine.executions, await lab.submit()
    with acting_as("ops"):
        await executions.change_priority(id, 7)
        await executions.cancel(id, reason="enough")
        await executions.replay(id)
    events = await lab.events(id)
    assert [(event.kind, by(event)) for event in events] == [
        (EventKind.PRIORITY_CHANGED, "ops"),
        (EventKind.CANCELLED, "ops"),
        (EventKind.REPLAYED, "ops"),
    ]
    assert events[0].detail == {"old_priority": 0, "new_priority": 7, "by": "ops"}
    assert events[1].reason == "enough"


async def test_without_an_identity_nothing_is_added(lab: Lab) -> None:
    id = await lab.submit()
    await lab.engine.executions.cancel(id, reason="enough")
    assert (await last(lab, id)).detail == {"reason": "enough"}


@pytest.mark.inside
async def test_each_of_many_requests_has_its_own_name(lab: Lab) -> None:
    """They share one commit; the second one of a run is decided on the first one's result."""
    ids = [await lab.submit() for _ in range(10)]

    async def request(id: str, name: str, priority: int) -> None:
        with acting_as(name):
            await lab.engine.executions.change_priority(id, priority)

    await asyncio.gather(
        *(request(id, f"first-{n}", 1) for n, id in enumerate(ids)),
        *(request(id, f"second-{n}", 2) for n, id in enumerate(ids)),
        *(lab.engine.executions.change_priority(id, 3) for id in ids),
    )
    for number, id in enumerate(ids):
        assert [by(event) for event in await lab.events(id)] == [
            f"first-{number}",
            f"second-{number}",
            None,
        ]


@pytest.mark.inside
async def test_who_signals_and_who_revokes_a_lease(lab: Lab) -> None:
    claim, answer = await waiting(lab, Count(9, CountKind.SIGNALS, ("go",)))
    with acting_as("bot"):
        await deliver(lab, claim.id, answer.primary)
    assert by(await last(lab, claim.id)) == "bot"
    running = await lab.running()
    with acting_as("ops"):
        await lab.engine.claims.revoke(running.id, reason="stuck")
    revoked = await last(lab, running.id)
    assert (revoked.kind, by(revoked)) == (EventKind.LEASE_REVOKED, "ops")


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.inside
async def test_the_cancel_of_a_flow_carries_the_name(lab: Lab, wait: bool) -> None:
    """Also in the events of members that are cancelled after the request."""
    drawn = await declare(lab, "a", "b")
    with acting_as("ops"):
        await lab.engine.flows.cancel(drawn.id, reason="enough", wait=wait)
    await lab.engine.sweep.once()
    (asked,) = (await lab.engine.events.read(family=Family.OPERATOR)).events
    assert (asked.kind, by(asked)) == (EventKind.FLOW_CANCEL_REQUESTED, "ops")
    ended = (await lab.engine.events.read(family=Family.COMPLETION)).events
    assert [(event.kind, by(event)) for event in ended] == [(EventKind.CANCELLED, "ops")] * 2


@pytest.mark.inside
async def test_what_follows_from_a_graph_was_done_by_no_caller(lab: Lab) -> None:
    """A member is skipped because of a cancel: that is the flow's rule, not the operator's act."""
    drawn = await declare(lab, "a", "b", "a>b")
    with acting_as("ops"):
        await lab.engine.executions.cancel(drawn["a"], reason="enough")
        with pytest.raises(FlowTerminal):  # the same request has resolved it
            await lab.engine.flows.cancel(drawn.id)
    ended = (await lab.engine.events.read(family=Family.COMPLETION)).events
    assert {event.id: by(event) for event in ended} == {drawn["a"]: "ops", drawn["b"]: None}


@pytest.mark.inside
async def test_an_authenticated_name_counts_more_than_a_given_one(lab: Lab) -> None:
    with acting_as("ops"):
        paused = await lab.engine.lanes.pause("default", by="somebody else")
    assert paused.by == "ops"
    assert (await lab.engine.lanes.resume("default", by="ada")).by == "ada"


async def test_work_behind_a_request_carries_no_name(lab: Lab) -> None:
    """Tasks that a request starts go on for others: the next caller is not taken for the first."""
    claim, first = await lab.running(), await lab.submit()

    async def request() -> None:
        with acting_as("ops"):
            await lab.engine.executions.cancel(first, reason="enough")
            lab.engine.sweep.start()

    await asyncio.create_task(request())
    await lab.engine.sweep.stop()
    await lab.lose(claim)
    assert by(await last(lab, claim.id)) is None
    assert current_actor() is None


# -- audit records


@pytest.mark.inside
async def test_keys_are_recorded_without_their_secrets(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    keys = lab.engine.keys
    with caplog.at_level(logging.INFO, "flowfabric.audit"):
        await keys.seed("a", A, by="ada")
        await keys.seed("a", A, by="ada")
        with acting_as("ops"):
            await keys.rotate("b", B, grace=5, by="ada")
            await keys.rotate("b", B, grace=5)
    found = await lab.engine.audit.list()
    assert [(act.action, act.subject, act.by, act.detail) for act in found] == [
        ("key.seeded", "a", "ada", {}),
        ("key.rotated", "b", "ops", {"previous": "a", "grace": 5}),
    ]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[1].startswith("key.rotated b by ops")
    assert not any(secret in str(found) + "".join(lines) for secret in (A, B))


async def test_a_key_that_the_engine_makes_itself_is_no_act_of_an_operator(lab: Lab) -> None:
    await waiting(lab)
    assert await lab.engine.audit.list() == []


async def test_records_are_listed_in_the_order_of_time(lab: Lab, second_lab: Lab) -> None:
    for number, each in enumerate((lab, second_lab, lab)):
        await each.engine.audit.write(
            "test.done", f"thing {number}", by="ada", detail={"number": number}
        )
        lab.clock.advance(1_000)
    audit, now = lab.engine.audit, lab.clock.now()
    found = await audit.list()
    assert [act.subject for act in found] == ["thing 0", "thing 1", "thing 2"]
    assert await audit.list(limit=2) == found[:2]
    assert await audit.list(after=found[1].id) == found[2:]
    assert await audit.list(since=Millis(now - 2_000)) == found[1:]
    assert await audit.list(since=Millis(now - 2_001)) == found[1:]
    assert await audit.list(limit=0) == []
    with pytest.raises(Invalid):
        await audit.list(since=Millis(-1))


@pytest.mark.rules
async def test_a_record_has_to_make_sense(lab: Lab) -> None:
    wrong: list[dict[str, Any]] = [
        {"action": None}, {"action": "a" * 257}, {"subject": 5}, {"subject": "a\0"}, {"by": b"x"},
        {"detail": []}, {"detail": {1: 2}}, {"detail": {"a": object()}},
        {"detail": {"a": "\ud800"}}, {"detail": {"a": "x" * 70_000}},
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises(Invalid):
            await lab.engine.audit.write(**{"action": "test.done", "subject": "a", **each})
    assert await lab.engine.audit.list() == []


async def test_records_are_kept_for_more_than_a_year(lab: Lab) -> None:
    await lab.engine.audit.write("test.done", "old")
    lab.clock.advance(366 * 86_400_000)
    await lab.engine.audit.write("test.done", "new")
    assert await lab.engine.audit.trim() == 0
    lab.clock.advance(AUDIT_KEPT - 366 * 86_400_000)
    assert await lab.engine.audit.trim() == 1
    assert [act.subject for act in await lab.engine.audit.list()] == ["new"]


async def test_an_act_that_cannot_be_recorded_is_in_the_log_and_not_acknowledged(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await lab.engine.tokens.create("ci", ["read"])

    async def broken(*args: object) -> None:
        raise Unavailable("gone")

    monkeypatch.setattr("flowfabric.engine.access.audit.change", broken)
    with caplog.at_level(logging.INFO, "flowfabric.audit"), pytest.raises(Unavailable):
        await lab.engine.tokens.revoke("ci", by="ada")
    assert [record.getMessage().strip() for record in caplog.records] == ["token.revoked ci by ada"]
    assert (await lab.engine.tokens.get("ci")).revoked_by == "ada"
