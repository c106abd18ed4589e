"""Spending inside a handler. It is counted once, however often the handler runs."""

from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid5

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.core.base.text import MAX_SIGNAL_NAME
from flowfabric.core.limit.budget import Amounts, OnHard, OnSoft
from flowfabric.core.limit.spend import (
    AlreadyApplied,
    Charged,
    Counted,
    HardBreach,
    Overrun,
    Reserved,
    SoftBreach,
    Spent,
)
from flowfabric.worker.api.limits import amounts_of, exceeded
from flowfabric.worker.api.waits import WaitsApi
from flowfabric.worker.errors import Unwind
from flowfabric.worker.run.branches import StepPlace
from flowfabric.worker.run.scope import CallScope
from flowfabric.worker.run.steps import keep, perform, read


class Reserve:
    """An estimate that is set aside for a block:
    `async with ctx.reserve(tokens=2000) as r: ...; r.settle(tokens=1740)`. When the block ends, the
    settled amount is counted and the rest is given back; without `settle`, all of it is given back.
    `outcome` is what was counted."""

    def __init__(
        self, spending: "SpendApi", place: StepPlace, amounts: Amounts, budget: str | None
    ) -> None:
        self.amounts = amounts
        self.outcome: Counted | None = None
        self._spending = spending
        self._scope = spending._scope
        self._place = place
        self._budget = budget
        self._actual: Amounts | None = None
        self._id: UUID | None = None
        self._key = f"settle:{self._scope.key_at(place)}"

    def settle(self, amounts: Mapping[str, int] | None = None, /, **more: int) -> None:
        """Says what was really consumed. The last call counts."""
        self._actual = amounts_of(amounts, more)

    async def __aenter__(self) -> "Reserve":
        journal = self._scope.journal
        asked_at = self._place.again(0)
        breach = await journal.recorded(asked_at)
        if breach is not None:
            await self._spending.ask(self._place, read(asked_at, breach, HardBreach), self.amounts)
        record = await journal.recorded(self._place)
        if record is not None:
            self.outcome = read(self._place, record, Counted)
            return self
        answer = await self._set_aside()
        if isinstance(answer, HardBreach) and answer.action is OnHard.SUSPEND and breach is None:
            await keep(journal, asked_at, answer, HardBreach)
            await self._spending.ask(self._place, answer, self.amounts)
            answer = await self._set_aside()
        if isinstance(answer, HardBreach):
            raise exceeded(answer, self.amounts)
        return self

    async def _set_aside(self) -> Reserved | HardBreach:
        scope, claim = self._scope, self._scope.claim
        # It belongs to this lease: when the lease ends, what it has set aside is given back.
        self._id = uuid5(claim.uuid, f"reserve:{scope.key_at(self._place)}:{claim.epoch}")
        return await scope.until_available(
            lambda: scope.engine.budgets.reserve(
                claim, self.amounts, budgets=_named(self._budget), id=self._id, key=self._key
            )
        )

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self.outcome is not None or self._id is None:
            return
        if kind is not None and issubclass(kind, Unwind):
            return  # the lease ends, which gives back what it has set aside
        if self._actual is None:
            if not self._scope.completed:  # or it is given back with the end of the run
                await self._give_back()
            return
        journal, place = self._scope.journal, self._place
        through = self._scope.branches.come_to(place.branch)
        self.outcome = await perform(journal, place, self._settle, Counted, through=through)

    async def _settle(self) -> Counted:
        scope, id, actual = self._scope, self._id or UUID(int=0), self._actual or {}
        answer = await scope.until_available(
            lambda: scope.engine.budgets.settle(
                scope.claim,
                id,
                actual,
                budgets=_named(self._budget),
                key=self._key,
            )
        )
        return answer.outcome if isinstance(answer, AlreadyApplied) else answer

    async def _give_back(self) -> None:
        # An error costs nothing: it is given back when the lease ends.
        with suppress(FlowFabricError):
            budgets = self._scope.engine.budgets
            await budgets.cancel_reservation(self._scope.claim, self._id or UUID(int=0))


class SpendApi:
    """The part of a context that spends from budgets."""

    def __init__(self, scope: CallScope, waits: WaitsApi) -> None:
        self._scope = scope
        self._waits = waits

    def spend(
        self,
        amounts: Mapping[str, int] | None = None,
        /,
        *,
        budget: str | None = None,
        **dimensions: int,
    ) -> Coroutine[Any, Any, Spent | SoftBreach]:
        """Counts what the run has consumed, in all its budgets or in the named one:
        `await ctx.spend(tokens=1200)`. It is recorded, so it is counted once even if the handler
        runs again. Raises BudgetExceeded, and counts nothing, if it does not fit. A budget may ask
        a person first; the run holds no worker meanwhile."""
        wanted = amounts_of(amounts, dimensions)
        return self._spend(self._scope.branches.place("spend"), wanted, budget)

    def reserve(
        self,
        amounts: Mapping[str, int] | None = None,
        /,
        *,
        budget: str | None = None,
        **dimensions: int,
    ) -> Reserve:
        """Sets an estimate aside for an expensive block, so that no other run spends it; see
        Reserve. Raises BudgetExceeded if it does not fit. A budget may ask a person first, as for
        `spend`. A crash neither keeps the estimate nor counts it twice."""
        wanted = amounts_of(amounts, dimensions)
        return Reserve(self, self._scope.branches.place("reserve"), wanted, budget)

    async def _spend(
        self, place: StepPlace, amounts: Amounts, budget: str | None
    ) -> Spent | SoftBreach:
        outcome = await self._charge(place, amounts, budget)
        if isinstance(outcome, HardBreach):
            await self.ask(place, outcome, amounts)
            again = self._scope.branches.place("spend-again")
            outcome = await self._charge(again, amounts, budget)
        if isinstance(outcome, HardBreach):
            raise exceeded(outcome, amounts)
        if isinstance(outcome, SoftBreach) and outcome.action is OnSoft.APPROVE:
            await self.ask(place, outcome, amounts)
            await self._grant(self._scope.branches.place("grant"), outcome)
        return outcome

    async def _charge(self, place: StepPlace, amounts: Amounts, budget: str | None) -> Charged:
        """Charges once. A breach that a person is asked about is recorded as well, so that the
        handler asks the same question when it runs again."""
        scope = self._scope
        budgets, key = _named(budget), scope.key_at(place)

        async def charge() -> Charged:
            answer = await scope.until_available(
                lambda: scope.engine.budgets.report(scope.claim, amounts, budgets=budgets, key=key)
            )
            outcome = answer.outcome if isinstance(answer, AlreadyApplied) else answer
            if isinstance(outcome, HardBreach) and outcome.action is not OnHard.SUSPEND:
                raise exceeded(outcome, amounts)
            return Spent() if isinstance(outcome, Overrun) else outcome

        outcome: Charged = await perform(scope.journal, place, charge, Charged)
        return outcome

    async def ask(
        self, place: StepPlace, breach: HardBreach | SoftBreach, amounts: Amounts
    ) -> None:
        """Waits for the approval of a person; every other end is a refusal."""
        about = {
            "budget": breach.budget,
            "dimension": breach.dimension,
            "used": breach.used,
            "limit": breach.limit,
            "amount": amounts.get(breach.dimension, 0),
        }
        verdict = await self._waits.approval(_question(breach.budget, place), about=about)
        if not verdict.approved:
            raise exceeded(breach, amounts)

    async def _grant(self, place: StepPlace, breach: SoftBreach) -> None:
        async def grant() -> int:
            return await self._scope.until_available(
                lambda: self._scope.engine.budgets.grant(
                    breach.budget,
                    breach.dimension,
                    breach.more or breach.limit,
                    key=f"grant:{self._scope.key_at(place)}",
                )
            )

        await perform(self._scope.journal, place, grant, int)


def _question(budget: str, place: StepPlace) -> str:
    """The name of the approval; `about` has the whole name of a budget that is too long for it."""
    end = f":{place.position}"
    return f"budget:{budget}"[: MAX_SIGNAL_NAME - len(end)] + end


def _named(budget: str | None) -> tuple[str, ...] | None:
    return None if budget is None else (budget,)
