"""Leases: claim, renew, revoke, and find lost ones."""

import asyncio
import hmac
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from time import monotonic
from typing import Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.numbers import (
    Seconds,
    check_flag,
    check_items,
    check_kind_of,
    check_limit,
    check_names,
    check_seconds,
    check_whole,
)
from flowfabric.core.base.text import (
    MAX_KEY,
    MAX_NAME,
    MAX_REASON,
    check_kind,
    check_lane,
    check_namespace,
    check_text,
    check_worker,
)
from flowfabric.core.base.time import Millis, Span, check_moment, check_span
from flowfabric.core.execution import lease as rules
from flowfabric.core.execution import probation
from flowfabric.core.execution.handle import HandleKind
from flowfabric.core.execution.lease import (
    AlreadySatisfied,
    MarkedExpired,
    Owner,
    Renewed,
    Revoked,
    check_owner,
)
from flowfabric.core.execution.model import (
    Active,
    Fence,
    Lease,
    Probation,
    Snapshot,
    Start,
    WorkerIdentity,
)
from flowfabric.core.execution.policy import Policy
from flowfabric.core.execution.routing import check_capabilities
from flowfabric.core.execution.step import Step
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.claim_calls import MAX_CLAIM, ClaimCalls
from flowfabric.engine.limit.budget_gate import BudgetGate
from flowfabric.engine.limit.lanes import Lanes
from flowfabric.store.contract import Store
from flowfabric.store.hints import Topic, Topics
from flowfabric.store.queries import ClaimCall, ExpiredLease, Renewal, Suspects, Taken

log = logging.getLogger("flowfabric.claims")

POLL_FLOOR = 1.0
MAX_EXPIRED_PAGE = 10_000
MAX_HELD = 10_000

_NO_ID = UUID(int=0)
_FIXED = (tuple, frozenset, type(None))
"""What a call is remembered by cannot change afterwards."""

_KINDS = {Start.CONTINUE: HandleKind.RESUMED, Start.RECLAIM: HandleKind.RECLAIMED}


class Claim(Struct, frozen=True, gc=False):
    """What a worker holds while it owns an execution: the value on which its operations decide.
    `steps` are those that were recorded before the claim, in order; None if they were not read."""

    snapshot: Snapshot
    payload: bytes
    ttl: Millis
    steps: tuple[Step, ...] | None = None

    @property
    def lease(self) -> Lease:
        state = self.snapshot.state
        if not isinstance(state, Active):
            raise Invalid("a Claim is expected, as engine.claims.claim returns it")
        return state.lease

    @property
    def id(self) -> ExecutionId:
        return self.snapshot.execution.id

    @property
    def uuid(self) -> UUID:
        return self.snapshot.execution.uuid

    @property
    def kind(self) -> str:
        """The kind of work, as submitted."""
        return self.snapshot.execution.kind

    @property
    def policy(self) -> Policy:
        return self.snapshot.execution.rules

    @property
    def handle_kind(self) -> HandleKind:
        return _KINDS.get(self.lease.start, HandleKind.FRESH)

    @property
    def epoch(self) -> int:
        return self.snapshot.head.epoch

    @property
    def attempt(self) -> int:
        return self.lease.attempt

    @property
    def attempt_id(self) -> UUID:
        return self.snapshot.attempt_id_of(self.lease.attempt)

    @property
    def may_have_steps(self) -> bool:
        """Whether steps may have been recorded before this claim: a first attempt has none, unless
        they were copied from another run."""
        return self.lease.start is not Start.INITIAL or self.snapshot.life.seeded

    @property
    def expires_at(self) -> Millis:
        return self.lease.expires_at

    @property
    def fence(self) -> Fence:
        return rules.fence_of(self.snapshot, self.lease)

    @property
    def owner(self) -> Owner:
        return Owner.of(self.fence)


class Renewals(dict[UUID, Renewed | FlowFabricError]):
    """The outcome of each renewal, by lease id. The id of an execution finds the answer for its
    newest claim."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[UUID, Claim] = {}

    def put(self, claim: Claim, answer: Renewed | FlowFabricError) -> None:
        self[claim.lease.id] = answer
        newest = self._newest.get(claim.uuid)
        if newest is None or newest.epoch < claim.epoch:
            self._newest[claim.uuid] = claim

    def __missing__(self, key: UUID) -> Renewed | FlowFabricError:
        return self[self._newest[key].lease.id]


class Claims(Service):
    """`engine.claims`"""

    def __init__(self, context: EngineContext, lanes: Lanes, budget_gate: BudgetGate) -> None:
        super().__init__(context)
        self._lanes = lanes
        self.calls = ClaimCalls(context, budget_gate)
        self._renewals: Batcher[Renewal, Millis | None] = Batcher(
            "renew", partial(_flush_renewals, context.store), keys=lambda renewal: (renewal.uuid,)
        )

    async def claim(  # noqa: PLR0913 - the options are the interface
        self,
        worker: WorkerIdentity,
        *,
        lanes: Sequence[str] | Mapping[str, int] = (),
        capabilities: Iterable[str] = (),
        kinds: Iterable[str] | None = None,
        limit: int = 1,
        ttl: Span = rules.DEFAULT_TTL,
        namespace: str | None = None,
        max_wait: Seconds = 0.0,
        suspects: Suspects = Suspects.ANY,
        key: str | None = None,
        id: UUID | None = None,
    ) -> list[Claim]:
        """Claims up to `limit` executions that this worker can run, best first; an empty list is
        not an error. Lanes with weights (given here, or else set by an operator) are served in that
        proportion; without weights, priority and age decide across all of them, and no lane means
        every lane. `kinds` restricts the claim to these tasks. Waits up to `max_wait` seconds for
        work to arrive. `suspects` includes or excludes executions that may have killed their
        worker; a process that runs several executions takes those alone.

        A caller that may lose the reply gives a `key`: the same worker and instance that repeat
        the call with it, at any process, get what it took and still holds, and no more than
        `limit` in all. With an `id` that the caller has made, `taken` tells what the call took."""
        self._accept()
        names, weights = check_lanes(lanes), _weights(lanes)
        call = self._call(worker, names, capabilities, kinds, limit, ttl, namespace, suspects)
        if id is not None:
            call = replace(call, id=parse_uuid(id, "claim"))
        if key is not None:
            keyed = _keyed_id(self._context.secret, call, key)
            call = replace(call, id=keyed, repeated=True)
        await self.calls.recover()
        if not weights and len(call.lanes) != 1:
            weights = await self._lanes.weights(call.lanes)
        if call.repeated and (taken := await self.calls.taken_before(call, weights)):
            return _claims(taken, call.ttl)
        taken = await self._until(call, weights, check_seconds(max_wait, "max_wait"))
        return _claims(taken, call.ttl)

    def call(
        self,
        worker: WorkerIdentity,
        *,
        lanes: Sequence[str] | Mapping[str, int],
        capabilities: Iterable[str],
        kinds: Iterable[str],
        ttl: Span,
        namespace: str | None,
    ) -> ClaimCall | None:
        """What a claim of one execution asks the store for; None if its lanes have weights."""
        names = check_lanes(lanes)
        if _weights(lanes):
            return None
        return self._call(worker, names, capabilities, kinds, 1, ttl, namespace, Suspects.NONE)

    async def recover(self) -> None:
        """Returns what was taken by claims whose replies were lost, so that it can be claimed at
        once and not only after its lease has expired. Every claim does this first."""
        await self.calls.recover()

    async def taken(
        self, worker: WorkerIdentity, id: UUID, *, limit: int = 1, ttl: Span = rules.DEFAULT_TTL
    ) -> list[Claim]:
        """What a claim with this id has taken and its worker still holds; for a caller that lost
        the answer. `limit` and `ttl` are those of the claim."""
        call = self._call(worker, (), (), None, limit, ttl, None, Suspects.ANY)
        named = replace(call, id=parse_uuid(id, "claim"))
        return _claims(await self.calls.taken_by(named), call.ttl)

    async def hand_back(self, claims: Sequence[Claim]) -> list[object]:
        """Gives up claims whose answer has reached no worker: the same attempts go on elsewhere,
        and no retry is used. What a repeat of the call got meanwhile, from any process, is left
        alone; what cannot be given up now is taken over when its lease has expired."""
        given = [check_kind_of(each, Claim, "claim") for each in check_items(claims, "claims")]
        return await self.calls.hand_back([each.snapshot for each in given])

    async def extend(self, renewals: Sequence[Renewal]) -> dict[UUID, Millis]:
        """Extends many leases, given by their fences, and returns until when: the heartbeat of a
        worker. A lease that is not in the answer is lost."""
        checked = [_check_renewal(each) for each in check_items(renewals, "renewals")]
        return await self._context.store.renew(checked, self._now())

    async def renew(self, owned: Claim, ttl: Span | None = None, *, record: bool = True) -> Renewed:
        """Extends the lease to now + ttl, never shortens it; otherwise raises a `LeaseLost` that
        says why. The renewal is an event, unless `record` is False."""
        lease = check_kind_of(owned, Claim, "claim").lease
        span = owned.ttl if ttl is None else check_ttl(ttl)
        events = check_flag(record, "record")
        renewal = Renewal(owned.uuid, lease.id, owned.epoch, span, events)
        expires_at = await self._renewals.put(renewal)
        if expires_at is not None:
            return Renewed(expires_at, owned.epoch)
        return await self.renew_as(owned.id, owned.owner, span, record=events)

    async def renew_as(
        self, id: str, owner: Owner, ttl: Span, *, signed: bool = False, record: bool = True
    ) -> Renewed:
        """The same for a caller that holds an id and a fence instead of a claim. If the engine has
        `signed` that fence, its attempt is that of its lease and need not be compared."""
        span, who, events = check_ttl(ttl), check_owner(owner), check_flag(record, "record")
        fence = who.fence if signed else None
        if fence is not None:
            renewal = Renewal(ExecutionId(id).uuid, fence.lease_id, fence.epoch, span, events)
            expires_at = await self._renewals.put(renewal)
            if expires_at is not None:
                return Renewed(expires_at, fence.epoch)
        return await self._decide(id, partial(rules.renew, record=events), who, span)

    async def renew_all(self, owned: Sequence[Claim], *, record: bool = False) -> "Renewals":
        """One heartbeat for everything a worker holds: for each claim, the renewal or why it was
        lost. An old and a new claim of one execution each have an answer. The renewals are events
        with `record` only."""
        claims = [check_kind_of(each, Claim, "claim") for each in check_items(owned, "claims")]
        answers = await asyncio.gather(
            *(self.renew(claim, record=record) for claim in claims), return_exceptions=True
        )
        found = Renewals()
        for claim, answer in zip(claims, answers, strict=True):
            if not isinstance(answer, Renewed | FlowFabricError):
                raise answer
            found.put(claim, answer)
        return found

    async def revoke(
        self, id: str, *, reason: str, lease_id: UUID | None = None, instance: str = ""
    ) -> Revoked | AlreadySatisfied:
        """An operator takes the lease away; the old worker can no longer change anything."""
        text = check_text(reason, "reason", limit=MAX_REASON)
        check_text(instance, "instance", limit=MAX_NAME)
        aimed_at = None if lease_id is None else parse_uuid(lease_id, "lease")
        return await self._decide(
            id,
            rules.revoke,
            reason=text,
            lease_id=aimed_at,
            instance=instance,
        )

    async def watch(self, owned: Claim, *, alone: bool) -> Claim:
        """Puts a suspect on probation: whether it is alone in its process decides what another loss
        means. Returns the updated claim."""
        claim = check_kind_of(owned, Claim, "claim")
        how = Probation.ALONE if check_flag(alone, "alone") else Probation.BESIDE
        after = await self._decide(claim.id, probation.watch, claim.owner, how)
        return replace(claim, snapshot=after)

    async def clear(self, owned: Claim, reason: str) -> bool:
        """Clears a suspect that a worker has survived; its losses are excused."""
        claim = check_kind_of(owned, Claim, "claim")
        text = check_text(reason, "reason", limit=MAX_REASON)
        return await self._decide(claim.id, probation.clear, claim.owner, text)

    async def mark_expired(self, id: str) -> MarkedExpired | AlreadySatisfied:
        """Marks an expired lease as lost. The sweep also does this."""
        grace = self._context.options.grace
        return await self._decide(id, rules.mark_expired, grace)

    async def expired(
        self,
        *,
        as_of: Millis | None = None,
        after: tuple[Millis, ExecutionId] | None = None,
        limit: int = 1000,
        namespace: str | None = None,
    ) -> list[ExpiredLease]:
        """Leases that expired or were revoked until `as_of` (now), and wait for a reclaim, by that
        moment and id."""
        wanted = check_limit(limit, MAX_EXPIRED_PAGE)
        moment = self._now() if as_of is None else check_moment(as_of, "as_of")
        cursor = None if after is None else _expired_cursor(after)
        place = None if namespace is None else check_namespace(namespace)
        if not wanted:
            return []
        return await self._context.store.expired_leases(moment, cursor, wanted, place)

    async def held_by(self, instance: str, limit: int = 1000) -> list[ExecutionId]:
        """The executions of which a worker instance holds leases."""
        name = check_worker(instance, "instance")
        wanted = check_limit(limit, MAX_HELD)
        if not wanted:
            return []
        held = await self._context.store.held_leases(name, wanted)
        return [lease.id for lease in held]

    async def drain(self) -> None:
        await self._renewals.drain()
        await self.calls.drain()

    async def _until(
        self, call: ClaimCall, weights: dict[str, int], max_wait: float
    ) -> list[Taken]:
        """Looks for work until there is some, or the time is up."""
        loop, hints = asyncio.get_running_loop(), self._context.store.hints
        give_up_at = loop.time() + max_wait
        settled = False
        while True:
            seen, began = hints.count, monotonic()
            try:  # not a block of its own: every caller that claims one run would pay for it
                taken = await self.calls.take(call, weights)
            finally:
                watching().looked(call.lanes, monotonic() - began)
            if taken:
                watching().claimed([item.snapshot for item in taken])
                return taken
            remaining = give_up_at - loop.time()
            if remaining > 0:
                # All callers look at the same moments, so that they share the statement.
                next_look = POLL_FLOOR - loop.time() % POLL_FLOOR
                await hints.wait(min(remaining, next_look), seen, hinted_by(self._context.store))
            elif settled or not await self._context.rounds.settle(seen):
                return []
            else:
                settled = True
            if self._context.stopping:
                return []

    def _call(
        self,
        worker: WorkerIdentity,
        lanes: tuple[object, ...],
        capabilities: Iterable[str],
        kinds: Iterable[str] | None,
        *more: Any,
    ) -> ClaimCall:
        """The call that is asked for, checked. A worker asks for the same again and again."""
        asked = (worker, lanes, capabilities, kinds, *more)
        fixed = type(capabilities) in _FIXED and type(kinds) in _FIXED
        try:
            call = _known_call(*asked) if fixed else _checked_call(*asked)
        except TypeError:  # an argument of a wrong type has no hash
            call = _checked_call(*asked)
        return replace(call, id=self._fresh())


def _checked_call(
    worker: WorkerIdentity,
    lanes: Iterable[object],
    capabilities: Iterable[str],
    kinds: Iterable[str] | None,
    limit: int,
    ttl: Span,
    namespace: str | None,
    suspects: Suspects,
) -> ClaimCall:
    """A valid call, still without an id."""
    return ClaimCall(
        id=_NO_ID,
        worker=check_known(worker),
        capabilities=frozenset(check_capabilities(capabilities, "worker")),
        lanes=tuple(check_lane(lane) for lane in lanes),
        namespace=None if namespace is None else check_namespace(namespace),
        limit=check_whole(limit, "the limit of a claim", 1, MAX_CLAIM),
        ttl=check_ttl(ttl),
        kinds=None if kinds is None else frozenset(map(check_kind, check_names(kinds, "kinds"))),
        suspects=check_kind_of(suspects, Suspects, "suspects"),
    )


_known_call = lru_cache(maxsize=256, typed=True)(_checked_call)


async def _flush_renewals(store: Store, renewals: list[Renewal]) -> list[Millis | None]:
    extended: Mapping[UUID, Millis] = {}
    try:
        extended = await store.renew(renewals, store.clock.now())
    finally:
        watching().renewed(len(extended), len(renewals) - len(extended))
    return [extended.get(renewal.uuid) for renewal in renewals]


def _check_renewal(renewal: object) -> Renewal:
    checked = check_kind_of(renewal, Renewal, "renewal")
    return Renewal(
        parse_uuid(checked.uuid, "execution"),
        parse_uuid(checked.lease_id, "lease"),
        check_whole(checked.epoch, "epoch"),
        check_ttl(checked.ttl),
        check_flag(checked.record, "record"),
    )


def _claims(taken: Iterable[Taken], ttl: Millis) -> list[Claim]:
    return [Claim(item.snapshot, item.payload, ttl, item.steps) for item in taken]


def check_ttl(ttl: object) -> Millis:
    """The length of a lease."""
    return check_span(ttl, "lease ttl", 1, rules.MAX_TTL)


def check_known(worker: object) -> WorkerIdentity:
    """`worker` if it has valid names."""
    checked = check_kind_of(worker, WorkerIdentity, "worker")
    check_worker(checked.id, "worker")
    check_worker(checked.instance, "instance")
    return checked


def check_lanes(lanes: object) -> tuple[object, ...]:
    """The lanes of a worker, which may have weights."""
    if type(lanes) is list or not isinstance(lanes, Mapping):
        return check_names(lanes, "lanes")
    for weight in lanes.values():
        check_whole(weight, "the weight of a lane", 1)
    return tuple(lanes)


def _expired_cursor(after: object) -> tuple[Millis, UUID]:
    if not isinstance(after, tuple) or len(after) != 2:
        raise Invalid("a cursor of expired leases must be a pair of expiry and id")
    return check_moment(after[0], "cursor"), ExecutionId(after[1]).uuid


def _weights(lanes: Sequence[str] | Mapping[str, int]) -> dict[str, int]:
    if len(lanes) < 2 or not isinstance(lanes, Mapping):
        return {}
    return dict(lanes)


def _keyed_id(secret: bytes, call: ClaimCall, key: object) -> UUID:
    """The id of a call with this key. Another worker, or one in another namespace, gets another
    one for the same key, and only this deployment can compute it."""
    text = check_text(key, "key", limit=MAX_KEY)
    parts = (call.worker.id, call.worker.instance, call.namespace or "", text)
    said = b"claim" + b"".join(len(part).to_bytes(4) + part for part in map(str.encode, parts))
    return UUID(bytes=hmac.digest(secret, said, "sha256")[:16], version=5)


def hinted_by(store: Store) -> Topics:
    """What may make a claim find more than the last one did. An ending frees the place of a
    suspect, or one in a lane with a concurrency; slots of a quota are hinted at as work."""
    if store.suspects_seen or store.lanes_seen:
        return Topic.WORK | Topic.ENDINGS
    return Topic.WORK
