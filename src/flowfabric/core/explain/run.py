"""Why an execution does not run: a tree of reasons, from its state and what surrounds it.

Asked of the same rules that decide: `gate.closed` for the gates, `release.Room` for quotas,
`budget.exhausted` for budgets, `routing.missing` for workers. There is no second copy of any rule,
so an explanation cannot differ from what happens.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.code import fitting, is_blocked_by_code
from flowfabric.core.execution.gate import DELAYS, closed
from flowfabric.core.execution.mismatch import CodeBlock
from flowfabric.core.execution.model import (
    Active,
    Ended,
    Failure,
    Flags,
    Gate,
    Hold,
    Lost,
    Next,
    Ready,
    Snapshot,
    Suspended,
    Waiting,
)
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.serving import serving
from flowfabric.core.execution.status import public_state
from flowfabric.core.explain.limits import budget_reasons, limit_reasons
from flowfabric.core.explain.reasons import GATES, Explanation, QueuePlace, Reason, ReasonCode
from flowfabric.core.explain.sentences import because
from flowfabric.core.explain.state import (
    cleanup_reason,
    ended_reason,
    hold_reasons,
    lost_reason,
    running_reason,
    suspect_reasons,
    suspended_reasons,
)
from flowfabric.core.explain.workers import NOTHING_RUNS, Running, lane_reasons, worker_reason
from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.budget_gate import is_new_work
from flowfabric.core.limit.lane import Lane, LaneState, begins
from flowfabric.core.limit.release import Key, QuotaView

NOTHING = QuotaView(quotas={}, lines=())


class Upstream(Struct, frozen=True):
    """An execution another one waits for, and why it does not run (None: not looked at)."""

    snapshot: Snapshot
    explanation: Explanation | None = None


class Around(Struct, frozen=True, kw_only=True):
    """What an execution depends on besides itself, as it was at `now`.

    `holders` are a few of those that have the slots of a quota, or of one of its keys. `in_queue`
    is its place before its quotas, `in_lane` its place among the ready ones of its route. `running`
    are the leases of its lane, counted up to what the lane allows. `members` are a few of those
    that have not ended, of the flows it waits for, by the waitpoint it does so at.
    """

    now: Millis
    lane: Lane = Lane()
    running: Running = NOTHING_RUNS
    workers: Sequence[Presence] = ()
    budgets: dict[str, Budget] = field(default_factory=dict)
    budget_names: tuple[str, ...] = ()
    quotas: QuotaView = NOTHING
    holders: dict[Key, Sequence[ExecutionId]] = field(default_factory=dict)
    in_queue: QueuePlace | None = None
    in_lane: QueuePlace | None = None
    upstreams: Sequence[Upstream] = ()
    members: dict[str, Sequence[Upstream]] = field(default_factory=dict)
    failure: Failure | None = None


def explain(snapshot: Snapshot, around: Around) -> Explanation:
    """The whole tree. Never empty."""
    execution = snapshot.execution
    return Explanation(
        id=execution.id,
        name=execution.facts.member,
        kind=execution.kind,
        namespace=execution.route.namespace,
        lane=execution.route.lane,
        state=public_state(snapshot),
        at=around.now,
        reasons=tuple(_reasons(snapshot, around)),
    )


def _reasons(snapshot: Snapshot, around: Around) -> Iterator[Reason]:
    match snapshot.state:
        case Ended():
            yield ended_reason(snapshot, snapshot.state)
            return
        case Active(lease=lease):
            yield running_reason(snapshot, lease, around.now)
        case Suspended():
            members = {
                key: tuple(_waited(member, ReasonCode.MEMBER) for member in few)
                for key, few in around.members.items()
            }
            yield from suspended_reasons(snapshot, snapshot.state, members)
            yield from [] if snapshot.life.blocked is None else [_blocked(snapshot, around)]
        case Waiting(next=next):
            yield from _gate_reasons(snapshot, snapshot.state, around)
            yield from _later(snapshot, next, around)
        case Lost(next=next, hold=hold):
            yield lost_reason(snapshot, snapshot.state, around.now)
            yield from _claimable(snapshot, next, hold, around)
        case Ready(next=next, hold=hold):
            yield from _claimable(snapshot, next, hold, around)
            yield from suspect_reasons(snapshot)
    yield from _bounds(snapshot)


def _bounds(snapshot: Snapshot) -> Iterator[Reason]:
    """What ends it unless it ends before."""
    if snapshot.life.cleanup is not None:
        yield cleanup_reason(snapshot, snapshot.life.cleanup)
    elif snapshot.deadline_at is not None:
        yield because(ReasonCode.DEADLINE, until=snapshot.deadline_at)


def _later(snapshot: Snapshot, next: Next, around: Around) -> list[Reason]:
    """What will keep it at the claim as well, once its gates are open. Who is busy now may be free
    by then."""
    return [
        reason
        for reason in _claim_reasons(snapshot, next, around, NOTHING_RUNS)
        if reason.code not in _PASSING
    ]


def _claimable(snapshot: Snapshot, next: Next, hold: Hold | None, around: Around) -> list[Reason]:
    """All that a claim asks. When nothing keeps it, that it waits to be taken is the reason."""
    found = [
        *hold_reasons(hold, around.now),
        *_claim_reasons(snapshot, next, around, around.running),
    ]
    kept = [reason for reason in found if reason.code is not ReasonCode.WAITING_FOR_WORKER]
    if all(reason.code in _PASSING for reason in kept):
        line = [] if around.in_lane is None else [_place_in_lane(around.in_lane)]
        return [*(kept or found), *line]
    return kept


_PASSING = frozenset({ReasonCode.WORKER_BUSY, ReasonCode.WAITING_FOR_WORKER, ReasonCode.LANE_FULL})
"""What goes by as others end."""


def _claim_reasons(
    snapshot: Snapshot, next: Next, around: Around, running: Running
) -> Iterator[Reason]:
    yield from lane_reasons(around.lane, running, next)
    if is_new_work(snapshot, next.start) and snapshot.life.budget is None:
        yield from budget_reasons(around.budgets, around.budget_names)
    yield worker_reason(snapshot.execution.route, around.workers, around.now)


def _place_in_lane(place: QueuePlace) -> Reason:
    return because(ReasonCode.IN_LINE, line="lane", ahead=place.ahead, exact=place.exact)


# -- gates


def _gate_reasons(snapshot: Snapshot, state: Waiting, around: Around) -> Iterator[Reason]:
    """One reason or more for each gate that is closed, in the order they are asked."""
    gates = list(closed(snapshot.life, around.now, snapshot.head.flags))
    if state.gate not in gates:
        gates.insert(0, state.gate)  # it is open now, but the sweep has not looked since
    for gate in gates:
        yield from _gate_reason(gate, snapshot, state, around)


def _gate_reason(
    gate: Gate, snapshot: Snapshot, state: Waiting, around: Around
) -> Iterable[Reason]:
    if gate in DELAYS:
        return [_delay(gate, snapshot, state, around)]
    match gate:
        case Gate.UNSEALED:
            return [because(GATES[gate], flow=str(snapshot.execution.flow))]
        case Gate.BLOCKED:
            return [_blocked(snapshot, around)]
        case Gate.DEPENDENCIES:
            return [_dependencies(snapshot, around.upstreams)]
        case Gate.BUDGET:
            return _budget(snapshot, around)
        case Gate.LIMIT:
            return _limit(snapshot, state, around)
        case _:
            return [because(GATES[gate])]


def _blocked(snapshot: Snapshot, around: Around) -> Reason:
    life = snapshot.life
    if is_blocked_by_code(snapshot) and life.code is not None:
        return _by_code(snapshot, life.code, around)
    return because(GATES[Gate.BLOCKED], reason=life.blocked, detail=life.detail)


def _by_code(snapshot: Snapshot, code: CodeBlock, around: Around) -> Reason:
    able = fitting(snapshot, around.workers, around.now)
    return because(
        ReasonCode.BLOCKED_BY_CODE,
        since=code.at,
        kind=snapshot.execution.kind,
        message=code.message,
        expected=code.expected,
        asked=code.asked,
        worker=code.worker,
        instance=code.instance,
        version=code.version,
        tried=list(code.tried),
        fitting=[each.worker for each in able],
    )


def _delay(gate: Gate, snapshot: Snapshot, state: Waiting, around: Around) -> Reason:
    until = snapshot.life.not_before or state.due_at
    detail: dict[str, Any] = {"gate": gate.name.lower()}
    also: dict[str, Any] = {"over": until is not None and until <= around.now}
    if gate is Gate.BACKOFF:
        also |= {"attempt": state.next.attempt, "failure": None}
        if around.failure is not None:
            detail["failure"] = also["failure"] = around.failure.message
            detail["category"] = around.failure.category
    return because(GATES[gate], until=until, also=also, **detail)


def _dependencies(snapshot: Snapshot, upstreams: Sequence[Upstream]) -> Reason:
    join = snapshot.life.join
    if join is None:
        return because(GATES[Gate.DEPENDENCIES], also={"join": None})
    children = [_waited(upstream, ReasonCode.UPSTREAM) for upstream in upstreams]
    names = [_called(upstream.snapshot) for upstream in upstreams]
    if join.running > len(children):
        children.append(because(ReasonCode.MORE, also={"more": join.running - len(children)}))
    return because(
        GATES[Gate.DEPENDENCIES],
        children=children,
        also={"join": join, "names": names},
        upstreams=join.n,
        needed=join.needed,
        satisfied=join.succeeded,
        failed=join.failed,
        skipped=join.skipped,
        open=join.running,
    )


def _waited(upstream: Upstream, code: ReasonCode) -> Reason:
    snapshot, known = upstream.snapshot, upstream.explanation
    ended = isinstance(snapshot.state, Ended)
    return because(
        code,
        children=() if known is None else known.reasons,
        also={"called": _called(snapshot), "ended": ended},
        id=str(snapshot.execution.id),
        name=snapshot.execution.facts.member,
        kind=snapshot.execution.kind,
        state=str(public_state(snapshot)),
    )


def _called(snapshot: Snapshot) -> str:
    return snapshot.execution.facts.member or str(snapshot.execution.id)


def _budget(snapshot: Snapshot, around: Around) -> list[Reason]:
    """It was turned away because of a budget."""
    name = snapshot.life.budget or ""
    found = list(budget_reasons(around.budgets, around.budget_names, name))
    return found or [because(ReasonCode.BUDGET_OPEN, budget=name)]


def _limit(snapshot: Snapshot, state: Waiting, around: Around) -> Iterable[Reason]:
    """At the gate there is always something to say, before it only what would keep it there."""
    here = state.gate is Gate.LIMIT
    return limit_reasons(
        snapshot.execution.uses,
        state.next,
        around.quotas,
        around.now,
        holders=around.holders,
        place=around.in_queue,
        here=here,
        untaken=_untaken(snapshot, state.next, around),
    )


def _untaken(snapshot: Snapshot, next: Next, around: Around) -> str | None:
    """Why it takes no slot that others could use."""
    route, lane = snapshot.execution.route, around.lane
    if not begins(lane, next.start):
        return f"lane {route.lane} {'drains' if lane.state is LaneState.DRAINING else 'is paused'}"
    if around.workers and not serving(route, around.workers, around.now).capable:
        return "no live worker can run it"
    return None


def is_limited(snapshot: Snapshot) -> bool:
    """Whether quotas have anything to say about it."""
    return bool(snapshot.head.flags & Flags.LIMITS) and isinstance(snapshot.state, Waiting)
