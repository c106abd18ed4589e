"""Absurd: an asynchronous worker. A client has one connection, so sixteen clients submit."""

import asyncio
import sys
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.peers.adapter import TEXT, Adapter, Feed, by_callers, url
from bench.peers.marks import mark

CLIENTS = 16

app = AsyncAbsurd(url())


@app.register_task("noop")
async def noop(params: Any, ctx: Any) -> int:
    mark(params["n"])
    return int(params["n"])


@app.register_task("three_steps")
async def three_steps(params: Any, ctx: Any) -> int:
    found = int(params["n"])

    async def add() -> int:
        return found + 1

    for name in ("one", "two", "three"):
        found = await ctx.step(name, add)
    mark(params["n"])
    return found


class System(Adapter):
    async def open(self) -> None:
        self._clients = [AsyncAbsurd(url()) for _ in range(CLIENTS)]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def prepare(self) -> None:
        async with await psycopg.AsyncConnection.connect(url(), autocommit=True) as connection:
            await connection.execute(BUNDLED_SCHEMA_SQL)
        await self._clients[0].create_queue("default")

    async def submit_one(self, n: int) -> None:
        await self._spawn("noop", n)

    async def submit(self, feed: Feed) -> None:
        await by_callers(feed, self.submit_one, CLIENTS)

    async def submit_steps(self, feed: Feed) -> None:
        await by_callers(feed, lambda n: self._spawn("three_steps", n), CLIENTS)

    async def run_steps(self, n: int) -> None:
        spawned = await self._spawn("three_steps", n)
        await self._clients[0].await_task_result(spawned["task_id"], timeout=30)

    async def _spawn(self, name: str, n: int) -> Any:
        client = self._clients[n % CLIENTS]
        return await client.spawn(name, {"n": n, "text": TEXT}, queue="default")

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", __name__]] * processes

    async def left(self) -> int:
        async with await psycopg.AsyncConnection.connect(url()) as connection:
            found = await connection.execute(
                "select count(*) from absurd.t_default where state <> 'completed'"
            )
            row = await found.fetchone()
            return int(row[0]) if row else 0


if __name__ == "__main__":
    asyncio.run(app.start_worker(concurrency=100))
