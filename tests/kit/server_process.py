"""`flowfabric server` as a process of its own, on a free port of the loopback address."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_ADDRESS = re.compile(r"on (http://\S+)$")
ROOT = Path(__file__).parents[2]


class ServerProcess:
    """A running server. Its log is in `lines`."""

    def __init__(
        self,
        *arguments: str,
        listen: str = "127.0.0.1:0",
        environ: Mapping[str, str] = {},
    ) -> None:
        command = [sys.executable, "-m", "flowfabric.cli", "server", *arguments]
        own = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*command, "--listen", listen],
            env={**os.environ, **own, **environ},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._address: str | None = None
        self._serving = threading.Event()
        self._written = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """Its address, once it serves."""
        self._serving.wait(60)
        assert self._address is not None, "\n".join(self.lines)
        return self._address

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._written:
                self.lines.append(line.rstrip())
                self._written.notify_all()
            if found := _ADDRESS.search(line.rstrip()):
                self._address = found[1]
                self._serving.set()
        self._serving.set()

    def logged(self, text: str) -> None:
        """Waits until its log has this text."""
        with self._written:
            assert self._written.wait_for(lambda: self._has_logged(text), 30), self.lines

    def _has_logged(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def kill(self) -> None:
        """As a machine that loses power does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Asks it to drain, and gives its exit code."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended and its log is read."""
        code = self.process.wait(60)
        self._reader.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@contextmanager
def server_process(*arguments: str, environ: Mapping[str, str] = {}) -> Iterator[ServerProcess]:
    server = ServerProcess(*arguments, environ=environ)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
