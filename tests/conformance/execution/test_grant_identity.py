"""Who holds which grant until when, and what its holder says about the attempt it starts."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import (
    GrantExists,
    Invalid,
    InvalidGrant,
    InvalidPolicy,
    NotFound,
    StaleLease,
)
from flowfabric.core.base.ids import ExecutionId, derive_attempt_id, new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.grant import Granted, GrantNotFound
from flowfabric.core.execution.grant_record import (
    Grant,
    GrantKind,
    GrantNotes,
    grant_id_from_key,
    hash_capabilities,
)
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.model import Failure, WorkerIdentity
from flowfabric.core.execution.new_attempt import NewAttempt
from flowfabric.core.execution.policy import parse_policy
from flowfabric.core.execution.status import PublicState
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import TTL, W1, W2, Lab

GRANT = Millis(10_000)
MINE = UUID("018f4c3e-0000-7000-8000-0123456789ab")
MISSING = ExecutionId.solo("default", new_uuid7(1, 1))
NOTES = GrantNotes(
    capability_hash="c0ffee", route_snapshot='{"lane": "images"}', admission_summary="2 of 5 slots"
)
RETRY = {"retry_policy": {"max_retries": 9, "backoff": {"type": "fixed", "delay_ms": 0}}}


async def lost(lab: Lab) -> Claim:
    claim = await lab.running()
    await lab.lose(claim)
    return claim


# -- writing and reading


async def test_a_grant_tells_who_holds_it_until_when(lab: Lab, second_lab: Lab) -> None:
    """§3.0.1: by worker and instance, with what it was granted on."""
    needs = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    id = await lab.submit(lane="images", policy=needs)
    now = lab.clock.now()
    granted = await lab.engine.grants.issue(
        id, W1, capabilities=["linux", "gpu"], ttl=GRANT, key="k-1", notes=NOTES
    )
    assert granted == Granted(id, "w1", Millis(now + GRANT), "w1-a", "k-1")
    grant = Grant(
        id=grant_id_from_key("k-1"),
        kind=GrantKind.CLAIM,
        worker="w1",
        instance="w1-a",
        lane="images",
        granted_at=now,
        expires_at=Millis(now + GRANT),
        capabilities=("gpu", "linux"),
        capability_hash="c0ffee",
        route_snapshot='{"lane": "images"}',
        admission_summary="2 of 5 slots",
    )
    assert await second_lab.engine.grants.identity(id) == grant
    described = await second_lab.engine.views.describe(id)
    assert described is not None
    assert described.grant == grant


async def test_each_kind_of_grant_says_what_it_is_for(lab: Lab) -> None:
    lost_one = await lost(lab)
    await lab.engine.grants.issue_reclaim(lost_one.id, W2, notes=NOTES)
    interrupted = await lab.running(policy=RETRY)
    await lab.engine.attempts.hand_back(interrupted)
    await lab.engine.grants.issue(interrupted.id, "w2")
    fresh = await lab.submit()
    found = await lab.engine.grants.find_and_issue(W1, lane="default", notes=NOTES)
    assert found is not None
    assert (found.id, found.instance) == (fresh, "w1-a")
    kinds = []
    for id in (lost_one.id, interrupted.id, fresh):
        grant = await lab.engine.grants.identity(id)
        assert grant is not None
        kinds.append((grant.kind, grant.worker, grant.instance, grant.admission_summary))
    assert kinds == [
        (GrantKind.RECLAIM, "w2", "w2-a", "2 of 5 slots"),
        (GrantKind.RESUME, "w2", "", None),
        (GrantKind.CLAIM, "w1", "w1-a", "2 of 5 slots"),
    ]


async def test_a_grant_that_says_nothing_has_a_hash_of_its_capabilities(lab: Lab) -> None:
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1", capabilities=["b", "a"])
    grant = await lab.engine.grants.identity(id)
    assert grant is not None
    assert grant.capability_hash == hash_capabilities(frozenset({"a", "b"}))
    assert grant.capability_hash != hash_capabilities(frozenset({"a"}))


async def test_a_grant_that_was_redeemed_or_ran_out_has_no_holder(lab: Lab) -> None:
    redeemed, taken, expired = [await lab.submit() for _ in range(3)]
    for id in (redeemed, taken, expired):
        await lab.engine.grants.issue(id, "w1", ttl=GRANT)
    await lab.engine.grants.claim(redeemed, W1)
    assert (await lab.claim_one(W1)).id == taken
    lab.clock.advance(GRANT)
    for id in (redeemed, taken, expired, await lab.submit()):
        assert await lab.engine.grants.identity(id) is None
        described = await lab.engine.views.describe(id)
        assert described is not None
        assert described.grant is None
    with pytest.raises(NotFound):
        await lab.engine.grants.identity(MISSING)


async def test_a_grant_of_an_attempt_before_is_not_the_grant_of_the_next(lab: Lab) -> None:
    claim = await lab.running(policy=RETRY)
    await lab.fail(claim)
    await lab.engine.grants.issue(claim.id, "w1", ttl=Millis(60_000))
    second = await lab.engine.grants.claim(claim.id, W1)
    await lab.fail(second)
    assert await lab.engine.grants.identity(claim.id) is None


# -- the key


def test_the_id_of_a_grant_is_made_from_its_key() -> None:
    """The same for ever: SHA-256 of the key, as hexadecimal digits."""
    digest = "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a"
    assert grant_id_from_key("k") == digest
    for wrong in ("", 7, None, "a\0b", "x" * 2000):
        with pytest.raises(Invalid):
            grant_id_from_key(wrong)  # type: ignore[arg-type]


async def test_every_grant_has_a_key_of_its_own(lab: Lab) -> None:
    made = [await lab.submit() for _ in range(2)]
    keys = [(await lab.engine.grants.issue(id, "w1")).key for id in made]
    assert len(set(keys)) == 2
    for id, key in zip(made, keys, strict=True):
        grant = await lab.engine.grants.identity(id)
        assert grant is not None
        assert grant.id == grant_id_from_key(key)
        assert (await lab.engine.grants.claim(id, W1, key=key)).id == id


async def test_a_call_that_is_repeated_with_its_key_is_granted_once(lab: Lab) -> None:
    """The reply of the first was lost: the same caller gets the same grant, with the same end."""
    gone = await lost(lab)
    id = await lab.submit()
    first = await lab.engine.grants.issue(id, W1, ttl=GRANT, key="k")
    lab.clock.advance(1000)
    assert await lab.engine.grants.issue(id, W1, ttl=GRANT, key="k") == first
    for worker, key in ((W2, "k"), (WorkerIdentity("w1", "w1-b"), "k"), (W1, "other")):
        with pytest.raises(GrantExists):
            await lab.engine.grants.issue(id, worker, key=key)
    rescue = await lab.engine.grants.issue_reclaim(gone.id, W2, key="r")
    assert await lab.engine.grants.issue_reclaim(gone.id, W2, key="r") == rescue
    with pytest.raises(GrantExists):
        await lab.engine.grants.issue_reclaim(gone.id, W1, key="r")


async def test_a_key_redeems_its_own_grant_only(lab: Lab) -> None:
    id = await lab.submit()
    old = await lab.engine.grants.issue(id, "w1", ttl=GRANT)
    lab.clock.advance(GRANT)
    new = await lab.engine.grants.issue(id, "w1", ttl=GRANT)
    with pytest.raises(InvalidGrant):
        await lab.engine.grants.claim(id, W1, key=old.key)
    claim = await lab.engine.grants.claim(id, W1, key=new.key)
    await lab.engine.attempts.hand_back(claim)
    resume = await lab.engine.grants.issue(id, "w1")
    with pytest.raises(InvalidGrant):
        await lab.engine.grants.claim_resumed(id, W1, key=new.key)
    claim = await lab.engine.grants.claim_resumed(id, W1, ttl=TTL, key=resume.key)
    await lab.lose(claim)
    rescue = await lab.engine.grants.issue_reclaim(id, "w2")
    assert isinstance(rescue, Granted)
    assert await lab.engine.grants.reclaim(id, W2, key=resume.key) == GrantNotFound()
    assert isinstance(await lab.engine.grants.reclaim(id, W2, key=rescue.key), Claim)


@pytest.mark.rules
@pytest.mark.parametrize(
    "wrong",
    [
        {"key": ""},
        {"key": 7},
        {"notes": None},
        {"notes": GrantNotes(route_snapshot=7)},  # type: ignore[arg-type]
        {"notes": GrantNotes(admission_summary="x" * 20_000)},
        {"worker": WorkerIdentity("", "")},
        {"worker": 7},
    ],
)
async def test_what_cannot_be_kept_is_refused(lab: Lab, wrong: dict[str, Any]) -> None:
    id = await lab.submit()
    with pytest.raises(Invalid):
        await lab.engine.grants.issue(id, **{"worker": "w1", **wrong})
    assert await lab.engine.grants.identity(id) is None


# -- what is said about the attempt


async def granted_claim(lab: Lab, attempt: NewAttempt, id: ExecutionId | None = None) -> Claim:
    made = await lab.submit() if id is None else id
    await lab.engine.grants.issue(made, "w1")
    return await lab.engine.grants.claim(made, W1, ttl=TTL, attempt=attempt)


async def test_the_attempt_has_the_id_its_claim_gave_it(lab: Lab, second_lab: Lab) -> None:
    """§3.4: the fence is checked with it, in every process."""
    claim = await granted_claim(lab, NewAttempt(id=MINE))
    assert claim.attempt_id == MINE
    assert second_lab.engine.attempts.open(lab.engine.attempts.seal(claim)).attempt_id == MINE
    described = await second_lab.engine.views.describe(claim.id)
    assert described is not None
    assert described.attempt_id == MINE
    derived = Owner(claim.lease.id, claim.epoch, derive_attempt_id(claim.uuid, 0))
    with pytest.raises(StaleLease):
        await lab.engine.attempts.complete(FencedExecution(claim.id, derived), b"no")
    await second_lab.engine.attempts.complete(lab.engine.attempts.seal(claim), b"yes")
    await second_lab.engine.attempts.complete(lab.engine.attempts.seal(claim), b"again")
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert (attempt.id, attempt.result) == (MINE, b"yes")


async def test_the_next_attempt_has_an_id_of_its_own(lab: Lab) -> None:
    id = await lab.submit(policy=RETRY)
    policy = parse_policy({"priority": 7})
    first = await granted_claim(lab, NewAttempt(id=MINE, policy=policy), id)
    await lab.fail(first)
    second = await lab.claim_one(W2)
    assert second.attempt_id == derive_attempt_id(second.uuid, 1)
    await lab.complete(second)
    one, two = await lab.engine.views.attempts(id)
    assert (one.id, one.policy) == (MINE, policy)
    assert (two.id, two.policy) == (second.attempt_id, None)


async def test_a_paused_attempt_keeps_its_id(lab: Lab) -> None:
    claim = await granted_claim(lab, NewAttempt(id=MINE))
    await lab.engine.attempts.hand_back(claim)
    await lab.engine.attempts.hand_back(claim)  # the repeat is recognised by the same fence
    again = await lab.claim_one(W2)
    assert (again.attempt, again.attempt_id) == (0, MINE)
    await lab.complete(again)


async def test_a_reclaim_gives_its_attempt_an_id_too(lab: Lab) -> None:
    """§3.11: the handle carries the lease id and the attempt id of the caller."""
    first = await granted_claim(lab, NewAttempt(id=MINE))
    await lab.lose(first)
    other = UUID(int=MINE.int + 1)
    await lab.engine.grants.issue_reclaim(first.id, "w2")
    second = await lab.engine.grants.reclaim(
        first.id, W2, ttl=TTL, lease_id=other, attempt=NewAttempt(id=other)
    )
    assert isinstance(second, Claim)
    body = lab.engine.attempts.open(lab.engine.attempts.seal(second))
    assert (body.lease_id, body.attempt_id, body.kind) == (other, other, "reclaimed")
    assert [attempt.id for attempt in await lab.engine.views.attempts(first.id)] == [MINE, other]
    await lab.engine.attempts.fail(second, Failure("no", "permanent"))
    assert [attempt.id for attempt in await lab.engine.views.attempts(first.id)] == [MINE, other]


async def test_an_attempt_ends_when_the_time_its_claim_gave_is_over(lab: Lab) -> None:
    claim = await granted_claim(lab, NewAttempt(timeout=Millis(5_000)))
    await lab.pass_time(4_999)
    assert await lab.state(claim.id) is PublicState.ACTIVE
    await lab.pass_time(1)
    assert await lab.state(claim.id) is PublicState.EXPIRED


async def test_the_policy_of_an_attempt_is_kept_and_its_timeout_counts(lab: Lab) -> None:
    policy = parse_policy({"timeout_policy": {"attempt_timeout_ms": 5_000}})
    claim = await granted_claim(lab, NewAttempt(policy=policy))
    [attempt] = await lab.engine.views.attempts(claim.id)
    assert attempt.policy == policy
    assert claim.attempt_id == derive_attempt_id(claim.uuid, 0)
    await lab.pass_time(5_000)
    assert await lab.state(claim.id) is PublicState.EXPIRED


@pytest.mark.parametrize("way", ["claim", "reclaim"])
async def test_a_deadline_given_with_a_claim_is_armed(lab: Lab, way: str) -> None:
    """§3.4: it holds whatever becomes of the attempt."""
    if way == "claim":
        id = await lab.submit(policy=RETRY)
    else:
        id = (await lost(lab)).id
    deadline = Millis(lab.clock.now() + 20_000)
    attempt = NewAttempt(deadline_at=deadline)
    if way == "claim":
        claim = await granted_claim(lab, attempt, id)
    else:
        await lab.engine.grants.issue_reclaim(id, "w1")
        answer = await lab.engine.grants.reclaim(id, W1, ttl=TTL, attempt=attempt)
        assert isinstance(answer, Claim)
        claim = answer
    described = await lab.engine.views.describe(id)
    assert described is not None
    assert described.deadline_at == deadline
    await lab.engine.attempts.hand_back(claim)
    await lab.pass_time(20_000)
    assert await lab.state(id) is PublicState.EXPIRED


async def test_the_time_of_a_continued_attempt_can_be_given(lab: Lab) -> None:
    """§3.9: the remaining timeout."""
    claim = await lab.running()
    await lab.engine.attempts.hand_back(claim)
    await lab.engine.grants.issue(claim.id, "w1")
    await lab.engine.grants.claim_resumed(claim.id, W1, ttl=TTL, timeout=Millis(3_000))
    await lab.pass_time(3_000)
    assert await lab.state(claim.id) is PublicState.EXPIRED


@pytest.mark.parametrize(
    ("attempt", "error"),
    [
        (None, Invalid),
        (NewAttempt(id="no"), Invalid),  # type: ignore[arg-type]
        (NewAttempt(timeout=Millis(0)), Invalid),
        (NewAttempt(timeout="soon"), Invalid),  # type: ignore[arg-type]
        (NewAttempt(deadline_at=Millis(-1)), Invalid),
        (NewAttempt(policy={"priority": "high"}), InvalidPolicy),  # type: ignore[arg-type]
    ],
)
@pytest.mark.inside
async def test_a_wrong_attempt_is_refused_and_the_grant_stays(
    lab: Lab, attempt: Any, error: type[Exception]
) -> None:
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    with pytest.raises(error):
        await lab.engine.grants.claim(id, W1, attempt=attempt)
    assert (await lab.engine.grants.claim(id, W1)).id == id


async def test_repeats_agree_about_the_attempt(lab: Lab, second_lab: Lab) -> None:
    id = await lab.submit()
    await lab.engine.grants.issue(id, "w1")
    attempt = NewAttempt(id=MINE)
    claims = await asyncio.gather(
        *(
            each.engine.grants.claim(id, W1, lease_id=MINE, attempt=attempt)
            for each in [lab, second_lab] * 2
        )
    )
    assert {claim.fence for claim in claims} == {claims[0].fence}
    assert claims[0].attempt_id == MINE
