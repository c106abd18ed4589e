"""The tables of a store, whichever database keeps them: what a copy from one to another moves.

Read from the snapshot of the Postgres schema, so that a new table is moved without further code.
The two schemas differ in a few columns only, which are named here; each side of a copy compares the
tables it finds with this layout, and refuses to leave anything behind.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct

from flowfabric.core.base.errors import Corruption, Unavailable

Row = tuple[object, ...]
"""Values in the order of a table's columns: a uuid is its 16 bytes, a truth value is 0 or 1."""

ALONE: Mapping[tuple[str, str], str] = {
    ("flow", "stamp"): "names the last write, for Postgres to recognise its own after a lost reply",
    ("worker", "seen_at"): "no longer used",
    ("worker", "doc"): "no longer used",
}
"""Columns that one dialect has and the other does not need. What is in them is not moved."""

META = "meta"
OWN_KEYS = frozenset({"version", "promotion"})
"""Entries of `meta` that belong to their database and are not moved."""

_TYPES = frozenset(
    {"bigint", "integer", "smallint", "double precision", "boolean", "text", "bytea", "uuid"}
)
_COLUMN = re.compile(r"table (\w+)\.(\w+) (.+?)(?: not null)?( identity)?")
_KEY = re.compile(r"constraint (\w+)_pkey PRIMARY KEY \((.+)\)")
_UNIQUE = re.compile(r"^CREATE UNIQUE INDEX \w+ ON \w+\.(\w+) USING btree \(([a-z_, ]+)\)")


class Column(Struct, frozen=True):
    """`identity`: the database numbers it, and continues after the last number."""

    name: str
    type: str
    identity: bool = False


class TableLayout(Struct, frozen=True):
    """A table; its rows are moved in the order of `key`, which is unique."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def key_of(self, row: Row) -> Row:
        names = [column.name for column in self.columns]
        return tuple(row[names.index(name)] for name in self.key)

    def moves(self, row: Row) -> bool:
        return self.name != META or row[self.columns.index(_META_KEY)] not in OWN_KEYS


_META_KEY = Column("key", "text")


@cache
def load_layout() -> tuple[TableLayout, ...]:
    """Every table of this release, by name."""
    return read_layout(schema_snapshot().splitlines())


def schema_snapshot() -> str:
    """The Postgres schema of this release, as `schema_lines` describes a database."""
    return (files("flowfabric.store.postgres") / "schema.snapshot.sql").read_text("utf-8")


def read_layout(lines: Iterable[str]) -> tuple[TableLayout, ...]:
    columns: dict[str, list[Column]] = {}
    keys: dict[str, tuple[str, ...]] = {}
    for line in lines:
        if found := _COLUMN.fullmatch(line):
            table, name, type, identity = found.groups()
            if (table, name) not in ALONE:
                columns.setdefault(table, []).append(Column(name, type, identity is not None))
        elif found := _KEY.fullmatch(line) or _UNIQUE.fullmatch(line):
            keys.setdefault(found[1], tuple(found[2].split(", ")))
    strange = [
        f"{t}.{c.name}" for t, found in columns.items() for c in found if c.type not in _TYPES
    ]
    if strange:
        raise Corruption(f"columns of a type that no copy knows: {', '.join(strange)}")
    missing = sorted(columns.keys() - keys.keys())
    if missing:
        raise Corruption(f"no unique key is known of the tables {', '.join(missing)}")
    return tuple(TableLayout(name, tuple(columns[name]), keys[name]) for name in sorted(columns))


def check_covered(found: Iterable[tuple[str, str]], where: str) -> None:
    """Raises unless these columns of a database, as (table, column), are those of the layout."""
    known = {(table.name, column.name) for table in load_layout() for column in table.columns}
    strange = set(found) - known - ALONE.keys()
    missing = known - set(found)
    for columns, text in ((strange, "has columns that are not moved"), (missing, "lacks columns")):
        if columns:
            names = ", ".join(sorted(f"{table}.{column}" for table, column in columns))
            raise Unavailable(f"{where} {text}: {names}")
