"""The command line without its extra."""

import os
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


@pytest.mark.parametrize("module", ["flowfabric", "flowfabric.cli"])
def test_the_module_is_the_script(module: str) -> None:
    command = [sys.executable, "-m", module, "version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("flowfabric ")


def test_completing_a_command_reads_no_ids() -> None:
    """stdin is a terminal then, on which no one types ids."""
    words = {"COMP_WORDS": "flowfabric run cancel - --rea", "COMP_CWORD": "4"}
    env = {**os.environ, **words, "_FLOWFABRIC_COMPLETE": "complete_bash"}
    command = [sys.executable, "-c", "from flowfabric.cli import main; main()"]
    terminal, _ = os.pipe()
    shell = subprocess.run(
        command, stdin=terminal, capture_output=True, env=env, timeout=120, check=True
    )
    assert shell.stdout.split() == [b"--reason"]
