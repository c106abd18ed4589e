"""Copies the schema with pg_dump, the tool of the server."""

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from textwrap import shorten
from urllib.parse import parse_qsl, urlencode, urlsplit

from flowfabric.core.base.errors import Unavailable
from flowfabric.store.backup import Backup, MissingTool, OnProgress, check_target, settle
from flowfabric.store.postgres.address import Address, read_address

SCHEMA = "flowfabric"
MAX_TEXT = 500


async def backup(url: str, target: str, overwrite: bool, progress: OnProgress) -> Backup:
    started, address = time.monotonic(), _direct(url)
    target = await asyncio.to_thread(check_target, target, overwrite)
    tool = shutil.which("pg_dump")
    if tool is None:
        raise MissingTool(
            "pg_dump is not installed here; run this where it is", command_line(url, target)
        )
    partial = f"{target}.partial"
    try:
        await _run([tool, *_arguments(address, partial)], address)
        await _run([_beside(tool, "pg_restore"), "--list", partial], address)  # it can be read
        await asyncio.to_thread(settle, partial, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise
    size = await asyncio.to_thread(os.path.getsize, target)
    restore = f"{restore_command(address, target)}   # with every process stopped"
    return Backup(address.shown, target, size, time.monotonic() - started, restore)


def command_line(url: str, target: str) -> str:
    """What to type. A password is not part of it: libpq reads PGPASSWORD or ~/.pgpass."""
    return shlex.join(["pg_dump", *_arguments(_direct(url), target)])


def restore_command(address: Address, target: str) -> str:
    """All of it or nothing: what is there now is replaced, never mixed with what was."""
    options = ["--clean", "--if-exists", "--single-transaction"]
    place = f"--dbname={_without_password(address)}"
    return shlex.join(["pg_restore", *options, place, target])


def _direct(url: str) -> Address:
    """The server itself: pg_dump cannot work through a pooler in transaction mode."""
    address = read_address(url)
    return address.listen or address


def _arguments(address: Address, target: str) -> list[str]:
    return [
        "--format=custom",
        f"--schema={SCHEMA}",
        "--no-owner",
        f"--file={target}",
        f"--dbname={_without_password(address)}",
    ]


def _without_password(address: Address) -> str:
    parts = urlsplit(address.dsn)
    userinfo, at, place = parts.netloc.rpartition("@")
    options = [pair for pair in parse_qsl(parts.query) if pair[0] != "password"]
    return parts._replace(
        netloc=f"{userinfo.partition(':')[0]}{at}{place}", query=urlencode(options, safe="/")
    ).geturl()


def _beside(tool: str, name: str) -> str:
    """The other tool of the same version."""
    path = os.path.join(os.path.dirname(tool), name)
    return path if os.path.exists(path) else name


async def _run(command: Sequence[str], address: Address) -> None:
    environment = dict(os.environ)
    if address.password is not None:  # not as an argument, which every user could see
        environment["PGPASSWORD"] = address.password
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        text = shorten(address.censored(said.decode("utf-8", "replace")), MAX_TEXT)
        name = os.path.basename(command[0])
        raise Unavailable(f"{name} failed with code {process.returncode}: {text}")
