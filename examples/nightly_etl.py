"""A nightly job that discovers its work at run time: it fans out to two hundred tasks and continues
when all of them are done.

`ctx.map` starts a flow from the running task. While its parts run, the task waits without a worker
slot, for hours if need be. If its worker dies, another one continues with the results, and nothing
is started twice. One part fails at first and is retried alone.

    python examples/nightly_etl.py
"""

import asyncio
import tempfile
from pathlib import Path

import msgspec

from flowfabric import Context, Fabric, Fixed, WorkerOptions

store = Path(tempfile.mkdtemp()) / "warehouse.db"
fabric = Fabric(f"sqlite:///{store}")

calls = {"list_shops": 0, "load_shop": 0}


class Totals(msgspec.Struct):
    shop: int
    orders: int
    cents: int


async def list_shops(day: str) -> list[int]:
    calls["list_shops"] += 1
    return list(range(200))


@fabric.task(retries=2, backoff=Fixed(delay="10ms"))
async def load_shop(ctx: Context, day: str, shop: int) -> Totals:
    calls["load_shop"] += 1
    if shop == 17 and ctx.info.attempt == 1:
        raise ConnectionError("shop 17 does not answer")
    return Totals(shop, orders=shop % 10, cents=shop * 100)


@fabric.task()
async def nightly(ctx: Context, day: str) -> str:
    shops = await ctx.step(list_shops, day)  # the number is known only now
    totals = await ctx.map(load_shop, [(day, shop) for shop in shops])
    orders, cents = sum(each.orders for each in totals), sum(each.cents for each in totals)
    return f"{day}: {len(totals)} shops, {orders} orders, {cents / 100:,.2f}"


async def main() -> None:
    async with fabric:
        worker = await fabric.worker(WorkerOptions(concurrency=50))
        working = asyncio.create_task(worker.run())
        run = await nightly.submit("2026-11-15")
        print(await run.result())
        print("shops were listed", calls["list_shops"], "time, loaded", calls["load_shop"], "times")
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
