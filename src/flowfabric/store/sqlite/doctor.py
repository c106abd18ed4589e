"""Reads what a doctor wants to know of a SQLite file, as it is found: no setting is changed."""

import asyncio
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace

from flowfabric.core.base.errors import Unavailable
from flowfabric.core.base.time import Millis
from flowfabric.store.clock import SystemClock
from flowfabric.store.copy import read_promotion, refuse_memory
from flowfabric.store.health import NOT_SWEPT, Examination, Upkeep, judge
from flowfabric.store.open import sqlite_path
from flowfabric.store.sql import load_migrations, load_queries
from flowfabric.store.sqlite.checks import CHECKS, LockHolder, SqliteFacts
from flowfabric.store.sqlite.connection import file_system, mode_of, translate
from flowfabric.store.sqlite.schema import version_of

CHECK_SECONDS = 10.0
"""How long the file is searched for damage."""

_LOCKS = Path("/proc/locks")
_WRITER = 120
_READERS = range(123, 128)
"""Bytes of the `-shm` file that stand for the one who writes, and for five snapshots."""


async def examine(url: str) -> Examination:
    path = _place(url)
    try:
        facts = await asyncio.to_thread(read_facts, path)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    found = judge(path, "sqlite", facts, CHECKS)
    return replace(found, settings={"journal_mode": facts.journal_mode})


def _place(url: str) -> str:
    path = sqlite_path(url)
    refuse_memory(path)
    return os.path.abspath(path)


def read_facts(path: str) -> SqliteFacts:
    if not stat.S_ISREG(mode_of(path)):
        raise Unavailable(f"there is no database at {path}")
    with closing(_connect(path)) as connection:
        objects = _objects(connection, path)
        upkeep = _upkeep(connection)
        mode, pages, empty, page_size, vacuum = (
            connection.execute(f"pragma {name}").fetchone()[0]
            for name in ("journal_mode", "page_count", "freelist_count", "page_size", "auto_vacuum")
        )
        options = {text for (text,) in connection.execute("pragma compile_options")}
        damage, checked = _quick_check(connection)
        log, copied = _checkpoint(connection)
    found = os.stat(path)
    return SqliteFacts(
        path=path,
        files=tuple(name for end in ("", "-wal", "-shm") if os.path.exists(name := path + end)),
        upkeep=upkeep,
        expected=tuple(_snapshot()),
        objects=tuple(objects),
        size=found.st_size,
        wal_size=_size(f"{path}-wal"),
        log_pages=log,
        copied=copied,
        holders=tuple(_holders(path)),
        journal_mode=mode,
        syncs="NO_SYNC" not in options,
        page_size=page_size,
        pages=pages,
        empty_pages=empty,
        incremental=vacuum != 0,
        disk_free=shutil.disk_usage(path).free,
        file_system=file_system(Path(path)),
        mode=stat.S_IMODE(found.st_mode),
        reachable=_is_reachable(Path(path)),
        writable=os.access(path, os.W_OK) and os.access(Path(path).parent, os.W_OK),
        damage=damage,
        checked=checked,
    )


def _connect(path: str) -> sqlite3.Connection:
    """Neither makes a file nor changes how it is written."""
    return sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, isolation_level=None, timeout=5)


def _objects(connection: sqlite3.Connection, path: str) -> list[str]:
    """The statements that made the tables, indexes and views."""
    rows = connection.execute(load_queries("sqlite")["schema_objects"]).fetchall()
    if not any(name == "execution" for name, _ in rows):
        raise Unavailable(f"{path} has no FlowFabric tables; run `flowfabric migrate`")
    return [sql for _, sql in rows]


def _upkeep(connection: sqlite3.Connection) -> Upkeep:
    queries, now = load_queries("sqlite"), SystemClock().now()
    expired, overdue, duty = connection.execute(queries["upkeep"], (now - NOT_SWEPT,)).fetchone()
    promotion = connection.execute(queries["promotion"]).fetchone()
    return Upkeep(
        now=now,
        version=version_of(connection),
        known_version=len(load_migrations("sqlite")),
        promotion=None if promotion is None else read_promotion(bytes(promotion[0])),
        duty_until=None if duty is None else Millis(duty),
        expired_leases=expired,
        overdue=overdue,
    )


def _quick_check(connection: sqlite3.Connection) -> tuple[tuple[str, ...], bool]:
    """What is damaged, and whether all was looked at."""
    until = time.monotonic() + CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    try:
        rows = connection.execute("pragma quick_check(10)").fetchall()
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            return (), False
        return (str(error),), True
    finally:
        connection.set_progress_handler(None, 0)
    return tuple(text for (text,) in rows if text != "ok"), True


def _checkpoint(connection: sqlite3.Connection) -> tuple[int, int]:
    """Pages in the log, and how many of them are copied into the file after one more try, which
    waits for no other process."""
    try:
        _, log, copied = connection.execute("pragma wal_checkpoint(passive)").fetchone()
    except sqlite3.OperationalError:  # a file that may only be read
        return 0, 0
    return max(0, log), max(0, copied)


def _holders(path: str) -> Iterator[LockHolder]:
    """Processes that have the log locked, where the system says so. Opening the file to ask for
    its locks would release those of this process."""
    try:
        found = os.stat(f"{path}-shm")
        lines = _LOCKS.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    seen: set[tuple[int, bool]] = set()
    for line in lines:
        words = line.replace("-> ", "").split()
        if len(words) < 8 or words[1] not in ("POSIX", "OFDLCK") or words[5] != wanted:
            continue
        pid, first = int(words[4]), int(words[6])
        last = first if words[7] == "EOF" else int(words[7])
        writes = first <= _WRITER <= last and words[3] == "WRITE"
        reads = any(first <= place <= last for place in _READERS) and words[3] == "READ"
        if (writes or reads) and pid != os.getpid() and (pid, writes) not in seen:
            seen.add((pid, writes))
            yield LockHolder(pid, _process_name(pid), writes)


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", errors="replace").strip()
    except OSError:
        return "unknown"


def _is_reachable(path: Path) -> bool:
    """Whether every folder above lets other users through."""
    return all(os.stat(folder).st_mode & stat.S_IXOTH for folder in path.parents)


def _snapshot() -> Iterator[str]:
    text = (files("flowfabric.store.sqlite") / "schema.snapshot.sql").read_text("utf-8")
    for statement in text.split(";\n"):
        if statement.strip():
            yield statement.strip()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
