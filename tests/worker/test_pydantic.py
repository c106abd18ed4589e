"""Pydantic models as arguments, results of steps, and results of runs."""

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import pydantic
import pytest
from pydantic import Field

from flowfabric import (
    ApprovalOutdated,
    Context,
    Fabric,
    FlowFabricError,
    Invalid,
    SyncContext,
    testing,
)
from flowfabric.worker.codec import decode, encode
from tests.worker.bench import Bench

T = TypeVar("T")


class Line(pydantic.BaseModel):
    article: str
    price: Decimal = Decimal(0)


class Aliased(pydantic.BaseModel):
    order_id: int = Field(alias="orderId")
    paid_on: date | None = Field(default=None, validation_alias="paidOn", serialization_alias="on")
    lines: list[Line] = []


class Computed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    day: date

    @pydantic.computed_field
    def year(self) -> int:
        return self.day.year


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Names(pydantic.RootModel[list[str]]):
    pass


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool = True


@dataclass
class Owner:
    pet: Cat


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]

PAID = Aliased.model_validate({"orderId": 7, "paidOn": "2026-01-02", "lines": [{"article": "a"}]})
VALUES: list[tuple[Any, Any]] = [
    (Aliased, PAID),
    (Computed, Computed(day=date(2026, 1, 2))),
    (Page[Line], Page[Line](items=[Line(article="a", price=Decimal("1.10"))])),
    (Names, Names(["ada"])),
    (Cat | None, None),
    (Cat | None, Cat()),
    (Cat | Dog, Dog(good=False)),
    (Pet, Cat(lives=3)),
    (Pet | None, None),
    (list[Pet], [Cat(), Dog()]),
    (dict[str, Cat | Dog], {"a": Dog()}),
    (tuple[Cat, ...], (Cat(),)),
    (Owner, Owner(Cat(lives=2))),
]


@pytest.mark.parametrize(("type", "value"), VALUES, ids=[str(hint) for hint, _ in VALUES])
def test_a_model_comes_back_as_it_was(type: Any, value: Any) -> None:
    found = decode(encode(value), type)
    assert (found, found.__class__) == (value, value.__class__)


def test_other_languages_may_write_aliases() -> None:
    found = decode(b'{"orderId":7,"paidOn":"2026-01-02"}', Aliased)
    assert (found.order_id, found.paid_on) == (7, date(2026, 1, 2))


async def test_models_go_in_and_out_of_a_run(bench: Bench) -> None:
    def step(order: Aliased) -> Page[Line]:
        return Page[Line](items=order.lines)

    async def handler(
        ctx: Context, order: Aliased, pet: Pet, other: Cat | Dog | None = None
    ) -> Any:
        page = await ctx.step(step, order)
        assert isinstance(page, Page)
        assert isinstance(pet, Cat)
        assert other is None
        return page.items[0]

    handler.__annotations__["return"] = Line
    task = bench.fabric.task()(handler)
    run = await task.submit(Aliased(orderId=7, lines=[Line(article="hat")]), Cat())
    await bench.work()
    assert await run.result() == Line(article="hat")


async def test_a_model_that_does_not_fit_is_refused_by_submit(fabric: Fabric) -> None:
    @fabric.task()
    async def handler(pet: Pet) -> None: ...

    async with testing.harness(fabric):
        with pytest.raises(Invalid, match="does not accept this"):
            await handler.submit({"kind": "fish"})  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="lives"):
            await handler.submit({"kind": "cat", "lives": "many"})  # type: ignore[arg-type]


async def test_a_result_that_is_no_such_model_says_why(fabric: Fabric) -> None:
    @fabric.task()
    async def handler() -> Cat:
        return {"kind": "cat", "lives": "many"}  # type: ignore[return-value]

    async with testing.harness(fabric) as harness:
        with pytest.raises(FlowFabricError, match="lives"):
            await harness.run(handler)


class Order(pydantic.BaseModel):
    id: int = Field(gt=0)
    lines: list[Line] = []


ORDER = Order(id=7, lines=[Line(article="hat", price=Decimal("1.10"))])


def page_of(order: Order) -> Page[Line]:
    return Page[Line](items=order.lines)


def first_of(page: Page[Line], order: Order | None = None) -> Line:
    assert isinstance(page, Page)
    return page.items[0]


async def test_models_are_signalled(bench: Bench) -> None:
    @bench.fabric.task()
    async def one(ctx: Context) -> tuple[Order, list[Order], Page[Line]]:
        return (
            await ctx.wait_for_signal("one", Order),
            await ctx.wait_for_signal("many", list[Order]),
            await ctx.wait_for_signal("page", Page[Line]),
        )

    @bench.fabric.task()
    def plain(ctx: SyncContext) -> Order:
        return ctx.wait_for_signal("one", Order)

    run, other = await one.submit(), await plain.submit()
    page = page_of(ORDER)
    for name, value in [("one", ORDER), ("many", [ORDER]), ("page", page)]:
        await bench.work()
        await bench.fabric.signal(run.id, name, value)
    await bench.fabric.signal(other.id, "one", ORDER)
    await bench.work()
    assert await run.result() == (ORDER, [ORDER], page)
    assert await other.result() == ORDER


async def test_a_signal_that_is_no_such_model_is_named(fabric: Fabric) -> None:
    @fabric.task()
    async def waits(ctx: Context) -> Order:
        return await ctx.wait_for_signal("paid", Order)

    async with testing.harness(fabric) as harness:
        run = await waits.submit()
        await harness.run_until_idle()
        await fabric.signal(run.id, "paid", {"id": 0, "lines": [{"price": "much"}]})
        with pytest.raises(FlowFabricError, match="paid") as caught:
            await run.result()
        assert "Order" in str(caught.value)
        assert "id: Input should be greater than 0; lines[0].article: Field" in str(caught.value)


async def test_a_callback_is_answered_with_a_model(bench: Bench) -> None:
    told: list[tuple[str, str]] = []

    @bench.fabric.task()
    async def waits(ctx: Context) -> Order:
        callback = await ctx.callback("paid")
        told.append((callback.id, callback.token.reveal()))
        return await callback.result(Order)

    run = await waits.submit()
    await bench.work()
    id, token = told[0]
    await bench.fabric.signal(id, payload=ORDER, token=token)
    await bench.work()
    assert await run.result() == ORDER


async def test_a_model_is_approved(bench: Bench) -> None:
    @bench.fabric.task()
    async def waits(ctx: Context, order: Order) -> bool:
        verdict = await ctx.approval("ship", about=order)
        verdict.check(order)
        with pytest.raises(ApprovalOutdated):
            verdict.check(order.model_copy(update={"id": 8}))
        return verdict.approved

    run = await waits.submit(ORDER)
    await bench.work()
    (waitpoint,) = await bench.fabric.waitpoints(run.id)
    assert waitpoint.about == {"id": 7, "lines": [{"article": "hat", "price": "1.10"}]}
    await bench.fabric.approve(run.id, "ship")
    await bench.work()
    assert await run.result() is True


async def test_a_model_is_the_state_of_a_run(bench: Bench) -> None:
    @bench.fabric.task()
    async def sets(ctx: Context) -> None:
        await ctx.set_state(page_of(ORDER))

    run = await sets.submit()
    await bench.work()
    assert await run.state_value(Page[Line]) == page_of(ORDER)
    with pytest.raises(FlowFabricError, match=f"state value of run {re.escape(run.id)}.*Order"):
        await run.state_value(Order)


async def test_models_go_through_children_and_flows(fabric: Fabric) -> None:
    page, first = fabric.task()(page_of), fabric.task()(first_of)

    @fabric.task()
    async def parent(ctx: Context, order: Order) -> list[Line]:
        child = await (await ctx.submit(page, order)).result()
        pages = await ctx.map(page, [order, order])
        async with ctx.flow("sub") as flow:
            node = flow.add(page, order)
            flow.add(first, node.output, order=order)
        found: Line = await flow.result()
        return [child.items[0], *(each.items[0] for each in pages), found]

    async with testing.harness(fabric) as harness:
        assert await harness.run(parent, ORDER) == ORDER.lines * 4
        async with fabric.flow("whole") as flow:
            node = flow.add(page, ORDER)
            flow.add(first, node.output)
            with pytest.raises(Invalid, match="order"):
                flow.add(page, {"id": 0})
        await harness.run_until_idle()
        assert await flow.result() == ORDER.lines[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": 0}, r"id: Input should be greater than 0 - at `\$\.order`$"),
        ({"id": 7, "lines": [{"article": 3}]}, r"lines\[0\]\.article: .*at `\$\.order`$"),
        ("secret", r"^((?!secret).)*at `\$\.order`$"),
    ],
)
async def test_a_refused_argument_is_named_in_one_line(
    fabric: Fabric, given: Any, message: str
) -> None:
    task = fabric.task()(page_of)
    async with testing.harness(fabric):
        with pytest.raises(Invalid, match=message):
            await task.submit(given)


async def test_a_refused_argument_tells_not_more_than_five_problems(fabric: Fabric) -> None:
    task = fabric.task()(page_of)
    async with testing.harness(fabric):
        with pytest.raises(Invalid, match="; and 4 more - at") as caught:
            await task.submit({"id": 7, "lines": [{}] * 9})  # type: ignore[arg-type]
    assert str(caught.value).count("article") == 5
