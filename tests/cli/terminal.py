"""The command line as a test types on it."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any
from unittest.mock import patch

import msgspec
from typer.main import get_command
from typer.testing import CliRunner, Result

from flowfabric import Fabric
from flowfabric.cli.app import app
from flowfabric.worker.api.run import Run
from tests.cli import sample
from tests.kit.logs import logging_kept

APP = "tests.cli.sample:fabric"
NOBODY = "01a1e105-5216-7000-b234-22890e43ab8b"

Work = Callable[[], int]
Worker = Callable[[], AbstractContextManager[None]]


_built = cache(get_command)
"""To build all commands takes longer than to run one of them."""


class Cli:
    """`cli("run", "list")` as typed on a store; the answer's stdout and stderr are apart. If that
    is reached through a server, `database` is where it can be migrated."""

    def __init__(self, url: str, database: str | None = None) -> None:
        self.url = url
        self.database = database or url

    def __call__(self, *words: str, code: int = 0, input: str | None = None) -> Result:
        result = self.typed(*words, code=code, input=input)
        assert "Traceback" not in result.output
        return result

    def typed(self, *words: str, code: int = 0, input: str | None = None) -> Result:
        """For the one command that may print a traceback: that of a task."""
        if words == ("migrate",):
            words = (*words, "--url", self.database)
        with logging_kept(), patch("typer.testing._get_command", _built):
            result = CliRunner().invoke(app, list(words), input=input)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        """The one document a command printed."""
        (line,) = self(*words, "--json", code=code).stdout.splitlines()
        return msgspec.json.decode(line)

    def lines(self, *words: str, code: int = 0) -> list[Any]:
        """The documents a list printed."""
        printed = self(*words, "--json", code=code).stdout.splitlines()
        return [msgspec.json.decode(line) for line in printed]

    def complaint(self, *words: str, code: int) -> str:
        """The one line on stderr of a command that fails with `code` and prints nothing."""
        result = self(*words, code=code)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")

    def submit(self, task: str, *words: str) -> str:
        """The id of a fresh run."""
        id: str = self.json("submit", APP, task, *words)["id"]
        return id


def same_tasks(url: str) -> Fabric:
    """The application once more, for another event loop."""
    fabric = Fabric(url)
    fabric.tasks.update(sample.fabric.tasks)
    return fabric


def follow(url: str, id: str, event: str) -> None:
    """Returns when this has happened to the run."""

    async def wait() -> None:
        async with Fabric(url) as fabric:
            run: Run[Any] = await fabric.run(id)
            async for found in run.follow():
                if found.kind.name.lower() == event:
                    return

    asyncio.run(asyncio.wait_for(wait(), 60))
