"""The edges of a flow that this process has declared need not be read when their upstream ends.

Behaviour: coordination.md 1.8, 1.15; invariants I-9, I-13, I-14, I-18.
"""

from typing import Any

import pytest

from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import Edge
from flowfabric.engine.flow import known
from flowfabric.store.queries import Unsettled
from tests.kit.flow_lab import Drawn, declare
from tests.kit.flowing import after_commit
from tests.kit.lab import Lab
from tests.kit.signalling import fresh
from tests.kit.situations import load

WAITING, HELD, SKIPPED = PublicState.WAITING, PublicState.WAITING_CHILDREN, PublicState.SKIPPED


async def declared(lab: Lab, *chains: str) -> Drawn:
    """A flow in a process that has ended a member before, so that it remembers edges."""
    await lab.complete(await (await declare(lab, "only")).take("only"))
    return await declare(lab, *chains)


def reads_of(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many members each read of open edges asks for, from now on."""
    asked: list[int] = []
    honest = lab.engine.store.unsettled

    async def counted(endings: Any, *rest: Any) -> list[Unsettled]:
        asked.append(len(endings))
        return await honest(endings, *rest)

    monkeypatch.setattr(lab.engine.store, "unsettled", counted)
    return asked


async def outcomes(flow: Drawn) -> list[Outcome | None]:
    return [each.outcome for each in await flow.lab.engine.flow_views.edges(flow.id)]


async def test_only_the_end_of_the_last_member_of_a_chain_reads(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await declared(lab, "a>b>c")
    asked = reads_of(lab, monkeypatch)
    for name in "ab":
        await lab.complete(await flow.take(name))
    assert asked == []
    assert await lab.state(flow["c"]) is WAITING
    assert await outcomes(flow) == [Outcome.SUCCESS] * 2
    await lab.complete(await flow.take("c"))
    assert asked == [1]  # an edge may have been staged since
    await after_commit(lab)
    assert (await flow.flow()).ended == {"success": 3}


async def test_what_is_known_is_what_is_stored(lab: Lab) -> None:
    flow = await declared(lab, "a>b>c", "a>d")
    for name in "ab":
        member = (await load(lab, flow[name])).execution
        stored = await lab.engine.store.unsettled([(flow.id, member.uuid)], None, 100)
        found = lab.engine._context.known_edges.take(member)
        assert sorted(found, key=lambda each: each.state.edge.id) == stored


async def test_downstreams_with_several_upstreams_are_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have ended one of them meanwhile"""
    flow = await declared(lab, "a>c", "b>c", "b>d")
    asked = reads_of(lab, monkeypatch)
    for name in "ab":
        await lab.complete(await flow.take(name))
    assert asked == [1, 1]
    assert await lab.state(flow["c"]) is await lab.state(flow["d"]) is WAITING


async def test_an_edge_that_another_process_stages_is_settled_without_the_sweep(
    lab: Lab, second_lab: Lab
) -> None:
    flow = await declared(lab, "a>b", "x")
    claim = await flow.take("a")
    edge = Edge(fresh(), flow.id, flow["a"].uuid, flow["x"].uuid)
    await second_lab.engine.flows.stage(edge)
    assert await lab.state(flow["x"]) is HELD
    await lab.complete(claim)
    await after_commit(lab)
    assert await lab.state(flow["b"]) is await lab.state(flow["x"]) is WAITING
    assert await outcomes(flow) == [Outcome.SUCCESS] * 2


async def test_a_downstream_that_another_process_has_changed_is_decided_again(
    lab: Lab, second_lab: Lab
) -> None:
    flow = await declared(lab, "a>b")
    await second_lab.engine.executions.change_priority(flow["b"], 7, anywhere=True)
    await lab.complete(await flow.take("a"))
    await after_commit(lab)
    assert await lab.state(flow["b"]) is WAITING
    assert (await load(lab, flow["b"])).priority == 7


async def test_a_failure_skips_what_is_known(lab: Lab) -> None:
    flow = await declared(lab, "a>b>c")
    await lab.fail(await flow.take("a"), "permanent")
    await after_commit(lab)
    assert await lab.state(flow["b"]) is await lab.state(flow["c"]) is SKIPPED


async def test_the_oldest_are_forgotten(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MAX_MEMBERS", 2)
    flow = await declared(lab, "a>b>c>d")
    asked = reads_of(lab, monkeypatch)
    for name in "abc":
        await lab.complete(await flow.take(name))
    assert asked == [1]
    assert await lab.state(flow["d"]) is WAITING


async def test_a_process_that_ends_no_members_remembers_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await declare(lab, "a>b")
    asked = reads_of(lab, monkeypatch)
    await lab.complete(await flow.take("a"))
    assert asked == [1]


@pytest.mark.parametrize("again_by", ["the same process", "another process"])
async def test_edges_of_a_deleted_flow_are_not_those_of_a_new_one_with_its_id(
    lab: Lab, second_lab: Lab, again_by: str
) -> None:
    """Members and edges have the same ids then, and the first version again."""
    id = lab.engine.flows._fresh()
    await lab.complete(await (await declare(lab, "only")).take("only"))
    first = await declare(lab, "a>b", id=id)
    first.lab = second_lab
    await first.complete("a", "b")
    await first.settled()
    lab.clock.advance(30 * 86_400_000)
    assert await second_lab.engine.sweep.trim()
    declarer = lab if again_by == "the same process" else second_lab
    again = await declare(declarer, "a>b", "c>b", id=id)
    again.lab = lab
    await lab.complete(await again.take("a"))
    await again.settled()
    assert await lab.state(again["b"]) is HELD
