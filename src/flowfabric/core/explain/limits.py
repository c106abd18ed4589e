"""Reasons that are limits: quotas and budgets."""

from collections.abc import Iterator, Mapping, Sequence

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Next, Start
from flowfabric.core.explain.reasons import QueuePlace, Reason, ReasonCode
from flowfabric.core.explain.sentences import because
from flowfabric.core.limit.budget import Budget, Exhausted, chain, exhausted
from flowfabric.core.limit.quota import Use, Uses, queue_of
from flowfabric.core.limit.release import ALL, Full, Key, QuotaView, Room, UsedUp, one_key


def budget_reasons(
    budgets: Mapping[str, Budget], names: Sequence[str], waited: str | None = None
) -> Iterator[Reason]:
    """Every budget of these, and of all they are part of, that lets nothing start; the one that is
    waited for first. One that was deleted limits nothing."""
    first = [] if waited is None else [waited]
    known = [name for name in (*first, *names) if name in budgets]
    for budget in chain(budgets, known):
        spent = exhausted(budget)
        if spent is not None:
            yield _budget_reason(budget, spent, own=budget.name in names)


def _budget_reason(budget: Budget, spent: Exhausted, *, own: bool) -> Reason:
    return because(
        ReasonCode.BUDGET_EXHAUSTED,
        until=spent.next_reset_at,
        also={"taken": spent.taken, "own": own, "never_reset": spent.next_reset_at is None},
        budget=budget.name,
        dimension=spent.dimension,
        used=budget.used.get(spent.dimension, 0),
        reserved=budget.reserved.get(spent.dimension, 0),
        hard=spent.hard,
    )


def limit_reasons(
    uses: Uses,
    next: Next,
    quotas: QuotaView,
    now: Millis,
    *,
    holders: Mapping[Key, Sequence[ExecutionId]],
    place: QueuePlace | None,
    here: bool,
    untaken: str | None = None,
) -> Iterator[Reason]:
    """The limits without room, then the place in line; `here`: it waits at this gate. `untaken` is
    why no worker can take it now."""
    room = Room(quotas, now)
    full, starts = room.full(uses), next.start is not Start.CONTINUE
    spent = room.used_up(uses) if starts else []
    for each in full:
        yield _full_reason(each, [str(id) for id in holders.get(key_of(each), ())])
    for wait in spent:
        yield _rate_reason(wait)
    if here:
        place = place or QueuePlace(0)
        yield because(
            ReasonCode.IN_LINE,
            also={"open": not (full or spent)},
            line="quota",
            quotas={use.quota: use.key for use in uses},
            ahead=place.ahead,
            exact=place.exact,
            untaken=untaken,
        )


def key_of(full: Full) -> Key:
    """What of a quota is full."""
    return full.use.quota, one_key(full.use.key) if full.of_key else ALL


def holder_reasons(ids: Sequence[str], taken: int) -> Iterator[Reason]:
    """Who has slots: a few by name, the others by number."""
    if ids:
        yield because(ReasonCode.SLOT_HOLDERS, also={"taken": taken}, executions=list(ids))


def _full_reason(full: Full, holders: list[str]) -> Reason:
    return because(
        ReasonCode.QUOTA_FULL,
        children=holder_reasons(holders, full.taken),
        quota=full.use.quota,
        key=full.use.key,
        per_key=full.of_key,
        taken=full.taken,
        cap=full.cap,
        holders=holders,
    )


def _rate_reason(wait: UsedUp) -> Reason:
    return because(
        ReasonCode.RATE_USED_UP,
        until=wait.opens_at,
        also={"rate": wait.rate},
        quota=wait.use.quota,
        key=wait.use.key,
        per_key=wait.of_key,
        count=wait.rate.count,
        window_ms=wait.rate.window,
    )


def queues_of(full: Full, quotas: QuotaView) -> list[int]:
    """The queues whose slots fill a limit."""
    return [
        queue_of(uses)
        for uses, count in quotas.held
        if count and any(_counts_for(use, full) for use in uses)
    ]


def _counts_for(use: Use, full: Full) -> bool:
    return use.quota == full.use.quota and (not full.of_key or use.key == full.use.key)
