"""The tutorial works word by word: its files are written and its commands are run as printed.

A sentence before a block of Python says what becomes of it: "Save this as `x.py`", "Add this to
`x.py`", "Change this line in `x.py`". In a console block, `$` begins a command and the lines below
are what it prints, with … for what differs. The worker runs in a terminal of its own and is
restarted when `tasks.py` has changed, as the page says.
"""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.check_samples import ROOT, Block, Line, all_blocks, revise, text_of

PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ADDRESS = "postgresql://app:secret@db.internal/app"
_PREPARES = ("pip install ", "python3 -m venv ", ". .venv/bin/activate")
"""What the machine of the tests has done already."""


class Command(NamedTuple):
    line: str
    shows: list[str]


class Terminals:
    """A reader's directory, with one terminal for commands and one for the worker."""

    def __init__(self, folder: Path, postgres: Callable[[], str]) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "FLOWFABRIC_URL"},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._postgres = postgres
        self._files: dict[str, list[Line]] = {}
        self._worker: subprocess.Popen[bytes] | None = None
        self._worker_line = ""
        self._stale = False

    def write(self, block: Block) -> None:
        assert block.file is not None, f"no sentence says what to do with:\n{block.source}"
        _, name = block.file
        self._files[name] = revise(self._files.get(name, []), block)
        (self.folder / name).write_text(text_of(self._files[name]))
        self._stale = self._stale or name == "tasks.py"

    def run(self, command: Command) -> None:
        if command.line.startswith(_PREPARES):
            return
        if command.line.startswith("flowfabric worker "):
            self._worker_line = command.line
            self.start_worker()
            return
        if self._stale and self._worker is not None and "export" not in command.line:
            self.start_worker()
        deadline = time.monotonic() + 30  # a reader is slower than a test
        while (done := self._call(command.line)).returncode and time.monotonic() < deadline:
            time.sleep(0.2)
        missing = _missing(command.shows, done.stdout.splitlines())
        assert missing is None, f"$ {command.line}\n{done.stdout}\nnot printed: {missing}"
        assert done.returncode == 0, f"$ {command.line}\n{done.stdout}"

    def _call(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command in the shell of the reader, which keeps its variables."""
        if _ADDRESS in line:
            line = line.replace(_ADDRESS, f"'{self._postgres()}'")
        kept = self.folder / ".variables"
        script = (
            f"set -a; touch {kept}; . {kept}; {line}\nresult=$?; export -p > {kept}; exit $result"
        )
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )

    def start_worker(self) -> None:
        self.stop_worker()
        kept, log = self.folder / ".variables", self.folder / ".worker.log"
        with log.open("w") as stream:
            self._worker = subprocess.Popen(
                ["bash", "-c", f"touch {kept}; . {kept}; exec {self._worker_line}"],
                cwd=self.folder,
                env=self.environment,
                stdout=stream,
                stderr=stream,
            )
        deadline = time.monotonic() + 60
        while " works on " not in log.read_text():
            assert self._worker.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        self._stale = False

    def stop_worker(self) -> None:
        if self._worker is not None:
            self._worker.send_signal(signal.SIGINT)
            assert self._worker.wait(timeout=60) == 0
            self._worker = None


def _missing(wanted: list[str], printed: list[str]) -> str | None:
    """The first of the wanted lines that is not printed, or not in this order."""
    rest = iter(printed)
    for line in wanted:
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        if not any(pattern.fullmatch(each) for each in rest):
            return line
    return None


def _commands(block: str) -> list[Command]:
    commands: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line.removeprefix("$ "), []))
        else:
            commands[-1].shows.append(line)
    return commands


@pytest.fixture
def terminals(tmp_path: Path, fresh_database: Callable[..., str]) -> Iterator[Terminals]:
    databases: list[str] = []

    def postgres() -> str:
        if not databases:
            databases.append(fresh_database())
        return databases[0]

    terminals = Terminals(tmp_path, postgres)
    yield terminals
    terminals.stop_worker()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_tutorial_works_word_by_word(terminals: Terminals) -> None:
    files = iter(all_blocks(ROOT / "docs" / "tutorial.md"))
    for block in _BLOCK.finditer(PAGE):
        if block[1] == "python":
            terminals.write(next(files))
            continue
        for command in _commands(block[2]):
            terminals.run(command)


def test_every_extra_of_the_tutorial_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {
        name for names in re.findall(r"flowfabric\[([\w,]+)\]", PAGE) for name in names.split(",")
    }
    assert extras <= project["optional-dependencies"].keys()


@pytest.mark.parametrize("page", ["guide/transactions.md", "guide/schedules.md"])
def test_the_tutorial_leads_to(page: str) -> None:
    assert f"]({page})" in PAGE
