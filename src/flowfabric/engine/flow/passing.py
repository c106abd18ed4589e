"""What upstreams pass to a downstream: the results they had when their edges were satisfied."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Attempt, Ended, Snapshot
from flowfabric.core.execution.outcome import AttemptOutcome, Outcome
from flowfabric.core.flow.join import EdgeState

Attempts = Callable[[UUID], Awaitable[Sequence[Attempt]]]


class PassedResult(Struct, frozen=True):
    """When an upstream ended, and its result if it succeeded."""

    ended_at: Millis
    result: bytes | None = None


async def passed_results(
    edges: Iterable[EdgeState],
    upstreams: Mapping[UUID, Snapshot],
    attempts: Attempts,
    fired_at: Millis | None,
) -> dict[UUID, PassedResult]:
    """The ends of these upstreams. A replay does not take back an edge that was satisfied: of an
    upstream that runs again, or has failed since, the last success counts, which is in the history
    of its `attempts`; so it does of one that succeeded again after the join has `fired_at`."""
    found: dict[UUID, PassedResult] = {}
    for edge in edges:
        uuid = edge.edge.upstream
        upstream = upstreams.get(uuid)
        if upstream is None or uuid in found:
            continue
        now = _present(upstream)
        if edge.outcome is Outcome.SUCCESS and _is_replayed(upstream, fired_at):
            now = _last_success(await attempts(uuid), fired_at) or now
        if now is not None:
            found[uuid] = now
    return found


def _present(upstream: Snapshot) -> PassedResult | None:
    match upstream.state:
        case Ended(outcome=Outcome.SUCCESS, ended_at=ended_at, result=result):
            return PassedResult(ended_at, result)
        case Ended(ended_at=ended_at):
            return PassedResult(ended_at)
        case _:
            return None


def _is_replayed(upstream: Snapshot, fired_at: Millis | None) -> bool:
    """Whether the success of an upstream is not the one that counted."""
    match upstream.state:
        case Ended(outcome=Outcome.SUCCESS, ended_at=ended_at):
            return bool(upstream.life.replays) and fired_at is not None and ended_at > fired_at
        case _:
            return True


def _last_success(attempts: Sequence[Attempt], fired_at: Millis | None) -> PassedResult | None:
    """The last one before the join has fired; the last of all if there was none."""
    ended = [
        PassedResult(each.ended_at, each.result)
        for each in attempts
        if each.outcome is AttemptOutcome.SUCCESS and each.ended_at is not None
    ]
    in_time = [each for each in ended if fired_at is None or each.ended_at <= fired_at]
    return (in_time or ended)[-1] if ended else None
