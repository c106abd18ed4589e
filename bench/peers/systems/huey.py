"""Huey: the consumer with processes for workers, no results."""

from huey import RedisHuey

from bench.peers.adapter import TEXT, Adapter, Feed, by_threads, program, url
from bench.peers.marks import mark

huey = RedisHuey("peers", url=url(), results=False)


@huey.task(name="noop")
def noop(n: int, text: str) -> None:
    mark(n)


class System(Adapter):
    async def submit_one(self, n: int) -> None:
        noop(n, TEXT)

    async def submit(self, feed: Feed) -> None:
        await by_threads(feed, lambda n: noop(n, TEXT))

    def workers(self, processes: int) -> list[list[str]]:
        return [
            [
                program("huey_consumer"),
                f"{__name__}.huey",
                "-k",
                "process",
                "-w",
                str(processes),
                "-q",
            ]
        ]

    async def left(self) -> int:
        return int(huey.pending_count())
