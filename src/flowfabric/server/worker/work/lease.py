"""Whose lease an operation is about: the proof of ownership that a request presents."""

from msgspec import Struct

from flowfabric.core.access.token import Identity
from flowfabric.core.base.errors import Invalid, InvalidHandle, NotFound
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.handle import HandleBody
from flowfabric.core.execution.lease import Owner
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import FencedExecution, Owned
from flowfabric.engine.execution.claims import Claim
from flowfabric.server.caller.access import check_run
from flowfabric.server.context import ServerContext
from flowfabric.server.http.wire import read_id, read_uuid_text
from flowfabric.server.worker.work.bodies import Fenced


class PresentedLease(Struct):
    """A lease that a caller says it holds; the engine decides whether it does. `claim` is what this
    process has answered when it was taken, if it still knows."""

    context: ServerContext
    id: ExecutionId
    owned: str | FencedExecution
    handle: HandleBody | None = None
    claim: Claim | None = None
    restricted: bool = False

    @property
    def engine(self) -> Engine:
        return self.context.engine

    @property
    def fastest(self) -> Owned:
        """The claim, for operations that decide on it without a load."""
        return self.owned if self.claim is None else self.claim

    def forget(self) -> None:
        """The lease is given up."""
        if self.handle is not None:
            self.context.held_claims.forget(self.handle)


async def present_lease(
    context: ServerContext, caller: Identity, data: Fenced, id: str | None
) -> PresentedLease:
    """The lease of a request. An execution of another tenant is not found, as one that does not
    exist."""
    asked = None if id is None else read_id(id)
    if data.handle is not None:
        return await _by_handle(context, caller, data, asked)
    if asked is None:
        raise Invalid("give a handle, or an execution_id with lease_id, lease_epoch, attempt_id")
    await check_run(caller, context.engine, asked)
    fenced = FencedExecution(asked, _owner(data))
    return PresentedLease(context, asked, fenced, restricted=not caller.sees_all)


async def _by_handle(
    context: ServerContext, caller: Identity, data: Fenced, asked: ExecutionId | None
) -> PresentedLease:
    handle = data.handle or ""
    if (data.lease_id, data.lease_epoch, data.attempt_id) != (None, None, None):
        raise Invalid("give a handle or lease_id, lease_epoch and attempt_id, not both")
    body = context.engine.attempts.open(handle)
    id = body.execution_id
    if asked is not None and not asked.names(id):
        raise InvalidHandle("the handle belongs to another run")
    claim = context.held_claims.find(body)
    if claim is None:
        await check_run(caller, context.engine, id)
    elif not caller.sees(claim.snapshot.execution.route.namespace):
        raise NotFound("execution", id)
    return PresentedLease(context, id, handle, body, claim, not caller.sees_all)


def _owner(data: Fenced) -> Owner:
    return Owner(
        None if data.lease_id is None else read_uuid_text(data.lease_id, "lease_id"),
        data.lease_epoch,
        None if data.attempt_id is None else read_uuid_text(data.attempt_id, "attempt_id"),
    )
