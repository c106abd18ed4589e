"""The agent: a model that proposes tool calls, and a loop that makes them durably. `python -m
agent.assistant` is a worker."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from flowfabric import BudgetExceeded, Context, Fabric, Invalid, WorkerOptions
from flowfabric.agents import Toolbox, ToolRefused, call_key, tool

HOME = Path(os.environ.get("AGENT_HOME", "."))
fabric = Fabric(f"sqlite:///{HOME / 'agent.db'}")


class Answer(msgspec.Struct):
    """What the model says: a tool call, or its last word."""

    text: str = ""
    tool: str = ""
    arguments: dict[str, Any] = {}


def note(line: str) -> None:
    with (HOME / "diary.txt").open("a") as diary:
        diary.write(line + "\n")


async def ask_model(messages: list[str], tools: list[dict[str, Any]]) -> Answer:
    """Stands for a language model, which is given the conversation and its tools."""
    note(f"the model is asked, {len(messages)} messages")
    match len(messages):
        case 1:
            return Answer(tool="find_order", arguments={"customer": "c-17"})
        case 2:
            return Answer(tool="refund", arguments={"customer": "c-17", "cents": 2500})
        case _:
            return Answer(text=f"Done: {messages[-1]}")


@tool
async def find_order(customer: str) -> str:
    """The last order of a customer."""
    note("find_order is called")
    return "order-7, late, 2500 cents"


@tool(
    approval=lambda customer, cents: cents > 1000,
    reserve=lambda customer, cents: {"cents": cents},
    budget="refunds",
)
def refund(customer: str, cents: int) -> str:
    """Gives money back to a customer."""
    note(f"refund is called with key {call_key()[-6:]}")
    paid = HOME / f"refund-{call_key().rpartition(':')[0][-24:]}"
    if (HOME / "hang").exists():  # the provider has the money on its way, but does not answer yet
        paid.touch()
        (HOME / "hang").unlink()
        threading.Event().wait()
    paid.touch()
    return f"refunded {cents} cents to {customer}"


tools = Toolbox(find_order, refund)


@fabric.task(retries=3, budgets=["refunds"])
async def assist(ctx: Context, prompt: str) -> str:
    messages = [prompt]
    while True:
        answer: Answer = await ctx.step(ask_model, messages, tools.definitions)
        if not answer.tool:
            return answer.text
        try:
            said = await tools.call(ctx, answer.tool, answer.arguments)
        except (ToolRefused, BudgetExceeded, Invalid) as error:
            said = str(error)  # the model may try something else
        messages.append(str(said))


if __name__ == "__main__":
    asyncio.run(fabric.run_worker(WorkerOptions(ttl="2s")))
