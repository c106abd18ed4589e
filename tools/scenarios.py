"""Writes docs/design/scenarios.md: which test covers which scenario of the specification.

    python tools/scenarios.py          writes the page
    python tools/scenarios.py --check  fails if the page is not up to date, or a scenario that is
                                       neither overridden nor for later is covered by no test

A test covers a scenario by naming it in its docstring.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "design" / "scenarios.md"
NAMED = re.compile(r"\b(?:E-[TX]\d+|INV-\d+|C-T\d+|I-\d+)\b")

SECTIONS = {
    "Identifiers, codec, policy": ("E-T", range(1, 27)),
    "Create": ("E-T", range(30, 45)),
    "Claim": ("E-T", range(50, 88)),
    "Lease": ("E-T", range(90, 105)),
    "Reclaim": ("E-T", range(110, 124)),
    "Complete, fail, delay": ("E-T", range(130, 155)),
    "Cancel, priority, replay, expiry": ("E-T", [*range(160, 176), *range(180, 199)]),
    "Block, unblock, eligibility": ("E-T", range(200, 203)),
    "Suspend, resume, waitpoints": ("E-T", range(210, 250)),
    "Signals and tokens": ("E-T", range(250, 276)),
    "Composite conditions": ("E-T", range(280, 293)),
    "Keys": ("E-T", range(300, 311)),
    "Reads, tags, lists, subscriptions": ("E-T", range(320, 344)),
    "Additional scenarios": ("E-X", range(1, 29)),
    "Invariants": ("INV-", range(1, 31)),
    "Flows": ("C-T", range(1, 79)),
    "Budgets and quotas": ("C-T", range(79, 99)),
    "Grants, claims and routing": ("C-T", range(99, 112)),
    "Streams": ("C-T", range(112, 126)),
    "Scanners": ("C-T", range(126, 131)),
    "Worker registry": ("C-T", range(131, 133)),
    "Subscriptions and filters": ("C-T", range(133, 139)),
    "Tags, wire forms, partitioning, server": ("C-T", range(139, 146)),
    "Invariants of coordination": ("I-", range(1, 46)),
}

OVERRIDDEN = {
    "the handle is our own opaque, signed text": "E-T017",
    "an active execution is reported as active to every kind of claim": "E-T062 E-T087",
    "a stale fence is always reported as stale": "E-T096",
    "the state after a lost or revoked lease is S6 or S7": "E-T098 E-T100",
    "a cancel does not change the epoch": "E-T165",
    "every ending is recorded, inside a flow or not": "E-T193 E-T224",
    "a reclaim count cannot be negative": "E-T121",
    "literals of the original's store": "E-T327 E-T342 E-T343",
    "rows are locked by key order inside one statement, not by the caller": "INV-16",
    "a worker at capacity does not ask": "E-T080 E-T081",
    "a timeout does what its behaviour says, and is reported by that word": "E-T226 E-T227",
    "a live lease is a conflict for a caller that continues an attempt": "E-T244",
    "a resume is not a completion": "E-T265",
    "a signal of another name is recorded and does nothing": "E-T267",
    "only the signals that counted are observed": "E-T272",
    "a flow is listed as long as it is kept; nothing projects or prunes it": "C-T9",
    "every skip is reported, inside a flow or not": "C-T25",
    "what a join owes is an outbox entry handled once; groups are not drained or reconciled": (
        "C-T46 C-T47"
    ),
    "there are no partitions of rows": "C-T83 C-T110 I-44",
    "a grant is a row that names its worker; nothing is signed": "C-T107",
    "every store offers every operation": "C-T144",
}


def main() -> int:
    found = covered()
    page = "\n".join(lines(found)) + "\n"
    if "--check" not in sys.argv:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    complaints = [f"no test names {name}" for name in missing(found)]
    if not PAGE.exists() or PAGE.read_text("utf-8") != page:
        complaints.append("docs/design/scenarios.md is old: run python tools/scenarios.py")
    print("\n".join(complaints) or "scenarios: in order")
    return 1 if complaints else 0


def covered() -> dict[str, list[str]]:
    """Scenario → the tests that name it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for title, text in docstrings(path):
            for name in NAMED.findall(text):
                places = found.setdefault(name, [])
                if title not in places:
                    places.append(title)
    return found


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text("utf-8"))
    where = path.relative_to(ROOT / "tests").as_posix()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            name = getattr(node, "name", "")
            text = ast.get_docstring(node) or ""
            yield (f"{where}::{name}" if name else where), text


def names(section: str) -> list[str]:
    prefix, numbers = SECTIONS[section]
    width = {"E-T": 3, "E-X": 2, "INV-": 1, "C-T": 1, "I-": 1}[prefix]
    return [f"{prefix}{number:0{width}d}" for number in numbers]


def reason(name: str) -> str | None:
    for why, which in OVERRIDDEN.items():
        if name in which.split():
            return f"overridden: {why}"
    return None


def missing(found: dict[str, list[str]]) -> list[str]:
    return [
        name
        for section in SECTIONS
        for name in names(section)
        if name not in found and reason(name) is None
    ]


def lines(found: dict[str, list[str]]) -> Iterator[str]:
    yield "# Scenarios"
    yield ""
    yield "This page says which test covers which scenario of the behavioural specification."
    yield "`tools/scenarios.py` writes it from the docstrings of the tests; `make check` checks it."
    for section in SECTIONS:
        yield f"\n## {section}\n"
        yield "| scenario | where |"
        yield "|---|---|"
        for name in names(section):
            yield f"| {name} | {where(name, found.get(name, []))} |"


def where(name: str, tests: list[str]) -> str:
    if not tests:
        return reason(name) or "**not covered**"
    shown = ", ".join(f"`{test}`" for test in tests[:3])
    return shown + (f" and {len(tests) - 3} more" if len(tests) > 3 else "")


if __name__ == "__main__":
    sys.exit(main())
