"""Seconds of CPU of a process and everything below it. Only the standard library: this runs in the
virtualenv of each peer."""

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def parent(process: int) -> int:
    return int(_stat(process)[1])


def parent_named(process: int, name: str) -> int | None:
    """The parent of a process that a server on this machine may have; None if there is no such
    process here."""
    try:
        found = parent(process)
        return found if Path(f"/proc/{found}/comm").read_text().strip() == name else None
    except (FileNotFoundError, ProcessLookupError):
        return None


def used_below(roots: list[int]) -> float:
    """Of these processes and their descendants, and of children they have waited for."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                below.setdefault(parent(int(entry.name)), []).append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
    ticks, waiting = 0, list(roots)
    while waiting:
        process = waiting.pop()
        waiting += below.get(process, [])
        try:
            ticks += sum(int(field) for field in _stat(process)[11:15])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return ticks / _TICK


def _stat(process: int) -> list[str]:
    """The fields after the name, which may hold spaces: state, parent, …"""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
