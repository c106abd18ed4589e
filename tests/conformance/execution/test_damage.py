"""One row that cannot be read costs no other row anything: it is named, set aside, and left out."""

import asyncio
import logging
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import EventKind
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.schedule import Schedule
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.submission import Duplicate, Submission
from flowfabric.core.wait.signal import Delivery
from flowfabric.store import readable
from flowfabric.store.queries import Query
from tests.kit.damage import repair, run_sql, spoil
from tests.kit.flow_lab import declare
from tests.kit.lab import W2, Lab
from tests.kit.limiting import define, using
from tests.kit.signalling import fresh
from tests.kit.spending import make, spend


@pytest.fixture(autouse=True)
def nothing_was_named_before() -> None:
    """What cannot be read is named once per process."""
    readable._named.clear()


async def five(lab: Lab, **members: Any) -> list[ExecutionId]:
    return [await lab.submit(**members) for _ in range(5)]


def uuid_of(id: str) -> str:
    return str(ExecutionId(id).uuid)


@pytest.mark.parametrize(
    ("table", "column"), [("execution", "policy"), ("execution", "facts"), ("ready", "life")]
)
async def test_a_claim_takes_the_others_and_the_next_best(
    lab: Lab, store_url: str, caplog: pytest.LogCaptureFixture, table: str, column: str
) -> None:
    ids = [*await five(lab), await lab.submit()]
    await spoil(store_url, table, column, ids[1])
    with caplog.at_level(logging.ERROR, "flowfabric.store"):
        assert [claim.id for claim in await lab.claim(limit=5)] == [ids[0], *ids[2:]]
    assert f"execution {uuid_of(ids[1])} cannot be read" in caplog.text
    assert await lab.claim(W2, limit=5) == []
    with pytest.raises(Corruption, match=uuid_of(ids[1])):
        await lab.state(ids[1])
    # Somebody repairs it: it is looked at again after a minute.
    await repair(store_url, table, column, ids[1])
    assert await lab.claim(W2) == []
    lab.clock.advance(60_000)
    (claim,) = await lab.claim(W2)
    assert claim.id == ids[1]
    await lab.complete(claim)
    assert await lab.state(ids[1]) is PublicState.COMPLETED


async def test_very_many_damaged_rows_hide_no_other(lab: Lab, store_url: str) -> None:
    for _ in range(12):
        await spoil(store_url, "execution", "facts", await lab.submit())
    good = await lab.submit()
    assert [claim.id for claim in await lab.claim(limit=1)] == [good]


async def test_a_damaged_lost_run_is_lost_again_once_it_is_repaired(
    lab: Lab, store_url: str
) -> None:
    claim = await lab.running()
    await lab.lose(claim)
    await spoil(store_url, "execution", "facts", claim.id)
    assert await lab.claim(W2) == []
    await repair(store_url, "execution", "facts", claim.id)
    lab.clock.advance(60_000)
    assert (await lab.claim_one(W2)).attempt == 1


async def test_a_lane_with_a_limit_goes_on(lab: Lab, store_url: str) -> None:
    await lab.engine.lanes.set("default", concurrency=2)
    ids = await five(lab)
    await spoil(store_url, "execution", "facts", ids[0])
    assert [claim.id for claim in await lab.claim(limit=5)] == ids[1:3]


async def test_a_search_for_a_grant_goes_past(lab: Lab, store_url: str) -> None:
    ids = await five(lab)
    await spoil(store_url, "ready", "life", ids[0])
    granted = await lab.engine.grants.find_and_issue("w9", lane="default")
    assert granted is not None
    assert granted.id == ids[1]


async def test_lists_and_counts_name_it_and_go_on(lab: Lab, store_url: str) -> None:
    ids = await five(lab)
    await lab.engine.executions.block(ids[4], "paused_by_operator")
    await spoil(store_url, "execution", "policy", ids[1])
    await spoil(store_url, "parked", "life", ids[4])
    views = lab.engine.views
    page = await views.list(Query(limit=4))
    assert [info.id for info in page.items] == [ids[0], *ids[2:4]]
    assert [str(uuid) for uuid in page.unreadable] == [uuid_of(ids[1])]
    rest = await views.list(Query(limit=4), page.cursor)
    assert ([*rest.items], [str(uuid) for uuid in rest.unreadable]) == ([], [uuid_of(ids[4])])
    assert (await views.counts()).by_state["waiting"] == 5
    assert (await lab.engine.explain.lane("default")) is not None
    assert await lab.engine.explain(ids[3])
    with pytest.raises(Corruption, match=uuid_of(ids[1])):
        await views.describe(ids[1])


async def test_a_repeat_of_many_that_were_submitted_goes_on(lab: Lab, store_url: str) -> None:
    """Their ids are compared with those that are known."""
    ids = await five(lab)
    await spoil(store_url, "ready", "life", ids[1])
    again = [Submission(kind="job", id=id) for id in ids]
    assert await lab.engine.executions.submit_many(again) == [Duplicate(id) for id in ids]


async def test_the_sweep_goes_on_and_comes_back_later(
    lab: Lab, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    later = Millis(lab.clock.now() + 1000)
    ids = await five(lab, delay_until=later)
    await spoil(store_url, "parked", "life", ids[0])
    with caplog.at_level(logging.ERROR, "flowfabric.sweep"):
        await lab.pass_time(1000)
    assert f"run {uuid_of(ids[0])} is due, but sweeping it failed" in caplog.text
    assert [await lab.state(id) for id in ids[1:]] == [PublicState.WAITING] * 4
    assert await lab.engine.store.due(lab.clock.now(), 10) == []
    await repair(store_url, "parked", "life", ids[0])
    await lab.pass_time(60_000)
    assert await lab.state(ids[0]) is PublicState.WAITING


async def test_expired_leases_and_deadlines_of_others_are_seen_to(lab: Lab, store_url: str) -> None:
    deadline = Millis(lab.clock.now() + 60_000)
    ids = await five(lab, deadline_at=deadline)
    claims = await lab.claim(limit=3)
    await spoil(store_url, "lease", "life", ids[0])
    await spoil(store_url, "ready", "life", ids[3])
    await lab.pass_time(30_000)
    found = {lease.id for lease in await lab.engine.claims.expired()}
    assert found >= {claim.id for claim in claims[1:]}
    assert [claim.id for claim in await lab.claim(W2, limit=5)] == [ids[1], ids[2], ids[4]]
    assert await lab.engine.claims.held_by(W2.instance)
    await lab.pass_time(30_000)
    assert await lab.state(ids[4]) is PublicState.EXPIRED
    assert await lab.engine.store.due(lab.clock.now(), 10) == []


async def test_one_signal_that_cannot_be_read_is_the_trouble_of_its_run_alone(
    lab: Lab, store_url: str
) -> None:
    """Changes of many runs are decided together; so is what they remember."""
    good, bad = [(await lab.running()).id for _ in range(2)]

    async def send(id: str) -> object:
        return await lab.engine.signals.send(id, "go", delivery())

    await asyncio.gather(send(good), send(bad))
    for table in ("signal", "waitpoint"):
        await spoil(store_url, table, "doc", bad)
    assert await lab.engine.store.signals(ExecutionId(bad).uuid) == []
    fine, refused = await asyncio.gather(send(good), send(bad), return_exceptions=True)
    assert isinstance(refused, Corruption)
    assert uuid_of(bad) in str(refused)
    assert not isinstance(fine, Exception)
    assert len(await lab.engine.store.signals(ExecutionId(good).uuid)) == 2


def delivery() -> Delivery:
    return Delivery(id=fresh(), waitpoint=UUID(int=0), name="go")


async def test_events_go_on(lab: Lab, store_url: str) -> None:
    claims = [await lab.running() for _ in range(3)]
    uuid = claims[1].uuid
    await run_sql(store_url, "update event set detail = ? where id = ?", b"{", uuid)
    page = await lab.engine.events.read(limit=2)
    rest = await lab.engine.events.read(after=page.cursor, limit=2)
    assert [event.id for event in (*page.events, *rest.events)] == [claims[0].id, claims[2].id]


async def test_schedules_go_on(lab: Lab, store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    schedules = lab.engine.schedules
    for name in ("a", "b", "c"):
        await schedules.put(Schedule(name=name, kind=name, every=Millis(1000)))
    await spoil(store_url, "schedule", "doc", "b", "name")
    with caplog.at_level(logging.ERROR):
        assert [schedule.name for schedule in await schedules.list()] == ["a", "c"]
        await lab.pass_time(1000)
    assert "schedule b cannot be read" in caplog.text
    assert {claim.kind for claim in await lab.claim(limit=5)} == {"a", "c"}
    with pytest.raises(Corruption, match="schedule b"):
        await schedules.get("b")


async def test_workers_go_on(lab: Lab, store_url: str) -> None:
    workers = lab.engine.workers
    for name in ("a", "b", "c"):
        await workers.register(Presence(worker=name, instance=f"{name}-1", ttl=Millis(30_000)))
    await spoil(store_url, "presence", "doc", "b-1", "instance")
    assert [entry.instance for entry in await workers.list()] == ["a-1", "c-1"]
    with pytest.raises(Corruption, match="worker b-1"):
        await workers.get("b-1")


async def test_quotas_go_on(lab: Lab, store_url: str) -> None:
    """Nobody knows what the damaged one allows, so who needs it waits."""
    for name in ("good", "bad"):
        await define(lab, name, concurrency=1)
    both = await lab.submit(policy=using("good", "bad"))
    bad = await lab.submit(policy=using("bad"))
    first, second = [await lab.submit(policy=using("good")) for _ in range(2)]
    await lab.engine.sweep.once()
    await spoil(store_url, "quota", "doc", "bad", "name")
    assert [quota.name for quota in await lab.engine.quotas.list()] == ["good"]
    for claim in await lab.claim(limit=5):
        await lab.complete(claim)
    for _ in range(3):
        await lab.engine.sweep.once()
        for claim in await lab.claim(limit=5):
            await lab.complete(claim)
    states = [await lab.state(id) for id in (first, second)]
    assert states == [PublicState.COMPLETED] * 2
    assert PublicState.RATE_LIMITED in {await lab.state(id) for id in (both, bad)}


async def test_a_queue_whose_first_cannot_be_read_moves_on(lab: Lab, store_url: str) -> None:
    await define(lab, concurrency=1)
    ids = [await lab.submit(policy=using("q")) for _ in range(3)]
    await lab.engine.sweep.once()
    first = await lab.claim_one()
    await spoil(store_url, "parked", "life", ids[1])
    await lab.complete(first)
    await lab.engine.sweep.once()
    assert await lab.claim(limit=5) == []  # it has the slot and is set aside
    await run_sql(store_url, "delete from ready where id = ?", ExecutionId(ids[1]).uuid)
    await lab.engine.sweep.once()
    assert [claim.id for claim in await lab.claim(limit=5)] == [ids[2]]


async def test_budgets_go_on(lab: Lab, store_url: str) -> None:
    """E-T078, C-T92: one that cannot be read admits nobody; the others do."""
    for name in ("bad", "good"):
        await make(lab, name=name, every=Millis(1000))
        await spend(lab, 10, name)
    bad = await lab.submit(policy={"budget_ids": ["bad"]})
    good = [await lab.submit(policy={"budget_ids": ["good"]}), await lab.submit()]
    await spoil(store_url, "budget", "doc", "bad", "name")
    assert [budget.name for budget in await lab.engine.budgets.list()] == ["good"]
    await lab.pass_time(1000)
    assert [claim.id for claim in await lab.claim(limit=5)] == good
    assert await lab.claim(limit=5) == []
    with pytest.raises(Corruption, match="budget bad"):
        await lab.engine.budgets.get("bad")
    assert await lab.state(bad) is PublicState.WAITING


async def test_lanes_go_on(lab: Lab, store_url: str) -> None:
    for name in ("bad", "good"):
        await lab.submit(lane=name)
        await lab.engine.lanes.set(name, weight=2)
    await spoil(store_url, "lane", "doc", "bad", "name")
    assert [*await lab.engine.lanes.settings()] == ["good"]
    assert len(await lab.claim(limit=5)) == 2


async def test_flows_go_on(lab: Lab, store_url: str) -> None:
    bad, good = [await declare(lab, "a>b", "a>c") for _ in range(2)]
    ends = [await flow.take("a") for flow in (bad, good)]
    await spoil(store_url, "flow", "doc", bad.id)
    await asyncio.gather(*(lab.complete(claim) for claim in ends))
    await lab.engine.sweep.once()
    for name in ("b", "c"):
        await lab.complete(await good.take(name))
    await lab.engine.sweep.once()
    assert (await good.state()) == "completed"
    found = await lab.engine.flow_views.page()
    assert [flow.id for flow in found] == [good.id]
    with pytest.raises(Corruption, match=str(bad.id)):
        await bad.flow()


async def test_members_go_on(lab: Lab, store_url: str) -> None:
    flow = await declare(lab, "a>b", "a>c", "a>d")
    claim = await flow.take("a")
    await spoil(store_url, "parked", "life", flow["b"])
    await lab.complete(claim)
    await lab.engine.sweep.once()
    assert {claim.id for claim in await lab.claim(limit=5)} == {flow["c"], flow["d"]}
    members = await lab.engine.flow_views.members(flow.id)
    assert {member.id for member in members} == {flow["a"], flow["c"], flow["d"]}
    await lab.engine.flows.cancel(flow.id, reason="enough")
    await lab.engine.sweep.once()
    assert await lab.state(flow["c"]) is PublicState.CANCELLED


@pytest.mark.parametrize("table", ["ready", "lease", "parked"])
@pytest.mark.parametrize("damaged", [0, 1, 2])
async def test_a_cancelled_flow_names_the_member_and_cancels_it_once_it_is_repaired(
    lab: Lab, store_url: str, table: str, damaged: int
) -> None:
    """C-T69, C-T75, INV-30: the others are cancelled, and the flow goes on owing it the cancel"""
    far = {"delay_until": Millis(lab.clock.now() + 600_000)} if table == "parked" else {}
    drawn = await declare(lab, "a", "b", "c", given=dict.fromkeys("abc", far))
    assert len(await lab.claim(limit=3) if table == "lease" else "abc") == 3
    ids = sorted(drawn.members.values())
    await spoil(store_url, table, "life", ids[damaged])
    for _ in range(2):
        answer = await lab.engine.flows.cancel(drawn.id, reason="enough")
        assert answer.remaining == (ids[damaged],)
    others = [id for id in ids if id != ids[damaged]]
    assert {await lab.state(id) for id in others} == {PublicState.CANCELLED}
    (told,) = [
        event
        for id in others
        for event in await lab.events(id)
        if event.kind is EventKind.FLOW_CANCEL_REQUESTED
    ]
    assert told.detail is not None
    assert told.detail["member_count"] == 3
    await lab.pass_time(1_000)
    await repair(store_url, table, "life", ids[damaged])
    await lab.pass_time(1_000)
    assert await lab.state(ids[damaged]) is PublicState.CANCELLED
    await drawn.settled()
    assert (await drawn.flow()).ended == {"cancelled": 3}
