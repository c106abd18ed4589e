"""SAQ, on Postgres or on Redis by the URL: the `saq` program, a hundred jobs at once."""

from typing import Any

from saq import Queue

from bench.peers.adapter import TEXT, Adapter, program, url
from bench.peers.marks import mark

queue = Queue.from_url(url())


async def noop(ctx: Any, *, n: int, text: str) -> int:
    mark(n)
    return n


settings = {"queue": queue, "functions": [noop], "concurrency": 100}


class System(Adapter):
    async def prepare(self) -> None:
        await queue.connect()

    async def close(self) -> None:
        await queue.disconnect()

    async def submit_one(self, n: int) -> None:
        await queue.enqueue("noop", n=n, text=TEXT)

    def workers(self, processes: int) -> list[list[str]]:
        return [[program("saq"), f"{__name__}.settings", "--quiet"]] * processes

    async def left(self) -> int:
        return int(await queue.count("incomplete"))
