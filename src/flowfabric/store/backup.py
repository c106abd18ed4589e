"""Copies a store into a file while it is in use: `flowfabric backup`."""

import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from flowfabric.core.base.errors import Invalid, Unavailable
from flowfabric.store.open import dialect_of

OnProgress = Callable[[int, int], None]
"""How much is copied, and of how much."""


class Backup(Struct, frozen=True):
    """What was made. `restore` is the command that brings it back."""

    source: str
    target: str
    bytes: int
    seconds: float
    restore: str


class MissingTool(Unavailable):
    """The program that makes the copy is not installed; `command` is what it would have run."""

    code = "missing_tool"

    def __init__(self, detail: str, command: str) -> None:
        super().__init__(detail)
        self.command = command


def ignore_progress(done: int, total: int) -> None:
    """For callers that do not watch."""


async def backup(
    url: str, target: str, *, overwrite: bool = False, progress: OnProgress = ignore_progress
) -> Backup:
    """Makes a copy of the store at `url` as it is at this moment. The file appears under its name
    when it is whole and was checked; an existing one is replaced only with `overwrite`."""
    try:
        return await _backup(url, target, overwrite, progress)
    except OSError as error:
        raise Unavailable(f"{target} cannot be written: {error.strerror or error}") from error


async def _backup(url: str, target: str, overwrite: bool, progress: OnProgress) -> Backup:
    if dialect_of(url) == "sqlite":
        from flowfabric.store.sqlite import backup as sqlite_backup

        return await sqlite_backup.backup(url, target, overwrite, progress)
    from flowfabric.store.postgres import backup as postgres_backup

    return await postgres_backup.backup(url, target, overwrite, progress)


def backup_command(url: str, target: str) -> str:
    """The command of a shell that makes the copy."""
    if dialect_of(url) == "sqlite":
        raise Invalid("a SQLite store is copied by this command itself; leave out --print")
    from flowfabric.store.postgres import backup as postgres_backup

    return postgres_backup.command_line(url, target)


def check_target(target: str, overwrite: bool) -> str:
    """The absolute path of the copy; Invalid if it cannot be there."""
    if not target or "\0" in target or "://" in target:
        raise Invalid(f"{target[:80]!r} is not the path of a file")
    path = Path(target).absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise Invalid(f"{path} cannot be made: it is a folder, or its folder does not exist")
    if path.exists() and not overwrite:
        raise Invalid(f"{path} exists; give --overwrite to replace it")
    return str(path)


def settle(partial: str, target: str) -> None:
    """Gives a file that is whole its name, for good: also if the machine stops now."""
    _sync(partial)
    os.replace(partial, target)
    _sync(str(Path(target).parent))


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
