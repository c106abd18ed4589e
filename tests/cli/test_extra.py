"""The command line without its extra."""

import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules[{!r}] = None; from flowfabric.cli import main; main()"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_how_to_install_it(missing: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "flowfabric: the command line needs an extra: pip install 'flowfabric[cli]'\n"
    )


def test_the_module_is_the_script() -> None:
    command = [sys.executable, "-m", "flowfabric.cli", "version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("flowfabric ")
