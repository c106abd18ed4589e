"""Budgets: define, spend, reserve, release."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from flowfabric.core.base.errors import Invalid, LeaseExpired, NotFound, WrongState
from flowfabric.core.base.ids import ExecutionId, parse_uuid
from flowfabric.core.base.numbers import check_kind_of, check_whole
from flowfabric.core.base.text import MAX_KEY, check_namespace, check_text
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.change import Change
from flowfabric.core.execution.lease import Owner, enter, fence_of
from flowfabric.core.execution.model import Active, Execution, Snapshot
from flowfabric.core.flow.model import CancelPolicy
from flowfabric.core.limit import budget_changes
from flowfabric.core.limit import spend as rules
from flowfabric.core.limit.budget import (
    MAX_AMOUNT,
    Amounts,
    Budget,
    OnHard,
    Scope,
    chain,
    check_amounts,
    check_budget,
    check_budget_name,
    check_budget_names,
    check_dimension,
    current,
)
from flowfabric.core.limit.spend import (
    AlreadyApplied,
    BudgetLedger,
    Charged,
    Counted,
    Created,
    Expense,
    HardBreach,
    Known,
    Reserved,
    Reset,
    Spent,
)
from flowfabric.engine.commit.records import listed
from flowfabric.engine.context import EngineContext, Service
from flowfabric.engine.execution.attempts import Attempts, Owned
from flowfabric.engine.flow.flows import Flows
from flowfabric.engine.limit.budget_gate import BudgetGate
from flowfabric.store.queries import LedgerNeeds
from flowfabric.store.rows.record import BUDGETS

T = TypeVar("T")


class Budgets(Service):
    """`engine.budgets`"""

    def __init__(
        self, context: EngineContext, attempts: Attempts, flows: Flows, budget_gate: BudgetGate
    ) -> None:
        super().__init__(context)
        self._attempts = attempts
        self._flows = flows
        self._budget_gate = budget_gate

    # -- definitions

    async def create(self, budget: Budget) -> Created | Known:
        """Creates a budget. An existing budget of that name stays as it is, and nothing is
        compared."""
        return await self._defined(budget, budget_changes.create)

    async def define(self, budget: Budget) -> Created | Known:
        """Creates a budget, or gives an existing one this definition; what was spent stays."""
        return await self._defined(budget, budget_changes.define)

    async def get(self, name: str) -> Budget:
        """A budget with its limits and what was spent from it."""
        asked = check_budget_name(name)
        found = await self._budget_gate.known.budgets((asked,))
        if asked not in found:
            raise NotFound("budget", asked)
        return found[asked]

    async def list(self, *, after: str = "", limit: int = 100) -> list[Budget]:
        """Budgets by name, after a cursor."""
        page, now = await listed(self._context.store, BUDGETS, after, limit), self._now()
        return [current(budget, now) for budget in page]

    async def delete(self, name: str) -> bool:
        """Deletes a budget and admits the executions it limited. A budget with children is
        refused."""
        asked = check_budget_name(name)

        def remove(books: BudgetLedger, now: Millis) -> tuple[bool, list[str]]:
            part_of = _part_of(books, asked)
            return budget_changes.remove(books, asked), part_of

        gone, part_of = await self._budget_gate.ledger.post(
            LedgerNeeds(budgets=(asked,)), remove, alone=(asked,)
        )
        self._context.known_limits.budgets.discard(asked)
        self._budget_gate.known.forget_attached()
        self._budget_gate.free_soon(part_of)
        return gone

    async def attached_to(self, id: str) -> tuple[str, ...]:
        """The budgets that apply to an execution: those it names, and those of its flow, its
        namespace and the run itself."""
        return await self._budget_gate.known.names_of((await self._present(id)).execution)

    # -- spending

    async def spend(
        self,
        budgets: str | Iterable[str],
        amounts: Mapping[str, int],
        *,
        execution: str | None = None,
        key: str | None = None,
    ) -> Charged | AlreadyApplied:
        """Counts an amount for budgets and their parents, or refuses all of it, because of the
        first dimension that does not fit. With an execution, the amount is recorded in its ledger
        by dimension, in the order of their names, and can be released, also if the execution is
        unknown or was deleted: the amount was consumed. The same key counts once; an empty one is
        none."""
        id = None if execution is None else ExecutionId(execution)
        found = None if id is None else await self._load(id)
        uuid = None if id is None else id.uuid
        given = check_amounts(amounts)
        if uuid is not None:
            given = dict(sorted(given.items()))
        asked = Expense(_names(budgets), given, uuid, key=self._key(key))
        return await self._spend(asked, None if found is None else found.execution)

    async def report(
        self,
        owned: Owned,
        amounts: Mapping[str, int],
        *,
        budgets: Iterable[str] | None = None,
        key: str | None = None,
    ) -> Charged | AlreadyApplied:
        """Counts what a worker consumed, for all budgets of its execution or for those named. If
        the owner has lost its lease, the amount is still counted, because it was consumed, and
        marked as stale."""
        snapshot, owner = await self._owned(owned)
        names = await self._chosen(snapshot.execution, budgets)
        current = _is_current(snapshot, owner)
        asked = Expense(
            names,
            check_amounts(amounts),
            snapshot.execution.uuid,
            key=self._key(key),
            stale=not current,
            attached=budgets is None,
            epoch=snapshot.head.epoch if current else None,
        )
        return await self._spend(asked, snapshot.execution) if names else Spent()

    async def release(self, name: str, execution: str) -> Amounts:
        """Takes back what an execution spent from a budget since its last reset; returns how much.
        Repeating it has no effect."""
        asked, key = check_budget_name(name), ExecutionId(execution)
        ask = LedgerNeeds(budgets=(asked,), executions=(key.uuid,))
        return await self._budget_gate.ledger.post(
            ask, lambda books, now: rules.release(books, asked, key.uuid, now)
        )

    async def reset(self, name: str) -> Reset:
        """Starts a new period now; the next reset is one interval away."""
        asked = check_budget_name(name)
        return await self._post(
            (asked,), lambda books, now: budget_changes.reset(books, asked, now)
        )

    async def grant(self, name: str, dimension: str, amount: int, *, key: str | None = None) -> int:
        """Raises a soft limit until the next reset; returns the new limit."""
        asked, word = check_budget_name(name), check_dimension(dimension)
        more = check_whole(amount, "the amount", 1, MAX_AMOUNT)
        once = f"grant:{self._key(key)}"
        ask = LedgerNeeds(budgets=(asked,), charges=((asked, once),))
        return await self._budget_gate.ledger.post(
            ask, lambda books, now: budget_changes.grant(books, asked, word, more, now, once)
        )

    # -- reservations

    async def reserve(
        self,
        owned: Owned,
        amounts: Mapping[str, int],
        *,
        budgets: Iterable[str] | None = None,
        id: UUID | None = None,
        key: str | None = None,
    ) -> Reserved | HardBreach:
        """Reserves an estimate for what the owner is about to do. It is released automatically when
        this lease is gone. Repeating it with the same id reserves nothing more. Give the `key` of
        the settlement if an earlier owner may have counted it: then nothing is reserved."""
        snapshot, owner = await self._owned(owned)
        if isinstance(enter(snapshot, self._now(), owner), Change):
            raise LeaseExpired(f"the lease of {snapshot.run} expired; a worker may take it over")
        names = await self._chosen(snapshot.execution, budgets)
        reservation = self._fresh() if id is None else parse_uuid(id, "reservation")
        uuid, epoch = snapshot.execution.uuid, snapshot.head.epoch
        asked = Expense(
            names, check_amounts(amounts), uuid, key=_key(key) or None, attached=budgets is None
        )
        if not names:
            return rules.nothing_reserved(asked, reservation, epoch, self._now())
        ask = _ask(asked, reservations=(reservation,))
        self._budget_gate.reserving(uuid)
        answer = await self._budget_gate.ledger.post(
            ask, lambda books, now: rules.reserve(books, asked, reservation, epoch, now)
        )
        await self._act(answer, snapshot.execution)
        return answer

    async def settle(
        self,
        owned: Owned,
        reservation: UUID,
        amounts: Mapping[str, int],
        *,
        budgets: Iterable[str] | None = None,
        key: str | None = None,
    ) -> Counted | AlreadyApplied:
        """Counts the consumed amount, less or more, in place of the reservation. An amount that
        does not fit is counted up to the limit, and the rest is kept separately (`Overrun`). Also
        works for an owner that has lost its lease; if the reservation is gone by then, `budgets`
        names its budgets (by default all of the execution). The same key (by default the
        reservation's id) counts once."""
        snapshot, owner = await self._owned(owned)
        id = parse_uuid(reservation, "reservation")
        stored = await self._context.store.ledger(LedgerNeeds(reservations=(id,)))
        known = stored.reservations.get(id)
        if known is not None:
            _check_own(known.execution, snapshot.execution)
            names = known.budgets
        else:
            names = await self._whole(await self._chosen(snapshot.execution, budgets))
        if not names:
            check_amounts(amounts)
            return Spent()
        asked = Expense(
            names,
            check_amounts(amounts),
            snapshot.execution.uuid,
            key=_key(key) or f"settle:{id}",
            stale=not _is_current(snapshot, owner),
            attached=known is not None or budgets is None,
        )
        ask = _ask(asked, reservations=(id,))
        return await self._budget_gate.ledger.post(
            ask, lambda books, now: rules.settle(books, asked, id, now)
        )

    async def cancel_reservation(self, owned: Owned, reservation: UUID) -> bool:
        """Releases a reservation unspent; False if it was already released."""
        snapshot, _ = await self._owned(owned)
        id = parse_uuid(reservation, "reservation")
        stored = await self._context.store.ledger(LedgerNeeds(reservations=(id,)))
        known = stored.reservations.get(id)
        if known is None:
            return False
        _check_own(known.execution, snapshot.execution)
        ask = LedgerNeeds(budgets=known.budgets, reservations=(id,))
        return await self._budget_gate.ledger.post(
            ask, lambda books, now: rules.drop(books, id, now)
        )

    # -- internals

    async def _defined(
        self, budget: Budget, rule: Callable[[BudgetLedger, Budget, Millis], Created | Known]
    ) -> Created | Known:
        given = check_budget(check_kind_of(budget, Budget, "budget"))
        checked = replace(_as_stored(given), version=self._first_version())
        names = (checked.name,) if checked.parent is None else (checked.name, checked.parent)

        def defined(books: BudgetLedger, now: Millis) -> tuple[Created | Known, list[str]]:
            old = books.budgets.get(checked.name)
            answer = rule(books, checked, now)
            new = books.budgets[checked.name]
            moved = old is not None and (old.scope, old.scope_id) != (new.scope, new.scope_id)
            return answer, _part_of(books, checked.name) if moved else []

        answer, moved = await self._budget_gate.ledger.post(
            LedgerNeeds(budgets=names), defined, alone=names
        )
        self._budget_gate.known.forget_attached()
        self._budget_gate.free_soon(moved)
        return answer

    async def _spend(self, asked: Expense, execution: Execution | None) -> Charged | AlreadyApplied:
        answer = await self._budget_gate.ledger.post(
            _ask(asked), lambda books, now: rules.spend(books, asked, now)
        )
        await self._act(answer, execution)
        return answer

    def _key(self, key: object) -> str:
        return _key(key) or str(self._fresh())

    async def _act(self, answer: object, execution: Execution | None) -> None:
        """What a budget does besides refusing. A crash in between does no harm: nothing was
        counted, so the next try comes here again."""
        if not isinstance(answer, HardBreach) or answer.action is not OnHard.CANCEL_PENDING:
            return
        flow = None if execution is None else execution.flow
        if flow is None:
            budget = await self.get(answer.budget)
            flow = UUID(budget.scope_id) if budget.scope is Scope.FLOW else None
        if flow is None:
            return
        with suppress(NotFound, WrongState):
            await self._flows.cancel(
                flow,
                reason=f"budget_exhausted: {answer.budget} {answer.dimension}",
                policy=CancelPolicy.PENDING,
                wait=False,
            )

    async def _owned(self, owned: Owned) -> tuple[Snapshot, Owner]:
        id, owner = self._attempts.unpack(owned)
        return await self._present(id), owner

    async def _chosen(self, execution: Execution, budgets: Iterable[str] | None) -> tuple[str, ...]:
        if budgets is not None:
            return _names(budgets)
        return await self._budget_gate.known.names_of(execution)

    async def _whole(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """These budgets and all their parents, which a reservation covers."""
        found = await self._context.store.ledger(LedgerNeeds(budgets=names))
        upper = (part for name in names for part in _part_of(found, name))
        return tuple(dict.fromkeys((*names, *upper)))

    def _post(
        self, names: tuple[str, ...], rule: Callable[[BudgetLedger, Millis], T]
    ) -> Awaitable[T]:
        return self._budget_gate.ledger.post(LedgerNeeds(budgets=names), rule)


def _part_of(books: BudgetLedger, name: str) -> list[str]:
    """A budget and all its parents, for which executions may wait because of it."""
    known = [name] if name in books.budgets else []
    return [budget.name for budget in chain(books.budgets, known)]


def _ask(asked: Expense, reservations: tuple[UUID, ...] = ()) -> LedgerNeeds:
    return LedgerNeeds(
        budgets=asked.budgets,
        charges=tuple((name, asked.key) for name in asked.budgets if asked.key is not None),
        executions=() if asked.execution is None else (asked.execution,),
        reservations=reservations,
    )


def _names(budgets: str | Iterable[str]) -> tuple[str, ...]:
    names = check_budget_names((budgets,) if isinstance(budgets, str) else budgets)
    if not names:
        raise Invalid("name at least one budget")
    return names


def _key(key: object) -> str:
    """The text of a key; empty if none is given."""
    return "" if key is None else check_text(key, "key", limit=MAX_KEY)


def _is_current(snapshot: Snapshot, owner: Owner) -> bool:
    match snapshot.state:
        case Active(lease=lease):
            return owner.fence in (None, fence_of(snapshot, lease))
        case _:
            return False


def _check_own(owner: UUID, execution: Execution) -> None:
    if owner != execution.uuid:
        raise Invalid("the reservation belongs to another run")


def _as_stored(budget: Budget) -> Budget:
    """The budget with its scope id in the form that executions use to find it."""
    id = budget.scope_id
    match budget.scope:
        case Scope.NAMESPACE:
            return replace(budget, scope_id=check_namespace(id))
        case Scope.RUN:
            return replace(budget, scope_id=str(ExecutionId(id)))
        case Scope.FLOW:
            try:
                return replace(budget, scope_id=str(UUID(id)))
            except ValueError:
                raise Invalid(f"a budget of a flow needs the id of the flow, not {id!r}") from None
        case _:
            return budget
