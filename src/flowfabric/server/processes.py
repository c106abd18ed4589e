"""Listening sockets, and several server processes on one: each accepts from it.

The parent only watches. A process that ends by itself is started again; on SIGTERM or SIGINT all
of them drain, and a second signal stops them at once. The standard input of each is a pipe of the
parent: it ends with the parent, however that ends, and then they drain as well.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from flowfabric.core.base.errors import Invalid
from flowfabric.server.options import ListenAddress

log = logging.getLogger("flowfabric.server")

SOCKET_VARIABLE = "FLOWFABRIC_LISTEN_FD"
"""The number of the listening socket that a process inherits."""
BACKLOG = 2048
LOOK_EVERY = 0.2
RESTART_AFTER = 1.0
"""Seconds before a process that ended is started again, so that one which cannot start does not
keep a core busy."""
SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""Where the processes keep their metrics, so that each can answer for all of them."""


def bind(address: ListenAddress) -> socket.socket:
    """A listening socket. Invalid says which address cannot be used, and why."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # With its protocol named, asyncio sends small answers at once instead of waiting for more.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address.host, address.port))
        found.listen(BACKLOG)  # from now on connections wait for the server instead of failing
    except OSError as error:
        found.close()
        raise Invalid(f"cannot listen on {address}: {error.strerror or error}") from None
    found.set_inheritable(True)
    return found


def inherited_socket(environ: Mapping[str, str]) -> socket.socket | None:
    """The listening socket of the parent, None in a process that has none."""
    number = environ.get(SOCKET_VARIABLE)
    return None if number is None else socket.socket(fileno=int(number))


class ServerProcesses:
    """`ServerProcesses(arguments, listening, 2).run()` ends when all of them have ended."""

    def __init__(self, arguments: Sequence[str], listening: socket.socket, count: int) -> None:
        self._command = [sys.executable, "-m", "flowfabric.cli", *arguments]
        self._listening = listening
        self._count = count
        self._children: list[subprocess.Popen[bytes]] = []
        self._signals = 0
        self._shared = ""
        self._pipe: int | None = None

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._pipe, _kept_open = os.pipe()
        with TemporaryDirectory(prefix="flowfabric-metrics-") as shared:
            self._shared = os.environ.get(SHARED_DIRECTORY, shared)
            self._watch()

    def _watch(self) -> None:
        self._children = [self._start() for _ in range(self._count)]
        passed_on = 0
        while any(child.poll() is None for child in self._children) or not self._signals:
            if passed_on < self._signals:
                passed_on += 1
                self._terminate()
            elif not self._signals:
                self._replace_ended()
            time.sleep(LOOK_EVERY)

    def _start(self) -> subprocess.Popen[bytes]:
        number = self._listening.fileno()
        environ = {
            **os.environ,
            SOCKET_VARIABLE: str(number),
            SHARED_DIRECTORY: self._shared,
        }
        # Ctrl-C reaches the parent alone, which passes it on once.
        return subprocess.Popen(  # noqa: S603 - our own command line
            self._command,
            env=environ,
            stdin=self._pipe,
            pass_fds=[number],
            start_new_session=True,
        )

    def _replace_ended(self) -> None:
        for place, child in enumerate(self._children):
            if child.poll() is not None:
                log.error(
                    "server process %d ended with code %d; starting another",
                    child.pid,
                    child.returncode,
                )
                self._forget(child.pid)
                time.sleep(RESTART_AFTER)
                if self._signals:
                    return
                self._children[place] = self._start()

    def _forget(self, process: int) -> None:
        """Takes what was open in a process that has ended out of the metrics of all."""
        for path in Path(self._shared).glob(f"gauge_live*_{process}.db"):
            path.unlink(missing_ok=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Only counts: a process that is just being started is not in the list yet."""
        self._signals += 1

    def _terminate(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.terminate()
