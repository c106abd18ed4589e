"""What open dashboards cost, and how fast their pages answer on big tables.

    python -m bench.dashboard sqlite
    python -m bench.dashboard postgres --finished 1000000 --waiting 100000

Fills a store, starts a server on it, and prints the time of each page's requests; then opens ten
dashboards of a page, each of which follows the changes and reads again as the page does, while runs
are submitted and taken, and counts the statements that they add.
"""

import argparse
import asyncio
import itertools
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import uvicorn

from bench.fill import LANE, fill
from bench.scenarios.lifecycle import opened
from bench.stores import fresh, use_uvloop
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.server.app import create_app
from flowfabric.server.caller.authentication import Authentication
from flowfabric.server.context import ServerContext

PAGES = {
    "overview": ["v1/overview"],
    "runs": ["v1/executions/search?limit=50"],
    "runs, completed": ["v1/executions/search?limit=50&state=completed"],
    "runs, waiting": ["v1/executions/search?limit=50&state=waiting"],
    "runs, failed of a task": ["v1/executions/search?limit=50&state=failed&kind=noop"],
    "runs, none found": ["v1/executions/search?limit=50&kind=no-such-task"],
    "runs, suspended": ["v1/executions/search?limit=50&state=suspended"],
    "runs of a lane": [f"v1/executions/search?limit=50&lane={LANE}"],
    "flows": ["v1/flows?limit=50"],
    "inbox": ["v1/waitpoints?limit=50"],
    "schedules": ["v1/schedules?limit=100"],
    "lanes": ["v1/lanes?limit=100", "v1/overview"],
    "workers": ["v1/workers?limit=100"],
    "limits": ["v1/budgets?limit=100", "v1/quotas?limit=100", "v1/quotas/filled"],
}
TRIES = 7
PAUSE = 3.1
"""Seconds between two tries, so that every overview is counted anew."""
DASHBOARDS = 10
SECONDS = 20.0
SLOW = 5
"""Seconds that the page of limits allows an answer to be old, and waits between two."""
WORKER = WorkerIdentity("bench", "bench")


class Statements:
    """Counts what the store is asked: every SQLite statement, every Postgres transaction."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen = 0
        if url.startswith("sqlite"):
            original = sqlite3.connect

            def connect(*args: Any, **more: Any) -> sqlite3.Connection:
                made: sqlite3.Connection = original(*args, **more)
                made.set_trace_callback(self._trace)
                return made

            sqlite3.connect = connect  # type: ignore[assignment]

    def _trace(self, statement: str) -> None:
        if statement.lstrip()[:6].lower() in ("select", "with r"):
            self._seen += 1

    async def count(self) -> int:
        if self._url.startswith("sqlite"):
            return self._seen
        connection = await asyncpg.connect(self._url)
        try:
            return int(
                await connection.fetchval(
                    "select xact_commit from pg_stat_database where datname = current_database()"
                )
            )
        finally:
            await connection.close()


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    context = ServerContext(engine, Authentication(engine, is_open=True))
    config = uvicorn.Config(create_app(context), port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/", timeout=60) as http:
        yield http
    context.draining.set()
    server.should_exit = True
    await serving


async def read(http: httpx.AsyncClient, paths: Iterable[str], age: int = 0) -> None:
    headers = {"cache-control": f"max-age={age}"}
    for answer in await asyncio.gather(*(http.get(path, headers=headers) for path in paths)):
        answer.raise_for_status()


async def time_pages(http: httpx.AsyncClient) -> None:
    took: dict[str, list[float]] = {name: [] for name in PAGES}
    for _ in range(TRIES + 1):
        for name, paths in PAGES.items():
            began = time.perf_counter()
            await read(http, paths)
            took[name].append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(PAUSE)
    print("| page | first | median | max |\n|---|---|---|---|")
    for name, (first, *rest) in took.items():
        print(f"| {name} | {first:.0f} | {statistics.median(rest):.0f} | {max(rest):.0f} ms |")


async def dashboard(http: httpx.AsyncClient, paths: list[str], age: int) -> None:
    """Reads again after each change, at most once a second, as the page does."""
    async with http.stream("GET", "v1/changes/stream") as changes:
        async for line in changes.aiter_lines():
            if line.startswith("data:"):
                await read(http, paths, age)
                await asyncio.sleep(5.0 if age == SLOW else 1.0)


async def work(engine: Engine) -> None:
    """A store that is never quiet: ten runs a second, at times that do not drift."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in itertools.count():
        await engine.executions.submit(Submission(kind="noop", lane="busy", payload=b"{}"))
        for claim in await engine.claims.claim(WORKER, lanes=["busy"], limit=1):
            await engine.attempts.complete(claim, b"1")
        await asyncio.sleep(max(0.0, began + number / 10 - loop.time()))


async def statements(engine: Engine, http: httpx.AsyncClient, asked: Statements) -> None:
    """Statements a second that ten dashboards of each page add."""
    working = asyncio.create_task(work(engine))
    before = await _rate(asked)
    print(f"without a dashboard: {before:.1f} statements a second")
    for name in ("overview", "runs", "lanes", "inbox", "workers", "limits"):
        age = SLOW if name == "limits" else 2
        pages = [asyncio.create_task(dashboard(http, PAGES[name], age)) for _ in range(DASHBOARDS)]
        await asyncio.sleep(3)
        during = await _rate(asked)
        for task in pages:
            task.cancel()
        await asyncio.gather(*pages, return_exceptions=True)
        print(f"ten of {name}: {during - before:+.1f} statements a second")
    working.cancel()


async def _rate(asked: Statements) -> float:
    first, began = await asked.count(), time.perf_counter()
    await asyncio.sleep(SECONDS)
    return (await asked.count() - first) / (time.perf_counter() - began)


async def measure(url: str, finished: int, waiting: int) -> None:
    began = time.perf_counter()
    await fill(url, waiting=waiting, finished=finished, keys=5_000)
    print(f"filled in {time.perf_counter() - began:.0f} s")
    asked = Statements(url)
    async with opened(url) as engine, served(engine) as http:
        await time_pages(http)
        await statements(engine, http, asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", choices=["sqlite", "postgres"])
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=100_000)
    given = parser.parse_args()
    use_uvloop()
    with fresh(given.store) as url:
        asyncio.run(measure(url, given.finished, given.waiting))


if __name__ == "__main__":
    main()
