"""The check of the words that people read."""

from pathlib import Path

import pytest

from tools import check_prose


def written(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    "text",
    [
        "Whoever asks first wins.",
        "It is decided anew.",
        "A cancel takes its flows along.",
        "The doorkeeper refuses it.",
        "Larger things belong into a file.",
    ],
)
def test_a_text_that_hides_the_actor_is_refused(tmp_path: Path, text: str) -> None:
    (complaint,) = check_prose.check(written(tmp_path, "docs/page.md", f"# A page\n\n{text}\n"))
    assert complaint.startswith("docs/page.md:3: ")


def test_a_merge_that_was_left_half_done_is_refused(tmp_path: Path) -> None:
    text = "# A page\n\n<<<<<<< HEAD\nours\n=======\ntheirs\n>>>>>>> theirs\n"
    found = check_prose.check(written(tmp_path, "docs/page.md", text))
    assert [complaint.split(":")[1] for complaint in found] == ["3", "7"]


def test_code_is_read_where_people_read_it(tmp_path: Path) -> None:
    source = 'nobody = 1  # counted anew\n"""Docstring."""\nlog = f"somebody took {log}"\n'
    found = check_prose.check(written(tmp_path, "src/a.py", source))
    assert [complaint.split(":")[1] for complaint in found] == ["1", "3"]


def test_the_line_of_a_word_is_told_within_a_docstring(tmp_path: Path) -> None:
    source = '"""One line,\nand somebody on the second."""\n'
    (complaint,) = check_prose.check(written(tmp_path, "src/a.py", source))
    assert complaint.startswith("src/a.py:2: ")


def test_an_exception_must_be_needed(tmp_path: Path) -> None:
    root = written(tmp_path, "src/a.py", "# somebody\n")
    assert check_prose.check(root, frozenset({"src/a.py"})) == []
    written(root, "src/a.py", "# a worker\n")
    assert check_prose.check(root, frozenset({"src/a.py"})) == ["src/a.py: take it off ALLOWED"]


def test_the_texts_are_in_order() -> None:
    assert check_prose.check(check_prose.ROOT) == []
