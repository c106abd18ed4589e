"""Grants: an operator or a scheduler reserves an execution for one worker, which redeems the
grant."""

import hmac
from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import (
    Contention,
    FlowFabricError,
    GrantExists,
    InvalidCapabilities,
    NotEligible,
    NotFound,
    NotLeaseable,
)
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.numbers import check_limit, check_whole
from flowfabric.core.base.pages import MAX_PAGE
from flowfabric.core.base.text import check_lane, check_namespace, check_worker
from flowfabric.core.base.time import Millis, Span, check_span
from flowfabric.core.execution import grant as rules
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.grant import (
    OPERATOR,
    Granted,
    Grantee,
    GrantNotFound,
    NotReclaimable,
    ReclaimCapExceeded,
)
from flowfabric.core.execution.grant_record import (
    KEY_PREFIX,
    NO_NOTES,
    Grant,
    GrantNotes,
    check_grant_key,
    check_notes,
    grant_id_from_key,
)
from flowfabric.core.execution.lease import DEFAULT_TTL, MAX_TTL, Taking
from flowfabric.core.execution.model import Active, Ready, Snapshot, WorkerIdentity
from flowfabric.core.execution.new_attempt import AS_PLANNED, NewAttempt, check_new_attempt
from flowfabric.core.execution.reclaim import check_reclaimable, issue_reclaim_grant, reclaim
from flowfabric.core.execution.routing import check_capabilities
from flowfabric.core.limit.budget import Exhausted, spent
from flowfabric.core.limit.budget_gate import is_new_work
from flowfabric.engine.commit.observer import looking, watching
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.attempts import seal_claim
from flowfabric.engine.execution.claims import Claim, check_known, check_ttl
from flowfabric.engine.limit.budget_gate import BudgetGate
from flowfabric.store.queries import Claimable, Taken

MAX_GRANT = MAX_TTL
DEFAULT_GRANT = Millis(10_000)
EXAMINED = 200
LOOKS = 5
"""How many pages of executions without budget one search moves out of its way."""


class Grants(Service):
    """`engine.grants`"""

    def __init__(self, context: EngineContext, budget_gate: BudgetGate) -> None:
        super().__init__(context)
        self._budget_gate = budget_gate

    async def issue(
        self,
        id: str,
        worker: str | WorkerIdentity,
        *,
        capabilities: Iterable[str] = (),
        ttl: Span = DEFAULT_GRANT,
        key: str | None = None,
        notes: GrantNotes = NO_NOTES,
    ) -> Granted:
        """Reserves a waiting execution for one worker, even in a paused lane, because the caller
        chose it. Other workers do not see it until the grant is redeemed or expires. A grant on an
        interrupted attempt is redeemed by `claim_resumed`.

        A grant has a key: the given one, so that the call can be repeated, or a new one. `notes`
        are stored with it."""
        try:
            grantee = self._grantee(worker, capabilities, ttl, key, notes)
        except InvalidCapabilities:
            await self._decide_settled(id, rules.check_grantable)  # whose errors come first
            raise
        return await self._decide_settled(id, rules.issue_grant, grantee)

    async def issue_reclaim(
        self,
        id: str,
        worker: str | WorkerIdentity,
        *,
        capabilities: Iterable[str] = (),
        ttl: Span = DEFAULT_GRANT,
        max_reclaims: int | None = None,
        key: str | None = None,
        notes: GrantNotes = NO_NOTES,
    ) -> Granted | NotReclaimable | ReclaimCapExceeded:
        """Reserves a lost execution for one worker."""
        cap = _count(max_reclaims, "max_reclaims")
        try:
            grantee = self._grantee(worker, capabilities, ttl, key, notes)
        except InvalidCapabilities:
            refused = await self._decide(id, check_reclaimable, cap)  # which comes first
            if refused is not None:
                return refused
            raise
        return await self._decide(id, issue_reclaim_grant, grantee, cap)

    async def find_and_issue(
        self,
        worker: str | WorkerIdentity,
        *,
        lane: str,
        capabilities: Iterable[str] = (),
        ttl: Span = DEFAULT_GRANT,
        namespace: str | None = None,
        notes: GrantNotes = NO_NOTES,
    ) -> Granted | None:
        """Grants the best waiting execution of a lane that this worker can run; None if there is
        none, or the lane is paused or runs as many as it may. Executions that it cannot run stay as
        they are; those that it finds without budget go and wait for their budgets."""
        grantee = self._grantee(worker, capabilities, ttl, None, notes)
        place = None if namespace is None else check_namespace(namespace)
        name = check_lane(lane)
        settled = False
        with looking(name):
            await self._let_in()
            for _ in range(LOOKS):
                seen = self._context.store.hints.count
                candidates = await self._context.store.snapshots(
                    Claimable(name, place, self._now(), EXAMINED, grantee.capabilities)
                )
                granted, refused = await self._grant_first(candidates, grantee)
                if granted is not None:
                    with suppress(FlowFabricError):  # the next search meets them again
                        await self._budget_gate.hold_back(refused)
                    return granted
                if refused:
                    await self._budget_gate.hold_back(refused)
                    continue
                if settled or not await self._context.rounds.settle(seen):
                    return None
                settled = True
        return None

    async def _grant_first(
        self, candidates: Iterable[Snapshot], grantee: Grantee
    ) -> tuple[Granted | None, list[tuple[Snapshot, Exhausted]]]:
        """The grant of the first of these that can be had, and those before it whose budget is
        used up."""
        refused: list[tuple[Snapshot, Exhausted]] = []
        for candidate in candidates:
            if (why := await self._spent(candidate)) is not None:
                refused.append((candidate, why))
                continue
            with suppress(Contention, GrantExists, NotFound):  # the next one is as good
                asked = replace(grantee, key=self._new_key())
                return await self._decide(candidate.execution.id, rules.issue_grant, asked), refused
        return None, refused

    async def handle_of(self, owned: Claim) -> str:
        """As `attempts.seal`, also through a server, which alone has the secret."""
        return seal_claim(self._context, owned)

    async def identity(self, id: str) -> Grant | None:
        """The live grant of an execution: which worker and instance hold it, for what and until
        when; None if there is none, or it was redeemed or has expired."""
        return rules.grant_at(await self._present(id), self._now())

    async def claim(
        self,
        id: str,
        worker: WorkerIdentity,
        *,
        ttl: Span = DEFAULT_TTL,
        lease_id: UUID | None = None,
        expected_attempt: int | None = None,
        key: str | None = None,
        attempt: NewAttempt = AS_PLANNED,
    ) -> Claim:
        """Redeems a claim grant: a new attempt starts under a new lease. `NotEligible` if one of
        its budgets is used up: it waits for the budget, and the grant is gone.

        Give a `lease_id` if the reply may get lost: the same worker and instance get the same lease
        again with the same lease id, also if its budgets are used up by then. With a `key`, only
        the grant with that key is redeemed. `attempt` gives the new attempt an id, a policy and a
        timeout, and the execution a deadline. The same arguments work for every kind of
        redemption."""
        taking = self._taking(worker, ttl, lease_id, key, attempt)
        expected = _count(expected_attempt, "expected_attempt")
        starts = False

        def redeem(found: Snapshot | None, now: Millis) -> Change[Snapshot]:
            nonlocal starts
            change = rules.claim_granted(found, now, taking, expected)
            starts = starts or change.after is not None  # a repeat has started already
            return change

        snapshot = await self._decide(id, redeem)
        return await self._claim(await self._admitted(snapshot) if starts else snapshot, taking)

    async def claim_resumed(
        self,
        id: str,
        worker: WorkerIdentity,
        *,
        ttl: Span = DEFAULT_TTL,
        lease_id: UUID | None = None,
        key: str | None = None,
        timeout: Span | None = None,
    ) -> Claim:
        """Redeems a grant on an interrupted attempt: the same attempt continues. `timeout` is its
        time from now on, instead of what it had left."""
        span = None if timeout is None else check_span(timeout, "timeout", 1)
        taking = self._taking(worker, ttl, lease_id, key, NewAttempt(timeout=span))
        snapshot = await self._decide(id, rules.claim_resumed, taking)
        return await self._claim(snapshot, taking)

    async def try_resume(
        self,
        id: str,
        worker: WorkerIdentity,
        *,
        ttl: Span = DEFAULT_TTL,
        lease_id: UUID | None = None,
        key: str | None = None,
        timeout: Span | None = None,
    ) -> Claim | None:
        """Like `claim_resumed`, but None if another worker already holds a live lease; a worker
        that holds it itself gets the error."""
        try:
            return await self.claim_resumed(
                id, worker, ttl=ttl, lease_id=lease_id, key=key, timeout=timeout
            )
        except NotLeaseable:
            found = await self._load(id)
            state = None if found is None else found.state
            lease = state.lease if isinstance(state, Active) else None
            if lease is not None and lease.expires_at > self._now() and lease.worker != worker:
                return None
            raise

    async def take(
        self, id: str, *, ttl: Span = DEFAULT_TTL, lease_id: UUID | None = None
    ) -> Claim:
        """An operator takes a waiting execution in one step, ignoring its requirements, its lane
        and its budgets."""
        taking = self._taking(WorkerIdentity(OPERATOR, OPERATOR), ttl, lease_id)
        snapshot = await self._decide_settled(id, rules.grant_and_claim, taking)
        return await self._claim(snapshot, taking)

    async def reclaim(
        self,
        id: str,
        worker: WorkerIdentity,
        *,
        ttl: Span = DEFAULT_TTL,
        lease_id: UUID | None = None,
        max_reclaims: int | None = None,
        key: str | None = None,
        attempt: NewAttempt = AS_PLANNED,
    ) -> Claim | GrantNotFound | NotReclaimable | ReclaimCapExceeded:
        """Redeems a reclaim grant: a new attempt replaces the lost one. Only the worker id counts;
        another instance of the worker may redeem."""
        cap = _count(max_reclaims, "max_reclaims")
        taking = self._taking(worker, ttl, lease_id, key, attempt)
        outcome = await self._decide(id, reclaim, taking, cap)
        return await self._claim(outcome, taking) if isinstance(outcome, Snapshot) else outcome

    async def eligible(
        self, lane: str, *, limit: int = 100, namespace: str | None = None
    ) -> list[ExecutionId]:
        """The executions that wait for a worker in this lane, in claim order, even if the lane is
        paused; nothing is taken."""
        wanted, name = check_limit(limit, MAX_PAGE), check_lane(lane)
        place = None if namespace is None else check_namespace(namespace)
        if not wanted:
            return []
        found = await self._context.store.snapshots(Claimable(name, place, self._now(), wanted))
        return [snapshot.execution.id for snapshot in found]

    async def _spent(self, candidate: Snapshot) -> Exhausted | None:
        """The used-up budget that keeps it from starting. A started execution continues."""
        state = candidate.state
        if not isinstance(state, Ready) or not is_new_work(candidate, state.next.start):
            return None
        names = await self._budget_gate.known.names_of(candidate.execution)
        known = await self._budget_gate.known.budgets(names) if names else {}
        why = spent(known, names)
        if why is not None:
            watching().refused_by_budget(why.dimension)
        return why

    async def _admitted(self, snapshot: Snapshot) -> Snapshot:
        if not await self._budget_gate.check([Taken(snapshot, b"")]):
            raise NotEligible(
                f"a budget of {snapshot.run} is used up; the run waits until the budget has room"
            )
        return snapshot

    def _taking(
        self,
        worker: WorkerIdentity,
        ttl: Span,
        lease_id: UUID | None,
        key: str | None = None,
        attempt: NewAttempt = AS_PLANNED,
    ) -> Taking:
        self._accept()
        id = self._fresh() if lease_id is None else parse_uuid(lease_id, "lease")
        grant = None if key is None else grant_id_from_key(key)
        return Taking(id, check_known(worker), check_ttl(ttl), check_new_attempt(attempt), grant)

    def _grantee(
        self,
        worker: str | WorkerIdentity,
        capabilities: Iterable[str],
        ttl: Span,
        key: str | None,
        notes: GrantNotes,
    ) -> Grantee:
        self._accept()
        span = check_span(ttl, "grant ttl", 1, MAX_GRANT)
        offered = frozenset(check_capabilities(capabilities, "worker"))
        known = check_known(worker) if isinstance(worker, WorkerIdentity) else None
        return Grantee(
            worker=known.id if known else check_worker(worker, "worker"),
            capabilities=offered,
            ttl=span,
            instance=known.instance if known else "",
            key=self._new_key() if key is None else check_grant_key(key),
            notes=check_notes(notes),
        )

    def _new_key(self) -> str:
        """Text that only its receiver knows: a signed, unique number."""
        digest = hmac.digest(self._context.secret, b"grant" + self._fresh().bytes, "sha256")
        return KEY_PREFIX + digest.hex()

    async def _claim(self, snapshot: Snapshot, taking: Taking) -> Claim:
        detail = await self._context.store.detail(snapshot.execution.uuid)
        if detail is None:
            raise NotFound("execution", snapshot.execution.id)
        watching().claimed([snapshot])
        return Claim(snapshot, detail.payload, taking.ttl)


def _count(value: int | None, what: str) -> int | None:
    return None if value is None else check_whole(value, what)
