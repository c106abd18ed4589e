"""The slot of a run that ends goes to the run that follows in its flow, where the engine can claim
that run in the commit of the ending."""

from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID

from flowfabric.core.base.time import Millis
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.follow_ons import Begin
from flowfabric.store.hints import Nudge
from flowfabric.worker.run.active import ActiveRun
from flowfabric.worker.run.probation import ProbationWard
from flowfabric.worker.run.slot_returns import SlotReturns
from flowfabric.worker.run.slots import Slots


class SlotFollower:
    """Implements `engine.execution.follow_ons.FollowOnWorker`. `newest` has the runs of the worker,
    which claims none once `stopping` is set, and `launch` starts a claimed one."""

    def __init__(
        self,
        newest: Mapping[UUID, ActiveRun],
        slots: Slots,
        returns: SlotReturns,
        ward: ProbationWard,
        *,
        stopping: Nudge,
        launch: Callable[[Claim, Millis], None],
    ) -> None:
        self._newest = newest
        self._slots = slots
        self._returns = returns
        self._ward = ward
        self._stopping = stopping
        self._launch = launch

    def accepts(self, upstream: UUID, kind: str) -> Begin | None:
        """Passes on the slot of a run that reports its end, if the slot is free with the commit."""
        active = self._newest.get(upstream)
        if active is None or self._stopping.is_set() or not self._can_pass(active):
            return None
        if self._returns.is_over(active) and self._slots.can_pass(active.claim.kind, kind):
            return partial(self._begin, active)
        return None

    def _begin(self, active: ActiveRun, claim: Claim, now: Millis) -> bool:
        if not self._can_pass(active):  # a suspect may have come meanwhile
            return False
        self._returns.pass_on(active, claim.kind)
        self._launch(claim, now)
        return True

    def _can_pass(self, active: ActiveRun) -> bool:
        return active.reporting and active.has_slot and not self._ward.closed
