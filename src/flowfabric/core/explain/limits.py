"""Reasons that are limits: quotas and budgets."""

from collections.abc import Iterator, Mapping, Sequence

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Next, Start
from flowfabric.core.explain.reasons import FEW, Code, QueuePlace, Reason, before_it, listed, number
from flowfabric.core.limit.budget import Budget, Exhausted, chain, exhausted
from flowfabric.core.limit.quota import Rate, Use, Uses, queue_of
from flowfabric.core.limit.release import ALL, Full, Key, QuotaView, Room, UsedUp, one_key

_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


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
    text = f"budget {budget.name} is exhausted: {spent.taken:,} of {spent.hard:,} {spent.dimension}"
    reserved = budget.reserved.get(spent.dimension, 0)
    if reserved:
        text = f"{text} ({reserved:,} of them set aside by runs that go on)"
    if not own:
        text = f"{text}; a budget of this run is part of it"
    if spent.next_reset_at is None:
        text = f"{text}; it is never reset by itself"
    detail = {
        "budget": budget.name,
        "dimension": spent.dimension,
        "used": budget.used.get(spent.dimension, 0),
        "reserved": reserved,
        "hard": spent.hard,
    }
    return Reason(code=Code.BUDGET_EXHAUSTED, text=text, until=spent.next_reset_at, detail=detail)


def limit_reasons(
    uses: Uses,
    next: Next,
    standing: QuotaView,
    now: Millis,
    *,
    holders: Mapping[Key, Sequence[ExecutionId]],
    place: QueuePlace | None,
    here: bool,
    untaken: str | None = None,
) -> Iterator[Reason]:
    """The limits without room, then the place in line; `here`: it waits at this gate. `untaken` is
    why nobody can take it now."""
    room = Room(standing, now)
    full, starts = room.full(uses), next.start is not Start.CONTINUE
    spent = room.used_up(uses) if starts else []
    for each in full:
        yield _full_reason(each, holders.get(key_of(each), ()))
    for wait in spent:
        yield _rate_reason(wait)
    if here:
        yield _line_reason(uses, place or QueuePlace(0), open=not (full or spent), untaken=untaken)


def key_of(full: Full) -> Key:
    """What of a quota is full."""
    return full.use.quota, one_key(full.use.key) if full.of_key else ALL


def named_use(use: Use, *, of_key: bool) -> str:
    """A quota as people call it, with the key if it is the key's limit."""
    if not of_key:
        return f"quota {use.quota}"
    return f"quota {use.quota} for key {use.key}" if use.key else f"quota {use.quota} without a key"


def taken_by(ids: Sequence[str], taken: int) -> tuple[Reason, ...]:
    """Who has slots: a few by name, the others by number."""
    if not ids:
        return ()
    shown = list(ids[:FEW])
    if taken > len(shown):
        shown.append(f"{taken - len(shown):,} more")
    text = f"held by {listed(shown, most=len(shown))}"
    return (Reason(code=Code.SLOT_HOLDERS, text=text, detail={"executions": list(ids)}),)


def _full_reason(full: Full, holders: Sequence[ExecutionId]) -> Reason:
    ids = [str(id) for id in holders]
    return Reason(
        code=Code.QUOTA_FULL,
        text=f"{full.taken:,} of {number(full.cap, 'slot')} of {_of(full)} are taken",
        detail={
            "quota": full.use.quota,
            "key": full.use.key,
            "per_key": full.of_key,
            "taken": full.taken,
            "cap": full.cap,
            "holders": ids,
        },
        children=taken_by(ids, full.taken),
    )


def _of(full: Full) -> str:
    return named_use(full.use, of_key=full.of_key)


def _rate_reason(wait: UsedUp) -> Reason:
    who = named_use(wait.use, of_key=wait.of_key)
    return Reason(
        code=Code.RATE_USED_UP,
        text=f"{who} allows {rate_words(wait.rate)}, and those are used up",
        until=wait.opens_at,
        detail={
            "quota": wait.use.quota,
            "key": wait.use.key,
            "per_key": wait.of_key,
            "count": wait.rate.count,
            "window_ms": wait.rate.window,
        },
    )


def rate_words(rate: Rate) -> str:
    """A rate as people say it: 100 starts in a minute, 5 starts in 30 seconds."""
    size, unit = next(
        ((size, unit) for size, unit in _UNITS if rate.window % size == 0), (1, "millisecond")
    )
    count = rate.window // size
    article = "an" if unit == "hour" else "a"
    span = f"{article} {unit}" if count == 1 else number(count, unit)
    evenly = ", spread evenly" if rate.smooth else ""
    return f"{number(rate.count, 'start')} in {span}{evenly}"


def _line_reason(uses: Uses, place: QueuePlace, *, open: bool, untaken: str | None) -> Reason:
    names = listed([use.quota for use in uses], most=len(uses))
    what = f"quota {names}" if len(uses) == 1 else f"quotas {names}"
    if untaken is not None:
        text = f"it takes no slot of {what} from others while {untaken}, and keeps its place"
    elif place.ahead:
        text = f"{before_it(place.ahead, place.exact)} before it in the line for {what}"
    elif open:
        has = "has" if len(uses) == 1 else "have"
        text = f"{what} {has} room: it is let through in a moment"
    else:
        text = f"it is the next of its line to be let through {what}"
    detail = {
        "line": "quota",
        "quotas": {use.quota: use.key for use in uses},
        "ahead": place.ahead,
        "exact": place.exact,
        "untaken": untaken,
    }
    return Reason(code=Code.IN_LINE, text=text, detail=detail)


def queues_of(full: Full, standing: QuotaView) -> list[int]:
    """The queues whose slots fill a limit."""
    return [
        queue_of(uses)
        for uses, count in standing.held
        if count and any(_counts_for(use, full) for use in uses)
    ]


def _counts_for(use: Use, full: Full) -> bool:
    return use.quota == full.use.quota and (not full.of_key or use.key == full.use.key)
