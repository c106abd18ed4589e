"""DBOS: workflows on a queue. Each process has an executor id of its own, as several need, and
looks for work ten times as often as by default, or it could not start more than a hundred a second.
The drain runs workflows without a step."""

import asyncio
import os
import sys
import threading

import sqlalchemy
from dbos import DBOS

from bench.peers.adapter import TEXT, Adapter, Feed, by_callers, url
from bench.peers.marks import mark

QUEUE = "jobs"
DATABASE = url().replace("postgresql://", "postgresql+psycopg://")

DBOS(
    config={
        "name": "peers",
        "system_database_url": DATABASE,
        "application_version": "1",
        "executor_id": str(os.getpid()),
        "sys_db_pool_size": 20,
        "log_level": "ERROR",
    }
)


@DBOS.workflow()
async def noop(n: int, text: str) -> int:
    mark(n)
    return n


@DBOS.step()
async def add(n: int) -> int:
    return n + 1


@DBOS.workflow()
async def three_steps(n: int) -> int:
    found = n
    for _ in range(3):
        found = await add(found)
    mark(n)
    return found


def launch(listen: bool) -> None:
    DBOS.listen_queues([QUEUE] if listen else [])
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=100, polling_interval_sec=0.1)


class System(Adapter):
    async def prepare(self) -> None:
        await asyncio.to_thread(launch, listen=False)
        self._engine = sqlalchemy.create_engine(DATABASE)

    async def close(self) -> None:
        DBOS.destroy()

    async def submit_one(self, n: int) -> None:
        await DBOS.enqueue_workflow_async(QUEUE, noop, n, TEXT)

    async def submit_steps(self, feed: Feed) -> None:
        await by_callers(feed, lambda n: DBOS.enqueue_workflow_async(QUEUE, three_steps, n))

    async def run_steps(self, n: int) -> None:
        await three_steps(n)

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", __name__]] * processes

    async def left(self) -> int:
        with self._engine.connect() as connection:
            found = connection.execute(
                sqlalchemy.text("select count(*) from dbos.workflow_status where status<>'SUCCESS'")
            )
            return int(found.scalar_one())


if __name__ == "__main__":
    launch(listen=True)
    threading.Event().wait()
