"""Few downstreams go on by the very commit that ends their upstream; the outbox does the rest.

Behaviour: coordination.md 1.8, 1.15; invariants I-9, I-13, I-14, I-18.
"""

import asyncio
from functools import partial
from typing import Any

import pytest

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.flow.join import AllOf, AnyOf, On, Quorum, Rest
from flowfabric.core.flow.model import FlowState
from flowfabric.core.flow.outbox import OutboxKind
from flowfabric.core.flow.progress import FEW
from tests.kit.flow_lab import Drawn, declare
from tests.kit.flowing import after_commit, counters, owed
from tests.kit.lab import Lab
from tests.kit.race import Race
from tests.kit.situations import completions, load

WAITING, HELD, SKIPPED = PublicState.WAITING, PublicState.WAITING_CHILDREN, PublicState.SKIPPED
CANCELLED, COMPLETED = PublicState.CANCELLED, PublicState.COMPLETED


def die_after_commits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is killed right after its commits: what those did is all there is."""
    monkeypatch.setattr(lab.engine._dispatcher, "kick", lambda flows: None)
    monkeypatch.setattr(lab.engine._dispatcher, "committed", lambda commit: None)


async def outcomes(flow: Drawn) -> set[Outcome | None]:
    return {each.outcome for each in await flow.lab.engine.flow_views.edges(flow.id)}


async def kinds(flow: Drawn) -> set[OutboxKind]:
    return {each.kind for each in (await flow.lab.engine.store.owing([flow.id], 500)).entries}


@pytest.mark.parametrize("width", [1, 2, FEW])
async def test_an_ending_settles_few_downstreams_by_its_own_commit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """C-T50: nothing after the commit is needed, only counting is left to do"""
    die_after_commits(lab, monkeypatch)
    flow = await declare(lab, *(f"a>b{n}" for n in range(width)))
    await lab.complete(await flow.take("a"))
    assert {await lab.state(flow[f"b{n}"]) for n in range(width)} == {WAITING}
    assert await outcomes(flow) == {Outcome.SUCCESS}
    assert await owed(flow) == 1
    await lab.engine.sweep.once()
    assert await owed(flow) == 0
    assert (await flow.flow()).ended == {"success": 1}


async def test_many_downstreams_are_left_to_the_outbox(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R11: an ending stays a small transaction, however wide its flow is"""
    with monkeypatch.context() as dead:
        die_after_commits(lab, dead)
        names = [f"b{n}" for n in range(FEW + 1)]
        flow = await declare(lab, *(f"a>{name}" for name in names))
        await lab.complete(await flow.take("a"))
        assert {await lab.state(flow[name]) for name in names} == {HELD}
    await lab.engine.sweep.once()
    assert {await lab.state(flow[name]) for name in names} == {WAITING}


@pytest.mark.parametrize("many", [False, True])
async def test_an_ending_that_settles_everything_reads_nothing_afterwards(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """The next node is claimed without a read of the outbox, the edges or the flow"""
    flow = await declare(lab, "a>b>c", *(["a>x", "x>c"] if many else []))
    claim = await flow.take("a")
    asked: list[str] = []
    for method in ("unsettled", "owing", "apply", "count_flows", "end"):
        honest = getattr(lab.engine.store, method)

        async def counted(*args: Any, method: str = method, honest: Any = honest) -> Any:
            asked.append(method)
            return await honest(*args)

        monkeypatch.setattr(lab.engine.store, method, counted)
    await lab.complete(claim)
    await after_commit(lab)
    assert asked.count("end") == 1
    assert set(asked) <= {"unsettled", "end"}
    assert asked.count("unsettled") <= 1
    assert await lab.state(flow["b"]) is WAITING


async def test_joins_count_in_the_commit_of_each_ending(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T23, C-T37: all of them, one of them, some of them"""
    die_after_commits(lab, monkeypatch)
    joins = {"all": AllOf(), "any": AnyOf(Rest.LET_RUN), "two": Quorum(2, Rest.LET_RUN)}
    words = [f"{up}>{down}" for up in "abc" for down in joins]
    flow = await declare(lab, *words, joins=joins)
    expected = {"a": (HELD, WAITING, HELD), "b": (HELD, WAITING, WAITING), "c": (WAITING,) * 3}
    for number, (name, states) in enumerate(expected.items(), start=1):
        await lab.complete(await flow.take(name))
        assert tuple([await lab.state(flow[down]) for down in joins]) == states
        assert await counters(flow, "all") == (3, number, 0, 0)
    await lab.engine.sweep.once()
    assert await counters(flow, "any") == (3, 3, 0, 0)
    assert (await flow.check()).ended == {"success": 3}


async def test_several_endings_of_one_commit_are_counted_by_one_change(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-9: a join that gets two endings at once counts both and fires once"""
    die_after_commits(lab, monkeypatch)
    flow = await declare(lab, "a>z", "b>z", "c>z")
    claims = [await flow.take(name) for name in "abc"]
    await asyncio.gather(*(lab.complete(claim) for claim in claims))
    await lab.engine.sweep.once()
    assert await counters(flow, "z") == (3, 3, 0, 0)
    assert await lab.state(flow["z"]) is WAITING


@pytest.mark.parametrize("policy", [AnyOf(), Quorum(1)])
async def test_a_join_that_has_enough_cancels_the_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, policy: AnyOf | Quorum
) -> None:
    """C-T40: it fires in the commit of the ending, which also owes the cancels"""
    with monkeypatch.context() as dead:
        die_after_commits(lab, dead)
        flow = await declare(lab, "a>z", "b>z", "c>z", joins={"z": policy})
        await lab.complete(await flow.take("a"))
        assert await lab.state(flow["z"]) is WAITING
        assert await kinds(flow) == {OutboxKind.ENDED, OutboxKind.SIBLINGS}
    await lab.engine.sweep.once()
    assert await lab.state(flow["b"]) is await lab.state(flow["c"]) is CANCELLED
    assert (await load(lab, flow["b"])).life.cancel_reason == "sibling_quorum_satisfied"
    assert (await flow.flow()).ended == {"success": 1, "spared": 2}


async def test_a_join_that_fires_at_once_cancels_the_others_at_once(lab: Lab) -> None:
    flow = await declare(lab, "a>z", "b>z", joins={"z": AnyOf()})
    await lab.complete(await flow.take("a"))
    await after_commit(lab)
    assert await lab.state(flow["z"]) is WAITING
    assert await lab.state(flow["b"]) is CANCELLED


async def test_a_failure_lets_those_go_on_that_wait_for_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot run any more is skipped by the outbox, with all that follows from it"""
    with monkeypatch.context() as dead:
        die_after_commits(lab, dead)
        flow = await declare(lab, "a>cleanup", "a>b>c", on={"a>cleanup": On.FAILURE})
        await lab.fail(await flow.take("a"), "permanent")
        assert await lab.state(flow["cleanup"]) is WAITING
        assert await lab.state(flow["b"]) is HELD
    await lab.engine.sweep.once()
    assert await lab.state(flow["b"]) is await lab.state(flow["c"]) is SKIPPED
    assert await completions(lab, flow["b"]) == [Outcome.SKIPPED]


async def test_a_retry_settles_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    die_after_commits(lab, monkeypatch)
    flow = await declare(lab, "a>b")
    await lab.engine.attempts.hand_back(await flow.take("a"))
    assert await lab.state(flow["b"]) is HELD
    assert await owed(flow) == 0


# -- rivals


@pytest.mark.parametrize("join", [AllOf(), Quorum(2), AnyOf(Rest.LET_RUN)])
async def test_the_last_two_upstreams_end_in_two_processes(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, join: AllOf | AnyOf | Quorum
) -> None:
    """C-T51, I-9: the second commits between the decision and the commit of the first"""
    flow = await declare(lab, "a>z", "b>z", joins={"z": join})
    first, second = await flow.take("a"), await flow.take("b")
    race = Race(lab, monkeypatch)
    race.before("end", partial(second_lab.complete, second))
    await lab.complete(first)
    assert race.left == 0
    await after_commit(lab)
    await after_commit(second_lab)
    assert await lab.state(flow["z"]) is WAITING
    assert await counters(flow, "z") == (2, 2, 0, 0)
    assert await outcomes(flow) == {Outcome.SUCCESS}


async def test_upstreams_end_in_two_processes_at_once(lab: Lab, second_lab: Lab) -> None:
    """I-9, I-13: whoever is faster, nothing is lost, and nothing waits for the sweep"""
    flows = [await declare(lab, "a>z", "b>z") for _ in range(20)]
    pairs = [(await flow.take("a"), await flow.take("b")) for flow in flows]
    barrier = asyncio.Barrier(2)

    async def end_all(which: Lab, number: int) -> None:
        for pair in pairs:
            await barrier.wait()
            await which.complete(pair[number])

    await asyncio.gather(end_all(lab, 0), end_all(second_lab, 1))
    await asyncio.gather(after_commit(lab), after_commit(second_lab))
    assert {await lab.state(flow["z"]) for flow in flows} == {WAITING}
    assert {await counters(flow, "z") for flow in flows} == {(2, 2, 0, 0)}


async def test_a_downstream_that_changed_meanwhile_is_decided_again(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ending stands; its downstream gets it from the outbox, right after the commit"""
    flow = await declare(lab, "a>b")
    claim = await flow.take("a")
    moved = partial(second_lab.engine.executions.change_priority, flow["b"], 5, anywhere=True)
    Race(lab, monkeypatch).before("end", moved)
    await lab.complete(claim)
    assert await lab.state(flow["a"]) is COMPLETED
    await after_commit(lab)
    assert await lab.state(flow["b"]) is WAITING


async def test_an_ending_that_is_refused_moves_no_downstream(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fences: of two upstreams in one commit one has lost its lease; their join waits for it"""
    die_after_commits(lab, monkeypatch)
    flow = await declare(lab, "a>z", "b>z", "c>y")
    claims = [await flow.take(name) for name in "abc"]
    cancel = partial(second_lab.engine.executions.cancel, flow["b"], reason="now")
    with monkeypatch.context() as rival:
        rival.setattr(second_lab.engine._dispatcher, "committed", lambda commit: None)
        Race(lab, rival).before("end", cancel)
        answers = await asyncio.gather(
            *(lab.complete(claim) for claim in claims), return_exceptions=True
        )
    assert [isinstance(answer, Exception) for answer in answers].count(True) == 1
    assert await lab.state(flow["b"]) is CANCELLED
    assert await lab.state(flow["z"]) is HELD
    await lab.engine.sweep.once()
    assert await lab.state(flow["z"]) is SKIPPED
    assert await lab.state(flow["y"]) is WAITING
    assert (await flow.flow()).ended == {"success": 2, "cancelled": 1, "skipped": 1}


# -- crashes


async def test_a_crash_before_the_commit_leaves_nothing_half_done(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await declare(lab, "a>b")
    claim = await flow.take("a")

    async def gone(*_: Any) -> Any:
        raise Unavailable("the store is gone")

    with monkeypatch.context() as cut:
        cut.setattr(lab.engine.store, "end", gone)
        with pytest.raises(Unavailable):
            await lab.complete(claim)
    assert await lab.state(flow["b"]) is HELD
    assert await outcomes(flow) == {None}
    assert await owed(flow) == 0
    await lab.complete(claim)
    assert await lab.state(flow["b"]) is WAITING


async def test_a_crash_after_the_commit_loses_nothing(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is lost as well: ending it again gives the same answer and changes nothing"""
    die_after_commits(lab, monkeypatch)
    flow = await declare(lab, "a>b")
    claim, honest = await flow.take("a"), lab.engine.store.end

    async def unheard(*args: Any) -> Any:
        await honest(*args)
        raise Unavailable("the reply is lost")

    with monkeypatch.context() as cut:
        cut.setattr(lab.engine.store, "end", unheard)
        with pytest.raises(Unavailable):
            await lab.complete(claim)
    assert await lab.state(flow["b"]) is WAITING
    await lab.complete(claim)
    await second_lab.engine.sweep.once()
    assert await counters(flow, "b") == (1, 1, 0, 0)
    assert (await flow.flow()).ended == {"success": 1}
    await flow.complete("b")
    await second_lab.engine.sweep.once()
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_a_store_that_cannot_tell_the_downstreams_ends_the_member(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the downstreams need must not keep an ending from being written"""
    flow = await declare(lab, "a>b")
    claim = await flow.take("a")

    async def down(*_: Any) -> Any:
        raise Unavailable("gone")

    with monkeypatch.context() as cut:
        cut.setattr(lab.engine.store, "unsettled", down)
        await lab.complete(claim)
        await after_commit(lab)
    assert await lab.state(flow["a"]) is COMPLETED
    await lab.engine.sweep.once()
    assert await lab.state(flow["b"]) is WAITING
