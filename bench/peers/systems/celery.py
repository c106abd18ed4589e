"""Celery, as its page on optimizing says for short tasks: a large prefetch, results ignored. One
pool process for one worker process."""

import redis
from celery import Celery

from bench.peers.adapter import TEXT, Adapter, Feed, by_threads, program, url
from bench.peers.marks import mark

app = Celery("peers", broker=url())
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64)


@app.task(name="noop")
def noop(n: int, text: str) -> None:
    mark(n)


class System(Adapter):
    async def open(self) -> None:
        self._redis = redis.Redis.from_url(url())

    async def submit_one(self, n: int) -> None:
        noop.delay(n, TEXT)

    async def submit(self, feed: Feed) -> None:
        await by_threads(feed, lambda n: noop.delay(n, TEXT))

    def workers(self, processes: int) -> list[list[str]]:
        options = ["--concurrency", str(processes), "--loglevel", "ERROR"]
        quiet = ["--without-gossip", "--without-mingle"]
        return [[program("celery"), "-A", __name__, "worker", *options, *quiet]]

    async def left(self) -> int:
        return int(self._redis.llen("celery")) + int(self._redis.hlen("unacked"))
