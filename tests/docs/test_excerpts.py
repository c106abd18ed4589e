"""Excerpts of examples: pages show what the tests of the examples run, word for word."""

import re

import pytest

from tests.docs.pages import ROOT

FENCE = "```python3\n"
_EXCERPT = re.compile(
    rf"^<!-- from (?P<file>\S+) -->\n{FENCE}(?P<source>.*?)^```", re.DOTALL | re.MULTILINE
)
PAGES = {page: page.read_text("utf-8") for page in sorted((ROOT / "docs").rglob("*.md"))}
EXCERPTS = [match for text in PAGES.values() for match in _EXCERPT.finditer(text)]


def test_every_excerpt_names_its_file() -> None:
    assert len(EXCERPTS) == sum(text.count(FENCE) for text in PAGES.values())


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda match: match["file"])
def test_the_file_has_the_excerpt(excerpt: "re.Match[str]") -> None:
    assert excerpt["file"].startswith("examples/")
    assert excerpt["source"] in (ROOT / excerpt["file"]).read_text("utf-8")
