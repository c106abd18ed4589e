"""Changes of budgets: read the books, decide one after the other, write them as one change.

A budget is a hot record: a hundred spendings at once ride one write instead of fighting over it.
Whoever lost against another process reads and decides again.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec import Struct

from flowfabric.core.base.errors import Corruption, RetryExhausted
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import Budget, exhausted
from flowfabric.core.limit.budget_changes import turn_over
from flowfabric.core.limit.spend import BudgetLedger
from flowfabric.engine.commit.batch import Batcher
from flowfabric.store.contract import Store
from flowfabric.store.queries import LedgerNeeds

T = TypeVar("T")

MAX_ROUNDS = 40


class Posting(Struct):
    """A rule waiting to be decided, and what it must know. The rule changes the books only when it
    does not raise. `alone`: budgets of which nothing else is made or deleted in the same batch."""

    ask: LedgerNeeds
    rule: Callable[[BudgetLedger, Millis], Any]
    alone: tuple[str, ...] = ()
    outcome: Any = None


class LedgerWriter:
    def __init__(self, store: Store, opened: Callable[[list[str]], None]) -> None:
        self._store = store
        self._opened = opened
        self._batcher: Batcher[Posting, Any] = Batcher(
            "budgets", self._flush, keys=lambda posting: posting.alone
        )

    def post(
        self,
        ask: LedgerNeeds,
        rule: Callable[[BudgetLedger, Millis], T],
        *,
        alone: tuple[str, ...] = (),
    ) -> Awaitable[T]:
        """What the rule answers, once what it posted is durable."""
        return self._batcher.put(Posting(ask, rule, alone))

    async def drain(self) -> None:
        await self._batcher.drain()

    async def _flush(self, postings: list[Posting]) -> list[Any]:
        """One that needs something that cannot be read is refused alone."""
        try:
            return await self._post(postings)
        except Corruption as error:
            if len(postings) == 1:
                return [error]
        return [answer for posting in postings for answer in await self._flush([posting])]

    async def _post(self, postings: list[Posting]) -> list[Any]:
        ask = merged(postings)
        for round in range(MAX_ROUNDS):
            now = self._store.clock.now()
            books = await self._store.books(ask)
            before = dict(books.budgets)
            turn_over(books, now)
            _decide(postings, books, now)
            if books.empty or await self._store.post(books):
                self._tell(before, books)
                return [posting.outcome for posting in postings]
            await asyncio.sleep(random.uniform(0, 0.002) * round)  # noqa: S311 - only jitter
        error = RetryExhausted(f"lost against rivals {MAX_ROUNDS} times in a row")
        return [error for _ in postings]

    def _tell(self, before: dict[str, Budget], books: BudgetLedger) -> None:
        """Whoever waits for a budget that admits again can be let in."""
        opened = [
            name
            for name in books.changed
            if name in before
            and exhausted(before[name]) is not None
            and (name not in books.budgets or exhausted(books.budgets[name]) is None)
        ]
        if opened:
            self._opened(opened)


def merged(postings: list[Posting]) -> LedgerNeeds:
    """One question for all."""
    asks = [posting.ask for posting in postings]
    return LedgerNeeds(
        budgets=_union(ask.budgets for ask in asks),
        charges=_union(ask.charges for ask in asks),
        executions=_union(ask.executions for ask in asks),
        reservations=_union(ask.reservations for ask in asks),
    )


def _union(parts: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _decide(postings: list[Posting], books: BudgetLedger, now: Millis) -> None:
    for posting in postings:
        try:
            posting.outcome = posting.rule(books, now)
        except Exception as error:  # a rule that stumbles takes nobody along
            posting.outcome = error
