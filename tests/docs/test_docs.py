"""Every Python block of every page works. The blocks of a page share one namespace, and every
Fabric they make is in a harness of the testing kit."""

import ast
import inspect
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flowfabric import Fabric
from flowfabric.testing import Harness
from tests.docs.pages import (
    ROOT,
    blocks_of,
    foreign_blocks_of,
    new_tests,
    pages_with_python,
    run_block,
)

ON_FILES = {"docs/guide/transactions.md"}
"""Pages about connections of one's own, which lead to a file and not to a harness."""

AS_PRINTED = {"docs/tutorial.md"}
"""Pages whose blocks are files, written and run as printed: see test_tutorial.py."""

PAGES = [
    name
    for page in pages_with_python()
    if (name := page.relative_to(ROOT).as_posix()) not in AS_PRINTED
]


@pytest.fixture
def on_benches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every Fabric that is made is put in a harness at once."""
    plain = Fabric.__init__
    with ExitStack() as stack:

        def init(self: Fabric, *args: Any, **kwargs: Any) -> None:
            plain(self, *args, **kwargs)
            stack.enter_context(Harness(self).lent())

        monkeypatch.setattr(Fabric, "__init__", init)
        yield


@pytest.fixture
def page_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Where the blocks of a page live, so that what they define has an address."""
    module = ModuleType("page_under_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ON_FILES])
async def test_the_code_works_on(
    page: str,
    on_benches: None,
    page_module: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fabric_harness: Callable[[Fabric], Harness],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWFABRIC_URL", raising=False)
    names = page_module.__dict__
    for block in blocks_of(ROOT / page):
        before = set(names)
        await run_block(block, names)
        for test in new_tests(names, before):
            await call_test(test, names, fabric_harness)


async def call_test(
    test: Callable[..., Any], names: dict[str, Any], put: Callable[[Fabric], Harness]
) -> None:
    """Calls a test function of a page with what the fixtures of the kit would give it."""
    wanted = inspect.signature(test).parameters
    offered: dict[str, Any] = {"fabric_harness": put}
    if "harness" in wanted:
        offered["harness"] = put(names["fabric"])
    result = test(**{name: offered[name] for name in wanted})
    if inspect.iscoroutine(result):
        await result


@pytest.mark.parametrize("page", [page for page in PAGES if page in ON_FILES])
async def test_the_code_works_on_a_file_on(
    page: str, page_module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = page_module.__dict__
    try:
        for block in blocks_of(ROOT / page):
            await run_block(block, names)
    finally:
        await names["fabric"].close()
        for value in names.values():
            if isinstance(value, sqlite3.Connection):
                value.close()


def test_the_first_task_of_the_readme_works_when_pasted(tmp_path: Path) -> None:
    """In a process of its own, with a real worker on a real file."""
    _, script = blocks_of(ROOT / "README.md")
    (tmp_path / "first.py").write_text(script.source)
    done = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    printed = ["measuring Lisbon", "attempt 1", "attempt 2", "6 degrees in Lisbon"]
    assert done.stdout.splitlines() == printed, done.stderr


FOREIGN = {"docs/coming-from/celery.md", "docs/coming-from/dbos.md", "docs/coming-from/temporal.md"}
"""Pages that show the same program in another library."""


def test_only_these_pages_show_other_libraries() -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    found = {page.relative_to(ROOT).as_posix() for page in pages if foreign_blocks_of(page)}
    assert found == FOREIGN


@pytest.mark.parametrize("page", sorted(FOREIGN))
def test_a_block_that_is_not_run_is_python_without_flowfabric_on(page: str) -> None:
    for block in foreign_blocks_of(ROOT / page):
        ast.parse(block.source)
        assert "flowfabric" not in block.source


def test_no_block_of_python_escapes_the_tests() -> None:
    """Written as ```py, indented, or with attributes, a block would not be found."""
    fence = re.compile(r"^\s*(?:```|~~~).*\bpy(?:thon)?\b")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines()]
    assert {line for line in lines if fence.match(line)} == {"```python"}
