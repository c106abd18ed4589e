"""Pydantic models as arguments, results of steps, and results of runs."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import pydantic
import pytest
from pydantic import Field

from flowfabric import Context, Fabric, FlowFabricError, Invalid, testing
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
