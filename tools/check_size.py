"""Fails when a file, a function or a class outgrows its limit.

A function is measured by its body without the docstring. An exception is named by its path
(`src/a.py`), or by path and name (`src/a.py::Class.method`), and has to be needed: the list only
shrinks.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILE_LINES = 700
FUNCTION_LINES = 40
CLASS_METHODS = 25

EXCEPTIONS: dict[str, int] = {}
"""What may be larger, and how large."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Measure(NamedTuple):
    name: str
    size: int
    limit: int
    unit: str


def check(root: Path, exceptions: dict[str, int]) -> list[str]:
    """The complaints about the tree under `root`, none if it is in order."""
    measures = list(measure_tree(root))
    large = {m.name for m in measures if m.size > m.limit}
    unneeded = [f"{name}: exception no longer needed" for name in sorted(exceptions.keys() - large)]
    return unneeded + [
        f"{m.name}: {m.size} {m.unit}, at most {exceptions.get(m.name, m.limit)}"
        for m in measures
        if m.size > exceptions.get(m.name, m.limit)
    ]


def measure_tree(root: Path) -> Iterator[Measure]:
    for folder in ("src", "tests", "bench", "chaos", "tools"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".py", ".sql"}:
                yield from measure_file(path, path.relative_to(root).as_posix())


def measure_file(path: Path, name: str) -> Iterator[Measure]:
    text = path.read_text(encoding="utf-8")
    yield Measure(name, len(text.splitlines()), FILE_LINES, "lines")
    if path.suffix == ".py" and name.startswith("src/"):
        yield from measure_nodes(ast.parse(text, name), f"{name}::")


def measure_nodes(parent: ast.AST, prefix: str) -> Iterator[Measure]:
    for node in ast.iter_child_nodes(parent):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Measure(f"{prefix}{name}", body_lines(node), FUNCTION_LINES, "lines")
                yield from measure_nodes(node, f"{prefix}{name}.")
            case ast.ClassDef(name=name, body=body):
                methods = len({member.name for member in body if isinstance(member, Function)})
                yield Measure(f"{prefix}{name}", methods, CLASS_METHODS, "methods")
                yield from measure_nodes(node, f"{prefix}{name}.")
            case _:
                yield from measure_nodes(node, prefix)


def body_lines(function: Function) -> int:
    has_docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if has_docstring else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def main() -> int:
    complaints = check(Path(__file__).parent.parent, EXCEPTIONS)
    print("\n".join(complaints) or "sizes: in order")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
