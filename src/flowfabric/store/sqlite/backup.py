"""Copies a SQLite file while other processes write it."""

import asyncio
import os
import shlex
import sqlite3
import stat
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from flowfabric.core.base.errors import Corruption, Unavailable
from flowfabric.store.backup import Backup, OnProgress, check_target, settle
from flowfabric.store.copy import refuse_memory
from flowfabric.store.open import sqlite_path
from flowfabric.store.sqlite.connection import translate

STEP_PAGES = 2000


async def backup(url: str, target: str, overwrite: bool, progress: OnProgress) -> Backup:
    path = sqlite_path(url)
    refuse_memory(path)
    try:
        return await asyncio.to_thread(_backup, path, target, overwrite, progress)
    except sqlite3.Error as error:
        raise translate(error, f"copying {path} to {target}") from error


def _backup(path: str, target: str, overwrite: bool, progress: OnProgress) -> Backup:
    started = time.monotonic()
    source = str(Path(path).absolute())
    if not os.path.isfile(source):
        raise Unavailable(f"there is no database at {source}")
    target = check_target(target, overwrite)
    partial = f"{target}.partial"
    try:
        _remove(partial)
        _copy(source, partial, progress)
        _check(partial)
        _remove(f"{target}-wal", f"{target}-shm")  # they belong to a file that is replaced
        settle(partial, target)
    except BaseException:
        _remove(partial, f"{partial}-wal", f"{partial}-shm")
        raise
    size, taken = os.stat(target).st_size, time.monotonic() - started
    # A log that a crash has left would be applied to the other file.
    gone = shlex.join(["rm", "-f", f"{source}-wal", f"{source}-shm"])
    restore = f"{gone} && {shlex.join(['cp', target, source])}   # with every process stopped"
    return Backup(source, target, size, taken, restore)


def _copy(source: str, partial: str, progress: OnProgress) -> None:
    """In one read transaction: writers go on, and what they write from now on is not copied.
    Without it every commit of another process would make the copy start over."""
    mode = stat.S_IMODE(os.stat(source).st_mode)
    os.close(os.open(partial, os.O_CREAT | os.O_WRONLY, mode))  # never readable for more users
    with (
        closing(_connect(source, "rw")) as reader,
        closing(sqlite3.connect(partial, isolation_level=None)) as writer,
    ):
        reader.execute("begin")
        reader.execute("pragma schema_version").fetchone()
        reader.execute("pragma page_count").fetchone()
        reader.backup(
            writer,
            pages=STEP_PAGES,
            progress=lambda _, left, total: progress(total - left, total),
            sleep=0,
        )
        reader.execute("rollback")


def _check(partial: str) -> None:
    with closing(_connect(partial, "rw")) as connection:
        found = [text for (text,) in connection.execute("pragma quick_check(5)")]
    if found != ["ok"]:
        raise Corruption(f"the copy is damaged, and so is its source: {'; '.join(found[:3])}")


def _connect(path: str, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(path)}?mode={mode}", uri=True, isolation_level=None)


def _remove(*paths: str) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)
