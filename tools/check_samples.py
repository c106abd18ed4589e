"""Fails when a sample of the documentation does not pass the strict type checker.

Each page becomes one module under `build/samples`: its blocks of Python stand on the lines they
have on the page, and everything else is blank. So a complaint names the line of the page. Where a
sentence before a block names a file ("Save this as `tasks.py`"), the file becomes the module.
The settings are those of `pyproject.toml`; a page may also `await` at its top level and use a name
again, as its reader does at a prompt.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "samples"

_BLOCK = re.compile(
    r"^(?P<foreign><!-- not run: .+ -->\n)?```python\n(?P<source>.*?)^```", re.DOTALL | re.MULTILINE
)
"""A block that shows another library has a comment in front of it, which names the library."""

_FILE = re.compile(r"(Save this as|Add this to|Change this line in) `([\w.]+)`:\s*\Z")
_COMPLAINT = re.compile(r"(?P<path>[^:]+\.py):(?P<line>\d+):(?P<rest>.*)")


class Block(NamedTuple):
    page: Path
    line: int
    """How many lines of the page stand before the source."""

    source: str
    foreign: bool = False
    file: tuple[str, str] | None = None
    """What the sentence before the block says: what to do, and with which file."""


class Line(NamedTuple):
    number: int
    text: str


class Module(NamedTuple):
    path: Path
    """Where it is written, under the package of samples."""

    page: Path
    lines: list[Line]


def pages(root: Path = ROOT) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def all_blocks(page: Path) -> list[Block]:
    """The blocks of Python of a page, in order."""
    text = page.read_text("utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start("source")),
            match["source"],
            match["foreign"] is not None,
            (told[1], told[2]) if (told := _FILE.search(text[: match.start()])) else None,
        )
        for match in _BLOCK.finditer(text)
    ]


def _lines(block: Block) -> list[Line]:
    return [Line(block.line + n, text) for n, text in enumerate(block.source.splitlines(), 1)]


def revise(old: list[Line], block: Block) -> list[Line]:
    """What a file holds after the reader has done with a block what the sentence says."""
    assert block.file is not None
    how, name = block.file
    new = _lines(block)
    if how == "Save this as":
        return new
    if how == "Add this to":
        return [*old, Line(0, ""), Line(0, ""), *new]
    begin = new[0].text.split("(")[0] + "("
    if sum(line.text.startswith(begin) for line in old) != 1:
        raise ValueError(f"{name} does not have exactly one line that begins with {begin}")
    return [new[0] if line.text.startswith(begin) else line for line in old]


def text_of(lines: Iterable[Line]) -> str:
    return "".join(f"{line.text}\n" for line in lines)


def modules_of(page: Path, root: Path = ROOT) -> Iterator[Module]:
    """The modules that the blocks of a page make: one for the page, one for each file it names."""
    path = Path(page.relative_to(root).with_suffix("").as_posix().replace("-", "_"))
    files: dict[str, list[Line]] = {}
    loose: list[Line] = []
    for block in all_blocks(page):
        if block.foreign:
            continue
        if block.file is not None:
            files[block.file[1]] = revise(files.get(block.file[1], []), block)
            continue
        loose += [Line(number, "") for number in range(len(loose) + 1, block.line + 1)]
        loose += _lines(block)
    if loose:
        yield Module(path.with_suffix(".py"), page, loose)
    siblings = re.compile(rf"^from (?={'|'.join(Path(name).stem for name in files)}\b)")
    for name, lines in files.items():
        near = [Line(line.number, siblings.sub("from .", line.text)) for line in lines]
        yield Module(path / name, page, near)


def check(root: Path = ROOT) -> list[str]:
    """What the type checker says about the samples under `root`, nothing if they are in order."""
    folder = root / "build"
    written: dict[str, Module] = {}
    for module in (each for page in pages(root) for each in modules_of(page, root)):
        path = folder / PACKAGE / module.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(module.lines), "utf-8")
        written[path.relative_to(root).as_posix()] = module
    if not written:
        return []
    done = subprocess.run(
        [sys.executable, "-m", "mypy", f"--config-file={ROOT / 'pyproject.toml'}", *written],
        cwd=root,
        env={**os.environ, "MYPYPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return []
    said = [_on_page(line, written, root) for line in done.stdout.splitlines()]
    return said + done.stderr.splitlines()


def _on_page(complaint: str, written: dict[str, Module], root: Path) -> str:
    """A complaint of the type checker with the page and its line instead of the module's."""
    found = _COMPLAINT.fullmatch(complaint)
    if found is None or found["path"] not in written:
        return complaint
    module = written[found["path"]]
    number = module.lines[int(found["line"]) - 1].number
    return f"{module.page.relative_to(root).as_posix()}:{number}:{found['rest']}"


if __name__ == "__main__":
    complaints = check()
    for complaint in complaints:
        print(complaint)
    sys.exit(bool(complaints))
