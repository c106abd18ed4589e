"""A store with something in it of every kind, for tests that move or copy whole stores."""

from typing import Any

from msgspec import Struct

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.schedule import Schedule
from flowfabric.core.execution.step import Step
from flowfabric.core.limit.budget import Scope
from flowfabric.core.limit.quota import Rate
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.wait.suspensions import Ticket
from tests.kit import flow_lab, limiting, spending
from tests.kit.lab import Lab
from tests.kit.signalling import waiting
from tests.kit.situations import ALL, running, take


class World(Struct, frozen=True):
    """What a test needs to go on with the store elsewhere."""

    situations: dict[str, ExecutionId]
    leased: ExecutionId
    suspended: ExecutionId
    ticket: Ticket
    members: dict[str, ExecutionId]


async def fill(lab: Lab) -> World:
    """An execution in every situation, and a row in as many tables as it takes."""
    engine = lab.engine
    situations = {name: await make(lab) for name, make in ALL.items()}
    claim, answer = await waiting(lab)
    await lab.submit(key="order-7", tags={"app.team": "billing"}, namespace="shop", lane="b")
    await _at_work(lab)
    drawn = await flow_lab.declare(lab, "a>b", "a>c", tags={"app.flow": "nightly"})
    await drawn.complete("a")
    await limiting.define(lab, concurrency=1, rate=Rate(5, Millis(60_000)))
    await limiting.crowd(lab, 3, ("q", "acme"))
    await spending.make(lab, 10, scope=Scope.NAMESPACE, scope_id="shop")
    await spending.spend(lab, 3, key="invoice-1")
    await engine.lanes.pause("slow", by="ada", reason="maintenance")
    await engine.schedules.put(Schedule(name="nightly", kind="job", every=Millis(86_400_000)))
    await engine.workers.register(Presence(worker="w1", instance="w1-a", kinds=("job",)))
    leased = await running(lab)
    return World(situations, leased, claim.id, answer.primary, dict(drawn.members))


async def _at_work(lab: Lab) -> Claim:
    """One that has recorded a step, said how far it is and spent of a budget."""
    await spending.make(lab, 100, name="work")
    id = await lab.submit(policy={"budget_ids": ["work"]}, deadline_at=lab.clock.now() + 900_000)
    claim = await take(lab, id)
    await lab.engine.attempts.record_step(claim, Step(0, 0, "charge", 0, b'{"ok": true}'))
    await lab.engine.attempts.progress(claim, 40, "half")
    await spending.report(lab, claim, 5, key="call-1")
    return claim


async def seen(lab: Lab, world: World) -> dict[str, Any]:
    """Everything there is to see of the executions and what is around them."""
    engine = lab.engine
    ids = [*world.situations.values(), world.leased, world.suspended, *world.members.values()]
    return {
        "runs": [
            (
                await engine.views.describe(id),
                await engine.views.attempts(id),
                await engine.views.steps(id),
                await engine.views.result(id),
                await lab.events(id),
            )
            for id in ids
        ],
        "counts": await engine.views.counts(),
        "budgets": [await engine.budgets.get(name) for name in ("team", "work")],
        "quotas": await engine.quotas.status("q"),
        "schedules": await engine.schedules.list(),
        "lanes": await engine.lanes.settings(),
        "workers": await engine.workers.list(),
        "keys": await engine.keys.kids(),
    }
