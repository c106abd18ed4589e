"""The statements for records: `records.sql` with the table and the columns of a kind put in."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from flowfabric.store.rows.record import RecordKind


class RecordQueries:
    """`mark` is how the dialect begins the number of a value, `schema` what stands before the name
    of a table."""

    def __init__(self, queries: Mapping[str, str], mark: str, schema: str = "") -> None:
        self._queries = queries
        self._mark = mark
        self._schema = schema
        self.fill = cache(self._fill)

    def _fill(self, name: str, kind: RecordKind[Any, Any], where: tuple[str, ...] = ()) -> str:
        """The named statement for a kind; `where` are columns that a page is narrowed down by.

        Values are numbered as they are given: a row is its key, version, columns, document.
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
