"""One database, two engines on it, and a witness who hears of every write to limits.

The first engine's process is mortal: it dies at the n-th write, and what it would have done after
its commit is never done. Replies get lost, and the second engine acts between a decision and its
write. Clients repeat what they could not hear the answer of.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid5

from flowfabric.core.base.errors import Corruption, FlowFabricError, RetryExhausted, Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.model import Snapshot
from flowfabric.core.execution.submission import Creation
from flowfabric.core.limit.at_submission import Admissions, waits_at_limit
from flowfabric.core.limit.release import Release
from flowfabric.core.limit.spend import BudgetLedger
from flowfabric.engine.commit import retry
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.claims import Claim
from flowfabric.engine.limit import budget_gate, known_budgets, releases, sweep
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.queries import LinesRequest, OtherVersion, Query, ServedLines
from flowfabric.store.rows.record import LANES, QUOTAS
from tests.machine.benches import Bench
from tests.machine.flow_play import READS, WRITES, Mortal, Still
from tests.machine.limit_model import Book, held_by, running_by_lane
from tests.machine.rivals import Call, LostReplies, Rivals, Wrapper

NAMES = UUID(int=0x11)
MANY = 500
LIMIT_WRITES = frozenset(
    {
        "release",
        "serve",
        "submit_and_admit",
        "post",
        "put_queues",
        "write_progress",
        "renew",
        "take_starts_back",
    }
)
LIMIT_READS = frozenset({"quota_view", "ledger", "crowds", "executions_in"})
MOST_TRIES = 50

Deed = Callable[[Engine], Coroutine[Any, Any, object]]


class MortalStore(Mortal):
    writes = WRITES | LIMIT_WRITES
    reads = READS | LIMIT_READS


class Witness(Wrapper):
    """Tells the model what was really written, in the order of commits."""

    def __init__(self, inner: Store, book: Book) -> None:
        super().__init__(inner)
        self._book = book

    async def on_record(self, name: str, call: Call, *args: Any, **named: Any) -> Any:
        answer = await call(*args, **named)
        match (name, *args):
            case ("put", kind, quota, *_) if kind is QUOTAS and answer:
                self._book.define(quota, held_by(await everything(self.inner)))
            case ("drop", kind, quota, *_) if kind is QUOTAS:
                self._book.drop(quota)
            case ("put", kind, lane, *_) if kind is LANES and answer:
                running = running_by_lane(await everything(self.inner))
                self._book.decide(lane, running[lane.name])
        return answer

    async def release(self, release: Release) -> set[UUID] | None:
        before = await self.inner.load([candidate.uuid for candidate in release.moves])
        through = await self.inner.release(release)
        if through is not None:
            self._book.let_through([before[uuid] for uuid in through], release.at)
        return through

    async def serve(self, ask: LinesRequest) -> ServedLines | OtherVersion | None:
        before = [each for each in await everything(self.inner) if waits_at_limit(each)]
        served = await self.inner.serve(ask)
        after = await self.inner.load([each.execution.uuid for each in before])
        through = [each for each in before if not waits_at_limit(after[each.execution.uuid])]
        assert len(through) == (0 if not isinstance(served, ServedLines) else served.moved)
        self._book.let_through(through, ask.now)
        return served

    async def submit_and_admit(
        self, creations: Sequence[Creation], admissions: Admissions, now: Millis
    ) -> tuple[list[ExecutionId | None], bool]:
        existing, stood = await self.inner.submit_and_admit(creations, admissions, now)
        if stood:
            new = [creation.snapshot for creation in creations]
            through = [each for each in new if each.execution.uuid.int in admissions.admitted]
            self._book.let_through(through, now)
        return existing, stood

    async def apply(self, changes: Sequence[Change[object]]) -> set[UUID]:
        applied = await self.inner.apply(changes)
        for change in changes:
            if change.before and change.after and change.before.execution.uuid in applied:
                self._book.go_back(change.before, change.after)
        return applied

    async def post(self, books: BudgetLedger) -> bool:
        written = await self.inner.post(books)
        if written:
            self._book.post(books)
        return written


@dataclass
class Holding:
    """What a worker believes it owns, and what it has set aside for it."""

    claim: Claim
    reservations: dict[UUID, tuple[str, ...] | None] = field(default_factory=dict)


@dataclass
class LimitPlay:
    bench: Bench
    seed: int
    clock: ManualClock = field(default_factory=ManualClock)
    book: Book = field(default_factory=Book)
    holdings: list[Holding] = field(default_factory=list)
    seen: dict[UUID, Snapshot] = field(default_factory=dict)
    tokens: dict[UUID, Any] = field(default_factory=dict)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    idle: bool = False
    calm: bool = True
    """Whether nobody interferes with this step."""

    async def begin(self) -> None:
        await self.bench.clean()
        self.grave = asyncio.Lock()
        self.jitter = random.Random(self.seed)
        self.plain = await self.bench.open(self.clock)
        await self.plain.migrate()
        self.other = await self._engine(await self._mortal())
        await self.other.keys.seed("k0", "0" * 64)
        await self._start()

    async def end(self) -> None:
        for engine in (self.engine, self.other):
            await engine.close()
        await self.plain.close()

    def fresh(self) -> UUID:
        return uuid5(NAMES, str(next(self.numbers)))

    # -- trouble

    def light(self, fuse: int, *, heard: bool) -> None:
        self.mortal.fuse, self.mortal.heard = fuse, heard

    def lose_a_reply(self) -> None:
        self.lost.armed = True

    def meanwhile(self, deed: Callable[[], Awaitable[None]]) -> None:
        self.rivals.meanwhile = deed

    def tune(self, *, idle: bool) -> None:
        """Whether the first process lets others through after its commits, or leaves everything to
        the sweep."""
        self.idle = idle
        for each in (self.engine._releases, self.engine._budget_gate):
            vars(each).pop("committed", None)
            if idle:
                vars(each)["committed"] = _nobody

    async def calm_down(self) -> None:
        """No more trouble, and nothing under way."""
        self.light(0, heard=True)
        self.lost.armed = False
        self.rivals.meanwhile = None
        if self.mortal.dead:
            await self._bury(self.mortal)
        for _ in range(2):  # what one lets go, the other may let through
            for engine in (self.engine, self.other):
                await _drained(engine)

    # -- asking

    async def ask(self, call: Deed, *, other: bool = False) -> object:
        """Repeats a call until it was answered; a refusal is the answer."""
        for _ in range(MOST_TRIES):
            mortal = self.mortal
            try:
                return await call(self.other if other else self.engine)
            except Unavailable:
                if not other and mortal.dead:
                    await self._bury(mortal)
            except (Corruption, RetryExhausted):
                raise
            except FlowFabricError as refusal:
                return refusal
        raise AssertionError("a store that works is not available")

    async def look(self) -> dict[UUID, Snapshot]:
        """Every execution as it stands."""
        self.seen = {one.execution.uuid: one for one in await everything(self.plain)}
        return self.seen

    # -- processes

    async def _start(self) -> None:
        self.mortal = await self._mortal()
        self.lost = LostReplies(self.mortal.store)
        self.rivals = Rivals(self.lost.store)
        self.engine = await self._engine(self.rivals)
        self.tune(idle=self.idle)

    async def _mortal(self) -> MortalStore:
        witness = Witness(await self.bench.open(self.clock), self.book)
        return MortalStore(witness.store, self.jitter)

    async def _engine(self, store: Wrapper) -> Engine:
        return await Engine.open(store.store, jitter=random.Random(0), migrate=False)

    async def _bury(self, dead: Mortal) -> None:
        async with self.grave:
            if dead is self.mortal:
                self.rivals.meanwhile, self.lost.armed = None, False
                await self.engine.close()
                await self._start()


async def everything(store: Store) -> list[Snapshot]:
    return list((await store.page(Query(limit=MANY))).items)


@contextmanager
def small() -> Iterator[None]:
    """Few at a time, so that few executions fill several rounds; no pauses, nothing remembered."""
    still = Still()
    with (
        patch.object(retry, "random", still),
        patch.object(releases, "MAX_MOVES", 2),
        patch.object(sweep, "PAGE", 2),
        patch.object(budget_gate, "PAGE", 2),
        patch.object(known_budgets, "REFRESH", 0.0),
    ):
        yield


async def _drained(engine: Engine) -> None:
    while engine._budget_gate.busy or engine._releases.busy:
        await engine._budget_gate.drain()
        await engine._releases.drain()


def _nobody(given: object) -> None:
    """Does nothing: the sweep will."""
