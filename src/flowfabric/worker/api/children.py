"""Flows inside a run: a handler fans out work and continues when all of it is done.

The run holds no worker meanwhile. Everything read of a flow is recorded in the journal.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import (
    FlowConflict,
    FlowTerminal,
    InvalidGraph,
    MaxReplays,
    NotFound,
)
from flowfabric.core.base.numbers import Seconds, check_iterable
from flowfabric.core.base.text import check_kind
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.step import Recorded
from flowfabric.core.execution.step_order import REPLACED
from flowfabric.core.flow.model import Flow, FlowState, Parent, known
from flowfabric.core.wait.channel import waitpoint_id
from flowfabric.engine.engine import Engine
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.flow import (
    UNDECLARED,
    FlowBuilder,
    Node,
    as_result,
    decoded,
    failed,
    said,
)
from flowfabric.worker.api.task import Call, Task, check_task
from flowfabric.worker.api.transactions import TransactionalClient
from flowfabric.worker.api.waits import WaitsApi
from flowfabric.worker.errors import FlowFailed, WaitTimeout
from flowfabric.worker.run.branches import StepPlace
from flowfabric.worker.run.race import racing
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.steps import perform, read

R = TypeVar("R")

MAX_KEPT = 512 * 1024
"""How many bytes of results a run records of a flow at most."""
FAILED, AGAIN = "failed", "again"
"""Names of what is recorded beside the results of a flow that failed at first."""


class Declaration(Struct, frozen=True):
    """The step of a declared flow. `asked` is a digest of its nodes and edges."""

    flow: str
    asked: str


class Kept(Struct, frozen=True):
    """The step of the results of some nodes. `values` is None if they are too large for a step."""

    names: list[str]
    values: list[msgspec.Raw] | None = None


class SubFlowFailure(Struct, frozen=True):
    """The step of a failed flow. `seen` is how often the run had been replayed and retried when it
    saw the failure."""

    detail: str
    members: list[str]
    seen: tuple[int, int]


class SubFlow(FlowBuilder):
    """A flow of a run. It is declared once, however often the handler runs, and waiting for its
    result holds no worker."""

    def __init__(
        self, scope: CallScope, waits: WaitsApi, name: str, places: tuple[StepPlace, StepPlace]
    ) -> None:
        run, (self._at, self._after) = scope.claim.snapshot, places
        super().__init__(
            _client(scope),
            name,
            id=_flow_id(run, self._at, 0),
            namespace=run.execution.route.namespace,
            budgets=run.execution.rules.budget_ids,
        )
        self._scope = scope
        self._waits = waits
        self._life = run.life
        self._signalled = False
        self._asked: list[object] = []

    def place(
        self,
        task: "Task[..., R] | Call[..., R]",
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        **options: Any,
    ) -> Node[R]:
        node = super().place(task, args, kwargs, **options)
        self._asked.append([node.name, node.task.name, said(node.task.signature, args, kwargs)])
        return node

    async def declare(self) -> None:
        await self.declare_once(super().declare)
        self.is_declared = True  # perhaps by an earlier call of the handler

    async def declare_once(self, declare: Callable[[], Awaitable[None]]) -> None:
        """Declares the flow and records its digest. Raises StepsChanged if another one is
        recorded."""
        journal, asked = self._scope.journal, self._digest()

        async def once() -> Declaration:
            try:
                await self._scope.until_available(declare)
            except FlowConflict:  # declared but not recorded: the worker died in between
                self._refuse()
            return Declaration(str(self.id), asked)

        place = self._at
        earlier = await self._declared_earlier(asked)
        if earlier is not None and await self._is_used(earlier):
            self._named.id, self._signalled = UUID(earlier.flow), True
            return
        number = await self._orphans()
        _race(self.id)
        if number:
            self._check_asked(await journal.recorded(place), asked)
            place = place.again(number)
        if earlier is not None:
            place = self._at.again(number + 1, REPLACED)
        self._check_asked(await journal.recorded(place), asked)
        await perform(journal, place, once, Declaration)

    def _digest(self) -> str:
        """A digest of names, tasks, arguments, joins and edges, in any order."""
        joins = [[each.key, each.join] for each in self._declared]
        parts = sorted(map(msgspec.json.encode, [*self._asked, *joins, *self._links]))
        return blake2b(b"\n".join(parts), digest_size=16).hexdigest()

    def _check_asked(self, record: Recorded | None, asked: str) -> None:
        if record is not None and read(self._at, record, Declaration).asked != asked:
            self._refuse()

    def _refuse(self) -> NoReturn:
        self._scope.journal.refuse(
            f"flow {self.name!r} was declared with other members than the code now asks for"
        )

    async def _declared_earlier(self, asked: str) -> Declaration | None:
        """The flow that was declared here by the run that this one was forked from, or before it
        was replayed from a later step."""
        record = await self._scope.journal.recorded(self._at)
        self._check_asked(record, asked)
        if record is None:
            return None
        found: Declaration = read(self._at, record, Declaration)
        own = _flow_id(self._scope.claim.snapshot, self._at, 0)
        return None if found.flow == str(own) else found

    async def _is_used(self, earlier: Declaration) -> bool:
        """Whether an earlier flow has succeeded, so that its results are used; otherwise another
        one is declared. It is recorded, since retention may delete the flow."""
        views = self._scope.engine.flow_views

        async def choose() -> Declaration:
            flow = await self._scope.until_available(lambda: views.get(UUID(earlier.flow)))
            succeeded = flow is not None and flow.state is FlowState.COMPLETED
            return earlier if succeeded else Declaration(str(self.id), earlier.asked)

        place = self._at.again(0, REPLACED)
        chosen = await perform(self._scope.journal, place, choose, Declaration)
        return bool(chosen == earlier)

    async def _orphans(self) -> int:
        """How many flows of this place were cancelled because the run ended. A replayed run
        declares another flow in their place; one that had ended before is used as it is."""
        number = 0
        while self.id in self._life.orphans and await self._is_orphan():
            number += 1
            self._named.id = _flow_id(self._scope.claim.snapshot, self._at, number)
        return number

    async def _is_orphan(self) -> bool:
        views = self._scope.engine.flow_views
        return await self._scope.until_available(lambda: views.is_orphan(self.id))

    async def result(self, timeout: Seconds | None = None) -> Any:
        """Waits for the flow, without a worker, and returns the result of its last node, or a dict
        by name if several nodes have no successor. Skipped nodes are left out. Raises FlowFailed if
        the flow did not succeed, and WaitTimeout if it has not ended after `timeout` seconds; the
        flow continues then."""
        place = self._scope.branches.place(f"flow-result:{self.name}")
        found = await self._recorded(place, None, timeout)
        return as_result([self.nodes[name] for name in found], list(found.values()))

    async def results(self, nodes: "list[Node[R]]") -> list[R]:
        """Waits for the flow, without a worker, and returns the results of these nodes in order."""
        place = self._scope.branches.place(f"flow-result:{self.name}")
        found = await self._recorded(place, nodes)
        return [found[node.name] for node in nodes]

    async def _recorded(
        self, place: StepPlace, nodes: "Sequence[Node[Any]] | None", timeout: Seconds | None = None
    ) -> dict[str, Any]:
        """Results by name, as they were first read: retention may delete the flow before the run
        ends. Results that are too large for a step are read again each time. Without `nodes`, the
        results of the last ones."""
        if not self.is_declared:
            raise InvalidGraph(f"there is no {self!r} yet: {UNDECLARED}")
        journal, engine = self._scope.journal, self._scope.engine
        _race(self.id)
        record = await journal.recorded(place)
        if record is None:
            await self._run_failed_again(place)
            flow = await self._ended(timeout)
            if flow.state is not FlowState.COMPLETED:
                raise await self._failed(place, flow)
            if nodes is None:
                nodes = await self._scope.until_available(lambda: self._last(engine, flow))
            return await self._read(nodes, place)
        kept = read(place, record, Kept)
        names = kept.names if nodes is None else [node.name for node in nodes]
        if kept.names != names or not self.nodes.keys() >= set(names):
            journal.refuse(f"the results of other nodes of flow {self.name!r} are recorded")
        if kept.values is None:
            return await self._read([self.nodes[name] for name in names])
        return {
            name: _result(raw, self.nodes[name])
            for name, raw in zip(names, kept.values, strict=True)
        }

    async def _read(
        self, nodes: Sequence[Node[Any]], place: StepPlace | None = None
    ) -> dict[str, Any]:
        """Reads results from the store, and records them at `place` if one is given."""
        journal, engine = self._scope.journal, self._scope.engine
        found = await self._scope.until_available(
            lambda: engine.flow_views.results([node.id.uuid for node in nodes])
        )
        raws = [msgspec.Raw(found.get(node.id.uuid) or b"null") for node in nodes]
        if place is not None:
            small = sum(len(bytes(raw)) for raw in raws) <= MAX_KEPT
            kept = Kept([node.name for node in nodes], raws if small else None)
            await journal.record(place, Recorded(value=msgspec.Raw(msgspec.json.encode(kept))))
        return {node.name: _result(raw, node) for node, raw in zip(nodes, raws, strict=True)}

    async def _failed(self, place: StepPlace, flow: Flow) -> FlowFailed:
        """Records the error of a failed flow, so that a handler that catches it sees the same error
        when it runs again."""
        journal, engine = self._scope.journal, self._scope.engine
        error = await self._scope.until_available(lambda: failed(engine, flow))
        seen = SubFlowFailure(error.detail, list(error.members), self._round)
        number = len(await self._failures(place))
        value = msgspec.Raw(msgspec.json.encode(seen))
        await journal.record(place.again(number, FAILED), Recorded(value=value))
        return error

    async def _failures(self, place: StepPlace) -> list[SubFlowFailure]:
        journal, found = self._scope.journal, list[SubFlowFailure]()
        while record := await journal.recorded(place.again(len(found), FAILED)):
            found.append(read(place, record, SubFlowFailure))
        return found

    @property
    def _round(self) -> tuple[int, int]:
        return self._life.replays, self._life.retries

    async def _run_failed_again(self, place: StepPlace) -> None:
        """Runs the failed nodes again if the run was retried or replayed because of them. A failure
        that the handler caught stays as it was."""
        journal, engine = self._scope.journal, self._scope.engine
        failures = await self._failures(place)
        if not failures:
            return
        last = failures[-1]
        error = FlowFailed(str(self.id), last.detail, tuple(last.members))
        if last.seen == self._round or journal.went_on(place):
            raise error

        async def once() -> None:
            try:
                await self._scope.until_available(lambda: engine.flows.replay(self.id))
            except (FlowTerminal, MaxReplays, NotFound):
                raise error from None

        await perform(journal, place.again(len(failures), AGAIN), once, Any)

    def _parent(self) -> Parent:
        return Parent(str(self._scope.claim.id), self._signal)

    @property
    def _signal(self) -> str:
        return f"flow:{self.id}"

    async def _wait(self, timeout: Seconds | None) -> None:
        if self._life.replays and await self._is_over():
            self._signalled = True  # the signal may have come while the run had ended, and got lost
            return
        try:
            await self._waits.wait_at(self._after, self._signal, timeout)
        except WaitTimeout:  # the next call waits again, at a place of its own
            self._after = self._scope.branches.place(f"flow-end:{self.name}")
            raise
        self._signalled = True

    async def _is_over(self) -> bool:
        return (await self._now()).ended_at is not None

    async def _now(self) -> Flow:
        views = self._scope.engine.flow_views
        return known(await self._scope.until_available(lambda: views.get(self.id)), self.id)

    async def _ended(self, timeout: Seconds | None = None) -> Flow:
        """The ended flow. If it was replayed after it had signalled its end to the run, waits
        again."""
        number = 0
        if not self._signalled:
            await self._wait(timeout)
        while (flow := await self._now()).ended_at is None:
            number += 1
            again = self._after.again(number)
            await self._waits.wait_at(again, self._signal, timeout)
        return flow


def _race(flow: UUID) -> None:
    """In a branch of a race the flow ends with it."""
    if (branch := racing.get()) is not None:
        branch.begin(flows=[flow])


def _flow_id(run: Snapshot, at: StepPlace, number: int) -> UUID:
    """The id of the flow of a place, after `number` orphans."""
    parts = ("flow", at.branch, at.name, str(at.occurrence), *([str(number)] if number else []))
    return waitpoint_id(run.execution.uuid, run.life.generation, *parts)


def _result(raw: msgspec.Raw, node: Node[Any]) -> Any:
    return decoded(None if bytes(raw) == b"null" else bytes(raw), node)


class FlowsApi:
    """The part of a context that fans out."""

    def __init__(self, scope: CallScope, waits: WaitsApi) -> None:
        self._scope = scope
        self._waits = waits

    def flow(self, name: str) -> SubFlow:
        """Builds a flow of this run: `async with ctx.flow("parts") as flow: flow.add(...)`, then
        `await flow.result()`."""
        check_kind(name)
        branches = self._scope.branches
        places = branches.place(f"flow:{name}"), branches.place(f"flow-end:{name}")
        return SubFlow(self._scope, self._waits, name, places)

    def map(
        self, task: "Task[..., R] | Call[..., R]", items: Iterable[Any], *, name: str | None = None
    ) -> Coroutine[Any, Any, list[R]]:
        """Runs a task once per item, concurrently on all workers, and returns the results in the
        order of the items. A tuple is the arguments of one run, any other item its only argument.
        Raises FlowFailed if a run did not succeed; a retry of this run runs only those again."""
        asked = check_task(task)
        of = asked.task if isinstance(asked, Call) else asked
        flow = self.flow(f"map:{of.name}" if name is None else name)
        given = check_iterable(items, "items")
        nodes = [_add(flow, task, item, at) for at, item in enumerate(given)]
        return self._map(flow, nodes)

    async def _map(self, flow: SubFlow, nodes: "list[Node[R]]") -> list[R]:
        if not nodes:
            await flow.declare_once(_nothing)  # so that a call with other items is refused later
            return []
        await flow.declare()
        return await flow.results(nodes)


def _client(scope: CallScope) -> Client:
    """How the flows of a run reach the engine."""
    engine, loop = scope.engine, scope.loop

    async def lend() -> Engine:
        return engine

    def block_on(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    return Client(lend, block_on, TransactionalClient(engine.clock, lambda: engine.identity))


async def _nothing() -> None:
    """Declares nothing: a flow needs a node."""


def _add(flow: SubFlow, task: "Task[..., R] | Call[..., R]", item: Any, at: int) -> Node[R]:
    args = item if isinstance(item, tuple) else (item,)
    return flow.place(task, args, {}, name=str(at))
