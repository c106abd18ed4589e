"""`flowfabric server` as a process of its own, with its log in a file as in production: a pipe
would make the measuring process read a line for every request."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from bench.cost import process_cpu

_ADDRESS = re.compile(r" on (http://\S+)$", re.MULTILINE)
START = 60.0
"""Seconds that a server may take to start."""


class ServeError(Exception):
    """The server did not start, or has ended; the message has the end of its log."""


class Served(Struct):
    """A running server."""

    url: str
    process: int
    log: Path

    def cpu(self) -> float:
        """Seconds, of all its processes."""
        return process_cpu(self.process)

    def memory(self) -> float:
        """Megabytes that it holds."""
        lines = Path(f"/proc/{self.process}/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines)
        return int(found["VmRSS"].split()[0]) / 1000


@asynccontextmanager
async def served(store: str, *, processes: int = 1) -> AsyncIterator[Served]:
    """A server on this store, ready to answer, that drains at the end."""
    command = [sys.executable, "-m", "flowfabric.cli", "server", "--store", store]
    command += ["--listen", "127.0.0.1:0", "--processes", str(processes)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            running = subprocess.Popen(command, stderr=output, env=os.environ)
        try:
            url = await _address(running, log, processes)
            yield Served(url, running.pid, log)
        finally:
            running.terminate()
            await asyncio.to_thread(running.wait, START)


async def _address(running: "subprocess.Popen[bytes]", log: Path, processes: int) -> str:
    """Where it serves, once every process does."""
    async with asyncio.timeout(START):
        while len(found := _ADDRESS.findall(log.read_text())) < processes:
            if running.poll() is not None:
                raise ServeError(log.read_text()[-1000:])
            await asyncio.sleep(0.05)
    return str(found[0])
