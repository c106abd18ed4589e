"""A flow: executions with dependencies between them, and what became of it as a whole.

The record counts endings only; how many members live in which state is a question to the store.
It is completed or failed when as many members have ended as it has, and it says so itself.
"""

from enum import StrEnum
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.document import Document
from flowfabric.core.base.errors import FlowTerminal, NotFound, NotTerminal
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.shape import check_shape
from flowfabric.core.base.text import check_signal_name
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Ended, Snapshot
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.flow.join import Edge
from flowfabric.core.flow.outbox import OutboxEntry, OutboxKind, is_spared

SPARED = "spared"
MISSING = "missing"
_FAILURES = ("failed", "cancelled", "expired")


class FlowState(StrEnum):
    """OPEN: members wait for the seal. RUNNING: members that come still start at once."""

    OPEN = "open"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CancelPolicy(StrEnum):
    """Which members are cancelled with their flow: every one that has not ended, those that never
    started, or none."""

    ALL = "cancel_all"
    PENDING = "cancel_pending"
    FLOW_ONLY = "flow_only"


class Cancellation(Struct, frozen=True, omit_defaults=True):
    """`by` is who asked for it, if that is known; `named` is what the caller called the policy, if
    that is another word."""

    at: Millis
    reason: str
    policy: CancelPolicy
    by: str | None = None
    named: str | None = None


class Parent(Struct, frozen=True):
    """The run that waits for the flow, and the signal it waits for."""

    execution: str
    signal: str


class Flow(Document, frozen=True, kw_only=True, omit_defaults=True):
    """`revision` grows by one with every member and every edge; `ended` counts members by how they
    ended; `graph` is a digest of the declaration, where the graph was declared as a whole. One that
    is `eager` is never sealed: its members run as soon as their own edges allow, and it stays open
    when all of them have ended."""

    id: UUID = UUID(int=0)
    version: int = 1
    kind: str = ""
    namespace: str = "default"
    state: FlowState = FlowState.OPEN
    revision: int = 0
    nodes: int = 0
    edges: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    created_at: Millis = Millis(0)
    mutated_at: Millis = Millis(0)
    ended_at: Millis | None = None
    cancel: Cancellation | None = None
    parent: Parent | None = None
    graph: str | None = None
    eager: bool = False
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def terminal(self) -> bool:
        return self.state not in (FlowState.OPEN, FlowState.RUNNING)

    @property
    def over(self) -> int:
        """How many members have ended."""
        return sum(self.ended.values())


class FlowChange(Struct, frozen=True):
    """A change of a flow and of everything it was decided together with; written whole or not at
    all, and only while every version stands: of the flow, of the executions of `changes`, and of
    the `guards`, which are only looked at. `done` are outbox entries that are done by it, `applied`
    known edges that were staged before."""

    before: Flow | None
    after: Flow
    edges: tuple[Edge, ...] = ()
    changes: tuple[Change[object], ...] = ()
    guards: tuple[Snapshot, ...] = ()
    owed: tuple[OutboxEntry, ...] = ()
    done: tuple[OutboxEntry, ...] = ()
    applied: tuple[Edge, ...] = ()


def check_parent(parent: object) -> Parent:
    """`parent` if it names an execution and a signal, as plain text that can be stored."""
    checked = check_shape(parent, Parent, "parent")
    return Parent(str(ExecutionId(checked.execution)), check_signal_name(checked.signal))


def known(flow: Flow | None, id: object = "") -> Flow:
    if flow is None:
        raise NotFound("flow", id)
    return flow


def open_flow(flow: Flow | None, id: object = "") -> Flow:
    """The flow if it can still grow."""
    found = known(flow, id)
    if found.terminal:
        raise FlowTerminal(f"flow {found.id} is {found.state}")
    return found


def changed(flow: Flow, now: Millis, **members: object) -> Flow:
    """The flow after a change: next version, given members, and the state that follows."""
    after = replace(flow, version=flow.version + 1, mutated_at=now, **members)
    return _settled(after, now)


def count_outbox(
    flow: Flow, now: Millis, entries: tuple[OutboxEntry, ...], missing: int | None = None
) -> FlowChange:
    """The flow after endings (and replays, which take one back) were counted, once each. `missing`
    are members of a cancelled flow that were never written: they will never end, so they count as
    ended. One that comes late and ends takes the place of a missing one."""
    ended = dict(flow.ended)
    for entry in entries:
        if entry.outcome is None:
            continue
        name = _name(entry.outcome, spared=entry.spared)
        step = {OutboxKind.ENDED: 1, OutboxKind.REPLAYED: -1}.get(entry.kind, 0)
        ended[name] = ended.get(name, 0) + step
    if missing is not None:
        ended[MISSING] = missing
    if MISSING in ended:
        there = sum(number for name, number in ended.items() if name != MISSING)
        ended[MISSING] = max(0, min(ended[MISSING], flow.nodes - there))
    counted = {name: number for name, number in ended.items() if number}
    after = changed(flow, now, ended=counted)
    owed: tuple[OutboxEntry, ...] = ()
    if after.parent is not None and after.ended_at is not None and flow.ended_at is None:
        owed = (OutboxEntry(flow.id, flow.id, after.version, OutboxKind.TELL),)
    return FlowChange(flow, after, owed=owed, done=entries)


def _settled(flow: Flow, now: Millis) -> Flow:
    """Completed or failed once all members have ended, running again when one was replayed."""
    growing = flow.state is FlowState.OPEN and not (flow.eager and flow.nodes)
    over = not growing and flow.over >= flow.nodes
    ended_at = (flow.ended_at or now) if over else None
    if flow.state in (FlowState.OPEN, FlowState.CANCELLED):
        return replace(flow, ended_at=ended_at)
    if not over:
        return replace(flow, state=FlowState.RUNNING, ended_at=None)
    state = FlowState.FAILED if has_failed(flow) else FlowState.COMPLETED
    return replace(flow, state=state, ended_at=ended_at)


def has_failed(flow: Flow) -> bool:
    """Whether any member ended in a way that fails the flow."""
    return any(flow.ended.get(name) for name in _FAILURES)


def counted_as(snapshot: Snapshot) -> str:
    """Under which name an ended member is counted."""
    if not isinstance(snapshot.state, Ended):
        raise NotTerminal("only an ended member is counted")
    return _name(snapshot.state.outcome, spared=is_spared(snapshot))


def _name(outcome: Outcome, *, spared: bool) -> str:
    return SPARED if spared else outcome.name.lower()
