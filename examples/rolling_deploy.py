"""A deploy, its rollback and a second try, while orders are in progress.

The new code has two steps more than the old one, at the end: it thanks the customer and waits for a
review. Orders that began in the old code continue in the new code, which is always safe. After the
rollback, orders that have recorded the new steps are in the hands of code that does not know them:
they are blocked by code, and continue by themselves as soon as a worker with the new code is there,
beside the old one.

    python examples/rolling_deploy.py
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowfabric import Fabric, Run

place = Path(tempfile.mkdtemp())
url = f"sqlite:///{place / 'shop.db'}"

OLD = """
import os
from flowfabric import Context, Fabric

fabric = Fabric(os.environ["SHOP_URL"])


def note(what: str, number: int) -> None:
    with open(os.environ["SHOP_EFFECTS"], "a") as effects:
        effects.write(f"{what} {number}\\n")


@fabric.task()
async def order(ctx: Context, number: int) -> str:
    await ctx.step(reserve, number)
    await ctx.wait_for_signal("paid")
    await ctx.step(ship, number)
    return "shipped"


def reserve(number: int) -> None:
    note("reserve", number)


def ship(number: int) -> None:
    note("ship", number)


def thank(number: int) -> None:
    note("thank", number)
"""

NEW = OLD.replace(
    '    return "shipped"\n',
    """    await ctx.step(thank, number)
    await ctx.wait_for_signal("reviewed")
    return "shipped and reviewed"
""",
)


@contextmanager
def worker(name: str, code: str) -> Iterator[None]:
    """A worker process with this version of the module `orders`."""
    home = place / name
    home.mkdir(exist_ok=True)
    (home / "orders.py").write_text(code)
    run = "import asyncio, orders; asyncio.run(orders.fabric.run_worker())"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{home}:{os.environ.get('PYTHONPATH', '')}",
        "SHOP_URL": url,
        "SHOP_EFFECTS": str(place / "effects"),
    }
    process = subprocess.Popen([sys.executable, "-c", run], env=environment, cwd=home)  # noqa: S603
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


async def until(runs: list[Run[Any]], state: str, detail: str = "") -> None:
    """Until all these runs are in this state, for this reason."""
    async with asyncio.timeout(30):
        for run in runs:
            facts = await run.describe()
            while facts.state != state or detail not in (facts.blocking_detail or ""):
                await asyncio.sleep(0.05)
                facts = await run.describe()


def effects() -> list[str]:
    """What the steps have done so far."""
    return (place / "effects").read_text().splitlines()


async def until_done(step: str, times: int) -> None:
    async with asyncio.timeout(30):
        while sum(effect.startswith(step) for effect in effects()) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def main() -> None:
    async with Fabric(url) as fabric:

        @fabric.task(name="order")
        async def order(number: int) -> str:
            raise NotImplementedError("only the workers run orders")

        with worker("old", OLD):
            orders = [await order.submit(number) for number in range(4)]
            await until(orders, "suspended")
        print("the old code: 4 orders wait for their payment")

        with worker("new", NEW):
            for run in orders[:3]:
                await fabric.signal(run.id, "paid")
            await until_done("thank", 3)
            await until(orders[:3], "suspended")
        print("the new code: 3 of them are shipped and wait for a review")

        with worker("old", OLD):
            await fabric.signal(orders[3].id, "paid")
            print("rolled back:  the last one is", await orders[3].result(30))
            for run in orders[:3]:
                await fabric.signal(run.id, "reviewed")
            await until(orders[:3], "waiting", "blocked by code")
            reason = (await (await fabric.engine()).explain(orders[0].id)).main
            print("              blocked by code, not asked for is", reason.detail["expected"])

            with worker("new", NEW):
                for run in orders[:3]:
                    print("both at once: order is", await run.result(40))

    print("every step was done once:", len(effects()) == len(set(effects())))


if __name__ == "__main__":
    asyncio.run(main())
