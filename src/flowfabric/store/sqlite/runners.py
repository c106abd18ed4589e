"""The connections of one store: one that writes, one that reads, one that copies the log."""

import sqlite3

from flowfabric.store.hints import Hints
from flowfabric.store.sqlite.connection import MEMORY, OpenFile, connect, translate
from flowfabric.store.sqlite.runner import NoWatch, Runner, patiently
from flowfabric.store.sqlite.schema import check_version
from flowfabric.store.sqlite.session import NameRegistry, SqliteSession
from flowfabric.store.sqlite.wake import Commits
from flowfabric.store.sqlite.wal import Checkpoints


class Runners:
    """What a store works with. In memory there is one connection, and it does everything."""

    def __init__(self, path: str, connections: list[sqlite3.Connection]) -> None:
        registry, quiet, file = NameRegistry(), NoWatch(), OpenFile(path)
        write, *others = (SqliteSession(connection, registry) for connection in connections)
        beside = [Runner(session, path, "begin", quiet, file) for session in others]
        checkpoints = Checkpoints(beside[-1]) if beside else None
        self.hints = Hints(self._listen)
        self._commits = Commits(self.hints, checkpoints)
        self.writer = Runner(write, path, "begin immediate", self._commits, file)
        self.reader = beside[0] if beside else self.writer
        self._all = [self.writer, *beside]
        self._threads = False
        if checkpoints is not None:
            checkpoints.writer = self.writer

    def start(self) -> None:
        names = ("flowfabric-write", "flowfabric-read", "flowfabric-checkpoint")
        for runner, name in zip(self._all, names, strict=False):
            runner.start(name)
        self._threads = True

    def _listen(self) -> None:
        """The writing thread looks at the file while a task waits. Without threads, each task that
        waits looks once."""
        if not self._threads:
            self._commits.idle(self.writer.session)
        elif self.hints.waiting == 1:
            self.writer.nudge()

    async def close(self) -> None:
        # The last connection to close copies the log: that is the writer's, when all is done.
        for runner in reversed(self._all):
            await runner.close()
        self.hints.wake()


def open_runners(path: str, synchronous: str) -> Runners:
    """Opens the connections and refuses a file that is not a database of ours."""
    connections: list[sqlite3.Connection] = []
    try:
        for _ in range(1 if path == MEMORY else 3):
            connections.append(patiently(lambda: connect(path, synchronous)))
        check_version(connections[0])
        return Runners(path, connections)
    except BaseException as error:
        for connection in connections:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise translate(error, path) from error
        raise
