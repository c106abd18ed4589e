"""Connections to one database file: how they are opened, and what their errors mean."""

import os
import sqlite3
from pathlib import Path
from stat import S_ISDIR

from flowfabric.core.base.errors import (
    Corruption,
    FlowFabricError,
    Invalid,
    StoreFull,
    StoreReadOnly,
    Unavailable,
)

MEMORY = ":memory:"
OLDEST = (3, 35, 0)
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "fuse.sshfs"})
"""File systems whose locks do not hold."""
SYNCHRONOUS = frozenset({"NORMAL", "FULL", "EXTRA"})

_MOUNTS = Path("/proc/self/mounts")

# Nothing is cached twice: statements are few, but each comes in several widths.
_STATEMENTS = 512

_INCREMENTAL = 2
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_NOT_DATA = (sqlite3.OperationalError, sqlite3.InternalError)


def check_path(path: str) -> str:
    """The path as an absolute one; `Unavailable` when no database can live there."""
    if path == MEMORY:
        return path
    if not path or "\0" in path:
        raise Unavailable(f"{path!r} is not the path of a database")
    full = Path(path).absolute()
    if S_ISDIR(mode_of(full)):
        raise Unavailable(f"{full} is a directory, not a database")
    if not S_ISDIR(mode_of(full.parent)):
        raise Unavailable(f"{full.parent} does not exist, so {full.name} cannot be made there")
    if (kind := file_system(full)) in NETWORK:
        raise Unavailable(f"{full} is on a network file system ({kind}), whose locks do not hold")
    return str(full)


def mode_of(path: str | Path) -> int:
    """The mode of what has this path, 0 where nothing has it; `Unavailable` when the system does
    not say."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise Unavailable(f"{path} cannot be reached: {error.strerror}") from error


def check_library() -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Unavailable(f"SQLite {oldest} or later is needed, this is {sqlite3.sqlite_version}")


def connect(path: str, synchronous: str) -> sqlite3.Connection:
    """A connection that waits for no lock and opens no transaction by itself."""
    if synchronous not in SYNCHRONOUS:
        raise Invalid(f"synchronous must be one of {', '.join(sorted(SYNCHRONOUS))}")
    connection = sqlite3.connect(
        path,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )
    try:
        _configure(connection, path, synchronous)
    except BaseException:
        connection.close()
        raise
    return connection


class OpenFile:
    """The files behind open connections. One that was deleted or replaced can still be written to,
    and everything written there is gone when the last connection closes."""

    def __init__(self, path: str) -> None:
        self._path = path
        names = () if path == MEMORY else (path, f"{path}-wal")
        self._files = {name: _identity_of(name) for name in names}

    def check(self) -> None:
        """Raises `Unavailable` when what is open is no longer what has the name."""
        for name, known in self._files.items():
            found = _identity_of(name)
            if found == known:
                continue
            if known is None:
                self._files[name] = found  # the log is there since the first write
            elif found is None:
                raise Unavailable(f"{name} was deleted while this process had it open")
            else:
                raise Unavailable(f"{name} was replaced while this process had it open")


def busy(error: BaseException) -> bool:
    """Whether another connection is in the way and waiting a little helps."""
    return _primary(error) in _BUSY


def translate(error: Exception, path: str) -> Exception:
    """What a caller is told. An error that is not about the database stays as it is."""
    match error:
        case FlowFabricError():
            return error
        case OverflowError() | UnicodeEncodeError():
            return Invalid(f"a value cannot be stored: {error}")
        case sqlite3.Error():
            return _translate(error, path)
        case _:
            return error


def _translate(error: sqlite3.Error, path: str) -> FlowFabricError:
    match _primary(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(f"{path} was locked by another process for too long")
        case sqlite3.SQLITE_READONLY:
            return StoreReadOnly(f"{path}: {error}{_unwritable(path)}")
        case sqlite3.SQLITE_CANTOPEN if why := _unwritable(path):
            return StoreReadOnly(f"{path}: {error}{why}")
        case sqlite3.SQLITE_FULL:
            return StoreFull(f"{path}: {error}")
        case sqlite3.SQLITE_CORRUPT:
            return Corruption(f"{path}: {error}")
        case _ if isinstance(error, _NOT_DATA) or type(error) is sqlite3.DatabaseError:
            return Unavailable(f"{path}: {error}")
        case _:
            return Invalid(f"a value cannot be stored: {error}")


def _unwritable(path: str) -> str:
    """What to do where this process may not write the file or its folder; empty where it may."""
    folder = str(Path(path).absolute().parent)
    made = (each for each in (path, folder) if os.path.exists(each))
    if path == MEMORY or all(os.access(each, os.W_OK) for each in made):
        return ""
    return f"; let this user write the file, and {folder} for the log beside it"


def _identity_of(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"{path}: {error}") from error
    return found.st_dev, found.st_ino


def _primary(error: BaseException) -> int | None:
    """The error code without its extension, None when there is none."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def _configure(connection: sqlite3.Connection, path: str, synchronous: str) -> None:
    # Before anything is written: it cannot be had later without rewriting the whole file. Setting
    # it takes the write lock and waits for the disk, so it is set only where it is not.
    if connection.execute("pragma auto_vacuum").fetchone()[0] != _INCREMENTAL:
        connection.execute("pragma auto_vacuum = incremental")
    mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
    if path != MEMORY and mode != "wal":
        raise StoreReadOnly(f"{path} cannot be switched to a write-ahead log")
    connection.execute(f"pragma synchronous = {synchronous}")
    connection.execute("pragma foreign_keys = off")
    connection.execute("pragma temp_store = memory")
    connection.execute("pragma cache_size = -65536")
    # Checkpoints have a thread of their own; a log that once grew large is cut back by the next.
    connection.execute("pragma wal_autocheckpoint = 0")
    connection.execute("pragma journal_size_limit = 67108864")


def file_system(path: Path) -> str | None:
    """The kind of file system a path is on, where the system says so."""
    try:
        lines = _MOUNTS.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    best, kind = "", None
    for mount, found in (line.split(" ")[1:3] for line in lines if line.count(" ") >= 2):
        inside = str(path).startswith(mount.rstrip("/") + os.sep)
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind
