"""Why it is not running, as a pure function: never empty, in order, in plain words."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.gate import closed
from flowfabric.core.execution.model import (
    Flags,
    Gate,
    Hold,
    Lost,
    Ready,
    Route,
    Snapshot,
    Suspended,
    Waiting,
)
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.serving import serving
from flowfabric.core.explain.lane import (
    AroundLane,
    Counted,
    count_words,
    explain_lane,
    percent_words,
)
from flowfabric.core.explain.reasons import GATES, Explanation, Reason, ReasonCode
from flowfabric.core.explain.run import Around, explain
from flowfabric.core.explain.sentences import MANY, ONE, listed, number, rate_words
from flowfabric.core.explain.state import suspended_reasons
from flowfabric.core.explain.summary import summarise_wait
from flowfabric.core.explain.workers import Running
from flowfabric.core.flow.join import Join
from flowfabric.core.limit.budget import Budget, Limit, OnHard
from flowfabric.core.limit.lane import Lane, LaneState
from flowfabric.core.limit.quota import Quota, Rate, Use, queue_of
from flowfabric.core.limit.release import Line, QuotaView, Room
from flowfabric.core.wait.condition.codec import write_condition
from flowfabric.core.wait.condition.model import (
    AllTrue,
    AnyTrue,
    ByName,
    Condition,
    Count,
    CountKind,
    OperatorOnly,
    Single,
    TimeoutOnly,
    all_waitpoints,
    any_waitpoint,
)
from flowfabric.core.wait.model import Arm, Behaviour, Pending, Suspension, Waits
from tests.kit.snapshots import ALL, ENDED, LATER, LIVING, NOW, fresh, suspended

PAUSED = Lane(name="default", state=LaneState.PAUSED, by="ada", at=NOW)


def worker(name: str = "w1", **members: Any) -> Presence:
    return Presence(worker=name, instance=f"{name}-a", seen_at=NOW, **members)


def told(snapshot: Snapshot, **around: Any) -> Explanation:
    return explain(snapshot, Around(**{"now": NOW, **around}))


lanes = st.builds(
    Lane,
    name=st.just("default"),
    state=st.sampled_from(LaneState),
    concurrency=st.sampled_from([None, 1, 5]),
    by=st.sampled_from(["", "ada"]),
)
workers = st.lists(
    st.builds(
        Presence,
        worker=st.sampled_from(["w1", "w2"]),
        instance=st.sampled_from(["a", "b"]),
        lanes=st.sampled_from([(), ("default",), ("other",)]),
        kinds=st.sampled_from([(), ("job",), ("mail",)]),
        capabilities=st.sampled_from([(), ("gpu",)]),
        running=st.integers(0, 2),
        seen_at=st.sampled_from([NOW, Millis(0)]),
    ),
    max_size=3,
)


@given(
    name=st.sampled_from(sorted(ALL)),
    lane=lanes,
    running=st.sampled_from([0, 1, 9]),
    workers=workers,
    used=st.integers(0, 2),
    now=st.sampled_from([NOW, Millis(NOW + 60_000)]),
)
def test_nothing_is_without_a_reason(
    name: str, lane: Lane, running: int, workers: list[Presence], used: int, now: Millis
) -> None:
    """Whatever is around it; and what has ended tells only how"""
    budget = Budget(name="b", limits={"calls": Limit(hard=1)}, used={"calls": used})
    found = told(
        ALL[name],
        now=now,
        lane=lane,
        running=Running(running),
        workers=workers,
        budgets={"b": budget},
        budget_names=("b",),
    )
    assert found.reasons
    assert len(set(found.codes)) == len(found.codes)
    assert (found.codes == (ReasonCode.ENDED,)) == (name in ENDED)


@given(unsealed=st.booleans(), blocked=st.booleans(), join=st.booleans(), late=st.booleans())
def test_every_closed_gate_is_told_in_the_order_they_are_asked(
    unsealed: bool, blocked: bool, join: bool, late: bool
) -> None:
    """The gates are those of the rule itself"""
    snapshot = fresh()
    life = replace(
        snapshot.life,
        unsealed=unsealed,
        blocked="paused_by_operator" if blocked else None,
        join=Join(n=1) if join else None,
        not_before=LATER if late else None,
    )
    gates = list(closed(life, NOW, Flags.NONE))
    if not gates:
        return
    assert isinstance(snapshot.state, Ready)
    waiting = snapshot.to(Waiting(gates[0], snapshot.state.next), life=life)
    expected = {
        Gate.UNSEALED: ReasonCode.HELD_UNSEALED,
        Gate.BLOCKED: ReasonCode.BLOCKED_BY_OPERATOR,
        Gate.DEPENDENCIES: ReasonCode.WAITS_FOR_UPSTREAMS,
        Gate.DELAY: ReasonCode.DELAYED,
    }
    found = told(waiting, workers=[worker()])
    assert list(found.codes) == [expected[gate] for gate in gates]


def test_every_gate_gives_a_reason() -> None:
    """Also at one that is open by now: nobody has looked since"""
    begun = {Gate.BACKOFF: "retry_ready", Gate.RESUME_DELAY: "resumed"}
    for gate in Gate:
        start = LIVING[begun.get(gate, "waiting")]
        assert isinstance(start.state, Ready)
        found = told(start.to(Waiting(gate, start.state.next, NOW)), workers=[worker()])
        assert len(found.reasons) == 1, gate


def test_work_that_has_begun_passes_a_draining_lane_and_a_spent_budget() -> None:
    spent = Budget(name="b", limits={"calls": Limit(hard=1)}, used={"calls": 1})
    around: dict[str, Any] = {
        "lane": Lane(name="default", state=LaneState.DRAINING),
        "budgets": {"b": spent},
        "budget_names": ("b",),
        "workers": [worker()],
    }
    assert told(LIVING["waiting"], **around).codes == (
        ReasonCode.LANE_DRAINING,
        ReasonCode.BUDGET_EXHAUSTED,
    )
    assert told(LIVING["retry_ready"], **around).codes == (ReasonCode.BUDGET_EXHAUSTED,)
    assert told(LIVING["resumed"], **around).codes == (ReasonCode.WAITING_FOR_WORKER,)
    around["budgets"] = {"b": replace(spent, on_hard=OnHard.WARN)}
    assert told(LIVING["retry_ready"], **around).codes == (ReasonCode.WAITING_FOR_WORKER,)


def test_a_budget_tells_what_is_set_aside() -> None:
    limits = {"tokens": Limit(hard=100)}
    budget = Budget(name="b", limits=limits, used={"tokens": 60}, reserved={"tokens": 40})
    found = told(fresh(), budgets={"b": budget}, budget_names=("b", "deleted")).main
    assert found.text == (
        "budget b is exhausted: 100 of 100 tokens (40 of them set aside by runs that go on); "
        "it is never reset by itself"
    )


def test_what_runs_is_kept_by_nothing_around_it() -> None:
    assert told(LIVING["running"], lane=PAUSED).codes == (ReasonCode.LEASED,)
    assert told(LIVING["suspended"], lane=PAUSED).codes == (ReasonCode.WAITING_FOR_SIGNAL,)


def test_a_hold_that_ran_out_holds_no_run() -> None:
    lost = LIVING["lost"]
    assert isinstance(lost.state, Lost)
    for until, codes in (
        (LATER, (ReasonCode.LOST, ReasonCode.RECLAIM_GRACE)),
        (NOW, (ReasonCode.LOST,)),
    ):
        held = lost.to(replace(lost.state, hold=Hold(until)))
        assert told(held, workers=[worker()]).codes[: len(codes)] == codes
    assert ReasonCode.RECLAIM_GRACE not in told(lost.to(replace(lost.state, hold=Hold(NOW)))).codes


# -- suspensions


def arm(condition: dict[str, Any], **members: Any) -> Arm:
    return Arm(condition=condition, bound=(Pending(UUID(int=7), "go"),), **members)


def suspended_for(*arms: Arm, reason: str = "waiting_for_signal") -> Snapshot:
    snapshot = suspended()
    assert isinstance(snapshot.state, Suspended)
    waits = Waits(suspension=Suspension(arms=arms))
    state = replace(snapshot.state, reason=reason)
    return snapshot.to(state, life=replace(snapshot.life, waits=waits))


def waits_for(*arms: Arm, reason: str = "waiting_for_signal") -> list[Reason]:
    found = suspended_for(*arms, reason=reason)
    assert isinstance(found.state, Suspended)
    return list(suspended_reasons(found, found.state, {}))


def test_each_thing_that_would_wake_it_is_a_reason() -> None:
    found = waits_for(
        arm(write_condition(Single("go"))),
        arm(write_condition(Single("go", ByName("yes"))), timeout_at=LATER),
        arm(write_condition(all_waitpoints("a", "b"))),
        arm(write_condition(TimeoutOnly()), timeout_at=LATER, behaviour=Behaviour.AUTO_RESUME),
        arm(write_condition(OperatorOnly())),
        arm({"kind": "FromTheFuture"}),
        arm(write_condition(Single(f"flow:{UUID(int=3)}"))),
        arm(write_condition(Single("flow:nightly"))),
    )
    assert [(each.code, each.text, each.until) for each in found] == [
        (ReasonCode.WAITING_FOR_SIGNAL, "it waits for a signal at go", None),
        (
            ReasonCode.WAITING_FOR_SIGNAL,
            "it waits for signal yes at go; if that does not happen in time, it fails",
            LATER,
        ),
        (ReasonCode.WAITING_FOR_SIGNAL, "it waits for a signal at a and a signal at b", None),
        (ReasonCode.WAITING_FOR_TIME, "it sleeps", LATER),
        (ReasonCode.WAITING_FOR_OPERATOR, "only an operator resumes it", None),
        (ReasonCode.WAITING_FOR_SIGNAL, "it waits for something a newer release wrote", None),
        (ReasonCode.WAITING_FOR_FLOW, f"it waits for flow {UUID(int=3)} to end", None),
        (ReasonCode.WAITING_FOR_SIGNAL, "it waits for a signal at flow:nightly", None),
    ]
    (approval,) = waits_for(arm(write_condition(Single("deploy"))), reason="waiting_for_approval")
    assert (approval.code, approval.text) == (
        ReasonCode.WAITING_FOR_APPROVAL,
        "it waits for approval: deploy",
    )
    (bare,) = waits_for()
    assert bare.text == "it is suspended: waiting for signal"


@pytest.mark.parametrize(
    ("condition", "last"),
    [
        (all_waitpoints("a", "b"), "and"),
        (any_waitpoint("a", "b"), "or"),
        (Count(2, CountKind.WAITPOINTS, ("a", "b", "a")), "and"),
        (Count(2, CountKind.SIGNALS, ("a", "b")), "or"),
        (AllTrue((any_waitpoint("a", "b"), Single("a", ByName("x")))), "or"),
        (AnyTrue((Single("a"), Single("b"))), "or"),
    ],
)
def test_whether_all_waitpoints_are_needed_is_said(condition: Condition, last: str) -> None:
    """4.2: of several waitpoints a condition needs each, or one of them is enough."""
    (reason,) = waits_for(arm(write_condition(condition)))
    assert f" at a {last} " in reason.text
    summary = summarise_wait(suspended_for(arm(write_condition(condition))))
    assert summary is not None
    assert summary.text == f"signal a {last} signal b"


def test_what_ends_each_wait_is_summarised() -> None:
    both, one = arm(write_condition(all_waitpoints("a", "b"))), arm(write_condition(Single("c")))
    nothing = arm(write_condition(AllTrue((OperatorOnly(),))))
    summary = summarise_wait(suspended_for(nothing, both, one))
    assert summary is not None
    assert summary.text == "signal a and signal b or signal c"


# -- workers


def test_workers_are_matched_one_by_one() -> None:
    """F-45: never the union of what they offer"""
    route = Route("default", "default", "job", ("cuda", "gpu"))
    two = [worker("w1", capabilities=("gpu", "ssd")), worker("w2", capabilities=("cuda",))]
    found = serving(route, two, NOW)
    assert (len(found.of_kind), found.capable) == (2, ())
    assert found.nearest is not None
    assert found.nearest.lacks in (("cuda",), ("gpu",))
    both = worker("w3", capabilities=("cuda", "gpu"), concurrency=4, running=9)
    able = serving(route, [*two, both], NOW)
    assert (able.capable, able.running, able.slots, able.free) == ((both,), 9, 4, 0)
    assert serving(route, [replace(both, seen_at=Millis(0))], NOW).live == ()


# -- lanes in numbers


def test_a_lane_counts_by_what_has_no_room() -> None:
    acme, both = (Use(quota="a", key="acme"),), (Use(quota="a", key="x"), Use(quota="b", key=""))
    standing = QuotaView(
        quotas={"a": Quota(name="a", concurrency_per_key=1), "b": Quota(name="b", concurrency=1)},
        lines=[Line(queue_of(uses), uses, 0, ()) for uses in (acme, both)],
        held=[(acme, 1), ((both[1],), 1)],
    )
    room = Room(standing, NOW)
    open_queue = queue_of((Use(quota="a", key="y"),))
    counts = [
        Counted(Gate.LIMIT, queue_of(acme), 100_000),
        Counted(Gate.LIMIT, queue_of(both), 50_000),
        Counted(Gate.LIMIT, open_queue, 1),
        Counted(Gate.LIMIT, 12, 9),
        Counted(Gate.BUDGET, 13, 9),
        Counted(Gate.DELAY, None, 6),
        Counted(Gate.WORKER_DELAY, None, 4),
    ]
    around = AroundLane(
        now=NOW,
        lane=PAUSED,
        queues={
            queue_of(acme): acme,
            queue_of(both): both,
            open_queue: (Use(quota="a", key="y"),),
        },
        rooms=dict.fromkeys((queue_of(acme), queue_of(both), open_queue), room),
    )
    found = explain_lane(counts, around)
    assert [(share.text, share.count) for share in found.shares] == [
        ("blocked by quota a", 100_000),
        ("blocked by quota b", 50_000),
        ("delayed", 10),
        ("blocked by a budget", 9),
        ("blocked by a quota", 9),
        ("let through quota a in a moment", 1),
    ]
    assert [share.capped for share in found.shares[:2]] == [True, False]
    assert (found.capped, found.reasons[0].code) == (True, ReasonCode.LANE_PAUSED)
    assert found.shares[0].words == "67 % blocked by quota a"


# -- words


def test_every_reason_has_a_sentence_and_every_gate_a_reason() -> None:
    assert set(ONE) == set(ReasonCode)
    assert set(GATES) == set(Gate)
    assert set(GATES.values()) <= set(MANY)


def test_numbers_and_lists_are_written_for_people() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b"], last="or") == "a or b"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert (number(1, "slot"), number(1200, "slot")) == ("1 slot", "1,200 slots")
    assert (percent_words(0.2), percent_words(41.3), percent_words(100)) == (
        "<1 %",
        "41 %",
        "100 %",
    )
    assert count_words(100_000, capped=True) == "100,000+"
    assert count_words(99_999, capped=False) == "99,999"


@pytest.mark.parametrize(
    ("count", "window", "words"),
    [
        (1, 1000, "1 start in a second"),
        (100, 60_000, "100 starts in a minute"),
        (5, 3_600_000, "5 starts in an hour"),
        (5, 90_000, "5 starts in 90 seconds"),
        (5, 1500, "5 starts in 1,500 milliseconds"),
        (2, 172_800_000, "2 starts in 2 days"),
    ],
)
def test_rates_are_written_for_people(count: int, window: int, words: str) -> None:
    assert rate_words(Rate(count, Millis(window))) == words
