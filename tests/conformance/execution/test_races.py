"""Races: a rival commits at the worst moment, exactly one wins and the other learns why.

The rival is another engine on the same database. It commits after somebody has looked and before
that one writes, or just before a hot statement. E-T171, E-X06, INV-1, INV-5, INV-15, INV-24.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import pytest

from flowfabric.core.base.errors import (
    FenceRequired,
    FlowFabricError,
    LeaseConflict,
    LeaseLost,
    NotActive,
    NotEligible,
    NotFound,
    NotSuspended,
    NotTerminal,
    RetryExhausted,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import Completed
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import AttemptOutcome, Failure, Outcome, Start
from flowfabric.core.execution.operator import Cancelled, Changed, Expired, Replayed, Unblocked
from flowfabric.core.execution.status import PublicState
from flowfabric.engine.execution.claims import Claim
from tests.kit import situations
from tests.kit.lab import W1, W2, Lab
from tests.kit.race import Race, cancel, kinds, running
from tests.kit.situations import RETRY_AT_ONCE, completions, described, load, suspend

# -- cancel and complete


async def test_a_cancel_that_comes_after_a_completion_is_refused(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim = await running(lab)
    race.after_load(lambda: second_lab.complete(claim, b"done"))
    with pytest.raises(NotActive) as caught:
        await cancel(lab, claim.id)
    assert (caught.value.outcome, caught.value.epoch) == ("success", 1)
    assert await lab.engine.views.result(claim.id) == b"done"
    assert await completions(lab, claim.id) == [Outcome.SUCCESS]
    seen = await described(lab, claim.id)
    assert (seen.cancel_reason, seen.cancelled_by) == (None, None)


@pytest.mark.parametrize("way", ["end", "load"])
async def test_a_completion_that_comes_after_a_cancel_is_refused(
    lab: Lab, second_lab: Lab, race: Race, way: str
) -> None:
    """By the short way and by the long one"""
    claim = await running(lab, flagged=way == "load")
    if way == "end":
        race.before("end", lambda: cancel(second_lab, claim.id))
    else:
        race.after_load(lambda: cancel(second_lab, claim.id))
    with pytest.raises(NotActive) as caught:
        await lab.complete(claim, b"late")
    assert caught.value.outcome == "cancelled"
    assert await lab.engine.views.result(claim.id) is None
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]


@pytest.mark.parametrize("flagged", [False, True])
async def test_a_completion_that_was_already_written_is_not_written_again(
    lab: Lab, second_lab: Lab, race: Race, flagged: bool
) -> None:
    """E-X06, INV-23: the same fence twice at once; the first result stays"""
    claim = await running(lab, flagged=flagged)
    if flagged:
        race.after_load(lambda: second_lab.complete(claim, b"first"))
    else:
        race.before("end", lambda: second_lab.complete(claim, b"first"))
    assert await lab.engine.attempts.complete(claim, b"second") == Completed(claim.id)
    assert await lab.engine.views.result(claim.id) == b"first"
    assert await completions(lab, claim.id) == [Outcome.SUCCESS]


@pytest.mark.parametrize("flagged", [False, True])
async def test_a_failure_and_a_completion_are_one_ending(
    lab: Lab, second_lab: Lab, race: Race, flagged: bool
) -> None:
    claim = await running(lab, flagged=flagged)
    rival = lambda: second_lab.complete(claim, b"done")  # noqa: E731
    if flagged:
        race.before("apply", rival)
    else:
        race.before("end", rival)
    with pytest.raises(NotActive):
        await lab.fail(claim)
    assert await completions(lab, claim.id) == [Outcome.SUCCESS]


async def test_two_cancels_are_one(lab: Lab, second_lab: Lab, race: Race) -> None:
    """E-T171: both succeed, the reason of the first stays"""
    claim = await running(lab)
    race.after_load(lambda: cancel(second_lab, claim.id, "first"))
    assert await cancel(lab, claim.id, "second") == Cancelled(claim.id)
    assert (await described(lab, claim.id)).cancel_reason == "first"
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.CANCELLED]


async def test_a_cancel_reaches_a_worker_that_claimed_meanwhile(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await lab.submit()
    taken: list[Claim] = []

    async def claim() -> None:
        taken.append(await second_lab.claim_one(W2))

    race.after_load(claim)
    assert await cancel(lab, id) == Cancelled(id)
    seen = await described(lab, id)
    assert (seen.state, seen.epoch, seen.lease) == (PublicState.CANCELLED, 1, None)
    (attempt,) = await lab.engine.views.attempts(id)
    assert (attempt.outcome, attempt.worker) == (AttemptOutcome.CANCELLED, W2)
    assert await kinds(lab, id) == [EventKind.CLAIMED, EventKind.CANCELLED]
    with pytest.raises(NotActive):
        await second_lab.complete(taken[0])


async def test_who_may_cancel_only_what_waits_is_refused_when_it_was_claimed(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await lab.submit()
    race.after_load(lambda: second_lab.claim_one(W2))
    with pytest.raises(FenceRequired):
        await cancel(lab, id, owner=Owner())
    assert await lab.state(id) is PublicState.ACTIVE


async def test_a_claim_takes_nothing_that_was_cancelled_meanwhile(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await lab.submit()
    race.before("claim", lambda: cancel(second_lab, id))
    assert await lab.claim() == []
    assert await completions(lab, id) == [Outcome.CANCELLED]


# -- operators among themselves


async def test_two_replays_are_one(lab: Lab, second_lab: Lab, race: Race) -> None:
    id = await situations.completed(lab)
    race.after_load(lambda: second_lab.engine.executions.replay(id))
    with pytest.raises(NotTerminal):
        await lab.engine.executions.replay(id)
    seen = await described(lab, id)
    assert (seen.replays, seen.attempts_made) == (1, 1)
    assert (await kinds(lab, id)).count(EventKind.REPLAYED) == 1


async def test_a_replay_finds_out_that_the_execution_was_forgotten(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await situations.completed(lab)
    lab.clock.advance(8 * 86_400_000)
    race.after_load(second_lab.engine.sweep.trim)
    with pytest.raises(NotFound):
        await lab.engine.executions.replay(id)
    assert await lab.engine.views.state(id) is None


async def test_a_tag_finds_out_that_the_execution_was_forgotten(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await situations.completed(lab)
    lab.clock.advance(8 * 86_400_000)
    race.after_load(second_lab.engine.sweep.trim)
    with pytest.raises(NotFound):
        await lab.engine.executions.set_tag(id, "app.x", "v")


async def test_retention_spares_what_was_replayed_meanwhile(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """INV-27"""
    id = await situations.completed(lab)
    lab.clock.advance(8 * 86_400_000)
    race.before("trim", lambda: second_lab.engine.executions.replay(id))
    assert await lab.engine.sweep.trim() == 0
    assert await lab.state(id) is PublicState.WAITING


async def test_a_priority_of_what_was_claimed_meanwhile_stays(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await lab.submit(priority=1)
    race.after_load(lambda: second_lab.claim_one(W2))
    with pytest.raises(NotEligible):
        await lab.engine.executions.change_priority(id, 9)
    assert (await described(lab, id)).priority == 1
    assert await kinds(lab, id) == [EventKind.CLAIMED]


async def test_two_priorities_are_told_one_after_the_other(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """Each tells the priority it really replaced"""
    id = await lab.submit(priority=1)
    race.after_load(lambda: second_lab.engine.executions.change_priority(id, 5))
    assert await lab.engine.executions.change_priority(id, 9) == Changed(id, 9)
    assert [event.detail for event in await lab.events(id)] == [
        {"old_priority": 1, "new_priority": 5},
        {"old_priority": 5, "new_priority": 9},
    ]


async def test_a_claim_follows_a_priority_that_changed_meanwhile(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    await lab.submit(priority=5)
    other = await lab.submit(priority=1)
    race.before("claim", lambda: second_lab.engine.executions.change_priority(other, 9))
    assert (await lab.claim_one()).id == other


async def test_what_was_claimed_meanwhile_is_not_blocked(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await lab.submit()
    race.after_load(lambda: second_lab.claim_one(W2))
    with pytest.raises(NotEligible):
        await lab.engine.executions.block(id, "waiting_for_budget")
    assert await lab.state(id) is PublicState.ACTIVE


async def test_a_newer_block_survives_an_older_unblock(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """E-T201, decided on what stands when it is written"""
    id = await situations.blocked(lab, "waiting_for_quota")

    async def rival() -> None:
        await second_lab.engine.executions.unblock(id)
        await second_lab.engine.executions.block(id, "paused_by_operator")

    race.after_load(rival)
    with pytest.raises(NotEligible):
        await lab.engine.executions.unblock(id, "waiting_for_quota")
    assert (await lab.vector(id)).blocking == "paused_by_operator"


async def test_what_was_cancelled_meanwhile_is_not_unblocked(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await situations.blocked(lab)
    race.after_load(lambda: cancel(second_lab, id))
    with pytest.raises(NotEligible):
        await lab.engine.executions.unblock(id)
    assert await lab.state(id) is PublicState.CANCELLED


async def test_what_was_cancelled_meanwhile_is_not_resumed(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """INV-15"""
    id = await situations.suspended(lab)
    race.after_load(lambda: cancel(second_lab, id))
    with pytest.raises(NotSuspended):
        await lab.engine.executions.resume(id)
    assert await completions(lab, id) == [Outcome.CANCELLED]


async def test_two_resumes_are_one(lab: Lab, second_lab: Lab, race: Race) -> None:
    """INV-15"""
    id = await situations.suspended(lab)
    race.after_load(lambda: second_lab.engine.executions.resume(id))
    with pytest.raises(NotSuspended):
        await lab.engine.executions.resume(id)
    claim = await lab.claim_one()
    assert (claim.attempt, claim.epoch, claim.lease.start) == (0, 2, Start.CONTINUE)


async def test_a_cancel_reaches_what_was_resumed_meanwhile(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim = await running(lab)
    await suspend(lab, claim)
    race.after_load(lambda: second_lab.engine.executions.resume(claim.id))
    await cancel(lab, claim.id)
    assert await completions(lab, claim.id) == [Outcome.CANCELLED]
    assert await lab.claim() == []


async def test_a_grant_for_what_was_claimed_meanwhile_is_refused(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await lab.submit()
    race.after_load(lambda: second_lab.claim_one(W2))
    with pytest.raises(NotEligible):
        await lab.engine.grants.issue(id, "w1")


async def test_a_grant_redeemed_twice_gives_one_lease(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """INV-1, INV-17"""
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    race.after_load(lambda: second_lab.engine.grants.claim(id, W1))
    with pytest.raises(LeaseConflict):
        await lab.engine.grants.claim(id, W1)
    assert (await described(lab, id)).epoch == 1


# -- many at once, without any barrier


async def contest(*calls: Awaitable[object]) -> list[object]:
    return list(await asyncio.gather(*calls, return_exceptions=True))


async def test_of_a_completion_and_a_cancel_at_once_one_wins(lab: Lab, second_lab: Lab) -> None:
    claims = [await running(lab, flagged=bool(number % 2)) for number in range(20)]
    answers = await contest(
        *(
            call
            for claim in claims
            for call in (lab.engine.attempts.complete(claim), cancel(second_lab, claim.id))
        )
    )
    for claim, pair in zip(claims, zip(answers[::2], answers[1::2], strict=True), strict=True):
        (outcome,) = await completions(lab, claim.id)
        won = [answer for answer in pair if not isinstance(answer, BaseException)]
        lost = [answer for answer in pair if isinstance(answer, NotActive)]
        assert (len(won), len(lost)) == (1, 1)
        assert isinstance(won[0], Completed if outcome is Outcome.SUCCESS else Cancelled)


async def test_everything_at_once_leaves_one_legal_end(lab: Lab, second_lab: Lab) -> None:
    """INV-2, INV-5, INV-6, INV-9: a free fight over each of twenty executions"""
    claims = [await running(lab, policy=RETRY_AT_ONCE) for _ in range(20)]
    calls: list[Awaitable[object]] = []
    for claim in claims:
        calls += [
            lab.engine.attempts.complete(claim),
            second_lab.engine.attempts.fail(claim, Failure("boom")),
            second_lab.engine.claims.revoke(claim.id, reason="r"),
            lab.engine.attempts.delay(claim, Millis(lab.clock.now() + 5)),
            second_lab.engine.claims.renew(claim),
            lab.engine.attempts.progress(claim, 1),
            second_lab.claim(W2, limit=2),
        ]
    answers = await contest(*calls)
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(answer, FlowFabricError) for answer in failures)
    assert not any(isinstance(answer, RetryExhausted) for answer in failures)
    for claim in claims:
        await end(second_lab, claim)
        seen = await described(lab, claim.id)
        events = await lab.events(claim.id)
        assert len([event for event in events if event.completion is not None]) == 1
        epochs = [event.epoch for event in events]
        assert epochs == sorted(epochs)
        taken = [event.epoch for event in events if event.lease in ("acquired", "reclaimed")]
        assert taken == list(range(1, seen.epoch + 1))
        attempts = await lab.engine.views.attempts(claim.id)
        assert [attempt.index for attempt in attempts] == list(range(seen.attempts_made))
        assert all(attempt.outcome.final for attempt in attempts)


async def end(lab: Lab, claim: Claim) -> None:
    """Whatever still lives is cancelled."""
    with suppress(NotActive):
        await cancel(lab, claim.id)


async def test_two_engines_never_claim_the_same(lab: Lab, second_lab: Lab) -> None:
    """INV-1"""
    ids = [await lab.submit() for _ in range(60)]
    pages = await asyncio.gather(
        *(each.claim(W1, limit=4) for each in (lab, second_lab) for _ in range(20))
    )
    taken = [claim.id for page in pages for claim in page]
    while more := await lab.claim(limit=10):
        taken += [claim.id for claim in more]
    assert sorted(taken) == sorted(ids)


async def test_priorities_and_claims_at_once_lose_nothing(lab: Lab, second_lab: Lab) -> None:
    ids = [await lab.submit() for _ in range(20)]
    answers = await contest(
        *(second_lab.engine.executions.change_priority(id, 5) for id in ids),
        *(lab.claim(limit=1) for _ in ids),
    )
    for answer in answers[: len(ids)]:
        assert isinstance(answer, Changed | NotEligible)
    pages = [answer for answer in answers[len(ids) :] if isinstance(answer, list)]
    taken = [claim.id for page in pages for claim in page]
    taken += [claim.id for claim in await lab.claim(limit=50)]
    assert sorted(taken) == sorted(ids)
    changed = [answer.id for answer in answers if isinstance(answer, Changed)]
    for id in ids:
        assert ((await described(lab, id)).priority == 5) == (id in changed)


async def test_replays_cancels_and_claims_at_once_stay_legal(lab: Lab, second_lab: Lab) -> None:
    ids = [await situations.completed(lab) for _ in range(10)]
    answers = await contest(
        *(
            call
            for id in ids
            for call in (
                lab.engine.executions.replay(id),
                second_lab.engine.executions.replay(id),
                cancel(second_lab, id),
            )
        ),
        *(lab.claim(limit=1) for _ in ids),
    )
    assert all(
        isinstance(answer, Replayed | Cancelled | NotTerminal | NotActive | list)
        for answer in answers
    )
    for id in ids:
        seen = await described(lab, id)
        told = await kinds(lab, id)
        assert seen.replays == told.count(EventKind.REPLAYED) >= 1
        assert told.count(EventKind.CANCELLED) <= seen.replays


async def test_nothing_is_left_behind_by_a_loser(lab: Lab, second_lab: Lab, race: Race) -> None:
    """INV-24: the row is byte for byte what the winner wrote"""
    claim = await running(lab)
    written: list[object] = []

    async def rival() -> None:
        await second_lab.engine.claims.revoke(claim.id, reason="r")
        written.append(await load(second_lab, claim.id))

    race.after_load(rival)
    with pytest.raises(LeaseLost):
        await lab.engine.attempts.complete(lab.engine.attempts.seal(claim), b"x")
    assert [await load(lab, claim.id)] == written


async def test_an_unblock_and_an_expiry_at_once_are_both_heard(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await situations.blocked(lab, deadline_at=Millis(lab.clock.now() + 5))
    lab.clock.advance(5)
    race.after_load(lambda: second_lab.engine.executions.unblock(id))
    assert await lab.engine.executions.expire(id) == Expired(id)
    assert await completions(lab, id) == [Outcome.EXPIRED]
    other = await situations.blocked(lab)
    assert await lab.engine.executions.unblock(other) == Unblocked(other)
