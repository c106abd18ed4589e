"""Dramatiq with its default of eight threads per process."""

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from bench.peers.adapter import TEXT, Adapter, Feed, by_threads, program, url
from bench.peers.marks import mark

dramatiq.set_broker(RedisBroker(url=url()))


@dramatiq.actor(actor_name="noop")
def noop(n: int, text: str) -> None:
    mark(n)


class System(Adapter):
    async def open(self) -> None:
        self._redis = redis.Redis.from_url(url())

    async def submit_one(self, n: int) -> None:
        noop.send(n, TEXT)

    async def submit(self, feed: Feed) -> None:
        await by_threads(feed, lambda n: noop.send(n, TEXT))

    def workers(self, processes: int) -> list[list[str]]:
        return [[program("dramatiq"), __name__, "--processes", str(processes)]]

    async def left(self) -> int:
        return int(self._redis.hlen("dramatiq:default.msgs"))
