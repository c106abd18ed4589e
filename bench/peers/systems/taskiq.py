"""Taskiq with the Redis stream broker, the one that acknowledges, and its default of a hundred
tasks at once."""

import redis
from taskiq_redis import RedisStreamBroker

from bench.peers.adapter import TEXT, Adapter, program, url
from bench.peers.marks import mark

broker = RedisStreamBroker(url())


@broker.task(task_name="noop")
async def noop(n: int, text: str) -> int:
    mark(n)
    return n


class System(Adapter):
    async def open(self) -> None:
        self._redis = redis.Redis.from_url(url())

    async def prepare(self) -> None:
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()

    async def submit_one(self, n: int) -> None:
        await noop.kiq(n, TEXT)

    def workers(self, processes: int) -> list[list[str]]:
        options = ["--workers", str(processes), "--log-level", "ERROR"]
        return [[program("taskiq"), "worker", f"{__name__}:broker", *options]]

    async def left(self) -> int:
        groups = self._redis.xinfo_groups("taskiq")
        return sum(int(group["pending"]) + int(group["lag"] or 0) for group in groups)
