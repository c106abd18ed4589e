"""Tool calls as durable steps: recorded, approved with their arguments, paid from budgets."""

import asyncio
import functools
from typing import Any

import pydantic
import pytest

from flowfabric import (
    ApprovalOutdated,
    BudgetExceeded,
    Context,
    Fabric,
    Invalid,
    RunFailed,
    SyncContext,
    testing,
)
from flowfabric.agents import Toolbox, ToolCall, ToolRefused, call_key, tool
from tests.worker.bench import Bench

CALL = ToolCall("refund", {"customer": "c-17", "cents": 2500, "note": ""})


class Till:
    """A tool that counts its calls."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []
        self.keys: list[str] = []
        self.fail_next = False

    async def refund(self, customer: str, cents: int, note: str = "") -> str:
        """Gives money back."""
        self.keys.append(call_key())
        if self.fail_next:
            self.fail_next = False
            raise ConnectionError("the line went dead")
        self.paid.append((customer, cents))
        return f"refunded {cents}"


@pytest.fixture
def till() -> Till:
    return Till()


async def test_a_call_is_recorded_and_not_made_again(bench: Bench, till: Till) -> None:
    box = Toolbox(till.refund)
    failures = [ConnectionError("later")]

    async def agent(ctx: Context) -> Any:
        said = await box.call(ctx, "refund", {"customer": "c-17", "cents": 2500})
        if failures:
            raise failures.pop()
        return said

    run = await bench.fabric.task(name="agent", retries=1)(agent).submit()
    await bench.work_through(run)
    assert await run.result() == "refunded 2500"
    assert till.paid == [("c-17", 2500)]


async def test_a_call_that_is_made_again_has_the_same_key(bench: Bench, till: Till) -> None:
    refund = tool(till.refund)
    till.fail_next = True

    async def agent(ctx: Context) -> None:
        await refund.call(ctx, "c-17", 1)
        await refund.call(ctx, "c-17", 1)

    run = await bench.fabric.task(name="agent", retries=1)(agent).submit()
    await bench.work_through(run)
    failed, first, second = till.keys
    assert failed == first != second


async def test_a_call_needs_the_context_of_its_kind_of_function(bench: Bench, till: Till) -> None:
    box = Toolbox(till.refund)

    def plain(ctx: SyncContext) -> Any:
        return box.call(ctx, "refund", {"customer": "c-17", "cents": 1})  # type: ignore[arg-type]

    async def coroutine(ctx: Context) -> Any:
        return box.call_sync(ctx, "refund", {"customer": "c-17", "cents": 1})  # type: ignore[arg-type]

    task = bench.fabric.task
    runs = [await task(plain).submit(), await task(coroutine).submit()]
    await bench.work()
    for run, advice in zip(runs, ("see call_sync", "call_sync needs the SyncContext"), strict=True):
        with pytest.raises(RunFailed, match=advice):
            await run.result()
    assert till.paid == []


def test_a_tool_has_a_name(bench: Bench, till: Till) -> None:
    with pytest.raises(Invalid, match="Task has no name"):
        tool(bench.fabric.task(till.refund))
    with pytest.raises(Invalid, match="partial has no name"):
        tool(functools.partial(till.refund, "c-17"))


async def test_a_person_approves_exactly_these_arguments(bench: Bench, till: Till) -> None:
    refund = tool(approval=True)(till.refund)

    async def agent(ctx: Context) -> str:
        return await refund.call(ctx, customer="c-17", cents=2500)

    run = await bench.fabric.task(name="agent")(agent).submit()
    await bench.work()
    assert till.paid == []
    other = ToolCall("refund", {**CALL.arguments, "cents": 1})
    with pytest.raises(ApprovalOutdated):
        await bench.fabric.approve(run.id, "tool:refund", approver="ada", about=other)
    await bench.fabric.approve(run.id, "tool:refund", approver="ada", about=CALL)
    await bench.work()
    assert await run.result() == "refunded 2500"
    assert till.paid == [("c-17", 2500)]


async def test_other_arguments_after_the_approval_are_not_executed(
    bench: Bench, till: Till
) -> None:
    refund = tool(approval=True)(till.refund)
    cents = [2500, 9_000_000]

    async def agent(ctx: Context) -> str:
        try:
            return await refund.call(ctx, "c-17", cents.pop(0))  # not recorded: a careless agent
        except ApprovalOutdated:
            return "not approved"

    run = await bench.fabric.task(name="agent")(agent).submit()
    await bench.work()
    await bench.fabric.approve(run.id, "tool:refund", approver="ada", about=CALL)
    await bench.work()
    assert await run.result() == "not approved"
    assert till.paid == []


async def test_a_no_is_told_with_its_comment(bench: Bench, till: Till) -> None:
    refund = tool(approval=lambda customer, cents, note="": cents > 1000)(till.refund)

    async def agent(ctx: Context) -> str:
        await refund.call(ctx, "c-17", 1000)
        try:
            return await refund.call(ctx, "c-17", 1001)
        except ToolRefused as error:
            return error.detail

    run = await bench.fabric.task(name="agent")(agent).submit()
    await bench.work()
    assert till.paid == [("c-17", 1000)]
    await bench.fabric.reject(run.id, "tool:refund", approver="ada", comment="too much")
    await bench.work()
    assert await run.result() == "the call of refund was not approved: rejected (too much)"
    assert till.paid == [("c-17", 1000)]


async def test_a_call_reserves_and_settles(bench: Bench) -> None:
    @tool(reserve=lambda question: {"tokens": 100 * len(question)}, settle=lambda n: {"tokens": n})
    def ask(question: str) -> int:
        return 40

    async def agent(ctx: Context, question: str) -> Any:
        try:
            return await ask.call(ctx, question)
        except BudgetExceeded as error:
            return error.detail

    await bench.fabric.budget("team", tokens=300)
    task = bench.fabric.task(name="agent", budgets=["team"])(agent)
    small, large = await task.submit("ab"), await task.submit("abcd")
    await bench.work()
    assert await small.result() == 40
    assert "do not fit" in await large.result()
    status = await bench.fabric.budget_status("team")
    assert (status.used, status.reserved.get("tokens", 0)) == ({"tokens": 40}, 0)


async def test_a_failed_call_gives_its_reservation_back(bench: Bench, till: Till) -> None:
    refund = tool(reserve={"cents": 5}, budget="team")(till.refund)
    till.fail_next = True

    async def agent(ctx: Context) -> str:
        return await refund.call(ctx, "c-17", 5)

    await bench.fabric.budget("team", cents=5)
    run = await bench.fabric.task(name="agent", budgets=["team"], retries=1)(agent).submit()
    await bench.work()
    assert (await bench.fabric.budget_status("team")).used.get("cents", 0) == 0
    await bench.work_through(run)
    assert await run.result() == "refunded 5"
    assert (await bench.fabric.budget_status("team")).used == {"cents": 5}


async def test_calls_may_be_made_together(bench: Bench, till: Till) -> None:
    refund = tool(approval=True, reserve={"calls": 1})(till.refund)

    async def agent(ctx: Context) -> list[Any]:
        return await ctx.gather(*(refund.call(ctx, f"c-{n}", n) for n in (1, 2)))

    await bench.fabric.budget("team", calls=2)
    run = await bench.fabric.task(name="agent", budgets=["team"])(agent).submit()
    await bench.work()
    for waitpoint in await bench.fabric.waitpoints(run):
        await bench.fabric.approve(f"{run.id}/{waitpoint.id}", approver="ada")
        await bench.work()
    for waitpoint in await bench.fabric.waitpoints(run):
        await bench.fabric.approve(f"{run.id}/{waitpoint.id}", approver="ada")
        await bench.work()
    assert await run.result() == ["refunded 1", "refunded 2"]
    assert sorted(till.paid) == [("c-1", 1), ("c-2", 2)]


async def test_a_plain_function_may_be_the_agent(bench: Bench) -> None:
    box = Toolbox(lambda_free_double)

    def agent(ctx: SyncContext, n: int) -> Any:
        return box.call_sync(ctx, "lambda_free_double", {"n": n})

    run = await bench.fabric.task(name="agent")(agent).submit(4)
    await bench.work()
    assert await run.result() == 8


def lambda_free_double(n: int) -> int:
    return 2 * n


async def test_it_works_in_a_harness(fabric: Fabric, till: Till) -> None:
    refund = tool(approval=True)(till.refund)

    @fabric.task()
    async def agent(ctx: Context) -> str:
        return await refund.call(ctx, "c-17", 2500)

    async with testing.harness(fabric) as harness:
        run = await agent.submit()
        await harness.run_until(waits_for="tool:refund")
        await fabric.approve(run, "tool:refund", approver="ada", about=CALL)
        assert await harness.result(run) == "refunded 2500"


# -- what a model is given, and what it may get wrong


class Address(pydantic.BaseModel):
    city: str


def test_a_model_is_given_the_schema() -> None:
    def send(to: Address, parcels: int = 1) -> None:
        """Sends parcels."""

    (definition,) = Toolbox(send).definitions
    assert (definition["name"], definition["description"]) == ("send", "Sends parcels.")
    schema = definition["parameters"]
    assert (schema["type"], schema["required"]) == ("object", ["to"])
    assert schema["properties"]["parcels"] == {"type": "integer"}
    assert "city" in str(schema)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("refnd", {}, "known: refund"),
        ("refund", {"customer": "c-17"}, "cents"),
        ("refund", {"customer": "c-17", "cents": "many"}, "cents"),
        ("refund", {"customer": "c-17", "cents": 1, "colour": "red"}, "colour"),
        ("refund", ["c-17", 1], "an object"),
        ("refund", None, "an object"),
    ],
)
async def test_what_does_not_fit_is_refused_before_anything_happens(
    name: str, arguments: Any, text: str, fabric: Fabric, till: Till
) -> None:
    box = Toolbox(tool(approval=True)(till.refund))

    @fabric.task()
    async def agent(ctx: Context) -> str:
        try:
            await box.call(ctx, name, arguments)
        except Invalid as error:
            return str(error)
        return ""

    async with testing.harness(fabric) as harness:
        assert text in await harness.run(agent)
    assert till.keys == []


@pytest.mark.parametrize(
    "options",
    [
        {"of": 0},
        {"of": 2, "approvers": ["ada"]},
        {"approvers": "ada"},
        {"approvers": ["ada", "ada"]},
        {"approval": "yes"},
        {"approval_timeout": "soon"},
        {"reserve": 5},
        {"reserve": {"tokens": -1}},
        {"settle": len},
        {"budget": "team"},
        {"retries": -1},
        {"name": 5},
    ],
)
def test_impossible_conditions_are_refused_at_definition(options: Any, till: Till) -> None:
    with pytest.raises(Invalid):
        tool(**options)(till.refund)


def test_impossible_functions_are_refused_at_definition() -> None:
    def many(*numbers: int) -> None: ...
    def with_context(ctx: Context) -> None: ...

    for function in (many, with_context):
        with pytest.raises(Invalid):
            tool(function)
    with pytest.raises(Invalid, match="two tools"):
        Toolbox(asyncio.sleep, asyncio.sleep)


def test_a_key_exists_only_within_a_call() -> None:
    with pytest.raises(Invalid):
        call_key()
