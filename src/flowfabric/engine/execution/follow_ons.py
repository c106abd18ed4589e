"""Follow-on claims: a worker that ends a member of a flow takes its downstream in the same commit,
without a ready row, a hint and a claim in between.

It takes only what its next claim would take first (`store.end_and_claim`), and only the one
downstream of an upstream, which gives it the slot. In all other cases a downstream becomes ready
and is claimed. A lost answer is like that of a claim: what was taken is handed back, or taken over
when its lease has expired.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import Taking
from flowfabric.core.execution.model import Active, Lease, WorkerIdentity
from flowfabric.core.flow.progress import DownstreamChange, claim_with
from flowfabric.engine.commit.observer import watching
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.claim_calls import ClaimCalls
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.flow.downstreams import DownstreamChanges
from flowfabric.engine.limit.lanes import Lanes
from flowfabric.store.hints import Topic
from flowfabric.store.queries import ChangedByEnds, ClaimCall

Begin = Callable[[Claim, Millis], bool]
"""Begins a claimed run, now, in the slot of its upstream; False if that cannot be done any more."""


class FollowOnWorker(Protocol):
    """A worker of this process that makes follow-on claims."""

    def accepts(self, upstream: UUID, kind: str) -> Begin | None:
        """What begins a run of this kind in the slot of a run of this worker that is about to end;
        None if the worker cannot."""


class FollowOn(Struct, frozen=True):
    """The follow-on claims of one commit: their call, and what begins the run of each by place
    among the downstreams."""

    call: ClaimCall
    begins: dict[int, Begin]

    def upstreams(self, changes: Sequence[DownstreamChange]) -> list[UUID]:
        """Whose endings give their slots to what is claimed."""
        return [upstream for place in self.begins for upstream in changes[place].upstreams]


class FollowOns(Service):
    """Part of `engine.attempts`, which writes endings."""

    def __init__(self, context: EngineContext, calls: ClaimCalls, lanes: Lanes) -> None:
        super().__init__(context)
        self._calls = calls
        self._lanes = lanes
        self._followers: dict[WorkerIdentity, tuple[FollowOnWorker, ClaimCall]] = {}

    @contextmanager
    def by(self, follower: FollowOnWorker, call: ClaimCall) -> Iterator[None]:
        """The worker of this call makes follow-on claims while the block runs."""
        mine = self._followers[call.worker] = follower, call
        try:
            yield
        finally:
            if self._followers.get(call.worker) is mine:  # a restart may have joined under its name
                del self._followers[call.worker]

    def decide(
        self, endings: Sequence[Change[object]], following: DownstreamChanges, now: Millis
    ) -> FollowOn | None:
        """Adds to the downstreams what their claims would be; None if there are none. One commit
        has the claims of one worker."""
        changes = following.changes
        found = self._followers.get(_lease(endings[0]).worker) if changes else None
        if found is None or not self._is_simple(found[1]):
            return None
        follower, call = found[0], replace(found[1], id=self._fresh())
        taking = Taking(call.id, call.worker, call.ttl)
        begins: dict[int, Begin] = {}
        for place, each in enumerate(changes):
            upstream = each.upstreams[0]
            only = len(each.upstreams) == len(following.open[upstream]) == 1
            claimed = claim_with(each.change, now, taking) if only else None
            if claimed is None or claimed.after is None:
                continue
            if (begin := follower.accepts(upstream, claimed.after.execution.kind)) is not None:
                begins[place], changes[place] = begin, replace(each, claimed=claimed)
        return FollowOn(call, begins) if begins else None

    def _is_simple(self, call: ClaimCall) -> bool:
        """Whether a claim would only take the best there is: the engine takes new work, no suspect
        has a turn, all lanes have the same weight, no budget is to be asked, and no claim is to be
        repeated first."""
        if self._context.stopping or self._context.store.suspects_seen:
            return False
        if self._calls.is_asked_first:
            return False
        return len(call.lanes) == 1 or self._lanes.unweighted

    async def write(
        self,
        follow_on: FollowOn,
        endings: Sequence[Change[object]],
        changes: Sequence[DownstreamChange],
        now: Millis,
    ) -> tuple[ChangedByEnds, list[Change[object]]]:
        """Writes the endings and their downstreams, and begins those that were claimed. Returns
        what was written, and the changes of downstreams among it."""
        call = follow_on.call
        try:
            written = await self._context.store.end_and_claim(endings, now, changes, call)
        except Unavailable:  # it may have been done
            self._hand_back_unheard(call, now)
            raise
        refused = any(upstream not in written for upstream in follow_on.upstreams(changes))
        if refused and not written.claimed:
            # Or done, but the reply was lost and only its repeat refused. A reply that names claims
            # names all of them, and their runs begin: they must not be handed back.
            self._hand_back_unheard(call, now)
        claims = self._begun(follow_on, changes, written.claimed)
        if claims:
            watching().claimed(
                [change.after for change in claims.values() if change.after is not None]
            )
        others = [each.change for place, each in enumerate(changes) if place not in claims]
        released = [
            each for each in others if each.before and each.before.execution.uuid in written
        ]
        return written, [*claims.values(), *released]

    def _hand_back_unheard(self, call: ClaimCall, now: Millis) -> None:
        """The next claim hands back what the call may have taken."""
        self._calls.unanswered([call], now)
        self._context.store.hints.wake(Topic.WORK)

    def _begun(
        self,
        follow_on: FollowOn,
        changes: Sequence[DownstreamChange],
        payloads: Mapping[UUID, bytes],
    ) -> dict[int, Change[object]]:
        """Begins what was claimed, which are the downstreams with payloads; by place."""
        now, ttl = self._now(), follow_on.call.ttl
        claims: dict[int, Change[object]] = {}
        for place, begin in follow_on.begins.items():
            claimed = changes[place].claimed
            if claimed is None or (snapshot := claimed.after) is None:
                continue
            if (payload := payloads.get(snapshot.execution.uuid)) is not None:
                claims[place] = claimed
                if not begin(Claim(snapshot, payload, ttl), now):
                    self._calls.rescue([snapshot])
        return claims


def _lease(ending: Change[object]) -> Lease:
    state = None if ending.before is None else ending.before.state
    if not isinstance(state, Active):
        raise Invalid("there is no current attempt to end")
    return state.lease
