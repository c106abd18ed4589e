"""The whole graph of a flow in one declaration: checked before anything is written, and the same
declaration always becomes the same executions."""

from collections.abc import Iterator
from hashlib import blake2b
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import CycleDetected, Invalid, InvalidGraph, NotInFlow, SelfEdge
from flowfabric.core.base.ids import ExecutionId, derive_uuid
from flowfabric.core.base.numbers import check_kind_of, check_whole
from flowfabric.core.base.text import MAX_NAME, MAX_REASON, check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.gate import admit
from flowfabric.core.execution.model import Flags, Ready, Snapshot, Waiting
from flowfabric.core.execution.submission import Creation, Submission, create
from flowfabric.core.flow.join import AllOf, AnyOf, Edge, Join, JoinPolicy, On, Quorum, Rest
from flowfabric.core.flow.model import Flow

MAX_NODES = 100_000
MAX_LINKS = 1_000_000
_CONDITIONS = tuple(On)


class GraphNode(Struct, frozen=True, gc=False):
    """A member that is to be made; `key` names it inside the flow."""

    key: str
    submission: Submission
    join: JoinPolicy = AllOf()


class GraphEdge(Struct, frozen=True, gc=False):
    """`downstream` runs after `upstream`; `input`, unless it is empty, names the parameter that
    gets its result."""

    upstream: str
    downstream: str
    on: On = On.SUCCESS
    input: str | None = None


class Graph(Struct, frozen=True):
    nodes: tuple[GraphNode, ...]
    links: tuple[GraphEdge, ...] = ()


class Plan(Struct, frozen=True):
    """What a graph becomes. Roots are written last: nothing runs before all it leads to is
    there."""

    digest: str
    rest: tuple[Creation, ...]
    roots: tuple[Creation, ...]
    edges: tuple[Edge, ...]
    ids: dict[str, ExecutionId]


class NewFlow(Struct, frozen=True):
    """A flow that is not there yet, with all its edges and members."""

    flow: Flow
    edges: tuple[Edge, ...] = ()
    members: tuple[Creation, ...] = ()


def member_id(flow: UUID, key: str) -> ExecutionId:
    """The id of the member of that key: the same however often the graph is declared."""
    return ExecutionId.member(flow, derive_uuid(flow, f"member:{key}"))


def check_graph(graph: object) -> Graph:
    """The graph if it can run; InvalidGraph says why not."""
    checked = check_kind_of(graph, Graph, "graph")
    for part in (checked.nodes, checked.links):
        check_kind_of(part, tuple, "nodes and links of a graph")
    if not checked.nodes:
        raise InvalidGraph("a flow needs at least one member")
    if len(checked.nodes) > MAX_NODES or len(checked.links) > MAX_LINKS:
        raise InvalidGraph(f"a flow has at most {MAX_NODES} members and {MAX_LINKS} edges")
    keys = _check_nodes(checked)
    incoming = dict.fromkeys(keys, 0)
    for link in checked.links:
        _check_link(link, keys)
        incoming[link.downstream] += 1
    for node in checked.nodes:
        check_policy(node.join, incoming[node.key], node.key)
    _check_acyclic(checked)
    return checked


def check_policy(policy: object, n: int, key: str) -> JoinPolicy:
    """A join that can be satisfied by `n` upstreams."""
    match policy:
        case AllOf():
            return policy
        case AnyOf(rest=rest) if isinstance(rest, Rest):
            return policy
        case Quorum(k=k, rest=rest) if isinstance(rest, Rest):
            check_whole(k, "k", 1)
            if k > n:
                raise InvalidGraph(f"{key!r} needs {k} of {n} upstreams")
            return policy
        case _:
            raise InvalidGraph(f"{key!r}: a join must be AllOf, AnyOf or Quorum")


def plan(flow: UUID, graph: Graph, now: Millis) -> Plan:
    """The executions and edges of a checked graph."""
    ids = {node.key: member_id(flow, node.key) for node in graph.nodes}
    incoming: dict[str, list[GraphEdge]] = {node.key: [] for node in graph.nodes}
    for link in graph.links:
        incoming[link.downstream].append(link)
    roots: list[Creation] = []
    rest: list[Creation] = []
    for node in graph.nodes:
        creation = _create(flow, node, incoming[node.key], ids[node.key], now)
        waits = isinstance(creation.snapshot.state, Waiting) and incoming[node.key]
        (rest if waits else roots).append(creation)
    edges = tuple(_edges(flow, graph.links, ids, now))
    return Plan(digest_of(graph), tuple(rest), tuple(roots), edges, ids)


def digest_of(graph: Graph) -> str:
    """Two declarations are the same if their digests are."""
    digest = blake2b(digest_size=16)
    for node in graph.nodes:
        digest.update(msgspec.json.encode((node.key, node.join, _said(node.submission))))
    for link in graph.links:
        digest.update(msgspec.json.encode(link))
    return digest.hexdigest()


def _said(submission: Submission) -> tuple[object, ...]:
    policy = submission.policy
    return (
        submission.kind,
        submission.namespace,
        submission.lane,
        submission.payload,
        sorted((submission.tags or {}).items()),
        None if policy is None else str(policy),
        submission.priority,
    )


def _check_nodes(graph: Graph) -> set[str]:
    keys: set[str] = set()
    for node in graph.nodes:
        check_kind_of(node, GraphNode, "node")
        if not check_text(node.key, "key of a member", limit=MAX_NAME):
            raise InvalidGraph("every member of a flow needs a key")
        if node.key in keys:
            raise InvalidGraph(f"two members are called {node.key!r}")
        if check_kind_of(node.submission, Submission, "submission").key is not None:
            raise InvalidGraph(f"{node.key!r}: a member of a flow cannot have an idempotency key")
        keys.add(node.key)
    return keys


def _check_link(link: GraphEdge, keys: set[str]) -> None:
    check_kind_of(link, GraphEdge, "link")
    for key in (link.upstream, link.downstream):
        check_kind_of(key, str, "an end of a link")
    if link.upstream == link.downstream:
        raise SelfEdge(f"{link.upstream!r} waits for itself")
    for key in (link.upstream, link.downstream):
        if key not in keys:
            raise NotInFlow(f"{key!r} is not a member of the flow")
    check_on(link.on, link.input)


def check_on(on: object, input: object) -> None:
    """What an edge asks of its upstream, and under which name it passes the result."""
    if not isinstance(on, str) or on not in _CONDITIONS:
        raise InvalidGraph(f"on must be one of {', '.join(On)}, not {on!r}")
    if input is not None:
        check_text(input, "input", limit=MAX_REASON)


def _check_acyclic(graph: Graph) -> None:
    """Removes members that wait for nothing until none is left; what remains is a cycle. There is
    no limit on depth or size."""
    waiting = {node.key: 0 for node in graph.nodes}
    after: dict[str, list[str]] = {node.key: [] for node in graph.nodes}
    for link in graph.links:
        waiting[link.downstream] += 1
        after[link.upstream].append(link.downstream)
    free = [key for key, number in waiting.items() if not number]
    while free:
        for key in after[free.pop()]:
            waiting[key] -= 1
            if not waiting[key]:
                free.append(key)
    stuck = [key for key, number in waiting.items() if number]
    if stuck:
        raise CycleDetected(" → ".join(_cycle(stuck, graph.links)))


def _cycle(stuck: list[str], links: tuple[GraphEdge, ...]) -> list[str]:
    """One cycle among members that wait for each other, for the error."""
    among = set(stuck)
    before = {link.downstream: link.upstream for link in links if link.upstream in among}
    path: dict[str, None] = {}
    key = next(key for key in stuck if key in before)
    while key not in path:
        path[key] = None
        key = before[key]
    walked = list(path)
    return [*reversed(walked[walked.index(key) :]), walked[-1]]


def _create(
    flow: UUID, node: GraphNode, incoming: list[GraphEdge], id: ExecutionId, now: Millis
) -> Creation:
    try:
        creation = create(replace(node.submission, flow=flow, id=id), id.uuid, now)
    except Invalid as error:
        raise InvalidGraph(f"{node.key!r}: {error}") from error
    named = replace(creation.snapshot.execution.facts, member=node.key)
    execution = replace(creation.snapshot.execution, facts=named)
    creation = replace(creation, snapshot=replace(creation.snapshot, execution=execution))
    return join_member(creation, node.join, incoming, now)


def join_member(
    creation: Creation, policy: JoinPolicy, incoming: list[GraphEdge], now: Millis
) -> Creation:
    """The creation of a member whose upstreams are all known."""
    snapshot = creation.snapshot
    flags = snapshot.head.flags
    head = replace(snapshot.head, flags=flags | Flags.FLOW if flags else Flags.FLOW)
    if incoming:
        passes = any([link.input for link in incoming])
        join = Join(policy=policy, n=len(incoming), inputs=passes)
        head = replace(head, life=replace(head.life, join=join))
    return replace(creation, snapshot=admitted(replace(snapshot, head=head), now))


def admitted(snapshot: Snapshot, now: Millis) -> Snapshot:
    """An execution that is created just now, at the first gate that is closed."""
    state = snapshot.state
    if isinstance(state, Waiting | Ready):
        state = admit(snapshot.life, state.next, now, snapshot.head.flags)
    return replace(snapshot, state=state)


def _edges(
    flow: UUID, links: tuple[GraphEdge, ...], ids: dict[str, ExecutionId], now: Millis
) -> Iterator[Edge]:
    for number, link in enumerate(links):
        yield Edge(
            id=derive_uuid(flow, f"edge:{number}:{link.upstream}:{link.downstream}"),
            flow=flow,
            upstream=ids[link.upstream].uuid,
            downstream=ids[link.downstream].uuid,
            on=link.on,
            input=link.input or None,
            created_at=now,
        )
