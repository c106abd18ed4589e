"""The samples of the pages are type-checked as their readers would use them."""

from pathlib import Path

import pytest

from tools.check_samples import ROOT, all_blocks, check, modules_of, pages, text_of

LOOSE = """# A page

```python
import asyncio

names: list[str] = []
```

<!-- not run: another library -->
```python
from elsewhere import anything
```

```python
await asyncio.sleep(0)
async with asyncio.timeout(1):
    found = len(names)
found = "used again"
{last}
```
"""

FILES = """# A page

Save this as `tasks.py`:

```python
size = int("7")
```

Add this to `tasks.py`:

```python
name = "x"
```

Change this line in `tasks.py`:

```python
size = int("8")
```

Save this as `main.py`:

```python
from tasks import name, size
{last}
```
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("No sample.\n")
    return tmp_path


def write(root: Path, text: str, last: str) -> Path:
    page = root / "docs" / "a-page.md"
    page.write_text(text.format(last=last))
    return page


def test_a_page_is_a_module_with_the_lines_of_the_page(root: Path) -> None:
    page = write(root, LOOSE, "names.append(found)")
    (module,) = modules_of(page, root)
    assert module.path == Path("docs/a_page.py")
    assert [line.number for line in module.lines] == list(range(1, len(module.lines) + 1))
    written = page.read_text().splitlines()
    samples = {line.number: line.text for line in module.lines if line.text}
    assert samples.items() <= dict(enumerate(written, 1)).items()
    assert "from elsewhere import anything" not in samples.values()
    assert samples[19] == "names.append(found)"


def test_a_file_of_a_page_is_a_module(root: Path) -> None:
    tasks, main = modules_of(write(root, FILES, "print(size, name)"), root)
    assert text_of(tasks.lines) == 'size = int("8")\n\n\nname = "x"\n'
    assert text_of(main.lines) == "from .tasks import name, size\nprint(size, name)\n"


def test_a_line_that_is_not_there_cannot_be_changed(root: Path) -> None:
    page = write(root, FILES.replace('size = int("8")', "other = f()"), "print(size)")
    with pytest.raises(ValueError, match=r"tasks\.py does not have exactly one line"):
        list(modules_of(page, root))


def test_the_type_checker_reads_every_sample_and_names_the_line_of_the_page(root: Path) -> None:
    write(root, LOOSE, "names.append(1)")
    (root / "docs" / "files.md").write_text(FILES.format(last="print(size + name)"))
    wrong = [line for line in check(root) if ": error: " in line]
    assert [line.split(" error: ")[0] for line in sorted(wrong)] == [
        "docs/a-page.md:19:",
        "docs/files.md:25:",
    ]
    write(root, LOOSE, "names.append(found)")
    (root / "docs" / "files.md").write_text(FILES.format(last="print(size, name)"))
    assert check(root) == []


def test_no_sample_silences_the_type_checker() -> None:
    blocks = [block for page in pages() for block in all_blocks(page) if not block.foreign]
    assert [block for block in blocks if "type: ignore" in block.source] == []
    assert {block.page for block in blocks} >= {ROOT / "README.md", ROOT / "docs/tutorial.md"}
