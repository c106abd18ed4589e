"""Behind the scenes: a temporary directory with the store, and worker processes."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from flowfabric.demo.tasks import HOME_VARIABLE

STOP_WITHIN = 10.0


class WorkerDied(Exception):
    """A worker process ended unexpectedly."""


class Stage:
    """Leaves no process and no file behind when it is closed."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="flowfabric-demo-"))
        self.url = f"sqlite:///{self.home / 'demo.db'}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._leaving: set[str] = set()

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()
        shutil.rmtree(self.home, ignore_errors=True)

    def start(self, name: str) -> int:
        """Starts a worker process; returns its process id."""
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "flowfabric.demo", "worker", self.url, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, HOME_VARIABLE: str(self.home)},
            )
        self._processes[name] = process
        return process.pid

    def kill(self, name: str) -> int:
        """Sends SIGKILL, which the worker cannot handle. Returns the exit code."""
        self._leaving.add(name)
        self._processes[name].kill()
        return self._processes[name].wait(STOP_WITHIN)

    def stop(self, name: str) -> int:
        """Sends SIGTERM: the worker finishes its runs and ends. Returns the exit code."""
        self._leaving.add(name)
        self._processes[name].terminate()
        return self._processes[name].wait(STOP_WITHIN)

    def check(self) -> None:
        """Raises WorkerDied, with the end of its log, if a worker process is missing."""
        for name, process in self._processes.items():
            if name not in self._leaving and process.poll() is not None:
                words = self._log(name).read_text(encoding="utf-8", errors="replace")
                raise WorkerDied(f"worker {name} ended with {process.returncode}\n{words[-2000:]}")

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"
