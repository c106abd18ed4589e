"""Short words for tests of waiting: what to wait for, suspend, signal."""

import itertools
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct

from flowfabric.core.base.ids import new_uuid7
from flowfabric.core.base.time import Millis
from flowfabric.core.wait.condition.model import (
    ByName,
    Condition,
    OperatorOnly,
    Single,
    TimeoutOnly,
    keys_of,
)
from flowfabric.core.wait.request import (
    Binding,
    Suspend,
    Wait,
    WaitpointUse,
)
from flowfabric.core.wait.signal import Accepted, Delivery, DuplicateSignal
from flowfabric.core.wait.suspend import AlreadyMet
from flowfabric.core.wait.token import Token
from flowfabric.engine.execution.attempts import Owned
from flowfabric.engine.wait.suspensions import Ticket
from tests.kit.lab import Lab

GO = "go"
_NUMBERS = itertools.count(1)


def fresh_id(lab: Lab) -> UUID:
    """Ids sort in the order they were asked for."""
    return new_uuid7(lab.clock.now(), next(_NUMBERS))


def named(name: str, key: str = GO) -> Single:
    """A signal of this name at the waitpoint `key`."""
    return Single(key, ByName(name))


def wait_on(lab: Lab, condition: Condition | str = GO, *bindings: Binding, **members: Any) -> Wait:
    """A wait for a condition, or for any signal at the waitpoint of a key. Without bindings every
    key that is named gets a fresh waitpoint."""
    wanted = Single(condition) if isinstance(condition, str) else condition
    keys = keys_of(wanted)
    if isinstance(wanted, OperatorOnly | TimeoutOnly):
        keys = (GO,)
    made = tuple(Binding(id=fresh_id(lab), key=key) for key in keys)
    return Wait(condition=wanted, bindings=bindings or made, **members)


def wait_at(ticket: Ticket, condition: Condition | None = None, **members: Any) -> Wait:
    """A wait at a pending waitpoint, by default for any signal."""
    binding = Binding(id=ticket.id, use=WaitpointUse.PENDING)
    return Wait(condition=condition or Single(ticket.key), bindings=(binding,), **members)


def request(lab: Lab, *waits: Wait, **members: Any) -> Suspend:
    """A request to suspend, with an id of its own unless it is given one."""
    return Suspend(**{"id": fresh_id(lab), "waits": waits or (wait_on(lab),), **members})


class SuspendAnswer(Struct, frozen=True):
    """What an owner in another process gets: whether it was satisfied at once, the tokens to hand
    out, and the handle of the suspended execution."""

    suspension: UUID
    waitpoints: tuple[Ticket, ...]
    satisfied: bool
    handle: str | None = None

    @property
    def primary(self) -> Ticket:
        return self.waitpoints[0]

    @property
    def additional(self) -> tuple[Ticket, ...]:
        return self.waitpoints[1:]


async def suspend(lab: Lab, owned: Owned, *waits: Wait, **members: Any) -> SuspendAnswer:
    """Suspends, by default until any signal comes to the waitpoint `go`."""
    return await suspend_by(lab, owned, request(lab, *waits, **members))


async def suspend_by(lab: Lab, owned: Owned, wanted: Suspend) -> SuspendAnswer:
    """Suspends by this very request, and asks for everything that can be handed out."""
    suspensions = lab.engine.suspensions
    outcome = await suspensions.suspend(owned, wanted)
    tickets = await suspensions.tickets(outcome.waitpoints)
    if isinstance(outcome, AlreadyMet):
        return SuspendAnswer(outcome.suspension, tickets, satisfied=True)
    handle = suspensions.handle(owned, outcome)
    return SuspendAnswer(outcome.suspension, tickets, satisfied=False, handle=handle)


async def create_waitpoint(lab: Lab, owned: Owned, key: str, **options: Any) -> Ticket:
    """A pending waitpoint and its token."""
    made = await lab.engine.suspensions.create_waitpoint(owned, key, **options)
    [ticket] = await lab.engine.suspensions.tickets((made,))
    return ticket


async def signal(
    lab: Lab,
    id: str,
    ticket: Ticket,
    name: str = GO,
    *,
    token: Token | str | None = None,
    **members: Any,
) -> Accepted | DuplicateSignal:
    """Delivers a signal with the token of the ticket, or with another one."""
    delivery = Delivery(**{"id": fresh_id(lab), "waitpoint": ticket.id, "name": name, **members})
    return await lab.engine.signals.deliver(id, delivery, token or ticket.token)


def in_(lab: Lab, millis: int) -> Millis:
    """The moment so many milliseconds from now."""
    return Millis(lab.clock.now() + millis)


def keys(tickets: Sequence[Ticket]) -> list[str]:
    return [ticket.key for ticket in tickets]
