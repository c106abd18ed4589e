"""Flows as an application writes them: tasks are added one by one and declared as a whole.

    async with fabric.flow("nightly") as flow:
        rows = flow.add(extract, "2026-11-15")
        flow.add(load, rows=rows.output)
    await flow.result()

Nothing is created before the block ends. A flow that cannot run is refused there, with the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, cast
from uuid import UUID, uuid5

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, InvalidGraph, NotFound
from flowfabric.core.base.ids import RunId
from flowfabric.core.base.numbers import Seconds, check_kind_of
from flowfabric.core.base.text import MAX_NAME, check_kind, check_namespace, check_tags, check_text
from flowfabric.core.execution.status import ENDED, PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.arguments import escaped
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode, member_id
from flowfabric.core.flow.join import AllOf, JoinPolicy, On
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState, Parent
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow.flows import FlowCancelled
from flowfabric.engine.flow.views import FlowGraph
from flowfabric.worker.api.blocking import Block, blocking, has_loop
from flowfabric.worker.api.client import Client
from flowfabric.worker.api.limits import budgets_of
from flowfabric.worker.api.run import Run
from flowfabric.worker.api.task import Call, Task
from flowfabric.worker.codec import Signature, decode, plain
from flowfabric.worker.errors import FlowFailed, ResultTimeout

R = TypeVar("R")

NAMES = UUID("6d3f3b1e-5b0c-5c57-9d4e-6f0a5e3c9b10")
"""The namespace of the ids of flows with a key."""

MAX_NAMED = 5
"""How many nodes a timeout names."""

UNDECLARED = "it is created when its block ends: ask for its result after that"

_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
_ON = {"success": On.SUCCESS, "failure": On.FAILURE, "any": On.ANY_END}


class Output:
    """Stands for the future result of a node, as an argument of another node."""

    __slots__ = ("node",)

    def __init__(self, node: "Node[Any]") -> None:
        self.node = node

    def __repr__(self) -> str:
        return f"the output of {self.node.name!r}"

    def __format__(self, spec: str) -> str:
        raise InvalidGraph(f"{self!r} is not known yet: give it to a task as an argument")

    def __str__(self) -> str:
        return format(self)


class FlowName:
    """The id of a flow, which a run that is replayed may change. Nodes refer to it and not to their
    flow, which refers to them: a cycle would wait for the garbage collector."""

    __slots__ = ("id",)

    def __init__(self, id: UUID) -> None:
        self.id = id


class Node(Generic[R]):
    """A task in a flow. `output` stands for its result; `run` is its run, once the flow was
    declared."""

    def __init__(self, flow: FlowName, name: str, task: Task[..., R]) -> None:
        self.name = name
        self.task = task
        self._flow = flow

    def __repr__(self) -> str:
        return f"Node({self.name!r})"

    @property
    def output(self) -> R:
        """Stands for the result of this node: give it to another node as an argument."""
        return cast(R, Output(self))

    @property
    def id(self) -> RunId:
        return RunId(member_id(self._flow.id, self.name))

    @property
    def run(self) -> Run[R]:
        return self.task.run_of(self.id)


class FlowBuilder:
    """A flow to build, and once it was declared, the flow itself."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        id: UUID,
        namespace: str = "default",
        tags: Mapping[str, str] | None = None,
        budgets: Iterable[str] = (),
    ) -> None:
        self.name = check_kind(name)
        self._named = FlowName(id)
        self.nodes: dict[str, Node[Any]] = {}
        self.created = False
        self.is_declared = False
        self._client = client
        self._namespace = check_namespace(namespace)
        self._tags = {} if tags is None else check_tags(tags)
        self._budgets = budgets_of((), budgets)
        self._declared: list[GraphNode] = []
        self._links: list[GraphEdge] = []

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {self.id})"

    @property
    def id(self) -> UUID:
        return self._named.id

    def add(
        self,
        task: "Task[..., R] | Call[..., R]",
        /,
        *args: Any,
        after: "Node[Any] | Iterable[Node[Any]]" = (),
        on: str = "success",
        join: JoinPolicy | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Node[R]:
        """Adds a task. It runs after every node in `after` and every node whose `output` is among
        its arguments, once those have ended as `on` says (`success`, `failure` or `any`); with a
        `join`, after any or a number of them. The output of a node that did not succeed is
        None."""
        return self.place(task, args, kwargs, after=after, on=on, join=join, name=name)

    def place(
        self,
        task: "Task[..., R] | Call[..., R]",
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        after: "Node[Any] | Iterable[Node[Any]]" = (),
        on: str = "success",
        join: JoinPolicy | None = None,
        name: str | None = None,
    ) -> Node[R]:
        """As `add`, for arguments whose names may be those of its options."""
        if self.is_declared:
            raise InvalidGraph(f"{self!r} is declared: add all of its nodes before its block ends")
        if not isinstance(task, Task | Call):
            raise InvalidGraph(f"a node must be a task, not {type(task).__name__}")
        call = task if isinstance(task, Call) else task.with_options()
        node: Node[R] = Node(self._named, self._name_for(call.task, name), call.task)
        condition = _ON.get(on) if isinstance(on, str) else None
        if condition is None:
            raise InvalidGraph(f"on must be one of {', '.join(_ON)}, not {on!r}")
        payload, inputs = fill_later(call.task.signature, args, kwargs)
        submission = self._submission(call, payload)
        links = self._links_to(node, _nodes(after), condition, inputs)
        policy = AllOf() if join is None else join
        self._declared.append(GraphNode(node.name, submission, policy))
        self._links += links
        self.nodes[node.name] = node
        return node

    async def declare(self) -> None:
        """Creates the flow. Declaring the same flow again changes nothing."""
        engine = await self._client.engine()
        for node in self.nodes.values():
            await node.task.declare(engine)
        graph = Graph(tuple(self._declared), tuple(self._links))
        declared = await engine.flows.declare(
            self.name,
            graph,
            id=self.id,
            namespace=self._namespace,
            tags=self._tags,
            parent=self._parent(),
        )
        self.created = declared.created
        self.is_declared = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            await self.declare()

    def __enter__(self) -> Self:
        """As `async with`, for code without an event loop."""
        if has_loop():
            raise Invalid("an event loop is running here: write `async with` instead of `with`")
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.declare_sync()

    # -- the flow itself

    async def result(self, timeout: Seconds | None = None) -> Any:
        """Waits for the flow and returns the result of its last node, or a dict by name if several
        nodes have no successor. Skipped nodes, such as a cleanup that was not needed, are left out.
        Raises FlowFailed if the flow failed or was cancelled, and ResultTimeout, which is a
        TimeoutError and names the nodes that have not ended, after `timeout`."""
        engine = await self._client.engine()
        try:
            flow = await engine.flow_views.wait(self.id, timeout)
        except TimeoutError as error:
            raise await _timeout(engine, self.id, str(error)) from None
        except NotFound:
            if self.is_declared:
                raise
            raise NotFound("flow", f"{self.id} ({UNDECLARED})") from None
        return await self._value(engine, flow)

    async def state(self) -> FlowState:
        return (await self._stored()).state

    async def graph(self) -> FlowGraph:
        """Every node with its state, and every edge."""
        return await (await self._client.engine()).flow_views.graph(self.id)

    async def cancel(
        self,
        reason: str = "cancelled by its owner",
        *,
        policy: CancelPolicy | str = CancelPolicy.ALL,
        wait: bool = True,
    ) -> FlowCancelled:
        """Cancels the flow and its runs; see CancelPolicy."""
        engine = await self._client.engine()
        return await engine.flows.cancel(self.id, reason=reason, policy=policy, wait=wait)

    async def replay(self) -> None:
        """Runs the nodes that did not succeed again."""
        await (await self._client.engine()).flows.replay(self.id)

    declare_sync = blocking(declare)
    result_sync = blocking(result)
    state_sync = blocking(state)
    graph_sync = blocking(graph)
    cancel_sync = blocking(cancel)
    replay_sync = blocking(replay)

    # -- how

    def _blocking(self) -> tuple[Any, Block]:
        return self, self._client.block_on

    def _parent(self) -> Parent | None:
        return None

    def _name_for(self, task: Task[..., Any], name: str | None) -> str:
        """A unique name: that of the task, numbered from the second node on."""
        if name is not None:
            if not check_text(name, "the name of a node", limit=MAX_NAME):
                raise InvalidGraph("the name of a node must not be empty")
            if name in self.nodes:
                raise InvalidGraph(f"two members are called {name!r}")
            return name
        number, found = 1, task.name
        while found in self.nodes:
            number += 1
            found = f"{task.name}#{number}"
        return found

    def _submission(self, call: "Call[..., Any]", payload: bytes) -> Submission:
        if call.options.connection is not None or call.options.id is not None:
            raise Invalid("a node of a flow takes neither a connection nor an id")
        options = call.options
        if self._budgets or options.budgets is not None:
            budgets = budgets_of(self._budgets, options.budgets) or None
            options = replace(options, budgets=budgets)
        plain = call.task.submission(options, (), {}, self._client.transactions.now(), payload)
        return replace(plain, namespace=self._namespace)

    def _links_to(
        self,
        node: Node[Any],
        after: Sequence[Node[Any]],
        on: On,
        inputs: dict["Node[Any]", list[str]],
    ) -> list[GraphEdge]:
        for upstream in (*after, *inputs):
            self._check_own(upstream)
        links = [GraphEdge(each.name, node.name, on) for each in after if each not in inputs]
        for each, paths in inputs.items():
            links.append(GraphEdge(each.name, node.name, on, "\n".join(paths)))
        return links

    def _check_own(self, node: Node[Any]) -> None:
        if not isinstance(node, Node) or self.nodes.get(node.name) is not node:
            raise InvalidGraph(f"{node!r} is not a node of this flow")

    async def _stored(self) -> Flow:
        flow = await (await self._client.engine()).flow_views.get(self.id)
        if flow is None:
            raise NotFound("flow", self.id)
        return flow

    async def _value(self, engine: Engine, flow: Flow) -> Any:
        if flow.state is not FlowState.COMPLETED:
            raise await failed(engine, flow)
        last = await self._last(engine, flow)
        return as_result(last, await self._results(engine, last)) if last else None

    async def _last(self, engine: Engine, flow: Flow) -> list[Node[Any]]:
        """The nodes without a successor, skipped ones left out."""
        skipped = set[str]()
        if flow.ended.get(PublicState.SKIPPED):
            ids = {node.id.uuid: name for name, node in self.nodes.items()}
            skipped = {ids[uuid] for uuid in await engine.flow_views.skipped(list(ids))}
        followed = {link.upstream for link in self._links if link.downstream not in skipped}
        return [node for name, node in self.nodes.items() if name not in followed | skipped]

    async def _results(self, engine: Engine, nodes: Sequence[Node[Any]]) -> list[Any]:
        found = await engine.flow_views.results([node.id.uuid for node in nodes])
        return [decoded(found.get(node.id.uuid), node) for node in nodes]


def as_result(nodes: Sequence[Node[Any]], results: Sequence[Any]) -> Any:
    """The result of a flow: the only one, or all of them by name."""
    if len(nodes) == 1:
        return results[0]
    return {node.name: result for node, result in zip(nodes, results, strict=True)}


def fill_later(
    signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[bytes, dict[Node[Any], list[str]]]:
    """The payload with null in place of outputs, and the paths of the outputs by node."""
    if not (_has_output(args) or _has_output(kwargs)):
        return signature.encode(args, kwargs), {}
    inputs: dict[Node[Any], list[str]] = {}

    # It refers to itself, so only the garbage collector frees it: not made for every node.
    def emptied(value: Any, path: str) -> Any:
        if isinstance(value, Output):
            inputs.setdefault(value.node, []).append(path)
            return None
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return [emptied(item, f"{path}/{at}") for at, item in enumerate(value)]
        if type(value) is dict:
            return {key: emptied(item, f"{path}/{escaped(key)}") for key, item in value.items()}
        return value

    bound = signature.bind(args, kwargs)
    empty = {name: emptied(value, escaped(name)) for name, value in bound.items()}
    return signature.encode_loosely(empty), inputs


def said(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The arguments of a node as plain values, the same in every process. An output is replaced by
    the name of its node."""

    def named(value: Any) -> Any:
        if isinstance(value, Output):
            return {"output of": value.node.name}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return [named(item) for item in value]
        if type(value) is dict:
            return {key: named(item) for key, item in value.items()}
        return value

    return plain({name: named(value) for name, value in signature.bind(args, kwargs).items()})


def flow_id(namespace: str, name: str, key: str) -> UUID:
    """The id of a flow with a key: the same key names the same flow."""
    return uuid5(NAMES, f"{len(namespace)}:{namespace}{len(name)}:{name}{key}")


async def _timeout(engine: Engine, flow: UUID, report: str) -> ResultTimeout:
    graph = await engine.flow_views.graph(flow)
    state = graph.flow.state.name.lower()
    unended = [each for each in graph.members if each.state not in ENDED]
    waits = sorted(f"{each.name} ({each.state})" for each in unended)
    more = f" and {len(waits) - MAX_NAMED} more" if len(waits) > MAX_NAMED else ""
    why = f"it waits for {', '.join(waits[:MAX_NAMED])}{more}" if waits else ""
    return ResultTimeout("flow", flow, state=state, why=why, report=report)


async def failed(engine: Engine, flow: Flow) -> FlowFailed:
    if flow.cancel is not None:
        return FlowFailed(str(flow.id), f"cancelled: {flow.cancel.reason}", ())
    graph = await engine.flow_views.graph(flow.id)
    bad = {PublicState.FAILED, PublicState.EXPIRED, PublicState.CANCELLED}
    names = tuple(
        member.name for member in graph.members if member.state in bad and not member.spared
    )
    return FlowFailed(str(flow.id), f"{', '.join(names[:10])} did not succeed", names)


def decoded(result: bytes | None, node: Node[Any]) -> Any:
    """The result of a node; None if it did not run."""
    return None if result is None else decode(result, node.task.signature.returns)


def _nodes(after: object) -> list[Node[Any]]:
    if isinstance(after, Node):
        return [after]
    if not isinstance(after, Iterable) or isinstance(after, str):
        raise InvalidGraph("after must be a node or a list of nodes")
    nodes = [check_kind_of(node, Node, "a member of after") for node in after]
    return list(dict.fromkeys(nodes))


def _has_output(value: Any) -> bool:
    if isinstance(value, Output):
        return True
    if isinstance(value, Node):
        raise InvalidGraph(f"{value!r} cannot be an argument of a task; its output can")
    if isinstance(value, list | tuple):
        items: Iterable[Any] = value
    elif type(value) is dict or isinstance(value, Mapping):
        items = value.values()
    else:
        return False
    return any([_has_output(item) for item in items if type(item) not in _PLAIN])
