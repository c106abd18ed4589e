"""The Python blocks of the pages, and how they are run."""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.check_samples import ROOT, Block, all_blocks, pages

__all__ = [
    "ROOT",
    "Block",
    "blocks_of",
    "foreign_blocks_of",
    "new_tests",
    "pages_with_python",
    "run_block",
]


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that are run."""
    return [block for block in all_blocks(page) if not block.foreign]


def foreign_blocks_of(page: Path) -> list[Block]:
    """The blocks of a page that show another library. They are not run."""
    return [block for block in all_blocks(page) if block.foreign]


def pages_with_python() -> list[Path]:
    return [page for page in pages() if blocks_of(page)]


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
