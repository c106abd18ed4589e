"""PgQueuer, as its page on performance says: one asyncpg connection per worker, a larger batch
because jobs are short, a pool for the producer, and the recommended autovacuum settings. The worker
uses uvloop, as `pgq run` does. Durability is the default, `durable`."""

import json
import sys

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers.adapter import TEXT, Adapter, setting, url
from bench.peers.marks import mark


async def work() -> None:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(url())))

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        n, _ = json.loads(job.payload or b"")
        mark(n)

    await queue.run(batch_size=setting("BATCH", 100))


def _payload(n: int) -> bytes:
    return json.dumps([n, TEXT]).encode()


class System(Adapter):
    bulk = True

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(url(), min_size=5, max_size=20)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def close(self) -> None:
        await self._pool.close()

    async def prepare(self) -> None:
        await self._queries.install()
        await self._queries.optimize_autovacuum()

    async def submit_one(self, n: int) -> None:
        await self._queries.enqueue("noop", _payload(n))

    async def submit_bulk(self, numbers: list[int]) -> None:
        count = len(numbers)
        await self._queries.enqueue(["noop"] * count, [_payload(n) for n in numbers], [0] * count)

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", __name__]] * processes

    async def left(self) -> int:
        return int(await self._pool.fetchval("select count(*) from pgqueuer"))


if __name__ == "__main__":
    uvloop.run(work())
