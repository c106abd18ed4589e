"""Other processes that are ready before the clock starts: as in production, workers and submitters
do not share one. They are told by a pipe to begin and to stop."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from bench import stores

SPAWN = multiprocessing.get_context("spawn")


class Line:
    """To the process that started this one."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    async def ready(self, answer: Any = None) -> bool:
        """Reports readiness, with an answer if there is one, and waits for the word to begin."""
        self._pipe.send(answer)
        return await self.wait()

    async def wait(self) -> bool:
        """Until the other side says to go on (True), or is gone (False)."""
        try:
            await asyncio.to_thread(self._pipe.recv)
        except EOFError:
            return False
        return True


Job = Callable[..., Awaitable[Any]]


class Crew:
    """Processes that run the same job."""

    def __init__(self, members: list[tuple[SpawnProcess, Connection]]) -> None:
        self._members = members

    def say(self) -> None:
        """Begin, or stop."""
        for _, pipe in self._members:
            pipe.send(None)

    async def answers(self) -> list[Any]:
        """What each job reports next; a job that failed has closed its pipe."""
        return [await asyncio.to_thread(pipe.recv) for _, pipe in self._members]


@asynccontextmanager
async def crew(count: int, job: Job, *args: Any) -> AsyncIterator[Crew]:
    """`count` processes that have called `line.ready()`. They end when their pipe is closed."""
    members = []
    for number in range(count):
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=_main, args=(job, there, number, *args), daemon=True)
        process.start()
        there.close()
        members.append((process, here))
    found = Crew(members)
    try:
        await found.answers()
        yield found
    finally:
        for process, pipe in members:
            pipe.close()
            await asyncio.to_thread(process.join)


def _main(job: Job, pipe: Connection, number: int, *args: Any) -> None:
    stores.use_uvloop()

    async def work() -> None:
        answer = await job(Line(pipe), number, *args)
        if answer is not None:
            pipe.send(answer)

    asyncio.run(work())
