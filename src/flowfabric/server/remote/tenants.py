"""Which arguments of an operation a caller may name that is limited to some namespaces.

What belongs to another namespace is answered exactly like what does not exist: an id that the
caller does not see is replaced by one that names nothing before the engine is asked, and put back
into what the engine says about it.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.core.base.errors import FlowFabricError, Forbidden, Invalid, InvalidId, NotFound
from flowfabric.core.base.ids import ExecutionId, new_uuid7
from flowfabric.core.execution.event_filter import EventFilter
from flowfabric.core.execution.lease import Owner
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.submission import Submission
from flowfabric.core.explain.lane import LaneExplanation
from flowfabric.core.explain.reasons import Explanation
from flowfabric.core.flow.graph import Graph
from flowfabric.core.flow.join import Edge
from flowfabric.core.flow.model import Parent
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from flowfabric.remote.operations import Operation, Touches
from flowfabric.remote.wire import HeldClaim
from flowfabric.server.caller.access import check_dead_worker
from flowfabric.server.caller.explanations import without_foreign_runs
from flowfabric.store.queries import Query, Renewal

MAX_KNOWN = 10_000


class Tenants:
    """Knows the namespaces of runs and flows; they never change."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs: dict[UUID, str] = {}
        self._flows: dict[UUID, str] = {}

    async def of_run(self, uuid: UUID) -> str | None:
        if uuid not in self._runs:
            found = await self._engine.views.namespace(ExecutionId.anywhere(uuid))
            if found is None:
                return None
            _remember(self._runs, uuid, found)
        return self._runs[uuid]

    async def of_flow(self, uuid: UUID) -> str | None:
        if uuid not in self._flows:
            found = await self._engine.flow_views.get(uuid)
            if found is None:
                return None
            _remember(self._flows, uuid, found.namespace)
        return self._flows[uuid]


def _remember(known: dict[UUID, str], uuid: UUID, namespace: str) -> None:
    if len(known) >= MAX_KNOWN:
        known.clear()
    known[uuid] = namespace


class Admission:
    """The arguments of one call, as far as its caller may name them."""

    def __init__(self, tenants: Tenants, engine: Engine, caller: Identity) -> None:
        self._tenants = tenants
        self._engine = engine
        self._caller = caller
        self.who = caller.name
        self._stand_ins: dict[UUID, UUID] = {}
        """What names nothing, by the hidden id it stands for."""

    async def admit(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for the engine. Raises Forbidden for a caller without the scope, and for
        one that is limited to namespaces and does not name one of them."""
        if not any(self._caller.allows(AccessScope(scope)) for scope in operation.scopes):
            raise Forbidden(f"the token has no scope {' or '.join(operation.scopes)}")
        given = dict(arguments)
        if self._caller.sees_all or operation.neutral:
            return given
        named = False
        # A namespace last: it may be left out if something else is named.
        for name, touches in sorted(operation.touches, key=lambda each: each[1] is _PLACE):
            value = given[name]
            if value is None and (touches is not _PLACE or named):
                continue
            if touches in _CHECKED:
                await self._check(touches, value, given)
                continue
            given[name] = await self._admitted(touches, value)
            named = True
        if not named:
            raise Forbidden("this concerns all namespaces, and the token is limited to some")
        return given

    def _restored(self, value: Any) -> Any:
        """With the ids that the caller has named."""
        hidden = {stand_in: id for id, stand_in in self._stand_ins.items()}
        match value:
            case UUID():
                return hidden.get(value, value)
            case ExecutionId() if value.uuid in hidden:
                return type(value).of(value.partition_index, hidden[value.uuid])
            case str():
                for stand_in, id in hidden.items():
                    value = value.replace(str(stand_in), str(id))
                return value
            case list():
                return [self._restored(each) for each in value]
            case _:
                return value

    def restore(self, error: FlowFabricError) -> FlowFabricError:
        """An error of the engine about what the caller has named."""
        for name, value in list(vars(error).items()) if self._stand_ins else ():
            setattr(error, name, self._restored(value))
        return error

    async def answer(self, answer: Any) -> Any:
        """An answer as far as the caller sees it, about what the caller has named. Ids alone are
        answered for unknown ones."""
        if self._caller.sees_all:
            return answer
        match answer:
            case [Claim(), *_]:
                # A second try is answered by the name of its worker, which is no secret.
                return [claim for claim in answer if self._sees_claim(claim)]
            case Explanation() | LaneExplanation():
                return await without_foreign_runs(answer, self._sees_run)
            case _:
                return self._restored(answer) if self._stand_ins else answer

    def _sees_claim(self, claim: Claim) -> bool:
        return self._caller.sees(claim.snapshot.execution.route.namespace)

    async def _sees_run(self, uuid: UUID) -> bool:
        namespace = await self._tenants.of_run(uuid)
        return namespace is not None and self._caller.sees(namespace)

    # -- arguments

    async def _admitted(self, touches: Touches, value: Any) -> Any:
        match touches:
            case Touches.RUN:
                return await self._runs(value)
            case Touches.FLOW:
                return await self._flow(value)
            case Touches.OWNED:
                return await self._owned(value)
            case Touches.NAMESPACE:
                return self._place(value)
            case Touches.SUBSCRIPTION | Touches.WEBHOOK:
                return await self._reader(touches, value)
            case Touches.ANSWER | Touches.BUDGETS | Touches.NEW_WEBHOOK | Touches.DEAD_WORKER:
                return value
            case Touches.VALUE:
                return await self._values(value)

    async def _check_id(self, id: ExecutionId | None) -> None:
        """To call a run of another tenant a duplicate would say that the caller has it."""
        if id is not None and await self._run(id.uuid) != id.uuid:
            raise Invalid("this execution_id is taken")

    async def _check(self, touches: Touches, value: Any, given: Mapping[str, Any]) -> None:
        """Names that all namespaces share, beside what says in which one the call is."""
        match touches:
            case Touches.BUDGETS:
                await self._check_attached(given["owned"], value)
            case Touches.DEAD_WORKER:
                place, revoke = self._place(given["namespace"]), given["revoke"]
                await check_dead_worker(self._engine, self._caller, value, place, revoke=revoke)
            case _:
                await self._check_webhook(value)

    async def _reader(self, touches: Touches, name: Any) -> Any:
        """The name of a subscription or webhook that reads what the caller sees."""
        of_events = touches is Touches.SUBSCRIPTION
        readers = self._engine.subscriptions if of_events else self._engine.webhooks
        found = await readers.get(name)
        if found.namespace is None or not self._caller.sees(found.namespace):
            raise NotFound(touches.value, name)
        return name

    async def _check_webhook(self, name: Any) -> None:
        """A caller must not take over the webhook of another tenant by its name."""
        found = await self._engine.webhooks.find(name)
        if found is not None and not (found.namespace and self._caller.sees(found.namespace)):
            raise Invalid(f"the name {name!r} is taken")

    async def _check_attached(self, owned: Any, names: Iterable[Any]) -> None:
        id = self._engine.attempts.open(owned).execution_id if isinstance(owned, str) else owned.id
        attached = await self._engine.budgets.attached_to(id)
        for name in names:
            if name not in attached:
                raise NotFound("budget", name)

    def _place(self, namespace: str | None) -> str:
        if namespace is None:
            raise Forbidden("the token is limited to some namespaces: name one of them")
        if not self._caller.sees(namespace):
            raise Forbidden(f"the token does not cover the namespace {namespace}")
        return namespace

    async def _runs(self, value: Any) -> Any:
        match value:
            case UUID():
                return await self._run(value)
            case str():
                try:
                    id = ExecutionId(value)
                except InvalidId:
                    return value  # the engine says why
                return ExecutionId.of(id.partition_index, await self._run(id.uuid))
            case _:
                return [await self._runs(each) for each in value]

    async def _run(self, uuid: UUID) -> UUID:
        namespace = await self._tenants.of_run(uuid)
        return self._seen(uuid, namespace)

    async def _flow(self, value: Any) -> Any:
        if not isinstance(value, UUID):
            return value  # the engine says why it is none
        return self._seen(value, await self._tenants.of_flow(value))

    def _seen(self, uuid: UUID, namespace: str | None) -> UUID:
        if namespace is None or self._caller.sees(namespace):
            return uuid
        if uuid not in self._stand_ins:
            self._stand_ins[uuid] = new_uuid7(0, int.from_bytes(os.urandom(10), "big"))
        return self._stand_ins[uuid]

    async def _owned(self, owned: Any) -> Any:
        match owned:
            case HeldClaim() | FencedExecution():
                return replace(owned, id=await self._runs(owned.id))
            case str():
                body = self._engine.attempts.open(owned)
                id = body.execution_id
                seen = await self._runs(id)
                if seen == id:
                    return owned
                return FencedExecution(seen, Owner(body.lease_id, body.epoch, body.attempt_id))
            case _:
                return owned

    async def _values(self, values: Any) -> Any:
        if not isinstance(values, tuple | list):
            return await self._value(values)
        if values and isinstance(values[0], Renewal):
            # A lease that the caller does not see is lost for it, as one that does not exist.
            return [replace(each, uuid=await self._run(each.uuid)) for each in values]
        return [await self._value(each) for each in values]

    async def _value(self, value: Any) -> Any:
        match value:
            case Submission():
                self._place(value.namespace)
                await self._check_id(value.id)
                return replace(value, flow=await self._flow(value.flow)) if value.flow else value
            case Presence():
                self._place(None if value.everywhere else value.namespace)
            case Query() | EventFilter():
                self._place(value.namespace)
            case Graph():
                for node in value.nodes:
                    await self._value(node.submission)
            case Parent():
                return replace(value, execution=await self._runs(value.execution))
            case Edge():
                return replace(value, flow=await self._flow(value.flow))
            case _:
                raise Forbidden("the token is limited to some namespaces")
        return value


_PLACE = Touches.NAMESPACE
_CHECKED = frozenset({Touches.BUDGETS, Touches.NEW_WEBHOOK, Touches.DEAD_WORKER})
