"""RQ with SimpleWorker, which its notes on performance name for jobs of a few milliseconds: it does
not start a process for each job."""

from redis import Redis
from rq import Queue

from bench.peers.adapter import TEXT, Adapter, Feed, by_threads, program, url
from bench.peers.marks import mark

queue = Queue(connection=Redis.from_url(url()))


def noop(n: int, text: str) -> None:
    mark(n)


class System(Adapter):
    bulk = True

    async def submit_one(self, n: int) -> None:
        queue.enqueue(noop, n, TEXT, result_ttl=0)

    async def submit(self, feed: Feed) -> None:
        await by_threads(feed, lambda n: queue.enqueue(noop, n, TEXT, result_ttl=0))

    async def submit_bulk(self, numbers: list[int]) -> None:
        queue.enqueue_many([Queue.prepare_data(noop, (n, TEXT), result_ttl=0) for n in numbers])

    def workers(self, processes: int) -> list[list[str]]:
        options = ["--url", url(), "--worker-class", "rq.SimpleWorker", "--quiet"]
        return [[program("rq"), "worker", *options]] * processes

    async def left(self) -> int:
        return int(queue.count) + int(queue.started_job_registry.count)
