"""Waiting for the outside world: waitpoints and suspending."""

from contextlib import suppress
from hashlib import blake2b
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, structs

from flowfabric.core.base.errors import Invalid, WaitpointExists
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.lease import Owner
from flowfabric.core.wait.condition.model import Condition, keys_of
from flowfabric.core.wait.model import ResumePolicy
from flowfabric.core.wait.request import (
    Binding,
    Suspend,
    Wait,
    WaitpointUse,
)
from flowfabric.core.wait.suspend import AlreadyMet
from flowfabric.engine.wait.suspensions import Ticket
from flowfabric.server.http.wire import read_uuid_text
from flowfabric.server.worker.work.answers import RunSuspended, WaitpointMade
from flowfabric.server.worker.work.bodies import Fenced, MakeWaitpoint, SuspendRun
from flowfabric.server.worker.work.conditions import (
    reason_code,
    timeout_behaviour,
    wanted_condition,
)
from flowfabric.server.worker.work.described import describe_signal
from flowfabric.server.worker.work.lease import PresentedLease

_NOT_SAID = frozenset({*Fenced.__struct_fields__, "execution_id"})
"""What a repeat of a request may say differently."""


async def make_waitpoint(lease: PresentedLease, data: MakeWaitpoint) -> WaitpointMade:
    suspensions = lease.engine.suspensions
    own = _id_for(_owner(lease), "waitpoint", data.waitpoint_key)
    given = data.waitpoint_id
    id = own if given is None else read_uuid_text(given, "waitpoint_id")
    span = None if data.expires_in_ms is None else Millis(data.expires_in_ms)
    made = None
    with suppress(WaitpointExists):
        made = await suspensions.create_waitpoint(
            lease.owned, data.waitpoint_key, expires_in=span, id=id
        )
    if made is not None:
        (ticket,) = await suspensions.tickets((made,))
        return _shown(ticket)
    token = await suspensions.token(lease.id, id)
    if token is None:
        raise WaitpointExists(f"waitpoint {id} belongs to another run, or was used and is closed")
    if await _key_of(lease, id) != data.waitpoint_key:
        raise WaitpointExists(f"waitpoint {id} was made with another key")
    return WaitpointMade(str(id), data.waitpoint_key, token.reveal())


async def _key_of(lease: PresentedLease, id: UUID) -> str | None:
    """The key of an open waitpoint of the run; None if it has no such one."""
    before = UUID(int=id.int - 1) if id.int else None
    found = await lease.engine.suspensions.waitpoints(lease.id, after=before, limit=1)
    return next((each.key for each in found if each.id == id), None)


async def suspend(lease: PresentedLease, data: SuspendRun) -> RunSuspended:
    suspensions = lease.engine.suspensions
    request = _request(lease, data)
    answer = await suspensions.suspend(lease.owned, request)
    shown = [_shown(ticket) for ticket in await suspensions.tickets(answer.waitpoints)]
    if isinstance(answer, AlreadyMet):
        signals = await suspensions.observe(lease.owned)
        met = [describe_signal(signal) for signal in signals]
        return RunSuspended("already_satisfied", str(answer.suspension), shown, signals=met)
    lease.forget()
    handle = suspensions.handle(lease.owned, answer)
    return RunSuspended("suspended", str(answer.suspension), shown, handle)


def _request(lease: PresentedLease, data: SuspendRun) -> Suspend:
    given = data.suspension_id
    members = structs.asdict(data).items()
    said = {k: v for k, v in members if k not in _NOT_SAID and v is not UNSET}
    id = (
        _id_for(_owner(lease), "suspension", msgspec.json.encode(said).decode())
        if given is None
        else read_uuid_text(given, "suspension_id")
    )
    key = data.waitpoint_key or data.signal or f"wpk:{id}"
    condition = wanted_condition(data, key)
    wait = Wait(
        condition=condition,
        bindings=_bindings(data, condition, uuid5(lease.id.uuid, str(id)), key),
        timeout_at=_timeout(lease, data),
        behaviour=timeout_behaviour(data),
        policy=_policy(data),
    )
    return Suspend(
        id=id,
        waits=(wait,),
        reason=reason_code(data.reason_code),
        idempotency_key=data.idempotency_key,
    )


def _bindings(data: SuspendRun, condition: Condition, id: UUID, key: str) -> tuple[Binding, ...]:
    """A waitpoint for each key of the condition: the one that was made before comes first."""
    keys = keys_of(condition) or (key,)
    made: tuple[Binding, ...] = ()
    if data.waitpoint_id is not None:
        if data.waitpoint_key is None:
            raise Invalid("a waitpoint_id needs the waitpoint_key it was made with")
        waitpoint = read_uuid_text(data.waitpoint_id, "waitpoint_id")
        made = (Binding(id=waitpoint, use=WaitpointUse.PENDING),)
        keys = tuple(each for each in keys if each != data.waitpoint_key)
    return (*made, *(Binding(id=uuid5(id, each), key=each) for each in keys))


def _timeout(lease: PresentedLease, data: SuspendRun) -> Millis | None:
    if data.timeout_ms is not None and data.timeout_at is not None:
        raise Invalid("give timeout_ms or timeout_at, not both")
    if data.timeout_ms is not None:
        return Millis(lease.engine.now() + data.timeout_ms)
    return None if data.timeout_at is None else Millis(data.timeout_at)


def _policy(data: SuspendRun) -> ResumePolicy:
    rules = data.resume_policy
    if rules is None:
        return ResumePolicy()
    return ResumePolicy(
        consume_matched_signals=rules.consume_matched_signals,
        retain_signal_buffer_until_closed=rules.retain_signal_buffer_until_closed,
        resume_delay=None if rules.resume_delay_ms is None else Millis(rules.resume_delay_ms),
        close_waitpoint_on_resume=rules.close_waitpoint_on_resume,
    )


def _owner(lease: PresentedLease) -> Owner:
    return lease.engine.attempts.unpack(lease.owned)[1]


def _id_for(owner: Owner, what: str, text: str) -> UUID:
    """The same id for the same words under the same lease, so that a repeat is one."""
    said = f"{what}\n{owner.lease_id}\n{owner.epoch}\n{text}".encode("utf-8", "surrogatepass")
    return UUID(bytes=blake2b(said, digest_size=16).digest(), version=5)


def _shown(ticket: Ticket) -> WaitpointMade:
    token = None if ticket.token is None else ticket.token.reveal()
    return WaitpointMade(str(ticket.id), ticket.key, token)
