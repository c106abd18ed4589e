"""Short words for tests that ask why."""

from typing import Any

from flowfabric.core.base.time import Millis
from flowfabric.core.execution.registry import Presence
from flowfabric.core.explain.reasons import Explanation, Reason
from tests.kit.lab import Lab

GPU = {"routing_requirements": {"required_capabilities": ["cuda", "gpu"]}}


def using(*uses: tuple[str, str]) -> dict[str, Any]:
    return {"quotas": [{"quota": quota, "key": key} for quota, key in uses]}


async def settled(lab: Lab) -> None:
    """Everything the engine does by itself after its commits is done."""
    await lab.engine._releases.drain()
    await lab.engine._budget_gate.drain()


async def register(lab: Lab, name: str = "w7", **members: Any) -> None:
    await lab.engine.workers.register(
        Presence(worker=name, instance=f"{name}-a", ttl=Millis(3_600_000), **members)
    )


async def why(lab: Lab, id: str) -> Explanation:
    await settled(lab)
    return await lab.engine.explain(id)


async def reason(lab: Lab, id: str, code: str) -> Reason:
    """The one reason of that code."""
    found = await why(lab, id)
    (only,) = [each for each in found.reasons if each.code == code]
    return only
