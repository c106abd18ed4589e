"""A page, an error text or a docstring that names a command names one that exists, with options it
has."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from flowfabric.cli.app import app
from tests.docs.pages import ROOT

_COMMAND = re.compile(r"(?:`|\$ |^|\$\()(flowfabric (?![A-Z])[^`\n#$)]*)", re.MULTILINE)
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")
FILES = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py"))
PLACES = [file for file in sorted(FILES) if _COMMAND.search(file.read_text("utf-8"))]
COMMANDS = get_command(app)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.relative_to(ROOT).as_posix())
def test_every_command_is_there_that_is_named_on(place: Path) -> None:
    commands = _COMMAND.findall(place.read_text("utf-8"))
    assert [text for text in commands if list(_unknown(text.split()[1:]))] == []


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("run list --ids", []),
        ("runs", ["runs"]),
        ("flow shows x", ["shows"]),
        ("run list --idss", ["--idss"]),
    ],
)
def test_what_does_not_exist_is_found(text: str, unknown: list[str]) -> None:
    assert list(_unknown(text.split())) == unknown


def _unknown(words: list[str]) -> Iterator[str]:
    """The words and options of a command line that do not exist."""
    command = COMMANDS
    rest = iter(words)
    while isinstance(command, TyperGroup):
        word = next(rest, "…").rstrip(".,;:").split("|")[0]
        if not word.isascii() or word.startswith("-"):
            return
        if word not in command.commands:
            yield word
            return
        command = command.commands[word]
    known = {"--help"}.union(*({*it.opts, *it.secondary_opts} for it in command.params))
    yield from (word for word in _OPTION.findall(" ".join(rest)) if word not in known)
