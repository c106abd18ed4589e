"""Two runs at once for each customer, however many each submits.

One customer floods the store with a hundred runs. The others submit a few later. No customer has
more than two at once, and no other customer waits behind the flood, which has its own line.

    python examples/per_customer.py
"""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

from flowfabric import Fabric, WorkerOptions

store = Path(tempfile.mkdtemp()) / "customers.db"
fabric = Fabric(f"sqlite:///{store}")

running: Counter[str] = Counter()
highest: Counter[str] = Counter()
done: list[str] = []


@fabric.task(concurrency=2, concurrency_key="customer")
async def convert(customer: str, page: int) -> None:
    running[customer] += 1
    highest[customer] = max(highest[customer], running[customer])
    await asyncio.sleep(0.02)  # the work
    running[customer] -= 1
    done.append(customer)


async def main() -> None:
    async with fabric:
        flood = await convert.submit_many([("acme", page) for page in range(100)])
        few = await convert.submit_many(
            [(customer, page) for customer in ("bolt", "cora") for page in range(4)]
        )

        worker = await fabric.worker(WorkerOptions(concurrency=50))
        working = asyncio.create_task(worker.run())
        for run in few:
            await run.result()
        print("bolt and cora are done, acme still waits:", done.count("acme") < 50)
        for run in flood:
            await run.result()
        worker.stop()
        await working

        for customer in sorted(highest):
            ended = done.count(customer)
            print(f"{customer}: {ended} runs, {highest[customer]} at once at most")


if __name__ == "__main__":
    asyncio.run(main())
