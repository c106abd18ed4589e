"""What upstreams pass to a downstream: the results they had when its join fired, or when it began.

A replay of an upstream takes nothing back and adds nothing: a run that is retried, continued or
taken over has the arguments it began with. One that is replayed itself takes what is there then,
unless its join took the results of the upstreams that fired it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.attempts import inline_attempts
from flowfabric.core.execution.model import Attempt, Ended, Ready, Snapshot, Start, Waiting
from flowfabric.core.execution.outcome import AttemptOutcome, Outcome
from flowfabric.core.flow.join import AllOf, AnyOf, Edge, EdgeState, Join

Attempts = Callable[[UUID], Awaitable[Sequence[Attempt]]]

_BEGINNINGS = (Start.INITIAL, Start.REPLAY)


class PassedResult(Struct, frozen=True):
    """When an upstream ended, and its result if it succeeded."""

    ended_at: Millis
    result: bytes | None = None


async def passed_results(
    downstream: Snapshot,
    edges: Iterable[EdgeState],
    upstreams: Mapping[UUID, Snapshot],
    attempts: Attempts,
) -> dict[UUID, PassedResult]:
    """The ends of these upstreams. A replay does not take back an edge that was satisfied: of an
    upstream that runs again, or has failed since, the last success counts, which is in the history
    of its `attempts`; so it does of one that succeeded again after `downstream` took its result.
    Of an edge that another ending satisfied, the last one before that counts."""
    found: dict[UUID, PassedResult] = {}
    replayed = any(upstream.life.replays for upstream in upstreams.values())
    taken_at = await _taken_at(downstream, attempts) if replayed else None
    for edge in edges:
        uuid = edge.edge.upstream
        upstream = upstreams.get(uuid)
        if upstream is None or uuid in found:
            continue
        now = _present(upstream)
        if _is_replayed(upstream, taken_at):
            if edge.outcome is Outcome.SUCCESS:
                history = await attempts(uuid)
                successes = [each for each in history if each.outcome is AttemptOutcome.SUCCESS]
                now = _last_end(successes, taken_at) or _last_end(successes) or now
            elif edge.outcome is not None and upstream.life.replays and taken_at is not None:
                history = (*await attempts(uuid), *inline_attempts(upstream))
                now = _last_end(history, taken_at) or _without_result(now)
            else:
                now = _without_result(now)
        if now is not None:
            found[uuid] = now
    return found


def counting_edges(
    join: Join, edges: Sequence[EdgeState], passed: Mapping[UUID, PassedResult]
) -> list[Edge]:
    """The edges whose data a join takes: all; those of upstreams that had ended when it fired, the
    earliest first; or of `AnyOf`, the one that has fired it. A later ending changes no argument of
    a later attempt."""
    if isinstance(join.policy, AllOf):
        return [state.edge for state in edges]
    if isinstance(join.policy, AnyOf) and join.last is not None:
        return [state.edge for state in edges if state.edge.id.hex == join.last]
    ends = {uuid: end.ended_at for uuid, end in passed.items()}
    late = Millis(0) if join.fired_at is None else Millis(join.fired_at + 1)
    found = [state for state in edges if ends.get(state.edge.upstream, late) < late]
    found.sort(key=lambda state: (ends[state.edge.upstream], state.edge.id))
    if isinstance(join.policy, AnyOf):  # several were counted at once
        found = [state for state in found if state.satisfied][:1]
    return [state.edge for state in found]


async def _taken_at(downstream: Snapshot, attempts: Attempts) -> Millis | None:
    """When a run took the results of its upstreams; None if it takes them now. One that had begun
    and then waited for a further edge took them when that was satisfied."""
    join, state = downstream.life.join or Join(), downstream.state
    if not isinstance(join.policy, AllOf):
        return join.fired_at
    if isinstance(state, Ready | Waiting) and state.next.start in _BEGINNINGS:
        return None
    history = (*await attempts(downstream.execution.uuid), *inline_attempts(downstream))
    begun = [each.started_at or Millis(0) for each in history if each.type in _BEGINNINGS]
    return max(begun[-1], join.fired_at or Millis(0)) if begun else None


def _present(upstream: Snapshot) -> PassedResult | None:
    match upstream.state:
        case Ended(outcome=Outcome.SUCCESS, ended_at=ended_at, result=result):
            return PassedResult(ended_at, result)
        case Ended(ended_at=ended_at):
            return PassedResult(ended_at)
        case _:
            return None


def _is_replayed(upstream: Snapshot, taken_at: Millis | None) -> bool:
    """Whether the success of an upstream is not the one that counted."""
    match upstream.state:
        case Ended(outcome=Outcome.SUCCESS, ended_at=ended_at):
            return bool(upstream.life.replays) and taken_at is not None and ended_at > taken_at
        case _:
            return True


def _last_end(attempts: Sequence[Attempt], until: Millis | None = None) -> PassedResult | None:
    """The last end of these attempts, or the last one until then."""
    for each in reversed(attempts):
        if each.ended_at is not None and (until is None or each.ended_at <= until):
            succeeded = each.outcome is AttemptOutcome.SUCCESS
            return PassedResult(each.ended_at, each.result if succeeded else None)
    return None


def _without_result(found: PassedResult | None) -> PassedResult | None:
    return None if found is None else PassedResult(found.ended_at)
