"""What a copy of a whole store asks of each side, and what it remembers between two tries."""

import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from flowfabric.core.base.errors import Contention, Corruption, Invalid, Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.store.layout import Column, Row, TableLayout

PAGE_ROWS = 5000
PAGE_BYTES = 4 << 20
"""A page is written in one transaction, and is full at the first of these."""

_ENCODER = msgspec.msgpack.Encoder()
_WIDTH = 16
_MODULUS = 1 << (8 * _WIDTH)


class TableProgress(Struct, frozen=True):
    """How far a table is: rows that are in the target, the key of the last one."""

    rows: int = 0
    last: Row = ()
    whole: bool = False


class Promotion(Struct, frozen=True):
    """Kept in the target, written with every page. `source` names the store the rows are from."""

    source: str
    shown: str
    started_at: Millis
    tables: dict[str, TableProgress] = {}
    finished_at: Millis | None = None


class Usage(Struct, frozen=True):
    """Who may be at work on a store: leases that have not expired and until when the last of them
    does, workers that are alive, and until when a process has the duty to sweep."""

    leases: int = 0
    leases_until: Millis | None = None
    workers: tuple[str, ...] = ()
    duty_until: Millis | None = None

    def __bool__(self) -> bool:
        return bool(self.leases or self.workers or self.duty_until)


class Side(Protocol):
    """One store as a set of tables. What it raises is the engine's."""

    shown: str
    identity: str
    """What the database is called; a store is not copied onto itself."""

    def now(self) -> Millis: ...

    async def secret(self) -> bytes:
        """What the store signs handles with: no other store has the same."""

    async def usage(self) -> Usage: ...

    async def quieten(self) -> None:
        """From now on until `close` other processes cannot write. The tables are those of the
        layout, or an error says what differs."""

    async def count(self, table: TableLayout) -> int: ...

    async def is_empty(self, table: TableLayout) -> bool: ...

    def pages(self, table: TableLayout, after: Row = ()) -> AsyncIterator[Sequence[Row]]:
        """The rows with a key above `after`, in the order of keys, a page at a time."""

    async def promotion(self) -> Promotion | None: ...

    async def clear(self, tables: Sequence[TableLayout], promotion: Promotion) -> None:
        """Empties the tables, forgets all in `meta` but the version, and notes that a promotion
        begins."""

    async def write(
        self, table: TableLayout, rows: Sequence[Row], before: Promotion, after: Promotion
    ) -> None:
        """Adds rows and notes the progress, together; raises Contention if the noted progress is
        no longer `before`."""

    async def numbers(self) -> Mapping[str, int]:
        """The last number given in each table that the database numbers."""

    async def finish(self, numbers: Mapping[str, int], before: Promotion, after: Promotion) -> None:
        """Continues the numbers after those of the source, and notes the end."""

    async def close(self) -> None: ...


class Digest:
    """A number for all rows of a table, whichever order they come in."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            found = hashlib.blake2b(_ENCODER.encode(row), digest_size=_WIDTH).digest()
            self._sum += int.from_bytes(found, "big")
        self._sum %= _MODULUS
        self.rows += len(rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and (self.rows, self.hex) == (other.rows, other.hex)

    __hash__ = None  # type: ignore[assignment]

    @property
    def hex(self) -> str:
        return f"{self._sum:0{2 * _WIDTH}x}"


def size_of(row: Row) -> int:
    """About how many bytes a row takes."""
    return sum(len(value) if isinstance(value, bytes | str) else 8 for value in row)


def write_promotion(promotion: Promotion) -> bytes:
    return _ENCODER.encode(promotion)


def read_promotion(value: bytes) -> Promotion:
    try:
        return msgspec.msgpack.decode(value, type=Promotion)
    except msgspec.MsgspecError as error:
        raise Corruption(f"the noted progress of a promotion: {error}") from error


def secret_in(entries: Iterable[tuple[str, bytes]]) -> bytes | None:
    """The secret among entries of `meta`. Unavailable while a promotion into the store is not
    finished: an engine would work on half of the rows."""
    found = dict(entries)
    if "promotion" in found:
        promotion = read_promotion(bytes(found["promotion"]))
        if promotion.finished_at is None:
            raise Unavailable(
                f"the promotion of {promotion.shown} into this store has not finished;"
                " run `flowfabric promote` again"
            )
    return bytes(found["secret"]) if "secret" in found else None


def check_progress(found: bytes | None, expected: Promotion) -> None:
    if found != write_promotion(expected):
        raise Contention("another process promotes into the same store")


def column_list(columns: Sequence[Column]) -> str:
    return ", ".join(f'"{column.name}"' for column in columns)


def key_list(table: TableLayout) -> str:
    return ", ".join(f'"{name}"' for name in table.key)


def refuse_memory(path: str) -> None:
    if path == ":memory:":
        raise Invalid("a store in memory ends with its process; name a file")
