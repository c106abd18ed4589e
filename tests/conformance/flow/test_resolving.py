"""What endings owe to a flow is done right after the commit, or found by the sweep; once.

Behaviour: coordination.md 1.8, 1.15; design §7; review R10, R11, R18; invariants I-9, I-13, I-14,
I-17, I-18, I-42; flaws F-04, F-17, F-26, F-27, F-29.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import NotActive, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.outcome import Outcome
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphEdge, GraphNode
from flowfabric.core.flow.join import AllOf, AnyOf, Quorum, Rest
from flowfabric.core.flow.model import FlowState
from flowfabric.core.wait.model import Behaviour
from flowfabric.engine.flow.walks import PAGE
from flowfabric.store.queries import Owing
from tests.kit.flow_lab import Drawn, declare
from tests.kit.flowing import after_commit, counters, die_after_commits, owed, replay_all
from tests.kit.lab import Lab
from tests.kit.race import Race
from tests.kit.situations import completions, load
from tests.kit.waits import in_, suspend, wait_on

LET = Rest.LET_RUN
WAITING, HELD, SKIPPED = PublicState.WAITING, PublicState.WAITING_CHILDREN, PublicState.SKIPPED
CANCELLED, COMPLETED = PublicState.CANCELLED, PublicState.COMPLETED
HAD_ENOUGH, LOST_HOPE = "sibling_quorum_satisfied", "sibling_quorum_impossible"


async def reason_of(flow: Drawn, name: str) -> tuple[str | None, str | None]:
    life = (await load(flow.lab, flow[name])).life
    return life.cancel_reason, life.cancelled_by


# -- right after the commit


async def test_an_ending_is_settled_right_after_its_commit(lab: Lab) -> None:
    """C-T50, C-T55, C-T56, design §5: no sweep, no poll; all levels of a skip, and the count"""
    flow = await declare(lab, "a>b", "x>y>z")
    await lab.complete(await flow.take("a"))
    await after_commit(lab)
    assert await lab.state(flow["b"]) is WAITING
    await lab.fail(await flow.take("x"), "permanent")
    await after_commit(lab)
    assert await lab.state(flow["y"]) is await lab.state(flow["z"]) is SKIPPED
    assert (await flow.flow()).ended == {"success": 1, "failed": 1, "skipped": 2}
    await flow.check()


async def test_a_burst_of_endings_is_settled_once_each(lab: Lab) -> None:
    """C-T56, R11: all at once, counted to the last"""
    names = [f"u{number}" for number in range(60)]
    flow = await declare(lab, *(f"{name}>z" for name in names))
    claims = await lab.claim(limit=100)
    await asyncio.gather(*(lab.complete(claim) for claim in claims))
    await after_commit(lab)
    assert await counters(flow, "z") == (60, 60, 0, 0)
    assert (await flow.flow()).ended == {"success": 60}
    assert await lab.state(flow["z"]) is WAITING


@pytest.mark.parametrize("behaviour", [Behaviour.FAIL, Behaviour.CANCEL, Behaviour.EXPIRE])
async def test_a_suspension_that_times_out_is_an_ending(lab: Lab, behaviour: Behaviour) -> None:
    """C-T60: by the sweep"""
    flow = await declare(lab, "a>b")
    claim = await flow.take("a")
    await suspend(lab, claim, wait_on(lab, timeout_at=in_(lab, 5), behaviour=behaviour))
    await lab.pass_time(5)
    assert await lab.state(flow["b"]) is SKIPPED


async def test_a_member_that_expires_is_an_ending(lab: Lab) -> None:
    """C-T60: one that never ran"""
    given = {"a": {"deadline_at": Millis(lab.clock.now() + 10)}}
    flow = await declare(lab, "a>b", given=given)
    await lab.pass_time(10)
    assert (await flow.endings()) == {"a": [Outcome.EXPIRED], "b": [Outcome.SKIPPED]}


# -- a process that died


async def test_what_a_dead_process_owes_is_found_by_the_sweep(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T57, F-04: another process does it; a second round finds nothing"""
    die_after_commits(lab, monkeypatch)
    flow = await declare(lab, "a>b")
    await lab.complete(await flow.take("a"))
    await after_commit(lab)
    assert await lab.state(flow["b"]) is HELD
    assert await owed(flow) == 1
    await second_lab.engine.sweep.once()
    assert await lab.state(flow["b"]) is WAITING
    before = await flow.flow()
    await second_lab.engine.sweep.once()
    assert await flow.flow() == before


@pytest.mark.parametrize("hops", [2, 3])
async def test_a_cascade_that_broke_off_is_finished_by_the_sweep(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, hops: int
) -> None:
    """C-T58, I-13, I-14: each level told once"""
    die_after_commits(lab, monkeypatch)
    names = "abcd"[: hops + 1]
    flow = await declare(lab, ">".join(names))
    await lab.fail(await flow.take("a"), "permanent")
    await lab.engine.sweep.once()
    expected = {name: [Outcome.SKIPPED] for name in names[1:]}
    assert await flow.endings() == {"a": [Outcome.FAILED], **expected}
    assert (await flow.check()).state is FlowState.FAILED


class Fault:
    """Breaks the n-th write of a kind, before or after it was made."""

    def __init__(self, lab: Lab, number: int, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self._when = number, when
        for method in ("apply", "apply_flow", "count_flows"):
            honest = getattr(lab.engine.store, method)
            monkeypatch.setattr(lab.engine.store, method, self._breaking(honest))

    def _breaking(self, honest: Callable[..., Any]) -> Callable[..., Any]:
        async def raced(*args: Any) -> Any:
            self.left -= 1
            if self.left == 0 and self._when == "before":
                raise Unavailable("the store is gone")
            answer = await honest(*args)
            if self.left == 0:
                raise Unavailable("the reply is lost")
            return answer

        return raced


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 9))
async def test_a_crash_between_any_two_writes_loses_and_doubles_nothing(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, number: int, when: str
) -> None:
    """C-T58, F-04, I-9, I-13, I-18: between edges, siblings, skips and counts"""
    joins = {"win": AnyOf(), "all": AllOf(), "lost": Quorum(2)}
    shape = ["a>win", "s>win", "a>all", "f>all", "f>lost", "t>lost", "all>below"]
    with monkeypatch.context() as dead:
        die_after_commits(lab, dead)
        flow = await declare(lab, *shape, joins=joins)
        await lab.complete(await flow.take("a"))
        await lab.fail(await flow.take("f"), "permanent")
        Fault(lab, number, when, dead)
        await lab.engine.sweep.once()
    await second_lab.engine.sweep.once()
    states = await flow.states()
    assert {name: states[name] for name in ("win", "s", "all", "below", "lost", "t")} == {
        "win": WAITING,
        "s": CANCELLED,
        "all": SKIPPED,
        "below": SKIPPED,
        "lost": SKIPPED,
        "t": CANCELLED,
    }
    assert await counters(flow, "win") == (2, 1, 1, 0)
    assert await counters(flow, "all") == (2, 1, 1, 0)
    assert await counters(flow, "lost") == (2, 0, 2, 0)
    assert all(len(told) == 1 for told in (await flow.endings()).values())
    seen = await flow.check()
    assert seen.ended == {"success": 1, "failed": 1, "skipped": 3, "spared": 2}


async def test_a_flow_that_cannot_be_settled_hides_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-29: the sweep goes on"""
    die_after_commits(lab, monkeypatch)
    bad, good = await declare(lab, "a>b"), await declare(lab, "a>b")
    for flow in (bad, good):
        await lab.complete(await flow.take("a"))
    honest = lab.engine.store.unsettled

    async def broken(upstreams: Sequence[tuple[UUID, UUID]], *page: Any) -> Any:
        if any(flow == bad.id for flow, _ in upstreams):
            raise Unavailable("not this one")
        return await honest(upstreams, *page)

    monkeypatch.setattr(lab.engine.store, "unsettled", broken)
    await lab.engine.sweep.once()
    assert await lab.state(good["b"]) is WAITING
    assert await lab.state(bad["b"]) is HELD
    monkeypatch.setattr(lab.engine.store, "unsettled", honest)
    await lab.engine.sweep.once()
    assert await lab.state(bad["b"]) is WAITING


async def test_a_flow_that_cannot_be_settled_leaves_no_other_to_the_sweep(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-29: of those that ended together the others go on at once, and come to their end"""
    flows = [await declare(lab, "a>b") for _ in range(6)]
    bad, *good = flows
    honest = lab.engine.store.unsettled

    async def broken(upstreams: Sequence[tuple[UUID, UUID]], *page: Any) -> Any:
        if any(flow == bad.id for flow, _ in upstreams):
            raise Unavailable("not this one")
        return await honest(upstreams, *page)

    monkeypatch.setattr(lab.engine.store, "unsettled", broken)
    for _ in range(2):
        claims = await lab.claim(limit=10)
        await asyncio.gather(*(lab.complete(claim) for claim in claims))
        await after_commit(lab)
    assert {await flow.state() for flow in good} == {FlowState.COMPLETED}
    assert await bad.states() == {"a": PublicState.COMPLETED, "b": HELD}
    monkeypatch.setattr(lab.engine.store, "unsettled", honest)
    await lab.engine.sweep.once()
    assert await lab.state(bad["b"]) is WAITING


async def test_a_store_in_trouble_is_not_asked_for_every_flow(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = [await declare(lab, "a>b") for _ in range(20)]
    asked: list[int] = []

    async def down(upstreams: Sequence[tuple[UUID, UUID]], *page: Any) -> Any:
        asked.append(len(upstreams))
        raise Unavailable("gone")

    with monkeypatch.context() as cut:
        cut.setattr(lab.engine.store, "unsettled", down)
        claims = await lab.claim(limit=20)
        await asyncio.gather(*(lab.complete(claim) for claim in claims))
        await after_commit(lab)
        assert asked
        assert len(asked) < len(flows)
    await lab.engine.sweep.once()
    assert {await lab.state(flow["b"]) for flow in flows} == {WAITING}


# -- two at once


async def test_two_engines_settle_one_flow_at_once(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T48, C-T51, I-9, R11: whoever is faster, each ending counts once"""
    with monkeypatch.context() as dead:
        die_after_commits(lab, dead)
        names = [f"u{number}" for number in range(40)]
        words = [f"{name}>z" for name in names] + [f"{name}>any" for name in names]
        flow = await declare(lab, *words, joins={"any": AnyOf(LET)})
        claims = await lab.claim(limit=100)
        await asyncio.gather(*(lab.complete(claim) for claim in claims[:39]))
        await lab.fail(claims[39], "permanent")
    sweeps = [each.engine.sweep.once() for each in (lab, second_lab, lab, second_lab)]
    await asyncio.gather(*sweeps)
    assert await counters(flow, "z") == await counters(flow, "any") == (40, 39, 1, 0)
    assert await completions(lab, flow["z"]) == [Outcome.SKIPPED]
    assert await completions(lab, flow["any"]) == []
    assert (await flow.check()).ended == {"success": 39, "failed": 1, "skipped": 1}


STEPS = ["owing", "unsettled", "load", "load_needs", "apply", "edges", "apply_flow"]


@pytest.mark.parametrize("method", STEPS)
async def test_a_rival_settles_at_the_worst_moment(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """C-T23, C-T37, C-T51, I-9: the slower one finds everything done"""
    die_after_commits(lab, monkeypatch)
    flow = await declare(lab, "a>z", "b>z", "a>any", "b>any", joins={"any": AnyOf()})
    await lab.complete(await flow.take("a"))
    if method == "load_needs":
        # Edges come with their downstreams; only after a lost race are they asked for.
        moved = partial(second_lab.engine.executions.change_priority, flow["any"], 5, anywhere=True)
        Race(lab, monkeypatch).before("apply", moved)
    race = Race(lab, monkeypatch)
    race.before(method, second_lab.engine.sweep.once)
    await lab.engine.sweep.once()
    assert race.left == 0
    assert await counters(flow, "z") == await counters(flow, "any") == (2, 1, 1, 0)
    assert await completions(lab, flow["z"]) == [Outcome.SKIPPED]
    assert await completions(lab, flow["b"]) == [Outcome.CANCELLED]
    assert (await flow.check()).ended == {"success": 1, "spared": 1, "skipped": 1}


async def test_an_ending_that_was_taken_back_is_not_counted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-17: replayed before anybody settled it; its next ending is the one that counts"""
    die_after_commits(lab, monkeypatch)
    flow = await declare(lab, "a>b")
    await lab.fail(await flow.take("a"), "permanent")
    await lab.engine.executions.replay(flow["a"])
    await lab.engine.sweep.once()
    assert await lab.state(flow["b"]) is HELD
    assert (await flow.flow()).ended == {}
    await flow.complete("a")
    await flow.complete("b")
    assert (await flow.check()).state is FlowState.COMPLETED


# -- siblings


async def race_of(lab: Lab, policy: AnyOf | Quorum, number: int = 4) -> Drawn:
    words = [f"u{each}>z" for each in range(number)]
    return await declare(lab, *words, joins={"z": policy})


@pytest.mark.parametrize(("policy", "winners"), [(AnyOf(), 1), (Quorum(2), 2)])
async def test_those_who_still_run_are_cancelled_when_the_join_has_enough(
    lab: Lab, policy: AnyOf | Quorum, winners: int
) -> None:
    """C-T31, C-T33, C-T43, C-T44, C-T54, F-26, I-17: told, with the reason; the rest untouched"""
    flow = await race_of(lab, policy)
    await flow.fail("u3")
    loser = await flow.take("u2")
    for number in range(winners):
        assert await lab.state(flow["u2"]) is PublicState.ACTIVE
        await flow.complete(f"u{number}")
    assert await reason_of(flow, "u2") == (HAD_ENOUGH, "operator_override")
    assert await completions(lab, flow["u2"]) == [Outcome.CANCELLED]
    assert await lab.state(flow["u3"]) is PublicState.FAILED
    assert await lab.state(flow["u0"]) is COMPLETED
    with pytest.raises(NotActive):
        await lab.complete(loser)
    assert await counters(flow, "z") == (4, winners, 4 - winners, 0)
    await flow.complete("z")
    seen = await flow.check()
    assert (seen.ended["spared"], seen.state) == (3 - winners, FlowState.FAILED)


async def test_a_race_that_was_won_completes_the_flow(lab: Lab) -> None:
    """Q-3: losers are no failures"""
    flow = await race_of(lab, AnyOf())
    await flow.complete("u0")
    await flow.complete("z")
    seen = await flow.check()
    assert (seen.state, seen.ended) == (FlowState.COMPLETED, {"success": 2, "spared": 3})


@pytest.mark.parametrize("reason", [HAD_ENOUGH, LOST_HOPE])
async def test_a_cancel_with_the_reason_of_a_join_is_still_that_of_an_operator(
    lab: Lab, reason: str
) -> None:
    """Q-3, I-22: only a join spares, whatever reason an operator gives; a replay of the flow runs
    the member again, and takes back what was counted"""
    flow = await race_of(lab, AnyOf(LET), number=2)
    await lab.engine.executions.cancel(flow["u1"], reason=reason)
    await flow.complete("u0")
    await flow.complete("z")
    seen = await flow.check()
    assert (seen.state, seen.ended) == (FlowState.FAILED, {"success": 2, "cancelled": 1})
    assert [member.spared for member in await lab.engine.flow_views.members(flow.id)] == [False] * 3
    assert await replay_all(flow) == {"u1"}
    await flow.complete("u1")
    assert (await flow.check()).ended == {"success": 3}


@pytest.mark.parametrize("rest", Rest)
async def test_a_join_fires_though_its_downstream_has_ended(lab: Lab, rest: Rest) -> None:
    """I-8, I-17, coordination.md 1.6: the state of the child decides only what becomes of it"""
    flow = await race_of(lab, AnyOf(rest), number=2)
    await lab.engine.executions.cancel(flow["z"], reason="enough")
    await flow.complete("u0")
    assert await lab.state(flow["z"]) is CANCELLED
    expected = CANCELLED if rest is Rest.CANCEL else PublicState.WAITING
    assert await lab.state(flow["u1"]) is expected


@pytest.mark.parametrize("rest", Rest)
async def test_those_who_still_run_are_cancelled_when_all_hope_is_lost(
    lab: Lab, rest: Rest
) -> None:
    """C-T34, C-T44, C-T45, I-17: with the other reason; whoever may run on ends as it likes"""
    flow = await race_of(lab, Quorum(3, rest))
    await flow.fail("u0", "u1")
    assert await lab.state(flow["z"]) is SKIPPED
    if rest is LET:
        await flow.complete("u2", "u3")
        assert await counters(flow, "z") == (4, 2, 2, 0)
    else:
        assert await reason_of(flow, "u2") == (LOST_HOPE, "operator_override")
        assert await lab.state(flow["u3"]) is CANCELLED


@pytest.mark.parametrize("policy", [AnyOf(LET), Quorum(2, LET)])
async def test_a_handler_that_may_run_on_ends_normally(lab: Lab, policy: AnyOf | Quorum) -> None:
    """C-T32, C-T33, C-T45, I-17: nobody is cancelled"""
    flow = await race_of(lab, policy)
    await flow.complete("u0", "u1")
    await flow.complete("z")
    await flow.complete("u2", "u3")
    assert (await flow.check()).ended == {"success": 5}


async def test_what_depends_on_a_loser_is_skipped(lab: Lab) -> None:
    """Q-2, I-14"""
    flow = await declare(lab, "a>z", "b>z", "b>after", joins={"z": AnyOf()})
    await flow.complete("a")
    assert await lab.state(flow["b"]) is CANCELLED
    assert await lab.state(flow["after"]) is SKIPPED
    await flow.complete("z")
    assert (await flow.check()).state is FlowState.COMPLETED


async def test_of_fifty_one_wins(lab: Lab) -> None:
    """C-T39: one firing, 49 cancelled, exact counters"""
    flow = await race_of(lab, AnyOf(), number=50)
    claims = await lab.claim(limit=10)
    await asyncio.gather(*(lab.complete(claim) for claim in claims[:1]))
    await flow.settled()
    assert await counters(flow, "z") == (50, 1, 49, 0)
    assert (await flow.check()).ended == {"success": 1, "spared": 49}


async def test_many_races_are_decided_at_once(lab: Lab) -> None:
    """C-T40: none is forgotten"""
    flows = [await race_of(lab, AnyOf()) for _ in range(20)]
    await asyncio.gather(*[lab.complete(await flow.take("u1")) for flow in flows])
    await after_commit(lab)
    for flow in flows:
        assert (await flow.flow()).ended == {"success": 1, "spared": 3}


async def test_an_upstream_that_ends_while_it_is_cancelled_keeps_its_ending(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-15, I-17: and counts as it ended"""
    die_after_commits(lab, monkeypatch)
    flow = await race_of(lab, AnyOf(), number=2)
    late = await flow.take("u1")
    await lab.complete(await flow.take("u0"))
    honest = lab.engine._resolver._cancel_siblings

    async def meanwhile(*args: Any) -> None:
        if await lab.state(late.id) is PublicState.ACTIVE:
            await second_lab.complete(late, b"late")
        await honest(*args)

    with monkeypatch.context() as patched:
        patched.setattr(lab.engine._resolver, "_cancel_siblings", meanwhile)
        await lab.engine._resolver.resolve(flow.id)
    await flow.settled()
    assert await lab.engine.views.result(late.id) == b"late"
    assert await counters(flow, "z") == (2, 2, 0, 0)
    assert (await flow.check()).ended == {"success": 2}


# -- large


def wide(number: int) -> Graph:
    names = [f"u{each}" for each in range(number)]
    nodes = [GraphNode(name, Submission(kind="job")) for name in (*names, "z")]
    return Graph(tuple(nodes), tuple(GraphEdge(name, "z") for name in names))


def sizes_of(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many edges, and outbox entries, were read at a time."""
    sizes: list[int] = []

    def watched(honest: Callable[..., Any]) -> Callable[..., Any]:
        async def read(*args: Any) -> Any:
            found = await honest(*args)
            sizes.append(len(found.entries if isinstance(found, Owing) else found))
            return found

        return read

    for method in ("edges", "unsettled", "owing"):
        honest = getattr(lab.engine.store, method)
        monkeypatch.setattr(lab.engine.store, method, watched(honest))
    return sizes


@pytest.mark.deep
async def test_ten_thousand_endings_are_settled_in_pages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T53, R10, R18: never more than a page in one change, exact at the end"""
    number = 10_000
    declared = await lab.engine.flows.declare("wide", wide(number))
    flow = Drawn(lab, declared.id, declared.members)
    pages = sizes_of(lab, monkeypatch)
    while claims := await lab.claim(limit=500):
        await asyncio.gather(*(lab.complete(claim) for claim in claims if claim.id != flow["z"]))
        if claims[0].id == flow["z"]:
            break
        await after_commit(lab)
    assert await counters(flow, "z") == (number, number, 0, 0)
    assert max(pages) <= PAGE
    assert (await flow.flow()).ended == {"success": number}


@pytest.mark.rules
async def test_a_chain_of_skips_has_no_depth_limit(lab: Lab) -> None:
    """F-27, I-14: longer than any stack is deep, to the last one, right after the commit"""
    names = [f"n{number}" for number in range(sys.getrecursionlimit() + 500)]
    flow = await declare(lab, ">".join(names))
    await lab.fail(await flow.take("n0"), "permanent")
    await after_commit(lab)
    assert (await flow.flow()).ended == {"failed": 1, "skipped": len(names) - 1}
    assert await completions(lab, flow[names[-1]]) == [Outcome.SKIPPED]
