"""Fails when the tree leaves the plan: five words, equal dialects, unique class names, one retry
loop, no call that loses a cancel, no operation without a caller.

The five words are execution, wait, flow, limit and worker. `core`, `engine` and the tests are cut
by them, so that a newcomer who knows the word knows the folder.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

WORDS = {"execution", "wait", "flow", "limit", "worker"}
EXTRA = {
    "src/flowfabric/core": {"access", "base", "explain"},
    "src/flowfabric/engine": {"access", "commit"},
    "tests/core": {"access", "base", "explain"},
    "tests/conformance": {"access", "explain"},
}
"""Folders beside the five words, for what serves all of them."""

ONE_DIALECT = {
    "sqlite": {"connection.py", "lanes.py", "runner.py", "runners.py", "wal.py"},
    "postgres": {
        "address.py", "clock.py", "dialer.py", "faults.py", "link.py", "listener.py",
        "low_water.py", "wires.py",
        "direct.py", "direct.sql", "lease.py", "moves.py", "names.py", "schema.sql",
    },
}  # fmt: skip
"""What only one dialect has: how it connects and what goes wrong there; what is one statement on
Postgres, and code on SQLite, or code of its own there."""

MOST_METHODS = 70
"""The contract of a store is read in one sitting."""
RECORDS = "RecordStore"
"""The contract of `store.records` comes on top: the same few methods for every kind of document."""

CALLERS = ("worker", "cli", "testing", "demo", "server", "dashboard", "remote", "fabric.py")
"""Who may be the reason that the engine offers an operation, beside another service of it."""

UNCALLED = {
    "claims.held_by", "claims.mark_expired",
    "executions.expire", "executions.get_tag",
    "executions.set_tag",
    "flow_views.eligibility",
    "flows.acknowledge", "flows.cancel_header",
    "grants.eligible", "grants.try_resume",
    "signals.approve",
    "suspensions.expire",
    "views.current_attempt",
}  # fmt: skip
"""Operations that the specification names and that no command and no route offers. The list
only becomes shorter: a new operation comes with its caller."""


def check(root: Path, uncalled: Collection[str] = ()) -> list[str]:
    """The complaints about the tree under `root`, none if it is in order."""
    return [
        *_strange_folders(root),
        *_unequal_dialects(root),
        *_wide_contract(root),
        *_ambiguous_classes(root),
        *_strange_retries(root),
        *_lost_cancels(root),
        *_uncalled_operations(root, uncalled),
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


def _wide_contract(root: Path) -> Iterator[str]:
    path = root / "src/flowfabric/store/contract.py"
    count = sum(
        _is_method(each)
        for _, node in (_nodes(path) if path.exists() else ())
        if isinstance(node, ast.ClassDef) and node.name != RECORDS
        for each in node.body
    )
    if count > MOST_METHODS:
        yield f"store/contract.py asks {count} methods of a store, not {MOST_METHODS}"


def _is_method(node: ast.AST) -> bool:
    """A property is a fact about the store, not a method."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list


def _ambiguous_classes(root: Path) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for path, node in _nodes(root / "src"):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            places[node.name].append(path.relative_to(root).as_posix())
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield f"class {name} has several meanings: {', '.join(found)}"


def _strange_retries(root: Path) -> Iterator[str]:
    """There is one retry loop, so there is one place that gives up."""
    commit = root / "src/flowfabric/engine/commit"
    for path, node in _nodes(root / "src"):
        if not isinstance(node, ast.Call) or _name(node.func) != "RetryExhausted":
            continue
        if commit not in path.parents:
            where = path.relative_to(root).as_posix()
            yield f"{where}:{node.lineno}: use the retry loop of engine/commit/retry.py"


def _lost_cancels(root: Path) -> Iterator[str]:
    """In Python 3.11, `asyncio.wait_for` returns if what it waits for ends as it is cancelled."""
    for path, node in _nodes(root / "src"):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for":
            where = path.relative_to(root).as_posix()
            yield f"{where}:{node.lineno}: wait_for may lose a cancel: use asyncio.timeout"


def _uncalled_operations(root: Path, uncalled: Collection[str]) -> Iterator[str]:
    """An operation is called where a file uses both names, of the service and of the method."""
    package = root / "src/flowfabric"
    used: dict[Path, set[str]] = defaultdict(set)
    for place in (*CALLERS, "engine"):
        for path, node in _nodes(package / place):
            if isinstance(node, ast.Attribute):
                used[path].add(node.attr.lstrip("_") if place == "engine" else node.attr)
    operations = _operations(package / "engine")
    for service, method in operations:
        called = any({service, method} <= names for names in used.values())
        if called is (f"{service}.{method}" in uncalled):
            yield (
                f"engine.{service}.{method} has a caller: take it off UNCALLED"
                if called
                else f"engine.{service}.{method} has no caller in {', '.join(CALLERS)}"
            )
    for name in sorted(set(uncalled) - {f"{service}.{method}" for service, method in operations}):
        yield f"engine.{name} is no operation: take it off UNCALLED"


def _operations(engine: Path) -> list[tuple[str, str]]:
    """Public coroutine methods of public services: `self.lanes = Lanes(…)` makes `lanes` one."""
    methods: dict[str, list[str]] = {}
    services: dict[str, str] = {}
    for path, node in _nodes(engine):
        if isinstance(node, ast.ClassDef):
            methods[node.name] = [
                each.name
                for each in node.body
                if isinstance(each, ast.AsyncFunctionDef) and not each.name.startswith("_")
            ]
        if path.name == "engine.py" and isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Attribute) and isinstance(value, ast.Call):
                services[target.attr] = _name(value.func)
    return [
        (service, method)
        for service, kind in services.items()
        if not service.startswith("_")
        for method in methods.get(kind, ())
    ]


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _nodes(place: Path) -> Iterator[tuple[Path, ast.AST]]:
    paths: Iterable[Path] = [place] if place.is_file() else sorted(place.rglob("*.py"))
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path, node


def main() -> int:
    complaints = check(Path(__file__).resolve().parent.parent, UNCALLED)
    print("\n".join(complaints) or "house: in order")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
