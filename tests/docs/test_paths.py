"""A page that names a file, or a function in it, names one that exists."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACES = ("src/flowfabric", "src/flowfabric/store/sqlite", "tests")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_PATH = re.compile(r"`((?:[\w<>-]+/)+[\w-]+\.(?:py|sql|md))(?:::[\w.]+)?`")
_NAME = re.compile(r"`((?:\w+/)+\w+\.py)::([\w.]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_is_there_that_is_named_on(page: Path) -> None:
    named = set(_PATH.findall(_FENCED.sub("", page.read_text("utf-8"))))
    assert [path for path in sorted(named) if not is_there(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_everything_is_there_that_is_named_in_a_file(page: Path) -> None:
    named = set(_NAME.findall(page.read_text("utf-8")))
    assert [f"{path}::{name}" for path, name in sorted(named) if not is_in(path, name)] == []


def is_there(path: str) -> bool:
    return any(file.exists() for file in files_of(path))


def files_of(path: str) -> list[Path]:
    real = path.replace("<dialect>", "sqlite")
    return [ROOT / place / real for place in ("", *PLACES)]


def is_in(path: str, name: str) -> bool:
    """Whether the file defines it; a test in a class may be named without the class."""
    return any(f".{each}".endswith(f".{name}") for each in _defined_in(path))


@cache  # a page names many tests of one file
def _defined_in(path: str) -> tuple[str, ...]:
    (file,) = (file for file in files_of(path) if file.exists())
    return tuple(_names(ast.parse(file.read_text("utf-8"))))


def _names(node: ast.AST, prefix: str = "") -> Iterator[str]:
    for member in ast.iter_child_nodes(node):
        if isinstance(member, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{member.name}"
            yield from _names(member, f"{prefix}{member.name}.")


def test_the_front_page_leads_to_every_page_for_users() -> None:
    docs = ROOT / "docs"
    folders = ("guide", "howto", "coming-from")
    pages = [*docs.glob("*.md"), *(page for each in folders for page in (docs / each).glob("*.md"))]
    front = (docs / "index.md").read_text("utf-8")
    missing = [page.name for page in pages if f"({page.relative_to(docs).as_posix()})" not in front]
    assert missing == ["index.md"]
