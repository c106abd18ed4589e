"""Quotas: defined, attached at submit, and the order in which those who wait are let through."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
    Invalid,
    InvalidPolicy,
    NotEligible,
    NotFound,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.status import PublicState, Vector
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.graph import Graph, GraphNode
from flowfabric.core.flow.model import FlowState
from flowfabric.core.limit.quota import Quota, Rate, name_uses, queue_of
from flowfabric.core.limit.release import Release
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.described import Description, Info
from flowfabric.engine.limit import releases, rounds
from flowfabric.store import foreign
from flowfabric.store.queries import Query
from tests.conformance.execution.test_inbox import id_of, inbox_entry
from tests.kit.connections import libraries
from tests.kit.flow_lab import declare
from tests.kit.lab import W2, Lab
from tests.kit.limiting import (
    began,
    crowd,
    define,
    finish,
    keys_of,
    one,
    settled,
    slots,
    using,
    waits,
)

MINUTE = Millis(60_000)


# -- submit, then claim


async def test_a_run_that_its_quota_admits_can_be_claimed_right_after_its_submission(
    lab: Lab,
) -> None:
    """Execution 3.2 and 3.5: a claim that finds nothing waits for runs that are being admitted."""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    for _ in range(3):
        id = await lab.submit(policy=using("q"))
        (claim,) = await lab.engine.claims.claim(W2)
        assert claim.id == id
        full = await lab.submit(policy=using("q"))
        assert await lab.engine.claims.claim(W2) == []
        await lab.complete(claim)
        (after,) = await lab.engine.claims.claim(W2)
        assert after.id == full
        await lab.complete(after)


READS: dict[str, Callable[[Engine, ExecutionId], Awaitable[Any]]] = {
    "state": lambda engine, id: engine.views.state(id),
    "vector": lambda engine, id: engine.views.vector(id),
    "info": lambda engine, id: _vector(engine.views.info(id)),
    "describe": lambda engine, id: _vector(engine.views.describe(id)),
}


async def _vector(shown: Awaitable[Info | Description | None]) -> Vector:
    found = await shown
    assert found is not None
    assert found.state == found.vector.public
    return found.vector


@pytest.mark.parametrize("limit", ["concurrency", "concurrency_per_key"])
@pytest.mark.parametrize("look", READS.values(), ids=READS)
async def test_a_run_that_its_quota_admits_is_shown_so_right_after_its_submission(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[[Engine, ExecutionId], Awaitable[Any]],
    limit: str,
) -> None:
    """Execution 2.7 and C-T98: a creation makes S1; only a run for which there is no room is
    blocked by its quota, until there is"""
    monkeypatch.setattr(rounds, "SETTLE", 30)
    caps: dict[str, Any] = {limit: 1}
    await lab.engine.quotas.define(Quota(name="q", **caps))

    async def state(id: ExecutionId) -> str:
        found = await look(lab.engine, id)
        return str(found if isinstance(found, PublicState) else found.public)

    first = await lab.submit(policy=using("q"))
    assert await state(first) == "waiting"
    second = await lab.submit(policy=using("q"))
    assert await state(second) == "rate_limited"
    await lab.engine.executions.cancel(first, reason="over")
    assert await state(second) == "waiting"


async def test_runs_that_their_quota_admits_are_counted_so_right_after_their_submission(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-T95: only those wait for which the cap, also a higher one, has no room"""
    monkeypatch.setattr(rounds, "SETTLE", 30)
    await lab.engine.quotas.define(Quota(name="q", concurrency=3))

    async def two_more() -> None:
        for _ in range(2):
            await lab.submit(policy=using("q"))

    await two_more()
    status = await lab.engine.quotas.status("q")
    assert (status.admitted, status.waiting) == (2, 0)
    await two_more()
    counts = (await lab.engine.views.counts()).by_state
    assert (counts["waiting"], counts["rate_limited"]) == (3, 1)
    await lab.engine.quotas.define(Quota(name="q", concurrency=5))
    await two_more()
    listed = await lab.engine.views.list(Query(states=(PublicState.RATE_LIMITED,)))
    assert len(listed.items) == 1


CHANGES: dict[str, Callable[[Engine, ExecutionId], Awaitable[Any]]] = {
    "change_priority": lambda engine, id: engine.executions.change_priority(id, 7),
    "block": lambda engine, id: engine.executions.block(id, "paused_by_operator"),
    "issue": lambda engine, id: engine.grants.issue(id, W2),
    "take": lambda engine, id: engine.grants.take(id),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_run_that_its_quota_admits_can_be_changed_right_after_its_submission(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Engine, ExecutionId], Awaitable[Any]],
) -> None:
    """C-T78, C-T98, C-T109: what is for a run that waits for a worker is done at once, and refused
    while its quota has no room"""
    monkeypatch.setattr(rounds, "SETTLE", 30)
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    first, second = [await lab.submit(policy=using("q")) for _ in range(2)]
    with pytest.raises(NotEligible):
        await change(lab.engine, second)
    await lab.engine.executions.cancel(first, reason="over")
    await change(lab.engine, second)


async def test_a_run_that_its_quota_admits_can_be_granted_right_after_its_submission(
    lab: Lab,
) -> None:
    """Execution 3.5"""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    id = await lab.submit(policy=using("q"))
    granted = await lab.engine.grants.find_and_issue("w2", lane="default")
    assert granted is not None
    assert granted.id == id


async def test_callers_that_find_nothing_wait_for_their_own_quota_only_once(lab: Lab) -> None:
    """A look that never ends keeps nobody longer than a moment."""
    await lab.engine.quotas.define(Quota(name="q", concurrency=1))
    await settled(lab)
    looking = lab.engine._releases._serve
    stuck = asyncio.Event()

    async def slow(quota: str, queues: set[int] | None) -> None:
        await stuck.wait()
        await looking(quota, queues)

    lab.engine._releases._serve = slow  # type: ignore[method-assign]
    id = await lab.submit(policy=using("q"))
    assert await lab.engine.claims.claim(W2) == []
    stuck.set()
    (claim,) = await lab.engine.claims.claim(W2)
    assert claim.id == id


# -- definitions


async def test_defining_again_changes_nothing(lab: Lab) -> None:
    """C-T94, C-T96: idempotent; limits are read back as they were given"""
    quotas = lab.engine.quotas
    given = Quota(
        name="q",
        concurrency=5,
        concurrency_per_key=2,
        rate=Rate(100, MINUTE),
        rate_per_key=Rate(10, Millis(1_000)),
    )
    assert await quotas.define(given)
    first = await quotas.get("q")
    assert first.limits == given.limits
    assert (first.created_at, first.updated_at) == (lab.clock.now(), lab.clock.now())
    lab.clock.advance(5)
    assert not await quotas.define(given)
    assert await quotas.get("q") == first
    assert not await quotas.define(Quota(name="q", concurrency=6))
    second = await quotas.get("q")
    assert second.limits == (6, None, None, None)
    assert (second.created_at, second.updated_at) == (first.created_at, first.created_at + 5)
    assert second.version > first.version


async def test_creating_leaves_what_is_there(lab: Lab, second_lab: Lab) -> None:
    """C-T94"""
    assert await lab.engine.quotas.create(Quota(name="q", concurrency=5))
    assert not await second_lab.engine.quotas.create(Quota(name="q", concurrency=9))
    assert (await lab.engine.quotas.get("q")).concurrency == 5


async def test_quotas_are_listed_by_name_and_pages(lab: Lab) -> None:
    quotas = lab.engine.quotas
    for name in ("b", "a", "ü", "task:send", "B"):
        await quotas.define(Quota(name=name, concurrency=1))
    assert [quota.name for quota in await quotas.list()] == ["B", "a", "b", "task:send", "ü"]
    assert [quota.name for quota in await quotas.list(after="a", limit=2)] == ["b", "task:send"]
    assert await quotas.list(limit=0) == await quotas.list(after="ü") == []
    for wrong in ({"after": "a\0b"}, {"limit": "1"}, {"after": 7}):
        with pytest.raises(Invalid):
            await quotas.list(**wrong)


NO_QUOTAS: list[Any] = [
    Quota(name="q", concurrency=-1),
    Quota(name="q", rate=Rate(-1, MINUTE)),
    Quota(name="", concurrency=1),
    Quota(name="a\nb", concurrency=1),
    {"name": "q", "concurrency": 1},
    None,
]


@pytest.mark.rules
async def test_what_makes_no_sense_is_no_quota(lab: Lab) -> None:
    """C-T94: bad definitions write nothing"""
    for wrong in NO_QUOTAS:
        for call in (lab.engine.quotas.define, lab.engine.quotas.create):
            with pytest.raises(Invalid):
                await call(wrong)
    assert await lab.engine.quotas.list() == []


async def test_a_quota_of_zeros_limits_nothing(lab: Lab) -> None:
    """§3.0, §3.4, C-T94: a policy with both limits 0 is unlimited, until it gets limits"""
    quotas = lab.engine.quotas
    free = Quota(name="q", concurrency=0, rate=Rate(0, MINUTE))
    assert await quotas.create(free)
    assert not await quotas.create(Quota(name="q", concurrency=1))
    assert (await quotas.get("q")).limits == (None, None, None, None)
    await crowd(lab, 5)
    await crowd(lab, 5, ("q", "a"))
    assert await slots(lab) == (10, 0)
    assert not await quotas.define(free)
    claims = await lab.claim(limit=20)
    assert len(claims) == 10
    await define(lab, concurrency=1)
    id = await one(lab)
    assert await waits(lab, id)
    await quotas.define(free)
    assert not await waits(lab, id)


async def test_who_asks_for_an_unknown_quota_is_told_so(lab: Lab) -> None:
    for call in (lab.engine.quotas.get, lab.engine.quotas.status):
        with pytest.raises(NotFound):
            await call("unheard of")
        with pytest.raises(Invalid):
            await call("")
    assert not await lab.engine.quotas.delete("unheard of")
    with pytest.raises(Invalid):
        await lab.engine.quotas.delete("a\0b")


# -- attached at submit


async def test_an_unknown_quota_is_refused_at_submit(lab: Lab, second_lab: Lab) -> None:
    """F-07, C-T96: what is attached is known, or nothing is written"""
    for unknown in ("unheard of", "task:send"):
        with pytest.raises(NotFound, match=unknown):
            await lab.submit(policy=using(unknown))
        with pytest.raises(NotFound, match=unknown):
            await lab.engine.executions.submit_many(
                [Submission(kind="job"), Submission(kind="job", policy=using(unknown))]
            )
        with pytest.raises(NotFound, match=unknown):
            await declare(lab, "a>b", given={"b": {"policy": using(unknown)}})
        flow = await declare(lab, "a")
        with pytest.raises(NotFound, match=unknown):
            await lab.engine.flows.add(
                flow.id, Submission(kind="job", policy=using(unknown), flow=flow.id)
            )
        await flow.complete("a")
    assert await lab.claim(limit=9) == []
    await define(second_lab, "unheard of", concurrency=1)
    assert not await waits(lab, await one(lab, "unheard of"))
    assert await waits(lab, await one(lab, "unheard of"))


@pytest.mark.rules
async def test_uses_that_make_no_sense_are_refused(lab: Lab) -> None:
    """F-07: fail closed"""
    await define(lab, concurrency=1)
    wrong: list[Any] = ["q", ["q"], [{"quota": 7}], [{"quota": "q"}] * 2, [{"key": "k"}]]
    for quotas in wrong:
        with pytest.raises(InvalidPolicy):
            await lab.submit(policy={"quotas": quotas})


async def test_inbox_entries_are_asked_when_they_are_admitted(lab: Lab, store_url: str) -> None:
    """F-07: quotas of tasks may come with the first worker, others must exist"""
    await define(lab, concurrency=1)
    for number, connect in enumerate(libraries(store_url)):
        found = []
        for place, quota in enumerate(("q", "q", "unheard of", "task:send")):
            item = inbox_entry(lab, 10 * number + place + 1, policy=using(quota))
            async with connect() as connection:
                found.append(id_of(await foreign.put_in_inbox(connection, item, None, Millis(0))))
        await lab.engine.inbox.admit()
        await lab.pass_time(1)
        await settled(lab)
        states = [await lab.state(id) for id in found]
        assert states == ["waiting", "rate_limited", "failed", "waiting"]
        failed = await lab.engine.views.describe(found[2])
        assert failed is not None
        assert "unheard of" in str(failed)
        for claim in await lab.claim(limit=9):
            await finish(lab, claim)
        await finish(lab, await lab.claim_one())


# -- changed and deleted


async def test_other_limits_hold_at_once(lab: Lab, second_lab: Lab) -> None:
    """C-T93, F-11: more room lets through at once, less stops nobody who runs"""
    await define(lab, concurrency=1)
    ids = await crowd(lab, 6)
    assert await slots(lab) == (1, 5)
    await define(lab, concurrency=3)
    assert await slots(lab) == (3, 3)
    claims = await lab.claim(limit=9)
    await define(second_lab, concurrency=2)
    for claim, left in zip(claims, ((2, 3), (2, 2), (2, 1)), strict=True):
        await lab.engine.claims.renew(claim)
        await finish(lab, claim)
        assert await slots(lab) == left
    assert [claim.id for claim in await lab.claim(limit=9)] == ids[3:5]
    await define(second_lab, rate=Rate(1, MINUTE))
    assert await slots(lab) == (3, 0)


async def test_a_deleted_quota_limits_nothing(lab: Lab, second_lab: Lab) -> None:
    """Whoever waits goes at once; other quotas hold as before; made anew it counts who runs"""
    await define(lab, concurrency=1)
    await define(lab, "other", concurrency=1)
    await crowd(lab, 3)
    both = await crowd(lab, 2, "q", "other")
    assert await lab.engine.quotas.delete("q")
    assert not await lab.engine.quotas.delete("q")
    await settled(lab)
    assert len(await lab.claim(limit=9)) == 4
    assert [await waits(lab, id) for id in both] == [False, True]
    with pytest.raises(NotFound):
        await lab.submit(policy=using("q"))
    await define(second_lab, concurrency=5)
    assert await slots(lab) == (4, 1)
    late = await crowd(lab, 2)
    assert [await waits(lab, id) for id in late] == [False, True]


async def test_one_that_is_submitted_with_a_quota_just_deleted_elsewhere_goes(
    lab: Lab, second_lab: Lab
) -> None:
    """Nobody waits for what is not there"""
    await define(lab, concurrency=1)
    await one(lab)
    await second_lab.engine.quotas.delete("q")
    id = await one(lab)
    await lab.engine.sweep.once()
    assert not await waits(lab, id)


# -- keys, several quotas


async def test_limits_of_keys_and_of_all_keys_hold_together(lab: Lab) -> None:
    """I-27, C-T95: per key and per quota"""
    await define(lab, concurrency=3, concurrency_per_key=2)
    for key in ("a", "b"):
        await crowd(lab, 4, ("q", key))
    claims = await lab.claim(limit=9)
    assert keys_of(claims) == {"a": 2, "b": 1}
    for expected in ("a", "b"):
        await finish(lab, claims.pop(0))
        assert keys_of(await lab.claim(limit=9)) == {expected: 1}, "the longest unserved first"
    status = await lab.engine.quotas.status("q")
    assert sorted((q.uses[0].key, q.held, q.waiting) for q in status.keys) == [
        ("a", 1, 1),
        ("b", 2, 2),
    ]


async def test_who_uses_several_quotas_needs_room_in_all(lab: Lab) -> None:
    """I-28: all or nothing; nothing is held while it waits"""
    await define(lab, "a", concurrency=2)
    await define(lab, "b", concurrency=1)
    first = await began(lab, "a", "b")
    second = await one(lab, "a", "b")
    assert await waits(lab, second)
    assert await slots(lab, "a") == await slots(lab, "b") == (1, 1)
    third = await began(lab, "a")
    await finish(lab, first)
    assert not await waits(lab, second)
    assert (await slots(lab, "a"), await slots(lab, "b")) == ((2, 0), (1, 0))
    await finish(lab, third)
    await finish(lab, await lab.claim_one())
    assert await slots(lab, "a") == await slots(lab, "b") == (0, 0)


async def test_lines_of_one_key_are_served_in_turn_whatever_else_they_need(lab: Lab) -> None:
    """F-47: a customer's limit shared by two tasks; a long line does not starve the others"""
    await define(lab, "customer", concurrency_per_key=1)
    for name in ("task:a", "task:b"):
        await define(lab, name, concurrency=9)
    running = await began(lab, ("customer", "c1"))
    await crowd(lab, 6, ("customer", "c1"))
    await crowd(lab, 6, ("customer", "c1"), "task:a")
    await crowd(lab, 2, ("customer", "c1"), "task:b")
    served = []
    for _ in range(6):
        await finish(lab, running)
        running = await lab.claim_one()
        served.append(running.snapshot.execution.uses[-1].quota)
    assert set(served) == {"customer", "task:a", "task:b"}


async def test_a_line_only_another_process_knows_of_has_its_turn(
    lab: Lab, second_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-47: once in a while all lines are looked at"""
    await define(lab, "customer", concurrency_per_key=1)
    await define(second_lab, "task:b", concurrency=9)
    running = await began(lab, ("customer", "c1"))
    await crowd(lab, 6, ("customer", "c1"))
    hidden = await one(second_lab, ("customer", "c1"), "task:b")
    monkeypatch.setattr(releases, "REFRESH", 0.0)
    await finish(lab, running)
    assert (await lab.claim_one()).id == hidden


# -- fairness and order


async def test_a_long_line_does_not_starve_a_short_one(lab: Lab) -> None:
    """F-47: two thousand of one key, ten of another; both get every second slot"""
    await define(lab, concurrency=2)
    await crowd(lab, 2_000, ("q", "big"), priority=9)
    await crowd(lab, 10, ("q", "small"))
    claims = await lab.claim(limit=9)
    served = []
    for _ in range(10):
        await finish(lab, claims.pop(0))
        claims += await lab.claim(limit=9)
        assert len(claims) == 2
        served.append(claims[-1])
    assert keys_of(served) == {"small": 5, "big": 5}


async def test_lines_that_cannot_move_hide_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-44, F-47: however many lines are full, the one with room is found"""
    monkeypatch.setattr(releases, "KEYED_LINES", 2)
    await define(lab, concurrency=9, concurrency_per_key=1)
    last = await began(lab, ("q", "last"))
    await finish(lab, last)
    for key in "abc":
        await crowd(lab, 2, ("q", key))
    taken = await lab.claim(limit=9)
    assert len(taken) == 3
    served = _turn_of_last(lab, await lab.engine.quotas.get("q"))
    assert await lab.engine.store.release(served) is not None
    late = await one(lab, ("q", "last"))
    assert not await waits(lab, late)


def _turn_of_last(lab: Lab, quota: Quota) -> Release:
    """As if the line had just been served, so that it comes last."""
    queue = queue_of(name_uses({"q": "last"}))
    return Release(versions={"q": quota.version}, turns={("q", queue): 1 << 60})


async def test_within_a_key_the_order_is_by_priority_and_age(lab: Lab) -> None:
    """I-32, C-T100"""
    await define(lab, concurrency=1)
    claim = await began(lab)
    old, new = [await one(lab) for _ in range(2)]
    urgent = await one(lab, priority=5)
    order = []
    for _ in range(3):
        await finish(lab, claim)
        claim = await lab.claim_one()
        order.append(claim.id)
    assert order == [urgent, old, new]


async def test_an_operator_moves_one_that_waits_at_the_limit(lab: Lab) -> None:
    """I-32: anywhere; it goes next and is let through once"""
    await define(lab, concurrency=1)
    claim = await began(lab)
    ids = await crowd(lab, 3)
    with pytest.raises(FlowFabricError):
        await lab.engine.executions.change_priority(ids[2], 7)
    await lab.engine.executions.change_priority(ids[2], 7, anywhere=True)
    assert await slots(lab) == (1, 3)
    await finish(lab, claim)
    assert (await lab.claim_one()).id == ids[2]
    assert await slots(lab) == (1, 2)


async def test_a_high_priority_does_not_pass_the_turn_of_another_key(lab: Lab) -> None:
    """F-47: priority orders a key's own work"""
    await define(lab, concurrency=1)
    claim = await began(lab, ("q", "a"))
    await crowd(lab, 2, ("q", "a"), priority=9_000)
    other = await one(lab, ("q", "b"))
    await finish(lab, claim)
    assert (await lab.claim_one()).id == other


async def test_no_slot_waits_for_a_worker_that_cannot_run_it_longer_than_it_must(lab: Lab) -> None:
    """I-35: what no worker takes can be blocked, and its slot goes to the next"""
    await define(lab, concurrency=1)
    gpu = {"routing_requirements": {"required_capabilities": ["gpu"]}}
    first = await one(lab, policy=gpu)
    second = await one(lab)
    assert await lab.claim(limit=9) == []
    await lab.engine.executions.block(first, "waiting_for_capable_worker")
    await settled(lab)
    assert (await lab.claim_one()).id == second


# -- members of flows


async def test_members_of_flows_use_quotas_as_every_run(lab: Lab) -> None:
    """F-07: no slot before the upstream ended; cancelled with the flow they give it back"""
    await define(lab, concurrency=1)
    given = {name: {"policy": using("q")} for name in "abc"}
    flow = await declare(lab, "a>c", "b>c", given=given)
    await settled(lab)
    states = [await lab.state(flow[name]) for name in "abc"]
    assert sorted(states) == ["rate_limited", "waiting", "waiting_children"]
    assert states[2] == "waiting_children"
    assert await slots(lab) == (1, 1)
    for _ in "abc":
        await finish(lab, await lab.claim_one())
        await flow.settled()
        await settled(lab)
    assert await flow.state() is FlowState.COMPLETED
    assert await slots(lab) == (0, 0)
    doomed = await declare(lab, "a>c", "b>c", given=given)
    await settled(lab)
    await lab.claim_one(W2)
    outsider: ExecutionId = await one(lab)
    await lab.engine.flows.cancel(doomed.id, reason="enough")
    await doomed.settled()
    assert not await waits(lab, outsider)
    assert await slots(lab) == (1, 0)


async def test_a_flow_is_declared_again_although_its_quota_is_gone(lab: Lab) -> None:
    """What would be refused as new was accepted then; another one is refused."""
    await define(lab, concurrency=1)
    graph = Graph((GraphNode("a", Submission(kind="job", policy=using("q"))),))
    made = await lab.engine.flows.declare("nightly", graph)
    await lab.engine.quotas.delete("q")
    again = await lab.engine.flows.declare("nightly", graph, id=made.id)
    assert (again.created, again.members) == (False, made.members)
    with pytest.raises(NotFound, match="q"):
        await lab.engine.flows.declare("nightly", graph)
