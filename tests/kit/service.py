"""The processes of an example that is a service."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx


class Service:
    """Processes that find the modules in `modules` and work in `place`, where their logs are."""

    def __init__(self, modules: Path, environment: Mapping[str, str], place: Path) -> None:
        path = os.pathsep.join([str(modules), *sys.path])
        self._env = {**os.environ, **environment, "PYTHONPATH": path}
        self._place = place
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, files: tuple[int, ...] = ()) -> "subprocess.Popen[bytes]":
        with (self._place / f"log-{len(self._processes)}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self._place,
                env=self._env,
                stderr=log,
                stdout=log,
                pass_fds=files,
            )
        self._processes.append(process)
        return process

    def run(self, *command: str) -> None:
        """Runs a process to its end."""
        process = self.start(*command)
        assert process.wait(60) == 0, self.log_of(process)

    def log_of(self, process: "subprocess.Popen[bytes]") -> str:
        return (self._place / f"log-{self._processes.index(process)}").read_text()

    def serve(self, app: str, *options: str) -> httpx.Client:
        """The web process, on a socket that accepts connections before it has started."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            number = listening.fileno()
            os.set_inheritable(number, True)
            self.start("-m", "uvicorn", app, f"--fd={number}", *options, files=(number,))
            port = listening.getsockname()[1]
        return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
