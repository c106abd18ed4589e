"""Short words for tests of signals: something that waits, a signal for it, what became of it."""

import itertools
from typing import Any
from uuid import UUID

from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.condition.model import Condition
from flowfabric.core.wait.model import Effect, ReceivedSignal
from flowfabric.core.wait.signal import Accepted, Delivery, DuplicateSignal
from flowfabric.core.wait.token import Token
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.wait.suspensions import Ticket
from tests.kit.lab import Lab
from tests.kit.situations import take
from tests.kit.waits import GO, SuspendAnswer, suspend, wait_on

Answer = Accepted | DuplicateSignal

numbers = itertools.count(1)


def fresh() -> UUID:
    """An id that no other is like."""
    return new_uuid7(Millis(1), next(numbers))


async def waiting(
    lab: Lab, condition: Condition | str = GO, **members: Any
) -> tuple[Claim, SuspendAnswer]:
    """A suspended execution and what it handed out."""
    claim = await take(lab, await lab.submit())
    return claim, await suspend(lab, claim, wait_on(lab, condition, **members))


def delivery_to(at: UUID, name: str = GO, **members: Any) -> Delivery:
    return Delivery(**{"id": fresh(), "waitpoint": at, "name": name, **members})


async def deliver(
    lab: Lab, execution: str, ticket: Ticket, name: str = GO, **members: Any
) -> Answer:
    """Delivers a signal with the token of the ticket."""
    return await deliver_with(ticket.token, lab, execution, ticket.id, name, **members)


async def deliver_with(
    token: Token | str | None,
    lab: Lab,
    execution: str,
    at: UUID,
    name: str = GO,
    **members: Any,
) -> Answer:
    delivery = delivery_to(at, name, **members)
    return await lab.engine.signals.deliver(execution, delivery, token)


async def effect(
    lab: Lab, execution: str, ticket: Ticket, name: str = GO, **members: Any
) -> Effect:
    """What an accepted signal did."""
    return effect_of(await deliver(lab, execution, ticket, name, **members))


def effect_of(answer: object) -> Effect:
    assert isinstance(answer, Accepted), answer
    return answer.effect


async def kept(lab: Lab, execution: str) -> list[ReceivedSignal]:
    """Every signal the execution accepted, in order."""
    return await lab.engine.signals.of(execution, limit=1000)


async def names(lab: Lab, execution: str) -> list[str]:
    return [heard.signal.name for heard in await kept(lab, execution)]
