"""Fails when the tree leaves the plan: five words, equal dialects, unique class names.

The five words are execution, wait, flow, limit and worker. `core`, `engine` and the tests are cut
by them, so that a newcomer who knows the word knows the folder.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

WORDS = {"execution", "wait", "flow", "limit", "worker"}
EXTRA = {
    "src/flowfabric/core": {"base", "explain"},
    "src/flowfabric/engine": {"commit"},
    "tests/core": {"base", "explain"},
    "tests/conformance": {"explain"},
}
"""Folders beside the five words, for what serves all of them."""

ONE_DIALECT = {
    "sqlite": {"connection.py", "lanes.py", "runner.py", "runners.py", "wal.py"},
    "postgres": {
        "address.py", "clock.py", "dialer.py", "faults.py", "link.py", "wires.py",
        "direct.py", "direct.sql", "lease.py", "moves.py", "names.py", "schema.sql", "states.py",
    },
}  # fmt: skip
"""What only one dialect has: how it connects and what goes wrong there; what is one statement on
Postgres, and code on SQLite, or code of its own there."""

TWO_MEANINGS = {
    "Held", "Session",
}  # fmt: skip
"""Class names that still have two meanings. The list only becomes shorter."""


def check(root: Path, two_meanings: set[str]) -> list[str]:
    """The complaints about the tree under `root`, none if it is in order."""
    return [
        *_strange_folders(root),
        *_unequal_dialects(root),
        *_ambiguous_classes(root, two_meanings),
    ]


def _strange_folders(root: Path) -> Iterator[str]:
    for layer, extra in EXTRA.items():
        words = WORDS | extra
        for folder in sorted({path.parent for path in (root / layer).glob("*/*.py")}):
            if folder.name not in words:
                yield f"{layer}/{folder.name}: a folder is one of {', '.join(sorted(words))}"


def _unequal_dialects(root: Path) -> Iterator[str]:
    store = root / "src/flowfabric/store"
    files = {
        dialect: {
            file.name
            for file in (store / dialect).glob("*")
            if file.suffix in {".py", ".sql"} and not file.name.startswith("schema.snapshot")
        }
        - alone
        for dialect, alone in ONE_DIALECT.items()
    }
    for dialect, other in (("sqlite", "postgres"), ("postgres", "sqlite")):
        for name in sorted(files[dialect] - files[other]):
            yield f"store/{dialect}/{name}: there is no store/{other}/{name}"


def _ambiguous_classes(root: Path, two_meanings: set[str]) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for path, node in _nodes(root / "src"):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            places[node.name].append(path.relative_to(root).as_posix())
    for name, found in sorted(places.items()):
        if len(found) > 1 and name not in two_meanings:
            yield f"class {name} has several meanings: {', '.join(found)}"
    for name in sorted(two_meanings):
        if len(places[name]) < 2:
            yield f"class {name} has one meaning: take it off TWO_MEANINGS"


def _nodes(place: Path) -> Iterator[tuple[Path, ast.AST]]:
    paths: Iterable[Path] = [place] if place.is_file() else sorted(place.rglob("*.py"))
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path, node


def main() -> int:
    complaints = check(Path(__file__).resolve().parent.parent, TWO_MEANINGS)
    print("\n".join(complaints) or "house: in order")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
