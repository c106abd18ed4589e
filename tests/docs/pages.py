"""The Python blocks of the pages, and how they are run."""

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    page: Path
    line: int
    source: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(page, text.count("\n", 0, match.start(1)), match.group(1))
        for match in _BLOCK.finditer(text)
    ]


def pages_with_python() -> list[Path]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if blocks_of(page)]


async def run_block(block: Block, names: dict[str, Any]) -> None:
    """Runs a block in a namespace, with `await` wherever the page has it. An error shows the line
    of the page."""
    source = "\n" * block.line + block.source
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(source, str(block.page), "exec", flags=flags, dont_inherit=True)
    result = eval(code, names)  # noqa: S307 - our own pages
    if inspect.iscoroutine(result):
        await result


def new_tests(names: dict[str, Any], before: set[str]) -> list[Callable[..., Any]]:
    """The test functions that a block has defined, in order."""
    return [
        value
        for name, value in names.items()
        if name not in before and name.startswith("test_") and inspect.isfunction(value)
    ]
