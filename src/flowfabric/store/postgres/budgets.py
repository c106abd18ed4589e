"""Budgets and what was spent of them."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from msgspec import Struct, field

from flowfabric.core.limit.budget import Budget
from flowfabric.core.limit.spend import BudgetLedger
from flowfabric.store.postgres.dialer import Connection
from flowfabric.store.postgres.session import Columns, PostgresSession, columns
from flowfabric.store.queries import LedgerNeeds
from flowfabric.store.readable import readable
from flowfabric.store.rows import limit as limit_rows
from flowfabric.store.rows.limit import (
    CHARGE,
    LEDGER,
    RESERVATION,
    Row,
    read_charge,
    read_ledger,
    read_reservation,
)
from flowfabric.store.rows.record import BUDGETS


class _Post(Struct):
    """What is to be written. `tried` are the transactions that may have done it: all of a try was
    written when it was told its number, only the commit was missing."""

    new: Sequence[Row]
    values: Sequence[Any]
    tried: list[str] = field(default_factory=list)


class _Moved(Exception):
    """Something is not what it was when the change was decided."""


async def ledger(session: PostgresSession, ask: LedgerNeeds) -> BudgetLedger:
    if ask.stale:
        return await _stale(session, ask.stale)
    values = (
        list(ask.budgets),
        *columns(ask.charges, 2),
        list(ask.executions),
        list(ask.reservations),
    )
    return _read(await session.fetch(session.limit, "ledger", *values))


async def post(session: PostgresSession, ledger: BudgetLedger) -> bool:
    post = _Post(_new_budgets(ledger), _values(ledger))
    return await session.limit.run(partial(_post, session, post))


async def attached(session: PostgresSession) -> list[tuple[str, str, str]]:
    rows = await session.fetch(session.load, "attached_budgets")
    return [(scope, id, name) for scope, id, name in rows]


async def _stale(session: PostgresSession, limit: int) -> BudgetLedger:
    rows = await session.fetch(session.sweep, "stale_reservations", limit)
    found = readable(rows, lambda row: read_reservation(*row), "reservation", itemgetter(0))
    return BudgetLedger(reservations={each.id: each for each in found})


async def _post(
    session: PostgresSession, post: _Post, connection: Connection, repeated: bool
) -> bool:
    queries = session.queries
    try:
        async with connection.transaction():
            await _write(session, post, connection)
    except _Moved:
        # Refused, unless an earlier try was committed and its reply lost. The lock was waited
        # for, so that one is no longer under way.
        return bool(post.tried) and await connection.fetchval(queries["committed"], post.tried)
    return True


async def _write(session: PostgresSession, post: _Post, connection: Connection) -> None:
    queries = session.queries
    if post.new:
        made = await connection.fetch(queries["new_budgets"], *columns(post.new, BUDGETS.width))
        if len(made) < len(post.new):
            raise _Moved
    stands, transaction = (await connection.fetch(queries["posted"], *post.values))[0]
    if not stands:
        raise _Moved
    post.tried.append(transaction)


def _new_budgets(ledger: BudgetLedger) -> list[Row]:
    return [
        _new_budget(ledger.budgets[name])
        for name, version in sorted(ledger.changed.items())
        if not version and name not in ledger.removed
    ]


def _new_budget(budget: Budget) -> Row:
    return BUDGETS.row(BUDGETS.numbered(budget, 0))


def _values(ledger: BudgetLedger) -> list[Any]:
    """The parameters of the statement. What is removed takes along what was noted of it."""
    removed = ledger.removed
    compared = sorted((name, version) for name, version in ledger.changed.items() if version)
    changed = [
        BUDGETS.row(BUDGETS.numbered(ledger.budgets[name], version))
        for name, version in compared
        if name not in removed
    ]
    ledgers = {key: new for key, new in ledger.new_ledgers.items() if key[0] not in removed}
    charges = [new for new in ledger.new_charges.values() if new.budget not in removed]
    reservations = ledger.new_reservations
    return [
        *columns(compared, 2),
        sorted(id for id, new in reservations.items() if new is None),
        *columns(changed, BUDGETS.width),
        sorted(removed),
        *_sorted((limit_rows.ledger_row(new) for new in ledgers.values() if new), len(LEDGER)),
        *_sorted((key for key, new in ledgers.items() if new is None), 2),
        *_sorted(map(limit_rows.charge_row, charges), len(CHARGE)),
        *_sorted(
            (limit_rows.reservation_row(new) for new in reservations.values() if new),
            len(RESERVATION),
        ),
    ]


def _sorted(rows: Any, width: int) -> Columns:
    """Sorted by key, so that two who write the same rows do not wait for each other in a ring."""
    return columns(sorted(rows, key=lambda row: (row[0], row[1])), width)


def _read(rows: Sequence[Any]) -> BudgetLedger:
    ledger = BudgetLedger()
    for kind, name, key, version, id, doc in rows:
        match kind:
            case 0:
                ledger.budgets |= BUDGETS.by_key([(name, version, doc)])
            case 1:
                ledger.charges[name, key] = read_charge(name, key, doc)
            case 2:
                ledger.ledgers[name, id] = read_ledger(name, id, doc)
            case 3:
                ledger.reservations[id] = read_reservation(id, doc)
            case _:
                raise AssertionError(kind)
    return ledger
