"""Installs the peers: each into a virtualenv of its own, because some exclude each other."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bench.peers.adapter import last_line

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FOLDER = ROOT / ".venv-peers"
_PIP = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


class InstallError(Exception):
    """A system cannot be installed here."""


def sections(text: str) -> dict[str, list[str]]:
    """The requirements below each heading (`# name`), which a blank line ends."""
    found: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        heading, *lines = block.strip().splitlines() or [""]
        if lines and all(not line.startswith("#") for line in lines):
            found[heading.removeprefix("# ")] = lines
    return found


def python_for(adapter: str) -> Path:
    """The Python that runs this adapter; installs what is missing."""
    if adapter == "flowfabric":
        return Path(sys.executable)
    wanted = sections((HERE / "requirements.txt").read_text()).get(adapter)
    if wanted is None:
        raise InstallError(f"requirements.txt has no section {adapter}")
    folder = FOLDER / adapter
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    if not installed.exists() or installed.read_text().splitlines() != wanted:
        print(f"installing {adapter}: {', '.join(wanted)}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        _run([str(python), *_PIP, *wanted], adapter)
        installed.write_text("\n".join(wanted) + "\n")
    return python


def redis_server() -> str:
    """The program; the system's package if it is missing and may be installed."""
    if found := shutil.which("redis-server"):
        return found
    if not (shutil.which("apt-get") and os.geteuid() == 0):
        raise InstallError("redis-server is not installed")
    print("installing redis-server", flush=True)
    _run(["apt-get", "install", "--yes", "--quiet", "redis-server"], "redis-server")
    return shutil.which("redis-server") or "redis-server"


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = last_line(done.stderr or done.stdout)
        raise InstallError(f"{what} cannot be installed: {said}")
