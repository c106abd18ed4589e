"""The side of the protocol that runs in the virtualenv of a system, so only the standard library.

    python -m bench.peers.adapter SYSTEM

reads commands from stdin, one per line, and answers each with one line of JSON on stdout:

    prepare                          makes tables and queues
    submit COUNT one|bulk SECONDS    submits jobs 0, 1, … up to COUNT or until the time is up
    fill START COUNT SECONDS         submits the rest of them in bulk, if the system can
    work COUNT PROCESSES SECONDS     starts workers and lets them run these jobs
    pickup COUNT                     submits single jobs, now and then, to one idle worker
    steps COUNT SECONDS              submits jobs of three durable steps
    run-steps COUNT SECONDS          runs such jobs one at a time, each from submit to result
    quit

PEERS_URL names the store, PEERS_MARKS the file in which jobs leave their marks, PEERS_SERVER the
process of the database server, whose CPU counts.
"""

import asyncio
import importlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from bench.peers import cpu, marks

TEXT = "x" * 450
CALLERS = 100
THREADS = 16
BULK = 1000
START_WITHIN = 30.0
SETTLE_WITHIN = 10.0
STOP_WITHIN = 5.0
LOOK_EVERY = 0.01

Answer = dict[str, Any]


def url() -> str:
    return os.environ["PEERS_URL"]


def setting(name: str, default: int) -> int:
    """What this variant of the system has in the catalog."""
    return int(os.environ.get(f"PEERS_{name}", default))


def last_line(text: str) -> str:
    """Where a program that fails says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def program(name: str) -> str:
    """A program that the system has installed beside its Python."""
    return str(Path(sys.executable).with_name(name))


class Feed:
    """The numbers of the jobs to submit, handed to any number of callers."""

    def __init__(self, count: int, seconds: float, start: int = 0) -> None:
        self.given = start
        self._count = count
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()

    def take(self, most: int) -> list[int]:
        with self._lock:
            if time.monotonic() >= self._until:
                return []
            start, self.given = self.given, min(self._count, self.given + most)
            return list(range(start, self.given))

    def __iter__(self) -> Iterator[int]:
        while taken := self.take(1):
            yield taken[0]

    def chunks(self, size: int = BULK) -> Iterator[list[int]]:
        while taken := self.take(size):
            yield taken


async def by_callers(
    feed: Feed, submit: Callable[[int], Awaitable[Any]], callers: int = CALLERS
) -> None:
    """One job per call, from many coroutines at once."""

    async def caller() -> None:
        for n in feed:
            await submit(n)

    await asyncio.gather(*(caller() for _ in range(callers)))


async def by_threads(feed: Feed, submit: Callable[[int], Any]) -> None:
    """One job per call, from several threads at once: for libraries that block."""

    def caller() -> None:
        for n in feed:
            submit(n)

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(THREADS) as pool:
        await asyncio.gather(*(loop.run_in_executor(pool, caller) for _ in range(THREADS)))


class Adapter(ABC):
    """How to use one system."""

    bulk: ClassVar[bool] = False
    """Whether its documentation has a way to submit many jobs in one call."""

    async def open(self) -> None:  # noqa: B027 - not every system has something to open
        """Connects; the store may still be empty."""

    async def close(self) -> None:  # noqa: B027
        """Closes what was opened."""

    async def prepare(self) -> None:  # noqa: B027
        """Makes tables and queues."""

    @abstractmethod
    async def submit_one(self, n: int) -> None:
        """Submits job `n`."""

    @abstractmethod
    def workers(self, processes: int) -> list[list[str]]:
        """The commands that start this many worker processes."""

    @abstractmethod
    async def left(self) -> int:
        """How many jobs have not ended, as the system itself sees it."""

    async def submit(self, feed: Feed) -> None:
        """One job per call, from many callers."""
        await by_callers(feed, self.submit_one)

    async def submit_bulk(self, numbers: list[int]) -> None:
        raise NotImplementedError

    async def submit_steps(self, feed: Feed) -> None:
        raise NotImplementedError

    async def run_steps(self, n: int) -> None:
        """Submits a job of three steps and waits for its result."""
        raise NotImplementedError


class Workers:
    """Worker processes. What they print is kept, for the case that they fail."""

    def __init__(self, commands: list[list[str]], log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self._processes = [
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
                for command in commands
            ]

    @property
    def ids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def check(self) -> None:
        for process in self._processes:
            if process.poll() is not None:
                said = last_line(self._log.read_text(errors="replace"))
                raise RuntimeError(f"a worker ended with {process.returncode}: {said}")

    async def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        until = time.monotonic() + STOP_WITHIN
        while any(process.poll() is None for process in self._processes):
            if time.monotonic() > until:
                for process in self._processes:
                    process.kill()
            await asyncio.sleep(0.02)


class Commands:
    """Carries out the commands of the protocol with one adapter."""

    def __init__(self, adapter: Adapter) -> None:
        path = Path(os.environ[marks.VARIABLE])
        self._adapter = adapter
        self._marks = marks.Marks(path)
        self._log = path.with_suffix(".log")
        self._server = [int(found)] if (found := os.environ.get("PEERS_SERVER")) else []

    async def carry_out(self, line: str) -> Answer:
        name, *rest = line.split()
        match name:
            case "prepare":
                await self._adapter.prepare()
                return {}
            case "submit":
                return await self._submit(int(rest[0]), rest[1] == "bulk", float(rest[2]))
            case "fill":
                return await self._fill(Feed(int(rest[1]), float(rest[2]), int(rest[0])))
            case "work":
                return await self._work(int(rest[0]), int(rest[1]), float(rest[2]))
            case "pickup":
                return await self._pickup(int(rest[0]))
            case "steps":
                self._marks.clear(int(rest[0]))
                feed = Feed(int(rest[0]), float(rest[1]))
                await self._adapter.submit_steps(feed)
                return {"jobs": feed.given}
            case "run-steps":
                return await self._run_steps(int(rest[0]), float(rest[1]))
            case _:
                raise ValueError(f"there is no command {name}")

    async def _submit(self, count: int, bulk: bool, seconds: float) -> Answer:
        feed, began = Feed(count, seconds), time.monotonic()
        before = cpu.used_below([os.getpid(), *self._server])
        bulk = bulk and self._adapter.bulk
        await (self._fill(feed) if bulk else self._adapter.submit(feed))
        return {
            "jobs": feed.given,
            "seconds": time.monotonic() - began,
            "cpu": cpu.used_below([os.getpid(), *self._server]) - before,
            "bulk": bulk,
        }

    async def _fill(self, feed: Feed) -> Answer:
        if self._adapter.bulk:
            for chunk in feed.chunks():
                await self._adapter.submit_bulk(chunk)
        return {"jobs": feed.given}

    async def _work(self, count: int, processes: int, seconds: float) -> Answer:
        workers = Workers(self._adapter.workers(processes), self._log)
        try:
            await self._until(START_WITHIN, lambda: self._running(count, processes), workers)
            roots = [*workers.ids, *self._server]
            used, counted = cpu.used_below(roots), self._marks.done(count)
            ended = await self._until(seconds, lambda: self._marks.done(count) == count, workers)
            last = await self._settled() if ended else time.monotonic()
            return {
                **rate(self._marks.read(count), last),
                "ended": ended,
                "repeated": self._marks.repeated(count),
                "cpu": cpu.used_below(roots) - used,
                "cpu_jobs": self._marks.done(count) - counted,
            }
        finally:
            await workers.stop()

    def _running(self, count: int, processes: int) -> bool:
        """Whether every process runs jobs, or there are hardly any left for those that do not."""
        done = self._marks.done(count)
        return done > 0 and (self._marks.entered() >= processes or done > count / 2)

    async def _until(self, seconds: float, done: Callable[[], bool], workers: Workers) -> bool:
        until = time.monotonic() + seconds
        while not done():
            workers.check()
            if time.monotonic() > until:
                return False
            await asyncio.sleep(LOOK_EVERY)
        return True

    async def _settled(self) -> float:
        """When the system itself sees no job any more: the last acknowledgements count too."""
        until = time.monotonic() + SETTLE_WITHIN
        while left := await self._adapter.left():
            if time.monotonic() > until:
                raise RuntimeError(f"all jobs ran, but {left} never ended")
            await asyncio.sleep(LOOK_EVERY)
        return time.monotonic()

    async def _pickup(self, count: int) -> Answer:
        """Submits at moments that do not depend on when earlier jobs were picked up, so that the
        rhythm of a system that polls is met at every point."""
        warm = 10
        workers = Workers(self._adapter.workers(1), self._log)
        try:
            for n in range(warm):
                await self._adapter.submit_one(n)
            if not await self._until(START_WITHIN, lambda: self._marks.done(warm) == warm, workers):
                raise RuntimeError("the worker did not start")
            submitted = {}
            for n in range(warm, warm + count):
                submitted[n] = time.monotonic()
                await self._adapter.submit_one(n)
                await asyncio.sleep(random.uniform(0.015, 0.035))
            total = warm + count
            await self._until(SETTLE_WITHIN, lambda: self._marks.done(total) == total, workers)
            found = ((self._marks.at(n), began) for n, began in submitted.items())
            return {"ms": [(at - began) * 1000 for at, began in found if at is not None]}
        finally:
            await workers.stop()

    async def _run_steps(self, count: int, seconds: float) -> Answer:
        workers = Workers(self._adapter.workers(1), self._log)
        try:
            await asyncio.wait_for(self._adapter.run_steps(0), START_WITHIN)
            found, until = list[float](), time.monotonic() + seconds
            for n in range(1, count + 1):
                began = time.monotonic()
                if began > until:
                    break
                await self._adapter.run_steps(n)
                found.append((time.monotonic() - began) * 1000)
            return {"ms": found}
        finally:
            await workers.stop()


def rate(ran: list[tuple[float, int]], last: float) -> Answer:
    """Jobs per second from the moment when every process had its first job: until then, one of
    them was still starting. If by then most jobs had run, from the very first."""
    if len(ran) < 2:
        raise RuntimeError("no job ran")
    firsts: dict[int, float] = {}
    for moment, process in ran:
        firsts.setdefault(process, moment)
    first = max(firsts.values())
    if sum(moment >= first for moment, _ in ran) < len(ran) / 2:
        first = ran[0][0]
    jobs = sum(moment > first for moment, _ in ran)
    return {"jobs": jobs, "seconds": last - first, "processes": len(firsts)}


def use_uvloop() -> None:
    """Where the section of the system in requirements.txt has it."""
    with suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


async def serve(adapter: Adapter, answers: Any) -> None:
    loop = asyncio.get_running_loop()
    await adapter.open()
    commands = Commands(adapter)
    while (line := (await loop.run_in_executor(None, sys.stdin.readline)).strip()) not in {
        "",
        "quit",
    }:
        try:
            answer = await commands.carry_out(line)
        except Exception as error:  # the runner reports it and goes on with other systems
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    await adapter.close()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    use_uvloop()
    module = importlib.import_module(f"bench.peers.systems.{sys.argv[1]}")
    asyncio.run(serve(module.System(), answers))


if __name__ == "__main__":
    main()
