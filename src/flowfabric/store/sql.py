"""Named queries from `.sql` files.

A block starts with `-- name: what_it_gives`; comment lines follow, then one statement. What several
statements share is a block of its own, `-- part: what_it_is`, and a line `-- include: what_it_is`
puts it in. A dialect's block replaces the common one of the same name.

The schema name is filled in on loading; statements for records are filled in per kind
(`RecordQueries`). What is common is written as Postgres has it (`{schema}.flow`, `$1`); SQLite has
no schema and writes `?1`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from flowfabric.store.rows.record import RecordKind

_HEAD = re.compile(r"^-- (name|part): (\w+)\s*$", re.MULTILINE)
_INCLUDE = re.compile(r"^ *-- include: (\w+)\s*$")
_VALUE = re.compile(r"\$(?=\d)")


@cache
def load_queries(dialect: str, schema: str = "flowfabric") -> dict[str, str]:
    """Every named query of a dialect, with `{schema}` filled in."""
    root = files("flowfabric.store")
    shared = [file.read_text("utf-8") for file in _sql_files(root / "common")]
    if dialect == "sqlite":
        shared = [_VALUE.sub("?", text.replace("{schema}.", "")) for text in shared]
    texts = [*shared, *(file.read_text("utf-8") for file in _sql_files(root / dialect))]
    return read_blocks(text.replace("{schema}", schema) for text in texts)


def read_blocks(texts: Iterable[str]) -> dict[str, str]:
    """The statements of these texts by name, with the parts they include; a later one replaces an
    earlier one of its name."""
    blocks: dict[str, dict[str, list[str]]] = {"name": {}, "part": {}}
    for text in texts:
        for kind, name, lines in _blocks(text):
            blocks[kind][name] = lines
    return {
        name: _statement(_included(name, lines, blocks["part"], ()))
        for name, lines in blocks["name"].items()
    }


def _included(
    name: str, lines: list[str], parts: Mapping[str, list[str]], around: tuple[str, ...]
) -> Iterator[str]:
    """The lines of a block; those that include a part are replaced by it. `around` are the blocks
    this one is included in."""
    if name in around:
        raise ValueError(f"a part includes itself: {' > '.join((*around, name))}")
    for line in lines:
        match = _INCLUDE.match(line)
        if match is None:
            yield line
        elif match[1] in parts:
            yield from _included(match[1], parts[match[1]], parts, (*around, name))
        else:
            raise ValueError(f"{name} includes {match[1]}, which is no part")


@cache
def load_migrations(dialect: str, schema: str = "flowfabric") -> tuple[str, ...]:
    """The migrations of a dialect in order; number n brings the schema to version n."""
    folder = files("flowfabric.store") / dialect / "migrations"
    return tuple(file.read_text("utf-8").replace("{schema}", schema) for file in _sql_files(folder))


class RecordQueries:
    """The statements of `records.sql`, with the table and the columns of a kind filled in.

    `mark` is how the dialect begins the number of a value ("$" or "?"), `schema` what stands before
    the name of a table.
    """

    def __init__(self, queries: Mapping[str, str], mark: str, schema: str = "") -> None:
        self._queries = queries
        self._mark = mark
        self._schema = schema
        self.fill = cache(self._fill)

    def _fill(self, name: str, kind: RecordKind[Any, Any], where: tuple[str, ...] = ()) -> str:
        """The named statement for a kind; `where` are the columns that narrow a page.

        Values are numbered in the order they are given: those of a row are its key, version,
        columns and document; those of a page its limit, cursor and filters.
        """
        columns = ["version", *kind.columns, "doc"]
        width, whole = len(kind.key), len(kind.key) + len(columns)
        narrowed = enumerate(where, start=width + 2)
        return self._queries[name].format(
            "",
            self._marks(1, 1),
            self._marks(2, 2),
            table=f"{self._schema}{kind.table}",
            key=", ".join(kind.key),
            columns=", ".join(columns),
            due=kind.due,
            keys=self._marks(1, width),
            next=self._marks(width + 1, width + 1),
            values=self._marks(width + 1, whole),
            row=self._marks(1, whole),
            expected=self._marks(whole + 1, whole + 1),
            excluded=", ".join(f"excluded.{column}" for column in columns),
            after=self._marks(2, width + 1),
            where="".join(f" and {column} = {self._mark}{n}" for n, column in narrowed),
            blanks=", ".join("?" * width),
            arrays=", ".join(
                f"{self._mark}{n}::{type}[]" for n, type in enumerate(kind.key.values(), start=1)
            ),
        )

    def owned(self, kind: RecordKind[Any, Any]) -> list[str]:
        """The statements that delete what a record owns; the value is its key."""
        query = self._queries["dropped_owned"]
        return [
            query.format("", self._marks(1, 1), owned=f"{self._schema}{table}", owner=column)
            for table, column in kind.owned.items()
        ]

    def _marks(self, first: int, last: int) -> str:
        return ", ".join(f"{self._mark}{n}" for n in range(first, last + 1))


def _sql_files(folder: Traversable) -> list[Traversable]:
    if not folder.is_dir():
        return []
    found = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(found, key=lambda file: file.name)


def _blocks(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """The blocks of a file: whether it is a name or a part, which, and its lines."""
    _, *found = _HEAD.split(text)
    for kind, name, body in zip(found[::3], found[1::3], found[2::3], strict=True):
        yield kind, name, body.splitlines()


def _statement(lines: Iterable[str]) -> str:
    return "\n".join(line for line in lines if not line.startswith("--")).strip().rstrip(";")
