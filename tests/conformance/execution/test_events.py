"""Events: one row per transition, read after a cursor.

E-T335, E-T337, E-T339, INV-5, INV-24; §3.0.2.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import FlowFabricError, Invalid, InvalidTag
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind, Family, StoredEvent
from flowfabric.core.execution.event_views import CompletionPart, view
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Outcome, Source
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from tests.kit import situations
from tests.kit.lab import W1, W2, Lab
from tests.kit.situations import DELAY, suspend, take


async def everything(lab: Lab, **filters: Any) -> list[StoredEvent]:
    return list((await lab.engine.events.read(**filters)).events)


async def end_one(lab: Lab, **members: Any) -> ExecutionId:
    return await situations.cancelled_unrun(lab, **members)


# -- reading


async def test_an_event_says_who_when_where_and_what(lab: Lab) -> None:
    """E-T335, §3.0.2"""
    id = await lab.submit(namespace="shop", lane="mail")
    claimed_at = lab.clock.advance(3)
    claim = await lab.claim_one()
    ended_at = lab.clock.advance(4)
    await lab.complete(claim)
    acquired, completed = await lab.events(id)
    assert (acquired.kind, acquired.lease, acquired.at) == (
        EventKind.CLAIMED,
        "acquired",
        claimed_at,
    )
    for event in (acquired, completed):
        assert (event.id, event.namespace, event.lane) == (id, "shop", "mail")
        assert (event.epoch, event.attempt, event.worker) == (1, 0, W1)
    assert (completed.lease, completed.completion) == ("released", Outcome.SUCCESS)
    assert (completed.at, completed.reason) == (ended_at, "completed")
    assert acquired.seq < completed.seq


async def test_a_submission_is_no_transition(lab: Lab) -> None:
    """Design §6: creation writes no event row"""
    await situations.waiting(lab)
    await situations.delayed(lab)
    assert await everything(lab) == []


async def test_a_cursor_continues_exactly_where_it_was(lab: Lab) -> None:
    """E-T335: the last one seen, or the cursor of the page"""
    for _ in range(7):
        await end_one(lab)
    whole = await everything(lab)
    assert [event.seq for event in whole] == sorted({event.seq for event in whole})
    for limit in (1, 2, 3, 100):
        found: list[StoredEvent] = []
        after = 0
        while (page := await lab.engine.events.read(after=after, limit=limit)).events:
            assert len(page.events) <= limit
            found += page.events
            after = page.cursor
        assert found == whole
    for index, event in enumerate(whole):
        assert await everything(lab, after=event.seq) == whole[index + 1 :]


async def test_a_cursor_moves_past_what_the_filter_leaves_out(lab: Lab) -> None:
    """Otherwise a reader of something rare would look at the rest again and again"""
    await end_one(lab, namespace="common")
    tail = await lab.engine.events.tail()
    page = await lab.engine.events.read(namespace="rare")
    assert (page.events, page.cursor) == ((), tail)
    rare = await end_one(lab, namespace="rare")
    page = await lab.engine.events.read(namespace="rare", after=page.cursor)
    assert [event.id for event in page.events] == [rare]


async def test_the_tail_is_where_only_the_future_is_seen(lab: Lab) -> None:
    assert await lab.engine.events.tail() == 0
    await end_one(lab)
    tail = await lab.engine.events.tail()
    assert await everything(lab, after=tail) == []
    id = await end_one(lab)
    assert [event.id for event in await everything(lab, after=tail)] == [id]


async def test_a_cursor_beyond_the_end_sees_nothing_and_stays(lab: Lab) -> None:
    await end_one(lab)
    page = await lab.engine.events.read(after=10**9)
    assert (page.events, page.cursor) == ((), 10**9)


@pytest.mark.rules
@pytest.mark.parametrize("wrong", [-1, "1", 1.5, True, None, 2**63])
async def test_what_is_no_cursor_is_refused(lab: Lab, wrong: int) -> None:
    with pytest.raises(Invalid):
        await lab.engine.events.read(after=wrong)


@pytest.mark.rules
async def test_filters_that_make_no_sense_are_refused(lab: Lab) -> None:
    with pytest.raises(InvalidTag):
        await lab.engine.events.read(tag=("nodot", "v"))
    with pytest.raises(Invalid):
        await lab.engine.events.read(tag=("app.x", "a\0b"))
    with pytest.raises(Invalid):
        await lab.engine.events.read(namespace="a\0b")
    with pytest.raises(Invalid):
        await lab.engine.events.read(execution="nonsense")
    for family in ("nonsense", 7):
        with pytest.raises(Invalid):
            await lab.engine.events.read(family=family)  # type: ignore[arg-type]
    with pytest.raises(InvalidTag):
        lab.engine.events.subscribe(tag=("nodot", "v"))


async def test_an_execution_in_the_wrong_partition_has_no_events(lab: Lab) -> None:
    id = await end_one(lab)
    elsewhere = ExecutionId.of((id.partition_index + 1) % 256, id.uuid)
    assert await everything(lab, execution=elsewhere) == []
    assert len(await everything(lab, execution=id)) == 1


async def test_a_tag_and_a_namespace_let_through_only_their_own(lab: Lab) -> None:
    """E-T337, E-T339, FLAW-19: an execution without the tag never matches a filter on it"""
    tag = "cairn.instance_id"
    mine = await end_one(lab, tags={tag: "a"}, namespace="n1")
    other = await end_one(lab, tags={tag: "b"}, namespace="n1")
    bare = await end_one(lab, namespace="n2")
    for filters, expected in (
        ({"tag": (tag, "a")}, [mine]),
        ({"tag": (tag, "b")}, [other]),
        ({"tag": (tag, "c")}, []),
        ({"tag": ("app.none", "a")}, []),
        ({"namespace": "n1"}, [mine, other]),
        ({"namespace": "n2"}, [bare]),
        ({"namespace": "n3"}, []),
        ({"namespace": "n1", "tag": (tag, "b")}, [other]),
        ({"namespace": "n2", "tag": (tag, "b")}, []),
        ({"execution": mine}, [mine]),
        ({"execution": mine, "namespace": "n2"}, []),
        ({}, [mine, other, bare]),
    ):
        for family in (Family.COMPLETION, None):
            found = await everything(lab, family=family, **filters)
            assert [event.id for event in found] == expected, filters


async def test_families_are_projections_of_one_table(lab: Lab) -> None:
    """§3.0.2: each transition is told once and belongs where it says something"""
    claim = await lab.running()
    await lab.complete(claim)
    await lab.engine.executions.replay(claim.id)
    await lab.engine.executions.change_priority(claim.id, 5)
    await lab.engine.executions.cancel(claim.id, reason="r")
    kinds = {
        family: [event.kind for event in await everything(lab, family=family)]
        for family in (*Family, None)
    }
    assert kinds == {
        None: [
            EventKind.CLAIMED,
            EventKind.COMPLETED,
            EventKind.REPLAYED,
            EventKind.PRIORITY_CHANGED,
            EventKind.CANCELLED,
        ],
        Family.LEASE: [EventKind.CLAIMED, EventKind.COMPLETED],
        Family.COMPLETION: [EventKind.COMPLETED, EventKind.CANCELLED],
        Family.OPERATOR: [EventKind.REPLAYED, EventKind.PRIORITY_CHANGED],
        Family.SIGNAL: [],
        Family.WORKER: [],
    }


async def test_pages_of_a_family_are_full_of_it(lab: Lab) -> None:
    """Also where most events belong to another one"""
    for _ in range(10):
        await lab.complete(await lab.running())
    await end_one(lab)
    found: list[StoredEvent] = []
    after = 0
    while True:
        page = await lab.engine.events.read(after=after, limit=3, family=Family.LEASE)
        found += page.events
        if page.cursor == after:
            break
        after = page.cursor
    assert len(found) == 20


# -- one event per transition


async def _complete(lab: Lab, claim: Claim) -> None:
    await lab.complete(claim)


async def _complete_by_handle(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.complete(lab.engine.attempts.seal(claim))


async def _complete_by_operator(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.complete(FencedExecution(claim.id, Owner(source=Source.OPERATOR)))


async def _complete_repeated(lab: Lab, claim: Claim) -> None:
    for _ in range(3):
        await lab.complete(claim)


async def _fail(lab: Lab, claim: Claim) -> None:
    await lab.fail(claim, "permanent")


async def _fail_repeated(lab: Lab, claim: Claim) -> None:
    for _ in range(3):
        await lab.fail(claim, "permanent")


async def _cancel(lab: Lab, claim: Claim) -> None:
    await lab.engine.executions.cancel(claim.id, reason="why")


async def _cancel_owned(lab: Lab, claim: Claim) -> None:
    await lab.engine.attempts.cancel(claim, "why")


async def _cancel_suspended(lab: Lab, claim: Claim) -> None:
    await suspend(lab, claim)
    await lab.engine.executions.cancel(claim.id, reason="why")


async def _cancel_lost(lab: Lab, claim: Claim) -> None:
    await lab.lose(claim)
    await lab.engine.executions.cancel(claim.id, reason="why")


async def _deadline(lab: Lab, claim: Claim) -> None:
    await lab.pass_time(1_000_000)


async def _deadline_by_hand(lab: Lab, claim: Claim) -> None:
    lab.clock.advance(1_000_000)
    await lab.engine.executions.expire(claim.id)
    await lab.engine.sweep.once()


async def _over_the_cap(lab: Lab, claim: Claim) -> None:
    await lab.lose(claim)
    await lab.lose(await lab.claim_one())
    assert not await lab.claim()  # who would take over finds the cap


async def _over_the_cap_by_grant(lab: Lab, claim: Claim) -> None:
    await lab.lose(claim)
    await lab.engine.grants.issue_reclaim(claim.id, "w2")
    await lab.engine.grants.reclaim(claim.id, W2, max_reclaims=0)


Path = Callable[[Lab, Claim], Awaitable[None]]
PATHS: dict[str, tuple[Path, Outcome]] = {
    "complete": (_complete, Outcome.SUCCESS),
    "complete by handle": (_complete_by_handle, Outcome.SUCCESS),
    "complete by operator": (_complete_by_operator, Outcome.SUCCESS),
    "complete repeated": (_complete_repeated, Outcome.SUCCESS),
    "fail": (_fail, Outcome.FAILED),
    "fail repeated": (_fail_repeated, Outcome.FAILED),
    "cancel": (_cancel, Outcome.CANCELLED),
    "cancel owned": (_cancel_owned, Outcome.CANCELLED),
    "cancel suspended": (_cancel_suspended, Outcome.CANCELLED),
    "cancel lost": (_cancel_lost, Outcome.CANCELLED),
    "deadline": (_deadline, Outcome.EXPIRED),
    "deadline by hand": (_deadline_by_hand, Outcome.EXPIRED),
    "over the cap": (_over_the_cap, Outcome.FAILED),
    "over the cap by grant": (_over_the_cap_by_grant, Outcome.FAILED),
}


@pytest.mark.parametrize("flagged", [False, True])
async def test_every_ending_is_told_exactly_once(
    lab: Lab, subtests: pytest.Subtests, flagged: bool
) -> None:
    """INV-5, E-X06, E-X11: with and without the short way an end can be written"""
    for name, (path, outcome) in PATHS.items():
        with subtests.test(name):
            policy: dict[str, Any] = {"max_reclaim_count": 1}
            if flagged or name.startswith("deadline"):
                policy["timeout_policy"] = {"execution_deadline_ms": 1_000_000}
            claim = await take(lab, await lab.submit(policy=policy))
            await path(lab, claim)
            completions = await lab.events(claim.id, family=Family.COMPLETION)
            assert [event.completion for event in completions] == [outcome]
            assert (await lab.vector(claim.id)).outcome == outcome.name.lower()
            await lab.pass_time(2_000_000)
            assert await lab.events(claim.id, family=Family.COMPLETION) == completions


async def test_what_does_not_end_is_no_completion(lab: Lab) -> None:
    """INV-5: no completion event without a terminal transition"""
    for name in set(situations.LIVING) - {"replay_ready"}:
        id = await situations.LIVING[name](lab)
        assert not await lab.events(id, family=Family.COMPLETION), name


async def last_lease_event(lab: Lab, id: str) -> tuple[str | None, str | None]:
    *_, event = await lab.events(id, family=Family.LEASE)
    return event.lease, event.reason


async def test_every_way_a_lease_comes_and_goes_has_its_word(lab: Lab) -> None:
    """§3.0.2, §3.19, D-14: the text of an operator is the message of the cancel"""
    attempts, soon = lab.engine.attempts, Millis(lab.clock.now() + DELAY)
    policy = situations.RETRY_AT_ONCE
    seen: dict[str, tuple[str | None, str | None]] = {}
    claim = await take(lab, await lab.submit(policy=policy))
    seen["claim"] = await last_lease_event(lab, claim.id)
    await lab.fail(claim)
    seen["retry"] = await last_lease_event(lab, claim.id)
    claim = await take(lab, claim.id)
    await attempts.delay(claim, soon)
    seen["delay"] = await last_lease_event(lab, claim.id)
    await lab.pass_time(DELAY)
    claim = await lab.claim_one()
    seen["resumed"] = await last_lease_event(lab, claim.id)
    await attempts.hand_back(claim)
    seen["hand back"] = await last_lease_event(lab, claim.id)
    await lab.lose(await lab.claim_one())
    seen["expired"] = await last_lease_event(lab, claim.id)
    claim = await lab.claim_one(W2)
    seen["reclaimed"] = await last_lease_event(lab, claim.id)
    await lab.engine.claims.revoke(claim.id, reason="maintenance")
    seen["revoked"] = await last_lease_event(lab, claim.id)
    claim = await lab.claim_one(W2)
    await lab.engine.executions.cancel(claim.id, reason="enough")
    seen["cancelled"] = await last_lease_event(lab, claim.id)
    assert seen == {
        "claim": ("acquired", None),
        "retry": ("released", "failed_retry_scheduled"),
        "delay": ("released", "delayed"),
        "resumed": ("acquired", "claim_resumed"),
        "hand back": ("released", "handed_back"),
        "expired": ("expired", None),
        "reclaimed": ("reclaimed", None),
        "revoked": ("revoked", "maintenance"),
        "cancelled": ("released", "cancelled"),
    }
    *_, event = await lab.events(claim.id)
    assert event.detail == {"reason": "cancelled", "message": "enough"}
    assert view(event).completion == CompletionPart(
        outcome="cancelled", state="cancelled", message="enough"
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("complete", ("released", "completed")),
        ("fail", ("released", "failed")),
        ("deadline", ("released", "expired:execution_deadline")),
        ("over the cap", ("revoked", "max_reclaims_exceeded")),
    ],
)
async def test_an_ending_gives_the_lease_back_in_the_same_event(
    lab: Lab, path: str, expected: tuple[str, str]
) -> None:
    """§3.0.2"""
    policy = {"max_reclaim_count": 1, "timeout_policy": {"execution_deadline_ms": 1_000_000}}
    claim = await take(lab, await lab.submit(policy=policy))
    await PATHS[path][0](lab, claim)
    assert await last_lease_event(lab, claim.id) == expected


async def test_what_is_refused_is_not_told(lab: Lab) -> None:
    """INV-24"""
    claim = await lab.running()
    await lab.complete(claim)
    events = await lab.events(claim.id)
    stale = FencedExecution(claim.id, Owner(UUID(int=1), 9, UUID(int=2)))
    calls: list[Awaitable[Any]] = [
        lab.engine.attempts.complete(stale),
        lab.fail(claim),
        lab.engine.claims.revoke(claim.id, reason="r"),
        lab.engine.executions.cancel(claim.id, reason="r"),
        lab.engine.executions.change_priority(claim.id, 3),
        lab.engine.executions.block(claim.id, "paused_by_operator"),
    ]
    for call in calls:
        with pytest.raises(FlowFabricError):
            await call
    assert await lab.events(claim.id) == events
