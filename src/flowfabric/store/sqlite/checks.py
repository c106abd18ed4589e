"""What the facts about a SQLite file mean. Pure functions, one for each kind of trouble."""

import re
import shlex
from collections.abc import Iterator, Mapping

from msgspec import Struct

from flowfabric.store.health import (
    Check,
    Finding,
    Upkeep,
    check_promotion,
    check_sweep,
    check_version,
    note,
    problem,
    warning,
)
from flowfabric.store.sql import load_queries
from flowfabric.store.sqlite.connection import NETWORK

LARGE_WAL = 64 << 20
"""Bytes: a healthy log is cut back to this, and rarely half as long."""
LITTLE_DISK, NO_DISK = 1 << 30, 100 << 20
EMPTY_SHARE = 0.5
EMPTY_BYTES = 256 << 20
OTHERS_READ, OTHERS_WRITE = 0o004, 0o002

FLEETING = frozenset({"tmpfs", "ramfs"})

_OBJECT = re.compile(r"CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW) (\w+)", re.IGNORECASE)


class LockHolder(Struct, frozen=True):
    """Another process that has the file locked: to read (it keeps a snapshot) or to write."""

    pid: int
    name: str
    writes: bool


class SqliteFacts(Struct, frozen=True, kw_only=True):
    """What was read. `log_pages` is how long the log is after a checkpoint was tried, `copied`
    how much of it could be copied into the file."""

    path: str
    files: tuple[str, ...] = ()
    upkeep: Upkeep
    expected: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    size: int = 0
    wal_size: int = 0
    log_pages: int = 0
    copied: int = 0
    holders: tuple[LockHolder, ...] = ()
    journal_mode: str = "wal"
    syncs: bool = True
    """Whether the library asks the system to write to the disk at all."""
    page_size: int = 4096
    pages: int = 0
    empty_pages: int = 0
    incremental: bool = True
    disk_free: int = 1 << 40
    file_system: str | None = None
    mode: int = 0o600
    reachable: bool = False
    """Whether other users can reach the folder."""
    writable: bool = True
    damage: tuple[str, ...] = ()
    checked: bool = True
    """Whether the check for damage came to its end."""


def check_log(facts: SqliteFacts) -> Iterator[Finding]:
    """The log is copied into the file unless a reader keeps an old snapshot."""
    left = facts.log_pages - facts.copied
    readers = [holder for holder in facts.holders if not holder.writes]
    if left > 0 and readers:
        names = ", ".join(f"pid {holder.pid} ({holder.name})" for holder in readers)
        judged = problem if facts.wal_size >= LARGE_WAL else warning
        yield judged(
            f"a reader keeps {left} pages of the log from being copied into the file: {names}",
            "The log grows with every commit as long as that read transaction is open, and every"
            " read becomes slower.",
            *(f"kill {holder.pid}" for holder in readers),
        )
    elif left > 0 and facts.wal_size >= LARGE_WAL:
        yield warning(
            f"{left} pages of the log could not be copied into the file",
            "A process has an old read transaction open; this system does not say which.",
            f"fuser -v {shlex.quote(facts.path)}",
        )
    elif facts.wal_size >= LARGE_WAL:
        yield warning(
            f"the log is {_megabytes(facts.wal_size)} long",
            "It was not cut back, because no process that writes has closed or copied it lately."
            " It takes disk space, and the next process to open the file takes longer.",
            _pragma(facts, "wal_checkpoint(truncate)"),
        )


def check_writer(facts: SqliteFacts) -> Iterator[Finding]:
    for holder in facts.holders:
        if holder.writes:
            yield note(
                f"pid {holder.pid} ({holder.name}) was writing at this moment",
                "That is usual. If it is the same process each time you look, it keeps a write"
                " transaction open, and all others wait for it.",
            )


def check_disk(facts: SqliteFacts) -> Iterator[Finding]:
    needed = max(NO_DISK, facts.size // 10)
    if facts.disk_free < max(LITTLE_DISK, facts.size // 5):
        judged = problem if facts.disk_free < needed else warning
        yield judged(
            f"{_megabytes(facts.disk_free)} of disk space are left; the file has"
            f" {_megabytes(facts.size)}",
            "When the disk is full, every write fails (StoreFull) until there is space.",
            f"df -h {shlex.quote(_folder(facts.path))}",
        )


def check_durability(facts: SqliteFacts) -> Iterator[Finding]:
    if facts.journal_mode != "wal":
        yield warning(
            f"the journal mode is {facts.journal_mode}, not wal",
            "Another program has changed it. Readers and the writer block each other until the"
            " next process of FlowFabric opens the file and changes it back.",
            _pragma(facts, "journal_mode = wal"),
        )
    if not facts.syncs:
        yield problem(
            "the SQLite library of this Python was built without sync (SQLITE_NO_SYNC)",
            "FlowFabric sets synchronous=FULL, which has no effect: writes that were acknowledged"
            " may be lost when the machine loses power.",
            "install a Python, or a libsqlite3, that was built without SQLITE_NO_SYNC",
        )
    if facts.file_system in FLEETING:
        yield problem(
            f"the file is in memory ({facts.file_system})",
            "Every run and every result is gone when the machine starts again.",
            f"mv {shlex.quote(facts.path)} /var/lib/   # with every process stopped",
        )


def check_file_system(facts: SqliteFacts) -> Iterator[Finding]:
    if facts.file_system in NETWORK:
        yield problem(
            f"the file is on a network file system ({facts.file_system})",
            "Locks do not hold there: two machines that write at once damage the file."
            " FlowFabric refuses to open it.",
            f"flowfabric promote sqlite:///{facts.path} postgresql://user@host/database",
        )


def check_permissions(facts: SqliteFacts) -> Iterator[Finding]:
    path = shlex.quote(facts.path)
    if not facts.writable:
        yield problem(
            "this user cannot write the file or its folder",
            "The log is a file of its own beside it, so the folder must be writable as well.",
            f"chown $USER {path} {shlex.quote(_folder(facts.path))}",
        )
    if not facts.reachable:
        return
    if facts.mode & OTHERS_WRITE:
        yield problem(
            "every user of this machine can write the file",
            "Any of them can change runs, or make them do something else.",
            f"chmod 600 {shlex.join(facts.files)}",
        )
    elif facts.mode & OTHERS_READ:
        yield warning(
            "every user of this machine can read the file",
            "It holds the payloads of all runs, and the keys that sign tokens.",
            f"chmod 600 {shlex.join(facts.files)}",
        )


def check_damage(facts: SqliteFacts) -> Iterator[Finding]:
    if facts.damage:
        yield problem(
            f"the file is damaged: {'; '.join(facts.damage[:3])}",
            "Some runs cannot be read. Usually the disk is failing, or the file was copied while it"
            " was written.",
            "stop every process, keep a copy of the file, then",
            f"sqlite3 {shlex.quote(facts.path)} .recover | sqlite3 recovered.db",
        )
    elif not facts.checked:
        yield note(
            "the check for damage was not finished in time",
            "The file is large. What was read so far is in order.",
            _pragma(facts, "quick_check"),
        )


def check_objects(facts: SqliteFacts) -> Iterator[Finding]:
    """Nothing is missing from the schema."""
    if facts.upkeep.version != facts.upkeep.known_version:
        return
    found = {" ".join(sql.split()) for sql in facts.objects}
    for sql in facts.expected:
        match = _OBJECT.match(sql)
        if match is None or " ".join(sql.split()) in found:
            continue
        kind, name = match[1].lower(), match[2]
        if kind == "index":
            yield problem(
                f"index {name} is missing or was changed",
                "Statements that need it read whole tables; a missing unique index also lets the"
                " same row be written twice.",
                load_queries("sqlite")["mend_dropped_index"].format(name=name) + ";",
                " ".join(sql.split()) + ";",
            )
        else:
            yield problem(
                f"{kind} {name} is missing or was changed",
                "It was changed by hand; statements that need it fail.",
                "restore the file from a backup",
            )


def check_space(facts: SqliteFacts) -> Iterator[Finding]:
    empty = facts.empty_pages * facts.page_size
    if facts.incremental or empty < EMPTY_BYTES or facts.empty_pages < EMPTY_SHARE * facts.pages:
        return
    yield warning(
        f"{_megabytes(empty)} of the file are empty and are not given back",
        "It was made by an earlier release. The empty pages are used again, but the file does not"
        " become smaller.",
        f"sqlite3 {shlex.quote(facts.path)} 'pragma auto_vacuum = incremental; vacuum;'"
        "   # with every process stopped",
    )


def _pragma(facts: SqliteFacts, text: str) -> str:
    return f"sqlite3 {shlex.quote(facts.path)} 'pragma {text}'"


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MB"


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


CHECKS: Mapping[str, Check[SqliteFacts]] = {
    "schema version": lambda facts: check_version(facts.upkeep),
    "promotion": lambda facts: check_promotion(facts.upkeep),
    "tables and indexes": check_objects,
    "damage": check_damage,
    "durability": check_durability,
    "file system": check_file_system,
    "permissions": check_permissions,
    "disk": check_disk,
    "log": check_log,
    "writer": check_writer,
    "space": check_space,
    "sweep": lambda facts: check_sweep(facts.upkeep),
}
"""By what they look at, in the order of a report."""
