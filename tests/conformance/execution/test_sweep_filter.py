"""Sweeps that look after one tenant: E-T339, C-T59, C-T137, I-45."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from flowfabric import Options
from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.context import EngineOptions
from flowfabric.engine.flow.flows import FlowCreated
from flowfabric.engine.sweep import PAGE
from flowfabric.store.clock import ManualClock
from flowfabric.store.open import open_store
from tests.kit.flow_lab import declare
from tests.kit.flowing import after_commit, die_after_commits
from tests.kit.lab import TTL, Lab
from tests.kit.situations import LIVING, described, take, timeouts

pytestmark = pytest.mark.inside

TAG = ("cairn.instance_id", "a")
DAY = 86_400_000

Serving = Callable[..., Awaitable[Lab]]


@pytest.fixture
async def serving(lab: Lab, store_url: str, clock: ManualClock) -> AsyncIterator[Serving]:
    """Further engines on the same store, each with options of its own."""
    async with AsyncExitStack() as engines:

        async def open_lab(**options: Any) -> Lab:
            served = await Lab.open(await open_store(store_url, clock=clock), clock, **options)
            engines.push_async_callback(served.engine.close)
            return served

        yield open_lab


async def tenants(lab: Lab, **members: Any) -> list[ExecutionId]:
    """Four runs: of neither, of the namespace, with the tag, with both."""
    tags = dict([TAG])
    return [
        await lab.submit(**members),
        await lab.submit(namespace="mine", **members),
        await lab.submit(tags=tags, **members),
        await lab.submit(namespace="mine", tags=tags, **members),
    ]


FILTERS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [0, 1, 2, 3]),
    ({"sweep_namespace": "mine"}, [1, 3]),
    ({"sweep_tag": TAG}, [2, 3]),
    ({"sweep_namespace": "mine", "sweep_tag": TAG}, [3]),
    ({"sweep_namespace": "default", "sweep_tag": TAG}, [2]),
    ({"sweep_namespace": "nobody"}, []),
    ({"sweep_tag": (TAG[0], "b")}, []),
]
every_filter = pytest.mark.parametrize(("options", "its"), FILTERS)


@every_filter
async def test_only_its_own_runs_are_swept(
    lab: Lab, serving: Serving, options: dict[str, Any], its: list[int]
) -> None:
    """E-T339, C-T137: admits its own, rejects others; without a filter everything is admitted"""
    served = await serving(**options)
    late = await tenants(lab, deadline_at=Millis(lab.clock.now() + 1))
    lab.clock.advance(1)
    assert await served.engine.sweep.once() == len(its)
    for place, id in enumerate(late):
        assert await lab.state(id) == ("expired" if place in its else "waiting")
    assert await lab.engine.sweep.once() == 4 - len(its)


async def test_every_timer_of_another_tenant_is_left_alone(lab: Lab, serving: Serving) -> None:
    """I-45, §3.66: delays, leases, attempts, deadlines, waits"""
    mine = await serving(sweep_namespace="mine")
    soon: dict[str, Any] = {"deadline_at": Millis(lab.clock.now() + TTL)}
    foreign = [await LIVING[name](lab, **soon) for name in LIVING if name != "lost"]
    foreign.append(await LIVING["running"](lab, policy=timeouts(attempt=1000)))
    before = [await described(lab, id) for id in foreign]
    lab.clock.advance(TTL)
    assert await mine.engine.sweep.once() == 0
    assert [await described(lab, id) for id in foreign] == before


async def test_others_that_are_due_hide_no_run(lab: Lab, serving: Serving) -> None:
    """FLAW-29: however many of them there are, and however long they have been due"""
    until = Millis(lab.clock.now() + 1)
    others = [Submission(kind="job", delay_until=until) for _ in range(PAGE + 1)]
    await lab.engine.executions.submit_many(others)
    id = await lab.submit(delay_until=Millis(until + 1), namespace="mine")
    lab.clock.advance(2)
    mine = await serving(sweep_namespace="mine")
    assert await mine.engine.sweep.once() == 1
    assert await lab.state(id) == "waiting"


@every_filter
async def test_only_its_own_runs_are_forgotten(
    lab: Lab, serving: Serving, options: dict[str, Any], its: list[int]
) -> None:
    """§3.62: retention has the same filter"""
    served = await serving(**options)
    old = await tenants(lab)
    own = await tenants(lab, policy={"stream_policy": {"retention_ttl_ms": 1000}})
    for id in (*old, *own):
        await lab.engine.executions.cancel(id, reason="")
    lab.clock.advance(8 * DAY)
    assert await served.engine.sweep.trim() == 2 * len(its)
    for ids in (old, own):
        left = [place for place, id in enumerate(ids) if await lab.engine.views.info(id)]
        assert left == [place for place in range(4) if place not in its]
    assert await lab.engine.sweep.trim() == 2 * (4 - len(its))


@pytest.mark.parametrize("options", [{"sweep_namespace": "mine"}, {"sweep_tag": TAG}])
async def test_only_its_own_flows_are_forgotten(
    lab: Lab, serving: Serving, options: dict[str, Any]
) -> None:
    """§3.62: a flow and its members go by their own namespace and tags"""
    served = await serving(**options)
    whose: dict[str, Any] = {"namespace": "mine", "tags": dict([TAG])}
    flows = []
    for members in ({}, whose):
        flow = await lab.engine.flows.create(kind="build", **members)
        assert isinstance(flow, FlowCreated)
        await lab.engine.flows.add(flow.id, Submission(kind="job", **members))
        await lab.engine.flows.cancel(flow.id, reason="")
        flows.append(flow.id)
    await lab.engine.sweep.once()
    lab.clock.advance(8 * DAY)
    assert await served.engine.sweep.trim() == 1
    await served.engine.sweep.trim()
    assert await lab.engine.flow_views.get(flows[1]) is None
    assert await lab.engine.flow_views.get(flows[0]) is not None


# -- what flows are owed


@pytest.mark.parametrize(
    ("options", "flow", "member", "is_served"),
    [
        ({"sweep_namespace": "mine"}, {"namespace": "mine"}, {}, True),
        ({"sweep_namespace": "mine"}, {}, {}, False),
        ({"sweep_tag": TAG}, {}, {"tags": dict([TAG])}, True),
        ({"sweep_tag": TAG}, {"tags": dict([TAG])}, {}, True),
        ({"sweep_tag": TAG}, {"tags": {TAG[0]: "b"}}, {}, False),
    ],
)
async def test_what_a_dead_process_owes_to_another_tenant_is_left_alone(
    lab: Lab,
    serving: Serving,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    flow: dict[str, Any],
    member: dict[str, Any],
    is_served: bool,
) -> None:
    """C-T59: a flow is served for its own sake, or for that of the run that has ended"""
    die_after_commits(lab, monkeypatch)
    drawn = await declare(lab, "a>b", given={"a": member, "b": member}, **flow)
    await lab.complete(await take(lab, drawn["a"]))
    await after_commit(lab)
    served = await serving(**options)
    await served.engine.sweep.once()
    assert await lab.state(drawn["b"]) == ("waiting" if is_served else "waiting_children")
    other = await serving()
    await other.engine.sweep.once()
    assert await lab.state(drawn["b"]) == "waiting"


# -- several engines


async def test_tenants_do_not_wait_for_the_duty_of_each_other(lab: Lab, serving: Serving) -> None:
    """§10: several engine processes can each serve one tenant, at the same time"""
    mine = await serving(sweep_namespace="mine")
    yours = await serving(sweep_namespace="default")
    again = await serving(sweep_namespace="mine")
    ids = await tenants(lab, deadline_at=Millis(lab.clock.now() + 1))
    lab.clock.advance(1)
    for served in (lab, mine, yours, again):
        await served.engine.sweep._turn()
    assert [await lab.state(id) for id in ids] == ["expired"] * 4
    duties = [served.engine.sweep._has_duty for served in (lab, mine, yours, again)]
    assert duties == [True, True, True, False]


@pytest.mark.parametrize("kind", [EngineOptions, Options])
@pytest.mark.parametrize(
    "wrong",
    [
        {"sweep_namespace": ""},
        {"sweep_namespace": 1},
        {"sweep_namespace": "a\0"},
        {"sweep_tag": "cairn.instance_id"},
        {"sweep_tag": ("nodot", "a")},
        {"sweep_tag": ("a.b", 1)},
    ],
)
def test_a_filter_that_cannot_be_is_refused(kind: Any, wrong: dict[str, Any]) -> None:
    """§1.11: before the store is asked"""
    with pytest.raises(Invalid):
        kind(**wrong)
