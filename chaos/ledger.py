"""The ledger: one file that handlers and the submitter append to, outside the engine.

A line is one JSON array. Each is written by one `write` to a file opened for appending, so the
order of the lines is the order in which things happened, over all processes.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """`at` is CLOCK_MONOTONIC, which all processes of a machine share."""

    what: str
    run: str
    name: str
    value: str
    pid: int
    at: float


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, what: str, run: str, name: str = "", value: str = "") -> None:
        line = json.dumps([what, run, name, value, os.getpid(), time.monotonic()]) + "\n"
        os.write(self._file, line.encode())

    def read(self) -> Iterator[Line]:
        for text in self.path.read_text(encoding="utf-8").splitlines():
            yield Line(*json.loads(text))
