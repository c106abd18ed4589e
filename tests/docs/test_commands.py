"""Every command line in the pages can be typed: its command and its options exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from flowfabric.cli.app import app
from tools.check_samples import ROOT, pages

_LINE = re.compile(r"(?:^\$ |`)(flowfabric [^`\n]+)", re.MULTILINE)
_ENDS = re.compile(r"\$\(|[;|&>#)]")
"""Where another command begins, or a comment."""
_WORD = re.compile(r"'[^']*'|\"[^\"]*\"|\S+")


def lines_of(page: Path) -> set[str]:
    found = (line for match in _LINE.findall(page.read_text("utf-8")) for line in match.split("$("))
    return {_ENDS.split(line)[0].strip() for line in found if line.startswith("flowfabric ")}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists(page: Path) -> None:
    complaints = {line: wrong for line in sorted(lines_of(page)) if (wrong := complaint(line))}
    assert complaints == {}


def complaint(line: str) -> str:
    command: Any = typer.main.get_command(app)
    words = _WORD.findall(line)[1:]
    while words and hasattr(command, "commands") and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        name = words.pop(0)
        if name not in command.commands:
            return f"there is no command {name}"
        command = command.commands[name]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    return ", ".join(f"there is no option {name}" for name in sorted(given - known - {"--help"}))


def test_what_does_not_exist_is_found() -> None:
    assert complaint("flowfabric run list --limit 5") == ""
    assert complaint("flowfabric runs") == "there is no command runs"
    assert complaint("flowfabric run list --most=5") == "there is no option --most"
