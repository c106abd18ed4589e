"""Why the work of a lane waits, by reason, in numbers."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.gate import DELAYS
from flowfabric.core.execution.model import Gate, Next, Route, Start
from flowfabric.core.execution.registry import Presence
from flowfabric.core.explain.reasons import Code, Reason, listed
from flowfabric.core.explain.workers import NOBODY, Running, lane_reasons, worker_reason
from flowfabric.core.limit.lane import Lane
from flowfabric.core.limit.quota import Uses
from flowfabric.core.limit.release import Room

MOST = 100_000
"""Where counting stops."""

_FIRST = Next(start=Start.INITIAL, attempt=0)


class Counted(Struct, frozen=True):
    """So many wait at a gate, in a queue if there is one."""

    gate: Gate
    queue: int | None
    count: int


class Share(Struct, frozen=True, kw_only=True):
    """How many wait for one reason. `capped`: they are at least that many."""

    code: Code
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
    running: Running = NOBODY
    ready: Mapping[Route, int] = field(default_factory=dict)
    workers: Sequence[Presence] = ()
    queues: Mapping[int, Uses] = field(default_factory=dict)
    budgets: Mapping[int, str] = field(default_factory=dict)
    rooms: Mapping[int, Room] = field(default_factory=dict)


class _Piece(Struct, frozen=True):
    code: Code
    text: str
    count: int
    detail: dict[str, object] = field(default_factory=dict)


def explain_lane(counts: Sequence[Counted], around: AroundLane) -> LaneExplanation:
    """Everything of the lane that waits, each counted once."""
    pieces = [*_parked(counts, around), *_ready(around), *_suspended(around)]
    merged: dict[tuple[Code, str], _Piece] = {}
    for piece in pieces:
        key = (piece.code, piece.text)
        known = merged.get(key)
        count = piece.count + (known.count if known is not None else 0)
        merged[key] = _Piece(piece.code, piece.text, count, piece.detail)
    total = sum(piece.count for piece in merged.values())
    shares = [_share(piece, total) for piece in merged.values() if piece.count]
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


def _share(piece: _Piece, total: int) -> Share:
    return Share(
        code=piece.code,
        text=piece.text,
        count=piece.count,
        capped=piece.count >= MOST,
        percent=round(100 * piece.count / total, 2),
        detail=piece.detail,
    )


def _parked(counts: Sequence[Counted], around: AroundLane) -> Iterator[_Piece]:
    for counted in counts:
        code, text, detail = _gate(counted, around)
        yield _Piece(code, text, counted.count, detail)


_GATES = {
    Gate.ARRIVAL: (Code.ARRIVAL, "let in in a moment"),
    Gate.UNSEALED: (Code.HELD_UNSEALED, "held until their flow is declared"),
    Gate.BLOCKED: (Code.BLOCKED_BY_OPERATOR, "held back by an operator"),
    Gate.DEPENDENCIES: (Code.WAITS_FOR_UPSTREAMS, "wait for upstreams"),
    Gate.BACKOFF: (Code.RETRY_BACKOFF, "failed and tried again later"),
}


def _gate(counted: Counted, around: AroundLane) -> tuple[Code, str, dict[str, object]]:
    gate, queue = counted.gate, counted.queue or 0
    if gate is Gate.BUDGET:
        name = around.budgets.get(queue)
        text = "blocked by a budget" if name is None else f"blocked by budget {name}"
        return Code.BUDGET_EXHAUSTED, text, {"budget": name}
    if gate is Gate.LIMIT:
        return _limit(queue, around)
    if gate in DELAYS and gate is not Gate.BACKOFF:
        return Code.DELAYED, "delayed", {}
    return *_GATES[gate], {}


def _limit(queue: int, around: AroundLane) -> tuple[Code, str, dict[str, object]]:
    """By the quotas that have no room, whatever the key."""
    uses = around.queues.get(queue)
    if uses is None:
        return Code.QUOTA_FULL, "blocked by a quota", {}
    room = around.rooms[queue]
    full = {limit.use.quota for limit in room.full(uses)}
    spent = {limit.use.quota for limit in room.used_up(uses)}
    names = sorted(full | spent) or [use.quota for use in uses]
    what = f"quota {names[0]}" if len(names) == 1 else f"quotas {listed(names, most=8)}"
    detail: dict[str, object] = {"quotas": names}
    if full or spent:
        return (Code.QUOTA_FULL if full else Code.RATE_USED_UP), f"blocked by {what}", detail
    return Code.IN_LINE, f"let through {what} in a moment", detail


def _ready(around: AroundLane) -> Iterator[_Piece]:
    for route, count in around.ready.items():
        yield _ready_piece(worker_reason(route, around.workers, around.now), count)


def _ready_piece(reason: Reason, count: int) -> _Piece:
    match reason.code:
        case Code.WAITING_FOR_WORKER:
            return _Piece(reason.code, "ready, waiting to be taken", count)
        case Code.WORKER_BUSY:
            return _Piece(reason.code, "ready, every worker that can run them is busy", count)
        case code:
            detail: dict[str, object] = {"missing": reason.detail.get("offered_by_none", [])}
            return _Piece(code, f"ready, {reason.text}", count, detail)


def _suspended(around: AroundLane) -> Iterator[_Piece]:
    text = "suspended, waiting for a signal, an approval or a time"
    yield _Piece(Code.WAITING_FOR_SIGNAL, text, around.suspended)
