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
    edges: Iterable[EdgeState], upstreams: Mapping[UUID, Snapshot], attempts: Attempts
) -> dict[UUID, PassedResult]:
    """The ends of these upstreams. A replay does not take back an edge that was satisfied: of an
    upstream that runs again, or has failed since, the last success counts, which is in the history
    of its `attempts`."""
    found: dict[UUID, PassedResult] = {}
    for edge in edges:
        uuid = edge.edge.upstream
        upstream = upstreams.get(uuid)
        if upstream is None or uuid in found:
            continue
        now = _present(upstream)
        if edge.outcome is Outcome.SUCCESS and not _has_succeeded(upstream):
            now = _last_success(await attempts(uuid)) or now
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


def _has_succeeded(upstream: Snapshot) -> bool:
    return isinstance(upstream.state, Ended) and upstream.state.outcome is Outcome.SUCCESS


def _last_success(attempts: Sequence[Attempt]) -> PassedResult | None:
    ended = [each for each in attempts if each.outcome is AttemptOutcome.SUCCESS]
    if not ended or ended[-1].ended_at is None:
        return None
    return PassedResult(ended[-1].ended_at, ended[-1].result)
