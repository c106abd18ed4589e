"""wrk, a load tool in C: 32 connections that each send the next request when the last is answered.

It takes a tenth of the CPU of a client in Python, so that the figures are those of the server.
"""

import asyncio
import math
import shutil
from pathlib import Path

import msgspec
from msgspec import Struct

SCRIPT = Path(__file__).with_suffix(".lua")
CONNECTIONS = 32
HOW_TO_INSTALL = (
    "wrk is not installed: apt-get install wrk, dnf install wrk, brew install wrk, or build it "
    "from https://github.com/wg/wrk"
)


class WrkError(Exception):
    """There is no wrk, or not every answer was a success: such a rate means nothing."""


class Answered(Struct, frozen=True):
    """What wrk has counted. Times in milliseconds."""

    requests: int
    seconds: float
    refused: int
    """Answers with a status of 400 or more."""
    broken: int
    """Connections that failed, and requests without an answer in time."""
    p50: float
    p99: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


async def load(
    url: str,
    method: str,
    path: str,
    *,
    seconds: float,
    ids: Path | None = None,
    body: bytes = b"",
    connections: int = CONNECTIONS,
) -> Answered:
    """Requests to `path`, in which `%s` is the next of `ids` (from the first on, and again)."""
    if not has_wrk():
        raise WrkError(HOW_TO_INSTALL)
    running = await asyncio.create_subprocess_exec(
        "wrk", "-t1", f"-c{connections}", f"-d{max(1, math.ceil(seconds))}s", "-s", str(SCRIPT),
        url, "--", method, path, str(ids or ""), body.decode(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await running.communicate()
    return read(output.decode(errors="replace"))


def read(output: str) -> Answered:
    """What the script has printed at the end."""
    for line in output.splitlines():
        word, _, found = line.partition(" ")
        if word == "result":
            answered = msgspec.json.decode(found, type=Answered)
            if answered.refused or answered.broken or not answered.requests:
                raise WrkError(f"not every answer was a success: {found}")
            return answered
    raise WrkError(f"wrk has measured nothing: {output[-500:]}")
