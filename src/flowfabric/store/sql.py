"""Named queries from `.sql` files.

A block begins with `-- name: what_it_gives`; comment lines follow, then one statement. A
dialect's block replaces the common one of the same name. The schema name is the only token
filled in at load.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+)\s*$")


@cache
def load_queries(dialect: str, schema: str = "flowfabric") -> dict[str, str]:
    """Every named query of a dialect, `{schema}` filled in."""
    root = files("flowfabric.store")
    queries: dict[str, str] = {}
    for folder in ("common", dialect):
        for file in _sql_files(root / folder):
            queries.update(_blocks(file.read_text("utf-8").replace("{schema}", schema)))
    return queries


@cache
def load_migrations(dialect: str, schema: str = "flowfabric") -> tuple[str, ...]:
    """The migrations of a dialect in order; number n brings the schema to version n."""
    folder = files("flowfabric.store") / dialect / "migrations"
    return tuple(file.read_text("utf-8").replace("{schema}", schema) for file in _sql_files(folder))


def _sql_files(folder: Traversable) -> list[Traversable]:
    if not folder.is_dir():
        return []
    found = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(found, key=lambda file: file.name)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    name, lines = None, list[str]()
    for line in text.splitlines():
        match = _NAME.match(line)
        if match is None:
            lines.append(line)
            continue
        if name is not None:
            yield name, _statement(lines)
        name, lines = match[1], []
    if name is not None:
        yield name, _statement(lines)


def _statement(lines: list[str]) -> str:
    return "\n".join(line for line in lines if not line.startswith("--")).strip().rstrip(";")
