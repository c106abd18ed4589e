"""Budgets and what was spent of them."""

from operator import itemgetter

from msgspec.json import encode

from flowfabric.core.limit.budget import Ledger
from flowfabric.core.limit.spend import BudgetLedger
from flowfabric.store.queries import LedgerNeeds
from flowfabric.store.readable import readable
from flowfabric.store.rows.limit import (
    charge_row,
    ledger_row,
    read_charge,
    read_ledger,
    read_reservation,
    reservation_row,
)
from flowfabric.store.rows.record import BUDGETS
from flowfabric.store.sqlite.session import SqliteSession, plain, read_uuid


def ledger(session: SqliteSession, ask: LedgerNeeds) -> BudgetLedger:
    found = BudgetLedger()
    if ask.stale:
        rows = session.rows("stale_reservations", (ask.stale,))
        stale = readable(rows, lambda row: read_reservation(*row), "reservation", itemgetter(0))
        found.reservations.update((each.id, each) for each in stale)
    if ask.budgets:
        names = {"names": encode(ask.budgets).decode()}
        found.budgets = BUDGETS.by_key(session.rows("budgets", names))
    if ask.charges:
        for budget, key, doc in session.given("charges", ask.charges):
            found.charges[budget, key] = read_charge(budget, key, doc)
    if ask.executions:
        executions = [uuid.bytes for uuid in ask.executions]
        for budget, id, doc in session.among("ledgers", executions):
            ledger = read_ledger(budget, read_uuid(id), doc)
            found.ledgers[budget, ledger.execution] = ledger
        _add_reservations(found, session, "reservations_of", executions)
    if ask.reservations:
        _add_reservations(found, session, "reservations", [id.bytes for id in ask.reservations])
    return found


def post(session: SqliteSession, ledger: BudgetLedger) -> bool:
    """Everything is compared before anything is written."""
    if not _stand(session, ledger):
        return False
    _write_budgets(session, ledger)
    _write_ledgers(session, ledger)
    gone = {name for name in ledger.removed if name not in ledger.budgets}
    charges = [charge for charge in ledger.new_charges.values() if charge.budget not in gone]
    session.insert("new_charges", [charge_row(charge) for charge in charges])
    _write_reservations(session, ledger)
    return True


def attached(session: SqliteSession) -> list[tuple[str, str, str]]:
    return [(scope, id, name) for scope, id, name in session.rows("attached_budgets")]


def _add_reservations(
    found: BudgetLedger, session: SqliteSession, name: str, ids: list[bytes]
) -> None:
    for id, doc in session.among(name, ids):
        reservation = read_reservation(read_uuid(id), doc)
        found.reservations[reservation.id] = reservation


def _stand(session: SqliteSession, ledger: BudgetLedger) -> bool:
    """Whether nothing that was decided on has moved."""
    if ledger.changed:
        names = [(name,) for name in ledger.changed]
        stored = dict(session.given("budget_versions", names))
        if any(stored.get(name, 0) != version for name, version in ledger.changed.items()):
            return False
    gone = [id.bytes for id, new in ledger.new_reservations.items() if new is None]
    return not gone or len(session.among("reservation_ids", gone).fetchall()) == len(gone)


def _write_budgets(session: SqliteSession, ledger: BudgetLedger) -> None:
    if removed := list(ledger.removed):
        for name in ("gone_budgets", "gone_budget_ledgers", "gone_budget_charges"):
            session.among(name, removed)
    rows = [
        BUDGETS.row(BUDGETS.numbered(ledger.budgets[name], version))
        for name, version in ledger.changed.items()
        if name in ledger.budgets
    ]
    session.insert("new_budgets", rows)


def _write_ledgers(session: SqliteSession, ledger: BudgetLedger) -> None:
    gone = {name for name in ledger.removed if name not in ledger.budgets}
    new: list[Ledger] = []
    for (budget, execution), spent in ledger.new_ledgers.items():
        if spent is None:
            session.execute("gone_ledgers", (budget, execution.bytes))
        elif budget not in gone:
            new.append(spent)
    session.insert("new_ledgers", plain(ledger_row(ledger) for ledger in new))


def _write_reservations(session: SqliteSession, ledger: BudgetLedger) -> None:
    new, gone = [], []
    for id, reservation in ledger.new_reservations.items():
        if reservation is None:
            gone.append(id.bytes)
        else:
            new.append(reservation_row(reservation))
    if gone:
        session.among("gone_reservations", gone)
    session.insert("new_reservations", plain(new))
