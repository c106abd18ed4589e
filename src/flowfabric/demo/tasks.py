"""The tasks of the demo: ordinary functions.

Every step writes a line to a ledger beside the database when it has done its work, so that
the demo can count how often it was done.
"""

import asyncio
import os
from pathlib import Path

from flowfabric.fabric import Fabric
from flowfabric.worker.api.backoff import Fixed
from flowfabric.worker.api.context import Context

HOME_VARIABLE = "FLOWFABRIC_DEMO_HOME"
LEDGER = "ledger"
PACKING_LINE = "packing-line"  # a file that is there while the packing line is on
STEPS = ("reserve", "charge", "pack", "label", "notify")

fabric = Fabric("sqlite:///flowfabric-demo.db")


@fabric.task()
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@fabric.task(retries=3, backoff=Fixed(delay="300ms"))
async def fetch_rates(ctx: Context) -> str:
    """Succeeds at the third attempt."""
    if ctx.info.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"1.08 at attempt {ctx.info.attempt}"


@fabric.task()
async def remind(ctx: Context, text: str) -> str:
    await ctx.sleep("4s")  # no worker slot is held meanwhile
    return text


@fabric.task()
async def ship_order(ctx: Context, order: int) -> list[str]:
    """Five durable steps. Even if the worker dies, no recorded step runs again."""
    return [
        await ctx.step(reserve, order),
        await ctx.step(charge, order),
        await ctx.step(pack, order),
        await ctx.step(label, order),
        await ctx.step(notify, order),
    ]


async def reserve(order: int) -> str:
    await asyncio.sleep(0.3)
    return write_ledger("reserve")


async def charge(order: int) -> str:
    await asyncio.sleep(0.3)
    return write_ledger("charge")


async def pack(order: int) -> str:
    # The packing line stands still until the demo has killed the worker that waits for it.
    while not (home() / PACKING_LINE).exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    return write_ledger("pack")


async def label(order: int) -> str:
    await asyncio.sleep(0.3)
    return write_ledger("label")


async def notify(order: int) -> str:
    await asyncio.sleep(0.3)
    return write_ledger("notify")


def home() -> Path:
    return Path(os.environ[HOME_VARIABLE])


def write_ledger(step: str) -> str:
    with (home() / LEDGER).open("a", encoding="utf-8") as file:
        file.write(f"{step} {os.getpid()}\n")
    return step
