"""Procrastinate with a pool of psycopg connections and `worker --concurrency`."""

import procrastinate

from bench.peers.adapter import TEXT, Adapter, program, url
from bench.peers.marks import mark

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=url(), min_size=4, max_size=20)
)


@app.task(name="noop", queue="default")
async def noop(n: int, text: str) -> None:
    mark(n)


class System(Adapter):
    bulk = True

    async def open(self) -> None:
        await app.open_async()

    async def close(self) -> None:
        await app.close_async()

    async def prepare(self) -> None:
        await app.schema_manager.apply_schema_async()

    async def submit_one(self, n: int) -> None:
        await noop.defer_async(n=n, text=TEXT)

    async def submit_bulk(self, numbers: list[int]) -> None:
        await noop.batch_defer_async(*({"n": n, "text": TEXT} for n in numbers))

    def workers(self, processes: int) -> list[list[str]]:
        return [
            [program("procrastinate"), f"--app={__name__}.app", "worker", "--concurrency=100"]
        ] * processes

    async def left(self) -> int:
        row = await app.connector.execute_query_one_async(
            "select count(*) as left from procrastinate_jobs where status in ('todo', 'doing')"
        )
        return int(row["left"])
