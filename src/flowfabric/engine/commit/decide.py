"""Load, decide, apply: the general way an execution changes.

Calls for many executions share one load and one apply. Calls for the same execution are decided
one after the other, each on the previous result, and written as one change. What lost against a
rival is loaded and decided again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar
from uuid import UUID

from msgspec import Struct, field
from msgspec.structs import replace

from flowfabric.core.base.errors import (
    Corruption,
    FlowFabricError,
    Invalid,
    Locked,
    RetryExhausted,
)
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change, fold
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.wait.model import Loaded, Needs
from flowfabric.engine.access.actor import attribute, current_actor, detached
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.post_commit import PostCommit
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.engine.execution.inbox import Inbox
from flowfabric.store.contract import Store
from flowfabric.store.readable import load_each

T = TypeVar("T")
Rule = Callable[[Snapshot | None, Millis], Change[T]]
LoadedRule = Callable[[Snapshot | None, Millis, Loaded], Change[T]]
NeedsOf = Callable[[Snapshot | None], Needs | None]

_NOTHING = Loaded({}, {}, [])
"""For a rule that is the only one of its execution: none follows that must know what it writes."""


class Decision(Struct):
    """A rule waiting to be decided. `held` is a value the caller already has: the first round
    decides on it without a load. With `needs` the rule is given more than the execution itself;
    `loaded` is just that, seen at the same moment as `held`: the first round does not load it. `by`
    is who asked for it, if that is known: its events carry the name."""

    uuid: UUID
    rule: Rule[Any] | LoadedRule[Any]
    held: Snapshot | None = None
    needs: NeedsOf | None = None
    loaded: Loaded | None = None
    outcome: Any = None
    by: str | None = field(default_factory=current_actor)

    def needs_of(self, snapshot: Snapshot | None) -> Needs | None:
        try:
            return None if self.needs is None else self.needs(snapshot)
        except Exception:  # the rule itself will fail by the same, for its caller alone
            return None

    def decide(self, snapshot: Snapshot | None, now: Millis, loaded: Loaded) -> Change[Any]:
        rule: Callable[..., Change[Any]] = self.rule
        change = rule(snapshot, now) if self.needs is None else rule(snapshot, now, loaded)
        return change if self.by is None else attribute(change, self.by)


class Decisions:
    def __init__(self, store: Store, inbox: Inbox, post_commit: PostCommit) -> None:
        self._store = store
        self._inbox = inbox
        self._post_commit = post_commit
        self._batcher: Batcher[Decision, Any] = Batcher("decide", self._flush)
        self._pages: set[asyncio.Task[list[Any]]] = set()

    def decide(self, uuid: UUID, rule: Rule[T], held: Snapshot | None = None) -> Awaitable[T]:
        """What the rule answers, once its change is durable."""
        return self._batcher.put(Decision(uuid, rule, held))

    def decide_loaded(
        self,
        uuid: UUID,
        rule: LoadedRule[T],
        needs: NeedsOf,
        held: Snapshot | None = None,
        loaded: Loaded | None = None,
    ) -> Awaitable[T]:
        """The same for a rule that needs more than the execution itself."""
        return self._batcher.put(Decision(uuid, rule, held, needs, loaded))

    async def decide_all(self, decisions: list[Decision]) -> list[Any]:
        """Many rules at once; an answer may be an exception."""
        futures = [self._batcher.put(decision) for decision in decisions]
        return await _answers(futures)

    async def decide_page(self, decisions: list[Decision]) -> list[Any]:
        """The same for a page that fills a batch by itself: it is written beside the batch under
        way. A caller that is cancelled stops no write: what follows a commit would be lost."""
        writing = asyncio.create_task(self._flush(decisions), context=detached())
        self._pages.add(writing)
        writing.add_done_callback(self._pages.discard)
        try:
            return await asyncio.shield(writing)
        except (Invalid, Locked):  # one of them cannot be written: the batcher finds out which
            return await self.decide_all(decisions)

    async def drain(self) -> None:
        while self._pages:
            await asyncio.wait(self._pages)
        await self._batcher.drain()

    async def _flush(self, decisions: list[Decision]) -> list[Any]:
        open_groups = _by_execution(decisions)

        async def round(number: int) -> Literal[RaceLost.RACE_LOST] | None:
            nonlocal open_groups
            open_groups = await self._round(open_groups, first=number == 0)
            return RACE_LOST if open_groups else None

        try:
            await retry(round, "the run")
        except RetryExhausted as error:
            for group in open_groups.values():
                for decision in group:
                    decision.outcome = error
        return [decision.outcome for decision in decisions]

    async def _round(
        self, groups: dict[UUID, list[Decision]], *, first: bool
    ) -> dict[UUID, list[Decision]]:
        """Decides and applies every group once; returns those that lost against a rival."""
        # Before the load: a lease renewed after it would look expired to a later moment, and a
        # renewal moves no version that `apply` could compare.
        now = self._store.clock.now()
        snapshots = await self._snapshots(groups, first=first)
        loaded = await self._load_needs(groups, snapshots, first=first)
        changes, unsure = {}, {}
        for uuid, group in groups.items():
            change = _decide_group(group, snapshots.get(uuid), now, loaded.get(uuid))
            if first and _refused_unseen(group):
                unsure[uuid] = group
            elif change is not None:
                changes[uuid] = change
        if not changes:
            return unsure
        applied = await self._store.apply(list(changes.values()))
        self._post_commit.applied([changes[uuid] for uuid in applied])
        return unsure | {uuid: groups[uuid] for uuid in changes if uuid not in applied}

    async def _snapshots(
        self, groups: dict[UUID, list[Decision]], *, first: bool
    ) -> dict[UUID, Snapshot | Corruption]:
        held = {}
        if first:
            for uuid, group in groups.items():
                if (known := _held(group)) is not None:
                    held[uuid] = known
        missing = [uuid for uuid in groups if uuid not in held]
        loaded = await load_each(self._inbox.load, missing)
        return {**held, **loaded}

    async def _load_needs(
        self,
        groups: dict[UUID, list[Decision]],
        snapshots: dict[UUID, Snapshot | Corruption],
        *,
        first: bool,
    ) -> dict[UUID, Loaded]:
        """What the rules need beside the executions. Read after the load, so never older than it:
        what was written since moved the version, and then the change is not applied. An execution
        whose needs cannot be read becomes one that cannot be read itself."""
        wanted: list[Needs] = []
        loaded: dict[UUID, Loaded] = {}
        for uuid, group in groups.items():
            found, known = snapshots.get(uuid), group[0].loaded
            if isinstance(found, Corruption) or (len(group) == 1 and group[0].needs is None):
                continue
            if first and known is not None and _held(group) is not None:
                loaded[uuid] = known
                continue
            wanted += [each for decision in group if (each := decision.needs_of(found)) is not None]
        if not wanted:
            return loaded
        for needs, answer in zip(wanted, await self._load_each_need(wanted), strict=True):
            if isinstance(answer, Corruption):
                snapshots[needs.execution] = answer
                continue
            known = loaded.setdefault(needs.execution, answer)
            if known is not answer:
                _absorb(known, answer)
        return loaded

    async def _load_each_need(self, wanted: list[Needs]) -> "list[Loaded | Corruption]":
        """One that cannot be read does not hide the others."""
        try:
            return [*await self._store.load_needs(wanted)]
        except Corruption as error:
            if len(wanted) == 1:
                return [error]
        middle = len(wanted) // 2
        first = await self._load_each_need(wanted[:middle])
        return first + await self._load_each_need(wanted[middle:])


async def _answers(futures: "list[asyncio.Future[Any]]") -> list[Any]:
    """As `asyncio.gather` with exceptions returned, without a callback for each: those of one batch
    are done together, so that all but the first are there already."""
    try:
        for future in futures:
            if not future.done():
                with suppress(Exception):
                    await future
    except BaseException:  # the caller was cancelled: it will look at none of them
        for future in futures:
            if not future.cancel() and not future.cancelled():
                future.exception()  # seen: it must not cause a warning
        raise
    return [future.exception() or future.result() for future in futures]


def _by_execution(decisions: list[Decision]) -> dict[UUID, list[Decision]]:
    groups: dict[UUID, list[Decision]] = {}
    for decision in decisions:
        groups.setdefault(decision.uuid, []).append(decision)
    return groups


def _held(group: list[Decision]) -> Snapshot | None:
    """The value a group is decided on without a load, if there is one: that of its only rule."""
    return group[0].held if len(group) == 1 else None


def _refused_unseen(group: list[Decision]) -> bool:
    """Whether a held value refused: its lease may have been renewed, only a loaded one can tell."""
    return _held(group) is not None and isinstance(group[0].outcome, FlowFabricError)


def _absorb(loaded: Loaded, more: Loaded) -> None:
    loaded.waitpoints.update(more.waitpoints)
    loaded.dedup.update(more.dedup)
    loaded.edges.update(more.edges)
    loaded.taken.update(more.taken)
    known = {row.signal.number for row in loaded.signals}
    loaded.signals += [row for row in more.signals if row.signal.number not in known]
    loaded.signals.sort(key=lambda row: row.signal.number)


def _decide_group(
    group: list[Decision], found: Snapshot | Corruption | None, now: Millis, loaded: Loaded | None
) -> Change[Any] | None:
    """The folded change of all rules of one execution, None when nothing is to be written."""
    if isinstance(found, Corruption):
        for decision in group:
            decision.outcome = found
        return None
    if loaded is None:
        loaded = _NOTHING if len(group) == 1 else Loaded({}, {}, [])
    snapshot: Snapshot | None = found
    folded: Change[Any] | None = None
    for decision in group:
        try:
            change = decision.decide(snapshot, now, loaded)
        except Exception as error:  # a rule that fails fails for its caller alone
            decision.outcome = error
            continue
        decision.outcome = change.outcome
        if change.after is not None:
            snapshot = change.after
            if len(group) > 1:
                _note_written(loaded, change)
            folded = change if folded is None else fold(folded, change)
    return folded


def _note_written(loaded: Loaded, change: Change[Any]) -> None:
    """The next rule of the same execution knows what this one is about to write."""
    loaded.waitpoints.update({waitpoint.id: waitpoint for waitpoint in change.waitpoints})
    loaded.dedup.update({record.key: record for record in change.dedup})
    loaded.signals += change.signals
    for edge, outcome in change.settled:
        if edge in loaded.edges:
            loaded.edges[edge] = replace(loaded.edges[edge], outcome=outcome)
