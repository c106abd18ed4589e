"""Operations of the engine for clients of other processes: the server's side of `remote`.

`Operations.answer` takes the body of a request and returns that of its reply; `Operations.hints`
is a stream that never ends. Both know nothing of the web framework around them.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.access.token import AccessScope, Identity
from flowfabric.core.base.errors import FlowFabricError, Forbidden, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import Active, Snapshot
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import FencedExecution
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.wait.suspensions import MadeWaitpoint
from flowfabric.remote.operations import Operation
from flowfabric.remote.wire import (
    LONGEST_WAIT,
    QUIET,
    CallAnswer,
    CallReply,
    CallRequest,
    Done,
    Failed,
    HeldClaim,
    RemoteCall,
    StillOpen,
    Travel,
    read_request,
    travel_of,
    write_reply,
)
from flowfabric.server.remote.tenants import Admission, Tenants
from flowfabric.server.worker.bounded_claims import BoundedClaims

log = logging.getLogger("flowfabric.server")

CallKey = tuple[str, UUID]
"""Who calls, and the id that the caller has given the call: no caller gets another's answer."""

MAX_HELD = 20_000
MAX_ONCE = 10_000
TOGETHER = 0.005
"""Seconds in which what ends at about the same time is answered together."""
HINTS_APART = 0.005
"""Seconds between two hints of one stream."""


def check_listener(caller: Identity) -> None:
    """Hints say nothing about runs, but they are for callers that may look at some."""
    if not (caller.allows(AccessScope.READ) or caller.allows(AccessScope.WORK)):
        raise Forbidden("the token has no scope read or work")


class Operations:
    """Answers calls of the engine's operations; one per engine. When the server is `draining`, what
    waits stays open: the client asks another server."""

    def __init__(self, engine: Engine, draining: asyncio.Event | None = None) -> None:
        self._engine = engine
        self._draining = asyncio.Event() if draining is None else draining
        self._tenants = Tenants(engine)
        self._held = LoadedClaims(engine)
        self._once = AnsweredOnce()
        self._claiming = UnderWay()
        self._claims = BoundedClaims()

    async def answer(self, caller: Identity, body: bytes) -> bytes:
        """The reply to a request. A call that fails is answered with its error; only a body that is
        no request raises (Invalid)."""
        request = read_request(body)
        answers = await self._answers(caller, request)
        store = self._engine.store
        return write_reply(
            CallReply(
                answers=answers,
                now=self._engine.now(),
                suspects=store.suspects_seen,
                lanes=store.lanes_seen,
            )
        )

    async def hints(self, caller: Identity) -> AsyncIterator[bytes]:
        """One byte for each hint, which says what it is about (`store.hints.Topic`); zero when
        there was none for a while. Raises Forbidden before the first."""
        check_listener(caller)
        hints = self._engine.hints
        seen = hints.count
        while True:
            await hints.wait(QUIET, seen)
            count = hints.count  # before it is asked what there was: others send from threads
            topics, seen = hints.since(seen), count
            yield bytes([topics & 0xFF])
            await asyncio.sleep(HINTS_APART)

    # -- calls

    async def _answers(self, caller: Identity, request: CallRequest) -> list[CallAnswer]:
        tasks = [
            asyncio.ensure_future(self._call(caller, call, tried=request.tried))
            for call in request.calls
        ]
        if not tasks:
            return []
        try:
            if request.patience is None:
                return await asyncio.gather(*tasks)
            seconds = min(max(0.0, request.patience), LONGEST_WAIT)
            await self._first_of(tasks, seconds)
            return [task.result() if task.done() else StillOpen() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()  # no caller waits for the others

    async def _first_of(self, tasks: list[asyncio.Task[CallAnswer]], seconds: float) -> None:
        """Returns when one of them is done, and those that end at about the same time; when they
        have waited for so long, or the server drains."""
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait(
                [*tasks, draining], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if open := [task for task in tasks if not task.done()]:
                await asyncio.wait(open, timeout=TOGETHER)
        finally:
            draining.cancel()

    async def _call(self, caller: Identity, call: RemoteCall, *, tried: bool) -> CallAnswer:
        admission = Admission(self._tenants, self._engine, caller)
        try:
            travel = travel_of(call.name)
            arguments = await admission.admit(
                travel.operation, travel.decode_arguments(call.arguments)
            )
            return Done(await self._executed(call, travel, arguments, admission, tried=tried))
        except FlowFabricError as error:
            return Failed(admission.restore(error))
        except TimeoutError as error:
            return Failed(error)
        except Exception:
            log.exception("%s failed for %s", call.name, caller.name)
            return Failed(FlowFabricError(f"{call.name} failed in the server; its log says why"))

    async def _executed(
        self,
        call: RemoteCall,
        travel: Travel,
        arguments: dict[str, Any],
        admission: Admission,
        *,
        tried: bool,
    ) -> Any:
        """The answer in plain data."""

        async def execute() -> Any:
            answer = await self._execute(travel, arguments, tried=tried)
            return travel.answer.encode(await admission.answer(answer))

        if travel.operation.name == "claims.claim":
            return await self._claiming.answer((admission.who, call.id), execute)
        if not travel.operation.is_once(arguments):
            return await execute()
        return await self._once.answer((admission.who, call.id), execute, tried=tried)

    async def _execute(self, travel: Travel, arguments: dict[str, Any], *, tried: bool) -> Any:
        operation = travel.operation
        if tried and operation.name == "claims.claim" and (found := await self._taken(arguments)):
            return found
        held = [each for each in arguments.values() if isinstance(each, HeldClaim)]
        await self._resolve(travel, arguments)
        answer = await self._method(operation)(**arguments)
        self._held.note(answer)
        if operation.name in _ENDS:
            for each in held:
                self._held.drop(each)
        return answer

    def _method(self, operation: Operation) -> Callable[..., Awaitable[Any]]:
        service: Any = self._engine
        if operation.name == "claims.claim":
            return partial(self._claims.claim, service)
        if operation.service != "engine":
            service = getattr(service, operation.service)
        method: Callable[..., Awaitable[Any]] = getattr(service, operation.method)
        return method

    async def _resolve(self, travel: Travel, arguments: dict[str, Any]) -> None:
        """Puts the engine's own values in the place of what names them."""
        types = travel.parameters.types
        for name, value in list(arguments.items()):
            if isinstance(value, HeldClaim):
                arguments[name] = await self._held.claim(value, types[name])
                if travel.operation.name == "attempts.renew" and arguments["ttl"] is None:
                    arguments["ttl"] = value.ttl  # also if only the fence is left of the claim
            elif types.get(name) is Snapshot:
                arguments[name] = await self._loaded(value)

    async def _taken(self, arguments: dict[str, Any]) -> list[Claim]:
        """What an earlier try of a claim has taken."""
        wanted = {name: arguments[name] for name in ("worker", "id", "limit", "ttl")}
        found = await self._engine.claims.taken(**wanted)
        self._held.note(found)
        return found

    async def _loaded(self, id: ExecutionId) -> Snapshot:
        found = await self._engine.views.load([id.uuid])
        return present(found.get(id.uuid), id)


_ENDS = {
    "attempts.block_by_code",
    "attempts.cancel",
    "attempts.complete",
    "attempts.delay",
    "attempts.fail",
    "attempts.finish_cleanup",
    "attempts.hand_back",
    "attempts.return_untried",
    "attempts.time_out",
    "attempts.wait_children",
    "suspensions.suspend",
}
"""What gives the lease up when it succeeds, or nearly always: then its claim is not kept."""


class LoadedClaims:
    """The claims that workers hold through this server, so that what they report needs no load. A
    claim that is not here is loaded: it was made through another server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._claims: OrderedDict[tuple[UUID, UUID], Claim] = OrderedDict()

    def note(self, answer: Any) -> None:
        """Keeps the claims in an answer, without what their handlers were called with."""
        match answer:
            case Claim():
                self._keep(answer)
            case MadeWaitpoint(claim=Claim() as claim):
                self._keep(claim)
            case [Claim(), *_]:
                for each in answer:
                    self._keep(each)
            case _:
                pass

    def drop(self, held: HeldClaim) -> None:
        self._claims.pop((held.id.uuid, held.lease_id), None)

    def _keep(self, claim: Claim) -> None:
        self._claims[claim.uuid, claim.lease.id] = replace(claim, payload=b"")
        if len(self._claims) > MAX_HELD:
            self._claims.popitem(last=False)

    async def claim(self, held: HeldClaim, wanted: Any) -> Claim | FencedExecution:
        """The claim that a worker names. If it does not stand, the engine says so: from the fence
        alone, or by refusing to renew it where the operation needs a claim."""
        key = held.id.uuid, held.lease_id
        known = self._claims.get(key)
        if known is None:
            known = await self._load(held)
        if known is not None and _is_same(known, held):
            return known
        if wanted is not Claim:
            return FencedExecution(held.id, held.owner)
        await self._engine.claims.renew_as(held.id, held.owner, held.ttl, record=False)
        raise Unavailable("the lease has just changed; send the call again")

    async def _load(self, held: HeldClaim) -> Claim | None:
        found = (await self._engine.views.load([held.id.uuid])).get(held.id.uuid)
        if found is None or not isinstance(found.state, Active):
            return None
        claim = Claim(found, b"", held.ttl)
        if not _is_same(claim, held):
            return None
        self._keep(claim)
        return claim


def _is_same(claim: Claim, held: HeldClaim) -> bool:
    return (claim.id, claim.lease.id, claim.epoch, claim.attempt_id) == (
        held.id,
        held.lease_id,
        held.epoch,
        held.attempt_id,
    )


class UnderWay:
    """Calls that are executed now: a second try waits for the first one."""

    def __init__(self) -> None:
        self._calls: dict[CallKey, asyncio.Future[Any]] = {}

    async def answer(self, id: CallKey, execute: Callable[[], Awaitable[Any]]) -> Any:
        call = self._calls.get(id)
        if call is None:
            call = self._calls[id] = asyncio.ensure_future(execute())
            call.add_done_callback(lambda done: self._calls.pop(id, None))
            call.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(call)


class AnsweredOnce:
    """Calls that must not be executed twice, with their answers. A call whose answer was lost is
    answered again from here; if this server does not know it, another one may have executed it."""

    def __init__(self) -> None:
        self._answers: OrderedDict[CallKey, asyncio.Future[Any]] = OrderedDict()

    async def answer(
        self, id: CallKey, execute: Callable[[], Awaitable[Any]], *, tried: bool
    ) -> Any:
        known = self._answers.get(id)
        if known is None:
            if tried:
                raise Unavailable("the answer was lost, and whether it was done is not known")
            known = self._answers[id] = asyncio.ensure_future(execute())
            known.add_done_callback(lambda done: done.cancelled() or done.exception())
            if len(self._answers) > MAX_ONCE:
                self._answers.popitem(last=False)
        return await asyncio.shield(known)
