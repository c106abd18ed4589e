"""Two versions of a module in two worker processes, on one store: a step was added at the end."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from flowfabric import Fabric, Run

OLD = dedent("""
    import os
    from flowfabric import Context, Fabric

    fabric = Fabric(os.environ["SHOP_URL"])

    def first(number: int) -> int:
        return number

    def second(number: int) -> int:
        return number + 1

    def third(number: int) -> int:
        return number + 2

    @fabric.task(name="order", retries=3)
    async def order(ctx: Context, number: int) -> list[int]:
        found = [await ctx.step(first, number)]
        await ctx.wait_for_signal("go")
        found.append(await ctx.step(second, number))
        await ctx.sleep(0.2)
        return found
    """)
NEW = OLD.replace(
    "    return found\n",
    """    found.append(await ctx.step(third, number))
    await ctx.sleep(0.2)
    return found
""",
)
RUN = """
import asyncio, orders
from flowfabric import WorkerOptions
options = WorkerOptions(name={name!r}, ttl=2)
asyncio.run(orders.fabric.run_worker(options))
"""

Process = subprocess.Popen[bytes]


class Deploys:
    """Starts worker processes with versions of the module `orders`."""

    def __init__(self, place: Path, url: str) -> None:
        self._place = place
        self._url = url

    @contextmanager
    def worker(self, name: str, code: str) -> Iterator[Process]:
        home = self._place / name
        home.mkdir(exist_ok=True)
        (home / "orders.py").write_text(code)
        path = os.pathsep.join([str(home), *sys.path])
        process = subprocess.Popen(
            [sys.executable, "-c", RUN.format(name=name)],
            env={**os.environ, "PYTHONPATH": path, "SHOP_URL": self._url},
            cwd=home,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)


@pytest.fixture
def deploys(tmp_path: Path, store_url: str) -> Deploys:
    return Deploys(tmp_path, store_url)


def declared(fabric: Fabric) -> Any:
    @fabric.task(name="order", retries=3)
    async def order(number: int) -> list[int]:
        raise NotImplementedError("only the workers run it")

    return order


async def until(runs: list[Run[Any]], state: str, detail: str = "") -> None:
    async with asyncio.timeout(40):
        for run in runs:
            facts = await run.describe()
            while facts.state != state or detail not in (facts.blocking_detail or ""):
                await asyncio.sleep(0.02)
                facts = await run.describe()


async def test_old_and_new_workers_side_by_side_finish_every_run(
    fabric: Fabric, deploys: Deploys
) -> None:
    """Also those whose new worker was killed, whichever takes them over."""
    order = declared(fabric)
    with ExitStack() as stack:
        stack.enter_context(deploys.worker("old", OLD))
        runs = [await order.submit(number) for number in range(12)]
        await until(runs, "suspended")
        new = stack.enter_context(deploys.worker("new", NEW))
        for run in runs:
            await fabric.signal(run.id, "go")
        await runs[0].result(40)
        new.kill()
        stack.enter_context(deploys.worker("newer", NEW))
        found = await asyncio.gather(*(run.result(40) for run in runs))
    for number, result in enumerate(found):
        assert result in ([number, number + 1], [number, number + 1, number + 2])


async def test_what_the_new_code_has_begun_waits_out_a_rollback(
    fabric: Fabric, deploys: Deploys
) -> None:
    order = declared(fabric)
    waiting = NEW.replace(
        "    await ctx.sleep(0.2)\n    return", '    await ctx.wait_for_signal("end")\n    return'
    )
    with deploys.worker("new", waiting):
        runs = [await order.submit(number) for number in range(3)]
        await until(runs, "suspended")
        for run in runs:
            await fabric.signal(run.id, "go")
        await fabric.signal(runs[0].id, "end")
        assert await runs[0].result(60) == [0, 1, 2]
        await until(runs[1:], "suspended")
    with deploys.worker("old", OLD):
        for run in runs[1:]:
            await fabric.signal(run.id, "end")
        await until(runs[1:], "waiting", "blocked by code")
        with deploys.worker("new", waiting):
            assert [await run.result(40) for run in runs[1:]] == [[1, 2, 3], [2, 3, 4]]
    attempts = [(await run.describe()).attempts_made for run in runs]
    assert attempts == [1, 1, 1]
