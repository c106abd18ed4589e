"""Races for a lease and against time: one wins, the other learns why and leaves nothing behind.

E-X07, E-X15, INV-1, INV-3, INV-11, INV-23, INV-24.
"""

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.core.base.errors import (
    LeaseExpired,
    LeaseRevoked,
    NotActive,
    RetryExhausted,
    StaleLease,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import RetryScheduled
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.lease import AlreadySatisfied, MarkedExpired, Revoked
from flowfabric.core.execution.model import Failure, Outcome
from flowfabric.core.execution.operator import Cancelled
from flowfabric.core.execution.status import PublicState
from tests.kit import situations
from tests.kit.lab import TTL, W2, Lab
from tests.kit.race import Race, cancel, kinds, running
from tests.kit.situations import DELAY, RETRY_AT_ONCE, completions, described

# -- leases


@pytest.mark.parametrize("flagged", [False, True])
async def test_a_completion_by_who_was_revoked_meanwhile_is_refused(
    lab: Lab, second_lab: Lab, race: Race, flagged: bool
) -> None:
    claim = await running(lab, flagged=flagged)
    rival = lambda: second_lab.engine.claims.revoke(claim.id, reason="maintenance")  # noqa: E731
    if flagged:
        race.after_load(rival)
    else:
        race.before("end", rival)
    with pytest.raises(LeaseRevoked, match="maintenance"):
        await lab.complete(claim, b"late")
    assert (await lab.vector(claim.id)).ownership == "lease_revoked"
    assert await completions(lab, claim.id) == []


async def test_a_revocation_of_what_was_completed_meanwhile_is_refused(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim = await running(lab)
    race.after_load(lambda: second_lab.complete(claim, b"done"))
    with pytest.raises(NotActive):
        await lab.engine.claims.revoke(claim.id, reason="maintenance")
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.COMPLETED]


async def test_two_revocations_are_one(lab: Lab, second_lab: Lab, race: Race) -> None:
    claim = await running(lab)
    race.after_load(lambda: second_lab.engine.claims.revoke(claim.id, reason="first"))
    answer = await lab.engine.claims.revoke(claim.id, reason="second")
    assert answer == AlreadySatisfied("already_revoked")
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_REVOKED]


async def test_a_revocation_aimed_at_a_lease_spares_the_next_one(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """Serializable: the lease it names is gone, another stands"""
    old = await running(lab, policy=RETRY_AT_ONCE)

    async def rival() -> None:
        await second_lab.fail(old)
        await second_lab.claim_one(W2)

    race.after_load(rival)
    with pytest.raises(StaleLease):
        await lab.engine.claims.revoke(old.id, reason="r", lease_id=old.lease.id)
    seen = await described(lab, old.id)
    assert seen.lease is not None
    assert seen.lease.worker == W2.id


async def test_a_renewal_by_who_was_revoked_meanwhile_is_refused(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim = await running(lab)
    race.before("renew", lambda: second_lab.engine.claims.revoke(claim.id, reason="r"))
    with pytest.raises(LeaseRevoked):
        await lab.engine.claims.renew(claim)
    assert (await lab.vector(claim.id)).ownership == "lease_revoked"


async def test_a_lease_renewed_meanwhile_is_revoked_all_the_same(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim = await running(lab)
    lab.clock.advance(5)
    race.after_load(lambda: second_lab.engine.claims.renew(claim))
    answer = await lab.engine.claims.revoke(claim.id, reason="r")
    assert answer == Revoked(claim.lease.id, 1)
    with pytest.raises(LeaseRevoked):
        await second_lab.engine.claims.renew(claim)
    (entry,) = await lab.engine.claims.expired(as_of=Millis(lab.clock.now() + 10 * TTL))
    assert entry.expires_at == lab.clock.now() + TTL


@pytest.mark.parametrize("operation", ["fail", "delay", "hand_back", "cancel", "progress"])
async def test_whatever_an_owner_says_after_a_revocation_is_refused(
    lab: Lab, second_lab: Lab, race: Race, operation: str
) -> None:
    """INV-3, E-X15: at once and with the right reason"""
    claim = await running(lab, policy=RETRY_AT_ONCE)
    attempts = lab.engine.attempts
    calls: dict[str, tuple[str, Callable[[], Awaitable[object]]]] = {
        "fail": ("apply", lambda: attempts.fail(claim, Failure("boom"))),
        "delay": ("apply", lambda: attempts.delay(claim, Millis(lab.clock.now() + 5))),
        "hand_back": ("apply", lambda: attempts.hand_back(claim)),
        "cancel": ("apply", lambda: attempts.cancel(claim, "mine")),
        "progress": ("write_progress", lambda: attempts.progress(claim, 50)),
    }
    method, call = calls[operation]
    race.before(method, lambda: second_lab.engine.claims.revoke(claim.id, reason="r"))
    with pytest.raises(LeaseRevoked):
        await call()
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_REVOKED]
    assert (await described(lab, claim.id)).progress is None


async def test_a_retry_scheduled_twice_is_scheduled_once(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """INV-11, INV-23: the same fence at once, one retry spent, the same answer"""
    claim = await running(lab, policy=situations.RETRY)
    race.before("apply", lambda: second_lab.fail(claim))
    answer = await lab.fail(claim)
    assert answer == RetryScheduled(claim.id, Millis(lab.clock.now() + DELAY), 1)
    assert (await described(lab, claim.id)).retries == 1
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.RETRY_SCHEDULED]


# -- time


async def test_a_deadline_finds_what_was_completed_meanwhile_over(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim = await running(lab, flagged=True)
    lab.clock.advance(TTL - 1)
    await lab.engine.claims.renew(claim, Millis(2_000_000))
    lab.clock.advance(1_000_000)
    race.after_load(lambda: second_lab.complete(claim, b"just in time"))
    answer = await lab.engine.executions.expire(claim.id)
    assert answer == AlreadySatisfied("already_terminal")
    assert await completions(lab, claim.id) == [Outcome.SUCCESS]
    assert await lab.engine.sweep.once() == 0


async def test_a_completion_finds_what_expired_meanwhile_over(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim = await running(lab, flagged=True)
    lab.clock.advance(TTL - 1)
    await lab.engine.claims.renew(claim, Millis(2_000_000))
    lab.clock.advance(1_000_000)
    race.after_load(second_lab.engine.sweep.once)
    with pytest.raises(NotActive) as caught:
        await lab.complete(claim, b"too late")
    assert caught.value.outcome == "expired"
    assert await completions(lab, claim.id) == [Outcome.EXPIRED]


async def test_two_deadlines_are_one(lab: Lab, second_lab: Lab, race: Race) -> None:
    id = await lab.submit(deadline_at=lab.clock.now())
    race.after_load(second_lab.engine.sweep.once)
    assert await lab.engine.executions.expire(id) == AlreadySatisfied("already_terminal")
    assert await completions(lab, id) == [Outcome.EXPIRED]


async def test_a_lease_that_was_marked_meanwhile_ends_nothing(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    claim = await running(lab)

    async def rival() -> None:
        lab.clock.advance(TTL)
        answer = await second_lab.engine.claims.mark_expired(claim.id)
        assert answer == MarkedExpired(claim.id)

    race.before("end", rival)
    with pytest.raises(LeaseExpired):
        await lab.complete(claim, b"late")
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_EXPIRED]


async def test_a_lease_marked_twice_is_marked_once(lab: Lab, second_lab: Lab, race: Race) -> None:
    claim = await running(lab)
    lab.clock.advance(TTL)
    race.after_load(second_lab.engine.sweep.once)
    assert await lab.engine.claims.mark_expired(claim.id) == AlreadySatisfied("already_expired")
    assert await kinds(lab, claim.id) == [EventKind.CLAIMED, EventKind.LEASE_EXPIRED]


async def test_a_sweep_leaves_the_new_owner_of_what_it_found_lost_alone(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """E-X07: found due, lost and reclaimed by others before it decides"""
    claim = await running(lab)
    lab.clock.advance(TTL)

    async def rival() -> None:
        await second_lab.engine.sweep.once()
        await second_lab.claim_one(W2)

    race.after_load(rival)
    assert await lab.engine.sweep.once() == 1
    seen = await described(lab, claim.id)
    assert seen.lease is not None
    assert (seen.lease.worker, seen.lease.epoch, seen.reclaims) == (W2.id, 2, 1)


async def test_a_sweep_leaves_what_was_cancelled_meanwhile_alone(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    id = await situations.delayed(lab)
    lab.clock.advance(DELAY)
    race.after_load(lambda: cancel(second_lab, id))
    assert await lab.engine.sweep.once() == 1
    assert await completions(lab, id) == [Outcome.CANCELLED]


# -- losing for ever


async def test_who_loses_ten_times_in_a_row_is_told_and_has_changed_nothing(
    lab: Lab, second_lab: Lab, race: Race
) -> None:
    """§3.0.4, INV-24"""
    id = await lab.submit()
    step = iter(range(100, 200))
    race.after_load(lambda: second_lab.engine.executions.change_priority(id, next(step)), times=10)
    with pytest.raises(RetryExhausted):
        await cancel(lab, id)
    seen = await described(lab, id)
    assert (seen.state, seen.priority) == (PublicState.WAITING, 109)
    assert await kinds(lab, id) == [EventKind.PRIORITY_CHANGED] * 10
    assert await cancel(lab, id) == Cancelled(id)


async def test_who_loses_nine_times_wins_the_tenth(lab: Lab, second_lab: Lab, race: Race) -> None:
    id = await lab.submit()
    race.after_load(lambda: second_lab.engine.executions.change_priority(id, 1), times=9)
    assert await cancel(lab, id) == Cancelled(id)
    assert await completions(lab, id) == [Outcome.CANCELLED]
