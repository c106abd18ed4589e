"""One database, two engines on it, and the model: every operation is asked of both sides.

The first engine works through stores that make trouble when armed; the second one stands for
another process and is where rivals act.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol
from uuid import UUID, uuid5

from flowfabric.core import lease as core
from flowfabric.core.attempt import RetryScheduled
from flowfabric.core.control import Changed, Replayed
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.execution import Lost, Ready, Snapshot, Worker
from flowfabric.core.grant import Granted, ReclaimCapExceeded
from flowfabric.core.ids import ExecutionId
from flowfabric.core.lease import Renewed, Revoked, Taking
from flowfabric.core.submission import Duplicate, Submission, Submitted
from flowfabric.core.time import Millis
from flowfabric.engine.attempts import Held, Owned
from flowfabric.engine.base import Options
from flowfabric.engine.claims import Claim
from flowfabric.engine.engine import Engine
from flowfabric.store.clock import Clock, ManualClock
from flowfabric.store.contract import EventQuery, Store
from tests.machine.book import Book, ask, claim_order
from tests.machine.deeds import Act, Call, Deed, Renew
from tests.machine.model import Life
from tests.machine.rivals import LostReplies, Rivals
from tests.machine.words import Answer, Answers, Fence, Stage, Wish

NAMES = UUID(int=0xFAB)
RETENTION = 600_000


class Bench(Protocol):
    """Where a play finds its database."""

    async def clean(self) -> None:
        """The database is empty again (or another one)."""

    async def open(self, clock: Clock) -> Store:
        """A store on the database, as one process would open it."""


@dataclass(frozen=True)
class Holding:
    """What a worker believes it owns, whether or not that is still true."""

    claim: Claim
    fence: Fence

    @property
    def uuid(self) -> UUID:
        return self.claim.uuid


@dataclass(frozen=True)
class Demand:
    """One request for work."""

    worker: Worker
    offers: frozenset[str]
    lanes: tuple[str, ...] = ()
    namespace: str | None = None
    kinds: frozenset[str] | None = None
    limit: int = 1
    ttl: int = 30_000


@dataclass
class Play:
    """What one example plays with."""

    bench: Bench
    grace: int = 0
    clock: ManualClock = field(default_factory=ManualClock)
    book: Book = field(default_factory=Book)
    holdings: list[Holding] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    dying: bool = False

    async def begin(self) -> None:
        await self.bench.clean()
        self.plain = await self.bench.open(self.clock)
        self.other = await self._engine(self.plain)
        await self._start()

    async def crash(self) -> None:
        """The first process is gone, with everything it had in memory but its workers' claims."""
        await self.store.close()
        await self._start()

    async def end(self) -> None:
        try:
            await self.engine.close()
        finally:
            await self.other.close()

    async def _start(self) -> None:
        self.store = await self.bench.open(self.clock)
        self.lost = LostReplies(self.store)
        self.rivals = Rivals(self.lost.store)
        self.engine = await self._engine(self.rivals.store)

    async def _engine(self, store: Store) -> Engine:
        options = Options(retention=Millis(RETENTION), reclaim_grace=Millis(self.grace))
        return await Engine.open(store, options=options, chance=random.Random(0))

    @property
    def now(self) -> Millis:
        return self.clock.now()

    @property
    def live(self) -> list[Holding]:
        """The holdings whose worker still owns what it believes to own."""
        return [it for it in self.holdings if self.book.lives[it.uuid].owner == it.fence]

    @property
    def stale(self) -> list[Holding]:
        """The holdings of those who lost what they held, latest first."""
        return [it for it in self.holdings if self.book.lives[it.uuid].owner != it.fence][::-1]

    def would_change(self, uuid: UUID, act: Act) -> bool:
        """Whether the act would change the execution."""
        life = self.book.lives[uuid]
        copy = deepcopy(life)
        ask(copy, lambda: act.model(copy, NAMES, self.now))
        return copy.changes != life.changes

    def owner_of(self, uuid: UUID) -> Holding | None:
        return next((holding for holding in self.live if holding.uuid == uuid), None)

    # -- operations

    async def submit(self, wish: Wish, uuid: UUID | None = None) -> None:
        """Submits a wish under an id of its own, or again under one that is known."""
        key = uuid5(NAMES, f"execution {next(self.numbers)}") if uuid is None else uuid
        id = ExecutionId.solo(wish.lane, key)
        submission, wanted = _submission(wish, id), replace(wish, grace=self.grace)
        await self._compare(
            lambda: self.engine.executions.submit(submission),
            lambda: self.book.submit(id, key, wanted, self.now),
        )

    async def own(
        self, holding: Holding, deed: Deed, form: str = "claim", engine: Engine | None = None
    ) -> None:
        """A worker does something with what it believes to own."""
        asked = engine or self.engine
        uuid, life, calm = holding.uuid, self.book.lives[holding.uuid], self.calm
        before = (await self.plain.load([uuid])).get(uuid)
        answer = await self._compare(
            lambda: deed.call(asked, self._owned(holding, form), life),
            lambda: self._ask(uuid, lambda life: deed.model(life, holding.fence, self.now)),
        )
        if isinstance(deed, Renew) and answer[0] == "Renewed" and calm and before is not None:
            after = (await self.plain.load([uuid]))[uuid]
            assert form != "claim" or after.head == before.head, "a renewal with a new version"
            change = core.renew(before, holding.claim.owner, Millis(deed.ttl), self.now)
            assert change.after is not None
            assert after.state == change.after.state, "the renewed lease differs from the core's"

    async def act(self, uuid: UUID, act: Act, engine: Engine | None = None) -> None:
        """Somebody who owns nothing does something to an execution."""
        asked, life, lease_id = engine or self.engine, self.book.lives[uuid], self.fresh_id()
        await self._compare(
            lambda: act.call(asked, life, lease_id),
            lambda: self._ask(uuid, lambda life: act.model(life, lease_id, self.now)),
        )

    async def claim(self, demand: Demand, engine: Engine | None = None) -> None:
        """Must give exactly the best executions, exactly as the core takes each of them."""
        wanted = self._best(demand)[: demand.limit]
        before = await self.plain.load([life.uuid for life in wanted])
        claims = await _claim(engine or self.engine, demand)
        assert [claim.id for claim in claims] == [life.id for life in wanted], "not the best ones"
        for claim in claims:
            self._took(claim, demand)
        await self._taken_as_core_says(before, claims)

    async def rush(self, demands: Sequence[Demand]) -> None:
        """Several claims at once: nobody gets what another one gets. Some may get too little."""
        allowed = [{life.uuid for life in self._best(demand)} for demand in demands]
        engines = itertools.cycle([self.engine, self.other])
        calls = [_claim(engine, demand) for engine, demand in zip(engines, demands, strict=False)]
        answers = await asyncio.gather(*calls)
        for claims, demand, fit in zip(answers, demands, allowed, strict=True):
            lives = [self.book.lives[claim.uuid] for claim in claims]
            assert lives == sorted(lives, key=claim_order), "claimed out of order"
            assert {life.uuid for life in lives} <= fit, "claimed what the worker cannot run"
            for claim in claims:
                self._took(claim, demand)

    async def find_and_grant(self, demand: Demand, lane: str) -> None:
        """Must grant the best execution of the lane that the worker can run."""
        fit = [
            life
            for life in self._best(replace(demand, lanes=(lane,), kinds=None))
            if life.stage is Stage.WAITING and life.held_until <= self.now
        ]
        granted = await self.engine.grants.find_and_issue(
            demand.worker.id,
            lane=lane,
            capabilities=demand.offers,
            ttl=Millis(demand.ttl),
            namespace=demand.namespace,
        )
        assert (granted.id if granted else None) == (fit[0].id if fit else None), "not the best"
        if fit:
            fit[0].grant(demand.worker.id, demand.offers, demand.ttl, self.now)

    async def race(self, holding: Holding, deed: Deed, act: Act) -> None:
        """An owner and somebody else at once: as if one had come after the other."""
        uuid, life, lease_id = holding.uuid, self.book.lives[holding.uuid], self.fresh_id()
        said = await asyncio.gather(
            _answer(deed.call(self.engine, holding.claim, life)),
            _answer(act.call(self.other, life, lease_id)),
        )
        turns: list[Callable[[Life], Answers]] = [
            lambda life: deed.model(life, holding.fence, self.now),
            lambda life: act.model(life, lease_id, self.now),
        ]
        for order in ((0, 1), (1, 0)):
            copy = deepcopy(life)
            if all(said[turn][0] in ask(copy, partial(turns[turn], copy)) for turn in order):
                self.book.lives[uuid] = copy
                return
        raise AssertionError(f"{deed} and {act} at once: {[answer for answer, _ in said]}")

    async def sweep(self) -> None:
        again = self.lost.armed
        await self.engine.sweep.once()
        if again:
            await self.engine.sweep.once()
        for life in self.book.lives.values():
            life.sweep(self.now)

    async def trim(self) -> None:
        gone = sum(life.trim(self.now, RETENTION) for life in self.book.lives.values())
        try:
            trimmed = await self.engine.sweep.trim()
        except Unavailable:
            assert await self.engine.sweep.trim() == 0
        else:
            assert trimmed == gone

    async def pause(self, lane: str) -> None:
        await self.engine.lanes.pause(lane)
        self.book.paused.add(lane)

    async def resume(self, lane: str) -> None:
        await self.engine.lanes.resume(lane)
        self.book.paused.discard(lane)

    def fresh_id(self) -> UUID:
        return uuid5(NAMES, f"lease {next(self.numbers)}")

    # -- both sides compared

    @property
    def calm(self) -> bool:
        return self.rivals.rival is None and not self.lost.armed

    async def _compare(self, call: Callable[[], Call], model: Callable[[], Answers]) -> Answer:
        """The engine's answer, which must be one the model allows. A call whose reply was lost has
        had its effect; it is repeated, unless its process died meanwhile."""
        armed = self.lost.armed
        try:
            answer, outcome = await _answer(call())
        except Unavailable:
            assert armed, "a store that works is not available"
            model()
            if self.dying:
                await self.crash()
                return ("nobody heard it",)
            answer, outcome = await _answer(call())
        allowed = model()
        assert answer in allowed, f"{answer}, but the model says {set(allowed)}"
        self._keep(outcome)
        return answer

    def _ask(self, uuid: UUID, operation: Callable[[Life], Answers]) -> Answers:
        life = self.book.lives[uuid]
        return ask(life, lambda: operation(life))

    def _best(self, demand: Demand) -> list[Life]:
        """What the demand must get, in order, if it asked for everything."""
        found = self.book.best(demand.worker.id, self.now)
        return [
            life
            for life in found
            if life.wish.needs <= demand.offers
            and (not demand.lanes or life.wish.lane in demand.lanes)
            and demand.namespace in (None, life.wish.namespace)
            and (demand.kinds is None or life.wish.kind in demand.kinds)
        ]

    def _owned(self, holding: Holding, form: str) -> Owned:
        match form:
            case "handle":
                return self.engine.attempts.seal(holding.claim)
            case "fence":
                return Held(holding.claim.id, holding.claim.owner)
            case _:
                return holding.claim

    def _took(self, claim: Claim, demand: Demand) -> None:
        life = self.book.lives[claim.uuid]
        assert life.stage in (Stage.WAITING, Stage.LOST), f"{life.id} was taken twice"
        life.take(demand.worker.id, claim.lease.id, demand.ttl, self.now)
        self._keep(claim)

    def _keep(self, outcome: object) -> None:
        if isinstance(outcome, Claim):
            fence = Fence(outcome.lease.id, outcome.epoch, outcome.attempt)
            self.holdings.append(Holding(outcome, fence))

    async def _taken_as_core_says(
        self, before: dict[UUID, Snapshot], claims: Sequence[Claim]
    ) -> None:
        after = await self.plain.load([claim.uuid for claim in claims])
        for claim in claims:
            held = before[claim.uuid]
            assert isinstance(held.state, Ready | Lost)
            taking = Taking(claim.lease.id, claim.lease.worker, claim.ttl)
            change = core.take(held, held.state.next, taking, self.now)
            assert claim.snapshot == change.after, "the claim differs from the core's"
            assert after[claim.uuid] == change.after, "the stored lease differs from the core's"
            page = await self.plain.events(EventQuery(uuid=claim.uuid))
            told, said = page.events[-1], change.events[0]
            for member in ("at", "kind", "epoch", "attempt", "worker", "detail"):
                assert getattr(told, member) == getattr(said, member), member


async def _claim(engine: Engine, demand: Demand) -> list[Claim]:
    return await engine.claims.claim(
        demand.worker,
        lanes=demand.lanes,
        capabilities=demand.offers,
        limit=demand.limit,
        ttl=Millis(demand.ttl),
        namespace=demand.namespace,
        kinds=demand.kinds,
    )


async def _answer(call: Awaitable[object]) -> tuple[Answer, object]:
    """What came of a call in the words of the model, and the thing itself."""
    try:
        outcome = await call
    except Unavailable:
        raise
    except FlowFabricError as error:
        return (type(error).__name__,), error
    return (_name(outcome), *_figures(outcome)), outcome


def _name(outcome: object) -> str:
    return "Recorded" if outcome is None else type(outcome).__name__


def _figures(outcome: object) -> Answer:
    return tuple(getattr(outcome, member) for member in _FIGURES.get(type(outcome), ()))


_FIGURES: dict[type, tuple[str, ...]] = {
    Submitted: ("id", "state"),
    Duplicate: ("id",),
    Claim: ("epoch",),
    Renewed: ("expires_at", "epoch"),
    Revoked: ("epoch",),
    RetryScheduled: ("delay_until", "next_attempt"),
    Granted: ("expires_at",),
    ReclaimCapExceeded: ("reclaims",),
    Changed: ("priority",),
    Replayed: ("state",),
}
"""What of an outcome must be right, apart from what it is."""


def _submission(wish: Wish, id: ExecutionId) -> Submission:
    return Submission(
        kind=wish.kind,
        id=id,
        namespace=wish.namespace,
        lane=wish.lane,
        priority=wish.priority,
        key=wish.key,
        policy=_policy(wish),
        delay_until=None if wish.delay_until is None else Millis(wish.delay_until),
        deadline_at=None if wish.deadline_at is None else Millis(wish.deadline_at),
    )


def _policy(wish: Wish) -> dict[str, object] | None:
    """The policy document of a wish, None when it asks for nothing special."""
    if wish == Wish(
        lane=wish.lane,
        namespace=wish.namespace,
        kind=wish.kind,
        priority=wish.priority,
        key=wish.key,
        delay_until=wish.delay_until,
        deadline_at=wish.deadline_at,
        grace=wish.grace,
    ):
        return None
    document: dict[str, object] = {
        "max_reclaim_count": wish.reclaims,
        "max_replay_count": wish.replays,
        "dedup_window_ms": wish.window,
        "routing_requirements": {"required_capabilities": sorted(wish.needs)},
        "timeout_policy": _present(
            attempt_timeout_ms=wish.timeout, execution_deadline_ms=wish.deadline_in
        ),
        "stream_policy": _present(retention_ttl_ms=wish.keep),
    }
    if wish.retries is not None:
        backoff = {
            "type": "exponential",
            "initial_delay_ms": wish.retries.first,
            "max_delay_ms": wish.retries.longest,
            "multiplier": wish.retries.factor,
        }
        document["retry_policy"] = {
            "max_retries": wish.retries.most,
            "backoff": backoff,
            "retryable_categories": sorted(wish.retries.only),
        }
    return document


def _present(**members: object) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}
