"""The list of leases that ran out or were revoked, and of what a worker holds."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.flow.flows import FlowCreated
from flowfabric.store.queries import ExpiredLease
from tests.kit.flow_lab import settle
from tests.kit.lab import TTL, W1, W2, Lab
from tests.kit.leases import (
    RUNNING,
    describe,
)

# -- every way to a lease, and the list of those that ran out


async def by_pull(lab: Lab) -> Claim:
    await lab.submit()
    return await lab.claim_one()


async def by_grant(lab: Lab) -> Claim:
    id = await lab.submit()
    await lab.engine.grants.issue(id, W1.id)
    return await lab.engine.grants.claim(id, W1, ttl=TTL)


async def by_resume_grant(lab: Lab) -> Claim:
    claim = await by_pull(lab)
    await lab.engine.attempts.hand_back(claim)
    await lab.engine.grants.issue(claim.id, W1.id)
    return await lab.engine.grants.claim_resumed(claim.id, W1, ttl=TTL)


async def by_continuing(lab: Lab) -> Claim:
    claim = await by_pull(lab)
    await lab.engine.attempts.hand_back(claim)
    return await lab.claim_one()


async def by_operator(lab: Lab) -> Claim:
    return await lab.engine.grants.take(await lab.submit(), ttl=TTL)


async def by_pull_after_a_loss(lab: Lab) -> Claim:
    claim = await by_pull(lab)
    await lab.engine.claims.revoke(claim.id, reason="")
    return await lab.claim_one()


async def by_reclaim_grant(lab: Lab) -> Claim:
    claim = await by_pull(lab)
    await lab.engine.claims.revoke(claim.id, reason="")
    await lab.engine.grants.issue_reclaim(claim.id, W1.id)
    reclaimed = await lab.engine.grants.reclaim(claim.id, W1, ttl=TTL)
    assert isinstance(reclaimed, Claim)
    return reclaimed


WAYS: dict[str, Callable[[Lab], Awaitable[Claim]]] = {
    way.__name__: way
    for way in (
        by_pull,
        by_grant,
        by_resume_grant,
        by_continuing,
        by_operator,
        by_pull_after_a_loss,
        by_reclaim_grant,
    )
}
every_way = pytest.mark.parametrize("way", WAYS)


def entry(claim: Claim) -> ExpiredLease:
    lease = claim.lease
    return ExpiredLease(
        id=claim.id,
        lease_id=lease.id,
        epoch=claim.epoch,
        instance=lease.worker.instance,
        expires_at=lease.expires_at,
        attempt=lease.attempt,
    )


def revoked(claim: Claim, at: Millis) -> ExpiredLease:
    return replace(entry(claim), expires_at=at)


@every_way
async def test_every_way_to_a_lease_gives_the_same_lease(lab: Lab, way: str) -> None:
    """INV-8: leased, a lease and a running attempt are one thing"""
    claim = await WAYS[way](lab)
    assert await lab.vector(claim.id) == RUNNING
    description = await describe(lab, claim.id)
    assert description.lease is not None
    assert description.lease.lease_id == claim.lease.id
    assert description.lease.expires_at == claim.expires_at == lab.clock.now() + TTL
    assert description.attempt_id == claim.attempt_id
    assert await lab.engine.claims.held_by(claim.lease.worker.instance) == [claim.id]
    await lab.complete(claim)
    assert await lab.engine.claims.held_by(claim.lease.worker.instance) == []
    assert (await describe(lab, claim.id)).lease is None


@every_way
async def test_an_expired_lease_is_listed_after_every_kind_of_claim(lab: Lab, way: str) -> None:
    """E-X20: before and after the sweep marked it, until somebody takes it"""
    claim = await WAYS[way](lab)
    lab.clock.advance(TTL - 1)
    assert await lab.engine.claims.expired() == []
    lab.clock.advance(1)
    assert await lab.engine.claims.expired() == [entry(claim)]
    await lab.engine.sweep.once()
    assert await lab.engine.claims.expired() == [entry(claim)]
    await lab.claim_one(W2)
    assert await lab.engine.claims.expired() == []


@every_way
async def test_a_revoked_lease_is_listed_after_every_kind_of_claim(lab: Lab, way: str) -> None:
    """§3.20, INV-19: what was revoked must be found again"""
    claim = await WAYS[way](lab)
    await lab.engine.claims.revoke(claim.id, reason="")
    assert await lab.engine.claims.expired() == [revoked(claim, lab.clock.now())]
    await lab.engine.executions.cancel(claim.id, reason="")
    assert await lab.engine.claims.expired() == []


async def test_a_lease_counts_as_expired_from_the_moment_it_was_revoked(lab: Lab) -> None:
    """E-X20, §3.20, §3.30: nothing is listed with an expiry after `as_of`, and the order and the
    cursor hold for revoked leases as well"""
    first = await lab.running()
    lab.clock.advance(10)
    second = await lab.running(W2)
    revoked_at = lab.clock.advance(10)
    await lab.engine.claims.revoke(second.id, reason="")
    expired = lab.engine.claims.expired
    assert await expired(as_of=Millis(revoked_at - 1)) == []
    assert await expired(as_of=revoked_at) == [revoked(second, revoked_at)]
    lab.clock.advance(TTL)
    found = await expired()
    assert found == [revoked(second, revoked_at), entry(first)]
    assert await expired(after=(found[0].expires_at, found[0].id)) == found[1:]


async def several_expired(lab: Lab, count: int = 6) -> list[Claim]:
    """Leases that ran out at three different moments, two each."""
    claims = []
    for number in range(count):
        await lab.submit()
        claims.append(await lab.claim_one(ttl=Millis(3000 - number // 2 * 1000)))
    lab.clock.advance(3000)
    return sorted(claims, key=lambda claim: (claim.expires_at, claim.uuid))


async def test_expired_leases_are_listed_by_expiry_and_id(lab: Lab) -> None:
    """E-X20, §3.30: some marked, some not"""
    claims = await several_expired(lab)
    for claim in claims[::2]:
        await lab.engine.claims.mark_expired(claim.id)
    assert await lab.engine.claims.expired() == [entry(claim) for claim in claims]


@pytest.mark.parametrize("size", [1, 2, 4, 5, 6, 7])
async def test_expired_leases_come_in_pages(lab: Lab, size: int) -> None:
    """E-X20: the cursor is exclusive"""
    claims = await several_expired(lab)
    await lab.engine.claims.mark_expired(claims[2].id)
    found: list[ExpiredLease] = []
    while True:
        last = (found[-1].expires_at, found[-1].id) if found else None
        page = await lab.engine.claims.expired(after=last, limit=size)
        found += page
        if len(page) < size:
            break
    assert found == [entry(claim) for claim in claims]


async def test_expired_leases_as_of_another_moment(lab: Lab) -> None:
    """C-T132, F-59: whether a lease was marked as lost by now makes no difference"""
    claims = await several_expired(lab)
    await lab.engine.claims.mark_expired(claims[1].id)
    await lab.engine.claims.mark_expired(claims[5].id)
    as_of = claims[2].expires_at
    assert await lab.engine.claims.expired(as_of=as_of) == [entry(claim) for claim in claims[:4]]
    assert await lab.engine.claims.expired(as_of=Millis(claims[0].expires_at - 1)) == []


async def test_expired_leases_of_one_namespace(lab: Lab) -> None:
    claims = [await lab.running(namespace=name) for name in ("a", "b", "a")]
    await lab.engine.claims.mark_expired(claims[0].id)
    lab.clock.advance(TTL)
    found = await lab.engine.claims.expired(namespace="a")
    assert [lease.id for lease in found] == [claims[0].id, claims[2].id]
    assert await lab.engine.claims.expired(namespace="c") == []


async def test_every_expired_lease_of_a_namespace_is_on_one_page(lab: Lab) -> None:
    """C-T132, F-59: solo runs and members of flows in one order, some marked and one revoked, other
    namespaces between them; what is reclaimed under the cursor moves nobody"""
    wanted: list[Claim] = []
    for number in range(6):
        for namespace in ("a", "b"):
            if number % 2:
                await lab.submit(namespace=namespace)
            else:
                flow = await lab.engine.flows.create("order", namespace=namespace)
                assert isinstance(flow, FlowCreated)
                job = Submission(kind="job", namespace=namespace)
                await lab.engine.flows.add(flow.id, job)
                await lab.engine.flows.seal(flow.id)
                await settle(lab.engine)
            claim = await lab.claim_one(ttl=Millis(2000 + number // 4))
            wanted += [claim] if namespace == "a" else []
    lab.clock.advance(2001)
    for claim in wanted[::3]:
        await lab.engine.claims.mark_expired(claim.id)
    await lab.engine.claims.revoke(wanted[1].id, reason="")
    wanted.sort(key=lambda claim: (claim.expires_at, claim.uuid))
    found: list[ExpiredLease] = []
    while page := await lab.engine.claims.expired(
        after=(found[-1].expires_at, found[-1].id) if found else None, limit=2, namespace="a"
    ):
        found += page
        await lab.engine.executions.cancel(page[-1].id, reason="")
    assert found == [entry(claim) for claim in wanted]


async def test_a_page_of_nothing_is_empty_and_one_too_large_is_cut(lab: Lab) -> None:
    """§3.30"""
    claims = await several_expired(lab)
    assert await lab.engine.claims.expired(limit=0) == []
    assert len(await lab.engine.claims.expired(limit=10**9)) == len(claims)


async def test_a_worker_instance_holds_what_it_claimed(lab: Lab) -> None:
    for _ in range(3):
        await lab.submit()
    mine = {claim.id for claim in await lab.claim(W1, limit=2)}
    [theirs] = await lab.claim(WorkerIdentity(W1.id, "w1-b"))
    assert set(await lab.engine.claims.held_by(W1.instance)) == mine
    assert await lab.engine.claims.held_by("w1-b") == [theirs.id]
    assert await lab.engine.claims.held_by("w9") == []
    assert len(await lab.engine.claims.held_by(W1.instance, limit=1)) == 1
