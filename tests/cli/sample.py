"""An application as a user would write one."""

import asyncio
from datetime import date
from pathlib import Path

from flowfabric import Context, Fabric, Fixed

fabric = Fabric("sqlite:///the-application-names-this.db")


@fabric.task()
async def greet(name: str, times: int = 1) -> str:
    return " ".join([f"hello {name}"] * times)


@fabric.task(retries=1, backoff=Fixed(delay=0))
def divide(a: int, b: int) -> float:
    return a / b


@fabric.task(lane="slow", tags={"app.size": "big"})
async def wait_for(ctx: Context, gate: str) -> str:
    """Ends when the file exists; says so in its progress."""
    await ctx.progress(40, "waiting [for] the gate")
    while not Path(gate).exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)
    return "through"


@fabric.task()
async def on_day(day: date) -> str:
    return day.isoformat()


@fabric.task()
async def shout(text: str) -> str:
    raise RuntimeError(text)


@fabric.task(retries=1, backoff=Fixed(delay=0))
async def checkout(ctx: Context, order: int) -> int:
    """Its second step raises in the first attempt."""
    price = await ctx.step(price_of, order)
    await ctx.step(charge, price, first=ctx.info.first)
    return price


def price_of(order: int) -> int:
    return order * 10


def charge(price: int, *, first: bool) -> str:
    if price > 100 or first:
        raise ConnectionError(f"no answer for {price}")
    return f"paid {price}"


@fabric.task()
async def persistent(ctx: Context) -> str:
    """Its step fails once and is tried again an hour later."""
    return await ctx.step(knock)


@fabric.step(retries=4, backoff=Fixed(delay="1h"))
async def knock() -> str:
    raise ConnectionError("no answer")


@fabric.task(retries=1, backoff=Fixed(delay=0))
async def teller(ctx: Context) -> None:
    """Emits everything that can be emitted in its first attempt, and fails."""
    if not ctx.info.first:
        await ctx.emit("again")
        return
    await ctx.emit("hello\n", type="stdout")
    await ctx.emit({"n": 1}, type="token", mode="best_effort")
    await ctx.emit(b"\x00\xff")
    await ctx.emit({"done": 1}, mode="summary")
    raise ConnectionError("no answer")
