"""Executions in every state there is, and what may be seen of them there.

For tests of rules that hold in any state. Each situation is reached through the engine; what
nothing in the engine leads to yet is placed by a change of its own.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.event import Event, EventKind, Family
from flowfabric.core.execution.lease import Owner, fence_of
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Gate,
    Outcome,
    Snapshot,
    State,
    Waiting,
    WorkerIdentity,
)
from flowfabric.core.execution.status import Vector
from flowfabric.core.wait import suspend as rules
from flowfabric.core.wait.condition.model import Single
from flowfabric.core.wait.model import Loaded
from flowfabric.core.wait.request import Binding, Suspend, Wait
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.execution.described import Description
from tests.kit.lab import TTL, W1, Lab

DELAY = Millis(10_000)
RETRY: dict[str, Any] = {
    "retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 10_000}}
}
RETRY_AT_ONCE: dict[str, Any] = {
    "retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 0}}
}

Situation = Callable[..., Awaitable[ExecutionId]]


async def load(lab: Lab, id: ExecutionId) -> Snapshot:
    """The execution as the rules see it."""
    return (await lab.engine.store.load([id.uuid]))[id.uuid]


async def put(lab: Lab, id: ExecutionId, state: State, *events: EventKind) -> None:
    """Places the execution in a state, as a rule of a later part would do it."""
    snapshot = await load(lab, id)
    made = tuple(
        Event(id.uuid, lab.clock.now(), kind, snapshot.head.epoch, snapshot.current_attempt)
        for kind in events
    )
    change = Change[None](None, snapshot, snapshot.to(state), made)
    assert await lab.engine.store.apply([change]) == {id.uuid}


async def described(lab: Lab, id: str) -> Description:
    """Everything there is to see of it; it must be legal."""
    seen = await lab.engine.views.describe(id)
    assert seen is not None
    assert is_legal(seen.vector)
    return seen


async def completions(lab: Lab, id: str) -> list[Outcome | None]:
    """The endings that were told of it, first to last."""
    return [event.completion for event in await lab.events(id, family=Family.COMPLETION)]


async def missing_ids(lab: Lab) -> list[ExecutionId]:
    """An id nobody ever gave, and a real uuid in the wrong partition."""
    id = await lab.submit()
    return [
        ExecutionId.solo("default", new_uuid7(lab.clock.now(), 1)),
        ExecutionId.of((id.partition_index + 1) % 256, id.uuid),
    ]


def timeouts(*, attempt: int | None = None, deadline: int | None = None) -> dict[str, Any]:
    """The part of a policy that limits time."""
    limits = {"attempt_timeout_ms": attempt, "execution_deadline_ms": deadline}
    return {"timeout_policy": {name: span for name, span in limits.items() if span is not None}}


async def take(lab: Lab, id: ExecutionId, worker: WorkerIdentity = W1) -> Claim:
    """This very execution, claimed, whatever else waits."""
    await lab.engine.grants.issue(id, worker.id)
    return await lab.engine.grants.claim(id, worker, ttl=TTL)


def suspension(
    snapshot: Snapshot, now: Millis, reason: str = "waiting_for_signal"
) -> Change[object]:
    """A running execution, suspended by its owner."""
    assert isinstance(snapshot.state, Active)
    owner = Owner.of(fence_of(snapshot, snapshot.state.lease))
    id = UUID(int=snapshot.execution.uuid.int ^ snapshot.head.version)
    wait = Wait(condition=Single("go"), bindings=(Binding(id=id, key="go"),))
    request = Suspend(id=id, waits=(wait,), reason=reason, kid="k1")
    return rules.suspend(snapshot, now, Loaded({}, {}, []), owner, request)


async def suspend(lab: Lab, claim: Claim, reason: str = "waiting_for_signal") -> None:
    change = suspension(await load(lab, claim.id), lab.clock.now(), reason)
    assert await lab.engine.store.apply([change]) == {claim.uuid}


async def waiting(lab: Lab, **members: Any) -> ExecutionId:
    return await lab.submit(**members)


async def delayed(lab: Lab, **members: Any) -> ExecutionId:
    return await lab.submit(delay_until=Millis(lab.clock.now() + DELAY), **members)


async def depending(lab: Lab, **members: Any) -> ExecutionId:
    id = await lab.submit(**members)
    state = (await load(lab, id)).state
    assert not isinstance(state, Active | Ended)
    await put(lab, id, Waiting(Gate.DEPENDENCIES, state.next))
    return id


async def blocked(lab: Lab, reason: str = "paused_by_operator", **members: Any) -> ExecutionId:
    id = await lab.submit(**members)
    await lab.engine.executions.block(id, reason)
    return id


async def rate_limited(lab: Lab, **members: Any) -> ExecutionId:
    return await blocked(lab, "waiting_for_quota", **members)


async def running(lab: Lab, **members: Any) -> ExecutionId:
    return (await take(lab, await lab.submit(**members))).id


async def lost(lab: Lab, **members: Any) -> ExecutionId:
    claim = await take(lab, await lab.submit(**members))
    lab.clock.advance(claim.ttl)
    await lab.engine.claims.mark_expired(claim.id)
    return claim.id


async def revoked(lab: Lab, **members: Any) -> ExecutionId:
    claim = await take(lab, await lab.submit(**members))
    await lab.engine.claims.revoke(claim.id, reason="maintenance")
    return claim.id


async def suspended(lab: Lab, **members: Any) -> ExecutionId:
    claim = await take(lab, await lab.submit(**members))
    await suspend(lab, claim)
    return claim.id


async def resumed(lab: Lab, **members: Any) -> ExecutionId:
    id = await suspended(lab, **members)
    await lab.engine.executions.resume(id)
    return id


async def resume_delayed(lab: Lab, **members: Any) -> ExecutionId:
    id = await suspended(lab, **members)
    await lab.engine.executions.resume(id, delay=DELAY)
    return id


async def worker_delayed(lab: Lab, **members: Any) -> ExecutionId:
    claim = await take(lab, await lab.submit(**members))
    await lab.engine.attempts.delay(claim, Millis(lab.clock.now() + DELAY))
    return claim.id


async def waiting_children(lab: Lab, **members: Any) -> ExecutionId:
    id = await resumed(lab, **members)
    state = (await load(lab, id)).state
    assert not isinstance(state, Active | Ended)
    await put(lab, id, Waiting(Gate.DEPENDENCIES, state.next))
    return id


async def backing_off(lab: Lab, **members: Any) -> ExecutionId:
    claim = await take(lab, await lab.submit(**{"policy": RETRY, **members}))
    await lab.fail(claim)
    return claim.id


async def retry_ready(lab: Lab, **members: Any) -> ExecutionId:
    claim = await take(lab, await lab.submit(**{"policy": RETRY_AT_ONCE, **members}))
    await lab.fail(claim)
    return claim.id


async def replay_ready(lab: Lab, **members: Any) -> ExecutionId:
    id = await completed(lab, **members)
    await lab.engine.executions.replay(id)
    return id


async def completed(lab: Lab, **members: Any) -> ExecutionId:
    claim = await take(lab, await lab.submit(**members))
    await lab.complete(claim, b"result")
    return claim.id


async def failed(lab: Lab, **members: Any) -> ExecutionId:
    claim = await take(lab, await lab.submit(**members))
    await lab.fail(claim, "permanent")
    return claim.id


async def cancelled(lab: Lab, **members: Any) -> ExecutionId:
    id = await running(lab, **members)
    await lab.engine.executions.cancel(id, reason="enough")
    return id


async def cancelled_unrun(lab: Lab, **members: Any) -> ExecutionId:
    id = await lab.submit(**members)
    await lab.engine.executions.cancel(id, reason="enough")
    return id


async def expired(lab: Lab, **members: Any) -> ExecutionId:
    id = await running(lab, **{"deadline_at": lab.clock.now() + DELAY, **members})
    lab.clock.advance(DELAY)
    await lab.engine.executions.expire(id)
    return id


async def expired_unrun(lab: Lab, **members: Any) -> ExecutionId:
    id = await lab.submit(**{"deadline_at": lab.clock.now() + DELAY, **members})
    lab.clock.advance(DELAY)
    await lab.engine.executions.expire(id)
    return id


async def skipped(lab: Lab, **members: Any) -> ExecutionId:
    id = await lab.submit(**members)
    state = (await load(lab, id)).state
    assert not isinstance(state, Active | Ended)
    ended = Ended(Outcome.SKIPPED, lab.clock.now(), pending=state.next.start)
    await put(lab, id, ended, EventKind.SKIPPED)
    return id


LIVING: dict[str, Situation] = {
    "waiting": waiting,
    "delayed": delayed,
    "depending": depending,
    "blocked": blocked,
    "rate_limited": rate_limited,
    "running": running,
    "lost": lost,
    "revoked": revoked,
    "suspended": suspended,
    "resumed": resumed,
    "resume_delayed": resume_delayed,
    "worker_delayed": worker_delayed,
    "waiting_children": waiting_children,
    "backing_off": backing_off,
    "retry_ready": retry_ready,
    "replay_ready": replay_ready,
}
ENDED: dict[str, Situation] = {
    "completed": completed,
    "failed": failed,
    "cancelled": cancelled,
    "cancelled_unrun": cancelled_unrun,
    "expired": expired,
    "expired_unrun": expired_unrun,
    "skipped": skipped,
}
ALL: dict[str, Situation] = {**LIVING, **ENDED}

_WAITS = "runnable unowned"
_PENDING = "pending_first_attempt|pending_retry_attempt|pending_replay_attempt"
_OVER = "terminal unowned not_applicable none"

# Phase, ownership, eligibility, blocking, outcome, attempt: S1 to S17, in order where it can be.
_LEGAL = [
    f"{_WAITS} eligible_now waiting_for_worker none {_PENDING}|attempt_interrupted",
    f"{_WAITS} not_eligible_until_time waiting_for_delay none"
    " pending_first_attempt|attempt_interrupted",
    f"{_WAITS} not_eligible_until_time waiting_for_resume_delay none attempt_interrupted",
    f"{_WAITS} not_eligible_until_time waiting_for_retry_backoff none pending_retry_attempt",
    f"{_WAITS} blocked_by_dependencies waiting_for_children none {_PENDING}|attempt_interrupted",
    f"{_WAITS} blocked_by_budget waiting_for_budget none {_PENDING}|attempt_interrupted",
    f"{_WAITS} blocked_by_quota waiting_for_quota none {_PENDING}|attempt_interrupted",
    f"{_WAITS} blocked_by_route waiting_for_capable_worker none {_PENDING}|attempt_interrupted",
    f"{_WAITS} blocked_by_operator paused_by_operator none {_PENDING}|attempt_interrupted",
    f"{_WAITS} blocked_by_lane_state paused_by_policy none {_PENDING}|attempt_interrupted",
    "active leased not_applicable none none running_attempt",
    "active lease_expired_reclaimable|lease_revoked not_applicable waiting_for_worker none"
    " attempt_interrupted",
    "suspended unowned not_applicable waiting_for_signal|waiting_for_approval|"
    "waiting_for_callback|waiting_for_tool_result|paused_by_operator|paused_by_policy|"
    "waiting_for_budget none attempt_interrupted",
    f"{_OVER} success|failed|cancelled|expired|skipped attempt_terminal",
    f"{_OVER} cancelled|expired|skipped {_PENDING}",
]
LEGAL = [[set(choice.split("|")) for choice in line.split()] for line in _LEGAL]


def is_legal(vector: Vector) -> bool:
    """Whether the vector is one of the combinations an execution may be seen in."""
    seen = (
        vector.phase,
        vector.ownership,
        vector.eligibility,
        vector.blocking,
        vector.outcome,
        vector.attempt,
    )
    return any(
        all(value in allowed for value, allowed in zip(seen, line, strict=True)) for line in LEGAL
    )
