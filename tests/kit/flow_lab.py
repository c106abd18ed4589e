"""Flows for tests, drawn with words: `"a>b"` is two members, the second after the first."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any
from uuid import UUID

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode
from flowfabric.core.flow.join import AllOf, JoinPolicy, On
from flowfabric.core.flow.model import Flow, FlowState
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import Lab
from tests.kit.situations import completions, take


class Drawn:
    """A flow that was declared: members by name, and short words for the usual."""

    def __init__(self, lab: Lab, id: UUID, members: Mapping[str, ExecutionId]) -> None:
        self.lab = lab
        self.id = id
        self.members = members

    def __getitem__(self, name: str) -> ExecutionId:
        return self.members[name]

    async def take(self, name: str) -> Claim:
        return await take(self.lab, self[name])

    async def complete(self, *names: str) -> None:
        for name in names:
            await self.lab.complete(await self.take(name), name.encode())
        await self.settled()

    async def fail(self, *names: str) -> None:
        for name in names:
            await self.lab.fail(await self.take(name), "permanent")
        await self.settled()

    async def settled(self) -> None:
        """Everything that is owed was done."""
        assert await settle(self.lab.engine), (
            await self.lab.engine.store.owing([self.id], 9)
        ).entries

    async def flow(self) -> Flow:
        flow = await self.lab.engine.flow_views.get(self.id)
        assert flow is not None
        return flow

    async def state(self) -> FlowState:
        return (await self.flow()).state

    async def states(self) -> dict[str, PublicState]:
        return {name: await self.lab.state(id) for name, id in self.members.items()}

    async def endings(self) -> dict[str, list[Outcome | None]]:
        """The endings that were told, by member; a member without any is left out."""
        told = {name: await completions(self.lab, id) for name, id in self.members.items()}
        return {name: found for name, found in told.items() if found}

    async def check(self) -> Flow:
        """What a flow says of itself is what its members say, to the last one."""
        await self.settled()
        flow = await self.flow()
        counted = Counter(await self.states_of_members())
        told = await self.lab.engine.flow_views.describe(self.id)
        assert told is not None
        assert {state: n for state, n in told.states.items() if n} == counted
        over = sum(counted[state] for state in ENDS)
        assert (flow.over, flow.nodes) == (over, sum(counted.values()))
        assert all(number > 0 for number in flow.ended.values())
        assert (flow.ended_at is not None) == (over == flow.nodes)
        return flow

    async def states_of_members(self) -> list[PublicState]:
        return [await self.lab.state(id) for id in self.members.values()]


ENDS = {
    PublicState.COMPLETED,
    PublicState.FAILED,
    PublicState.CANCELLED,
    PublicState.EXPIRED,
    PublicState.SKIPPED,
}


def draw(
    *words: str,
    joins: Mapping[str, JoinPolicy] | None = None,
    on: Mapping[str, On] | None = None,
    given: Mapping[str, dict[str, Any]] | None = None,
) -> Graph:
    """A graph of chains; `joins` and `given` (members of submissions) by name, `on` by
    `"a>b"`."""
    names: dict[str, None] = {}
    links: dict[str, GraphEdge] = {}
    for word in words:
        chain = word.split(">")
        names.update(dict.fromkeys(chain))
        for upstream, downstream in pairwise(chain):
            key = f"{upstream}>{downstream}"
            links[key] = GraphEdge(upstream, downstream, (on or {}).get(key, On.SUCCESS))
    nodes = [
        GraphNode(
            name,
            Submission(**{"kind": "job", **(given or {}).get(name, {})}),
            (joins or {}).get(name, AllOf()),
        )
        for name in names
    ]
    return Graph(tuple(nodes), tuple(links.values()))


async def declare(lab: Lab, *words: str, kind: str = "nightly", **options: Any) -> Drawn:
    shape = {name: options.pop(name) for name in ("joins", "on", "given") if name in options}
    declared = await lab.engine.flows.declare(kind, draw(*words, **shape), **options)
    return Drawn(lab, declared.id, declared.members)


def fresh(lab: Lab) -> UUID:
    """An id nobody has."""
    return lab.engine.flows._fresh()


def failing(honest: Any, left: list[int]) -> Any:
    """The call, unavailable once it (and all that share `left`) was made so many times."""

    async def call(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Unavailable("gone")
        return await honest(*args)

    return call


async def settle(engine: Engine) -> bool:
    """Does what is owed to flows, after what is under way; False when some of it stays."""
    for _ in range(20):
        await engine._dispatcher.drain()
        await engine.sweep.once()
        if not await engine.store.owed_flows(1):
            return True
        await asyncio.sleep(0)
    return False
