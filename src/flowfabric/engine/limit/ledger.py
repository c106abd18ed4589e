"""Changes of budgets: load the ledger, decide one after the other, write them as one change.

A budget is a hot record: a hundred postings at once share one write instead of competing for it. A
write that lost a race is decided again.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

from msgspec import Struct

from flowfabric.core.base.errors import Corruption
from flowfabric.core.base.time import Millis
from flowfabric.core.limit.budget import Budget, exhausted
from flowfabric.core.limit.budget_changes import turn_over
from flowfabric.core.limit.spend import BudgetLedger
from flowfabric.engine.commit.batch import Batcher
from flowfabric.engine.commit.retry import RACE_LOST, RaceLost, retry
from flowfabric.store.contract import Store
from flowfabric.store.queries import LedgerNeeds

T = TypeVar("T")

MAX_ROUNDS = 40


class Posting(Struct):
    """A rule that waits to be decided, and what it needs. The rule changes the ledger only if it
    does not raise. `alone`: budgets that no other posting of the batch creates or deletes."""

    needs: LedgerNeeds
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
        needs: LedgerNeeds,
        rule: Callable[[BudgetLedger, Millis], T],
        *,
        alone: tuple[str, ...] = (),
    ) -> Awaitable[T]:
        """The answer of the rule, once its posting is durable."""
        return self._batcher.put(Posting(needs, rule, alone))

    async def drain(self) -> None:
        await self._batcher.drain()

    async def _flush(self, postings: list[Posting]) -> list[Any]:
        """A posting that needs an unreadable row is refused on its own."""
        try:
            return await self._post(postings)
        except Corruption as error:
            if len(postings) == 1:
                return [error]
        return [answer for posting in postings for answer in await self._flush([posting])]

    async def _post(self, postings: list[Posting]) -> list[Any]:
        needs = merged(postings)

        async def round(number: int) -> list[Any] | Literal[RaceLost.RACE_LOST]:
            now = self._store.clock.now()
            ledger = await self._store.ledger(needs)
            before = dict(ledger.budgets)
            turn_over(ledger, now)
            _decide(postings, ledger, now)
            if not ledger.empty and not await self._store.post(ledger):
                return RACE_LOST
            self._report_room(before, ledger)
            return [posting.outcome for posting in postings]

        names = ", ".join(needs.budgets[:3]) or "the ledger"
        return await retry(round, f"budget {names}", MAX_ROUNDS)

    def _report_room(self, before: dict[str, Budget], ledger: BudgetLedger) -> None:
        """Reports budgets that have room again, so that waiting runs are admitted."""
        opened = [
            name
            for name in ledger.changed
            if name in before
            and exhausted(before[name]) is not None
            and (name not in ledger.budgets or exhausted(ledger.budgets[name]) is None)
        ]
        if opened:
            self._opened(opened)


def merged(postings: list[Posting]) -> LedgerNeeds:
    """What all postings need."""
    asked = [posting.needs for posting in postings]
    return LedgerNeeds(
        budgets=_union(each.budgets for each in asked),
        charges=_union(each.charges for each in asked),
        executions=_union(each.executions for each in asked),
        reservations=_union(each.reservations for each in asked),
    )


def _union(parts: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _decide(postings: list[Posting], ledger: BudgetLedger, now: Millis) -> None:
    for posting in postings:
        try:
            posting.outcome = posting.rule(ledger, now)
        except Exception as error:  # a rule that fails fails for its caller alone
            posting.outcome = error
