"""Cancelling flows when processes die or get in each other's way: no member is lost. I-19."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import RetryExhausted, Unavailable
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.graph import Graph, member_id
from flowfabric.core.flow.model import CancelPolicy, Flow, FlowState
from flowfabric.engine.flow import declarations
from tests.kit.flow_lab import Drawn, declare, draw, failing, fresh
from tests.kit.lab import Lab

CANCELLED = PublicState.CANCELLED


# -- the header alone, and crashes


async def test_the_header_alone_is_finished_by_the_sweep(lab: Lab) -> None:
    """I-19, E-T196: the process died right after the commit"""
    drawn = await declare(lab, "a>b")
    header = await lab.engine.flows.cancel_header(drawn.id, reason="enough")
    assert (header.policy, header.reason, header.scheduled) == (CancelPolicy.ALL, "enough", False)
    assert set(header.remaining) == set(drawn.members.values())
    assert await drawn.state() is FlowState.CANCELLED
    assert await drawn.states() == {
        "a": PublicState.WAITING,
        "b": PublicState.WAITING_CHILDREN,
    }
    await lab.pass_time(1)
    assert set((await drawn.states()).values()) == {CANCELLED}
    assert await drawn.endings() == {"a": [Outcome.CANCELLED], "b": [Outcome.CANCELLED]}
    assert (await drawn.check()).ended == {"cancelled": 2}


async def test_another_process_finishes_what_a_header_owes(lab: Lab, second_lab: Lab) -> None:
    """I-19"""
    drawn = await declare(lab, "a>b>c")
    await lab.engine.flows.cancel_header(drawn.id)
    await second_lab.engine.sweep.once()
    assert (await drawn.check()).ended == {"cancelled": 3}


@pytest.mark.parametrize("survives", range(6))
async def test_a_crash_in_the_middle_loses_no_member(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    """I-19, C-T69: the store goes away after some writes; the sweep finishes it"""
    drawn = await declare(lab, "a>b>c", "d")
    monkeypatch.setattr("flowfabric.engine.flow.resolver.PAGE", 1)
    await lab.engine.flows.cancel_header(drawn.id, reason="enough")
    left = [survives]
    with monkeypatch.context() as cut:
        for name in ("apply", "apply_flow"):
            cut.setattr(lab.engine.store, name, failing(getattr(lab.engine.store, name), left))
        await lab.engine.sweep.once()
        await lab.engine._dispatcher.drain()
    await lab.engine.sweep.once()
    assert (await drawn.check()).ended == {"cancelled": 4}
    assert await drawn.endings() == {name: [Outcome.CANCELLED] for name in "abcd"}


async def test_two_processes_cancel_at_the_same_time(lab: Lab, second_lab: Lab) -> None:
    """I-21, I-22: one of them decides policy and reason; every ending is told once"""
    drawn = await declare(lab, *(f"a>m{n}>z" for n in range(30)))
    one, two = await asyncio.gather(
        lab.engine.flows.cancel(drawn.id, reason="one"),
        second_lab.engine.flows.cancel(drawn.id, reason="two"),
    )
    assert (one.policy, one.reason) == (two.policy, two.reason)
    await second_lab.engine.sweep.once()
    assert (await drawn.check()).ended == {"cancelled": 32}
    assert await drawn.endings() == {name: [Outcome.CANCELLED] for name in drawn.members}


async def test_a_header_that_always_loses_gives_up(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T72"""
    drawn = await declare(lab, "a")

    async def lost(*args: Any) -> bool:
        return False

    monkeypatch.setattr(lab.engine.store, "apply_flow", lost)
    with pytest.raises(RetryExhausted):
        await lab.engine.flows.cancel(drawn.id)
    assert await drawn.state() is FlowState.RUNNING


# -- members that come while a flow is cancelled


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows are laid in steps, as large ones are."""
    monkeypatch.setattr(declarations, "MAX_WHOLE", 0)


@pytest.mark.parametrize("after", ["flow", "rest"])
@pytest.mark.usefixtures("in_steps")
async def test_members_that_arrive_in_a_cancelled_flow_are_cancelled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """I-19: the declaration was under way when somebody cancelled"""
    flow, graph = fresh(lab), draw("a>b>c", "d")
    executions = lab.engine.flows._executions
    honest, calls = executions.put_all, []

    async def put_all(creations: Any) -> None:
        calls.append(len(creations))
        if len(calls) == (1 if after == "flow" else 2):
            await lab.engine.flows.cancel(flow, reason="enough")
        await honest(creations)

    monkeypatch.setattr(executions, "put_all", put_all)
    declared = await lab.engine.flows.declare("nightly", graph, id=flow)
    drawn = Drawn(lab, flow, declared.members)
    assert (await drawn.check()).ended == {"cancelled": 4}
    assert await drawn.endings() == {name: [Outcome.CANCELLED] for name in "abcd"}


async def cut_off(lab: Lab, monkeypatch: pytest.MonkeyPatch, graph: Graph, writes: int) -> UUID:
    """A flow whose declaration died after so many of its writes of members (of two)."""
    flow, executions = fresh(lab), lab.engine.flows._executions
    with monkeypatch.context() as cut:
        cut.setattr(executions, "put_all", failing(executions.put_all, [writes]))
        with pytest.raises(Unavailable):
            await lab.engine.flows.declare("nightly", graph, id=flow)
    return flow


@pytest.mark.parametrize("policy", [CancelPolicy.ALL, CancelPolicy.PENDING])
@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.usefixtures("in_steps")
async def test_a_declaration_that_died_half_way_is_cancelled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, policy: CancelPolicy, writes: int
) -> None:
    """I-19, I-22: members nobody has written are no reason to wait; declaring again writes none"""
    graph = draw("a>b>c", "d")
    flow = await cut_off(lab, monkeypatch, graph, writes)
    drawn = Drawn(lab, flow, {})
    await lab.engine.flows.cancel(flow, policy=policy)
    await drawn.settled()
    there = {"cancelled": 2} if writes else {}
    found = await drawn.flow()
    assert (found.state, found.ended_at) == (FlowState.CANCELLED, lab.clock.now())
    assert found.ended == {**there, "missing": 4 - 2 * writes}
    declared = await lab.engine.flows.declare("nightly", graph, id=flow)
    assert not declared.created
    await drawn.settled()
    assert await drawn.flow() == found
    assert await lab.claim() == []


@pytest.mark.usefixtures("in_steps")
async def test_a_flow_that_was_only_closed_may_be_declared_to_its_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its members go on, so those that are missing may still come"""
    graph = draw("a>b")
    flow = await cut_off(lab, monkeypatch, graph, 1)
    await lab.engine.flows.cancel(flow, policy=CancelPolicy.FLOW_ONLY)
    declared = await lab.engine.flows.declare("nightly", graph, id=flow)
    assert not declared.created
    drawn = Drawn(lab, flow, declared.members)
    await drawn.complete("a")
    await drawn.complete("b")
    found = await drawn.check()
    assert (found.state, found.ended) == (FlowState.CANCELLED, {"success": 2})


@pytest.mark.usefixtures("in_steps")
async def test_a_root_written_while_the_flow_is_cancelled_is_owed_the_cancel(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-19: whoever declares dies before it cancels what it wrote; another process does it, and
    what was missing is counted as what it became"""
    flow, graph = fresh(lab), draw("a>b", "c")
    executions = lab.engine.flows._executions
    honest, calls = executions.put_all, []

    async def put_all(creations: Any) -> None:
        calls.append(creations)
        if len(calls) == 2:
            await second_lab.engine.flows.cancel(flow)
            await Drawn(second_lab, flow, {}).settled()
            ended = (await Drawn(lab, flow, {}).flow()).ended
            assert ended == {"cancelled": 1, "missing": 2}
        await honest(creations)

    async def dead(flow: Flow) -> None:
        raise Unavailable("gone")

    monkeypatch.setattr(executions, "put_all", put_all)
    monkeypatch.setattr(lab.engine._dispatcher, "finish", dead)
    with pytest.raises(Unavailable):
        await lab.engine.flows.declare("nightly", graph, id=flow)
    await second_lab.engine.sweep.once()
    assert await second_lab.claim() == []
    members = {name: member_id(flow, name) for name in "abc"}
    assert (await Drawn(second_lab, flow, members).check()).ended == {"cancelled": 3}
