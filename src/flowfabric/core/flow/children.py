"""What a run remembers of the flows it has started, which end with it unless it succeeds, and of
the runs that wait for its own end."""

from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.lease import present, unended
from flowfabric.core.execution.model import Ended, Snapshot

MAX_AWAITING = 1_000
"""How many runs can wait for the end of one run without a worker."""


def start(snapshot: Snapshot | None, now: Millis, flow: UUID) -> Change[object]:
    """The run starts a flow; written together with the flow itself. One that has ended starts
    nothing: nothing would cancel the flow."""
    snapshot = unended(snapshot)
    life = replace(snapshot.life, flows=(*snapshot.life.flows, flow))
    return Change(None, snapshot, snapshot.to(snapshot.state, life=life))


def forget(snapshot: Snapshot | None, now: Millis, flow: UUID, *, orphan: bool) -> Change[None]:
    """The run knows that a flow has ended: there is nothing left to cancel. An `orphan` was
    cancelled because the run ended, and a replay of the run must know that."""
    if snapshot is None:
        return unchanged(None)
    old = snapshot.life
    keeps = orphan and isinstance(snapshot.state, Ended)
    flows = old.flows if keeps else _without(old.flows, flow)
    orphans = old.orphans if orphan else _without(old.orphans, flow)
    if (flows, orphans) == (old.flows, old.orphans):
        return unchanged(None)
    life = replace(old, flows=flows, orphans=orphans)
    return Change(None, snapshot, snapshot.to(snapshot.state, life=life))


def await_end(snapshot: Snapshot | None, now: Millis, run: UUID) -> Change[bool]:
    """Another run waits for the end of this one: the change that ends it owes that run a signal.
    True if it has ended already."""
    snapshot = present(snapshot)
    if isinstance(snapshot.state, Ended):
        return unchanged(True)
    known = snapshot.life.awaited_by
    if run in known:
        return unchanged(False)
    if len(known) >= MAX_AWAITING:
        raise Invalid(f"{MAX_AWAITING} runs wait for {snapshot.run} already, which is the limit")
    life = replace(snapshot.life, awaited_by=(*known, run))
    return Change(False, snapshot, snapshot.to(snapshot.state, life=life))


def end_signal(run: UUID) -> str:
    """The name of the signal that tells a run of the end of another one."""
    return f"run:{run}"


def _without(flows: tuple[UUID, ...], flow: UUID) -> tuple[UUID, ...]:
    return tuple(each for each in flows if each != flow)
