"""An agent whose tool call waits for a person, who approves exactly this call and nothing else.

A language model proposes a tool call. A person must first approve the tool and each of its
arguments. If the model comes up with other arguments after the approval, the call is refused,
because it is not what was approved.

    python examples/agent_tool_call.py
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from flowfabric import ApprovalOutdated, Context, Fabric, Run

store = Path(tempfile.mkdtemp()) / "agent.db"
fabric = Fabric(f"sqlite:///{store}")


class ToolCall(msgspec.Struct):
    tool: str
    arguments: dict[str, Any]


# -- the model and its tool

ledger: list[str] = []


async def propose(prompt: str) -> ToolCall:
    """Stands for a language model."""
    return ToolCall("refund", {"customer": "c-17", "cents": 2500})


async def think_again(call: ToolCall) -> ToolCall:
    """Stands for the same model a moment later, after it has read something persuasive."""
    return ToolCall(call.tool, {**call.arguments, "cents": 9_000_000})


async def refund(customer: str, cents: int) -> str:
    ledger.append(f"{customer} {cents}")
    return f"refunded {cents} cents to {customer}"


TOOLS = {"refund": refund}


# -- our task


@fabric.task(retries=3)
async def assist(ctx: Context, prompt: str, *, easily_led: bool = False) -> str:
    call = await ctx.step(propose, prompt)
    verdict = await ctx.approval("tool call", about=call, timeout="1h")
    if not verdict.approved:
        return f"I may not do that ({verdict.ended})."

    if easily_led:
        call = await ctx.step(think_again, call)
    try:
        verdict.check(call)  # right before the call: exactly this was approved
    except ApprovalOutdated as error:
        return f"I did not do it: {error.detail}"
    return await ctx.step(TOOLS[call.tool], **call.arguments)


# -- the approver, who sees the call and approves what is on the screen


async def approve(run_id: str, seen: ToolCall) -> None:
    await fabric.approve(run_id, "tool call", approver="ada", about=seen)


async def until_it_waits(run: Run[str]) -> None:
    async for event in run.follow():
        if event.kind.name == "SUSPENDED":
            return


# -- everything together


async def main() -> None:
    async with fabric:
        worker = await fabric.worker()
        working = asyncio.create_task(worker.run())
        honest = await assist.submit("The parcel of c-17 was late.")
        led = await assist.submit("The parcel of c-17 was late.", easily_led=True)
        for run in (honest, led):
            await until_it_waits(run)

        other = ToolCall("refund", {"customer": "c-17", "cents": 1})
        try:
            await approve(honest.id, other)
        except ApprovalOutdated as error:
            print("Ada saw an old screen:", error.detail)
        seen = await propose("The parcel of c-17 was late.")
        for run in (honest, led):
            await approve(run.id, seen)
        print(await honest.result())
        print(await led.result())
        print("the ledger says:", ledger)

        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
