"""Blocked by code: a run waits for other code if its handler no longer asks for what is recorded.

Two histories are never mixed, and the run is not lost: its attempt is interrupted, no retry is
used, and it continues where it was once a worker with fitting code is there.

    old and new workers side by side; the new code has one step more, at the end
    a new worker records the new step and dies     lost
    an old worker takes it over                    its code does not ask for the new step:
                                                   blocked, tried = {old}
    a worker with other code is there              released
    an old worker is faster and claims it          goes back without a call of its handler,
                                                   released again after a pause that grows
    a new worker claims it                         continues
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempt import give_up_lease, pause_attempt, repeated_pause
from flowfabric.core.execution.attempts import closing_attempts
from flowfabric.core.execution.change import Change, unchanged
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.gate import gated
from flowfabric.core.execution.lease import Owner, enter, lease_event, present
from flowfabric.core.execution.mismatch import MAX_TRIED, CodeBlock, Mismatch
from flowfabric.core.execution.model import Gate, Snapshot, Waiting
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.serving import serving
from flowfabric.core.execution.status import Blocking, PublicState
from flowfabric.core.execution.versions import code_key

BLOCKED_BY_CODE = "blocked_by_code"
FOR_CODE = str(Blocking.CAPABLE_WORKER)
_Blocked = Callable[[Snapshot, tuple[str, str]], CodeBlock]
FIRST_PAUSE = Millis(1_000)
LONGEST_PAUSE = Millis(4_000)
"""A run is released only where a worker has other code, so a longer pause would prolong a lost race
and save nothing."""


class BlockedByCode(Struct, frozen=True):
    id: ExecutionId
    state: PublicState


class ReleasedToCode(Struct, frozen=True):
    """The run may be claimed again, at best by the worker that it was released for: the process of
    that worker hears of it before others do."""

    id: ExecutionId


def block_by_code(
    snapshot: Snapshot | None, now: Millis, owner: Owner, mismatch: Mismatch
) -> "Change[BlockedByCode]":
    """The owner gives up its lease because its code does not fit: the same attempt continues with
    other code."""

    def blocked(held: Snapshot, worker: tuple[str, str]) -> CodeBlock:
        tried = held.life.code.tried if held.life.code is not None else ()
        kept = tuple(each for each in tried if each != mismatch.fingerprint)
        return CodeBlock(
            message=mismatch.message,
            expected=mismatch.expected,
            asked=mismatch.asked,
            version=mismatch.version,
            worker=worker[0],
            instance=worker[1],
            at=now,
            tried=(*kept, mismatch.fingerprint)[-MAX_TRIED:],
        )

    return _give_up(snapshot, now, owner, blocked, EventKind.BLOCKED_BY_CODE)


def return_untried(
    snapshot: Snapshot | None, now: Millis, owner: Owner, fingerprint: str
) -> "Change[BlockedByCode]":
    """The owner gives up its lease without a call of its handler, because the run was tried with
    its code before. The pause before the next release grows while only such workers claim it."""

    def blocked(held: Snapshot, worker: tuple[str, str]) -> CodeBlock:
        code = held.life.code or CodeBlock(tried=(fingerprint,), worker=worker[0], at=now)
        again = code.returned if held.head.epoch == code.epoch + 1 else 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE << min(again, 10))
        until = Millis(now + pause)
        return replace(code, returned=again + 1, epoch=held.head.epoch, until=until)

    return _give_up(snapshot, now, owner, blocked, EventKind.TURNED_AWAY)


def release_to_code(
    snapshot: Snapshot | None, now: Millis, fingerprint: str
) -> "Change[ReleasedToCode | None]":
    """A worker with this code is there: if it was not tried, the run may be claimed. What was tried
    is remembered."""
    if snapshot is None or not is_blocked_by_code(snapshot):
        return unchanged(None)
    code, state = snapshot.life.code, snapshot.state
    if code is None or not isinstance(state, Waiting) or fingerprint in code.tried:
        return unchanged(None)
    if code.until is not None and code.until > now:
        return unchanged(None)
    life = replace(snapshot.life, blocked=None, detail=None, touched_at=now)
    after = gated(snapshot, now, state.next, life)
    return Change(ReleasedToCode(snapshot.execution.id), snapshot, after)


def is_blocked_by_code(snapshot: Snapshot) -> bool:
    match snapshot.state:
        case Waiting(gate=Gate.BLOCKED):
            return snapshot.life.code is not None and snapshot.life.blocked == FOR_CODE
        case _:
            return False


def fitting(snapshot: Snapshot, workers: Sequence[Presence], now: Millis) -> list[Presence]:
    """The live workers that could claim a run and have code for it that was not tried."""
    route = snapshot.execution.route
    key = code_key(route)
    tried = snapshot.life.code.tried if snapshot.life.code is not None else ()
    return [
        worker
        for worker in serving(route, workers, now).capable
        if (fingerprint := worker.code.get(key)) is not None and fingerprint not in tried
    ]


def _give_up(
    snapshot: Snapshot | None, now: Millis, owner: Owner, blocked: _Blocked, kind: EventKind
) -> "Change[BlockedByCode]":
    snapshot = present(snapshot)
    if (repeat := repeated_pause(snapshot, owner, BLOCKED_BY_CODE)) is not None:
        return unchanged(BlockedByCode(repeat.id, repeat.state))
    lease = enter(snapshot, now, owner)
    if isinstance(lease, Change):
        return lease
    code = blocked(snapshot, (lease.worker.id, lease.worker.instance))
    life, next = pause_attempt(snapshot, now, lease, BLOCKED_BY_CODE)
    detail = f"blocked by code: {code.message}"
    life = replace(life, blocked=FOR_CODE, detail=detail, code=code)
    after, answer = give_up_lease(snapshot, now, lease, life, next, BLOCKED_BY_CODE)
    event = lease_event(snapshot, now, lease, kind, reason=BLOCKED_BY_CODE, message=code.message)
    return Change(
        outcome=BlockedByCode(answer.id, answer.state),
        before=snapshot,
        after=after,
        events=(event,),
        attempts=closing_attempts(snapshot),
    )
