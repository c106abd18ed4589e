"""Ownership as pure rules: the gate, and how a lease is taken, renewed and lost."""

from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    FenceRequired,
    LeaseExpired,
    LeaseRevoked,
    NotActive,
    NotFound,
    PartialFence,
    StaleLease,
)
from flowfabric.core.base.ids import derive_attempt_id
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import grant, lease, reclaim
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.grant import Grantee, NotReclaimable, ReclaimCapExceeded
from flowfabric.core.execution.lease import AlreadySatisfied, Owner, Renewed, Taking
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Fence,
    Flags,
    Hold,
    Life,
    Lost,
    LostLease,
    Next,
    Snapshot,
    Source,
    Start,
)
from flowfabric.core.execution.policy import DEFAULT_RECLAIM_CAP
from tests.kit.lab import TTL, W1, W2
from tests.kit.snapshots import NOW, OPERATOR, after, fresh, lease_of, owner_of
from tests.kit.walk import POLICY, running

MEMBERS: dict[str, Any] = {"lease_id": UUID(int=1), "epoch": 1, "attempt_id": UUID(int=2)}
EXPIRY = Millis(NOW + TTL)

spans = st.integers(1, lease.MAX_TTL).map(Millis)


def lost(*, revoked: bool = False, **members: Any) -> Snapshot:
    held = running(**members)
    return after(lease.lose(held, NOW, lease_of(held), revoked=revoked, reason="enough"))


# -- the fence


@pytest.mark.parametrize("given", list(product([True, False], repeat=3)))
def test_a_fence_is_presented_whole_or_not_at_all(given: tuple[bool, ...]) -> None:
    """§1.3"""
    names = [name for name, there in zip(MEMBERS, given, strict=True) if there]
    presented = Owner(**{name: MEMBERS[name] for name in names})
    if all(given):
        assert presented.fence == Fence(UUID(int=1), 1, UUID(int=2))
    elif not any(given):
        assert presented.fence is None
    else:
        with pytest.raises(PartialFence):
            _ = presented.fence


@pytest.mark.parametrize("source", [*Source, "anything"])
def test_only_an_operator_may_come_without_a_fence(source: str) -> None:
    unfenced = Owner(source=source)
    if source == Source.OPERATOR:
        assert lease.required_fence(unfenced) is None
    else:
        with pytest.raises(FenceRequired):
            lease.required_fence(unfenced)


def test_a_fence_names_the_lease_the_epoch_and_the_attempt() -> None:
    held = running()
    fence = lease.fence_of(held, lease_of(held))
    assert fence == Fence(lease_of(held).id, 1, derive_attempt_id(held.execution.uuid, 0))
    assert Owner.of(fence).fence == fence


# -- the gate


def test_the_owner_passes_the_gate_with_its_lease() -> None:
    held = running()
    assert lease.enter(held, Millis(EXPIRY - 1), owner_of(held)) == lease_of(held)
    assert lease.enter(held, Millis(EXPIRY - 1), OPERATOR) == lease_of(held)


@given(st.sampled_from(["lease_id", "epoch", "attempt_id"]), st.integers(2, 2**62))
def test_any_other_fence_is_stale(member: str, value: int) -> None:
    """E-T093, INV-3"""
    held = running()
    wrong = value if member == "epoch" else UUID(int=value)
    with pytest.raises(StaleLease):
        lease.enter(held, NOW, replace(owner_of(held), **{member: wrong}))


@given(st.integers(0, 10**9), st.booleans())
def test_a_lease_found_expired_is_marked_and_refused(late: int, own: bool) -> None:
    """G5: before the fence is compared"""
    held = running()
    who = owner_of(held) if own else replace(owner_of(held), epoch=9)
    now = Millis(EXPIRY + late)
    refusal = lease.enter(held, now, who)
    assert isinstance(refusal, Change)
    assert isinstance(refusal.outcome, LeaseExpired)
    assert refusal.before is held
    assert isinstance(after(refusal).state, Lost)
    [event] = refusal.events
    assert (event.kind, event.at, event.epoch) == (EventKind.LEASE_EXPIRED, now, 1)


def test_the_gate_asks_in_its_order() -> None:
    """§3.0.3: fence, phase, revocation, expiry, comparison"""
    held = running()
    partial, stranger = Owner(epoch=1), Owner(UUID(int=9), 9, UUID(int=9))
    late = Millis(EXPIRY + 1)
    for snapshot in (fresh(), held, lost(), lost(revoked=True)):
        with pytest.raises(PartialFence):
            lease.enter(snapshot, late, partial)
        with pytest.raises(FenceRequired):
            lease.enter(snapshot, late, Owner())
    for who in (stranger, OPERATOR):
        with pytest.raises(NotActive):
            lease.enter(fresh(), late, who)
        with pytest.raises(LeaseRevoked, match="enough"):
            lease.enter(lost(revoked=True), late, who)
        with pytest.raises(LeaseExpired):
            lease.enter(lost(), late, who)


def test_what_is_not_active_tells_how_it_stands() -> None:
    """§3.0.3"""
    error = lease.not_active(fresh())
    assert (error.phase, error.outcome, error.epoch, error.attempt_id) == (
        "runnable",
        "none",
        0,
        None,
    )


# -- renewing


@given(spans, spans, st.integers(0, lease.MAX_TTL - 1))
def test_a_renewal_never_shortens_and_never_raises_the_epoch(
    first: Millis, ttl: Millis, pause: int
) -> None:
    """§3.12, INV-2"""
    taking = Taking(UUID(int=1), W1, first)
    held = after(lease.take(fresh(), NOW, Next(Start.INITIAL, 0), taking))
    now = Millis(NOW + pause)
    change = lease.renew(held, now, owner_of(held), ttl)
    if pause >= first:
        assert isinstance(change.outcome, LeaseExpired)
        return
    expires_at = Millis(max(NOW + first, now + ttl))
    assert change.outcome == Renewed(expires_at, 1)
    renewed = lease_of(after(change))
    assert (renewed.expires_at, renewed.renewed_at) == (expires_at, now)
    assert replace(renewed, expires_at=NOW + first, renewed_at=None) == lease_of(held)


def test_a_renewal_needs_a_fence() -> None:
    """E-T092"""
    for who in (Owner(), OPERATOR):
        with pytest.raises(FenceRequired):
            lease.renew(running(), NOW, who, TTL)
        with pytest.raises(NotFound):
            lease.renew(None, NOW, who, TTL)


# -- losing


@given(st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_a_loss_is_counted_and_never_ends_the_execution(
    losses: int, cap: int, revoked: bool
) -> None:
    """§3.11, §3.20: the one over the cap is marked for the claim that comes across it"""
    held = running(policy={} if cap == DEFAULT_RECLAIM_CAP else {"max_reclaim_count": cap})
    held = replace(held, head=replace(held.head, life=Life(losses=losses)))
    change = lease.lose(held, NOW, lease_of(held), revoked=revoked, reason="enough")
    state = after(change).state
    assert after(change).life.losses == losses + 1
    [event] = change.events
    assert state == Lost(revoked, Next(Start.RECLAIM, 1))
    assert event.kind is (EventKind.LEASE_REVOKED if revoked else EventKind.LEASE_EXPIRED)
    assert after(change).reclaims == losses
    counted = losses + 1 - (revoked and cap == DEFAULT_RECLAIM_CAP)
    assert bool(after(change).head.flags & Flags.SPENT) is (counted > cap)


@pytest.mark.parametrize("cap", [2, DEFAULT_RECLAIM_CAP, 4])
def test_a_cap_that_was_set_counts_revoked_leases(cap: int) -> None:
    """§3.11, D-8: also one that is as high as the default."""
    held = running(policy={"max_reclaim_count": cap})
    held = replace(held, head=replace(held.head, life=Life(losses=cap)))
    change = lease.lose(held, NOW, lease_of(held), revoked=True, reason="enough")
    assert after(change).head.flags & Flags.SPENT


def test_a_loss_keeps_what_the_next_attempt_must_know() -> None:
    held = running(policy=POLICY)
    change = lease.lose(held, EXPIRY, lease_of(held), revoked=False, grace=Millis(500))
    assert after(change).state == Lost(
        False, Next(Start.RECLAIM, 1, Millis(50_000)), Hold(Millis(EXPIRY + 500))
    )
    assert after(change).life.lapsed == LostLease(
        index=0,
        type=Start.INITIAL,
        lease_id=lease_of(held).id,
        epoch=1,
        worker=W1,
        started_at=NOW,
        expires_at=EXPIRY,
        at=EXPIRY,
    )
    assert after(change).started_at == NOW
    assert after(change).head.epoch == 1


def test_a_revocation_asks_in_its_order() -> None:
    """§3.20"""
    other = UUID(int=99)
    with pytest.raises(NotFound):
        lease.revoke(None, NOW, reason="")
    with pytest.raises(NotActive):
        lease.revoke(fresh(), NOW, reason="", instance="x", lease_id=other)
    for snapshot, answer in (
        (lost(revoked=True), "already_revoked"),
        (lost(), "already_expired"),
        (running(), "different_worker_instance_id"),
    ):
        change = lease.revoke(snapshot, NOW, reason="", instance="x", lease_id=other)
        assert (change.outcome, change.after) == (AlreadySatisfied(answer), None)
    with pytest.raises(StaleLease):
        lease.revoke(running(), NOW, reason="", instance=W1.instance, lease_id=other)


@pytest.mark.parametrize(
    ("snapshot", "answer"),
    [
        (None, "execution_not_found"),
        (fresh(), "not_active"),
        (running(), "not_yet_expired"),
        (lost(), "already_expired"),
        (lost(revoked=True), "already_revoked"),
    ],
)
def test_only_a_lease_that_ran_out_is_marked(snapshot: Snapshot | None, answer: str) -> None:
    """§3.29"""
    change = lease.mark_expired(snapshot, Millis(EXPIRY - 1))
    assert (change.outcome, change.after) == (AlreadySatisfied(answer), None)


# -- taking


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (Start.INITIAL, EventKind.CLAIMED),
        (Start.RETRY, EventKind.CLAIMED),
        (Start.REPLAY, EventKind.CLAIMED),
        (Start.CONTINUE, EventKind.RESUMED),
        (Start.RECLAIM, EventKind.RECLAIMED),
    ],
)
@given(ttl=spans, timeout=st.none() | spans, attempt=st.integers(0, 1000))
def test_a_lease_is_taken_for_what_comes_next(
    start: Start, kind: EventKind, ttl: Millis, timeout: Millis | None, attempt: int
) -> None:
    """INV-2, INV-20"""
    before = fresh()
    taking = Taking(UUID(int=7), W2, ttl)
    change = lease.take(before, NOW, Next(start, attempt, timeout), taking)
    held = lease_of(after(change))
    assert change.outcome is change.after
    assert after(change).head == replace(before.head, version=2, epoch=1)
    assert (held.id, held.worker, held.attempt, held.start) == (taking.lease_id, W2, attempt, start)
    assert (held.started_at, held.expires_at) == (NOW, NOW + ttl)
    assert held.times_out_at == (None if timeout is None else NOW + timeout)
    [event] = change.events
    assert (event.kind, event.epoch, event.attempt, event.worker) == (kind, 1, attempt, W2)


# -- reclaiming


def lost_again(losses: int, hold: Hold | None = None, **members: Any) -> Snapshot:
    snapshot = lost(**members)
    assert isinstance(snapshot.state, Lost)
    life = replace(snapshot.life, losses=losses)
    state = replace(snapshot.state, hold=hold)
    return replace(snapshot, head=replace(snapshot.head, life=life), state=state)


def test_the_cap_without_a_policy_is_three() -> None:
    """E-T112, D-8"""
    grantee = Grantee("w2", frozenset(), Millis(1000))
    change = reclaim.issue_reclaim_grant(lost_again(4), NOW, grantee)
    assert (change.outcome, change.after) == (ReclaimCapExceeded(3), None)
    change = reclaim.issue_reclaim_grant(lost_again(3), NOW, grantee)
    assert isinstance(change.outcome, grant.Granted)


@pytest.mark.parametrize(
    "policy", [{"max_reclaim_count": 2}, {"timeout_policy": {"max_reclaim_count": 2}}]
)
def test_the_argument_comes_before_the_policy(policy: dict[str, Any]) -> None:
    """D-8"""
    grantee = Grantee("w2", frozenset(), Millis(1000))
    exceeded = reclaim.issue_reclaim_grant(lost_again(3, policy=policy), NOW, grantee)
    assert exceeded.outcome == ReclaimCapExceeded(2)
    granted = reclaim.issue_reclaim_grant(lost_again(3, policy=policy), NOW, grantee, 3)
    assert isinstance(granted.outcome, grant.Granted)


@given(st.integers(1, 10), st.integers(0, 10))
def test_a_redemption_is_good_up_to_the_cap_of_its_caller(losses: int, cap: int) -> None:
    """E-T117, E-T118: `losses` is the attempted count"""
    snapshot = lost_again(losses, Hold(EXPIRY, "w2"))
    change = reclaim.reclaim(snapshot, NOW, Taking(UUID(int=7), W2, TTL), cap)
    if losses <= cap:
        assert isinstance(after(change).state, Active)
        assert after(change).reclaims == losses
    else:
        assert change.outcome == ReclaimCapExceeded(losses)
        assert isinstance(after(change).state, Ended)
        assert after(change).reclaims == losses


def test_a_grant_over_the_cap_of_the_policy_reports_what_is_stored() -> None:
    """§3.10, D-8: the lease found expired is marked, and that is all"""
    held = running(policy={"max_reclaim_count": 0})
    grantee = Grantee("w2", frozenset(), Millis(1000))
    change = reclaim.issue_reclaim_grant(held, EXPIRY, grantee)
    assert change.outcome == ReclaimCapExceeded(0)
    assert isinstance(after(change).state, Lost)


def test_a_lease_found_expired_is_marked_even_if_nothing_is_granted() -> None:
    """INV-24: the sanctioned write"""
    held = running(policy={"routing_requirements": {"required_capabilities": ["gpu"]}})
    grantee = Grantee("w2", frozenset(), Millis(1000))
    change = reclaim.issue_reclaim_grant(held, EXPIRY, grantee)
    assert change.outcome == NotReclaimable("capability_mismatch:gpu")
    assert isinstance(after(change).state, Lost)
    assert after(change).head.version == held.head.version + 1
