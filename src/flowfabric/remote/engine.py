"""The engine behind a server, as workers and applications use it.

`RemoteEngine` has the services of `Engine`; a call of one of their operations is a call through the
server (`remote.operations`). What needs no server is done here: new ids, the clock, hints. What
needs the database itself is refused.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from contextvars import Context
from functools import partial
from typing import Any, NoReturn, cast
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import FlowFabricError, Forbidden, Invalid, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.numbers import (
    Seconds,
    check_kind_of,
    check_one_of,
    check_seconds,
    check_whole,
)
from flowfabric.core.base.text import check_tag, check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.event import Family, StoredEvent
from flowfabric.core.execution.event_filter import (
    MAX_CURSOR,
    EventBatch,
    EventFilter,
    check_wanted_events,
)
from flowfabric.core.execution.model import Snapshot, WorkerIdentity
from flowfabric.core.execution.registry import Presence
from flowfabric.core.execution.submission import Duplicate, Submission, Submitted, create
from flowfabric.core.flow.graph import Graph, check_graph
from flowfabric.core.wait.signal import Delivery
from flowfabric.core.wait.token import Token
from flowfabric.engine.commit.background import Background, begun
from flowfabric.engine.commit.batch import MAX_BYTES, MAX_ITEMS
from flowfabric.engine.commit.post_commit import Subscriber
from flowfabric.engine.commit.trace import Traces
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim, Claims, Renewals
from flowfabric.engine.execution.event_tail import POLL_FLOOR
from flowfabric.engine.execution.events import Patience
from flowfabric.engine.execution.follow_ons import FollowOnWorker
from flowfabric.engine.execution.views import Views
from flowfabric.engine.flow.flows import Declared
from flowfabric.engine.service_calls import Capabilities, PrepareApplied, PrepareNoOp
from flowfabric.engine.wait.suspensions import MadeWaitpoint
from flowfabric.remote.client import RemoteClient
from flowfabric.remote.connection import AnswerLost, Connection
from flowfabric.remote.operations import OPERATIONS, SERVICES
from flowfabric.store.clock import Clock
from flowfabric.store.hints import EVERYTHING, Hints, Topic, Topics
from flowfabric.store.queries import Renewal

log = logging.getLogger("flowfabric.remote")

NO_TRANSACTIONS = (
    "a transaction of the application needs a Fabric with the URL of the database, and this one"
    " reaches it through a server"
)
RENEW_WITHIN = 5.0
"""Seconds after which a renewal without an answer is tried again."""
RELEASE_EVERY = 1.0
"""Seconds between two looks for runs that are blocked by code, about."""
RECONNECT_AFTER = 1.0
"""Seconds between two tries to hear hints; every one wakes those that wait for hints."""


class RemoteService:
    """The operations of one service."""

    def __init__(self, name: str, client: RemoteClient) -> None:
        self._name = name
        self._client = client

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        name = f"{self._name}.{method}"
        if name not in OPERATIONS:
            if hasattr(SERVICES[self._name], method):
                raise Invalid(f"{name} needs the database: it cannot be called through a server")
            raise AttributeError(name)
        call = partial(self._call, method)
        self.__dict__[method] = call
        return call

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._call("__call__", *args, **kwargs)

    async def _call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return await self._client.call(f"{self._name}.{method}", args, kwargs)


class RemoteExecutions(RemoteService):
    def __init__(self, client: RemoteClient) -> None:
        super().__init__("executions", client)

    async def submit(
        self, submission: Submission, *, fresh: UUID | None = None
    ) -> Submitted | Duplicate:
        """As `Executions.submit`."""
        checked = check_kind_of(submission, Submission, "submission")
        id = fresh or self._client.fresh()
        answer: Submitted | Duplicate = await self._call(
            "submit", self._client.traces.sent(checked, id), fresh=id
        )
        return answer

    async def submit_many(
        self, submissions: Iterable[Submission], *, fresh: Sequence[UUID] = ()
    ) -> list[Submitted | Duplicate]:
        """As `Executions.submit_many`: all are checked before the first is sent, and many are sent
        in several requests."""
        if not isinstance(submissions, Iterable):
            raise Invalid(f"submissions must be a list, not {type(submissions).__name__}")
        now, given = self._client.clock.now(), list(submissions)
        ids = [*fresh, *(self._client.fresh() for _ in given[len(fresh) :])]
        for submission, id in zip(given, ids, strict=False):
            create(check_kind_of(submission, Submission, "submission"), id, now)
        answers: list[Submitted | Duplicate] = []
        for first, last in _parts(given):
            named = ids[first:last]
            part = list(map(self._client.traces.sent, given[first:last], named))
            answers += await self._call("submit_many", part, fresh=named)
        return answers


def _parts(submissions: Sequence[Submission]) -> Iterator[tuple[int, int]]:
    """The first and the last of each request."""
    first, size = 0, 0
    for at, submission in enumerate(submissions):
        if at > first and (at - first >= MAX_ITEMS or size + len(submission.payload) > MAX_BYTES):
            yield first, at
            first, size = at, 0
        size += len(submission.payload)
    if first < len(submissions):
        yield first, len(submissions)


class RemoteClaims(RemoteService):
    """Claims whose answers are not lost: what a claim took is found by its id."""

    def __init__(self, client: RemoteClient, hints: Hints, hinted_by: Callable[[], Topics]) -> None:
        super().__init__("claims", client)
        self._hints = hints
        self._hinted_by = hinted_by
        self._rescues = Background("handing back a claim", log)
        self._unanswered: dict[UUID, dict[str, Any]] = {}

    async def claim(
        self, worker: WorkerIdentity, *, max_wait: Seconds = 0.0, **options: Any
    ) -> list[Claim]:
        """As `Claims.claim`."""
        self._client.accept()
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + check_seconds(max_wait, "max_wait")
        await self._recover_own()
        while True:
            seen = self._hints.count
            found = await self._take(worker, options)
            left = give_up_at - loop.time()
            if found or left <= 0:
                return found
            await self._hints.wait(min(left, POLL_FLOOR), seen, self._hinted_by())
            if self._client.stopping:
                return []

    async def recover(self) -> None:
        """As `Claims.recover`, for claims of this process and of the server."""
        await self._recover_own()
        with suppress(Forbidden):  # to a caller that is limited to namespaces: leases expire
            await self._call("recover")

    async def _recover_own(self) -> None:
        for id, asked in list(self._unanswered.items()):
            await self._hand_back(await self._call("taken", **asked))
            self._unanswered.pop(id, None)

    async def renew_all(self, owned: Sequence[Claim], *, record: bool = False) -> Renewals:
        return await Claims.renew_all(cast(Claims, self), owned, record=record)

    async def watch(self, owned: Claim, *, alone: bool) -> Claim:
        watched: Claim = await self._call("watch", owned, alone=alone)
        return replace(watched, payload=owned.payload)

    async def drain(self) -> None:
        await self._rescues.drain()

    async def _take(self, worker: WorkerIdentity, options: dict[str, Any]) -> list[Claim]:
        id = options.get("id") or self._client.fresh()
        work = asyncio.ensure_future(self._call("claim", worker, **{**options, "id": id}))
        asked = {"worker": worker, "id": id, "limit": options.get("limit", 1)}
        if "ttl" in options:
            asked["ttl"] = options["ttl"]
        try:
            found: list[Claim] = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._rescues.start(partial(self._hand_back_late, work))
            raise
        except AnswerLost:  # it may have been done
            self._unanswered[id] = asked
            raise
        return found

    async def _hand_back_late(self, work: "asyncio.Future[list[Claim]]") -> None:
        with suppress(FlowFabricError):
            await self._hand_back(await work)

    async def _hand_back(self, claims: Sequence[Claim]) -> None:
        back = [self._client.call("attempts.hand_back", (claim,), {}) for claim in claims]
        for answer in await asyncio.gather(*back, return_exceptions=True):
            if isinstance(answer, Unavailable):
                raise answer


class RemoteSuspensions(RemoteService):
    def __init__(self, client: RemoteClient) -> None:
        super().__init__("suspensions", client)

    def new_id(self) -> UUID:
        return self._client.fresh()

    async def make_waitpoint(self, owned: Any, key: str, **options: Any) -> MadeWaitpoint:
        made: MadeWaitpoint = await self._call("make_waitpoint", owned, key, **options)
        if made.claim is None or not isinstance(owned, Claim):
            return made
        return replace(made, claim=replace(made.claim, payload=owned.payload))

    async def token_again(self, uuid: UUID, waitpoint: UUID, **options: Any) -> Token:
        options.pop("made", None)  # the server reads its own row
        token: Token = await self._call("token_again", uuid, waitpoint, **options)
        return token


class RemoteSignals(RemoteService):
    def __init__(self, client: RemoteClient) -> None:
        super().__init__("signals", client)

    def delivery(self, waitpoint: UUID | None = None) -> Callable[..., Delivery]:
        """A delivery with an id of its own, minted before the first try."""
        return partial(Delivery, id=self._client.fresh(), waitpoint=waitpoint or UUID(int=0))


class RemoteFlows(RemoteService):
    def __init__(self, client: RemoteClient) -> None:
        super().__init__("flows", client)

    async def add(self, flow: UUID, submission: Submission) -> Any:
        """With an id, so that a repeat finds the first one."""
        checked = check_kind_of(submission, Submission, "submission")
        if checked.id is None and isinstance(flow, UUID):
            checked = replace(checked, id=ExecutionId.member(flow, self._client.fresh()))
        return await self._call("add", flow, self._client.traces.sent(checked))

    async def declare(self, kind: str, graph: Graph, **options: Any) -> Declared:
        """As `Flows.declare`: the graph is checked before it is sent."""
        send = self._client.traces.sent
        nodes = check_graph(graph).nodes
        sent = (replace(each, submission=send(each.submission)) for each in nodes)
        answer: Declared = await self._call(
            "declare", kind, replace(graph, nodes=tuple(sent)), **options
        )
        return answer


class RemoteEvents(RemoteService):
    def __init__(self, client: RemoteClient, hints: Hints) -> None:
        super().__init__("events", client)
        self._hints = hints

    def subscribe(
        self,
        *,
        after: int | None = None,
        execution: str | None = None,
        namespace: str | None = None,
        family: Family | None = None,
        tag: tuple[str, str] | None = None,
    ) -> AsyncGenerator[StoredEvent, None]:
        """As `Events.subscribe`."""
        _check_filters(after, execution, namespace, family, tag)
        filters = {"execution": execution, "namespace": namespace, "family": family, "tag": tag}
        given = {name: value for name, value in filters.items() if value is not None}
        return self._events(after or 0, self._begin(after), given)

    def follow(
        self, wanted: EventFilter, *, after: int | None = None, limit: int = 100
    ) -> AsyncGenerator[EventBatch, None]:
        """As `Events.follow`."""
        checked = check_wanted_events(wanted)
        if after is not None:
            check_whole(after, "cursor", 0, MAX_CURSOR)
        room = check_whole(limit, "limit", 1)
        options = {"wanted": checked, "limit": room}
        return self._pages("batch", after or 0, self._begin(after), options)

    def _begin(self, after: int | None) -> "asyncio.Future[int] | None":
        """The cursor of now, requested at once: who follows from now on misses nothing that comes
        before the first iteration."""
        return begun(self._call("tail")) if after is None else None

    async def _events(
        self, after: int, begin: "asyncio.Future[int] | None", filters: dict[str, Any]
    ) -> AsyncGenerator[StoredEvent, None]:
        async with aclosing(self._pages("read", after, begin, filters)) as pages:
            async for page in pages:
                for event in page.events:
                    yield event

    async def _pages(
        self,
        operation: str,
        after: int,
        begin: "asyncio.Future[int] | None",
        options: dict[str, Any],
    ) -> AsyncGenerator[Any, None]:
        """What the operation finds after the cursor, as soon as the cursor moves."""
        cursor = after if begin is None else await begin
        while True:
            seen = self._hints.count
            page = await self._read(operation, after=cursor, **options)
            if page.cursor == cursor:
                await self._hints.wait(POLL_FLOOR, seen)
            else:
                cursor = page.cursor
                yield page

    async def _read(self, operation: str, **options: Any) -> Any:
        """A follower outlives a server or store that does not answer for a while. A client that
        was closed refuses the next try."""
        patience = Patience(lambda: False)
        while True:
            try:
                return await self._call(operation, **options)
            except Unavailable as error:
                await patience.wait(error)


def _check_filters(
    after: object, execution: str | None, namespace: object, family: object, tag: object
) -> None:
    """Refuses at once what the first page would refuse."""
    if after is not None:
        check_whole(after, "cursor", 0, MAX_CURSOR)
    if execution is not None:
        ExecutionId(execution)
    if namespace is not None:
        check_text(namespace, "namespace")
    if family is not None:
        check_one_of(family, frozenset(Family), "family")
    if tag is not None:
        check_tag(tag)


class RemoteCodeGate(RemoteService):
    """Releases runs that are blocked by code to the workers of this process, which then claim at
    once, as the sweep of an engine does. The server could not do it for them: workers whose code
    does not fit would claim first, again and again."""

    def __init__(self, client: RemoteClient, hints: Hints) -> None:
        super().__init__("code_gate", client)
        self._hints = hints
        self._workers: dict[WorkerIdentity, asyncio.Task[None]] = {}

    def join(self, worker: WorkerIdentity, presence: Callable[[], Presence]) -> None:
        self._workers[worker] = asyncio.create_task(self._release(presence), context=Context())

    def leave(self, worker: WorkerIdentity) -> None:
        if (task := self._workers.pop(worker, None)) is not None:
            task.cancel()

    async def _release(self, presence: Callable[[], Presence]) -> None:
        while True:
            await asyncio.sleep(RELEASE_EVERY * self._client.jitter.uniform(0.5, 1.5))
            with suppress(FlowFabricError):  # it is tried again
                if await self._call("release_to", presence()):
                    self._hints.wake(Topic.WORK)


class NoSweep:
    """The server sweeps, by itself and all the time."""

    def start(self) -> None:
        """There is nothing to start."""

    async def once(self) -> None:
        """There is nothing to do."""


class RemoteLeases:
    """What a heartbeat renews with, through a server."""

    def __init__(self, client: RemoteClient) -> None:
        self._client = client
        self.claims = cast(Claims, RemoteService("claims", client))
        self.views = cast(Views, RemoteService("views", client))

    @classmethod
    async def open(cls, url: str, token: str | None, clock: Clock | None) -> "RemoteLeases":
        """With connections of its own, for another event loop. It does not try for long: the
        heartbeat does so by itself, and a lease does not last for long."""
        connection = Connection(url, token)
        return cls(RemoteClient(connection, clock, timeout=RENEW_WITHIN, retry_for=0.0))

    @property
    def clock(self) -> Clock:
        return self._client.clock

    async def renew(self, renewals: Sequence[Renewal], now: Millis) -> dict[UUID, Millis]:
        return await self.claims.extend(renewals)

    async def load(self, uuids: Sequence[UUID]) -> dict[UUID, Snapshot]:
        return await self.views.load(uuids)

    async def close(self) -> None:
        await self._client.close()


class RemoteEngine:
    """One per event loop. Open it with `RemoteEngine.open`, close it with `close`."""

    def __init__(self, client: RemoteClient) -> None:
        self._client = client
        self._hints_task: asyncio.Task[None] | None = None
        self.hints = Hints(listen=self._listen)
        self.leases = RemoteLeases(client)
        self.sweep = NoSweep()
        own: dict[str, RemoteService] = {
            "claims": RemoteClaims(client, self.hints, self.hinted_by),
            "code_gate": RemoteCodeGate(client, self.hints),
            "events": RemoteEvents(client, self.hints),
            "executions": RemoteExecutions(client),
            "flows": RemoteFlows(client),
            "signals": RemoteSignals(client),
            "suspensions": RemoteSuspensions(client),
        }
        for name in SERVICES:
            if name != "engine":
                setattr(self, name, own.get(name) or RemoteService(name, client))

    @classmethod
    async def open(cls, url: str, token: str | None, clock: Clock | None = None) -> "RemoteEngine":
        """The engine behind a server, which must answer."""
        client = RemoteClient(Connection(url, token), clock)
        try:
            await client.greet()
        except BaseException:
            await client.close()
            raise
        return cls(client)

    def as_engine(self) -> Engine:
        """As those see it that call operations of an engine, wherever it is."""
        return cast(Engine, self)

    @property
    def identity(self) -> str:
        """The name of the database, which a transaction of the application would have to be in."""
        raise Invalid(NO_TRANSACTIONS)

    @property
    def clock(self) -> Clock:
        return self._client.clock

    def now(self) -> Millis:
        """The store's clock, as far as it is known here."""
        return self._client.clock.now()

    def jitter(self) -> float:
        """A random number in [0, 1), which spreads retries."""
        return self._client.jitter.random()

    def watched_by(self, subscriber: Subscriber) -> AbstractContextManager[None]:
        """As `Engine.watched_by`, but the commits happen in the server: none is heard of."""
        return nullcontext()

    def followed_by(
        self, follower: FollowOnWorker, worker: WorkerIdentity, **options: Any
    ) -> AbstractContextManager[None]:
        """As `Engine.followed_by`, but the commits happen in the server: no claim follows."""
        return nullcontext()

    def use_traces(self, traces: Traces) -> None:
        """As `Engine.use_traces`."""
        self._client.traces = traces

    @property
    def suspects_seen(self) -> bool:
        return self._client.suspects

    def hinted_by(self) -> Topics:
        if self._client.suspects or self._client.lanes:
            return Topic.WORK | Topic.ENDINGS
        return Topic.WORK

    async def settle(self) -> None:
        await self._client.call("engine.settle", (), {})

    async def ping(self) -> None:
        await self._client.call("engine.ping", (), {})

    async def capabilities(self) -> Capabilities:
        return cast(Capabilities, await self._client.call("engine.capabilities", (), {}))

    async def prepare(self) -> PrepareApplied | PrepareNoOp:
        answer = await self._client.call("engine.prepare", (), {})
        return cast("PrepareApplied | PrepareNoOp", answer)

    async def shutdown_prepare(self, grace: Seconds | None = None) -> bool:
        """As `Engine.shutdown_prepare`, for what this process asks the server for. The server and
        its other clients work on."""
        seconds = None if grace is None else check_seconds(grace, "grace")
        self._client.stopping = True
        self.hints.wake()
        try:
            async with asyncio.timeout(seconds):
                await self._finish()
        except TimeoutError:
            return False
        return True

    async def _finish(self) -> None:
        claims: Any = self.claims  # type: ignore[attr-defined]
        await claims.drain()
        await self._client.drain()

    @property
    def store(self) -> NoReturn:
        raise Invalid("this needs the database, and this Fabric reaches it through a server only")

    async def close(self) -> None:
        task, self._hints_task = self._hints_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._finish()
        await self._client.close()

    # -- hints

    def _listen(self) -> None:
        """Called whenever a task waits for a hint."""
        if self._hints_task is None or self._hints_task.done():
            # It lives longer than the one that waits, and must not keep its context.
            self._hints_task = asyncio.create_task(self._follow_hints(), context=Context())

    async def _follow_hints(self) -> None:
        """Passes the hints of the server on. While none can be heard, everything is looked at once
        a second."""
        warned = False
        while True:
            try:
                async for byte in self._client.connection.hints():
                    warned = False
                    self.hints.wake(_topics(byte))
            except FlowFabricError as error:
                if not warned:
                    warned = True
                    log.warning("no hints from the server; looking every second: %s", error)
            self.hints.wake()
            await asyncio.sleep(RECONNECT_AFTER)


def _topics(byte: int) -> Topics:
    """What a hint is about; everything if it does not say so, or only a newer release knows."""
    return byte & EVERYTHING or EVERYTHING
