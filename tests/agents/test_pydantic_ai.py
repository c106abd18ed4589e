"""Agents of Pydantic AI as durable runs, with models that need no network."""

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from flowfabric import Context, Fabric, Invalid, testing
from flowfabric.agents import ToolCall, tool
from flowfabric.agents.pydantic_ai import DurableModel, DurableToolset
from tests.worker.bench import Bench


class Desk:
    """A model with a script, and a tool that counts its calls."""

    def __init__(self, *calls: dict[str, Any]) -> None:
        self.calls = [ToolCallPart("refund", each, f"call-{n}") for n, each in enumerate(calls)]
        self.asked = 0
        self.paid: list[int] = []

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        assert [each.name for each in info.function_tools] == ["refund"]
        usage = RequestUsage(input_tokens=30, output_tokens=10)
        if len(messages) == 1:
            return ModelResponse(parts=list(self.calls), usage=usage)
        said = [str(part.content) for part in messages[-1].parts if hasattr(part, "content")]
        return ModelResponse(parts=[TextPart(" & ".join(said))], usage=usage)

    async def refund(self, cents: int) -> str:
        """Gives money back."""
        self.paid.append(cents)
        return f"refunded {cents}"

    def agent(self, *, approval: bool = False, **options: Any) -> Agent[None, str]:
        tools = DurableToolset(tool(approval=approval)(self.refund))
        return Agent(DurableModel(FunctionModel(self.answer), **options), toolsets=[tools])


async def test_an_agent_waits_for_its_approvals_and_asks_the_model_once(bench: Bench) -> None:
    desk = Desk({"cents": 1}, {"cents": 2})
    agent = desk.agent(approval=True)

    async def assist(ctx: Context, prompt: str) -> str:
        return (await agent.run(prompt)).output

    run = await bench.fabric.task(retries=1)(assist).submit("late")
    for cents in (1, 2):
        await bench.work()
        about = ToolCall("refund", {"cents": cents})
        await bench.fabric.approve(run.id, "tool:refund", approver="ada", about=about)
    await bench.work()
    assert await run.result() == "refunded 1 & refunded 2"
    assert (desk.asked, desk.paid) == (2, [1, 2])


async def test_the_model_spends_its_tokens(bench: Bench) -> None:
    agent = Desk({"cents": 1}).agent(reserve={"tokens": 100}, budget="team")

    async def assist(ctx: Context) -> str:
        return (await agent.run("late")).output

    await bench.fabric.budget("team", tokens=1000)
    run = await bench.fabric.task(budgets=["team"])(assist).submit()
    await bench.work()
    assert await run.result() == "refunded 1"
    assert (await bench.fabric.budget_status("team")).used == {"tokens": 80}


async def test_the_model_is_told_what_is_wrong(fabric: Fabric) -> None:
    desk = Desk({"cents": "many"})
    agent = desk.agent()

    @fabric.task()
    async def assist(ctx: Context) -> str:
        return (await agent.run("late")).output

    async with testing.harness(fabric) as harness:
        assert "cents" in await harness.run(assist)
    assert desk.paid == []


async def test_the_test_model_calls_every_tool(fabric: Fabric) -> None:
    desk = Desk()
    agent = Agent(DurableModel(TestModel()), toolsets=[DurableToolset(desk.refund)])

    @fabric.task()
    async def assist(ctx: Context) -> str:
        return (await agent.run("late")).output

    async with testing.harness(fabric) as harness:
        assert "refunded" in await harness.run(assist)
    assert len(desk.paid) == 1


async def test_outside_of_a_run_tools_are_refused() -> None:
    desk = Desk({"cents": 1})
    with pytest.raises(Invalid, match="outside of a run"):
        await desk.agent().run("late")
    assert desk.paid == []
