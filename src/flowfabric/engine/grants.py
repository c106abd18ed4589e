"""Operators' and schedulers' way to a lease: grants, and claims that redeem them."""

from collections.abc import Iterable
from uuid import UUID

from flowfabric.core import grant as rules
from flowfabric.core.errors import Contention, GrantExists, Invalid, LeaseConflict, NotFound
from flowfabric.core.execution import Snapshot, Worker
from flowfabric.core.grant import (
    OPERATOR,
    Granted,
    Grantee,
    GrantNotFound,
    NotReclaimable,
    ReclaimCapExceeded,
)
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lease import DEFAULT_TTL, Taking
from flowfabric.core.routing import check_capabilities, satisfies
from flowfabric.core.text import check_lane, check_worker
from flowfabric.core.time import Millis
from flowfabric.engine.base import Noun
from flowfabric.engine.claims import Claim, check_ttl

MAX_GRANT = Millis(60_000)
DEFAULT_GRANT = Millis(10_000)
EXAMINED = 200


class Grants(Noun):
    """`engine.grants`"""

    async def issue(
        self,
        id: str,
        worker: str,
        *,
        capabilities: Iterable[str] = (),
        ttl: Millis = DEFAULT_GRANT,
    ) -> Granted:
        """Reserves a waiting execution for one worker; hidden from others until it is redeemed or
        runs out. An interrupted one (a resume grant) is redeemed by `claim_resumed`."""
        grantee = _grantee(worker, capabilities, ttl)
        return await self._decide(id, lambda held, now: rules.issue_grant(held, grantee, now))

    async def issue_reclaim(
        self,
        id: str,
        worker: str,
        *,
        capabilities: Iterable[str] = (),
        ttl: Millis = DEFAULT_GRANT,
        max_reclaims: int | None = None,
    ) -> Granted | NotReclaimable | ReclaimCapExceeded:
        """Reserves a lost execution for a rescuer."""
        grantee = _grantee(worker, capabilities, ttl)
        return await self._decide(
            id, lambda held, now: rules.issue_reclaim_grant(held, grantee, now, max_reclaims)
        )

    async def find_and_issue(
        self,
        worker: str,
        *,
        lane: str,
        capabilities: Iterable[str] = (),
        ttl: Millis = DEFAULT_GRANT,
        namespace: str | None = None,
    ) -> Granted | None:
        """The best waiting execution of a lane that this worker can run, granted to it; None when
        there is none. What it cannot run hides nothing behind it."""
        grantee = _grantee(worker, capabilities, ttl)
        candidates = await self._parts.store.candidates(
            check_lane(lane), namespace, self._now(), EXAMINED
        )
        for candidate in candidates:
            if not satisfies(candidate.execution.route.capabilities, grantee.capabilities):
                continue
            try:
                return await self.issue(
                    candidate.execution.id,
                    worker,
                    capabilities=grantee.capabilities,
                    ttl=grantee.ttl,
                )
            except (Contention, GrantExists, NotFound):
                continue  # a rival was faster; the next candidate is as good
        return None

    async def claim(
        self,
        id: str,
        worker: Worker,
        *,
        ttl: Millis = DEFAULT_TTL,
        lease_id: UUID | None = None,
        expected_attempt: int | None = None,
    ) -> Claim:
        """Redeems a claim grant: a new attempt starts under a new lease."""
        taking = self._taking(worker, ttl, lease_id)
        snapshot = await self._decide(
            id, lambda held, now: rules.claim_granted(held, taking, now, expected_attempt)
        )
        return await self._claim(snapshot, taking)

    async def claim_resumed(
        self, id: str, worker: Worker, *, ttl: Millis = DEFAULT_TTL, lease_id: UUID | None = None
    ) -> Claim:
        """Redeems a grant on an interrupted attempt: the same attempt goes on."""
        taking = self._taking(worker, ttl, lease_id)
        snapshot = await self._decide(id, lambda held, now: rules.claim_resumed(held, taking, now))
        return await self._claim(snapshot, taking)

    async def try_resume(
        self, id: str, worker: Worker, *, ttl: Millis = DEFAULT_TTL
    ) -> Claim | None:
        """As `claim_resumed`, but None when another worker holds a live lease already."""
        try:
            return await self.claim_resumed(id, worker, ttl=ttl)
        except LeaseConflict:
            return None

    async def take(
        self, id: str, *, ttl: Millis = DEFAULT_TTL, lease_id: UUID | None = None
    ) -> Claim:
        """An operator takes a waiting execution in one step, whatever it requires."""
        taking = self._taking(Worker(OPERATOR, OPERATOR), ttl, lease_id)
        snapshot = await self._decide(
            id, lambda held, now: rules.grant_and_claim(held, taking, now)
        )
        return await self._claim(snapshot, taking)

    async def reclaim(
        self,
        id: str,
        worker: Worker,
        *,
        ttl: Millis = DEFAULT_TTL,
        lease_id: UUID | None = None,
        max_reclaims: int | None = None,
    ) -> Claim | GrantNotFound | NotReclaimable | ReclaimCapExceeded:
        """Redeems a reclaim grant: a new attempt replaces the lost one. Only the worker id counts,
        another instance of it may redeem."""
        taking = self._taking(worker, ttl, lease_id)
        outcome = await self._decide(
            id, lambda held, now: rules.reclaim(held, taking, now, max_reclaims)
        )
        return await self._claim(outcome, taking) if isinstance(outcome, Snapshot) else outcome

    async def eligible(
        self, lane: str, *, limit: int = 100, namespace: str | None = None
    ) -> list[ExecutionId]:
        """What a claim of this lane would take, in order; nothing is taken."""
        if limit <= 0:
            return []
        found = await self._parts.store.candidates(check_lane(lane), namespace, self._now(), limit)
        return [snapshot.execution.id for snapshot in found]

    def _taking(self, worker: Worker, ttl: Millis, lease_id: UUID | None) -> Taking:
        check_worker(worker.id, "worker")
        check_worker(worker.instance, "instance")
        return Taking(self._fresh() if lease_id is None else lease_id, worker, check_ttl(ttl))

    async def _claim(self, snapshot: Snapshot, taking: Taking) -> Claim:
        detail = await self._parts.store.detail(snapshot.execution.uuid)
        if detail is None:
            raise NotFound("execution", snapshot.execution.id)
        return Claim(snapshot, detail.payload, taking.ttl)


def _grantee(worker: str, capabilities: Iterable[str], ttl: Millis) -> Grantee:
    if type(ttl) is not int or not 1 <= ttl <= MAX_GRANT:
        raise Invalid(f"a grant lasts 1 ms to {MAX_GRANT} ms, not {ttl!r}")
    offered = frozenset(check_capabilities(capabilities, "worker"))
    return Grantee(check_worker(worker, "worker"), offered, ttl)
