"""Calls of the engine's operations through a server.

Calls that many callers make at the same moment share a request, as they share a statement in the
engine. Calls that wait for something to happen share requests of their own. A request without an
answer is sent again with the same ids until the server answers, or for a few seconds.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from itertools import chain
from time import monotonic
from typing import Any, get_args
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, Overloaded, Unavailable
from flowfabric.core.base.numbers import check_seconds
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.ids import Ids
from flowfabric.engine.commit.trace import Traces
from flowfabric.remote.connection import AnswerLost, Connection
from flowfabric.remote.operations import NEW_WORK
from flowfabric.remote.scalars import Misfit, decode_plain, encode_plain
from flowfabric.remote.wire import (
    LONGEST_WAIT,
    MAX_CALLS,
    CallAnswer,
    CallReply,
    CallRequest,
    Done,
    Failed,
    RemoteCall,
    StillOpen,
    Travel,
    read_reply,
    travel_of,
    write_request,
)
from flowfabric.store.clock import Clock, OffsetClock

TIMEOUT = 30.0
"""Seconds after which a request without an answer is given up and sent again."""
RETRY_FOR = 8.0
"""Seconds for which a request is sent again before its callers get Unavailable."""
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
SLOW = 0.25
"""Seconds after which a request is slow: later calls do not wait for it."""
MAX_SLOW = 4
MAX_NUMBER = (1 << 48) - 1
"""Ids that are numbers have the random bits of a UUID."""
MAX_WAITS = 4
"""Requests that wait at the same time; more calls join one of them."""


class Prepared(Struct, frozen=True):
    """A call on its way, with what is needed to send it and to read its answer."""

    travel: Travel
    call: RemoteCall
    weight: int

    @property
    def is_once(self) -> bool:
        return self.travel.operation.is_once(self.call.arguments)


class RemoteClient:
    """Sends calls of one event loop to a server and follows its clock."""

    def __init__(
        self,
        connection: Connection,
        clock: Clock | None = None,
        *,
        timeout: float = TIMEOUT,
        retry_for: float = RETRY_FOR,
    ) -> None:
        self.connection = connection
        self._timeout = timeout
        self._retry_for = retry_for
        self.suspects = True
        self.lanes = False
        self.stopping = False
        """Whether new work is refused: see `RemoteEngine.shutdown_prepare`."""
        self._offset = OffsetClock()
        self.clock: Clock = clock or self._offset
        self._ids = Ids()
        self._folds: dict[str, list[Fold]] = {}
        self._waits = SharedWaits(self._wait)
        self.traces = Traces()
        self.jitter = random.Random()  # noqa: S311 - spreads retries

    def fresh(self) -> UUID:
        """A new id, minted before the first try of what it names."""
        return self._ids.fresh(self.clock.now())

    def accept(self) -> None:
        """Refuses new work if this process will stop."""
        if self.stopping:
            raise Unavailable("the engine is stopping; ask another one")

    async def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the engine behind the server answers."""
        if name in NEW_WORK:
            self.accept()
        travel = travel_of(name)
        try:
            answer = await self._send(self._prepare(travel, travel.encode_arguments(args, kwargs)))
        except Misfit as misfit:
            raise Invalid(misfit.detail) from None
        match answer:
            case Done(plain):
                return travel.answer.decode(plain)
            case Failed(error):
                raise error
            case StillOpen():
                raise Unavailable("the server did not answer the call in time")

    async def greet(self) -> None:
        """Asks the server for its clock and its database."""
        await self._request(CallRequest([]))

    async def drain(self) -> None:
        """Returns when everything that was folded is answered."""
        for fold in list(chain.from_iterable(self._folds.values())):
            await fold.batcher.drain()

    async def close(self) -> None:
        await self.drain()
        self._waits.close()
        await self.connection.close()

    def _prepare(self, travel: Travel, arguments: dict[str, Any]) -> Prepared:
        mints = travel.operation.mints
        if mints and arguments.get(mints) is None:
            arguments[mints] = self._minted(travel, arguments)
        call = RemoteCall(self.fresh(), travel.operation.name, arguments)
        weight = len(encode_plain(arguments)) if travel.operation.folds else 0
        return Prepared(travel, call, weight)

    def _minted(self, travel: Travel, arguments: dict[str, Any]) -> Any:
        name = travel.operation.mints
        many = arguments.get("submissions")
        value: Any = self.fresh() if many is None else [self.fresh() for _ in many]
        if int in get_args(travel.parameters.types[name]):
            value = value.int & MAX_NUMBER
        return travel.arguments[name].encode(value)

    async def _send(self, prepared: Prepared) -> CallAnswer:
        operation = prepared.travel.operation
        if operation.waits:
            return await self._waits.answer(prepared)
        if not operation.folds:
            (answer,) = await self._post([prepared])
            return answer
        return await self._fold(operation.service).batcher.put(prepared)

    def _fold(self, service: str) -> "Fold":
        """Where calls of a service wait for the next request. A request that takes long holds up
        those behind it, but not those that come later."""
        folds = self._folds.setdefault(service, [])
        for fold in folds:
            if not fold.is_slow:
                return fold
        if len(folds) >= MAX_SLOW:
            return min(folds, key=lambda each: each.batcher.waiting)
        folds.append(Fold(service, self._post))
        return folds[-1]

    async def _post(self, batch: list[Prepared]) -> Sequence[CallAnswer]:
        once = any(each.is_once for each in batch)
        reply = await self._request(CallRequest([each.call for each in batch]), once=once)
        return reply.answers

    async def _wait(self, batch: list[Prepared], seconds: float) -> Sequence[CallAnswer]:
        request = CallRequest([each.call for each in batch], patience=seconds)
        return (await self._request(request, waits=True)).answers

    async def _request(
        self, request: CallRequest, *, waits: bool = False, once: bool = False
    ) -> CallReply:
        """The reply to a request, sent again while the server does not answer. Once an answer was
        lost, the request may have been executed, whatever the later tries say."""
        loop = asyncio.get_running_loop()
        give_up_at, pause = loop.time() + self._retry_for, FIRST_PAUSE
        why: Unavailable | Overloaded
        lost: AnswerLost | None = None
        while True:
            try:
                return await self._once(request, waits=waits, once=once)
            except AnswerLost as error:
                request, why, lost = replace(request, tried=True), error, error
            except Overloaded as error:
                why, pause = error, max(pause, error.retry_after)
            except Unavailable as error:
                why = error
            if not why.retryable or loop.time() + pause > give_up_at:
                raise lost or why
            await asyncio.sleep(pause * self.jitter.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _once(self, request: CallRequest, *, waits: bool, once: bool) -> CallReply:
        limit = self._timeout + (request.patience or 0.0)
        sent = OffsetClock.steady()
        data = await self.connection.post(write_request(request), limit, waits=waits, once=once)
        received = OffsetClock.steady()
        reply = read_reply(data)
        self._learn(reply, sent, received, waited=waits)
        return reply

    def _learn(self, reply: CallReply, sent: float, received: float, *, waited: bool) -> None:
        if not waited:  # the moment at which it was answered is not in the middle
            self._offset.sample(sent, received, reply.now / 1000)
        self.suspects, self.lanes = reply.suspects, reply.lanes


def _weight(prepared: Prepared) -> int:
    return prepared.weight


class Fold:
    """Calls of one service that share requests, one request at a time."""

    def __init__(
        self, service: str, post: Callable[[list[Prepared]], Awaitable[Sequence[CallAnswer]]]
    ) -> None:
        self._post = post
        self._since: float | None = None
        self.batcher: Batcher[Prepared, CallAnswer] = Batcher(
            f"remote {service}", self._flush, weight=_weight
        )

    @property
    def is_slow(self) -> bool:
        """Whether its request is under way for long."""
        return self._since is not None and monotonic() - self._since > SLOW

    async def _flush(self, batch: list[Prepared]) -> Sequence[CallAnswer]:
        self._since = monotonic()
        try:
            return await self._post(batch)
        finally:
            self._since = None


def _timeout(prepared: Prepared) -> float | None:
    plain = prepared.call.arguments.get("timeout")
    if plain is None:
        return None
    given = prepared.travel.arguments["timeout"].decode(decode_plain(encode_plain(plain)))
    return check_seconds(given, "timeout")


class _Wait:
    """A call that waits, with the moment at which its caller gives up."""

    def __init__(self, prepared: Prepared, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        self.prepared = prepared
        self.until = None if timeout is None else loop.time() + timeout
        self.future: asyncio.Future[CallAnswer] = loop.create_future()

    def now(self) -> Prepared:
        """The call with the time that is left."""
        if self.until is None:
            return self.prepared
        left = max(0.0, self.until - asyncio.get_running_loop().time())
        call = self.prepared.call
        arguments = {**call.arguments, "timeout": left}
        return replace(self.prepared, call=replace(call, arguments=arguments))


class SharedWaits:
    """Calls that wait, in a few requests however many they are. A request is answered when one of
    its calls is; the others are asked again, together with those that came meanwhile."""

    def __init__(
        self, ask: Callable[[list[Prepared], float], Awaitable[Sequence[CallAnswer]]]
    ) -> None:
        self._ask = ask
        self._open: list[_Wait] = []
        self._requests: dict[asyncio.Task[None], list[_Wait]] = {}
        self._starting = False

    async def answer(self, prepared: Prepared) -> CallAnswer:
        wait = _Wait(prepared, _timeout(prepared))
        self._add([wait])
        try:
            return await wait.future
        finally:
            if wait in self._open:
                self._open.remove(wait)

    def close(self) -> None:
        for wait in [*self._open, *chain.from_iterable(self._requests.values())]:
            if not wait.future.done():
                wait.future.set_exception(Unavailable("the connection to the server was closed"))
        for task in list(self._requests):
            task.cancel()

    def _add(self, waits: list[_Wait]) -> None:
        self._open += waits
        if not self._starting and self._open:
            self._starting = True  # those of the same turn go together
            asyncio.get_running_loop().call_soon(self._start, context=Context())

    def _start(self) -> None:
        self._starting = False
        if len(self._requests) >= MAX_WAITS:
            # The smallest one is asked again with the new ones, so that there are never many.
            smallest = min(self._requests, key=lambda task: len(self._requests[task]))
            self._open += self._requests.pop(smallest)
            smallest.cancel()
        while batch := self._next():
            task = asyncio.ensure_future(self._run(batch))
            self._requests[task] = batch
            task.add_done_callback(lambda done: self._requests.pop(done, None))

    def _next(self) -> list[_Wait]:
        waits = [wait for wait in self._open if not wait.future.done()]
        self._open = waits[MAX_CALLS:]
        return waits[:MAX_CALLS]

    async def _run(self, batch: list[_Wait]) -> None:
        try:
            answers = await self._ask([wait.now() for wait in batch], LONGEST_WAIT)
        except Exception as error:
            for wait in batch:
                if not wait.future.done():
                    wait.future.set_exception(error)
            return
        again = []
        for wait, answer in zip(batch, answers, strict=True):
            if isinstance(answer, StillOpen):
                again.append(wait)
            elif not wait.future.done():
                wait.future.set_result(answer)
        self._add([wait for wait in again if not wait.future.done()])
