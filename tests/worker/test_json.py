"""What JSON cannot say is refused where it is given, and nothing arrives as None.

Signals, arguments, results, steps, progress, spends, approvals and schedules.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from flowfabric import Context, Fabric, Invalid, RunFailed
from flowfabric.worker.codec import decode, encode
from tests.worker.bench import Bench

NO_NUMBERS = [math.nan, math.inf, -math.inf]


@dataclass
class Point:
    x: float
    label: str | None = None


class Box(msgspec.Struct):
    content: Any = None


WRAPS: dict[str, Callable[[float], Any]] = {
    "alone": lambda number: number,
    "in a list": lambda number: [1, None, [number]],
    "in a dict": lambda number: {"a": None, "b": {"c": number}},
    "in a tuple": lambda number: (number,),
    "in a set": lambda number: {number},
    "in a dataclass": Point,
    "in a struct": lambda number: Box([Box(number)]),
}


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_no_number_is_written_as_null(wrap: Callable[[float], Any], number: float) -> None:
    with pytest.raises(Invalid, match=r"(nan|inf)"):
        encode(wrap(number))


@pytest.mark.parametrize(
    "value",
    [object(), "\ud800", {"a": {1, object()}}, 1j, lambda: None, {(1, 2): 3}],
    ids=["object", "surrogate", "object within", "complex", "function", "tuple as key"],
)
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(Invalid):
        encode(value)


@pytest.mark.parametrize("value", [None, [None], {"a": None}, "null", ["null"], Point(1.0), 0.5])
def test_null_itself_is_said(value: Any) -> None:
    assert decode(encode(value), Any) == msgspec.to_builtins(value)


def test_a_deep_value_is_read_without_recursion() -> None:
    """Deeper than the encoder goes is refused, by it and in words."""
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Invalid):
        encode(deep)


@pytest.mark.parametrize("number", NO_NUMBERS)
async def test_every_way_in_refuses_it(bench: Bench, number: float) -> None:
    fabric: Fabric = bench.fabric

    @fabric.task()
    async def add(x: float | None = None, y: Any = None) -> None: ...

    for call in ((number,), (1.0, {"a": [number]})):
        with pytest.raises(Invalid, match="add"):
            await add.submit(*call)
    with pytest.raises(Invalid):
        await add.submit_many([(1.0,), (number,)])
    with pytest.raises(Invalid):
        await fabric.schedules.put("s", add, args=[number], every="1m")
    run = await add.submit(1.0)
    for payload in (number, {"a": number}):
        with pytest.raises(Invalid):
            await fabric.signal(run, "go", payload)
    with pytest.raises(Invalid):
        await fabric.approve(run, "go", about={"share": number})
    await fabric.budget("team", tokens=10)
    for amounts in ({"tokens": number}, {"tokens": True}):
        with pytest.raises(Invalid):
            await fabric.spend("team", amounts)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        async with fabric.flow("parts") as flow:
            flow.add(add, number)


@pytest.mark.parametrize("number", NO_NUMBERS)
async def test_a_handler_is_told_as_well(bench: Bench, number: float) -> None:
    fabric = bench.fabric

    def compute() -> Any:
        return {"share": number}

    @fabric.task()
    async def result() -> Any:
        return [number]

    @fabric.task()
    async def step(ctx: Context) -> None:
        await ctx.step(compute)

    @fabric.task()
    async def progress(ctx: Context) -> None:
        await ctx.progress(number)  # type: ignore[arg-type]

    @fabric.task()
    async def spend(ctx: Context) -> None:
        await ctx.spend(tokens=number)  # type: ignore[arg-type]

    @fabric.task()
    async def child(ctx: Context) -> None:
        await ctx.submit(result, number)

    for task in (result, step, progress, spend, child):
        run = await task.submit()
        await bench.work()
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
