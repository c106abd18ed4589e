"""One adapter process, from the side of the runner."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from bench.peers import marks
from bench.peers.adapter import last_line
from bench.peers.catalog import System
from bench.peers.install import ROOT
from bench.peers.servers import Place

Answer = dict[str, Any]


class SessionError(Exception):
    """The system did not do what it was asked."""


def parse(line: str) -> Answer:
    """An answer of the adapter; an error that it reports is raised."""
    try:
        answer = json.loads(line)
    except ValueError:
        raise SessionError(f"not an answer: {line[:200]!r}") from None
    if not isinstance(answer, dict):
        raise SessionError(f"not an answer: {line[:200]!r}")
    if "error" in answer:
        raise SessionError(str(answer["error"]))
    return answer


def environment(system: System, place: Place) -> dict[str, str]:
    found = os.environ | {
        "PEERS_URL": place.url,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "PYTHONWARNINGS": "ignore",
    }
    found |= {f"PEERS_{name}": value for name, value in system.settings.items()}
    if place.server is not None:
        found["PEERS_SERVER"] = str(place.server)
    return found


class Session:
    """Everything that the adapter starts is in its process group, and ends with the session."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._errors = Path(self._folder.name) / "errors.log"
        env = env | {marks.VARIABLE: str(Path(self._folder.name) / "marks")}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,  # what an adapter that ended never read must not come up again at close
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):
            self._write("quit")
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if exc[0] else 5)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        self._folder.cleanup()

    def ask(self, command: str, timeout: float) -> Answer:
        try:
            self._write(command)
            line = self._read(timeout)
        except BrokenPipeError:
            line = b""
        if not line:
            said = last_line(self._errors.read_text(errors="replace"))
            raise SessionError(f"the adapter ended: {said}")
        return parse(line.decode())

    def _write(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{command}\n".encode())

    def _read(self, timeout: float) -> bytes:
        assert self.process.stdout
        stdout, until, line = self.process.stdout.fileno(), time.monotonic() + timeout, b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([stdout], [], [], max(0, until - time.monotonic()))
            if not readable:
                raise SessionError(f"no answer within {timeout:.0f} s")
            if not (part := os.read(stdout, 1 << 16)):
                return b""
            line += part
        return line
