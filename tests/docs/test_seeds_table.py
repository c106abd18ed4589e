"""The table of the operations of the original names tests and operations that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/design/seeds.md").read_text("utf-8")
PROOFS = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)))
OURS = sorted(set(re.findall(r"`engine\.(\w+)\.(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), PROOFS)
def test_every_proof_is_there(file: str, name: str) -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "tests/conformance").rglob(file)]
    begins = re.compile(rf"^(async )?def {name}\(", re.MULTILINE)
    assert any(begins.search(text) for text in texts), f"{file}::{name}"


@pytest.mark.parametrize(("noun", "operation"), OURS)
def test_every_operation_is_there(noun: str, operation: str) -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / "src/flowfabric/engine").rglob("*.py")]
    (found,) = [text for text in texts if f'"""`engine.{noun}`"""' in text]
    assert re.search(rf"^    (async )?def {operation}\(", found, re.MULTILINE)


def test_no_row_is_without_a_proof() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert [row for row in rows if "::" not in row] == []
