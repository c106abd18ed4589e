"""Flows that grow piece by piece, and engines that die after a commit."""

from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.ids import ExecutionId, flow_partition, new_uuid7
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.grow import Added, AlreadyMember, AlreadyStaged, Staged
from flowfabric.core.flow.join import Edge, Join
from flowfabric.core.flow.model import Flow
from flowfabric.engine.flow.downstreams import DownstreamChanges
from flowfabric.engine.flow.flows import FlowCreated
from tests.kit.flow_lab import Drawn
from tests.kit.lab import Lab
from tests.kit.signalling import fresh
from tests.kit.situations import load


class Growing(Drawn):
    """An open flow: members are added and linked one by one."""

    members: dict[str, ExecutionId]

    @classmethod
    async def begin(cls, lab: Lab, *names: str, id: UUID | None = None) -> "Growing":
        made = await lab.engine.flows.create("nightly", id=id)
        assert isinstance(made, FlowCreated)
        flow = cls(lab, made.id, {})
        for name in names:
            await flow.add(name)
        return flow

    async def add(self, name: str, **members: Any) -> Added | AlreadyMember:
        answer = await self.lab.engine.flows.add(self.id, Submission(kind="job", **members))
        self.members[name] = answer.id
        return answer

    async def link(self, word: str, **options: Any) -> Staged | AlreadyStaged:
        """Stages the edge `"a>b"`."""
        return await self.lab.engine.flows.stage(self.edge(word, **options))

    def edge(self, word: str, **options: Any) -> Edge:
        upstream, downstream = (self[name].uuid for name in word.split(">"))
        given = {"id": fresh(), "flow": self.id, "upstream": upstream, "downstream": downstream}
        return Edge(**{**given, **options})

    async def seal(self) -> None:
        assert await self.lab.engine.flows.seal(self.id)

    async def end(self, name: str, outcome: Outcome, *, seconds: int = 10) -> None:
        """Ends a member in one of the ways that need no upstream."""
        match outcome:
            case Outcome.SUCCESS:
                await self.complete(name)
            case Outcome.FAILED:
                await self.fail(name)
            case Outcome.CANCELLED:
                await self.lab.engine.executions.cancel(self[name], reason="enough")
            case Outcome.EXPIRED:
                self.lab.clock.advance(seconds * 1000)
                await self.lab.engine.executions.expire(self[name])
            case Outcome.SKIPPED:
                await self.fail(f"{name}0")
        await self.settled()


async def join_of(flow: Drawn, name: str) -> Join:
    join = (await load(flow.lab, flow[name])).life.join
    assert join is not None
    return join


async def counters(flow: Drawn, name: str) -> tuple[int, int, int, int]:
    """Upstreams, and how many of them succeeded, failed and were skipped."""
    join = await join_of(flow, name)
    return join.n, join.succeeded, join.failed, join.skipped


async def replay(drawn: Drawn, *names: str) -> list[PublicState]:
    executions = drawn.lab.engine.executions
    return [(await executions.replay(drawn[name])).state for name in names]


async def replay_all(drawn: Drawn) -> set[str]:
    """Names of what was replayed."""
    names = {id: name for name, id in drawn.members.items()}
    return {names[each.id] for each in await drawn.lab.engine.flows.replay(drawn.id)}


async def after_commit(lab: Lab) -> None:
    """What this engine does by itself after its commits is done; the sweep had no part in it."""
    await lab.engine._dispatcher.drain()


def die_after_commits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that does nothing after a commit, as one that was killed there, and whose endings
    leave everything to the outbox."""
    leave_to_outbox(lab, monkeypatch)
    monkeypatch.setattr(lab.engine._dispatcher, "kick", lambda flows: None)
    monkeypatch.setattr(lab.engine._dispatcher, "committed", lambda commit: None)


def leave_to_outbox(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endings of this engine settle nothing by their own commit, as with many downstreams."""

    async def nothing(*_: object) -> DownstreamChanges:
        return DownstreamChanges()

    monkeypatch.setattr(lab.engine.attempts._downstreams, "after", nothing)


async def owed(flow: Drawn) -> int:
    return len((await flow.lab.engine.store.owing([flow.id], 500)).entries)


async def unknown(flow: Drawn) -> ExecutionId:
    """An id in the flow's partition that nobody has."""
    return ExecutionId.member(flow.id, new_uuid7(flow.lab.clock.now(), 7))


def neighbours(number: int = 2) -> list[UUID]:
    """Flow ids that share one partition."""
    first = fresh()
    found = [first]
    while len(found) < number:
        other = fresh()
        if flow_partition(other) == flow_partition(first):
            found.append(other)
    return found


async def kept(flow: Drawn) -> tuple[Flow, int]:
    """What a refused change must leave alone."""
    edges = await flow.lab.engine.flow_views.edges(flow.id)
    return await flow.flow(), len(edges)
