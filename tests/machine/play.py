"""One database, two engines on it, and the model: every operation is asked of both sides.

The first engine works through stores that make trouble when armed; the second one stands for
another process and is where rivals act.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid5

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.base.time import Millis
from flowfabric.core.execution import lease as core
from flowfabric.core.execution.lease import Taking
from flowfabric.core.execution.model import Ended, Lost, Ready, Snapshot, WorkerIdentity
from flowfabric.core.wait.model import Waitpoint
from flowfabric.core.wait.suspend import AlreadyMet, NowSuspended
from flowfabric.engine.context import EngineOptions
from flowfabric.engine.engine import Engine
from flowfabric.engine.execution.attempts import FencedExecution, Owned
from flowfabric.engine.execution.claims import Claim
from flowfabric.store.clock import ManualClock
from flowfabric.store.contract import Store
from flowfabric.store.queries import EventQuery
from tests.machine.answers import answer_of, words_of
from tests.machine.benches import Bench
from tests.machine.book import Book, ask, claim_order
from tests.machine.deeds import Act, Call, Deed, Renew
from tests.machine.model import Life
from tests.machine.rivals import LostReplies, Rivals
from tests.machine.submissions import submission
from tests.machine.wait_deeds import Desk, addressed
from tests.machine.words import Answer, Answers, Fence, Stage, Wish

NAMES = UUID(int=0xFAB)
RETENTION = 600_000
MOST_SWEEPS = 5

T = TypeVar("T")
Turn = tuple[Call, Callable[[Life], Answers]]


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

    worker: WorkerIdentity
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
        await self.other.keys.seed(self.book.ring.current, "0" * 64)
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
        options = EngineOptions(retention=Millis(RETENTION), reclaim_grace=Millis(self.grace))
        return await Engine.open(store, options=options, jitter=random.Random(0))

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
        copy = life.copy()
        ready = addressed(act, copy, Desk(_numbered(), self.book.tokens, self.now))
        ask(copy, lambda life: ready.model(life, NAMES, self.now))
        return copy.changes != life.changes

    def addressed(self, uuid: UUID, thing: T) -> T:
        """A deed or an act, ready to be asked for as often as need be."""
        desk = Desk(self.fresh_id, self.book.tokens, self.now)
        return addressed(thing, self.book.lives[uuid], desk)

    def owner_of(self, uuid: UUID) -> Holding | None:
        return next((holding for holding in self.live if holding.uuid == uuid), None)

    # -- operations

    async def submit(self, wish: Wish, uuid: UUID | None = None) -> None:
        """Submits a wish under an id of its own, or again under one that is known."""
        key = uuid5(NAMES, f"execution {next(self.numbers)}") if uuid is None else uuid
        id = ExecutionId.solo(wish.lane, key)
        submitted, wanted = submission(wish, id), replace(wish, grace=self.grace)
        await self._compare(
            lambda: self.engine.executions.submit(submitted),
            lambda: self.book.submit(id, key, wanted, self.now),
        )

    async def own(
        self, holding: Holding, deed: Deed, form: str = "claim", engine: Engine | None = None
    ) -> None:
        """A worker does something with what it believes to own."""
        asked, deed = engine or self.engine, self.addressed(holding.uuid, deed)
        uuid, life, calm = holding.uuid, self.book.lives[holding.uuid], self.calm
        before = (await self.plain.load([uuid])).get(uuid)
        answer = await self._compare(
            lambda: deed.call(asked, self._owned(holding, form), life),
            lambda: self._ask(uuid, lambda life: deed.model(life, holding.fence, self.now)),
        )
        if isinstance(deed, Renew) and answer[0] == "Renewed" and calm and before is not None:
            after = (await self.plain.load([uuid]))[uuid]
            assert form != "claim" or after.head == before.head, "a renewal with a new version"
            change = core.renew(before, self.now, holding.claim.owner, Millis(deed.ttl))
            assert change.after is not None
            assert after.state == change.after.state, "the renewed lease differs from the core's"

    async def act(self, uuid: UUID, act: Act, engine: Engine | None = None) -> None:
        """Somebody who owns nothing does something to an execution."""
        asked, life, lease_id = engine or self.engine, self.book.lives[uuid], self.fresh_id()
        act = self.addressed(uuid, act)
        await self._compare(
            lambda: act.call(asked, life, lease_id),
            lambda: self._ask(uuid, lambda life: act.model(life, lease_id, self.now)),
        )

    async def claim(self, demand: Demand, engine: Engine | None = None) -> None:
        """Must give exactly the best executions, exactly as the core takes each of them."""
        wanted = self._give_up(self._best(demand), demand.limit)
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
        await self._see_given_up()

    def _give_up(self, best: list[Life], limit: int) -> list[Life]:
        """The first of the best. Those that were lost too often end instead of being taken; when
        there are no others among the first, the next come to their turn."""
        for start in range(0, len(best), limit):
            page = best[start : start + limit]
            spent = [life for life in page if life.stage is Stage.LOST and life.over_cap]
            for life in spent:
                life.end_over_cap(self.now)
            if len(spent) < len(page):
                return [life for life in page if life not in spent]
        return []

    async def _see_given_up(self) -> None:
        """Which of several claims came across one that was lost too often is open."""
        spent = [
            life for life in self.book.lives.values() if life.stage is Stage.LOST and life.over_cap
        ]
        found = await self.plain.load([life.uuid for life in spent])
        for life in spent:
            if isinstance(found[life.uuid].state, Ended):
                life.end_over_cap(self.now)

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
        """An owner and somebody else at once."""
        uuid, life, lease_id = holding.uuid, self.book.lives[holding.uuid], self.fresh_id()
        deed, act = self.addressed(uuid, deed), self.addressed(uuid, act)
        await self._at_once(
            uuid,
            (
                deed.call(self.engine, holding.claim, life),
                lambda life: deed.model(life, holding.fence, self.now),
            ),
            (
                act.call(self.other, life, lease_id),
                lambda life: act.model(life, lease_id, self.now),
            ),
        )

    async def crowd(self, uuid: UUID, acts: Sequence[Act]) -> None:
        """Several who own nothing at once, at both engines."""
        life, turns = self.book.lives[uuid], list[Turn]()
        engines = itertools.cycle([self.engine, self.other])
        for act, engine in zip(acts, engines, strict=False):
            ready, lease_id = self.addressed(uuid, act), self.fresh_id()
            model = partial(_as_modelled, ready, lease_id, self.now)
            turns.append((ready.call(engine, life, lease_id), model))
        await self._at_once(uuid, *turns)

    async def _at_once(self, uuid: UUID, *turns: Turn) -> None:
        """The answers and the events must be those of calls that came one after the other."""
        said = await asyncio.gather(*(answer_of(call) for call, _ in turns))
        models = [model for _, model in turns]
        page = await self.plain.events(EventQuery(uuid=uuid))
        told = [word for event in page.events for word in words_of(event)]
        for order in itertools.permutations(range(len(turns))):
            copy = self.book.lives[uuid].copy()
            allowed = [(turn, ask(copy, models[turn])) for turn in order]
            fits = copy.told == told or copy.stage is Stage.GONE
            if fits and all(said[turn][0] in answers for turn, answers in allowed):
                self.book.lives[uuid] = copy
                return
        raise AssertionError(f"at once, but in no order: {[answer for answer, _ in said]}")

    async def sweep(self) -> None:
        for _ in range(MOST_SWEEPS):
            if not await self.engine.sweep.once():
                break
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

    async def rotate(self, grace: int) -> None:
        """A new key signs from now on. Both processes know; on its own the other one would hear
        of it within a second."""
        number = next(self.numbers)
        kid, secret = f"k{number}", f"{number:064x}"
        answer, _ = await answer_of(self.engine.keys.rotate(kid, secret, grace=Millis(grace)))
        assert answer == self.book.ring.rotate(kid, grace, self.now)
        await self.other.keys.kids()

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
            answer, outcome = await answer_of(call())
        except Unavailable:
            assert armed, "a store that works is not available"
            model()
            if self.dying:
                await self.crash()
                return ("nobody heard it",)
            answer, outcome = await answer_of(call())
        allowed = model()
        assert answer in allowed, f"{answer}, but the model says {set(allowed)}"
        self._keep(outcome)
        await self._keep_tokens(outcome)
        return answer

    def _ask(self, uuid: UUID, operation: Callable[[Life], Answers]) -> Answers:
        return ask(self.book.lives[uuid], operation)

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
                return FencedExecution(holding.claim.id, holding.claim.owner)
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

    async def _keep_tokens(self, outcome: object) -> None:
        """Any process can mint them, and they are the same every time."""
        rows: tuple[Waitpoint, ...] = ()
        match outcome:
            case NowSuspended(waitpoints=rows) | AlreadyMet(waitpoints=rows):
                pass
            case Waitpoint():
                rows = (outcome,)
            case _:
                pass
        for ticket in await self.other.suspensions.tickets(rows):
            if ticket.token is not None:
                text = ticket.token.reveal()
                assert self.book.tokens.setdefault(ticket.id, text) == text, "two tokens"

    async def _taken_as_core_says(
        self, before: dict[UUID, Snapshot], claims: Sequence[Claim]
    ) -> None:
        after = await self.plain.load([claim.uuid for claim in claims])
        for claim in claims:
            held = before[claim.uuid]
            assert isinstance(held.state, Ready | Lost)
            taking = Taking(claim.lease.id, claim.lease.worker, claim.ttl)
            change = core.take(held, self.now, held.state.next, taking)
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


def _numbered() -> Callable[[], UUID]:
    numbers = itertools.count(1)
    return lambda: UUID(int=next(numbers))


def _as_modelled(act: Act, lease_id: UUID, now: int, life: Life) -> Answers:
    return act.model(life, lease_id, now)
