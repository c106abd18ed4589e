"""Executions in every state as plain values: what the rules of the core decide on."""

from typing import Any
from uuid import UUID

from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import attempt, lease, operator
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import StoredEvent
from flowfabric.core.execution.lease import Owner, Taking, fence_of
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Failure,
    Gate,
    Lease,
    Lost,
    Outcome,
    Ready,
    Snapshot,
    Source,
    Start,
    Waiting,
)
from flowfabric.core.execution.status import vector
from flowfabric.core.execution.submission import Submission, create
from flowfabric.core.wait import resume
from tests.kit.lab import TTL, W1
from tests.kit.situations import RETRY, RETRY_AT_ONCE, is_legal, suspension

NOW = Millis(1_700_000_000_000)
LATER = Millis(NOW + 10_000)
LEASE = UUID(int=1)
OPERATOR = Owner(source=Source.OPERATOR)
HOLDER = Owner(source=Source.LEASE_HOLDER)
UNFENCED = [Source.OPERATOR, Source.FLOW_CASCADE, Source.SYSTEM_TIMEOUT]


def fresh(**members: Any) -> Snapshot:
    submission = Submission(kind="job", **members)
    return create(submission, new_uuid7(NOW, 1), NOW).snapshot


def after(change: Change[Any]) -> Snapshot:
    assert change.after is not None
    return change.after


def running(snapshot: Snapshot | None = None, at: Millis = NOW, **members: Any) -> Snapshot:
    found = snapshot or fresh(**members)
    assert isinstance(found.state, Ready | Lost)
    return after(lease.take(found, at, found.state.next, Taking(LEASE, W1, TTL)))


def lease_of(snapshot: Snapshot) -> Lease:
    assert isinstance(snapshot.state, Active)
    return snapshot.state.lease


def owner_of(snapshot: Snapshot) -> Owner:
    return Owner.of(fence_of(snapshot, lease_of(snapshot)))


def failing(**members: Any) -> Snapshot:
    held = running(**members)
    return after(attempt.fail(held, NOW, owner_of(held), Failure("boom")))


def lost(*, revoked: bool, **members: Any) -> Snapshot:
    held = running(**members)
    return after(lease.lose(held, NOW, lease_of(held), revoked=revoked, reason="maintenance"))


def suspended(**members: Any) -> Snapshot:
    return after(suspension(running(**members), NOW))


def completed(**members: Any) -> Snapshot:
    held = running(**members)
    return after(attempt.complete(held, NOW, owner_of(held), b"result"))


def at_gate(gate: Gate, snapshot: Snapshot) -> Snapshot:
    assert isinstance(snapshot.state, Ready)
    return snapshot.to(Waiting(gate, snapshot.state.next))


def living(**members: Any) -> dict[str, Snapshot]:
    held = running(**members)
    return {
        "waiting": fresh(**members),
        "delayed": fresh(delay_until=LATER, **members),
        "depending": at_gate(Gate.DEPENDENCIES, fresh(**members)),
        "limited": at_gate(Gate.LIMIT, fresh(**members)),
        "blocked": after(operator.block(fresh(**members), NOW, "paused_by_operator", "why")),
        "running": held,
        "lost": lost(revoked=False, **members),
        "revoked": lost(revoked=True, **members),
        "suspended": suspended(**members),
        "resumed": after(resume.resume(suspended(**members), NOW)),
        "resume_delayed": after(resume.resume(suspended(**members), NOW, Millis(10_000))),
        "worker_delayed": after(attempt.delay(held, NOW, owner_of(held), LATER)),
        "backing_off": failing(**{"policy": RETRY, **members}),
        "retry_ready": failing(**{"policy": RETRY_AT_ONCE, **members}),
        "replay_ready": after(operator.replay(completed(**members), NOW)),
    }


def ended() -> dict[str, Snapshot]:
    late = Millis(NOW + 5)
    return {
        "completed": completed(),
        "failed": failing(),
        "cancelled": after(operator.cancel(running(), NOW, OPERATOR, "enough")),
        "cancelled_unrun": after(operator.cancel(fresh(), NOW, OPERATOR, "enough")),
        "expired": after(operator.expire(running(deadline_at=late), late)),
        "expired_unrun": after(operator.expire(fresh(deadline_at=late), late)),
        "skipped": fresh().to(Ended(Outcome.SKIPPED, NOW, pending=Start.INITIAL)),
    }


LIVING = living()
ENDED = ended()
ALL = {**LIVING, **ENDED}
CANCELLED = {"cancelled", "cancelled_unrun"}
READY = {"waiting", "resumed", "retry_ready", "replay_ready"}
NEVER_RUN = {"waiting", "delayed", "depending", "limited", "blocked"}


def told(change: Change[Any]) -> list[StoredEvent]:
    """The events of a change as readers see them."""
    assert change.before is not None
    execution = change.before.execution
    return [
        StoredEvent(
            seq=index,
            id=execution.id,
            namespace=execution.route.namespace,
            lane=execution.route.lane,
            at=event.at,
            kind=event.kind,
            epoch=event.epoch,
            attempt=event.attempt,
            worker=event.worker,
            detail=event.detail,
        )
        for index, event in enumerate(change.events)
    ]


def check_ending(change: Change[Any], outcome: Outcome) -> Snapshot:
    """INV-5: one completion event, of the very outcome that is stored; INV-6, INV-7."""
    end = after(change)
    assert isinstance(end.state, Ended)
    assert end.state.outcome is outcome
    assert [event.completion for event in told(change)] == [outcome]
    assert is_legal(vector(end))
    assert change.alarm is None
    return end
