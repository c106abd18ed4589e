"""The record of a run: what was measured, on which machine. One JSON file, written by the
benchmarks here and by those of other systems, and read by the report and by the guard."""

import os
import platform
import sqlite3
import statistics
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct


class RecordError(Exception):
    """The file is not a record, or there is none."""


class Row(Struct):
    """One figure of one system: the samples of all repeats, and their median with its spread."""

    scenario: str
    """What was measured, as a name: `drain`, `lifecycle-100 p99`. Rows of several systems compare
    if the names are the same."""
    system: str
    """`flowfabric-postgres`, `flowfabric-sqlite`, `raw-postgres`, or a peer."""
    unit: str
    """`/s`, `ms`, `MB`, `times`, …"""
    samples: list[float]
    median: float
    low: float
    high: float
    durability: str = ""
    """What survives a power cut, in a few words."""
    goal: str = ""
    ratio: float | None = None
    """The median of the ratios that were taken within a repeat."""
    ratio_of: str | None = None
    """What `ratio` refers to: `raw limit`, `batched claims`, …"""
    cpu_us: float | None = None
    """CPU per execution, of the client and of a database server on this machine."""
    cpu_parts: dict[str, float] | None = None
    """The same by who has used it, where that was counted: `server`, `database`, `client`."""
    wal_bytes: float | None = None
    """Write-ahead log per execution."""
    what: str = ""
    """The sentence that the table shows in place of the name."""
    smaller_is_better: bool = False
    met: bool | None = None
    """Whether the goal was reached; None where there is none, or it is judged elsewhere."""


class Record(Struct):
    machine: dict[str, str]
    rows: list[Row]


def row(scenario: str, system: str, unit: str, samples: list[float], **more: Any) -> Row:
    """A row with median, lowest and highest of its samples."""
    if not samples:
        raise RecordError(f"{scenario} of {system} has no samples")
    return Row(
        scenario=scenario,
        system=system,
        unit=unit,
        samples=samples,
        median=statistics.median(samples),
        low=min(samples),
        high=max(samples),
        **more,
    )


def save(record: Record, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def load(path: Path) -> Record:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        raise RecordError(f"there is no record at {path}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} is not a record: {error}") from None


def machine_facts(**more: str) -> dict[str, str]:
    """What a reader needs to judge the figures, and nothing that names the machine."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    facts = {
        "cores": str(os.cpu_count()),
        "memory": f"{pages * size / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    for package in ("flowfabric", "asyncpg", "uvloop"):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return facts | more
