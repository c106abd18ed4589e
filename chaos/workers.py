"""The worker processes, and what can happen to a process."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from chaos.worker import TTL_SECONDS

STOP_WITHIN = 15.0


class Workers:
    """Keeps `count` worker processes running: one that has died is started again by `tend`."""

    def __init__(self, count: int, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = {**os.environ, **environment}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._names = 0
        self.overdue: list[str] = []
        for _ in range(count):
            self._processes.append(self._start())

    def tend(self) -> None:
        """Replaces each process that is gone."""
        for place, process in enumerate(self._processes):
            if process.poll() is not None:
                self._processes[place] = self._start()

    def kill(self, dice: random.Random) -> None:
        dice.choice(self._processes).kill()

    def freeze(self, dice: random.Random) -> None:
        """Stops a process for longer than a lease, then lets it continue."""
        process = dice.choice(self._processes)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(TTL_SECONDS * dice.uniform(1.1, 1.6))
            os.kill(process.pid, signal.SIGCONT)

    def drain(self, dice: random.Random) -> None:
        """Sends SIGTERM, as a deploy does; the process must end in time."""
        process = dice.choice(self._processes)
        process.terminate()
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.overdue.append(f"worker {process.pid} did not drain within {STOP_WITHIN:.0f} s")
            process.kill()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self._names += 1
        name = f"worker-{self._names}"
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "chaos.worker", name],
                stderr=log,
                stdout=log,
                env=self._environment,
            )
