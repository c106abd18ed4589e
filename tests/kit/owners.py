"""What an owner can do, in which forms it can show its ownership, and what a refusal leaves."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from flowfabric.core.base.errors import (
    FlowFabricError,
)
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.model import Failure
from flowfabric.core.execution.status import PublicState
from flowfabric.core.execution.step import Step
from flowfabric.engine.execution.attempts import FencedExecution, Owned
from flowfabric.engine.execution.claims import Claim
from tests.kit.lab import TTL, Lab

Operation = Callable[[Lab, Owned], Awaitable[object]]

RETRYING = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 10}}}
STEP = Step(generation=0, position=0, name="charge", occurrence=0, doc=b"late")

OPERATIONS: dict[str, Operation] = {
    "complete": lambda lab, owned: lab.engine.attempts.complete(owned, b"late"),
    "fail": lambda lab, owned: lab.engine.attempts.fail(owned, Failure("late")),
    "delay": lambda lab, owned: lab.engine.attempts.delay(owned, Millis(lab.clock.now() + 1000)),
    "hand_back": lambda lab, owned: lab.engine.attempts.hand_back(owned),
    "cancel": lambda lab, owned: lab.engine.attempts.cancel(owned, "late"),
    "renew": lambda lab, owned: lab.engine.attempts.renew(owned, TTL),
    "progress": lambda lab, owned: lab.engine.attempts.progress(owned, 99, "late"),
    "record_step": lambda lab, owned: lab.engine.attempts.record_step(owned, STEP),
}
FOR_OPERATORS = {"complete", "fail", "delay", "hand_back", "cancel"}

STATE_AFTER = {
    "complete": PublicState.COMPLETED,
    "fail": PublicState.DELAYED,
    "delay": PublicState.DELAYED,
    "hand_back": PublicState.WAITING,
    "cancel": PublicState.CANCELLED,
    "renew": PublicState.ACTIVE,
    "progress": PublicState.ACTIVE,
    "record_step": PublicState.ACTIVE,
}
"""What becomes of an execution with retries left."""

FORMS: dict[str, Callable[[Lab, Claim], Owned]] = {
    "claim": lambda lab, claim: claim,
    "handle": lambda lab, claim: lab.engine.attempts.seal(claim),
    "fence": lambda lab, claim: FencedExecution(claim.id, claim.owner),
}

every_operation = pytest.mark.parametrize("name", OPERATIONS)
every_form = pytest.mark.parametrize("form", FORMS)


async def everything(lab: Lab, id: str) -> tuple[Any, ...]:
    """All that can be seen of an execution."""
    views, key = lab.engine.views, ExecutionId(id)
    if await views.info(id) is None:
        return (await lab.events(id),)
    steps = await lab.engine.attempts.steps(key.uuid, 0)
    return (
        await views.describe(id),
        await views.result(id),
        await views.attempts(id),
        await lab.events(id),
        steps,
    )


async def refuse_all(
    lab: Lab, owned: Owned, error: type[FlowFabricError], *, besides: Iterable[str] = ()
) -> None:
    """Every operation is refused with exactly this error."""
    for name in OPERATIONS.keys() - set(besides):
        with pytest.raises(FlowFabricError) as refusal:
            await OPERATIONS[name](lab, owned)
        assert refusal.type is error, name
