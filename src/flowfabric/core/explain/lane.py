"""Why the work of a lane waits, by reason, in numbers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from flowfabric.core.base.pages import MAX_COUNTED
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Gate, Next, Route, Start
from flowfabric.core.execution.registry import Presence
from flowfabric.core.explain.reasons import GATES, Reason, ReasonCode
from flowfabric.core.explain.sentences import MANY, shared
from flowfabric.core.explain.workers import NOTHING_RUNS, Running, lane_reasons, worker_reason
from flowfabric.core.limit.lane import Lane
from flowfabric.core.limit.quota import Uses
from flowfabric.core.limit.release import Room

_FIRST = Next(start=Start.INITIAL, attempt=0)


class Counted(Struct, frozen=True):
    """So many wait at a gate, in a queue if there is one."""

    gate: Gate
    queue: int | None
    count: int


class Share(Struct, frozen=True, kw_only=True):
    """How many wait for one reason. `capped`: they are at least that many."""

    code: ReasonCode
    text: str
    count: int
    capped: bool
    percent: float
    detail: dict[str, object] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """41 % blocked by quota openai"""
        return f"{percent_words(self.percent)} {self.text}"


class LaneExplanation(Struct, frozen=True, kw_only=True):
    """`reasons` keep all of the lane; `shares` are what its executions wait for, most first.
    `running` counts the executions that have begun and not ended, lost ones included."""

    lane: str
    namespace: str | None
    at: Millis
    running: int
    waiting: int
    capped: bool
    reasons: tuple[Reason, ...]
    shares: tuple[Share, ...]


class AroundLane(Struct, frozen=True, kw_only=True):
    """What the work of a lane depends on. `queues` and `budgets` say what the numbers of queues
    stand for; `rooms` are by queue."""

    now: Millis
    lane: Lane
    namespace: str | None = None
    active: int = 0
    suspended: int = 0
    running: Running = NOTHING_RUNS
    ready: Mapping[Route, int] = field(default_factory=dict)
    workers: Sequence[Presence] = ()
    queues: Mapping[int, Uses] = field(default_factory=dict)
    budgets: Mapping[int, str] = field(default_factory=dict)
    rooms: Mapping[int, Room] = field(default_factory=dict)


def explain_lane(counts: Sequence[Counted], around: AroundLane) -> LaneExplanation:
    """Everything of the lane that waits, each counted once."""
    found: dict[tuple[ReasonCode, str], Reason] = {}
    numbers = Counter[tuple[ReasonCode, str]]()
    for reason, count in _waiting(counts, around):
        key = reason.code, reason.text
        found[key] = reason
        numbers[key] += count
    total = numbers.total()
    shares = [_share(found[key], count, total) for key, count in numbers.items() if count]
    return LaneExplanation(
        lane=around.lane.name,
        namespace=around.namespace,
        at=around.now,
        running=around.active,
        waiting=total,
        capped=any(share.capped for share in shares),
        reasons=tuple(lane_reasons(around.lane, around.running, _FIRST)),
        shares=tuple(sorted(shares, key=lambda share: (-share.count, share.text))),
    )


def percent_words(percent: float) -> str:
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def count_words(count: int, *, capped: bool) -> str:
    """1,204, or 100,000+ where counting stopped."""
    return f"{count:,}+" if capped else f"{count:,}"


def _share(reason: Reason, count: int, total: int) -> Share:
    return Share(
        code=reason.code,
        text=reason.text,
        count=count,
        capped=count >= MAX_COUNTED,
        percent=round(100 * count / total, 2),
        detail=reason.detail,
    )


def _waiting(counts: Sequence[Counted], around: AroundLane) -> Iterator[tuple[Reason, int]]:
    for counted in counts:
        yield _at_gate(counted, around), counted.count
    for route, count in around.ready.items():
        yield _ready(worker_reason(route, around.workers, around.now)), count
    yield shared(ReasonCode.WAITING_FOR_SIGNAL), around.suspended


def _at_gate(counted: Counted, around: AroundLane) -> Reason:
    match counted.gate:
        case Gate.BUDGET:
            return shared(GATES[Gate.BUDGET], budget=around.budgets.get(counted.queue or 0))
        case Gate.BLOCKED if counted.queue is not None:
            return shared(ReasonCode.BLOCKED_BY_CODE)
        case Gate.LIMIT:
            return _at_quotas(counted.queue or 0, around)
        case gate:
            return shared(GATES[gate])


def _at_quotas(queue: int, around: AroundLane) -> Reason:
    """By the quotas without room, of any key."""
    uses = around.queues.get(queue)
    if uses is None:
        return shared(GATES[Gate.LIMIT])
    room = around.rooms[queue]
    full = {limit.use.quota for limit in room.full(uses)}
    spent = {limit.use.quota for limit in room.used_up(uses)}
    if not full | spent:
        return shared(ReasonCode.IN_LINE, quotas=[use.quota for use in uses])
    code = ReasonCode.QUOTA_FULL if full else ReasonCode.RATE_USED_UP
    return shared(code, quotas=sorted(full | spent))


def _ready(reason: Reason) -> Reason:
    """What those that are ready wait for: to be taken, or a worker that could."""
    if reason.code in MANY:
        return shared(reason.code)
    missing = reason.detail.get("offered_by_none", [])
    return Reason(code=reason.code, text=f"ready, {reason.text}", detail={"missing": missing})
