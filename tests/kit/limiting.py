"""Short words for tests of limits: quotas, who uses them, who waits and who has a slot."""

from collections import Counter
from typing import Any

from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.submission import Submission, Submitted
from flowfabric.core.limit.known_quota import KnownQuota
from flowfabric.core.limit.quota import Quota
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import W1, Lab


def using(*uses: tuple[str, str] | str, **policy: Any) -> dict[str, Any]:
    """A policy with quotas: names, or pairs of name and key."""
    pairs = [(use, "") if isinstance(use, str) else use for use in uses]
    return {**policy, "quotas": [{"quota": quota, "key": key} for quota, key in pairs]}


async def settled(lab: Lab) -> None:
    """Whoever there is room for now has gone through."""
    await lab.engine._limits.drain()


async def define(lab: Lab, name: str = "q", **limits: Any) -> None:
    await lab.engine.quotas.define(Quota(name=name, **limits))
    await settled(lab)


async def one(lab: Lab, *uses: tuple[str, str] | str, **members: Any) -> ExecutionId:
    """A fresh execution that uses quotas; whoever can go has gone."""
    id = await lab.submit(policy=using(*(uses or ("q",)), **members.pop("policy", {})), **members)
    await settled(lab)
    return id


async def crowd(
    lab: Lab, number: int, *uses: tuple[str, str] | str, **members: Any
) -> list[ExecutionId]:
    """Many at once."""
    submission = Submission(kind="job", policy=using(*(uses or ("q",))), **members)
    answers = await lab.engine.executions.submit_many([submission] * number)
    await settled(lab)
    return [answer.id for answer in answers if isinstance(answer, Submitted)]


async def began(lab: Lab, *uses: tuple[str, str] | str, **members: Any) -> Claim:
    """A fresh execution that uses quotas, claimed; nothing else may be ready."""
    id = await one(lab, *uses, **members)
    claim = await lab.claim_one(W1)
    assert claim.id == id
    return claim


async def finish(lab: Lab, claim: Claim) -> None:
    await lab.complete(claim)
    await settled(lab)


async def slots(lab: Lab, name: str = "q") -> tuple[int, int]:
    """How many have a slot of a quota, and how many wait for one."""
    await settled(lab)
    status = await lab.engine.quotas.status(name)
    assert status.admitted == sum(queue.held for queue in status.keys)
    assert status.running == sum(queue.running for queue in status.keys) <= status.admitted
    return status.admitted, status.waiting


async def waits(lab: Lab, id: str) -> bool:
    """Whether an execution waits for its limits."""
    await settled(lab)
    return await lab.state(id) == "rate_limited"


def keys_of(claims: list[Claim]) -> Counter[str]:
    return Counter(claim.snapshot.execution.uses[0].key for claim in claims)


def known_quota(version: int, room: dict[int, int], *, turn: int = 0) -> KnownQuota:
    """What a process knows after its first look, which has left this room."""
    known = KnownQuota(version, turn)
    known.learn(known.ask(room), room, (), 1)
    return known
