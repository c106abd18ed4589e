"""The Python blocks of the pages, and how they are run."""

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(
    r"^(?P<foreign><!-- not run: .+ -->\n)?```python\n(?P<source>.*?)^```", re.DOTALL | re.MULTILINE
)
"""A block that shows another library has a comment in front of it, which names the library."""


class Block(NamedTuple):
    page: Path
    line: int
    source: str


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that are run."""
    return [block for block, foreign in _all_blocks(page) if not foreign]


def foreign_blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that show another library. They are not run."""
    return [block for block, foreign in _all_blocks(page) if foreign]


def _all_blocks(page: Path) -> list[tuple[Block, bool]]:
    text = page.read_text("utf-8")
    return [
        (
            Block(page, text.count("\n", 0, match.start("source")), match["source"]),
            match["foreign"] is not None,
        )
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
