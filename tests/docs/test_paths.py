"""A page that names a file names one that exists."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACES = ("src/flowfabric", "src/flowfabric/store/sqlite", "tests")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_PATH = re.compile(r"`((?:[\w<>-]+/)+[\w-]+\.(?:py|sql|md))(?:::[\w.]+)?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_is_there_that_is_named_on(page: Path) -> None:
    named = set(_PATH.findall(_FENCED.sub("", page.read_text("utf-8"))))
    assert [path for path in sorted(named) if not is_there(path)] == []


def is_there(path: str) -> bool:
    real = path.replace("<dialect>", "sqlite")
    return any((ROOT / place / real).exists() for place in ("", *PLACES))


def test_the_front_page_leads_to_every_page_for_users() -> None:
    docs = ROOT / "docs"
    folders = ("guide", "howto", "coming-from")
    pages = [*docs.glob("*.md"), *(page for each in folders for page in (docs / each).glob("*.md"))]
    front = (docs / "index.md").read_text("utf-8")
    missing = [page.name for page in pages if f"({page.relative_to(docs).as_posix()})" not in front]
    assert missing == ["index.md"]
