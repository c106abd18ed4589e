"""Why an execution does not run: a tree of reasons out of its state and what is around it.

Asked of the same rules that decide: `gate.closed` for the gates, `release.Room` for quotas,
`budget.exhausted` for budgets, `routing.missing` for workers. There is no second copy of any rule,
so an explanation cannot differ from what happens.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.gate import DELAYS, closed
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
from flowfabric.core.execution.status import public_state
from flowfabric.core.explain.limits import budget_reasons, limit_reasons
from flowfabric.core.explain.reasons import Code, QueuePlace, before_it, listed, number
from flowfabric.core.explain.reasons import Explanation as Explanation
from flowfabric.core.explain.reasons import Reason as Reason
from flowfabric.core.explain.serving import serving
from flowfabric.core.explain.state import (
    ended_reason,
    hold_reasons,
    lost_reason,
    running_reason,
    suspect_reasons,
    suspended_reasons,
)
from flowfabric.core.explain.workers import NOBODY, Running, lane_reasons, worker_reason
from flowfabric.core.flow.join import AllOf, AnyOf, Join, JoinState
from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.budget_gate import STARTS
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
    running: Running = NOBODY
    workers: Sequence[Presence] = ()
    budgets: dict[str, Budget] = field(default_factory=dict)
    budget_names: tuple[str, ...] = ()
    standing: QuotaView = NOTHING
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
                key: tuple(_waited(member, Code.MEMBER) for member in few)
                for key, few in around.members.items()
            }
            yield from suspended_reasons(snapshot, snapshot.state, members)
            yield from [] if snapshot.life.blocked is None else [_blocked(snapshot)]
        case Waiting(next=next):
            yield from _gate_reasons(snapshot, snapshot.state, around)
            yield from _later(snapshot, next, around)
        case Lost(next=next, hold=hold):
            yield lost_reason(snapshot, snapshot.state)
            yield from _claimable(snapshot, next, hold, around)
        case Ready(next=next, hold=hold):
            yield from _claimable(snapshot, next, hold, around)
            yield from suspect_reasons(snapshot)
    if snapshot.deadline_at is not None:
        yield Reason(
            code=Code.DEADLINE,
            text="it expires unless it ends before its deadline",
            until=snapshot.deadline_at,
        )


def _later(snapshot: Snapshot, next: Next, around: Around) -> list[Reason]:
    """What will keep it at the claim as well, once its gates are open. Who is busy now may be free
    by then."""
    return [
        reason
        for reason in _claim_reasons(snapshot, next, around, NOBODY)
        if reason.code not in _PASSING
    ]


def _claimable(snapshot: Snapshot, next: Next, hold: Hold | None, around: Around) -> list[Reason]:
    """All that a claim asks. When nothing keeps it, that it waits to be taken is the reason."""
    found = [
        *hold_reasons(hold, around.now),
        *_claim_reasons(snapshot, next, around, around.running),
    ]
    kept = [reason for reason in found if reason.code is not Code.WAITING_FOR_WORKER]
    if all(reason.code in _PASSING for reason in kept):
        line = [] if around.in_lane is None else [_place_in_lane(around.in_lane)]
        return [*(kept or found), *line]
    return kept


_PASSING = frozenset({Code.WORKER_BUSY, Code.WAITING_FOR_WORKER, Code.LANE_FULL})
"""What goes by as others end."""


def _claim_reasons(
    snapshot: Snapshot, next: Next, around: Around, running: Running
) -> Iterator[Reason]:
    yield from lane_reasons(around.lane, running, next)
    if next.start in STARTS and snapshot.life.budget is None:
        yield from budget_reasons(around.budgets, around.budget_names)
    yield worker_reason(snapshot.execution.route, around.workers, around.now)


def _place_in_lane(place: QueuePlace) -> Reason:
    text = f"{before_it(place.ahead, place.exact, 'of its kind')} to be taken before it"
    if not place.ahead:
        text = "it is the next of its kind to be taken"
    detail = {"line": "lane", "ahead": place.ahead, "exact": place.exact}
    return Reason(code=Code.IN_LINE, text=text, detail=detail)


# -- gates


def _gate_reasons(snapshot: Snapshot, state: Waiting, around: Around) -> Iterator[Reason]:
    """One reason or more for each gate that is closed, in the order they are asked."""
    gates = list(closed(snapshot.life, around.now, snapshot.head.flags))
    if state.gate not in gates:
        gates.insert(0, state.gate)  # it is open now, but nobody has looked since
    for gate in gates:
        yield from _gate_reason(gate, snapshot, state, around)


def _gate_reason(
    gate: Gate, snapshot: Snapshot, state: Waiting, around: Around
) -> Iterable[Reason]:
    if gate in DELAYS:
        return [_delay(gate, snapshot, state, around)]
    match gate:
        case Gate.UNSEALED:
            return [_unsealed(snapshot)]
        case Gate.BLOCKED:
            return [_blocked(snapshot)]
        case Gate.DEPENDENCIES:
            return [_dependencies(snapshot.life.join, around.upstreams)]
        case Gate.BUDGET:
            return _budget(snapshot, around)
        case Gate.LIMIT:
            return _limit(snapshot, state, around)
        case _:
            return [Reason(code=Code.ARRIVAL, text="it was submitted and is let in in a moment")]


def _unsealed(snapshot: Snapshot) -> Reason:
    flow = snapshot.execution.flow
    text = "its flow is still being declared: nothing of it starts before it is complete"
    return Reason(code=Code.HELD_UNSEALED, text=text, detail={"flow": str(flow)})


_BLOCKS = {
    "paused_by_operator": "an operator holds it back",
    "paused_by_policy": "a policy holds it back",
    "waiting_for_budget": "it was held back for its budget",
    "waiting_for_quota": "it was held back for its quota",
    "waiting_for_capable_worker": "it was held back until there is a worker that can run it",
}


def _blocked(snapshot: Snapshot) -> Reason:
    life = snapshot.life
    text = _BLOCKS.get(life.blocked or "", "an operator holds it back")
    if life.detail:
        text = f"{text}: {life.detail}"
    detail = {"reason": life.blocked, "detail": life.detail}
    return Reason(code=Code.BLOCKED_BY_OPERATOR, text=text, detail=detail)


_DELAYS = {
    Gate.DELAY: "it is not to start before its time",
    Gate.RESUME_DELAY: "it was resumed and goes on later",
    Gate.WORKER_DELAY: "it sleeps: its worker asked to go on later",
}


def _delay(gate: Gate, snapshot: Snapshot, state: Waiting, around: Around) -> Reason:
    until = snapshot.life.not_before or state.due_at
    detail: dict[str, object] = {"gate": gate.name.lower()}
    text = _DELAYS.get(gate, "")
    if gate is Gate.BACKOFF:
        text = f"attempt {state.next.attempt} failed and is tried again"
        if around.failure is not None:
            text = f"{text}; it failed with: {around.failure.message}"
            detail["failure"] = around.failure.message
            detail["category"] = around.failure.category
    if until is not None and until <= around.now:
        text = f"{text}; that time has come, and it goes on in a moment"
    code = Code.RETRY_BACKOFF if gate is Gate.BACKOFF else Code.DELAYED
    return Reason(code=code, text=text, until=until, detail=detail)


def _dependencies(join: Join | None, upstreams: Sequence[Upstream]) -> Reason:
    if join is None:
        return Reason(code=Code.WAITS_FOR_UPSTREAMS, text="it waits for others to end")
    children = [_waited(upstream, Code.UPSTREAM) for upstream in upstreams]
    if join.running > len(children):
        rest = number(join.running - len(children), "more upstream")
        children.append(Reason(code=Code.MORE, text=f"and {rest}"))
    detail = {
        "upstreams": join.n,
        "needed": join.needed,
        "satisfied": join.succeeded,
        "failed": join.failed,
        "skipped": join.skipped,
        "open": join.running,
    }
    return Reason(
        code=Code.WAITS_FOR_UPSTREAMS,
        text=_join_text(join, [_called(upstream.snapshot) for upstream in upstreams]),
        detail=detail,
        children=tuple(children),
    )


def _join_text(join: Join, names: list[str]) -> str:
    if join.state is JoinState.IMPOSSIBLE:
        return "its upstreams did not end as it needs: it is skipped in a moment"
    if join.n < join.needed:
        return f"it waits for {join.needed} upstreams, and only {join.n} were added so far"
    left, named = join.needed - join.succeeded, f": {listed(names)}" if names else ""
    match join.policy:
        case AllOf():
            return f"it waits for {left} of its {number(join.n, 'upstream')}{named}"
        case AnyOf():
            return f"it waits for the first of its {number(join.n, 'upstream')}{named}"
        case _:
            return f"it waits for {left} more of its {number(join.n, 'upstream')}{named}"


def _waited(upstream: Upstream, code: Code) -> Reason:
    snapshot, known = upstream.snapshot, upstream.explanation
    state = public_state(snapshot)
    text = f"{_called(snapshot)} is {state}"
    if isinstance(snapshot.state, Ended):
        text = f"{_called(snapshot)} is {state}, which is counted in a moment"
    detail = {
        "id": str(snapshot.execution.id),
        "name": snapshot.execution.facts.member,
        "kind": snapshot.execution.kind,
        "state": str(state),
    }
    children = () if known is None else known.reasons
    return Reason(code=code, text=text, detail=detail, children=children)


def _called(snapshot: Snapshot) -> str:
    return snapshot.execution.facts.member or str(snapshot.execution.id)


def _budget(snapshot: Snapshot, around: Around) -> list[Reason]:
    """It was turned away because of a budget."""
    name = snapshot.life.budget or ""
    found = list(budget_reasons(around.budgets, around.budget_names, name))
    if found:
        return found
    text = f"budget {name} has room again: it is let in in a moment"
    return [Reason(code=Code.BUDGET_OPEN, text=text, detail={"budget": name})]


def _limit(snapshot: Snapshot, state: Waiting, around: Around) -> Iterable[Reason]:
    """At the gate there is always something to say, before it only what would keep it there."""
    here = state.gate is Gate.LIMIT
    return limit_reasons(
        snapshot.execution.uses,
        state.next,
        around.standing,
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
