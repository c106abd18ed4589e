"""Flows inside a run: a handler fans work out, gives its slot back, goes on when all is done."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from flowfabric.core.check import Seconds, check_iterable
from flowfabric.core.condition import Single
from flowfabric.core.execution import Snapshot
from flowfabric.core.flow import Flow, FlowState, Parent
from flowfabric.core.sending import waitpoint_id
from flowfabric.core.step import Recorded
from flowfabric.core.text import check_kind
from flowfabric.engine.engine import Engine
from flowfabric.worker.control import WaitTimeout
from flowfabric.worker.flow import FlowBuilder, Node, as_result, decoded, failed
from flowfabric.worker.journal import Place, anew
from flowfabric.worker.patience import patiently
from flowfabric.worker.run import Client
from flowfabric.worker.steps import perform
from flowfabric.worker.task import Call, Task, arguments_of, check_task
from flowfabric.worker.transactions import Door
from flowfabric.worker.waits import Waits

R = TypeVar("R")

MAX_KEPT = 512 * 1024
"""Most bytes of results that a run keeps of a flow."""


class SubFlow(FlowBuilder):
    """A flow of a run. Declared once however often the handler runs; waiting for its result needs
    no worker."""

    def __init__(
        self, context: "Subflows", client: Client, name: str, places: tuple[Place, Place]
    ) -> None:
        run, (self._at, self._after) = context._claim.snapshot, places
        super().__init__(
            client,
            name,
            id=_flow_id(run, self._at, 0),
            namespace=run.execution.route.namespace,
            budgets=run.execution.rules.budget_ids,
        )
        self._context = context
        self._life = run.life
        self._told = False

    async def declare(self) -> None:
        async def once() -> str:
            await patiently(super(SubFlow, self).declare, self._context._journal.stopped)
            return str(self.id)

        place = self._at
        if number := await self._orphans():
            await self._context._journal.recorded(place)  # or the code has changed
            place = anew(place, number)
        await perform(self._context._journal, place, once, str)

    async def _orphans(self) -> int:
        """How many flows of this place were cancelled because the run ended. One that is replayed
        has another one then; a flow that had ended by itself is used as it is."""
        context, number = self._context, 0
        while self.id in self._life.orphans and await self._is_orphan():
            number += 1
            self.id = _flow_id(context._claim.snapshot, self._at, number)
        return number

    async def _is_orphan(self) -> bool:
        context = self._context
        return await patiently(
            lambda: context._engine.flow_views.is_orphan(self.id), context._journal.stopped
        )

    async def result(self, timeout: Seconds | None = None) -> Any:
        """The result of the last node, or of those that nothing follows as a dict by name. The
        run needs no worker until then. Raises FlowFailed when the flow did not succeed, and
        WaitTimeout when it has not ended after so many seconds; it goes on then."""
        place = self._context._journal.place(f"flow-result:{self.name}")
        last = self._last()
        return as_result(last, await self._recorded(place, last, timeout))

    async def results(self, nodes: "list[Node[R]]") -> list[R]:
        """The results of some nodes, in order, once the flow has ended in success."""
        place = self._context._journal.place(f"flow-result:{self.name}")
        return await self._recorded(place, nodes)

    async def _recorded(
        self, place: Place, nodes: Sequence[Node[Any]], timeout: Seconds | None = None
    ) -> list[Any]:
        """Results as they were first read: the run needs the flow no longer, which retention may
        take away before it ends. What is too much for a step is read again each time."""
        journal, engine = self._context._journal, self._context._engine
        record = await journal.recorded(place)
        if record is None:
            flow = await self._ended(timeout)
            if flow.state is not FlowState.COMPLETED:
                raise await failed(engine, flow)
        else:
            kept = msgspec.json.decode(bytes(record.value), type=list[msgspec.Raw] | None)
            if kept is not None:
                return [_result(raw, node) for node, raw in zip(nodes, kept, strict=True)]
        found = await patiently(
            lambda: engine.flow_views.results([node.id.uuid for node in nodes]), journal.stopped
        )
        raws = [msgspec.Raw(found.get(node.id.uuid) or b"null") for node in nodes]
        if record is None:
            size = sum(len(bytes(raw)) for raw in raws)
            value = raws if size <= MAX_KEPT else None
            await journal.record(place, Recorded(value=msgspec.Raw(msgspec.json.encode(value))))
        return [_result(raw, node) for node, raw in zip(nodes, raws, strict=True)]

    def _parent(self) -> Parent:
        return Parent(str(self._context._claim.id), self._signal)

    @property
    def _signal(self) -> str:
        return f"flow:{self.id}"

    async def _wait(self, timeout: Seconds | None) -> None:
        context = self._context
        if self._life.replays and await self._is_over():
            self._told = True  # perhaps while the run had ended, and could not hear it
            return
        try:
            await context._wait_for_flow(self._after, self._signal, timeout)
        except WaitTimeout:  # whoever asks again waits again
            self._after = context._journal.place(f"flow-end:{self.name}")
            raise
        self._told = True

    async def _is_over(self) -> bool:
        context = self._context
        flow = await patiently(
            lambda: context._engine.flow_views.get(self.id), context._journal.stopped
        )
        return flow is not None and flow.ended_at is not None

    async def _ended(self, timeout: Seconds | None = None) -> Flow:
        """The flow, as it is now: one that was replayed since it told the run is waited for."""
        context = self._context
        if not self._told:
            await self._wait(timeout)
        return await patiently(
            lambda: context._engine.flow_views.wait(self.id), context._journal.stopped
        )


def _flow_id(run: Snapshot, at: Place, number: int) -> UUID:
    """The id of the flow of a place, or of the one that takes the place of so many orphans."""
    parts = ("flow", at.branch, at.name, str(at.occurrence), *([str(number)] if number else []))
    return waitpoint_id(run.execution.uuid, run.life.generation, *parts)


def _result(raw: msgspec.Raw, node: Node[Any]) -> Any:
    return decoded(None if bytes(raw) == b"null" else bytes(raw), node)


class SyncFlow:
    """`SubFlow` for a plain function."""

    def __init__(self, flow: SubFlow, block: Callable[[Any], Any]) -> None:
        self.flow = flow
        self._block = block

    def add(self, task: "Task[..., R] | Call[..., R]", /, *args: Any, **kwargs: Any) -> Node[R]:
        return self.flow.add(task, *args, **kwargs)

    def result(self, timeout: Seconds | None = None) -> Any:
        return self._block(self.flow.result(timeout))

    def __enter__(self) -> "SyncFlow":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self._block(self.flow.declare())


class Subflows(Waits):
    """The part of a context that fans out."""

    _loop: asyncio.AbstractEventLoop

    def flow(self, name: str) -> SubFlow:
        """A flow of this run: `async with ctx.flow("parts") as flow: flow.add(...)`, then
        `await flow.result()`."""
        check_kind(name)
        places = self._journal.place(f"flow:{name}"), self._journal.place(f"flow-end:{name}")
        return SubFlow(self, self._client(), name, places)

    def map(
        self, task: "Task[..., R] | Call[..., R]", items: Iterable[Any], *, name: str | None = None
    ) -> Coroutine[Any, Any, list[R]]:
        """Runs a task once per item, all at the same time and wherever there are workers, and
        gives the results in the order of the items. A tuple is the arguments of one run, a dict
        its arguments by name. Raises FlowFailed when any of them did not succeed."""
        asked = check_task(task)
        of = asked.task if isinstance(asked, Call) else asked
        flow = self.flow(f"map:{of.name}" if name is None else name)
        given = check_iterable(items, "items")
        nodes = [_add(flow, task, item, at) for at, item in enumerate(given)]
        return self._map(flow, nodes)

    def _client(self) -> Client:
        """What flows of this run reach the engine by."""
        engine, loop = self._engine, self._loop

        async def lend() -> Engine:
            return engine

        def block_on(work: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        return Client(lend, block_on, Door(engine.store.clock, lambda: engine.identity))

    async def _map(self, flow: SubFlow, nodes: "list[Node[R]]") -> list[R]:
        if not nodes:
            return []
        await flow.declare()
        return await flow.results(nodes)

    async def _wait_for_flow(self, place: Place, signal: str, timeout: Seconds | None) -> None:
        await self._one(place, self._channels((signal,), Single(signal), timeout), Any)


def _add(flow: SubFlow, task: "Task[..., R] | Call[..., R]", item: Any, at: int) -> Node[R]:
    args, kwargs = arguments_of(item)
    return flow.place(task, args, kwargs, name=str(at))
