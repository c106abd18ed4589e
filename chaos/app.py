"""The application under test: tasks that write to the ledger before and after each step."""

import os
import secrets
from functools import cache
from pathlib import Path

from chaos.ledger import Ledger
from flowfabric import Context, Fabric

URL_VARIABLE = "CHAOS_URL"
LEDGER_VARIABLE = "CHAOS_LEDGER"
POISON_EXIT = 86


def make_app(url: str) -> Fabric:
    fabric = Fabric(url)
    double = fabric.task(name="plain")(plain)
    fabric.task()(steps)
    fabric.task()(sleeper)
    fabric.task(retries=3)(flaky)
    fabric.task()(listener)
    fabric.task(concurrency=2)(limited)
    fabric.task()(poison)

    @fabric.task()
    async def mapper(ctx: Context, number: int) -> list[int]:
        return await ctx.map(double, [number, number + 1, number + 2])

    return fabric


async def plain(number: int) -> int:
    return number * 2


async def steps(ctx: Context, number: int) -> list[str]:
    return [await _step(ctx, name) for name in ("first", "second", "third")]


async def sleeper(ctx: Context, number: int) -> list[str]:
    before = await _step(ctx, "before")
    await ctx.sleep(0.2 + number % 10 / 5)
    return [before, await _step(ctx, "after")]


async def flaky(ctx: Context, number: int) -> list[str]:
    value = await _step(ctx, "once")
    if ctx.info.retries == 0:
        raise ConnectionError("the first attempt always fails")
    return [value]


async def listener(ctx: Context, number: int) -> list[str]:
    before = await _step(ctx, "before")
    await ctx.wait_for_signal("go", timeout="1h")
    return [before, await _step(ctx, "after")]


async def limited(ctx: Context, number: int) -> list[str]:
    return [await _step(ctx, "alone")]


async def poison(ctx: Context, number: int) -> None:
    """Kills the process that runs it, like a segmentation fault or the out-of-memory killer."""
    _ledger().write("poison", ctx.info.id.tagged)
    os._exit(POISON_EXIT)


async def _step(ctx: Context, name: str) -> str:
    """One recorded step with three lines in the ledger: before the call, when it runs, when its
    value is recorded.

    `look` bounds how long the process may have been frozen between the engine's last look at the
    lease and the first line of the step."""
    run = ctx.info.id.tagged

    def work() -> str:
        value = secrets.token_hex(4)
        _ledger().write("step", run, name, value)
        return value

    work.__name__ = work.__qualname__ = name
    _ledger().write("look", run, name)
    value = await ctx.step(work)
    _ledger().write("kept", run, name, value)
    return value


@cache
def _ledger() -> Ledger:
    return Ledger(Path(os.environ[LEDGER_VARIABLE]))
