"""arq with a hundred jobs at once and its default of one look in half a second."""

from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.constants import default_queue_name

from bench.peers.adapter import TEXT, Adapter, program, url
from bench.peers.marks import mark


async def noop(ctx: Any, n: int, text: str) -> int:
    mark(n)
    return n


class WorkerSettings:
    functions = (noop,)
    max_jobs = 100
    redis_settings = RedisSettings.from_dsn(url())


class System(Adapter):
    async def open(self) -> None:
        self._pool = await create_pool(WorkerSettings.redis_settings)

    async def close(self) -> None:
        await self._pool.aclose()

    async def submit_one(self, n: int) -> None:
        await self._pool.enqueue_job("noop", n, TEXT)

    def workers(self, processes: int) -> list[list[str]]:
        return [[program("arq"), f"{__name__}.WorkerSettings"]] * processes

    async def left(self) -> int:
        return int(await self._pool.zcard(default_queue_name))
