"""What the services of the engine share: the context, and the base class of all of them."""

import random
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import force_setattr

from flowfabric.core.base.errors import (
    NotEligible,
    NotFound,
    StoreFull,
    StoreReadOnly,
    Unavailable,
)
from flowfabric.core.base.ids import ANYWHERE, ExecutionId
from flowfabric.core.base.numbers import check_flag, check_whole
from flowfabric.core.base.text import check_namespace, check_tag, check_text
from flowfabric.core.base.time import NO_TIME, Millis, Span, check_span
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.frame import MAX_FRAME
from flowfabric.core.execution.lease import present
from flowfabric.core.execution.model import RANK_STEP, Flags, Snapshot
from flowfabric.core.execution.sweep_filter import SweepFilter
from flowfabric.core.flow.model import Flow
from flowfabric.core.wait.model import Loaded, Needs
from flowfabric.engine.access.audit import Audit
from flowfabric.engine.commit.decide import Decisions, LoadedRule, NeedsOf, Rule
from flowfabric.engine.commit.ids import Ids
from flowfabric.engine.commit.post_commit import PostCommit
from flowfabric.engine.commit.trace import Traces
from flowfabric.engine.commit.watcher import Watcher
from flowfabric.engine.execution.inbox import Inbox
from flowfabric.engine.flow.known import KnownEdges
from flowfabric.engine.limit.known import KnownLimits
from flowfabric.engine.limit.rounds import Rounds
from flowfabric.engine.wait.keys import Ring
from flowfabric.store.contract import Store

P = ParamSpec("P")
T = TypeVar("T")

_WAITPOINTS = int(Flags.WAITPOINTS)  # flags are slow


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How an engine behaves. Every process of a deployment should use the same, apart from
    `sweep_namespace` and `sweep_tag`. Spans are "7d", timedeltas, or whole numbers of milliseconds.
    `flowfabric.Options` is the form for applications, where numbers are seconds.

    `retention` is how long an ended execution is kept; `reclaim_grace` how long a lost one waits
    before another worker may take it. `waitpoint_secret` (64 hex digits) becomes the first key
    that signs waitpoint tokens; without one the engine makes its own when it first needs one,
    unless `make_keys` is False. With `aging` a run that waits that long is worth one more point of
    priority, so that urgent work cannot keep other work waiting for ever; without it priority
    always comes first. `max_frame` is how many bytes a frame of an output stream may have,
    `stream_readers` how many reads and tails of streams one process serves at the same time.
    With `sweep_namespace` and `sweep_tag` (key and value) the sweep of this engine looks after the
    runs of one tenant and leaves all others to the engines that serve them.
    """

    retention: Span = Millis(7 * 86_400_000)
    aging: Span | None = None
    reclaim_grace: Span = NO_TIME
    waitpoint_secret: str | None = None
    make_keys: bool = True
    max_frame: int = MAX_FRAME
    stream_readers: int = 10_000
    sweep_namespace: str | None = None
    sweep_tag: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        # Kept in milliseconds, whichever form was given.
        force_setattr(self, "retention", check_span(self.retention, "retention"))
        force_setattr(self, "reclaim_grace", check_span(self.reclaim_grace, "reclaim_grace"))
        if self.aging is not None:
            force_setattr(self, "aging", check_span(self.aging, "aging", 1))
        self._check()

    def _check(self) -> None:
        """Raises Invalid if a member makes no sense."""
        if self.waitpoint_secret is not None:
            check_text(self.waitpoint_secret, "waitpoint_secret")
        check_flag(self.make_keys, "make_keys")
        check_whole(self.max_frame, "max_frame", 1, 1 << 24)
        check_whole(self.stream_readers, "stream_readers", 1)
        if self.sweep_namespace is not None:
            check_namespace(self.sweep_namespace)
        if self.sweep_tag is not None:
            check_tag(self.sweep_tag)

    @property
    def kept_for(self) -> Millis:
        """`retention` in milliseconds."""
        return check_span(self.retention, "retention")

    @property
    def grace(self) -> Millis:
        """`reclaim_grace` in milliseconds."""
        return check_span(self.reclaim_grace, "reclaim_grace")

    @property
    def rank_step(self) -> int:
        """The time in line, in milliseconds, that weighs as much as one step of priority."""
        return RANK_STEP if self.aging is None else check_span(self.aging, "aging", 1)

    @property
    def swept(self) -> SweepFilter:
        """Whose runs the sweep looks after."""
        return SweepFilter(namespace=self.sweep_namespace, tag=self.sweep_tag)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(retention={self.retention}, aging={self.aging}, "
            f"reclaim_grace={self.reclaim_grace})"
        )


class EngineContext(Struct):
    """One per engine."""

    store: Store
    inbox: Inbox
    decisions: Decisions
    watcher: Watcher[Snapshot]
    flow_watcher: Watcher[Flow]
    post_commit: PostCommit
    ids: Ids
    audit: Audit
    options: EngineOptions
    secret: bytes
    identity: str
    jitter: random.Random
    ring: Ring
    known_limits: KnownLimits
    rounds: Rounds
    known_edges: KnownEdges = field(default_factory=KnownEdges)
    traces: Traces = field(default_factory=Traces)
    stopping: bool = False
    """Whether the engine takes no new work: see `Engine.shutdown_prepare`."""


class Service:
    """The operations of one noun, such as `engine.executions`."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    def _now(self) -> Millis:
        return self._context.store.clock.now()

    def _fresh(self) -> UUID:
        return self._context.ids.fresh(self._now())

    def _first_version(self, bits: int = 52) -> int:
        """A version that no earlier record of the same key had, from the random bits of a new id:
        a decision about one that was deleted does not fit one that was made in its place."""
        return max(1, self._fresh().int & ((1 << bits) - 1))

    def _accept(self) -> None:
        """Refuses new work if the engine will stop."""
        if self._context.stopping:
            raise Unavailable("the engine is stopping; ask another one")

    def _jitter(self) -> float:
        return self._context.jitter.random()

    async def _load(self, id: str) -> Snapshot | None:
        """The execution, None if there is none of that very id (partition included)."""
        key = ExecutionId(id)
        return exactly(await self._context.inbox.find(key.uuid), key)

    async def _present(self, id: str) -> Snapshot:
        """The execution; NotFound if there is none."""
        return present(await self._load(id), id)

    async def _load_settled(self, id: str) -> Snapshot | None:
        """The same after a look at its quotas, if it has just come to wait for them."""
        seen = self._context.store.hints.count
        snapshot = await self._load(id)
        if snapshot is None or not await self._context.rounds.settle_run(snapshot, seen):
            return snapshot
        return await self._load(id)

    async def _let_in(self) -> None:
        """Before many executions are read: admits the inbox, so that those the application's own
        transactions have submitted are shown as well. A read-only store shows the rest."""
        with suppress(StoreReadOnly, StoreFull):
            await self._context.inbox.admit()

    async def _settle(self, quotas: Collection[str] | None = None) -> None:
        """The same, and a moment for those that are being admitted through these quotas, or any."""
        await self._let_in()
        await self._context.rounds.settle(self._context.store.hints.count, quotas)

    def _decide(
        self,
        id: str,
        rule: Callable[Concatenate[Snapshot | None, Millis, P], Change[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[T]:
        """What the rule answers for an execution, given these arguments, once it is durable."""
        return self._decide_on(None, id, lambda snapshot, now: rule(snapshot, now, *args, **kwargs))

    async def _decide_settled(
        self,
        id: str,
        rule: Callable[Concatenate[Snapshot | None, Millis, P], Change[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """As `_decide`, for a rule that wants a run which waits for a worker: if it may be admitted
        through its quotas just now, the rule is asked again."""
        seen = self._context.store.hints.count
        try:
            return await self._decide(id, rule, *args, **kwargs)
        except NotEligible:
            if not await self._context.rounds.settle(seen):
                raise
        return await self._decide(id, rule, *args, **kwargs)

    def _decide_on(self, held: Snapshot | None, id: str, rule: Rule[T]) -> Awaitable[T]:
        """The same, on a value the caller already has: the first round needs no load."""
        key = ExecutionId(id)
        return self._context.decisions.decide(key.uuid, partial(_decided, key, rule), held)

    def _decide_loaded(
        self,
        id: str,
        needs: NeedsOf,
        rule: Callable[Concatenate[Snapshot | None, Millis, Loaded, P], Change[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[T]:
        """As `_decide`, for a rule that needs more than the execution itself."""
        return self._decide_loaded_on(
            None, id, needs, lambda found, now, loaded: rule(found, now, loaded, *args, **kwargs)
        )

    def _decide_loaded_on(
        self,
        held: Snapshot | None,
        id: str,
        needs: NeedsOf,
        rule: LoadedRule[T],
        loaded: Loaded | None = None,
        unique: tuple[UUID, ...] = (),
    ) -> Awaitable[T]:
        """The same, on a value the caller already has, and perhaps on what the rule needs beside
        it: the first round does not load them. `unique` are ids that no waitpoint of another
        execution may have."""
        key = ExecutionId(id)
        of_this_id = partial(_decided_loaded, key, rule)
        needed = partial(_needed, key, needs, unique)
        return self._context.decisions.decide_loaded(key.uuid, of_this_id, needed, held, loaded)


# Functions of the module, because one that is made inside a call has its annotations made as well.


def _decided(id: ExecutionId, rule: Rule[T], snapshot: Snapshot | None, now: Millis) -> Change[T]:
    try:
        return rule(exactly(snapshot, id), now)
    except NotFound as error:
        raise _naming(error, id) from None


def _decided_loaded(
    id: ExecutionId,
    rule: LoadedRule[T],
    snapshot: Snapshot | None,
    now: Millis,
    loaded: Loaded,
) -> Change[T]:
    try:
        return rule(exactly(snapshot, id), now, loaded)
    except NotFound as error:
        raise _naming(error, id) from None


def _naming(error: NotFound, id: ExecutionId) -> NotFound:
    """The same error; a run that was not found gets its id, which rules do not know."""
    if error.entity != "execution" or error.key:
        return error
    return NotFound("execution", id.uuid if id.partition_index == ANYWHERE else id)


def _needed(
    id: ExecutionId, needs: NeedsOf, unique: tuple[UUID, ...], snapshot: Snapshot | None
) -> Needs | None:
    """Without the flag there is nothing of its own to load."""
    found = exactly(snapshot, id)
    if found and int(found.head.flags) & _WAITPOINTS:
        return needs(found)
    return Needs(found.execution.uuid, unique=unique) if found and unique else None


def exactly(snapshot: Snapshot | None, id: ExecutionId) -> Snapshot | None:
    """An id with the right uuid in another partition names nothing."""
    if snapshot is None or id.partition_index == ANYWHERE:
        return snapshot
    execution = snapshot.execution
    same = execution.uuid == id.uuid and execution.partition == id.partition_index
    return snapshot if same else None
