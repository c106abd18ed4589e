"""Fails when a text uses a word that hides the actor, a name that is no longer used, or has the
marks of a merge that was left half done.

It reads the docs, the SQL, and the comments and strings of the code: docstrings, errors, log
lines. Say which worker, run, caller or process does what. The glossary has the names.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

WORDS = {
    r"whoever|whosoever": "name the actor",
    r"nobody|somebody": "name the actor",
    r"anew": "say again",
    r"belongs? into": "say belongs to, or put … in",
    r"takes? \w+(?: \w+)? along": "say what happens to the others",
    r"at the door|the door to": "say gate or inbox",
    r"stands? in (?:a )?line": "say waits in a line",
    r"doorkeeper|settler|whereabouts|bookkeeping": "the glossary has the new name",
}
PATTERN = re.compile(
    "|".join(rf"(?P<w{n}>\b(?:{words})\b)" for n, words in enumerate(WORDS)), re.IGNORECASE
)

CONFLICT = re.compile(r"^[<>]{7} .*$", re.MULTILINE)

ROOT = Path(__file__).resolve().parent.parent
READ = {"COMMENT", "STRING", "FSTRING_MIDDLE"}
FOLDERS = ("src", "docs", "examples", "chaos")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FROZEN = ("migrations/", "docs/design/scenarios.md")
"""Texts that never change, or that are generated from the names of tests."""

ALLOWED: frozenset[str] = frozenset()
"""Files that still use such words. The list only becomes shorter."""


def check(root: Path, allowed: frozenset[str] = ALLOWED) -> list[str]:
    """The complaints about the texts under `root`, none if they are in order."""
    found: dict[str, list[str]] = {}
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        if complaints := list(_complaints(path, name)):
            found[name] = complaints
    strange = [text for name in sorted(found.keys() - allowed) for text in found[name]]
    return strange + [f"{name}: take it off ALLOWED" for name in sorted(allowed - found.keys())]


def _files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".py", ".md", ".sql"} and not any(
                name in str(path) for name in FROZEN
            ):
                yield path
    yield from (root / page for page in PAGES if (root / page).exists())


def _complaints(path: Path, name: str) -> Iterator[str]:
    for line, text in _texts(path):
        for found in PATTERN.finditer(text):
            number = int(str(found.lastgroup)[1:]) if found.lastgroup else 0
            at = line + text.count("\n", 0, found.start())
            yield f"{name}:{at}: {found[0]!r}: {list(WORDS.values())[number]}"
        for found in CONFLICT.finditer(text):
            at = line + text.count("\n", 0, found.start())
            yield f"{name}:{at}: {found[0]!r}: decide which side stays"


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts in a file that people read, each with its first line."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if tokenize.tok_name[token.type] in READ:
            yield token.start[0], token.string


def main() -> int:
    complaints = check(ROOT)
    print("\n".join(complaints) or "prose: in order")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
