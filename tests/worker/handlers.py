"""Plain functions for tasks that run in processes: those must be found by their address."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from flowfabric import Fail, Retry


class Picky(Exception):
    """Cannot be made again from its pickle, as so many."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


def note(path: str) -> None:
    """Writes the process's number in one go, so that nobody reads half of it."""
    draft = Path(f"{path}.{os.getpid()}")
    draft.write_text(str(os.getpid()))
    draft.rename(path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def square(x: int) -> int:
    return x * x


def whoami() -> int:
    return os.getpid()


def nap(path: str, seconds: float = 60.0) -> str:
    """Says in a file that it began, and which process it is."""
    note(path)
    time.sleep(seconds)
    return "slept"


def raises(what: str) -> None:
    errors: dict[str, BaseException] = {
        "fail": Fail("for good"),
        "retry": Retry("soon", after="1h"),
        "picky": Picky(7, "odd"),
        "exit": SystemExit(3),
        "closed": GeneratorExit(),
        "base": BaseException("odd"),
        "plain": ValueError("boom"),
    }
    raise errors[what]


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def run_out_of_memory() -> None:
    """As the kernel ends a process then."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def opaque() -> Any:
    return object()
