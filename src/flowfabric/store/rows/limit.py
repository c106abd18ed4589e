"""Rows of queues, and of what was spent of budgets, the same for every store.

Columns are in the order of the tuples here. A column exists only if something asks by it; the rest
is in the document.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from flowfabric.core.base import document
from flowfabric.core.base.errors import Corruption
from flowfabric.core.limit.budget import Ledger, Reservation
from flowfabric.core.limit.quota import Use, Uses
from flowfabric.core.limit.release import Line
from flowfabric.core.limit.spend import Charge
from flowfabric.store.queries import ServedLines
from flowfabric.store.readable import UNREADABLE, named, unreadable

Row = tuple[Any, ...]

QUEUE = ("quota", "id", "uses", "key")
"""And `turn`, 0 at first."""
LEDGER = ("budget", "execution", "doc")
CHARGE = ("budget", "key", "until", "doc")
RESERVATION = ("id", "execution", "epoch", "doc")


def queue_rows(queue: int, uses: Uses) -> list[Row]:
    """One row for each quota the queue is before."""
    doc = write_uses(uses)
    return [(use.quota, queue, doc, use.key) for use in uses]


def write_uses(uses: Uses) -> bytes:
    return msgspec.json.encode([(use.quota, use.key) for use in uses])


@lru_cache(maxsize=65_536)
def read_uses(doc: bytes) -> Uses:
    try:
        pairs = msgspec.json.decode(bytes(doc), type=list[tuple[str, str]])
    except UNREADABLE as error:
        raise unreadable("a line", "before a quota", error) from None
    return tuple(Use(quota=quota, key=key) for quota, key in pairs)


def known_uses(doc: bytes | None) -> Uses | None:
    """Those of a line's row; None if it has none that can be read."""
    try:
        return None if doc is None else read_uses(doc)
    except Corruption:
        return None


def servable(lines: Iterable[Line], damaged: Collection[str]) -> list[Line]:
    """The lines that use no unreadable quota, whose limits are unknown."""
    return [line for line in lines if not any(use.quota in damaged for use in line.uses)]


def served_lines(
    version: int, turn: int, room: dict[int, int], picked: Sequence[int], moved: Sequence[int]
) -> ServedLines:
    """From the room there was in each line, and the lines of those that were picked and moved."""
    for queue in moved:
        room[queue] -= 1
    left = Counter(picked) - Counter(moved) if len(picked) > len(moved) else ()
    return ServedLines(version, turn, len(moved), room, list(left))


def ledger_row(ledger: Ledger) -> Row:
    return (ledger.budget, ledger.execution, msgspec.json.encode((ledger.period, ledger.amounts)))


def read_ledger(budget: str, execution: UUID, doc: bytes) -> Ledger:
    period, amounts = named(
        f"what {execution} spent of budget",
        budget,
        lambda: msgspec.json.decode(bytes(doc), type=tuple[int, dict[str, int]]),
    )
    return Ledger(budget, execution, period, amounts)


def charge_row(charge: Charge) -> Row:
    doc = document.write(replace(charge, budget="", key=""))
    return (charge.budget, charge.key, charge.until, doc)


def read_charge(budget: str, key: str, doc: bytes) -> Charge:
    found = named(f"charge {key} of budget", budget, lambda: document.read(Charge, bytes(doc)))
    return replace(found, budget=budget, key=key)


def reservation_row(reservation: Reservation) -> Row:
    return (
        reservation.id,
        reservation.execution,
        reservation.epoch,
        msgspec.json.encode(reservation),
    )


def read_reservation(id: object, doc: bytes) -> Reservation:
    return named("reservation", id, lambda: msgspec.json.decode(bytes(doc), type=Reservation))
